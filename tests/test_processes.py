"""Several processes on one store: nothing lost, conflicts named, one store made once."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

import castore
from tests.support import fork, same, wait_ok


def run_state(run: int, step: int) -> dict:
    """Two runs share half of their tensors, and differ in the other half."""
    return {
        "shared": torch.full((20_000,), float(step)),
        "own": torch.full((20_000,), run * 1000.0 + step),
        "step": step,
    }


def test_two_processes_two_branches_one_store_D07(tmp_path: Path) -> None:
    path, steps = tmp_path / "runs.castore", 12

    def run(number: int) -> None:
        with castore.open(path, create=True) as store:
            for step in range(steps):
                store.save(run_state(number, step), branch=f"run{number}", step=step)
                if step % 4 == 3:
                    store.gc()  # beside the other's saves in flight

    children = [fork(lambda n=n: run(n)) for n in range(3)]
    for pid in children:
        wait_ok(pid)
    with castore.open(path) as store:
        assert sorted(store.branches()) == ["run0", "run1", "run2"]
        for number in range(3):
            assert [c.step for c in store.log(f"run{number}")] == list(range(steps))[::-1]
            for step in range(steps):
                loaded = store.load(f"run{number}@step={step}")
                assert same(loaded, run_state(number, step))
        assert store.fsck().ok
        assert store.gc().items == ()


def test_two_processes_on_one_branch_conflict_and_lose_nothing(tmp_path: Path) -> None:
    path, saves = tmp_path / "runs.castore", 10
    reading, writing = os.pipe()

    def run(number: int) -> None:
        warnings.simplefilter("ignore", castore.CastoreWarning)
        with castore.open(path, create=True) as store:
            conflicts = 0
            for i in range(saves):
                while True:
                    try:
                        store.save({"run": number, "i": i}, step=number * 100 + i)
                        break
                    except castore.RefConflict as e:
                        assert "pid" in str(e)
                        assert e.branch == "main"
                        conflicts += 1
                        store.resolve("main")
            os.write(writing, f"{conflicts}\n".encode())

    children = [fork(lambda n=n: run(n)) for n in range(2)]
    for pid in children:
        wait_ok(pid)
    os.close(writing)
    with os.fdopen(reading) as lines:
        conflicts = sum(int(line) for line in lines)
    with castore.open(path) as store:
        listed = store.log()
        assert sorted(c.step for c in listed) == sorted(
            n * 100 + i for n in range(2) for i in range(saves)
        )
        for older, newer in zip(listed[1:], listed, strict=False):
            assert newer.parent == older.digest
        assert store.fsck().ok
    assert conflicts > 0, "the two never met: nothing was tested"


def test_many_processes_make_one_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"

    def make(number: int) -> None:
        with castore.open(path, create=True) as store:
            store.save({"n": number}, branch=f"b{number}")

    children = [fork(lambda n=n: make(n)) for n in range(16)]
    for pid in children:
        wait_ok(pid)
    with castore.open(path) as store:
        assert len(store.branches()) == 16
        assert store.info().entries == 17
        for n in range(16):
            assert store.load(f"b{n}") == {"n": n}
        assert store.fsck().findings == ()


def test_a_forked_child_may_use_the_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"
    state = {"w": torch.arange(50_000.0)}
    with castore.open(path, create=True) as store:
        store.save(state, step=1)

        def child() -> None:
            assert same(store.load(), state)
            store.save({**state, "child": 1}, branch="child")

        pid = fork(child)
        store.save({**state, "parent": 1}, branch="parent")
        wait_ok(pid)
        assert store.load("child")["child"] == 1
        assert store.load("parent")["parent"] == 1
        assert store.fsck().ok
