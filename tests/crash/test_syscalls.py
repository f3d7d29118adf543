"""SIGKILL at every system call, and errors from every system call, of saves, gc and index rebuild.

Cases T1, B01, B02, B05, B06.  After each: what was acknowledged is there, whole, fsck finds no
damage, the next save works, gc leaves nothing behind.
"""

from __future__ import annotations

import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import castore
from tests.crash.injected import OTHER_ERROR, SAVE_FAILED, Died, run_injected, strace_works
from tests.crash.promises import examine, save

#: The calls that change a file system.
CALLS = (
    "openat", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "link", "linkat", "mkdir",
    "mkdirat", "rename", "renameat", "unlink", "unlinkat", "close",
)  # fmt: skip
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EACCES", "ESTALE")
#: Calls made so often, mostly to look for names, that only a campaign hits each of them.
MANY = ("openat", "close")
#: No scene makes as many calls of one kind in one thread.
MOST = 2000


def make_store(path: Path) -> None:
    """A store with one checkpoint, step 1, and what a dead save left."""
    with castore.open(path, create=True) as store:
        save(store, 1)
    shutil.copytree(
        next((path / "packs").iterdir()), path / "packs" / "20261201T000000000-0123456789abcdef"
    )


def scene_save(path: Path) -> None:
    with castore.open(path) as store:
        save(store, 2)


def scene_gc(path: Path) -> None:
    with castore.open(path) as store:
        store.gc()


#: In the scene "index" the store has lost its index, and a save builds it anew.
SCENES: dict[str, Callable[[Path], None]] = {
    "save": scene_save,
    "gc": scene_gc,
    "index": scene_save,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that every try begins with a copy of."""
    strace_works()
    path = tmp_path_factory.mktemp("model") / "runs.castore"
    make_store(path)
    with warnings.catch_warnings():  # what is imported late is imported now
        warnings.simplefilter("ignore")
        copy = path.with_name("warm.castore")
        shutil.copytree(path, copy)
        for scene in SCENES.values():
            scene(copy)
    return path


def tries(
    name: str, inject: str, model: Path, scratch: Path, step: int = 1
) -> Iterator[tuple[int, Path, Died]]:
    """The scene with the k-th call hit, for k from 1 by ``step`` until none is."""
    for k in range(1, MOST, step):
        path = scratch / "runs.castore"
        shutil.copytree(model, path)
        if name == "index":
            shutil.rmtree(path / "index.lmdb")
        died = run_injected(partial(SCENES[name], path), f"{inject}:when={k}", scratch)
        yield k, path, died
        shutil.rmtree(path)
        if not died.call:
            return
    pytest.fail(f"{inject}: more than {MOST} calls")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_sigkill_at_every_call(name: str, model: Path, tmp_path: Path) -> None:
    deaths: dict[str, int] = {}
    for call in CALLS:
        if call in MANY:
            continue  # a death there is one before or after the calls that change something
        for k, path, died in tries(name, f"{call}:signal=SIGKILL", model, tmp_path):
            if died.call:
                assert died.status == -signal.SIGKILL, f"{call} {k}: {died.status} {died.error}"
                deaths[call] = k
            else:
                assert died.status == 0, died.error
            examine(path, ["main 1"], 1 if name == "gc" else 2)
    print(f"{name}: {sum(deaths.values())} deaths: {deaths}")
    assert sum(deaths.values()) >= 5
    assert not {"write", "fsync"} - set(deaths)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_an_error_from_every_call(name: str, model: Path, tmp_path: Path, campaign: bool) -> None:
    """Success, or one SaveFailed that says why; nothing half visible; then all works again."""
    ends: dict[str, int] = {}
    for call in CALLS:
        for error in ERRORS if campaign else ERRORS[:2]:
            step = 1 if campaign or call not in MANY else 61
            for k, path, died in tries(name, f"{call}:error={error}", model, tmp_path, step):
                where = f"{call} {k} {error}: {died.status} {died.error}"
                assert died.status in (0, SAVE_FAILED, OTHER_ERROR), where
                if died.status:
                    assert died.call, where
                    assert re.search(r"\berrno \d+|No space|Input/output|quota|[Rr]ead-only|"
                                     r"[Pp]ermission|[Ss]tale", died.error), where  # fmt: skip
                    assert str(path) in died.error or "log entry" in died.error, where
                kind = "done" if not died.status else died.error.partition(":")[0]
                ends[kind] = ends.get(kind, 0) + 1
                acks = ["main 2"] if died.status == 0 and name != "gc" else ["main 1"]
                examine(path, acks, 1 if name == "gc" else 2)
    print(f"{name}: {ends}")
    assert ends.get("SaveFailed", 0) >= 5


@pytest.mark.parametrize("call", ["write", "pwrite64", "fsync", "openat", "unlink", "unlinkat"])
def test_an_interrupted_call_is_made_again(call: str, model: Path, tmp_path: Path) -> None:
    for k, path, died in tries("save", f"{call}:error=EINTR", model, tmp_path, 17):
        assert died.status == 0, f"{call} {k}: {died.error}"
        examine(path, ["main 2"], 2)
