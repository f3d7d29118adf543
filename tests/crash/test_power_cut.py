"""Power cuts at every instant of real saves, a gc and the making of a store (T1, B02, B25).

The acts of the real code are recorded, every state that a cut may leave is made, and castore is let
loose on it: the head is what was acknowledged or the save in flight, whole; fsck finds no damage;
the next save works; gc leaves nothing behind.  The same test must catch a castore that forgets
an fsync: its acts are the recorded ones with some of them left out.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import castore
from castore.log import log as log_module
from castore.log.log import Log
from castore.upkeep import reserve
from tests.crash.power_cut import State, snapshot, states, write_out
from tests.crash.promises import Broken, examine, save
from tests.crash.recorder import Op, Recorder
from tests.support import fork, wait_ok

Acts = list[Op]
Scene = Callable[[Path], tuple[State, Acts]]
#: Tries for a cut between the same two acts, in a run that is not a campaign.
MOST = 8
#: States examined of a scene, in such a run.
SAMPLE = 200


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where thousands of small stores are made in a minute."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="castore-cuts-", dir=base) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold file every other entry, and a reserve that costs nothing to copy."""
    monkeypatch.setattr(log_module, "FOLD_EVERY", 2)
    monkeypatch.setattr(reserve, "RESERVE", 4096)


def try_all(before: State, acts: Acts, last: int, memory: Path, *, every: bool) -> int:
    """Examine the states after a cut, ``every`` one or a sample; returns how many.

    From the last act backwards: what a broken order leaves is met sooner.
    """
    found = list(states(before, acts, most=None if every else MOST))
    if not every:
        found = random.Random(20261204).sample(found, min(SAMPLE, len(found)))
        found.sort(key=lambda item: item[0])
    for done, state in reversed(found):
        folder = memory / "cut"
        folder.mkdir()
        write_out(state, folder)
        acks = [op.other for op in acts[:done] if op.kind == "ack"]
        try:
            examine(folder / "runs.castore", acks, last)
        except Broken as e:
            at = acts[done - 1] if done else None
            names = "\n  ".join(sorted(state))
            raise Broken(
                f"cut after act {done}, {at and (at.kind, at.path)}: {e}\n  {names}"
            ) from e
        finally:
            shutil.rmtree(folder)
    return len(found)


@contextmanager
def recorded(memory: Path, *, made: bool) -> Iterator[tuple[Path, Recorder, State]]:
    """A place for a store (``made``: with a checkpoint, step 1, in it) and a running recorder."""
    folder = memory / "real"
    folder.mkdir()
    path = folder / "runs.castore"
    if made:
        with castore.open(path, create=True) as store:
            save(store, 1)
    recorder = Recorder(folder)
    before = snapshot(folder)
    if made:
        recorder.ack("main 1")
    with recorder:
        yield path, recorder, before


def in_a_dead_process(record: Scene, memory: Path) -> tuple[State, Acts]:
    """What a process recorded that is gone now, as after a cut all are."""
    result = memory / "recorded"
    wait_ok(fork(lambda: result.write_bytes(pickle.dumps(record(memory)))))
    return pickle.loads(result.read_bytes())


def record_saves(memory: Path) -> tuple[State, Acts]:
    """Two saves after a first one: the second writes a fold file."""
    with recorded(memory, made=True) as (path, recorder, before), castore.open(path) as store:
        for step in (2, 3):
            save(store, step)
            recorder.ack(f"main {step}")
    return before, recorder.ops


def record_gc(memory: Path) -> tuple[State, Acts]:
    """A gc of what a dead save left, then a save."""
    with recorded(memory, made=True) as (path, recorder, _):
        debris = path / "packs" / "20261201T000000000-0123456789abcdef"
        shutil.copytree(next((path / "packs").iterdir()), debris)
        before = snapshot(memory / "real")
        with castore.open(path) as store:
            assert store.gc().removed_files
            save(store, 2)
            recorder.ack("main 2")
    return before, recorder.ops


def record_making(memory: Path) -> tuple[State, Acts]:
    """The making of a store, and its first save."""
    with recorded(memory, made=False) as (path, recorder, before):
        store = castore.open(path, create=True)
        recorder.ack("made")
        save(store, 1)
        recorder.ack("main 1")
        store.close()
    return before, recorder.ops


def record_two_writers(memory: Path) -> tuple[State, Acts]:
    """One writer sleeps between its entry's link and the fsync of ``log/``; another goes on."""
    with recorded(memory, made=True) as (path, recorder, before), castore.open(path) as store:
        begun = len(recorder.ops)
        save(store, 2)
        asleep = max(
            i for i, op in enumerate(recorder.ops) if op.kind == "link" and "/log/" in op.other
        )
        # Nothing that the first did after its link has happened yet.
        del recorder.ops[asleep + 1 :]
        assert asleep > begun
        with castore.open(path) as other:
            save(other, 1, "other")
            recorder.ack("other 1")
    return before, recorder.ops


SCENES: dict[str, tuple[Scene, int]] = {
    "saves": (record_saves, 3),
    "gc": (record_gc, 2),
    "making": (record_making, 1),
    "two writers": (record_two_writers, 2),
}


@pytest.mark.parametrize("scene", SCENES)
def test_after_every_cut_all_promises_hold(scene: str, memory: Path, campaign: bool) -> None:
    record, last = SCENES[scene]
    before, acts = in_a_dead_process(record, memory)
    n = try_all(before, acts, last, memory, every=campaign)
    print(f"{scene}: {len(acts)} acts, {n} states")
    assert n > len(acts) // 2, "hardly a cut was made"


def without(*kinds: str) -> Callable[[Acts], Acts]:
    return lambda acts: [op for op in acts if op.kind not in kinds]


def entry_before_data(acts: Acts) -> Acts:
    """The log's acts of every save come before those of its packs."""
    out: Acts = []
    packs: Acts = []
    for op in acts:
        if op.kind == "ack":
            out += [*packs, op]
            packs = []
        elif "packs" in op.path:
            packs.append(op)
        else:
            out.append(op)
    return out + packs


def unsynced_new_folder(acts: Acts) -> Acts:
    """Nobody makes the name of a save's own folder durable."""
    return [op for op in acts if not (op.kind == "fsyncdir" and op.path.endswith("/packs"))]


BREAK: dict[str, Callable[[Acts], Acts]] = {
    "no file fsync": without("fsync"),
    "no folder fsync": without("fsyncdir"),
    "entry before data": entry_before_data,
    "unsynced new folder": unsynced_new_folder,
}


@pytest.mark.parametrize("way", BREAK)
def test_a_broken_order_is_caught(way: str, memory: Path) -> None:
    before, acts = in_a_dead_process(record_saves, memory)
    with pytest.raises(Broken):
        try_all(before, BREAK[way](acts), 3, memory, every=False)


def test_building_on_what_is_not_durable_is_caught(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Log, "make_durable", lambda self, seq: None)
        before, acts = in_a_dead_process(record_two_writers, memory)
    with pytest.raises(Broken, match="missing"):
        try_all(before, acts, 2, memory, every=False)
