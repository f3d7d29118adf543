"""A state comes back exactly: whatever it is, and saved again it has the same root."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from castore.model.objects import child_node, child_values, read_tree
from castore.state import describe, iter_data
from tests.same import assert_same
from tests.state.harness import Memory, round_trip
from tests.strategies import states


@given(states)
def test_any_state_comes_back_exactly(state: Any) -> None:
    memory = Memory()
    root = memory.save(state)
    loaded = memory.load(root)
    assert_same(state, loaded)
    assert memory.save(state) == root
    assert Memory().save(loaded) == root


@given(states)
def test_counts_are_the_same_on_both_sides(state: Any) -> None:
    memory = Memory()
    description = describe(state, memory.chunk_size)
    plan = memory.plan(memory.put(description))
    assert plan.tensors == description.tensors
    assert len(plan.reads) == len(description.contents)
    assert [r.digests for r in plan.reads] == [tuple(c.digests or ()) for c in description.contents]
    bounded = memory.plan(memory.save(state), max_bytes=description.logical_bytes)
    assert bounded.nbytes <= description.logical_bytes


@given(states)
def test_paths_are_the_same_on_both_sides(state: Any) -> None:
    memory = Memory()
    description = describe(state, memory.chunk_size)
    contents = set(map(id, description.contents))
    saved = [path for path, value in iter_data(description.root) if id(value) in contents]
    loaded = [read.path for read in memory.plan(memory.put(description)).reads]
    if "set" not in str(memory.objects):  # a set's items are shown by their place, which is chance
        assert saved == loaded


# -- T10: keys, containers and Python leaves of a whole training state ----------------------------


def t10_state() -> dict[Any, Any]:
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [10, 20])
    odd: dict[Any, Any] = {
        "": 1, "a/b": 2, "../x": 3, "ключ": 4, "\u00e9": 5, "e\u0301": 6, "__metadata__": 7,
        "Foo": 8, "foo": 9, "k" * 5000: 10, "nul\0and\nnewline": 11, "~0": 12, "\ud800": 13,
        1: "int", "1": "str", (1, "a"): "tuple", None: "none", 2.5: "float", -0.0: "minus zero",
        b"1": "bytes", 2**70: "large", ((), ((1,),)): "nested", True + 1: "two",
        torch.float32: "dtype", np.int64(77): "numpy", Path("x"): "path",
    }  # fmt: skip
    return {
        "model": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "keys": odd,
        "bool keys": {True: 1, False: 0},
        "dots": {"a.b": 1, "a": {"b": 2}},
        "empty": [{}, [], (), set(), frozenset(), OrderedDict(), Counter(), "", b""],
        "leaves": [None, -0.0, float("inf"), float("nan"), 2**200, -(2**200), 1 + 2j, b"\0" * 9],
        "deep": {"a": {"b": {"set": {1, "a", (2, 3)}, "frozen": frozenset({b"x"}), "c": 1j}}},
        "times": [datetime(2026, 1, 2, 3, 4, 5, 6), datetime.now(timezone.utc), timedelta(1, 2, 3)],  # noqa: UP017
        "paths": [Path("/a/b"), PurePosixPath("c"), PureWindowsPath("C:\\d")],
        "numpy": [np.float64(1.5), np.int32(3), np.str_("s"), np.random.get_state()],
        "pcg64": np.random.default_rng(5).bit_generator.state,
        "random": random.getstate(),
        "torch": [torch.get_rng_state(), torch.Generator().manual_seed(3), torch.Size([2, 3])],
        "factories": [defaultdict(list, {1: [2]}), defaultdict(None, {}), defaultdict(int)],
    }


def test_T10_keys_containers_and_leaves_of_a_training_state() -> None:
    state = t10_state()
    assert_same(state, round_trip(state))


def test_T10_a_model_and_optimizer_go_on_from_what_was_loaded() -> None:
    state = t10_state()
    loaded = round_trip(state)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    network.load_state_dict(loaded["model"])
    optimizer = torch.optim.AdamW(network.parameters())
    optimizer.load_state_dict(loaded["optimizer"])
    assert_same(optimizer.state_dict(), state["optimizer"])
    random.setstate(loaded["random"])
    np.random.set_state(loaded["numpy"][3])
    assert_same(np.random.get_state(), state["numpy"][3])


def test_T10_A30_three_rounds_change_nothing() -> None:
    memory = Memory()
    state = {"milestones": Counter({10: 1, 20: 1}), "state": {0: {"step": 1}, 1: {"step": 2}}}
    first = memory.save(state)
    root, loaded = first, state
    for _ in range(3):
        loaded = memory.load(root)
        root = memory.save(loaded)
        assert root == first
    assert_same(state, loaded)


def test_T10_A41_metadata_of_a_state_dict_is_kept() -> None:
    state = torch.nn.BatchNorm1d(4).state_dict()
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert loaded._metadata[""] == {"version": 2}
    plain = round_trip(OrderedDict(a=1))
    assert not hasattr(plain, "_metadata")


def test_T10_A43_loader_state() -> None:
    state = {"workers": {"worker_0": {"samples": 3, "none": None}, "worker_1": None}, "rank": 0}
    assert_same(state, round_trip(state))


@pytest.mark.parametrize("metadata", [None, 5, [], "x" * 300, torch.ones(3), {"v": torch.ones(99)}])
def test_metadata_may_be_any_value(metadata: Any) -> None:
    state: OrderedDict[str, Any] = OrderedDict(a=torch.zeros(2))
    state._metadata = metadata  # type: ignore[attr-defined]
    assert_same([state], round_trip([state]))


@pytest.mark.parametrize("state", [None, 3, "x" * 300, torch.ones(3), b"", 2**99, np.ones(2)])
def test_a_state_may_be_a_single_value(state: Any) -> None:
    assert_same(state, round_trip(state))


@pytest.mark.parametrize("n", [256, 257, 65_537])
def test_wide_containers_of_each_kind(n: int) -> None:
    state = [
        {i: i for i in range(n)}, list(range(n)), tuple(range(n)), set(range(n)),
        frozenset(map(str, range(n))), OrderedDict((str(i), i) for i in range(n)),
        Counter(dict.fromkeys(range(n), 2)), defaultdict(int, {i: i for i in range(n)}),
    ]  # fmt: skip
    state[5]._metadata = {"v": 1}  # type: ignore[union-attr]
    assert_same(state, round_trip(state))


def test_a_subtree_can_be_planned_by_itself() -> None:
    memory = Memory()
    state = {"model": {"w": torch.arange(3000.0), "name": "n" * 300}, "step": 3, "rest": [1, [2]]}
    node = read_tree(memory.save(state), memory.fetch)
    model, step, rest = child_values(node)
    plan = memory.plan(model, path="model")
    assert [read.path for read in plan.reads] == ["model/w", "model/name"]
    memory.fill(plan)
    assert_same(state["model"], plan.finish())
    assert memory.load(child_node(model, memory.fetch), path="model")["name"] == "n" * 300
    assert memory.load(step, path="step") == 3
    assert memory.load(rest) == [1, [2]]
    tensor = child_values(child_node(model, memory.fetch) or node)[0]
    plan = memory.plan(tensor, path="model/w")
    assert [read.path for read in plan.reads] == ["model/w"]
    memory.fill(plan)
    assert_same(state["model"]["w"], plan.finish())


def test_a_plan_is_finished_once() -> None:
    memory = Memory()
    plan = memory.plan(memory.save([1]))
    assert plan.finish() == [1]
    with pytest.raises(ValueError, match="once"):
        plan.finish()


SETS = """
import sys
from tests.state.harness import Memory
from castore.state import describe
texts = {f"{i}" * 300 for i in range(50)}
state = [texts, {(t, "x") for t in texts}, {"a", "b", "c"}]
memory = Memory()
description = describe(state, memory.chunk_size)
root = memory.put(description)
print(root, [c.digests[0].short for c in description.contents])
"""


def test_sets_have_one_root_and_one_order_of_contents_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert outputs.pop().strip()


LIGHT = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # an import of them fails
from tests.state.harness import Memory
from datetime import datetime
from pathlib import Path
state = {"a": [1, 2.5, None, "x" * 999, (2**99, b"q" * 999)], 3: datetime.now(), "p": Path("x")}
memory = Memory()
root = memory.save(state)
assert memory.load(root) == state
"""


def test_a_plain_state_needs_neither_torch_nor_numpy() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, cwd=Path(__file__).parents[2])
