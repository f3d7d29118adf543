"""Store: the front door.  It checks what the caller says, and delegates.

One :class:`Store` stands for one folder.  It may be used from several threads (one save at a time)
and survives ``fork``; another process opens its own.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import warnings as python_warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from castore.errors import (
    CastoreError,
    CastoreWarning,
    NoCheckpoint,
    UnsupportedFeature,
    UsageError,
)
from castore.log.fold import Fold, Live
from castore.log.history import checkpoint_of, history, refs_of
from castore.log.names import check_name
from castore.log.refs import set_branch, set_tag
from castore.log.revisions import Revision, parse_revision, resolve
from castore.model.config import StoreConfig
from castore.model.digest import Digest
from castore.packs.index import LmdbIndex
from castore.pipeline.arguments import checked_message, plain_meta, step_number
from castore.pipeline.load import load as load_state
from castore.pipeline.parts import Parts
from castore.pipeline.save import SaveOptions
from castore.pipeline.save import save as save_state
from castore.reports import (
    AppliedChange,
    Checkpoint,
    FsckReport,
    GcReport,
    LoadReport,
    RefInfo,
    ReflogEntry,
    StoredObject,
    StoreInfo,
    TreeEntry,
)
from castore.storage.local import LocalStorage
from castore.upkeep.fsck import fsck as check_store
from castore.upkeep.gc import gc as collect
from castore.upkeep.info import store_info
from castore.upkeep.reserve import make_reserve

__all__ = ["Progress", "Store"]

_VERIFY = ("background", "now", "off")

Progress = Callable[[int], None]


class Store:
    """A content-addressed checkpoint store in one folder.

    Made by :func:`castore.open`.  A context manager; :meth:`close` gives up descriptors.

    Attributes:
        path: the folder.
        readonly: True where nothing is ever written.
        last_report: what the last load did, a :class:`castore.LoadReport`, or None.
    """

    def __init__(
        self, storage: LocalStorage, index: LmdbIndex, parts: Parts, *, readonly: bool
    ) -> None:
        self._storage = storage
        self._index = index
        self._parts = parts
        self.readonly = readonly
        self.last_report: LoadReport | None = None
        self._lock = threading.RLock()
        self._closed = False
        #: What this store has seen of each branch: where a save expects it to stand.
        self._seen: dict[str, Digest] = {}
        self._seen_at = 0  # the entry at which it looked last
        fold = parts.log.fold()
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
        return self._parts.config.store_id.hex()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def stands_on(self, storage: LocalStorage, config: StoreConfig) -> bool:
        """Whether that is this store's very folder, not a copy that took its place."""
        return config == self._parts.config and self._storage.is_folder_of(storage)

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
        message = checked_message(message)
        meta = None if meta is None else plain_meta(meta)
        number = step_number(step)
        from castore.state import describe

        description = describe(state, self._parts.config.chunk_size)
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
            self._seen[branch] = Digest(bytes.fromhex(saved.digest))
            self._seen_at = max(self._seen_at, saved.seq)
            # The checkpoint exists: what goes wrong from here on is the next call's to say.
            with contextlib.suppress(OSError, CastoreError):
                self._parts.log.tidy()
            make_reserve(self._storage)
        assert saved.report is not None
        for text in saved.report.warnings:
            _warn(text)
        return saved

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
        return checkpoint_of(fold, live, read_meta(self._parts, fold, live).meta)

    def log(self, rev: str = "main", *, limit: int | None = None) -> list[Checkpoint]:
        """A branch's checkpoints, newest first (from ``REV`` back, where more is said).

        Opens no pack: ``meta`` is None; :meth:`resolve` reads it.
        """
        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        lives = islice(history(fold, revision, self._resolve(revision, fold)), limit)
        return [checkpoint_of(fold, live) for live in lives]

    def tree(self, rev: str = "main", *, depth: int | None = None) -> list[TreeEntry]:
        """Every value of a state (``REV:PATH``: below a key path), without reading tensors.

        ``depth`` is how many containers to go into: 0 is what lies at the path alone, None is all.
        """
        from castore.pipeline.inspect import tree

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        return tree(self._parts, fold, live, revision.path, depth)

    def find_object(self, name: str) -> StoredObject:
        """What a revision, ``REV:PATH`` or digest (six digits or more) names, without loading it.

        Raises:
            BadRevision: nothing that a live checkpoint reaches is called so.
            AmbiguousRevision: a digest prefix fits several.
            CorruptionError: what it names is damaged.
        """
        from castore.inspection.objects import find_object

        self._open_or_raise()
        return find_object(self._parts, self._parts.log.fold(), name)

    def read_object(self, name: str) -> Iterator[bytes]:
        """The bytes that a name stands for, piece by piece, each hashed before it is given.

        Of a tensor, array, text or chunk its contents; of all else its canonical encoding.  Errors
        are those of :meth:`find_object`.
        """
        from castore.inspection.objects import read_object

        self._open_or_raise()
        return read_object(self._parts, self._parts.log.fold(), name)

    def reflog(self, branch: str = "main", *, limit: int | None = None) -> list[ReflogEntry]:
        """Where a branch stood, newest first: entry N is ``BRANCH@{N}``.  Opens no pack."""
        from castore.log.reflog import reflog

        self._open_or_raise()
        return reflog(self._parts.log.fold(), self._parts.log, branch, limit)

    def refs(self) -> list[RefInfo]:
        """All branches, then all tags, with the checkpoints they stand on.  Opens no pack."""
        self._open_or_raise()
        return refs_of(self._parts.log.fold())

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
        return store_info(
            self._storage, self._parts.config, self._parts.log.fold(), self._index.where
        )

    # -- refs -------------------------------------------------------------------------------------

    def tag(
        self, name: str, rev: str | None = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a tag (``force``: or move it), or remove it.

        A tagged checkpoint stays live whatever the branch's window says.
        """
        return set_tag(self._parts.log, self.path, name, self._target(rev, delete), force)

    def branch(
        self, name: str, rev: str | None = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a branch at a revision (``force``: or move it), or remove it.

        A branch made from a revision begins with that one checkpoint.  Moving or removing a branch
        lets no checkpoint go.
        """
        change = set_branch(self._parts.log, self.path, name, self._target(rev, delete), force)
        if change.new is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = Digest(bytes.fromhex(change.new))
        return change

    def _target(self, rev: str | None, delete: bool) -> Digest | None:
        """The checkpoint that a ref is to name; None where the ref is to be removed."""
        self._writable()
        if delete or rev is None:
            return None
        return self._resolve(parse_revision(rev), self._parts.log.fold()).digest

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


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
