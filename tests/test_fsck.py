"""fsck believes nothing but digests, finishes whatever it meets, and never names a false whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import castore
from castore.log import log as log_module
from castore.log.entry import Add
from castore.log.fold import Fold, render_fold
from castore.log.log import Log, fold_name
from castore.opening import fsck_path
from castore.storage.local import LocalStorage
from tests.support import flip_bit, same


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "runs.castore"
    with castore.open(made, create=True, chunk_size=4096) as store:
        for step in (1, 2):
            store.save(state_at(step), step=step)
    shutil.rmtree(made / "index.lmdb")
    return made


def state_at(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(50_000.0) + step}


def forge(path: Path, at: int) -> None:
    """A fold file, sound in itself, that leaves the first checkpoint out."""
    storage = LocalStorage(path)
    log = Log(storage, bytes.fromhex(castore.open(path).store_id))
    fold = Fold()
    for seq in range(1, at + 1):
        entry = log.entry(seq)
        if any(isinstance(c, Add) and c.step == 1 for c in entry.changes):
            fold.seq, fold.chain = entry.seq, entry.digest()
        else:
            fold.advance([entry])
        store = entry.store
    (path / fold_name(at)).write_bytes(render_fold(fold, store))
    storage.close()


@pytest.mark.parametrize("at", [2, 3])
def test_a_false_fold_file_is_damage_and_hides_none(path: Path, at: int) -> None:
    first = sorted((path / "packs").iterdir())[0]
    for pack in first.iterdir():
        flip_bit(pack, 5000, 1)
    before = fsck_path(path)
    forge(path, at)
    report = fsck_path(path)
    assert {f.detail for f in before.damage} <= {f.detail for f in report.damage}
    false = [f for f in report.damage if f.code == "false-fold-file"]
    assert [f.file for f in false] == [fold_name(at)]
    assert report.checkpoints == 2


def test_a_true_fold_file_is_no_finding(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FOLD_EVERY", 2)
    with castore.open(path) as store:
        for step in (3, 4, 5):
            store.save(state_at(step), step=step)
    assert list((path / "log").glob("*.fold"))
    assert fsck_path(path).findings == ()


def unreadable(monkeypatch: pytest.MonkeyPatch, file: Path, start: int, stop: int) -> None:
    """A bad sector: reads that touch those bytes of the file fail."""
    inode = file.stat().st_ino

    def guarded(real: Callable[..., object]) -> Callable[..., object]:
        def read(fd: int, what: object, offset: int) -> object:
            length = what if isinstance(what, int) else len(what[0])  # type: ignore[index]
            if os.fstat(fd).st_ino == inode and offset < stop and offset + length > start:
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, what, offset)

        return read

    monkeypatch.setattr(os, "pread", guarded(os.pread))
    monkeypatch.setattr(os, "preadv", guarded(os.preadv))


@pytest.mark.parametrize("half", [0, 1])
def test_a_bad_sector_in_one_half_of_an_entry_costs_nothing(
    path: Path, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = path / "log" / "000000000002"
    middle = entry.stat().st_size // 2
    unreadable(monkeypatch, entry, half * middle, half * middle + 4096)
    with castore.open(path, readonly=True) as store:
        assert same(store.load(), state_at(2))
    report = fsck_path(path)
    assert [f.code for f in report.damage] == ["damaged-log-entry"]
    assert len(report.whole) == 2


@pytest.mark.parametrize("region", ["payload", "end"])
def test_a_bad_sector_in_a_pack_ends_no_check(
    path: Path, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = sorted((path / "packs").glob("*/*.data.pack"))
    size = packs[0].stat().st_size
    start = 8192 if region == "payload" else size - 4096
    unreadable(monkeypatch, packs[0], start, start + 4096)
    flip_bit(packs[1], 9000, 1)
    report = fsck_path(path)
    assert {f.file for f in report.damage} == {str(p.relative_to(path)) for p in packs}


def test_a_quick_check_names_no_cut_checkpoint_as_whole(path: Path) -> None:
    pack = sorted((path / "packs").glob("*/*.data.pack"))[1]
    os.truncate(pack, 8192)
    for quick in (True, False):
        report = fsck_path(path, quick=quick)
        assert not report.ok
        with castore.open(path, readonly=True) as store:
            assert report.whole == (store.resolve("main~1").digest,)
            assert report.newest_whole == {"main": report.whole[0]}


def test_nothing_is_called_debris_where_the_log_breaks_off(path: Path) -> None:
    (path / "log" / "000000000002").write_bytes(bytes(8192))
    report = fsck_path(path)
    assert {f.code for f in report.findings} == {"damaged-log-entry"}
