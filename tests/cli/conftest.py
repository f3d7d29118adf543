"""Stores for the tests of the command line.  Shared ones are never written to: copy them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import castore


@pytest.fixture(scope="package", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """These tests start some 300 processes: let none compile what another has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("pycache")))
        yield


def state(step: int) -> dict[str, Any]:
    """Frozen, changing and tied tensors, and values of every looks."""
    weight = torch.arange(1200, dtype=torch.float32).reshape(300, 4) + step
    return {
        "frozen": torch.arange(4096, dtype=torch.int64),
        "model": {"weight": weight, "bias": torch.full((3,), float(step)), "tied": weight},
        "optimizer": {"lr": 0.5, "betas": (0.9, 0.999), "name": "ad\x1b[31mam"},
        "step": step,
        "a/b": [True, None],
    }


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints on main, one on retry, a tag; chunks of 4 KiB.  Read only!"""
    path = tmp_path_factory.mktemp("cli") / "runs.castore"
    with castore.open(path, create=True, chunk_size=4096) as store:
        store.save(state(10), step=10, meta={"loss": float("nan"), "note": "two\nlines"})
        store.save(state(20), step=20, message="second\nwith \x1b[31mcolour")
        store.tag("v1", "main")
        store.branch("retry", "main")
        store.save(state(25), branch="retry", step=25, meta={"loss": 0.5, "sizes": [1, 2]})
        store.save(state(30), step=30)
    return path


@pytest.fixture
def own(runs: Path, tmp_path: Path) -> Path:
    """A copy of ``runs`` to do with as one likes."""
    path = tmp_path / "own.castore"
    shutil.copytree(runs, path)
    return path


@pytest.fixture(scope="session")
def digests(runs: Path) -> dict[str, str]:
    """Revision -> digest, as the Python side has it."""
    with castore.open(runs, readonly=True) as store:
        revs = ("main", "main~1", "main~2", "retry", "v1")
        return {rev: store.resolve(rev).digest for rev in revs}


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A store without a checkpoint."""
    path = tmp_path / "empty.castore"
    castore.open(path, create=True).close()
    return path


@pytest.fixture
def flip() -> Callable[[Path, int], None]:
    """Flips a bit of a file's byte."""

    def flip(path: Path, offset: int) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))

    return flip
