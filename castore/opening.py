"""Making, finding and sharing stores: how a path becomes a :class:`castore.Store`."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from castore.errors import (
    CastoreError,
    SaveFailed,
    StoreNotFound,
    StoreUnreadable,
    UsageError,
)
from castore.log.entry import Features
from castore.log.log import AppendFateUnknown, Log
from castore.model.config import CONFIG_NAME, DEFAULT_CHUNK_SIZE, StoreConfig, valid_chunk_size
from castore.model.digest import derived
from castore.packs.index import LmdbIndex
from castore.pipeline.parts import Parts
from castore.reports import Checkpoint, FsckReport
from castore.storage.filesystem import is_local_file_system, make_store_folder, real_path
from castore.storage.local import LocalStorage
from castore.store import Progress, Store
from castore.system import cache_dir, identity, random_bytes
from castore.upkeep.config import read_config
from castore.upkeep.fsck import fsck as check_store
from castore.upkeep.reserve import make_reserve
from castore.upkeep.survey import KNOWN

__all__ = ["fsck_path", "load", "open_store", "save"]

FOLDERS = ("packs", "log", "sessions", "quarantine")


def open_store(
    path: str | Path,
    create: bool = False,
    readonly: bool = False,
    *,
    chunk_size: int | None = None,
) -> Store:
    """Open a store.

    Args:
        path: its folder.
        create: make it if absent (one folder; its parent must exist).
        readonly: never write, not even a session or the index: for read-only mounts.
        chunk_size: of a store that is made: bytes, a multiple of 4096 (default 4 MiB); of one that
            is there, what it must have.

    Raises:
        StoreNotFound: there is none, and ``create`` is False.
        StoreUnreadable: its ``castore.json`` or log cannot be read.
        SaveFailed: it cannot be made.
        UnsupportedFeature: written by a newer castore, or the file system lacks what it needs.
    """
    where = Path(path)
    if create and readonly:
        raise UsageError("create=True and readonly=True exclude one another")
    if chunk_size is not None and not valid_chunk_size(chunk_size):
        raise UsageError(
            f"chunk_size is a multiple of 4096 between 4096 and 64 MiB, not {chunk_size}"
        )
    try:
        if create:
            make_store_folder(where, CONFIG_NAME, KNOWN)
        storage = LocalStorage(where)
    except OSError as e:
        raise _cannot_open(where, create, e) from e
    try:
        config = _config(storage, create, chunk_size or DEFAULT_CHUNK_SIZE)
        if chunk_size not in (None, config.chunk_size):
            raise UsageError(
                f"the store {storage.where} has a chunk size of {config.chunk_size} bytes, fixed "
                f"when it was made, not {chunk_size}; leave chunk_size out"
            )
        return _store(storage, config, readonly)
    except AppendFateUnknown as e:
        storage.close()
        raise e.told("making the store", f"castore -s {where} log") from e
    except OSError as e:
        storage.close()
        raise _cannot_open(where, create, e) from e
    except BaseException:
        storage.close()
        raise


def _cannot_open(where: Path, create: bool, e: OSError) -> CastoreError:
    path = str(where.absolute())
    if create:
        return SaveFailed.of(e, f"the store {path} cannot be made or opened", path)
    return StoreUnreadable.of(e, f"the store {path} cannot be opened", path)


def _config(storage: LocalStorage, create: bool, chunk_size: int) -> StoreConfig:
    try:
        return read_config(storage)
    except FileNotFoundError:
        if storage.list("packs") or storage.list("log"):
            # Unless another maker was quicker than we looked, the file is lost: not to be made up.
            if storage.size(CONFIG_NAME) is None:
                raise StoreUnreadable(
                    f"{storage.where} has packs or a log, and its {CONFIG_NAME} is missing; run "
                    f"`castore -s {storage.where} fsck`",
                    path=storage.where,
                ) from None
        elif not create:
            raise StoreNotFound(
                f"the folder {storage.where} is no store: it has no {CONFIG_NAME}; `castore init` "
                "or castore.open(path, create=True) makes a store of a new or an empty folder",
                path=storage.where,
            ) from None
    storage.probe()
    for folder in FOLDERS:
        storage.make_folder(folder)
    # Of several makers one wins; all go on with the winner's.
    storage.create(CONFIG_NAME, StoreConfig(random_bytes(16), chunk_size).render())
    storage.sync_folder("")  # the winner may have been killed before its own fsync
    make_reserve(storage)
    return read_config(storage)


def _store(storage: LocalStorage, config: StoreConfig, readonly: bool) -> Store:
    folder = _index_folder(storage, config)
    inside = folder.parent == Path(storage.where)
    index = LmdbIndex(folder, config.store_id, storage, make_parents=not inside)
    log = Log(storage, config.store_id, readonly=readonly)
    _begin(storage, log, readonly)
    return Store(storage, index, Parts(storage, config, log, index), readonly=readonly)


def _begin(storage: LocalStorage, log: Log, readonly: bool) -> None:
    """Finish what a maker that was killed between castore.json and the first entry began.

    Raises:
        StoreUnreadable: the log cannot be read, or is gone.
    """
    if log.fold().seq:
        return
    where = storage.where
    if storage.list("packs"):
        raise StoreUnreadable(
            f"{where} has packs but no log: entry 1 is missing; run `castore fsck`", path=where
        )
    if not readonly:
        log.append(lambda f: () if f.seq else (Features((), ()),), "init")


def _index_folder(storage: LocalStorage, config: StoreConfig) -> Path:
    """In the store where its file system is this machine's own, else in the user's cache."""
    if is_local_file_system(storage.where) and storage.writable():
        return Path(storage.where) / "index.lmdb"
    path = derived("castore 1 index folder", storage.where.encode(errors="surrogateescape"))
    name = f"{config.store_id.hex()}-{identity().host}-{path.short}"
    return cache_dir() / name / "index.lmdb"


_SHARED: dict[str, Store] = {}
_SHARED_LOCK = threading.Lock()


def _after_fork() -> None:
    global _SHARED_LOCK  # noqa: PLW0603 - a lock held by a thread that is not in this child
    _SHARED_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _shared(path: str | Path, create: bool, state: Any = None) -> Store:
    """One Store for each real path and process; a folder made anew is noticed by its id.

    ``create`` makes it if absent, once it is clear that ``state`` can be kept.
    """
    key = real_path(path)
    with _SHARED_LOCK:
        store = _SHARED.get(key)
        if store is not None:
            with contextlib.suppress(OSError, StoreNotFound, StoreUnreadable):
                with contextlib.closing(LocalStorage(key)) as storage:
                    config = read_config(storage)
                    # A copy in the place of the folder we hold has the same id.
                    same = store.stands_on(storage, config)
                if same and not store.closed:
                    return store
            store.close()
            del _SHARED[key]
        try:
            store = open_store(path)
        except StoreNotFound:
            if not create:
                raise
            from castore.state import describe

            describe(state, DEFAULT_CHUNK_SIZE)  # refuses before anything is written
            store = open_store(path, create=True)
        _SHARED[key] = store
        return store


def save(state: Any, path: str | Path, **options: Any) -> Checkpoint:
    """Save a state into the store at ``path``, which is made if absent.

    Options as for :meth:`Store.save`.  Calls for one path share one :class:`Store`.
    """
    return _shared(path, True, state).save(state, **options)


def load(path: str | Path, rev: str = "main", **options: Any) -> Any:
    """Load a state from the store at ``path``.  Options as for :meth:`Store.load`."""
    return _shared(path, False).load(rev, **options)


def fsck_path(
    path: str | Path, *, quick: bool = False, progress: Progress | None = None
) -> FsckReport:
    """Check the store at ``path`` even where it cannot be opened.

    Raises:
        StoreNotFound: there is none.
        StoreUnreadable: the check could not be finished.
    """
    try:
        storage = LocalStorage(path)
        with contextlib.closing(storage):
            if storage.size(CONFIG_NAME) is None and not storage.list("packs"):
                raise StoreNotFound(f"there is no store at {storage.where}", path=storage.where)
            return check_store(storage, quick=quick, progress=progress)
    except OSError as e:
        raise _cannot_open(Path(path), False, e) from e
