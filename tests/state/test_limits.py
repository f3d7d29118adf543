"""Depth, width and many tensors: no recursion, no quadratic work, the same bounds on both sides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from castore.errors import BadState
from castore.model.encoding import EncodingError
from castore.model.objects import NIL, Node, encode_tree
from castore.state import MAX_DEPTH, describe
from castore.system import monotonic
from tests.same import assert_same
from tests.state.harness import Memory, round_trip


def nested(depth: int, kind: type) -> Any:
    state: Any = 7 if kind is not dict else {"end": torch.ones(2)}
    for i in range(depth - (kind is dict)):
        state = {"k": state} if kind is dict else kind([i, state]) if kind is list else (state,)
    return state


@pytest.mark.parametrize("kind", [dict, list, tuple])
@pytest.mark.parametrize("depth", [3000, MAX_DEPTH])
def test_T10_A45_deep_states_work(kind: type, depth: int) -> None:
    state = nested(depth, kind)
    loaded = round_trip(state)
    if kind is tuple:  # comparing goes down as well
        while isinstance(loaded, tuple):
            assert type(state) is tuple
            [loaded], [state] = loaded, state
        assert loaded == state == 7
    else:
        assert_same(state, loaded)


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_T10_A45_deeper_ones_are_refused(kind: type) -> None:
    with pytest.raises(BadState, match=f"more than {MAX_DEPTH} deep") as caught:
        describe(nested(MAX_DEPTH + 1, kind), 4096)
    assert len(caught.value.path.split("/")) == MAX_DEPTH
    with pytest.raises(BadState):
        describe(nested(50_000, kind), 4096)


def test_a_tree_that_is_too_deep_is_refused() -> None:
    memory = Memory()
    node = Node("list", NIL, None, [])
    for _ in range(MAX_DEPTH):
        node = Node("list", NIL, None, [node])
    root = encode_tree(node, lambda *record: memory.objects.update({record[:2]: record[2]}))
    with pytest.raises(EncodingError, match=f"over {MAX_DEPTH} deep"):
        memory.plan(root)


def test_many_values_are_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    memory = Memory()
    state = {"a": list(range(600)), "b": list(range(600))}
    root = memory.save(state)
    monkeypatch.setattr(import_module("castore.state.describe"), "MAX_VALUES", 1000)
    monkeypatch.setattr(import_module("castore.state.plan"), "MAX_VALUES", 1000)
    with pytest.raises(BadState, match="more than 1000 values") as caught:
        describe(state, 4096)
    assert caught.value.path == "b"
    with pytest.raises(EncodingError, match=r"^b: a container of more than 398 entries"):
        memory.plan(root)


def test_100_000_tensors_are_described_in_a_moment() -> None:
    state = {f"layers.{i}.weight": torch.zeros(256) for i in range(100_000)}
    began = monotonic()
    description = describe(state, 4 << 20)
    seconds = monotonic() - began
    assert description.tensors == len(description.contents) == 100_000
    assert description.logical_bytes == 100_000 * 1024
    # 0.3 to 0.5 s where it was measured; this is here to catch quadratic work, not slow machines.
    assert seconds < 6


def test_100_000_small_and_tied_tensors() -> None:
    one = torch.ones(3)
    memory = Memory()
    root = memory.save([one] * 100_000)
    loaded = memory.load(root)
    assert len(loaded) == 100_000
    assert all(tensor is loaded[0] for tensor in loaded)


def test_many_views_of_one_address() -> None:
    base = torch.zeros(1000)
    description = describe([base[: i % 1000 + 1] for i in range(20_000)], 4096)
    assert description.tensors == 20_000
    assert len(description.data) == 1000


def test_many_offenders_in_a_wide_container_are_not_quadratic() -> None:
    began = monotonic()
    with pytest.raises(BadState) as caught:
        describe({f"k{i}": ... for i in range(50_000)}, 4096)
    assert len(caught.value.paths) == 50_000
    assert monotonic() - began < 20


def test_the_collector_is_left_as_it_was() -> None:
    import gc

    assert gc.isenabled()
    describe([1], 4096)
    assert gc.isenabled()
    gc.disable()
    try:
        describe([1], 4096)
        assert not gc.isenabled()
        with pytest.raises(BadState):
            describe([...], 4096)
    finally:
        gc.enable()
