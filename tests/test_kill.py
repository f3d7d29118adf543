"""SIGKILL at random instants of real saving processes (T1, B01, B02, B24).

After each death: the head is the last acknowledged checkpoint or the one in flight, whole; fsck
finds no damage; gc leaves no debris; the next save works.  (Every syscall by turns, and power
loss, have a campaign of their own.)
"""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import castore
from tests.support import fork, same, training_state

ROUNDS = {False: 40, True: 200}


def states() -> Iterator[tuple[int, dict]]:
    """A run's states, a function of the step alone: what the parent can make again."""
    step = 0
    while True:
        yield step, state_at(step)
        step += 1


def state_at(step: int) -> dict:
    state = training_state(step // 2, width=48, step=step)  # every other step repeats the tensors
    state["frozen"] = torch.arange(200_000.0)
    state["moving"] = torch.full((100_000,), float(step))
    return state


def saver(path: Path, first: int, pipe: int) -> None:
    """Save step after step; acknowledge each on the pipe."""
    warnings.simplefilter("ignore", castore.CastoreWarning)
    with castore.open(path, create=True) as store:
        for step, state in states():
            if step < first:
                continue
            store.save(state, step=step)
            os.write(pipe, f"{step}\n".encode())


@pytest.mark.slow
def test_sigkill_at_random_instants(tmp_path: Path, campaign: bool) -> None:
    path = tmp_path / "runs.castore"
    castore.save(state_at(0), tmp_path / "warm.castore")  # so that children need import nothing
    chance = random.Random(20261201)
    acknowledged = -1
    in_flight_landed = debris_left = 0
    for round_ in range(ROUNDS[campaign]):
        reading, writing = os.pipe()
        pid = fork(lambda first=acknowledged + 1, pipe=writing: saver(path, first, pipe))
        os.close(writing)
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(reading) as acks:
            steps = [int(line) for line in acks]
        acknowledged = steps[-1] if steps else acknowledged

        if not (path / "castore.json").exists():
            assert acknowledged == -1
            continue
        with castore.open(path) as store:
            listed = [c.step for c in store.log()] if store.branches() else []
            assert listed[:1] in ([acknowledged], [acknowledged + 1]) or not listed
            assert listed == list(range(len(listed)))[::-1]
            if acknowledged >= 0:
                assert listed, "an acknowledged checkpoint is gone"
            in_flight_landed += bool(listed) and listed[0] == acknowledged + 1
            if listed:
                assert same(store.load(), state_at(listed[0]))
            if round_ % 5 == 0:
                report = store.fsck()
                assert report.ok, report.damage
                assert len(report.whole) == len(listed)
            debris_left += bool(store.gc().items)
            assert store.gc().items == ()
            acknowledged = listed[0] if listed else -1
    with castore.open(path) as store:
        assert store.fsck().ok
        for back, checkpoint in enumerate(store.log()):
            assert same(store.load(f"main~{back}"), state_at(checkpoint.step))
    assert acknowledged > 5, "the savers never got anywhere: nothing was tested"
    assert debris_left > 3, "no save was ever caught in the middle: nothing was tested"
