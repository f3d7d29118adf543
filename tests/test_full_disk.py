"""A disk that is full, read-only or forbidden (T2, B04-B06): one clear error, nothing lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import castore
from tests.support import castore_cli


def mounted(target: Path, *args: str) -> None:
    done = subprocess.run(
        ["mount", *args, str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MiB."""
    target = tmp_path / "disk"
    target.mkdir()
    mounted(target, "-t", "tmpfs", "-o", "size=100m", "castore-test")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def weights(seed: int, mib: int = 60) -> dict:
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(mib << 18, generator=g), "step": seed}


def test_disk_full_mid_save_T2(disk: Path) -> None:
    path = disk / "runs.castore"
    with castore.open(path, create=True) as store:
        store.save(weights(1), step=1)
        with pytest.raises(castore.SaveFailed) as caught:
            store.save(weights(2), step=2)
        error = caught.value
        assert error.errno == errno.ENOSPC
        assert str(path) in str(error)
        assert error.needed is not None
        assert error.free is not None
        assert not error.fate_unknown
        assert [c.step for c in store.log()] == [1]
        assert torch.equal(store.load()["w"], weights(1)["w"])
        assert store.fsck().findings == ()  # what was written of step 2 is gone

        (disk / "other").write_bytes(b"x" * (store._storage.free() - 4096))
        with pytest.raises(castore.SaveFailed):
            store.save({"small": torch.randn(100_000)}, step=2)
        (disk / "other").unlink()
        store.save({"small": torch.randn(100_000)}, step=2, branch="next")
        assert [c.step for c in store.log("next")] == [2]
        assert store.fsck().ok


def test_gc_works_while_the_disk_is_full_and_the_reserve_comes_back(disk: Path) -> None:
    path = disk / "runs.castore"
    with castore.open(path, create=True) as store:
        store.save(weights(1, 10), step=1)
        litter = path / "packs" / "20200101T000000000-0123456789abcdef"
        litter.mkdir()
        (litter / "r00000-000.data.pack").write_bytes(b"x" * (30 << 20))
        with (disk / "other").open("wb", buffering=0) as other:
            try:
                while other.write(bytes(1 << 12)):
                    pass
            except OSError as e:
                assert e.errno == errno.ENOSPC
        assert store._storage.free() == 0
        report = store.gc()
        assert report.removed_bytes == 30 << 20
        assert not litter.exists()
        assert (path / "reserve").stat().st_size == 4 << 20
        assert store.fsck().findings == ()
        assert torch.equal(store.load()["w"], weights(1, 10)["w"])


def test_no_inodes_left(tmp_path: Path) -> None:
    target = tmp_path / "disk"
    target.mkdir()
    mounted(target, "-t", "tmpfs", "-o", "size=100m,nr_inodes=40", "castore-test")
    try:
        path = target / "runs.castore"
        with castore.open(path, create=True) as store:
            saved, error = -1, None
            while error is None:
                step = saved + 1
                try:
                    store.save({"w": torch.full((1000,), float(step))}, step=step)
                    saved = step
                except castore.SaveFailed as e:
                    error = e
            assert error.errno == errno.ENOSPC
            assert saved > 1
            assert [c.step for c in store.log()] == list(range(saved + 1))[::-1]
            assert store.load()["w"][0] == float(saved)
            assert store.fsck().ok
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_read_only_mount(tmp_path: Path) -> None:
    path = tmp_path / "disk" / "runs.castore"
    path.parent.mkdir()
    castore.save({"w": torch.arange(100_000.0)}, path, step=1)
    mounted(path.parent, "--bind", str(path.parent))
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path.parent)], check=True)
        with castore.open(path, readonly=True) as store:
            assert torch.equal(store.load()["w"], torch.arange(100_000.0))
            assert store.fsck().ok
            assert [c.step for c in store.log()] == [1]
        with castore.open(path) as store:  # not said, and still nothing but the save fails
            assert store.load()["w"][5] == 5.0
            with pytest.raises(castore.SaveFailed) as caught:
                store.save({"w": 1}, step=2)
            assert caught.value.errno == errno.EROFS
        done = castore_cli("-s", str(path), "fsck")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run(["umount", "-l", str(path.parent)], check=True)


def test_permissions_lost_between_saves_B06(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # root is never refused by modes: an immutable folder refuses everybody
        done = subprocess.run(["chattr", "+i", str(tmp_path)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this file system has no immutable folders, and root heeds no modes")
        subprocess.run(["chattr", "-i", str(tmp_path)], check=True)
    path = tmp_path / "runs.castore"
    with castore.open(path, create=True) as store:
        store.save({"a": 1}, step=1)
        packs = path / "packs"
        lock, unlock = (["chattr", "+i"], ["chattr", "-i"])
        if os.geteuid() != 0:
            lock, unlock = (["chmod", "0555"], ["chmod", "0755"])
        subprocess.run([*lock, str(packs)], check=True)
        try:
            with pytest.raises(castore.SaveFailed) as caught:
                store.save({"a": 2}, step=2)
            assert caught.value.errno in (errno.EPERM, errno.EACCES)
        finally:
            subprocess.run([*unlock, str(packs)], check=True)
        assert store.load() == {"a": 1}
        store.save({"a": 2}, step=2)
        assert store.load() == {"a": 2}


def test_without_hard_links_a_store_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(castore.UnsupportedFeature, match="hard links"):
        castore.open(tmp_path / "runs.castore", create=True)


def test_without_o_direct_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def no_direct(path, flags, *args, **kwargs):  # type: ignore[no-untyped-def]
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", no_direct)
    state = {"w": torch.randn(3_000_000)}
    with castore.open(tmp_path / "runs.castore", create=True) as store:
        assert store.save(state, verify="now").report.verified
        assert torch.equal(store.load()["w"], state["w"])
        assert store.info().direct_io is False
        assert store.fsck().ok


@pytest.mark.parametrize("call", ["pwrite", "fsync", "link", "mkdir"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_an_error_in_any_call_is_one_error_and_prev_safe_B05(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = tmp_path / "runs.castore"
    with castore.open(path, create=True) as store:
        store.save({"w": torch.zeros(2_000_000)}, step=1)
        real = getattr(os, call)
        at = 1
        failures = 0
        while True:
            left = at

            def failing(*args, **kwargs):  # type: ignore[no-untyped-def]
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(code, os.strerror(code))
                return real(*args, **kwargs)

            monkeypatch.setattr(os, call, failing)
            state = {"w": torch.full((2_000_000,), float(at)), "at": at}
            try:
                store.save(state, step=at + 1, branch=f"b{at}")
                monkeypatch.setattr(os, call, real)
                assert left > 0, f"{call} number {at} failed, and nobody heard of it"
                break
            except castore.SaveFailed as e:
                monkeypatch.setattr(os, call, real)
                failures += 1
                assert e.errno == code
                if e.fate_unknown:  # the entry may exist: then it is whole
                    if f"b{at}" in store.branches():
                        assert torch.equal(store.load(f"b{at}")["w"], state["w"])
                else:
                    assert f"b{at}" not in store.branches()
            assert store.load()["w"][0] == 0.0
            store.gc()
            report = store.fsck()
            assert report.ok, report.damage
            at += 1
        assert failures >= 1
        assert store.load(f"b{at}")["at"] == at
        assert at < 40
