"""The edges of the commit: what a stern reader found, each re-enacted from outside."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import castore
from castore.log.entry import Condemned
from castore.opening import fsck_path
from castore.storage.local import LocalStorage
from tests.support import flip_bit, fork, same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.castore"


def weights(value: float, n: int = 100_000) -> dict:
    return {"w": torch.full((n,), float(value)) + torch.arange(n)}


def test_a_failed_fsync_of_the_log_is_never_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        log = os.stat(path / "log").st_ino
        real, calls = os.fsync, []

        def failing(fd: int) -> None:
            if os.fstat(fd).st_ino == log:
                calls.append(fd)
                if len(calls) == 1:  # of the new entry: the head is durable already
                    raise OSError(errno.EIO, "Input/output error")
            real(fd)

        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(castore.SaveFailed) as caught:
            store.save(weights(2), step=2)
        assert len(calls) == 1
        assert caught.value.fate_unknown
        assert caught.value.errno == errno.EIO
        monkeypatch.setattr(os, "fsync", real)
        store.gc()  # deletes nothing that the entry, which is there, names
        assert store.fsck().ok
        assert same(store.load(), weights(2))


def test_a_lost_castore_json_is_not_made_up(path: Path) -> None:
    castore.save(weights(1), path, step=1)
    config = (path / "castore.json").read_bytes()
    (path / "castore.json").unlink()
    for act in (lambda: castore.save(weights(2), path), lambda: castore.load(path)):
        with pytest.raises(castore.StoreUnreadable, match=r"castore\.json is missing"):
            act()
    assert not (path / "castore.json").exists()
    report = fsck_path(path)
    assert [f.code for f in report.damage] == ["missing-config"]
    assert len(report.whole) == 1
    (path / "castore.json").write_bytes(config)
    assert same(castore.load(path), weights(1))


@pytest.mark.parametrize("left", ["a fold file", "a later entry"])
def test_a_log_that_lost_its_end_is_refused(path: Path, left: str) -> None:
    with castore.open(path, create=True) as store:
        for step in range(4):
            store.save(weights(step, 10), step=step)
        log = store._parts.log
        if left == "a fold file":
            log.write_fold_file(log.fold())
        else:  # far beyond what is probed by name
            shutil.copy(path / "log" / "000000000005", path / "log" / "000000000500")
    before = sorted(p.name for p in (path / "packs").iterdir())
    for seq in (4, 5):
        (path / "log" / f"{seq:012d}").unlink()
    with pytest.raises(castore.StoreUnreadable, match="entry 4"):
        castore.open(path)
    assert sorted(p.name for p in (path / "packs").iterdir()) == before
    assert any(f.code == "missing-log-entry" for f in fsck_path(path).damage)


def test_without_verify_a_short_file_is_still_an_error(path: Path) -> None:
    state = {"big": torch.randn(500_000), "small": torch.randn(1000)}
    castore.save(state, path)
    assert same(castore.load(path, verify=False), state)
    pack = next((path / "packs").glob("*/*.data.pack"))
    with pack.open("r+b") as file:
        file.truncate(200_000)
    with pytest.raises(castore.CorruptionError) as caught:
        castore.load(path, verify=False)
    assert {f.path for f in caught.value.findings} == {"big", "small"}


def test_a_load_beside_a_save_makes_no_conflict(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.read_into
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)

        def slow(self, name, *args, **kwargs):  # type: ignore[no-untyped-def]
            if name.endswith(".data.pack") and threading.current_thread().name.startswith(
                "castore-read"
            ):
                time.sleep(0.5)
            return real(self, name, *args, **kwargs)

        monkeypatch.setattr(LocalStorage, "read_into", slow)
        loaded: list[dict] = []
        reader = threading.Thread(target=lambda: loaded.append(store.load()))
        reader.start()
        time.sleep(0.1)
        store.save(weights(2), step=2)
        reader.join()
        store.save(weights(3), step=3)
        assert same(loaded[0], weights(1))
        assert [c.step for c in store.log()] == [3, 2, 1]


def test_verify_now_beside_old_damage(path: Path) -> None:
    shared = torch.randn(2_000_000)
    with castore.open(path, create=True, chunk_size=1 << 20) as store:
        store.save({"shared": shared, "old": torch.randn(500_000)}, step=1)
        pack = next((path / "packs").glob("*/*.data.pack"))
        flip_bit(pack, pack.read_bytes().find(shared[10:20].numpy().tobytes()), 0)
        with pytest.warns(castore.CastoreWarning, match="damaged"):
            saved = store.save({"shared": shared}, step=2, verify="now")
        with pytest.warns(castore.CastoreWarning, match="another copy served"):
            loaded = store.load()  # the bad chunk was stored again
        assert torch.equal(loaded["shared"], shared)
        assert saved.report is not None
        assert saved.report.new_bytes == 1 << 20
        assert saved.report.verified is False  # it leans on a pack that is not sound as a whole
        assert store.fsck().newest_whole == {"main": saved.digest}
        with pytest.raises(castore.CorruptionError):
            store.load("main~1")


def gc_at(
    store: castore.Store, path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> list[int]:
    """Run another process's gc, sessions ignored, once the save has come to ``place``."""
    real = getattr(LocalStorage, place)
    ran: list[int] = []

    def then_gc(self, name, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self is store._storage and not ran and name.startswith("packs/"):
            ran.append(1)
            for session in (path / "sessions").iterdir():
                session.unlink()
            with castore.open(path) as other:
                ran.append(len(other.gc().items))
        return real(self, name, *args, **kwargs)

    monkeypatch.setattr(LocalStorage, place, then_gc)
    return ran


def test_gc_takes_a_living_saves_packs_and_it_writes_them_again_T13(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        ran = gc_at(store, path, monkeypatch, "sync_folder")
        saved = store.save(weights(2), step=2)
        assert ran[1] >= 3, "gc found no pack of the save in flight: nothing was tested"
        assert same(store.load(), weights(2))
        assert saved.report is not None
        assert saved.report.new_bytes == 400_000  # not counted twice
        entries = [store._parts.log.entry(n) for n in range(1, saved.seq + 1)]
        condemned = {
            p for e in entries for c in e.changes if isinstance(c, Condemned) for p in c.paths
        }
        assert condemned
        assert not condemned & set(store._parts.log.fold().packs)
        assert store.fsck().ok
        assert store.gc().items == ()


def test_what_a_save_relies_on_is_let_go_meanwhile_T13(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dedup hit whose checkpoint goes before the commit is looked up again, and written."""
    from castore.log.entry import LetGo, Unlisted
    from castore.model.digest import Digest

    with castore.open(path, create=True) as store:
        first = store.save(weights(1), branch="old", step=1)
        digest = Digest(bytes.fromhex(first.digest))
        real = LocalStorage.sync_folder
        ran: list[int] = []

        def then_let_go(self, name):  # type: ignore[no-untyped-def]
            if self is store._storage and not ran and name.startswith("packs/"):
                ran.append(1)
                with castore.open(path) as other:
                    gone = (Unlisted("old", (digest,)), LetGo((digest,)))
                    other._parts.log.append(lambda fold: gone, "drop")
                    ran.append(len(other.gc().items))
            return real(self, name)

        monkeypatch.setattr(LocalStorage, "sync_folder", then_let_go)
        saved = store.save({**weights(1), "more": 1}, step=2)
        assert ran[1] >= 3, "nothing was removed: nothing was tested"
        assert saved.report is not None
        assert saved.report.new_bytes == 400_000
        assert same(store.load(), {**weights(1), "more": 1})
        assert store.fsck().ok
        with pytest.raises(castore.CheckpointGone, match="drop"):
            store.load(first.digest[:12])


def test_after_the_commit_nothing_is_a_failure_of_the_save(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from castore.log.log import Log

    with castore.open(path, create=True) as store:

        def broken(self: Log) -> None:
            raise castore.StoreUnreadable("another process wrote what we do not know")

        monkeypatch.setattr(Log, "tidy", broken)
        saved = store.save(weights(1), step=1)
        assert store.resolve().digest == saved.digest


def test_errors_of_every_verb_are_castores_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = os.link
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(castore.CastoreError):
        castore.open(path, create=True)
    monkeypatch.setattr(os, "link", real)
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        litter = path / "packs" / "20200101T000000000-0123456789abcdef"
        litter.mkdir()
        (litter / "r00000-000.data.pack").write_bytes(b"debris")
        monkeypatch.setattr(os, "link", full)
        for act in (lambda: store.tag("t"), lambda: store.branch("b"), store.gc):
            with pytest.raises(castore.SaveFailed) as caught:
                act()
            assert caught.value.errno == errno.ENOSPC
            assert str(path) in str(caught.value.path)
        assert not (path / "reserve").exists()  # gc gave it up
        monkeypatch.setattr(os, "link", real)
        assert store.gc().removed_bytes == 6
        assert (path / "reserve").exists()
        assert store.fsck().findings == ()


def test_a_child_forked_while_a_save_holds_the_lock(path: Path) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with store._saving, store._parts.log._lock:
                held.set()
                release.wait(30)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(30)
        pid = fork(lambda: store.save(weights(2), branch="child", step=1))
        deadline = time.monotonic() + 30
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        release.set()
        holder.join()
        assert done[0] == pid, "the child hangs"
        assert os.waitstatus_to_exitcode(done[1]) == 0
        assert same(store.load("child"), weights(2))


def test_an_index_that_fails_midway_costs_no_second_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lmdb

    from castore.packs.index import LmdbIndex

    state = {f"t{i}": torch.randn(50_000) for i in range(20)}
    with castore.open(path, create=True) as store:
        store.save(state, step=1)
        real, failed = LmdbIndex._find, []

        def once(self, digests):  # type: ignore[no-untyped-def]
            if not failed:
                failed.append(1)
                raise lmdb.CorruptedError("a page is not what it should be")
            return real(self, digests)

        monkeypatch.setattr(LmdbIndex, "_find", once)
        saved = store.save({**state, "more": 1}, step=2, branch="b")
        assert failed
        assert saved.report is not None
        assert saved.report.new_bytes == 0


def test_fsck_beside_a_writer_that_writes_a_fold_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from castore.log.log import Log

    with castore.open(path, create=True) as store:
        store.save(weights(1, 10), step=1)
        real = Log.listed

        def then_a_fold(self: Log) -> list[int]:
            found = real(self)
            store.save(weights(2, 10), step=store.info().entries)
            store._parts.log.write_fold_file(store._parts.log.fold())
            return found

        with castore.open(path) as other:
            monkeypatch.setattr(Log, "listed", then_a_fold)
            report = other.fsck()
        assert report.ok, report.damage


def test_huge_files_are_refused_by_size(path: Path) -> None:
    castore.save(weights(1, 10), path, step=1)
    for name in ("log/000000000002", "castore.json"):
        good = (path / name).read_bytes()
        with (path / name).open("r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(castore.StoreUnreadable):
            castore.open(path)
        assert not fsck_path(path).ok
        (path / name).write_bytes(good)
    assert fsck_path(path).ok


def test_a_link_that_was_made_and_denied_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is ENOENT although the entry is there, and the next try finds the disk full."""
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        real_link, real_write, linked = os.link, os.write, []

        def link(src: str, dst: str, **kwargs: int) -> None:
            real_link(src, dst, **kwargs)
            if dst.isdigit():
                linked.append(dst)
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")

        def write(fd: int, data: bytes) -> int:
            if linked:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real_write(fd, data)

        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(os, "write", write)
        store.save(weights(2), step=2)  # looked, and found its own entry
        assert linked
        monkeypatch.undo()
    with castore.open(path) as store:
        assert store.fsck().ok
        assert same(store.load(), weights(2))


def test_gc_never_syncs_the_log_again_after_that_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        debris = path / "packs" / "20200101T000000000-0123456789abcdef"
        shutil.copytree(next((path / "packs").iterdir()), debris)
        log = os.stat(path / "log").st_ino
        real, calls = os.fsync, []

        def failing(fd: int) -> None:
            if os.fstat(fd).st_ino == log:
                calls.append(fd)
                raise OSError(errno.ENOSPC, "No space left on device")
            real(fd)

        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(castore.SaveFailed, match="may or may not"):
            store.gc()
        assert len(calls) == 1
        assert debris.exists()


def test_a_branch_never_takes_a_tags_name(path: Path) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        store.tag("v1", "main")
        with pytest.raises(castore.UsageError, match="'v1' is a tag"):
            store.save(weights(2), branch="v1")
        assert set(store.branches()) == {"main"}
        assert same(store.load("v1"), weights(1))


def test_looking_about_hides_no_conflict(path: Path) -> None:
    """Only what opens, loads, resolves or saves a branch counts as having seen where it stands."""
    with castore.open(path, create=True) as mine, castore.open(path) as other:
        mine.save(weights(1), step=1)
        mine.load()
        other.resolve("main")
        other.save(weights(2), step=2)
        mine.log()
        mine.tree("main")
        mine.tag("t", "main~1")
        mine.branch("b", "main")
        with pytest.raises(castore.RefConflict, match=r"store\.resolve\('main'\)"):
            mine.save(weights(3), step=3)
        assert same(mine.load(), weights(2))
        mine.save(weights(3), step=3)
        assert [c.step for c in mine.log()] == [3, 2, 1]


def test_a_load_does_not_wait_for_a_save(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        begun, go_on = threading.Event(), threading.Event()
        real = os.fsync

        def slow(fd: int) -> None:
            begun.set()
            assert go_on.wait(60)
            real(fd)

        monkeypatch.setattr(os, "fsync", slow)
        saving = threading.Thread(target=lambda: store.save(weights(2), step=2))
        saving.start()
        assert begun.wait(60)
        try:
            assert same(store.load(), weights(1))
            assert saving.is_alive()
        finally:
            go_on.set()
            saving.join()
        assert same(store.load(), weights(2))


def test_strict_steps_take_the_head_itself_again(path: Path) -> None:
    with castore.open(path, create=True) as store:
        first = store.save(weights(1), step=1, strict_steps=True)
        with pytest.warns(castore.CastoreWarning, match="nothing changed"):
            assert store.save(weights(1), step=1, strict_steps=True).digest == first.digest
        with pytest.raises(castore.UsageError, match="step 1 repeats step 1"):
            store.save(weights(2), step=1, strict_steps=True)
        with pytest.raises(castore.UsageError, match="step 0 goes back"):
            store.save(weights(2), step=0, strict_steps=True)
        assert store.fsck().findings == ()  # and no debris of what was refused


def test_a_head_saved_again_on_another_branch_is_that_branchs(path: Path) -> None:
    with castore.open(path, create=True) as store:
        first = store.save(weights(1), step=1)
        store.branch("retry", "main")
        with pytest.warns(castore.CastoreWarning, match="nothing changed"):
            again = store.save(weights(1), step=1, branch="retry")
        assert (again.digest, again.branch) == (first.digest, "retry")


def test_meta_takes_numpys_numbers(path: Path) -> None:
    meta = {"loss": np.float32(1.5), "n": np.int64(3), "ok": np.bool_(True), "f": np.float64(2.5)}
    castore.save(weights(1), path, step=1, meta=meta)
    with castore.open(path) as store:
        found = store.resolve().meta
        assert found == {"loss": 1.5, "n": 3, "ok": True, "f": 2.5}
        assert [type(v) for v in found.values()] == [float, int, bool, float]
        for odd in (np.complex64(1), np.datetime64("2026-01-01"), np.str_("x"), np.ones(2)):
            if not isinstance(odd, str):
                with pytest.raises(castore.BadState, match="meta/x"):
                    store.save(weights(1), meta={"x": odd})


def test_a_state_that_cannot_be_kept_makes_no_store(path: Path) -> None:
    with pytest.raises(castore.BadState):
        castore.save({"f": lambda: None}, path)
    assert not path.exists()


def test_the_chunk_size_of_a_store_that_is_there_is_not_overruled(path: Path) -> None:
    castore.open(path, create=True, chunk_size=8192).close()
    with pytest.raises(castore.UsageError, match="chunk size of 8192"):
        castore.open(path, create=True, chunk_size=1 << 20)
    with castore.open(path, chunk_size=8192) as store:
        assert store.info().chunk_size == 8192


@pytest.mark.parametrize("act", [castore.load, castore.open])
def test_a_medium_that_fails_is_castores_error(
    path: Path, act: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    castore.open(path, create=True).close()
    real = os.open

    def denied(name: str, flags: int, *args: int, **kwargs: int) -> int:
        if str(path) in str(name):
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(castore.StoreUnreadable, match=f"Permission denied at {path}"):
        act(path)


@pytest.mark.parametrize("away", ["back", "elsewhere", "removed"])
def test_a_branch_that_comes_back_lists_its_line_again(path: Path, away: str) -> None:
    """A move and its undo, then a gc: none of the branch's own checkpoints is let go."""
    with castore.open(path, create=True) as store:
        for step in (1, 2, 3, 4):
            store.save(weights(step), step=step)
        store.branch("other", "main~1")
        store.save(weights(9), step=9, branch="other")
        head = store.resolve("main").digest
        if away == "removed":
            store.branch("main", delete=True)
        else:
            store.branch("main", "main~2" if away == "back" else "other", force=True)
        store.branch("main", head, force=True)
        store.gc()
        assert [c.step for c in store.log("main")] == [4, 3, 2, 1]
        assert [c.step for c in store.log("other")] == [9, 3]
        assert store.fsck().ok
