"""Windows, drops, gc and pins on real stores: what goes, what stays, what is freed and told."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import castore
from castore.log.entry import (
    Add,
    Condemned,
    Damaged,
    Entry,
    LetGo,
    Pin,
    Unlisted,
    Unpin,
    Verified,
    Window,
)
from castore.system import identity
from castore.upkeep.unlink import Unlinker
from castore.upkeep.window import Retention
from tests.support import flip_bit, fork, same, wait_ok

Window3 = {"keep_last": 3}


def state(n: int) -> dict[str, Any]:
    """A frozen part that all share, and a part of its own: chunks of 4 KiB."""
    return {"frozen": torch.arange(3000), "own": torch.full((2500,), float(n)), "n": n}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[castore.Store]:
    with castore.open(tmp_path / "runs.castore", create=True, chunk_size=4096) as opened:
        yield opened


def save(store: castore.Store, *steps: int, **options: Any) -> castore.Checkpoint:
    saved = None
    for step in steps:
        saved = store.save(state(step), step=step, **options)
    assert saved is not None
    return saved


def steps(store: castore.Store, branch: str = "main") -> list[int | None]:
    """The steps of a branch's list, oldest first."""
    return [c.step for c in reversed(store.log(branch))]


def entry(store: castore.Store, seq: int) -> Entry:
    return store._parts.log.entry(seq)


def kinds(store: castore.Store, seq: int) -> list[type]:
    return [type(change) for change in entry(store, seq).changes]


def pack_files(store: castore.Store) -> set[str]:
    packs = Path(store.path) / "packs"
    return {p.relative_to(packs).as_posix() for p in packs.rglob("*") if p.is_file()}


def needed(store: castore.Store) -> set[str]:
    return set(store._parts.log.fold().packs)


def data_pack(store: castore.Store, rev: str) -> Path:
    """The data pack that a checkpoint's own save wrote."""
    live = store._parts.log.fold().live
    [add] = [v.add for d, v in live.items() if d.hex() == store.resolve(rev).digest]
    [path] = (Path(store.path) / "packs" / add.save).glob("*.data.pack")
    return path


def assert_sound(store: castore.Store) -> None:
    """Every live checkpoint loads exactly, fsck is clean, and no pack is there that none needs."""
    store._unlinker.wait()
    fold = store._parts.log.fold()
    for digest, live in fold.live.items():
        assert same(store.load(digest.hex()), state(live.add.step))
    assert store.fsck().findings == ()
    assert pack_files(store) == needed(store)


# -- the window of a save -------------------------------------------------------------------------


def test_a_save_and_its_window_are_one_entry(store: castore.Store) -> None:
    for step in range(1, 8):
        saved = save(store, step, window=Window3, verify="now")
        assert steps(store) == list(range(max(1, step - 2), step + 1))
        gone = [] if step <= 3 else [LetGo]
        assert len(saved.report.let_go) == len(gone)
    assert kinds(store, saved.seq) == [Add, Verified, Unlisted, LetGo, Condemned]
    assert entry(store, saved.seq).why == "save main step 7, window keep_last=3"
    assert saved.seq == 8  # an entry a save, no more
    assert_sound(store)
    # The frozen part is still where the first save put it.
    assert len(needed(store)) == 3 * 3 + 3


def test_without_a_policy_nothing_goes(store: castore.Store) -> None:
    save(store, *range(6), verify="now")
    assert len(steps(store)) == 6
    assert [item.action for item in store.window().items] == ["kept"] * 6
    assert store.window().policy is None


def test_steps_are_labels(store: castore.Store) -> None:
    with pytest.warns(castore.CastoreWarning, match="goes back"):
        save(store, 500, 600, 700, 2, window=Window3, verify="now")
    save(store, 9, 10, 100, window=Window3, verify="now")
    assert steps(store) == [9, 10, 100]
    assert_sound(store)


@pytest.mark.parametrize("times", ["equal", "zero", "reversed", "future"])
def test_file_times_mean_nothing(store: castore.Store, times: str) -> None:
    for i in range(5):
        save(store, i, verify="now")
        files = sorted(Path(store.path).rglob("*"), key=lambda p: p.stat().st_mtime_ns)
        for n, file in enumerate(files):
            when = {"equal": 10**9, "zero": 0, "reversed": 2 * 10**9 - n, "future": 2**33}[times]
            os.utime(file, (when, when))
    store.window(keep_last=3)
    assert steps(store) == [2, 3, 4]
    assert_sound(store)


def test_the_clock_set_back_means_nothing(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([5, 4, 3, 9, 1, 0])
    hour = 3600 * 10**9
    for step in range(6):
        at = 10**18 + next(clock) * 2 * hour
        monkeypatch.setattr("castore.system.now_ns", lambda at=at: at)
        monkeypatch.setattr("castore.pipeline.save.now_ns", lambda at=at: at)
        save(store, step, window=Window3, verify="now")
    assert steps(store) == [3, 4, 5]
    assert_sound(store)


# -- what is verified -----------------------------------------------------------------------------


def test_verification_that_is_behind_is_made_up_for(store: castore.Store) -> None:
    save(store, *range(1, 4))
    assert not any(c.verified for c in store.log())
    # The newest is not verified, so the three before it stay: read back, in the save's entry.
    fourth = save(store, 4, window=Window3)
    assert fourth.report.let_go == ()
    assert kinds(store, fourth.seq) == [Add]
    fifth = save(store, 5, window=Window3)
    # (All need the frozen part, which lies in the first one's pack: nothing is freed yet.)
    assert kinds(store, fifth.seq) == [Add, Verified, Unlisted, LetGo]
    assert len(fifth.report.let_go) == 1
    assert [(c.step, c.verified) for c in store.log()] == [
        (5, False), (4, True), (3, True), (2, True),
    ]  # fmt: skip
    # One is read back a save from here on, and what is let go stays apace.
    last = save(store, *range(6, 12), window=Window3)
    assert kinds(store, last.seq) == [Add, Verified, Unlisted, LetGo, Condemned]
    assert steps(store) == [8, 9, 10, 11]
    assert_sound(store)


def test_a_window_by_itself_verifies_what_it_counts(store: castore.Store) -> None:
    save(store, *range(6))
    planned = store.window(keep_last=3, dry_run=True)
    assert (planned.dry_run, planned.seq, len(planned.read_back)) == (True, None, 3)
    assert [item.action for item in planned.items] == ["kept"] * 3 + ["let go"] * 3
    assert steps(store) == list(range(6))
    done = store.window(keep_last=3)
    assert done.items[:3] != planned.items[:3]  # they are verified now
    assert [i.reason for i in done.items] == [i.reason for i in planned.items]
    assert (done.freed_packs, done.freed_bytes) == (planned.freed_packs, planned.freed_bytes)
    assert done.read_back == planned.read_back == tuple(c.digest for c in store.log())
    assert kinds(store, done.seq) == [Window, Verified, Unlisted, LetGo, Condemned]
    assert all(c.verified for c in store.log())
    assert_sound(store)


def test_damage_pushes_nothing_out_and_is_logged(store: castore.Store) -> None:
    save(store, *range(6))
    flip_bit(data_pack(store, "main~1"), 200, 3)  # step 4, a chunk of its own
    done = store.window(keep_last=3)
    # 5, 3 and 2 are the newest three that are verified; the damaged one between is kept as newer.
    assert steps(store) == [2, 3, 4, 5]
    [damage] = [c for c in entry(store, done.seq).changes if isinstance(c, Damaged)]
    assert [d.hex() for d in damage.checkpoints] == [store.resolve("main~1").digest]
    assert len(done.damage) == 1
    assert done.items[1].reason == "not verified, and newer than one of the newest 3 verified"
    assert [c.verified for c in store.log()] == [True, False, True, True]
    assert store.info().known_damage == 1
    # What is known is not read again, and there is nothing more to say.
    assert store.window(keep_last=3).seq is None


def test_damage_that_many_share_pushes_nothing_out(store: castore.Store) -> None:
    save(store, *range(6))
    flip_bit(data_pack(store, "main@step=0"), 200, 3)  # the frozen part: all of them
    done = store.window(keep_last=3)
    assert steps(store) == list(range(6))
    [damage] = [c for c in entry(store, done.seq).changes if isinstance(c, Damaged)]
    assert len(damage.checkpoints) == 6
    assert not any(c.verified for c in store.log())


def test_a_verified_checkpoint_whose_pack_is_gone_pushes_nothing_out(store: castore.Store) -> None:
    save(store, *range(6), verify="now")
    data_pack(store, "main").unlink()
    done = store.window(keep_last=3)
    assert steps(store) == [2, 3, 4, 5]
    [damage] = [c for c in entry(store, done.seq).changes if isinstance(c, Damaged)]
    assert [d.hex() for d in damage.checkpoints] == [store.resolve().digest]
    assert [c.verified for c in store.log()] == [False, True, True, True]


def test_a_damaged_save_in_the_window_of_another(store: castore.Store) -> None:
    save(store, *range(1, 5))
    for rev in ("main", "main~1", "main~2"):
        flip_bit(data_pack(store, rev), 200, 3)
    saved = save(store, 5, window=Window3)
    assert saved.report.let_go == ()
    assert kinds(store, saved.seq) == [Add, Verified, Damaged, Damaged, Damaged]
    assert steps(store) == [1, 2, 3, 4, 5]


def test_keep_best_reads_the_metas(store: castore.Store) -> None:
    losses = [0.9, 0.1, float("nan"), 0.4, 5, 6, 7]
    for step, loss in enumerate(losses):
        save(store, step, meta={"eval": {"loss": loss}}, verify="now",
             window={"keep_best": "eval/loss:min:2"})  # fmt: skip
    assert steps(store) == [1, 3, 4, 5, 6]
    report = store.window(keep_best=["eval/loss:max"], dry_run=True)
    assert report.policy == "keep_last=3 keep_best=eval/loss:max:1"
    assert [item.step for item in report.items if item.action == "kept"] == [6, 5, 4]
    assert_sound(store)


def test_keep_best_where_a_meta_cannot_be_read(store: castore.Store) -> None:
    save(store, *range(5), meta={"loss": 1}, verify="now")
    folder = data_pack(store, "main@step=1").parent
    for twin in folder.glob("*.meta*.pack"):
        for offset in range(128, 1200, 16):
            flip_bit(twin, offset, 1)
    with castore.open(store.path) as fresh:
        report = fresh.window(keep_last=3, keep_best="loss", dry_run=True)
    assert [i.step for i in report.items if i.action == "kept"] == [4, 3, 2, 1]
    assert report.items[3].reason == "its loss could not be read"


# -- what stays -----------------------------------------------------------------------------------


def test_tags_pins_and_other_branches(store: castore.Store) -> None:
    save(store, *range(8), verify="now")
    store.tag("v1", "main@step=0")
    store.branch("retry", "main@step=1")
    store.pin("main@step=2", "mine", lasting=True)
    report = store.window(keep_last=3, keep_every=3)
    assert steps(store) == [0, 2, 3, 5, 6, 7]
    by_step = {item.step: (item.action, item.reason) for item in report.items}
    assert by_step[0] == ("kept", "step a multiple of 3; tag v1")
    assert by_step[2] == ("kept", "pin mine")
    assert by_step[1] == (
        "unlisted",
        "older than the newest 3 verified, and no other rule keeps it; it stays live on retry",
    )
    assert by_step[4][0] == "let go"
    assert same(store.load("retry"), state(1))
    assert_sound(store)


def test_one_run_never_counts_another_s(store: castore.Store) -> None:
    for step in range(5):
        save(store, step, branch="a", window=Window3, verify="now")
        store.save(state(step), branch="b", step=step, verify="now")  # equal bytes, no window
    assert steps(store, "a") == [2, 3, 4]
    assert steps(store, "b") == [0, 1, 2, 3, 4]
    assert_sound(store)


def test_bytes_that_newer_checkpoints_share_outlive_their_save(store: castore.Store) -> None:
    first = save(store, 0, verify="now")
    save(store, *range(1, 6), window=Window3, verify="now")
    assert first.digest not in {c.digest for c in store.log()}
    assert any(path.endswith(".data.pack") for path in needed(store))
    assert_sound(store)


# -- policies -------------------------------------------------------------------------------------


def test_a_stored_policy_applies_to_later_saves(store: castore.Store) -> None:
    assert store.window(keep_last=4, keep_every=10).items == ()  # before the first save
    save(store, *range(10, 20), verify="now")
    assert steps(store) == [10, 16, 17, 18, 19]
    assert store.info().windows == {"main": "keep_last=4 keep_every=10"}
    # Another process sees it too, and one save's own policy is that save's only.
    with castore.open(store.path) as other:
        other.save(state(20), step=20, verify="now", window={"keep_last": 9})
        assert steps(other) == [10, 16, 17, 18, 19, 20]
        assert other.window().policy == "keep_last=4 keep_every=10"
    store.resolve()
    save(store, 21, verify="now")
    assert steps(store) == [10, 18, 19, 20, 21]


def test_an_unchanged_policy_with_nothing_to_drop_writes_no_entry(store: castore.Store) -> None:
    save(store, *range(5), verify="now")
    assert store.window(keep_last=3).seq == 7
    assert store.window(keep_last=3).seq is None
    assert store.window(off=True).seq == 8
    assert store.window(off=True).seq is None
    assert store.info().entries == 8
    save(store, *range(5, 9), verify="now")
    assert steps(store) == [2, 3, 4, 5, 6, 7, 8]


def test_a_saved_window_ends_with_its_branch(store: castore.Store) -> None:
    store.window("run", keep_last=3)
    save(store, *range(3), branch="run", verify="now")
    store.branch("run", delete=True)
    assert store.info().windows == {}
    save(store, *range(6), branch="run", verify="now")
    assert len(steps(store, "run")) == 6


def test_wrong_calls(store: castore.Store) -> None:
    save(store, 1)
    for wrong in (
        {"keep_last": 2}, {"keep_last": 0}, {"off": True, "keep_last": 3}, {"keep_within": "x"},
    ):  # fmt: skip
        with pytest.raises(castore.UsageError):
            store.window(**wrong)
    with pytest.raises(castore.UsageError):
        store.window("no good", keep_last=3)
    store.window(keep_last=1, below_three=True)
    with castore.open(store.path, readonly=True) as reader:
        assert reader.window().policy == "keep_last=1"
        assert reader.window(keep_last=5, dry_run=True).policy == "keep_last=5"
        with pytest.raises(castore.UsageError):
            reader.window(keep_last=5)
        with pytest.raises(castore.UsageError):
            reader.drop("main")
        with pytest.raises(castore.UsageError):
            reader.pin("main")
    assert store.info().entries == 3


def test_keep_last_one(store: castore.Store) -> None:
    # keep=1 with a best of old, and the case where nothing but the newest is there.
    for step in range(4):
        save(store, step, meta={"loss": step}, verify="now",
             window={"keep_last": 1, "below_three": True, "keep_best": "loss"})  # fmt: skip
    assert steps(store) == [0, 3]
    assert_sound(store)


# -- when things go wrong -------------------------------------------------------------------------


def test_a_window_that_cannot_be_planned_is_a_plain_add(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(4), verify="now")

    def broken(*_: object) -> None:
        raise RuntimeError("no plan")

    with monkeypatch.context() as patch:
        patch.setattr("castore.upkeep.window.plan_release", broken)
        with pytest.warns(castore.CastoreWarning, match="not applied, so nothing was let go: no p"):
            saved = save(store, 4, window=Window3, verify="now")
    assert kinds(store, saved.seq) == [Add, Verified]
    assert saved.report.let_go == ()
    [told] = saved.report.warnings
    assert told.startswith("the window of main was not applied")
    assert steps(store) == [0, 1, 2, 3, 4]
    save(store, 5, window=Window3, verify="now")
    assert steps(store) == [3, 4, 5]
    assert_sound(store)


def test_a_stored_policy_of_a_newer_castore(store: castore.Store) -> None:
    store._parts.log.append(lambda _: [Window("main", (("keep_last", 3), ("keep_moon", 1)))], "x")
    with pytest.warns(castore.CastoreWarning, match="keep_moon"):
        save(store, *range(5), verify="now")
    assert len(steps(store)) == 5
    assert store.info().windows == {"main": "rules that this castore does not know"}
    with pytest.raises(castore.UnsupportedFeature):
        store.window()
    store.window(keep_last=3)
    assert steps(store) == [2, 3, 4]


def test_a_failed_save_lets_nothing_go(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(3), window=Window3, verify="now")
    create = type(store._storage).create

    def full(self: Any, name: str, data: bytes) -> bool:
        if name.startswith("log/"):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(store._storage), "create", full)
        with pytest.raises(castore.SaveFailed):
            save(store, 3, window=Window3, verify="now")
    assert steps(store) == [0, 1, 2]
    assert_sound(store)


def test_the_number_taken_decides_again(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(4), verify="now")
    planned = Retention.changes
    other = castore.open(store.path)

    def beaten(self: Retention, *args: Any) -> Any:
        changes = planned(self, *args)
        if "late" not in other.tags():  # between deciding and the entry
            other.tag("late", "main@step=0")
        return changes

    with monkeypatch.context() as patch, other:
        patch.setattr(Retention, "changes", beaten)
        saved = save(store, 4, window=Window3, verify="now")
    assert steps(store) == [0, 2, 3, 4]
    assert len(saved.report.let_go) == 1
    assert saved.seq == 7
    assert_sound(store)


def test_two_writers_never_drop_each_other_s(store: castore.Store) -> None:
    stores = [castore.open(store.path) for _ in range(3)]

    def train(i: int) -> None:
        for step in range(6):
            stores[i].save(state(step), branch=f"run{i}", step=step, window=Window3, verify="now")

    threads = [threading.Thread(target=train, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for opened in stores:
        opened.close()
    for i in range(3):
        assert steps(store, f"run{i}") == [3, 4, 5]
    assert_sound(store)


def test_unlinking_is_waited_for_by_close_and_by_nothing_else(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(3), window=Window3, verify="now")
    go = threading.Event()
    delete = type(store._storage).delete

    def slow(self: Any, name: str) -> bool:
        if name.startswith("packs/") and threading.current_thread() is not threading.main_thread():
            assert go.wait(60)
        return delete(self, name)

    monkeypatch.setattr(type(store._storage), "delete", slow)
    save(store, 3, 4, window=Window3, verify="now")  # returns though nothing can be unlinked
    store.drop("main~1")
    assert pack_files(store) > needed(store)
    assert store.fsck().ok
    path, wanted = Path(store.path), needed(store)
    threading.Timer(0.05, go.set).start()
    store.close()
    packs = path / "packs"
    assert {p.relative_to(packs).as_posix() for p in packs.rglob("*.pack")} == wanted


def test_what_could_not_be_unlinked_is_told_and_gc_s(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(5), verify="now")

    def stuck(self: Any, name: str) -> bool:
        raise OSError(errno.EACCES, "Permission denied", name)

    with monkeypatch.context() as patch:
        patch.setattr(type(store._storage), "delete", stuck)
        store.window(keep_last=3)
        store._unlinker.wait()
    assert pack_files(store) > needed(store)
    with pytest.warns(castore.CastoreWarning, match="could not all be removed"):
        save(store, 5, verify="now")
    assert store.gc().removed_files
    assert_sound(store)


def test_a_crash_before_the_unlinking_is_finished_by_gc(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, *range(5), verify="now")
    monkeypatch.setattr(Unlinker, "add", lambda self, condemned: None)
    store.window(keep_last=3)
    with castore.open(store.path) as fresh:
        report = fresh.fsck()
        assert report.ok
        # A checkpoint that was let go is debris, not a save that lost its entry.
        assert {f.code for f in report.findings} == {"debris"}
        assert fresh.info().debris_files == 3
        assert fresh.gc().removed_files == 3
        assert_sound(fresh)


def test_a_full_disk_can_be_freed(store: castore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, *range(5), verify="now")
    reserve = Path(store.path) / "reserve"
    create = type(store._storage).create

    def full(self: Any, name: str, data: bytes) -> bool:
        if reserve.exists() and name.startswith("log/"):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(store._storage), "create", full)
        assert store.window(keep_last=3).let_go
    assert steps(store) == [2, 3, 4]
    save(store, 5, verify="now")
    assert reserve.exists()


# -- drop -----------------------------------------------------------------------------------------


def test_drop(store: castore.Store) -> None:
    save(store, *range(4))
    store.branch("retry", "main~2")
    store.save(state(9), branch="retry", step=9)
    gone = store.resolve("main~2").digest
    report = store.drop("main~2")
    assert (report.checkpoint, report.step, report.branches) == (gone, 1, ("main", "retry"))
    assert kinds(store, report.seq) == [Unlisted, Unlisted, LetGo, Condemned]
    assert (steps(store), steps(store, "retry")) == ([0, 2, 3], [9])
    assert report.freed_packs == 3
    assert_sound(store)
    with pytest.raises(castore.CheckpointGone, match=r"was let go: drop main~2, by pid \d+ on "):
        store.load(gone)
    with pytest.raises(castore.CheckpointGone) as error:
        store.drop(gone)
    assert (error.value.checkpoint, error.value.seq) == (gone, report.seq)


def test_drop_refuses_what_is_needed(store: castore.Store) -> None:
    save(store, *range(4))
    store.tag("v1", "main~1")
    store.branch("other", "main~2")
    for rev, words in {
        "main": "newest checkpoint of main",
        "main~1": "tag v1",
        "main~2": "newest checkpoint of other",
    }.items():
        with pytest.raises(castore.UsageError, match=words):
            store.drop(rev)
    with store.pin("main~3", "reading"), pytest.raises(castore.UsageError, match="pin reading"):
        store.drop("main~3")
    store.drop("main~3")
    assert steps(store) == [1, 2, 3]


# -- gc -------------------------------------------------------------------------------------------


def test_gc_lets_go_of_what_is_on_no_list(store: castore.Store) -> None:
    save(store, *range(5))
    store.branch("main", "main~2", force=True)  # 3 and 4 are on no list now
    store.tag("v", "main")
    assert len(store._parts.log.fold().live) == 5
    plan = store.gc(dry_run=True)
    assert [(c.step, c.action) for c in plan.checkpoints] == [
        (3, "would let go"), (4, "would let go"), (0, "kept"), (1, "kept"), (2, "kept"),
    ]  # fmt: skip
    assert plan.checkpoints[-1].reason == "on the list of main, tag v"
    assert {item.path.removeprefix("packs/") for item in plan.items} == pack_files(store)
    assert len(store._parts.log.fold().live) == 5
    done = store.gc()
    assert (len(done.let_go), done.live, done.removed_bytes) == (2, 3, plan.removed_bytes)
    assert done.removed_files == plan.removed_files == 6
    seq = store.info().entries
    assert kinds(store, seq) == [LetGo, Condemned]
    assert_sound(store)
    assert store.gc().removed_files == 0
    assert store.info().entries == seq


def test_gc_of_everything_takes_all(store: castore.Store) -> None:
    save(store, 1, 2)
    store.branch("main", delete=True)
    with pytest.raises(castore.UsageError, match="--all"):
        store.gc()
    plan = store.gc(dry_run=True)
    assert (len(plan.let_go), plan.live) == (2, 0)
    assert len(store._parts.log.fold().live) == 2
    assert store.gc(drop_all=True).live == 0
    assert pack_files(store) == set()
    assert store.fsck().findings == ()
    save(store, 3)
    assert_sound(store)


def test_gc_fails_closed_with_something_to_let_go(store: castore.Store) -> None:
    save(store, 1, 2, 3)
    store.branch("main", "main~1", force=True)
    data_pack(store, "main").unlink()
    before = store.info().entries
    with pytest.raises(castore.StoreUnreadable, match="gc removed nothing"):
        store.gc()
    assert store.info().entries == before


# -- pins -----------------------------------------------------------------------------------------


def test_a_pin_keeps_a_checkpoint_while_it_is_read(store: castore.Store) -> None:
    save(store, *range(5), verify="now")
    with store.pin("main~4") as pin:
        store.window(keep_last=3)
        assert steps(store) == [0, 2, 3, 4]
        assert same(store.load(pin.digest), state(0))
        [info] = store.pins()
        assert (info.name, info.digest, info.step) == (pin.name, pin.digest, 0)
        assert (info.owner, info.alive) == (identity().describe(), True)
        assert store.info().pins == (info,)
        assert store.gc().unpinned == ()  # its owner lives
    assert store.pins() == ()
    store.window(keep_last=3)
    assert steps(store) == [2, 3, 4]
    with pytest.raises(castore.CheckpointGone, match="window main keep_last=3, by pid"):
        store.load(pin.digest)


def test_lasting_pins(store: castore.Store) -> None:
    save(store, 1, 2)
    with store.pin("main~1", "paper", lasting=True) as pin:
        pass
    assert [(p.name, p.owner, p.alive) for p in store.pins()] == [("paper", None, None)]
    assert store.pin("main~1", "paper", lasting=True).change.seq == pin.change.seq  # it is there
    with pytest.raises(castore.UsageError, match="choose another name"):
        store.pin("main", "paper")
    store.tag("paper", "main")  # names of pins are their own
    store.branch("main", delete=True)
    store.tag("paper", delete=True)
    assert store.gc().live == 1
    assert store.unpin("paper").old == pin.digest
    with pytest.raises(castore.BadRevision, match="no pin 'paper'"):
        store.unpin("paper")
    assert store.gc(drop_all=True).live == 0


def test_a_dead_owner_s_pin_is_given_up_by_gc(store: castore.Store) -> None:
    save(store, 1, 2, 3)
    path = store.path

    def die_with_a_pin() -> None:
        castore.open(path).pin("main~1", "childs")

    wait_ok(fork(die_with_a_pin))
    [pin] = store.pins()
    assert (pin.name, pin.alive) == ("childs", False)
    assert store.gc(dry_run=True).unpinned == ("childs",)
    store.branch("main", "main~2", force=True)
    # The pin alone holds it until gc gives it up, and lets it go in the same entry.
    assert [c.step for c in store.gc(dry_run=True).let_go] == [2, 3]
    done = store.gc()
    assert (done.unpinned, done.live) == (("childs",), 1)
    assert kinds(store, store.info().entries) == [Unpin, LetGo, Condemned]
    assert_sound(store)


@pytest.mark.parametrize(
    "owner",
    [("elsewhere", "boot", "space", 1, 1), ("?",), ("a", "b", "c", "d", "e"), (1, 2, 3, 4, 5)],
    ids=str,
)
def test_another_machine_s_pin_is_only_given_up_by_hand(
    store: castore.Store, owner: tuple[Any, ...]
) -> None:
    save(store, 1, 2)
    digest = store._parts.log.fold().branches["main"].checkpoints[0]
    store._parts.log.append(lambda _: [Pin("far", digest, owner)], "pin far")
    assert store.gc().unpinned == ()
    [pin] = store.pins()
    assert (pin.alive, bool(pin.owner)) == (None, True)
    store.unpin("far")


def test_a_forked_child_does_not_end_its_parent_s_pin(store: castore.Store) -> None:
    save(store, 1, 2)
    pin = store.pin("main~1")
    wait_ok(fork(pin.release))
    assert [p.name for p in store.pins()] == [pin.name]
    pin.release()
    pin.release()
    assert store.pins() == ()


def test_a_pin_of_what_is_let_go_meanwhile(
    store: castore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1, 2)
    resolve: Callable[..., Any] = type(store)._resolve

    def late(self: Any, *args: Any) -> Any:
        live = resolve(self, *args)
        with contextlib.suppress(castore.CheckpointGone), castore.open(store.path) as other:
            monkeypatch.undo()
            other.drop("main~1")
        return live

    monkeypatch.setattr(type(store), "_resolve", late)
    with pytest.raises(castore.CheckpointGone, match="let go meanwhile: drop main~1"):
        store.pin("main~1")
    assert store.pins() == ()
