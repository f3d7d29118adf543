"""Store: the front door.  It checks what the caller says, and delegates.

One :class:`Store` stands for one folder.  It may be used from several threads (one save at a time)
and survives ``fork``; another process opens its own.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import os
import threading
import warnings as python_warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from castore.errors import (
    BadRevision,
    BadState,
    CastoreError,
    CastoreWarning,
    CheckpointGone,
    NoCheckpoint,
    SaveFailed,
    StoreNotFound,
    StoreUnreadable,
    UnsupportedFeature,
    UsageError,
)
from castore.log.entry import Change, Features, SetBranch, SetTag
from castore.log.fold import Fold, Live, live_in_order
from castore.log.log import AppendFateUnknown, Log
from castore.log.names import check_name
from castore.log.revisions import Revision, parse_revision, resolve
from castore.model.config import (
    CONFIG_NAME,
    DEFAULT_CHUNK_SIZE,
    FORMAT_VERSION,
    StoreConfig,
    valid_chunk_size,
)
from castore.model.digest import Digest, derived
from castore.model.encoding import encode
from castore.packs.index import LmdbIndex
from castore.pipeline.load import load as load_state
from castore.pipeline.parts import Parts
from castore.pipeline.save import Saved, SaveOptions
from castore.pipeline.save import save as save_state
from castore.reports import (
    AppliedChange,
    Checkpoint,
    FsckReport,
    GcReport,
    LoadReport,
    SaveReport,
    StoreInfo,
    TreeEntry,
)
from castore.storage.filesystem import is_local_file_system, make_store_folder, real_path
from castore.storage.local import LocalStorage
from castore.system import cache_dir, identity, random_bytes
from castore.upkeep.config import read_config
from castore.upkeep.fsck import fsck as check_store
from castore.upkeep.gc import gc as collect
from castore.upkeep.reserve import RESERVE_NAME, make_reserve
from castore.upkeep.sessions import is_live, session_ids
from castore.upkeep.survey import KNOWN

__all__ = ["Store", "fsck_path", "load", "open_store", "save"]

FOLDERS = ("packs", "log", "sessions", "quarantine")
_VERIFY = ("background", "now", "off")
_META_DEPTH = 64
#: Bytes of ``meta``: it is read to look at a checkpoint.
MAX_META = 1 << 20
#: Characters of a message: it stands in the log.
MAX_MESSAGE = 10_000

Progress = Callable[[int], None]


class Store:
    """A content-addressed checkpoint store in one folder.

    Made by :func:`castore.open`.  A context manager; :meth:`close` gives up descriptors.

    Attributes:
        path: the folder.
        readonly: True where nothing is ever written.
        last_report: what the last load did, a :class:`castore.LoadReport`, or None.
    """

    def __init__(self, storage: LocalStorage, config: StoreConfig, *, readonly: bool) -> None:
        self._storage = storage
        self._config = config
        self.readonly = readonly
        self.last_report: LoadReport | None = None
        log = Log(storage, config.store_id, readonly=readonly)
        folder = _index_folder(storage, config)
        inside = folder.parent == Path(storage.where)
        index = LmdbIndex(folder, config.store_id, storage, make_parents=not inside)
        self._index = index
        self._parts = Parts(storage, config, log, index)
        self._lock = threading.RLock()
        self._closed = False
        #: What this store has seen of each branch: where a save expects it to stand.
        self._seen: dict[str, Digest] = {}
        self._seen_at = 0  # the entry at which it looked last
        fold = self._first_fold()
        for name in fold.branches:
            self._see(name, fold)
        _STORES.add(self)

    # -- opening and closing ----------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The store's folder."""
        return self._storage.where

    @property
    def store_id(self) -> str:
        """The store's id, hex."""
        return self._config.store_id.hex()

    def _first_fold(self) -> Fold:
        log = self._parts.log
        fold = log.fold()
        if fold.seq:
            return fold
        if self._storage.list("packs"):
            raise StoreUnreadable(
                f"{self.path} has packs but no log: entry 1 is missing; run `castore fsck`",
                path=self.path,
            )
        if self.readonly:
            return fold
        # A store whose maker was killed between castore.json and the first entry.
        log.append(lambda f: () if f.seq else (Features((), ()),), "init")
        return log.fold()

    def close(self) -> None:
        """Give up descriptors and threads.  The store can be opened again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._index.close()
                self._storage.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.path!r})"

    def _open_or_raise(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.path} is closed; open it again with castore.open")

    def _writable(self) -> None:
        self._open_or_raise()
        if self.readonly:
            raise UsageError(f"the store {self.path} was opened readonly")

    # -- saving -----------------------------------------------------------------------------------

    def save(
        self,
        state: Any,
        *,
        branch: str = "main",
        step: int | None = None,
        meta: dict[str, Any] | None = None,
        message: str | None = None,
        window: Any = None,
        verify: str = "background",
        compression: str | None = None,
        audit: Any = None,
        strict_steps: bool = False,
        progress: Progress | None = None,
    ) -> Checkpoint:
        """Save a state as the next checkpoint of a branch.

        When this returns, the checkpoint exists wholly and durably; when it raises, the branch's
        head is what it was (an error whose ``fate_unknown`` is True aside).

        Args:
            state: any value of the kinds listed in the documentation, nested as you like.
            branch: the branch to append to; made if absent.
            step: a label; may repeat or go back (you are told).
            meta: plain data kept beside the state: numbers, texts, lists, dicts with text keys.
            message: a line for people.
            window: not in this version.
            verify: ``"now"`` reads everything back from the device before the checkpoint exists;
                ``"background"`` (for now) and ``"off"`` do not.
            compression: ``"none"`` in this version.
            audit: not in this version.
            strict_steps: refuse a step that repeats or goes back.
            progress: called with numbers of content bytes as they are dealt with.

        Returns:
            The checkpoint, with a report.

        Raises:
            BadState: something cannot be kept exactly; nothing was written.
            RefConflict: another writer moved the branch since this store last saw it.
            SaveFailed: the medium failed.
            CorruptionError: ``verify="now"`` read back other bytes than were written.
        """
        self._writable()
        check_name(branch)
        _refuse_unbuilt(window=window, audit=audit)
        if compression not in (None, "none"):
            raise UnsupportedFeature(f"compression={compression!r} is not in this version")
        if verify not in _VERIFY:
            raise UsageError(f"verify is one of {', '.join(_VERIFY)}, not {verify!r}")
        if message is not None:
            _check_message(message)
        meta = None if meta is None else plain_meta(meta)
        number = _step(step)
        from castore.state import describe

        description = describe(state, self._config.chunk_size)
        with self._lock:
            options = SaveOptions(
                branch=branch,
                expected=self._seen.get(branch),
                step=number,
                meta=meta,
                message=message,
                verify=verify == "now",
                strict_steps=strict_steps,
                progress=progress,
            )
            saved = save_state(self._parts, description, options)
            self._seen[branch] = saved.checkpoint
            self._seen_at = max(self._seen_at, saved.seq)
            # The checkpoint exists: what goes wrong from here on is the next call's to say.
            with contextlib.suppress(OSError, CastoreError):
                self._parts.log.tidy()
            make_reserve(self._storage)
        for text in saved.warnings:
            _warn(text)
        return _saved_checkpoint(saved)

    # -- loading ----------------------------------------------------------------------------------

    def load(
        self,
        rev: str = "main",
        *,
        only: Any = None,
        device: Any = None,
        verify: bool = True,
        mmap: bool = False,
        fallback: bool = False,
        progress: Progress | None = None,
    ) -> Any:
        """The state of a checkpoint, or with ``REV:PATH`` the value at a key path.

        Every byte is hashed and matched before anything is returned (unless ``verify=False``).
        Tensors come back on the CPU as private, writable memory; ties are restored.

        Args:
            rev: a revision, see :meth:`resolve`.
            only: not in this version.
            device: not in this version.
            mmap: not in this version.
            fallback: not in this version.
            verify: False skips hashing the chunks: for measuring, not for training.
            progress: called with numbers of bytes as they are read.

        Raises:
            NoCheckpoint: there is none.
            BadRevision, AmbiguousRevision, CheckpointGone: the revision names none.
            CorruptionError: something is damaged; nothing is returned.
        """
        self._open_or_raise()
        _refuse_unbuilt(only=only, device=device, mmap=mmap or None, fallback=fallback or None)
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        state, report = load_state(
            self._parts, fold, live, revision.path, verify=verify, progress=progress
        )
        self.last_report = report
        for text in report.healed:
            _warn(
                f"damage was met, and another copy served: {text}; run `castore -s {self.path} "
                "fsck`"
            )
        return state

    # -- looking ----------------------------------------------------------------------------------

    def _resolve(self, revision: Revision, fold: Fold) -> Live:
        self._see(revision.base, fold)
        if not fold.live and not fold.gone and revision.base == "main":
            raise NoCheckpoint(f"{self.path} holds no checkpoint yet")
        return resolve(revision, fold, self._parts.log)

    def _see(self, name: str, fold: Fold) -> None:
        """Note where a branch stands, unless a later look (a save's, perhaps) knows better."""
        with self._lock:
            branch = fold.branches.get(name)
            if branch is None or fold.seq < self._seen_at:
                return
            self._seen_at = fold.seq
            if branch.head is not None:
                self._seen[name] = branch.head
            else:
                self._seen.pop(name, None)

    def _after_fork(self) -> None:
        """Locks that another thread of the parent held would be held in the child for ever."""
        self._lock = threading.RLock()
        self._parts.log.after_fork()
        self._index.after_fork()
        self._storage.after_fork()

    def resolve(self, rev: str = "main") -> Checkpoint:
        """The checkpoint that a revision names, its ``meta`` included.

        A save on the branch may be repeated afterwards: this store has now seen where it stands.

        Args:
            rev: ``main``, ``main~3``, ``main@{7}``, ``main@step=1000``, a tag, or a digest prefix
                of six digits or more.
        """
        from castore.pipeline.inspect import read_meta

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        return _checkpoint(fold, live, read_meta(self._parts, fold, live).meta)

    def log(self, rev: str = "main", *, limit: int | None = None) -> list[Checkpoint]:
        """A branch's checkpoints, newest first (from ``REV`` back, where more is said).

        Opens no pack: ``meta`` is None; :meth:`resolve` reads it.
        """
        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        start = self._resolve(revision, fold)
        listed = list(live_in_order(fold, revision.base))
        places = [i for i, live in enumerate(listed) if live.digest == start.digest]
        lives = listed[places[0] :] if places else list(_ancestors(fold, start))
        return [_checkpoint(fold, live, None) for live in lives[:limit]]

    def tree(self, rev: str = "main") -> list[TreeEntry]:
        """Every value of a state (``REV:PATH``: below a key path), without reading tensors."""
        from castore.pipeline.inspect import tree

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        return tree(self._parts, fold, self._resolve(revision, fold), revision.path)

    def branches(self) -> dict[str, str]:
        """Branch -> hex digest of its head."""
        self._open_or_raise()
        return {name: d.hex() for name, d in self._parts.log.fold().heads().items()}

    def tags(self) -> dict[str, str]:
        """Tag -> hex digest."""
        self._open_or_raise()
        return {name: d.hex() for name, d in sorted(self._parts.log.fold().tags.items())}

    def info(self) -> StoreInfo:
        """The store at a glance."""
        self._open_or_raise()
        fold = self._parts.log.fold()
        return StoreInfo(
            path=self.path,
            store_id=self.store_id,
            format=FORMAT_VERSION,
            chunk_size=self._config.chunk_size,
            file_system=self._storage.file_system_name(),
            direct_io=self._storage.takes_direct_io(),
            entries=fold.seq,
            branches={n: d.hex() for n, d in fold.heads().items()},
            tags={n: d.hex() for n, d in sorted(fold.tags.items())},
            checkpoints=len(fold.live),
            verified=sum(fold.is_verified(d) for d in fold.live),
            packs=len(fold.packs),
            pack_bytes=sum(p.size for p in fold.packs.values()),
            logical_bytes=sum(v.add.logical_bytes for v in fold.live.values()),
            reserve_bytes=self._storage.size(RESERVE_NAME) or 0,
            index=self._index.where,
            sessions=tuple(
                save
                for save in session_ids(self._storage)
                if is_live(self._storage, save, may_write=False)
            ),
            known_damage=sum(1 for named in fold.damaged.values() if named),
            last_commit=fold.last.get("commit"),
            last_verification=fold.last.get("verify"),
            last_gc=fold.last.get("gc"),
            features={"required": fold.required, "optional": fold.optional},
        )

    # -- refs -------------------------------------------------------------------------------------

    def tag(
        self, name: str, rev: str | None = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a tag (``force``: or move it), or remove it.

        A tagged checkpoint stays live whatever the branch's window says.
        """
        check_name(name, "tag")

        def decide(fold: Fold, target: Digest | None) -> tuple[Digest | None, Change | None]:
            old = fold.tags.get(name)
            if delete and old is None:
                raise BadRevision(f"there is no tag {name!r}")
            if not delete and name in fold.heads():
                raise UsageError(f"{name!r} is a branch; a tag needs another name")
            if old == target:
                return old, None
            if old is not None and not delete and not force:
                raise UsageError(f"tag {name!r} is there, at {old.short}; force=True (-f) moves it")
            return old, SetTag(name, target)

        return self._set_ref("tag", name, None if delete else rev, decide)

    def branch(
        self, name: str, rev: str | None = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a branch at a revision (``force``: or move it), or remove it.

        A branch made from a revision begins with that one checkpoint.  Moving or removing a branch
        lets no checkpoint go.
        """
        check_name(name)

        def decide(fold: Fold, target: Digest | None) -> tuple[Digest | None, Change | None]:
            old = fold.heads().get(name)
            if delete and old is None:
                raise BadRevision(f"there is no branch {name!r}")
            if not delete and name in fold.tags:
                raise UsageError(f"{name!r} is a tag; a branch needs another name")
            if old == target:
                return old, None
            if old is not None and not delete and not force:
                raise UsageError(
                    f"branch {name!r} is there, at {old.short}; force=True (-f) moves it"
                )
            return old, SetBranch(name, target)

        change = self._set_ref("branch", name, None if delete else rev, decide)
        if change.new is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = Digest(bytes.fromhex(change.new))
        return change

    def _set_ref(
        self,
        kind: str,
        name: str,
        rev: str | None,
        decide: Callable[[Fold, Digest | None], tuple[Digest | None, Change | None]],
    ) -> AppliedChange:
        self._writable()
        target: Digest | None = None
        if rev is not None:
            target = self._resolve(parse_revision(rev), self._parts.log.fold()).digest
        old: Digest | None = None

        def changes(fold: Fold) -> Iterable[Change]:
            nonlocal old
            if target is not None and target not in fold.live:
                raise CheckpointGone(
                    f"checkpoint {target.short} was let go meanwhile: "
                    f"{self._parts.log.describe(fold.gone.get(target, fold.seq))}",
                    checkpoint=target.hex(),
                )
            old, change = decide(fold, target)
            return () if change is None else (change,)

        verb = "delete" if target is None else "set"
        try:
            entry = self._parts.log.append(lambda f: tuple(changes(f)), f"{verb} {kind} {name}")
        except AppendFateUnknown as e:
            raise e.told(f"{verb} {kind} {name}", f"castore {kind}") from e
        except OSError as e:
            raise SaveFailed.of(e, f"{kind} {name} was not changed", self.path) from e
        undo = None
        if old is not None and entry is not None:
            undo = f"castore {kind} {'-f ' if target else ''}{name} {old.hex()[:12]}"
        return AppliedChange(
            kind,
            name,
            old.hex() if old else None,
            target.hex() if target else None,
            entry.seq if entry else self._parts.log.fold().seq,
            undo,
        )

    # -- upkeep -----------------------------------------------------------------------------------

    def fsck(self, *, quick: bool = False, progress: Progress | None = None) -> FsckReport:
        """Check everything; never writes.  ``quick`` reads no chunk."""
        self._open_or_raise()
        # What lies there now is read, not what a descriptor still holds of it.
        with contextlib.closing(LocalStorage(self.path)) as storage:
            return check_store(storage, quick=quick, progress=progress)

    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Remove what killed and failed saves left.  Needs no free space."""
        if dry_run:
            self._open_or_raise()
        else:
            self._writable()
        return collect(self._storage, self._parts.log, dry_run=dry_run)


# -- making and finding stores --------------------------------------------------------------------


def open_store(
    path: str | Path,
    create: bool = False,
    readonly: bool = False,
    *,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> Store:
    """Open a store.

    Args:
        path: its folder.
        create: make it if absent (one folder; its parent must exist).
        readonly: never write, not even a session or the index: for read-only mounts.
        chunk_size: of a store that is made: bytes, a multiple of 4096.

    Raises:
        StoreNotFound: there is none, and ``create`` is False.
        StoreUnreadable: its ``castore.json`` or log cannot be read.
        UnsupportedFeature: written by a newer castore, or the file system lacks what it needs.
    """
    where = Path(path)
    if create and readonly:
        raise UsageError("create=True and readonly=True exclude one another")
    if not valid_chunk_size(chunk_size):
        raise UsageError(
            f"chunk_size is a multiple of 4096 between 4096 and 64 MiB, not {chunk_size}"
        )
    if create:
        make_store_folder(where, CONFIG_NAME, KNOWN)
    try:
        storage = LocalStorage(where)
    except StoreNotFound as e:
        raise StoreNotFound(
            f"there is no store at {where.absolute()}; `castore init {where}` makes one",
            path=str(where),
        ) from e
    try:
        config = _config(storage, create, chunk_size)
        return Store(storage, config, readonly=readonly)
    except AppendFateUnknown as e:
        storage.close()
        raise e.told("making the store", f"castore -s {where} log") from e
    except OSError as e:
        storage.close()
        what = f"the store {where.absolute()} cannot be opened"
        raise SaveFailed.of(e, what, str(where.absolute())) from e
    except BaseException:
        storage.close()
        raise


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
                f"there is no store at {storage.where} ({CONFIG_NAME} is missing); "
                f"`castore init {storage.where}` makes one",
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


def _index_folder(storage: LocalStorage, config: StoreConfig) -> Path:
    """In the store where its file system is this machine's own, else in the user's cache."""
    if is_local_file_system(storage.where) and storage.writable():
        return Path(storage.where) / "index.lmdb"
    path = derived("castore 1 index folder", storage.where.encode(errors="surrogateescape"))
    name = f"{config.store_id.hex()}-{identity().host}-{path.short}"
    return cache_dir() / name / "index.lmdb"


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_SHARED: dict[str, Store] = {}
_SHARED_LOCK = threading.Lock()


def _after_fork() -> None:
    global _SHARED_LOCK  # noqa: PLW0603 - a lock held by a thread that is not in this child
    _SHARED_LOCK = threading.Lock()
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _shared(path: str | Path, create: bool) -> Store:
    """One Store for each real path and process; a folder made anew is noticed by its id."""
    key = real_path(path)
    with _SHARED_LOCK:
        store = _SHARED.get(key)
        if store is not None:
            with contextlib.suppress(OSError, StoreNotFound, StoreUnreadable):
                with contextlib.closing(LocalStorage(key)) as storage:
                    config = read_config(storage)
                    # A copy in the place of the folder we hold has the same id.
                    same = config == store._config and store._storage.is_folder_of(storage)
                if same and not store._closed:
                    return store
            store.close()
            del _SHARED[key]
        store = _SHARED[key] = open_store(path, create=create)
        return store


def save(state: Any, path: str | Path, **options: Any) -> Checkpoint:
    """Save a state into the store at ``path``, which is made if absent.

    Options as for :meth:`Store.save`.  Calls for one path share one :class:`Store`.
    """
    return _shared(path, True).save(state, **options)


def load(path: str | Path, rev: str = "main", **options: Any) -> Any:
    """Load a state from the store at ``path``.  Options as for :meth:`Store.load`."""
    return _shared(path, False).load(rev, **options)


def fsck_path(
    path: str | Path, *, quick: bool = False, progress: Progress | None = None
) -> FsckReport:
    """Check the store at ``path`` even where it cannot be opened."""
    with contextlib.closing(LocalStorage(path)) as storage:
        if storage.size(CONFIG_NAME) is None and not storage.list("packs"):
            raise StoreNotFound(f"there is no store at {storage.where}", path=storage.where)
        return check_store(storage, quick=quick, progress=progress)


# -- helpers --------------------------------------------------------------------------------------


def _warn(text: str) -> None:
    """Warn at the caller's own line, however deep in castore we are."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "castore":
        level, frame = level + 1, frame.f_back
    python_warnings.warn(text, CastoreWarning, stacklevel=level)


def _refuse_unbuilt(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise UnsupportedFeature(f"{name}= is not in this version")


def _step(step: Any) -> int | None:
    if step is None:
        return None
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"step is a whole number, not {step!r}") from None
    if not -(1 << 63) <= number < 1 << 63 or isinstance(step, bool):
        raise UsageError(f"step is a 64-bit number, not {step!r}")
    return number


def _check_message(message: Any) -> None:
    if not isinstance(message, str):
        raise UsageError(f"message is text, not {type(message).__name__}")
    if not _is_unicode(message) or len(message) > MAX_MESSAGE:
        raise UsageError(f"message is at most {MAX_MESSAGE} characters of valid Unicode")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_meta(meta: Any) -> dict[str, Any]:
    """A copy of a user's ``meta`` as plain data.

    Raises:
        BadState: it holds something else; names the place.
    """
    if not isinstance(meta, dict):
        raise BadState(f"meta is a dict, not {type(meta).__name__}", path="", paths=[""])
    plain: dict[str, Any] = _plain_meta(meta, "meta", 0)
    size = len(encode(plain))
    if size > MAX_META:
        raise BadState(
            f"meta comes to {size:,} bytes, and has at most {MAX_META:,}: put it into the state",
            path="meta",
            paths=["meta"],
        )
    return plain


def _plain_meta(value: Any, path: str, depth: int) -> Any:
    if depth > _META_DEPTH:
        raise BadState(f"{path} is nested deeper than {_META_DEPTH}", path=path, paths=[path])
    if isinstance(value, str) and not _is_unicode(value):
        raise BadState(f"{path} is no valid Unicode: {value!r}", path=path, paths=[path])
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return int(value)
        raise BadState(f"{path} is an int beyond 64 bits", path=path, paths=[path])
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not _is_unicode(key):
                raise BadState(
                    f"{path} has a key that is no text: {key!r}", path=path, paths=[path]
                )
        return {k: _plain_meta(v, f"{path}/{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_meta(v, f"{path}/{i}", depth + 1) for i, v in enumerate(value)]
    raise BadState(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}; meta holds numbers, "
        "texts, lists and dicts (of a tensor or array scalar, give .item()); put the rest into the "
        "state",
        path=path,
        paths=[path],
    )


def _checkpoint(fold: Fold, live: Live, meta: dict[str, Any] | None) -> Checkpoint:
    add = live.add
    return Checkpoint(
        digest=live.digest.hex(),
        root=add.root.hex(),
        step=add.step,
        branch=add.branch,
        seq=live.seq,
        parent=add.parent.hex() if add.parent else None,
        time=add.time,
        meta=meta,
        message=add.message,
        logical_bytes=add.logical_bytes,
        new_bytes=add.new_bytes,
        tensors=add.tensors,
        verified=fold.is_verified(live.digest),
    )


def _saved_checkpoint(saved: Saved) -> Checkpoint:
    add = saved.add
    report = SaveReport(
        tensors=add.tensors,
        logical_bytes=add.logical_bytes,
        new_bytes=saved.new_bytes,
        stored_bytes=saved.stored_bytes,
        seconds=saved.seconds,
        warnings=saved.warnings,
        verified=saved.verified,
    )
    return Checkpoint(
        digest=saved.checkpoint.hex(),
        root=add.root.hex(),
        step=add.step,
        branch=add.branch,
        seq=saved.seq,
        parent=add.parent.hex() if add.parent else None,
        time=add.time,
        meta=saved.meta,
        report=report,
        message=add.message,
        logical_bytes=add.logical_bytes,
        new_bytes=saved.new_bytes,
        tensors=add.tensors,
        verified=saved.verified,
    )


def _ancestors(fold: Fold, live: Live) -> Iterable[Live]:
    while True:
        yield live
        parent = live.add.parent
        if parent is None or parent not in fold.live:
            return
        live = fold.live[parent]
