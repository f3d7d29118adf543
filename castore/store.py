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
from collections.abc import Callable
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
from castore.log.history import checkpoint_of, history
from castore.log.names import check_name
from castore.log.refs import set_branch, set_tag
from castore.log.revisions import Revision, parse_revision, resolve
from castore.model.config import StoreConfig
from castore.model.digest import Digest
from castore.packs.index import LmdbIndex
from castore.pipeline.arguments import checked_message, plain_meta, step_number
from castore.pipeline.load import LoadOptions
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
        self._closed = False
        self._new_locks()
        #: What this store has seen of each branch: where a save expects it to stand, and the entry
        #: at which it looked.
        self._seen: dict[str, tuple[Digest | None, int]] = {}
        fold = parts.log.fold()
        for name, branch in fold.branches.items():
            self._see(name, branch.head, fold.seq)
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

    def _new_locks(self) -> None:
        self._saving = threading.RLock()  # a Store does one save at a time
        self._looking = threading.Lock()

    def close(self) -> None:
        """Wait for a save in flight, then give up descriptors and threads.

        The store can be opened again.  What another thread still reads fails.
        """
        with self._saving:
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
        head is what it was (aside from an error whose ``fate_unknown`` is True, and from a
        ``CastoreWarning`` that a filter of yours turned into an error).

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
        with self._saving:
            options = SaveOptions(
                branch=branch,
                expected=self._seen.get(branch, (None, 0))[0],
                step=number,
                meta=meta,
                message=message,
                verify=verify == "now",
                strict_steps=strict_steps,
                progress=progress,
            )
            saved = save_state(self._parts, description, options)
            self._see(branch, Digest.fromhex(saved.digest), saved.seq)
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
        Tensors come back as private, writable memory (but see ``mmap``); ties are restored.  Key
        paths in ``only`` and ``device`` are those of the value that is loaded: below ``PATH`` where
        the revision names one.

        Args:
            rev: a revision, see :meth:`resolve`.
            only: a pattern, or a list of them: the value pruned to what they match, containers and
                their order kept; in lists and tuples ``castore.OMITTED`` stands for what is left
                out.  ``*`` is any text within one key, ``**`` any text across keys; what matches a
                container takes all of it.  Nothing else is read.
            device: where tensors go: a name or ``torch.device``, a function of the key path, or a
                dict of patterns of which the first that matches counts.  0-dim tensors and random
                states stay on the CPU unless the function or a pattern without ``*`` names them.
            mmap: map tensors from the store where they lie as they are, after hashing them there,
                and read the others.  Treat all as read-only: arrays are marked so; a write to a
                mapped tensor stays in this process.
            fallback: not in this version.
            verify: False skips hashing the chunks: for measuring, not for training.
            progress: called with numbers of bytes as they are read.

        Raises:
            NoCheckpoint: there is none.
            BadRevision, AmbiguousRevision, CheckpointGone: the revision names none.
            UsageError: a pattern that matches nothing; a device that is none.
            UnsupportedFeature: a device that is not here.
            CorruptionError: something is damaged; nothing is returned.
        """
        self._open_or_raise()
        _refuse_unbuilt(fallback=fallback or None)
        options = LoadOptions(only, device, verify, mmap, progress)
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve_and_see(revision, fold)
        state, report = load_state(self._parts, fold, live, revision.path, options)
        self._loaded(report)
        return state

    def load_into(
        self,
        target: Any,
        rev: str = "main",
        *,
        strict: bool = True,
        verify_first: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Fill a state that is there already, without a second copy in memory.

        Tensors and arrays are filled where they are (parameters, views, any device); plain values
        and lists and tuples of them are replaced in the dict or list that holds them.  Keys, dtypes
        and shapes are compared first.  Every chunk is hashed in a buffer before it is copied in.

        Args:
            target: a state like the one saved, for example ``model.state_dict()``.
            rev: a revision, or ``REV:PATH`` for a part of its state.
            strict: False skips keys that only one of the two has; :attr:`last_report` tells which.
            verify_first: read everything twice, and touch nothing if anything is damaged.
            progress: called with numbers of bytes as they are read.

        Raises:
            UsageError: the target does not fit; ``mismatches`` has every place, and nothing was
                touched.
            CorruptionError: something is damaged; ``target_modified`` is True where the target was
                changed before that was met.
        """
        from castore.pipeline.load_into import load_into

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        report = load_into(
            self._parts,
            fold,
            self._resolve_and_see(revision, fold),
            revision.path,
            target,
            strict=strict,
            verify_first=verify_first,
            progress=progress,
        )
        self._loaded(report)

    def read_tensor(self, rev: str, path: str = "", rows: slice | int | None = None) -> Any:
        """One tensor or array of a state, or some of its rows; only their chunks are read.

        Args:
            rev: a revision, see :meth:`resolve`; with ``REV:PATH``, ``path`` begins there.
            path: the tensor's key path.
            rows: along dimension 0: a slice as Python knows it, or one row's number.

        Returns:
            A plain tensor of its own memory on the CPU; an array where the state held one.

        Raises:
            BadRevision: there is nothing at that key path.
            UsageError: no tensor or array is there, or it has no such row.
            CorruptionError: a chunk that is needed is damaged.
        """
        from castore.pipeline.rows import read_rows

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        below = "/".join(part for part in (revision.path or "", path) if part)
        value, report = read_rows(self._parts, fold, live, below, rows)
        self._loaded(report)
        return value

    def _loaded(self, report: LoadReport) -> None:
        self.last_report = report
        for text in report.healed:
            _warn(
                f"damage was met, and another copy served: {text}; run `castore -s {self.path} "
                "fsck`"
            )

    # -- looking ----------------------------------------------------------------------------------

    def _resolve(self, revision: Revision, fold: Fold) -> Live:
        if not fold.live and not fold.gone and revision.base == "main":
            raise NoCheckpoint(f"{self.path} holds no checkpoint yet")
        return resolve(revision, fold, self._parts.log)

    def _resolve_and_see(self, revision: Revision, fold: Fold) -> Live:
        """The same, for a caller who acts on what is there: a save may follow."""
        if (branch := fold.branches.get(revision.base)) is not None:
            self._see(revision.base, branch.head, fold.seq)
        return self._resolve(revision, fold)

    def _see(self, name: str, head: Digest | None, seq: int) -> None:
        """Note where a branch stood at an entry, unless a later look knows better."""
        with self._looking:
            if seq >= self._seen.get(name, (None, 0))[1]:
                self._seen[name] = (head, seq)

    def _after_fork(self) -> None:
        """Locks that another thread of the parent held would be held in the child for ever."""
        self._new_locks()
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
        live = self._resolve_and_see(revision, fold)
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
        return store_info(
            self._storage, self._parts.config, self._parts.log.fold(), self._index.where
        )

    # -- refs -------------------------------------------------------------------------------------

    def tag(
        self, name: str, rev: str = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a tag (``force``: or move it), or remove it.

        A tagged checkpoint stays live whatever the branch's window says.
        """
        return set_tag(self._parts.log, self.path, name, self._target(rev, delete), force)

    def branch(
        self, name: str, rev: str = "main", *, force: bool = False, delete: bool = False
    ) -> AppliedChange:
        """Make a branch at a revision (``force``: or move it), or remove it.

        A branch made from a revision begins with that one checkpoint.  Moving or removing a branch
        lets no checkpoint go.
        """
        change = set_branch(self._parts.log, self.path, name, self._target(rev, delete), force)
        self._see(name, None if change.new is None else Digest.fromhex(change.new), change.seq)
        return change

    def _target(self, rev: str, delete: bool) -> Digest | None:
        """The checkpoint that a ref is to name; None where the ref is to be removed."""
        self._writable()
        if delete:
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
