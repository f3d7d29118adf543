"""What a hostile tester found, each re-enacted from outside."""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path, PureWindowsPath
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

import castore
from castore.opening import fsck_path
from tests.support import castore_cli, fork, same, wait_ok

STATE = {"w": torch.arange(5000.0)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.castore"


def test_parent_and_child_save_at_once(path: Path) -> None:
    mine = {"w": torch.arange(12 << 20) * 1.0}
    its = {"w": -5.0 - torch.arange(12 << 20)}
    with castore.open(path, create=True) as store:
        store.save(STATE)
        store.save({"w": torch.randn(2 << 20)}, step=0)  # so that buffers are there to be shared
        store.branch("child", "main")
        pid = fork(lambda: store.save(its, branch="child", step=1))
        store.save(mine, step=1)
        wait_ok(pid)
        assert store.fsck().ok
        assert torch.equal(store.load()["w"], mine["w"])
        assert torch.equal(store.load("child")["w"], its["w"])


@pytest.mark.parametrize(
    "options",
    [
        {"message": "x" * (65 << 20)},
        {"message": "\ud800"},
        {"meta": {"a": "x" * (65 << 20)}},
        {"meta": {"a": "\ud800"}},
        {"meta": {"\ud800": 1}},
    ],
    ids=["long message", "surrogate message", "long meta", "surrogate meta", "surrogate key"],
)
def test_what_readers_would_refuse_is_not_written(path: Path, options: dict) -> None:
    castore.save(STATE, path, step=1)
    with pytest.raises(castore.UsageError):
        castore.save({"w": torch.zeros(5000)}, path, step=2, **options)
    assert same(castore.load(path), STATE)
    with castore.open(path) as store:
        assert len(store.log()) == 1
        assert store.fsck().findings == ()


def test_an_object_beyond_what_readers_read_is_refused(path: Path) -> None:
    castore.save(STATE, path, step=1)
    dtype = np.dtype([(chr(0x10000 + i) * 250 + str(i), "u1") for i in range(1000)])
    state = {str(i): np.zeros(1, dtype) for i in range(80)}
    with pytest.raises(castore.BadState, match="an object has at most"):
        castore.save(state, path, step=2)
    assert same(castore.load(path), STATE)
    with castore.open(path) as store:
        assert store.gc().items == ()


def test_keys_that_are_one_when_loaded_are_refused(path: Path) -> None:
    zones = [ZoneInfo.no_cache("Europe/Berlin") for _ in range(2)]
    for folds in ((0, 1), (0, 0)):
        keys = [
            datetime(2020, 10, 25, 2, 30, tzinfo=zone, fold=fold)
            for zone, fold in zip(zones, folds, strict=True)
        ]
        state = {keys[0]: 0, keys[1]: 1}
        if len(state) == 2:  # two keys to Python, which tells the zones apart
            with pytest.raises(castore.BadState, match="one when written"):
                castore.save(state, path)
    one = {datetime(2020, 10, 25, 2, 30, tzinfo=zones[0]): 0}
    castore.save(one, path)
    assert list(castore.load(path).values()) == [0]


def test_a_path_that_reads_otherwise_is_refused(path: Path) -> None:
    odd = PureWindowsPath("./c:a")
    if PureWindowsPath(str(odd)).parts == odd.parts:
        castore.save(odd, path)  # newer Pythons write it so that it reads the same
        assert castore.load(path) == odd
    else:
        with pytest.raises(castore.BadState, match="reads otherwise"):
            castore.save(odd, path)


def test_a_copy_in_the_folders_place_is_noticed(path: Path, tmp_path: Path) -> None:
    castore.save(STATE, path, step=1)
    moved = tmp_path / "moved"
    path.rename(moved)
    shutil.copytree(moved, path)
    castore.save({"w": torch.zeros(5000)}, path, step=2)
    for where, steps in ((path, [2, 1]), (moved, [1])):
        with castore.open(where) as store:
            assert [c.step for c in store.log()] == steps


def test_a_store_that_is_moved_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    with castore.open(path, create=True) as store:
        path.rename(moved)  # before the index was ever opened
        store.save(STATE, step=1)
    assert not path.exists()
    assert same(castore.load(moved), STATE)


def test_fsck_reads_what_lies_there_now(path: Path) -> None:
    with castore.open(path, create=True) as store:
        store.save(STATE)
        store.load()
        pack = next((path / "packs").glob("*/*.data.pack"))
        data = bytearray(pack.read_bytes())
        data[500] ^= 1
        other = path.parent / "other"
        other.write_bytes(data)
        other.replace(pack)  # as rsync does it
        assert not store.fsck().ok


def test_long_ints_as_keys_do_not_trouble_fsck(path: Path) -> None:
    state = {10**5000: 1, (10**5000, 1): 10**6000}
    castore.save(state, path)
    assert castore.load(path) == state
    assert fsck_path(path).ok
    assert castore_cli("-s", str(path), "show").returncode == 0


@pytest.mark.parametrize("content", ["1", '"x"', "null", "[" * 100_000, '{"pid": "../../x"}', ""])
def test_a_strange_session_stops_nothing(path: Path, content: str) -> None:
    castore.save(STATE, path)
    litter = "20200101T000000000-0123456789abcdef"
    (path / "packs" / litter).mkdir()
    (path / "sessions" / litter).write_text(content)
    before = sorted(p.name for p in path.rglob("*"))
    with castore.open(path) as store:
        assert store.fsck().ok
        store.gc(dry_run=True)
        assert sorted(p.name for p in path.rglob("*")) == before  # neither writes
        store.gc()
        assert store.fsck().ok


@pytest.mark.parametrize(
    "rev", ["main~" + "9" * 5000, "main@{" + "9" * 5000 + "}", "x@step=" + "9" * 5000]
)
def test_absurd_revisions_are_bad_revisions(path: Path, rev: str) -> None:
    castore.save(STATE, path)
    with pytest.raises(castore.BadRevision):
        castore.load(path, rev)
    with pytest.raises(castore.BadRevision):
        castore.load(path, 1000)  # type: ignore[arg-type]


def test_after_a_branch_was_removed_the_words_are_true(path: Path) -> None:
    with castore.open(path, create=True) as store:
        saved = store.save(STATE, step=1)
        store.branch("main", delete=True)
        with pytest.raises(
            castore.BadRevision, match=f"removed.*castore branch main {saved.digest[:12]}"
        ):
            store.load()
        # having looked, the store may begin the branch anew
        store.save({"w": torch.zeros(5000)}, step=2)
        assert [c.step for c in store.log()] == [2]


def test_an_index_that_leads_outside_is_not_followed(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious" * 100)
    for name in ("lock.mdb", "data.mdb"):
        castore.save(STATE, path, branch=f"b-{name[:4]}")
        (path / "index.lmdb" / name).unlink()
        (path / "index.lmdb" / name).symlink_to(outside)
        with castore.open(path) as store:
            store.save({"w": torch.full((5000,), float(len(name)))}, branch=f"c-{name[:4]}")
        assert outside.read_bytes() == b"precious" * 100
    shutil.rmtree(path / "index.lmdb")
    folder = tmp_path / "folder"
    folder.mkdir()
    (path / "index.lmdb").symlink_to(folder)
    with castore.open(path) as store:
        store.save({"w": torch.full((5000,), 77.0)}, branch="d")
        assert store.fsck().ok
    assert not list(folder.iterdir())


def test_a_fifo_in_the_index_does_not_hang(path: Path) -> None:
    castore.save(STATE, path)
    (path / "index.lmdb" / "data.mdb").unlink()
    os.mkfifo(path / "index.lmdb" / "data.mdb")

    def child() -> None:
        with castore.open(path) as store:
            store.save({"w": torch.zeros(5000)}, branch="b")

    wait_ok(fork(child))
    assert same(castore.load(path, "b"), {"w": torch.zeros(5000)})
