"""Many processes on one store, some killed, some stopped (T13, D07): no acknowledged save is lost.

Eight appenders on eight branches that share tensors; SIGKILL and SIGSTOP among them.  At the end:
the log has no gap and its chain holds, every acknowledged checkpoint is there and loads exactly.
"""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

import castore
from castore.log.log import Log
from tests.support import fork, same, wait_ok

APPENDERS = 8
SECONDS = {False: 6.0, True: 60.0}


def state_at(branch: str, step: int) -> dict:
    """Tensors that several branches have at the same time, and one that is the branch's own."""
    return {
        "shared": torch.arange(20_000.0) + step // 4,
        "own": torch.full((3000,), float(step)) + int(branch[1:]),
        "step": step,
    }


def append(path: Path, branch: str, first: int, pipe: int, until: float) -> None:
    """Save step after step on a branch; acknowledge each on the pipe."""
    warnings.simplefilter("ignore", castore.CastoreWarning)
    with castore.open(path) as store:
        step = first
        while time.monotonic() < until:
            store.save(state_at(branch, step), branch=branch, step=step)
            os.write(pipe, f"{step}\n".encode())
            step += 1


class Appender:
    """A branch's writing process, which may be killed and begun again."""

    def __init__(self, path: Path, branch: str, until: float) -> None:
        self.path = path
        self.branch = branch
        self.until = until
        self.acknowledged = -1
        self.deaths = 0
        self.begin()

    def begin(self) -> None:
        with castore.open(self.path, readonly=True) as store:
            there = store.log(self.branch, limit=1) if self.branch in store.branches() else []
        head = there[0].step if there else -1
        assert head is not None
        assert head in (self.acknowledged, self.acknowledged + 1), "an acknowledged save is gone"
        self.acknowledged = head
        reading, writing = os.pipe()
        self.pid = fork(lambda: append(self.path, self.branch, head + 1, writing, self.until))
        os.close(writing)
        self.acks = reading

    def collect(self) -> None:
        with os.fdopen(self.acks) as lines:
            for line in lines:
                assert int(line) == self.acknowledged + 1
                self.acknowledged = int(line)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.collect()
        self.deaths += 1
        self.begin()


@pytest.mark.slow
def test_eight_appenders_with_sigkill_and_sigstop(tmp_path: Path, campaign: bool) -> None:
    path = tmp_path / "runs.castore"
    castore.open(path, create=True).close()
    castore.save(state_at("b0", 0), tmp_path / "warm.castore")
    until = time.monotonic() + SECONDS[campaign]
    chance = random.Random(7)
    writers = [Appender(path, f"b{i}", until) for i in range(APPENDERS)]
    stopped: list[Appender] = []
    while time.monotonic() < until - 0.5:
        time.sleep(chance.uniform(0.02, 0.2))
        writer = chance.choice(writers)
        if writer in stopped:
            os.kill(writer.pid, signal.SIGCONT)
            stopped.remove(writer)
        elif chance.random() < 0.5:
            os.kill(writer.pid, signal.SIGSTOP)
            stopped.append(writer)
        else:
            writer.kill()
        if len(stopped) > 2:  # one that is stopped amid an index write holds up the others
            os.kill(stopped.pop(0).pid, signal.SIGCONT)
    for writer in stopped:
        os.kill(writer.pid, signal.SIGCONT)
    for writer in writers:
        wait_ok(writer.pid)
        writer.collect()
    with castore.open(path) as store:
        for writer in writers:
            found = [c.step for c in store.log(writer.branch)]
            assert found == list(range(writer.acknowledged + 1))[::-1]
            for back, step in enumerate(found):
                assert step is not None
                loaded = store.load(f"{writer.branch}~{back}")
                assert same(loaded, state_at(writer.branch, step))
        listed = Log(store._storage, bytes.fromhex(store.store_id)).listed()
        assert listed == list(range(1, len(listed) + 1)), "a gap in the log"
        store.gc()
        report = store.fsck()
        assert report.ok, report.damage
    saves = sum(w.acknowledged + 1 for w in writers)
    print(f"{saves} saves, {sum(w.deaths for w in writers)} deaths")
    assert saves > APPENDERS
    assert sum(w.deaths for w in writers) > 3


def test_sixty_four_processes_make_one_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"
    castore.save({"x": torch.ones(3)}, tmp_path / "warm.castore")
    reading, writing = os.pipe()

    def make(i: int) -> None:
        os.read(reading, 1)
        with castore.open(path, create=True) as store:
            store.save({"x": torch.full((1000,), float(i))}, branch=f"b{i}", step=i)

    pids = [fork(lambda i=i: make(i)) for i in range(64)]
    os.write(writing, b"x" * 64)
    os.close(reading)
    os.close(writing)
    for pid in pids:
        wait_ok(pid)
    with castore.open(path) as store:
        assert len(store.branches()) == 64
        assert store.fsck().ok
        for i in range(0, 64, 9):
            assert same(store.load(f"b{i}"), {"x": torch.full((1000,), float(i))})


def test_two_hundred_readers(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"
    state = {f"t{i}": torch.full((2000,), float(i)) for i in range(20)}
    castore.save(state, path, step=1)

    def read() -> None:
        with castore.open(path, readonly=True) as store:
            assert same(store.load(), state)

    pids = [fork(read) for _ in range(200)]
    for pid in pids:
        wait_ok(pid)
