"""Other file systems, odd names, clocks that jump: the same promises (T4's first clause, D16)."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import castore
from castore import system
from castore.storage import local
from tests.support import castore_cli, same, training_state

MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
    "tmpfs": None,
}
#: The smallest that all of them take (xfs asks for 300 MB).
SIZE = 320 << 20


@pytest.fixture
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A fresh file system of the kind that the test names."""
    kind: str = request.param
    target = tmp_path / "disk"
    target.mkdir()
    make = MKFS[kind]
    if make is None:
        mount = ["mount", "-t", "tmpfs", "-o", "size=320m", "castore-test", str(target)]
    else:
        if shutil.which(make[0]) is None:
            pytest.skip(f"{make[0]} is not installed")
        image = tmp_path / "image"
        with image.open("wb") as f:
            f.truncate(SIZE)
        subprocess.run([*make, str(image)], check=True, capture_output=True)
        mount = ["mount", "-o", "loop", str(image), str(target)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def life(path: Path) -> None:
    """Make a store, save twice, lose the process, read all back, check, remove debris."""
    state = training_state(3)
    with castore.open(path, create=True) as store:
        store.save(state, step=1, verify="now")
        state["more"] = torch.arange(2_000_000.0)
        store.save(state, step=2, verify="now")
    with castore.open(path) as store:
        assert same(store.load(), state)
        assert [c.step for c in store.log()] == [2, 1]
        assert store.fsck().ok
        debris = path / "packs" / "20200101T000000000-0123456789abcdef"
        shutil.copytree(next((path / "packs").iterdir()), debris)
        assert store.gc().removed_files
        assert not debris.exists()
        assert store.fsck().findings == ()


@pytest.mark.parametrize("mounted", MKFS, indirect=True)
def test_a_life_on(mounted: Path) -> None:
    life(mounted / "runs.castore")


def test_a_life_without_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_O_DIRECT", 0)
    life(tmp_path / "runs.castore")


NAMES = {
    "spaces": "my runs of 2026.castore",
    "not ASCII": "прогоны-実験-é.castore",
    "NFD": "e\u0301.castore",
    "200 characters": "r" * 192 + ".castore",
    "newline": "two\nlines.castore",
    "leading dash": "-runs.castore",
    "not UTF-8": os.fsdecode(b"runs-\xff.castore"),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_store_of_any_name(tmp_path: Path, name: str) -> None:
    life(tmp_path / name)
    done = castore_cli("-s", str(tmp_path / name), "log", "--oneline")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_paths_that_lead_to_it_in_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    state = training_state(1)
    castore.save(state, f"{tmp_path}/link/runs.castore/", step=1)
    (tmp_path / "also.castore").symlink_to(real / "runs.castore")
    assert same(castore.load(tmp_path / "also.castore"), state)
    monkeypatch.chdir(real)
    assert same(castore.load("runs.castore"), state)
    assert same(castore.load("./../link/runs.castore"), state)
    with castore.open("runs.castore") as store:
        monkeypatch.chdir("/")  # a relative path is made absolute when the store is opened
        store.save(training_state(2), step=2)
        assert [c.step for c in store.log()] == [2, 1]
        assert store.fsck().ok


CLOCKS = {
    "set back": [10**18, 10**18 - 7200 * 10**9, 10**18 - 7200 * 10**9],
    "equal": [10**18] * 3,
    "far ahead": [10**18, 4 * 10**18, 10**18 + 1],
    "before the epoch": [-(10**18), 0, -1],
}


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS)
def test_order_is_the_logs_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[int]
) -> None:
    path = tmp_path / "runs.castore"
    clock = itertools.cycle(times)
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    assert system.now_ns() in times
    steps = [9, 100, 10, 2]
    for step in steps:
        # Each by a process of its own, in effect.
        with castore.open(path, create=True) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore", castore.CastoreWarning)  # steps that go back
            store.save({"x": torch.full((500,), float(step))}, step=step)
    for file in path.rglob("*"):
        os.utime(file, (0, 0))
    with castore.open(path) as store:
        assert [c.step for c in store.log()] == steps[::-1]
        for back, step in enumerate(steps[::-1]):
            assert same(store.load(f"main~{back}"), {"x": torch.full((500,), float(step))})
        assert store.resolve("main@step=9").step == 9
        store.gc()
        assert store.fsck().ok
        assert len(store.log()) == 4
