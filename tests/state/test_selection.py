"""Partial plans, against loading all and leaving out; and what they do not touch."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import castore
from castore.errors import UnsupportedFeature, UsageError
from castore.model import keypath
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import TreeNode
from castore.model.patterns import selection_of
from castore.state import plan_state
from tests.reference import matched_by, prune
from tests.same import assert_same
from tests.state.harness import Memory

_keys = st.sampled_from(["a", "b", "ab", "a/b", "~", "*", "", "1", 1, 2, (1, "a"), 2.5, None, b"x"])
_leaves = st.one_of(
    st.integers(0, 9),
    st.sampled_from(["x" * 300, "", 2**70]),
    st.integers(0, 200).map(lambda n: torch.arange(n, dtype=torch.int32)),
    st.integers(0, 2000).map(np.arange),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mapping = st.dictionaries(_keys, inner, max_size=4)
    return st.one_of(
        mapping,
        mapping,
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        mapping.map(OrderedDict),
        mapping.map(_with_metadata),
        mapping.map(lambda items: defaultdict(list, items)),
        st.dictionaries(_keys, st.integers(), max_size=3).map(Counter),
    )


def _with_metadata(items: dict[Any, Any]) -> OrderedDict[Any, Any]:
    made = OrderedDict(items)
    made._metadata = {"": {"version": 1}, "t": torch.ones(99)}  # type: ignore[attr-defined]
    return made


states = st.recursive(_leaves, _containers, max_leaves=10)


def all_paths(value: Any, path: str = "") -> list[str]:
    found = [path]
    names: list[str] = []
    items: list[Any] = []
    if isinstance(value, dict):
        names, items = keypath.names(value), list(value.values())
    elif isinstance(value, (list, tuple)):
        names, items = [str(i) for i in range(len(value))], list(value)
    for name, item in zip(names, items, strict=True):
        found += all_paths(item, f"{path}/{name}" if path else name)
    return found


@st.composite
def patterns_for(draw: st.DrawFn, state: Any) -> str:
    """A path of the state, some of its components made wild; now and then nonsense."""
    parts = draw(st.sampled_from(all_paths(state))).split("/")
    for i in range(len(parts)):
        how = draw(st.sampled_from(["as it is", "as it is", "*", "part", "**", "nonsense"]))
        if how == "*":
            parts[i] = "*"
        elif how == "part":
            parts[i] = draw(st.sampled_from([parts[i][:1] + "*", "*" + parts[i][-1:], "**"]))
        elif how == "**":
            parts[i:] = ["**"]
            break
        elif how == "nonsense" and draw(st.integers(0, 3)) == 0:
            parts[i] = "nonsense"
    return "/".join(parts)


@given(st.data())
def test_only_is_all_without_the_rest(data: st.DataObject) -> None:
    state = data.draw(states)
    patterns = data.draw(st.lists(patterns_for(state), min_size=1, max_size=3))
    memory = Memory()
    root = memory.save(state)
    lost = [p for p in patterns if not matched_by(p, state)]
    if lost:
        with pytest.raises(UsageError, match="matches nothing") as caught:
            memory.load(root, selection=selection_of(patterns))
        assert caught.value.patterns == lost  # type: ignore[attr-defined]
        return
    found = memory.load(root, selection=selection_of(patterns))
    assert_same(found, prune(state, patterns))


def test_a_set_is_pruned_to_what_is_meant() -> None:
    memory = Memory()
    root = memory.save({"s": {"a", "b"}, "f": frozenset({1, 2, 3})})
    assert memory.load(root, selection=selection_of(["s", "f/1"])) == {
        "s": {"a", "b"},
        "f": frozenset({2}),  # elements are named in the order of their encodings
    }


def test_what_cannot_match_is_not_fetched() -> None:
    memory = Memory()
    state = {
        "model": {f"l{i}": {"w": torch.full((300,), float(i)), "b": 1} for i in range(20)},
        "rest": {f"r{i}": {"x" * 30: list(range(250, 450))} for i in range(20)},
        "long": torch.zeros(64 * 1024),  # whose list of chunks is an object of its own
    }
    root = memory.save(state)
    fetched: list[Kind] = []

    def fetch(kind: Kind, digest: Digest) -> bytes:
        fetched.append(kind)
        return memory.fetch(kind, digest)

    def plan(only: Any) -> int:
        fetched.clear()
        plan = plan_state(root, fetch, memory.chunk_size, selection=selection_of(only))
        return len(plan.reads)

    assert plan("model/l3/w") == 1
    assert len(fetched) == 2  # the root and `model`; its small entries lie inside it
    assert plan("model/*/b") == 0
    assert len(fetched) == 2
    assert plan(["rest/r1", "rest/r2/**"]) == 0
    assert len(fetched) == 4
    assert plan("**/w") == 20
    assert Kind.CHUNKS not in fetched
    assert plan("long") == 1
    assert fetched == [Kind.TREE, Kind.CHUNKS]


def test_ties_hold_within_what_is_loaded() -> None:
    memory = Memory()
    shared = torch.randn(500)
    root = memory.save({"x": shared, "a": {"y": shared}, "b": [shared, shared]})
    found = memory.load(root, selection=selection_of(["a", "b/1"]))
    assert found["b"][0] is castore.OMITTED
    assert found["a"]["y"] is found["b"][1]
    assert torch.equal(found["b"][1], shared)


def test_a_partial_state_is_not_saved_as_a_whole_one() -> None:
    memory = Memory()
    found = memory.load(memory.save({"l": [1, 2]}), selection=selection_of("l/0"))
    with pytest.raises(castore.BadState, match=r"l/1.*left out.*load the whole") as caught:
        memory.save(found)
    assert caught.value.path == "l/1"


def test_bounds_hold_for_partial_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    def nothing(kind: Kind, digest: Digest) -> bytes:
        raise AssertionError

    tensor = ["tensor", 0, "float32", 4, [3000], [1, b"\1" * 96], None]
    two = TreeNode("dict", 0, None, [["a", tensor], ["b", tensor], ["c", ["hologram"]]])
    plan_state(two, nothing, 4096, selection=selection_of("a"), max_bytes=12_000)
    with pytest.raises(EncodingError, match=r"^b: more than 12000 bytes"):
        plan_state(two, nothing, 4096, selection=selection_of(["a", "b"]), max_bytes=12_000)
    with pytest.raises(UnsupportedFeature, match=r"^c: .*hologram"):
        plan_state(two, nothing, 4096, selection=selection_of("c"))
    twice = TreeNode("dict", 0, None, [["a", 1], ["a", 2]])
    with pytest.raises(EncodingError, match="same key twice"):
        plan_state(twice, nothing, 4096, selection=selection_of("a"))
    value: Any = ["node", ["list", 0, None, [0] * 50]]
    for _ in range(3):
        value = ["node", ["list", 0, None, [value] * 50]]
    monkeypatch.setattr(sys.modules["castore.state.plan"], "MAX_VALUES", 1000)
    with pytest.raises(EncodingError, match="more than 1000 values"):
        plan_state(value, nothing, 4096, selection=selection_of("**/1"))


def test_the_error_says_what_is_there() -> None:
    memory = Memory()
    root = memory.save({"model": {"layers.0.weight": 1, "layers.1.weight": 2, "head": {"w": 1}}})

    def told(only: Any) -> str:
        with pytest.raises(UsageError) as caught:
            memory.load(root, selection=selection_of(only))
        return str(caught.value)

    assert told("model/layer.0.weight") == (
        "'model/layer.0.weight' matches nothing: model holds layers.0.weight, layers.1.weight, ..."
    )
    assert told("modle/**") == "'modle/**' matches nothing: (the root) holds model"
    assert told(["model", "model/head/x"]) == "'model/head/x' matches nothing: model/head holds w"
    assert told("model/head/w/deeper") == (
        "'model/head/w/deeper' matches nothing: model/head holds w"
    )


def test_deep_and_wide() -> None:
    memory = Memory()
    deep: Any = torch.ones(100)
    for _ in range(5000):
        deep = {"d": deep, "x": 1}
    root = memory.save(deep)
    found = memory.load(root, selection=selection_of("**/d"))
    assert_same(found, {"d": deep["d"]})
    found = memory.load(root, selection=selection_of("d/" * 4999 + "*"))
    for _ in range(4999):
        assert list(found) == ["d"]
        found = found["d"]
    assert list(found) == ["d", "x"]
    wide = memory.save({f"k{i}": [i, torch.full((2,), i)] for i in range(5000)})
    found = memory.load(wide, selection=selection_of("k*7/1"))
    assert len(found) == 500
    assert found["k4997"][0] is castore.OMITTED
    assert found["k4997"][1].tolist() == [4997, 4997]
