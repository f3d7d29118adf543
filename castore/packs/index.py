"""The index: digest -> where, kept in LMDB.  A cache, never the truth.

Every record carries its own check, so a flipped bit is a miss and not a wrong answer; a record
names its pack by id, so a sound one is true for ever; whether that pack is live is the log's word.
LMDB lies on a file system of this machine only (its own documentation forbids others), is opened
lazily, once a process, never across a fork, and is rebuilt beside the old one when in doubt.
This is the one module outside ``storage`` that touches files: LMDB brings its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from castore.model.digest import DIGEST_SIZE, Digest, Kind
from castore.model.packinfo import PackInfo
from castore.packs.format import PackError, Record, Table
from castore.packs.lmdb_file import IndexShape, is_sound
from castore.packs.reader import read_table
from castore.storage.protocol import Storage
from castore.system import random_bytes

__all__ = ["Found", "Index", "LmdbIndex", "TableIndex"]

#: The map's first size; it doubles whenever it is full.
FIRST_MAP = 16 << 20
#: The LMDB engine whose files we read: lmdb 3 ships two that cannot read each other's.
ENGINE = 0
VERSION = b"castore index 1"

_VALUE = struct.Struct("<32sQQQBB")
_CHECK = 8
_SHAPE = IndexShape(b"records", DIGEST_SIZE, _VALUE.size + _CHECK)
#: A read transaction is kept this short: that many look-ups.
_BATCH = 4096

Found = tuple[Digest, Record]


class Index(Protocol):
    """Where digests lie, by pack id."""

    def update(self, packs: Iterable[PackInfo]) -> None:
        """Learn the tables of packs that are not known yet."""

    def add(self, ident: Digest, table: Table) -> None:
        """Learn a table at hand."""

    def find(self, digests: Sequence[Digest]) -> list[list[Found]]:
        """For each digest, every known ``(pack id, record)``."""


class TableIndex:
    """The index without LMDB: the tables themselves, in memory."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tables: dict[Digest, Table] = {}

    def update(self, packs: Iterable[PackInfo]) -> None:
        """Read the tables of packs that are not known yet."""
        for info in packs:
            if info.id not in self._tables:
                with contextlib.suppress(PackError, OSError):
                    self._tables[info.id] = read_table(self._storage, info)[1]

    def add(self, ident: Digest, table: Table) -> None:
        """Learn a table at hand."""
        self._tables[ident] = table

    def find(self, digests: Sequence[Digest]) -> list[list[Found]]:
        """For each digest, every known place."""
        return [
            [(i, r) for i, t in self._tables.items() if (r := t.find(d)) is not None]
            for d in digests
        ]


class LmdbIndex:
    """The index in a folder of this machine.  Thread-safe.

    Anything LMDB has to say ends in a rebuild or in the tables being read into memory, never in a
    failed save.
    """

    def __init__(
        self, folder: Path, store_id: bytes, storage: Storage, *, make_parents: bool = True
    ) -> None:
        """``make_parents`` is False inside a store: one that was moved must not come to life."""
        self._make_parents = make_parents
        self._folder = folder
        self._store = store_id
        self._storage = storage
        self._lock = threading.RLock()
        self._env: Any = None
        self._records: Any = None
        self._pid = 0
        self._known: set[bytes] = set()
        self._fallback: TableIndex | None = None
        self._wanted: list[PackInfo] = []  # what a rebuilt index must know

    @property
    def where(self) -> str:
        """The folder's path."""
        return str(self._folder)

    # -- opening ----------------------------------------------------------------------------------

    def _open(self) -> Any:
        import lmdb

        if self._pid != os.getpid():
            # A forked child must not touch its parent's environment, not even to close it.
            self._env, self._known, self._pid = None, set(), os.getpid()
        if self._env is None:
            if not _sound_file(self._folder):
                self._discard()
            self._folder.mkdir(parents=self._make_parents, exist_ok=True)
            self._env = lmdb.open(
                os.fsencode(self._folder),  # a name need not be UTF-8
                map_size=max(FIRST_MAP, _file_size(self._folder / "data.mdb")),
                max_dbs=3,
                metasync=False,
                max_spare_txns=0,
                lib_version=ENGINE,
            )
            self._env.reader_check()
            self._check_version(lmdb)
            self._records = self._env.open_db(b"records", dupsort=True)
        return self._env

    def _check_version(self, lmdb: Any) -> None:
        with self._env.begin(write=True) as txn:
            found = txn.get(b"store")
            if found is None:
                txn.put(b"store", VERSION + self._store)
            elif found != VERSION + self._store:
                raise lmdb.InvalidError("the index is of another store or version")

    def _discard(self) -> None:
        """Put the old index out of the way (others may have it mapped: never truncate it)."""
        env, self._env, self._known = self._env, None, set()
        if env is not None:
            env.close()
        aside = self._folder.with_name(f"{self._folder.name}.old-{random_bytes(4).hex()}")
        with contextlib.suppress(OSError):
            self._folder.rename(aside)
            if aside.is_symlink():
                aside.unlink()
            else:
                shutil.rmtree(aside, ignore_errors=True)

    def after_fork(self) -> None:
        """In a forked child: the lock is its own (the environment is opened anew in any case)."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the environment (in the process that opened it)."""
        with self._lock:
            if self._env is not None and self._pid == os.getpid():
                self._env.close()
            self._env = None
            self._known = set()

    # -- work -------------------------------------------------------------------------------------

    def update(self, packs: Iterable[PackInfo]) -> None:
        """Learn the tables of packs that are not known yet; forget nothing."""
        packs = list(packs)
        self._wanted = packs
        self._run(lambda: self._update(packs), lambda tables: tables.update(packs))

    def add(self, ident: Digest, table: Table) -> None:
        """Learn a table at hand."""
        self._run(lambda: self._put([(ident, table)]), lambda tables: tables.add(ident, table))

    def find(self, digests: Sequence[Digest]) -> list[list[Found]]:
        """For each digest, every known place."""
        out: list[list[Found]] = []
        for i in range(0, len(digests), _BATCH):
            part = digests[i : i + _BATCH]
            self._run(
                lambda part=part: out.extend(self._find(part)),
                lambda tables, part=part: out.extend(tables.find(part)),
            )
        return out

    def _run(self, act: Any, instead: Any) -> None:
        """Do it in LMDB; rebuild once if LMDB objects; else do it with the tables in memory."""
        with self._lock:
            if self._fallback is None:
                import lmdb

                for attempt in (1, 2):
                    try:
                        if attempt == 2:
                            self._update(self._wanted)  # the new one is empty
                        return act()  # type: ignore[no-any-return]
                    except lmdb.ReadersFullError:
                        break  # not corruption: a table of readers that is full
                    except (lmdb.Error, OSError) as e:
                        if "already open in this process" in str(e):
                            break  # by another Store, for which it is sound
                        if attempt == 1:
                            with contextlib.suppress(lmdb.Error, OSError):
                                self._discard()
                self._fallback = TableIndex(self._storage)
                self._fallback.update(self._wanted)
            instead(self._fallback)

    def _update(self, packs: list[PackInfo]) -> None:
        env = self._open()
        unknown = [p for p in packs if p.id not in self._known]  # few: the rest was asked before
        if not unknown:
            return
        with env.begin() as txn:
            present = {p.id for p in unknown if self._has(txn, p.id)}
        self._known.update(present)
        found: list[tuple[Digest, Table]] = []
        for info in unknown:
            if info.id not in present:
                with contextlib.suppress(PackError, OSError):
                    found.append((info.id, read_table(self._storage, info)[1]))
        self._put(found)

    @staticmethod
    def _has(txn: Any, ident: Digest) -> bool:
        return bool(txn.get(b"pack" + ident) == _check(b"pack" + ident, b""))

    def _put(self, tables: Sequence[tuple[Digest, Table]]) -> None:
        """Write tables in one sorted transaction."""
        import lmdb

        if not tables:
            return
        rows = []
        for ident, table in tables:
            for digest, kind, offset, stored, raw, codec in table.rows():
                value = _VALUE.pack(ident, offset, stored, raw, codec, kind)
                rows.append((digest, value + _check(digest, value)))
        rows.sort()
        while True:
            env = self._open()
            records = self._records
            try:
                with env.begin(write=True) as txn:
                    cursor = txn.cursor(records)
                    append = txn.stat(records)["entries"] == 0
                    cursor.putmulti(rows, dupdata=True, append=append)
                    for ident, _ in tables:
                        txn.put(b"pack" + ident, _check(b"pack" + ident, b""))
                break
            except lmdb.MapFullError:
                env.set_mapsize(env.info()["map_size"] * 2)
            except lmdb.MapResizedError:
                env.set_mapsize(0)
        self._known.update(ident for ident, _ in tables)

    def _find(self, digests: Sequence[Digest]) -> list[list[Found]]:
        import lmdb

        env = self._open()
        records = self._records
        try:
            with env.begin() as txn:
                cursor = txn.cursor(records)
                return [_read(cursor, d) for d in digests]
        except lmdb.MapResizedError:
            env.set_mapsize(0)
            return self._find(digests)


def _read(cursor: Any, digest: Digest) -> list[Found]:
    out: list[Found] = []
    if not cursor.set_key(digest):
        return out
    for data in cursor.iternext_dup():
        value, check = data[: _VALUE.size], data[_VALUE.size :]
        if len(data) != _VALUE.size + _CHECK or check != _check(digest, value):
            continue  # a damaged record is a miss
        ident, offset, stored, raw, codec, kind = _VALUE.unpack(value)
        out.append((Digest(ident), Record(digest, Kind(kind), offset, stored, raw, codec)))
    return out


def _check(key: bytes, value: bytes) -> bytes:
    return blake3(b"castore 1 index record" + key + value).digest(length=_CHECK)


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sound_file(folder: Path) -> bool:
    """Whether LMDB may open what is there: nothing yet, or a file that is as it should be.

    What is damaged would kill the process (SIGBUS), and what is not in this very folder is not
    ours to write to.
    """
    if folder.is_symlink() or (folder / "lock.mdb").is_symlink():
        return False
    try:
        fd = os.open(folder / "data.mdb", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return False
        # Made and never written: LMDB begins anew.
        return not found.st_size or is_sound(
            lambda offset, length: os.pread(fd, length, offset),
            lambda: os.fstat(fd).st_size,
            _SHAPE,
        )
    except OSError:
        return False
    finally:
        os.close(fd)
