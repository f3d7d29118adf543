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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Any, overload

from castore.errors import (
    BadRevision,
    CastoreError,
    CastoreWarning,
    NoCheckpoint,
    UnsupportedFeature,
    UsageError,
)
from castore.log.fold import Fold, Live
from castore.log.history import checkpoint_of, history, refs_of
from castore.log.names import check_name
from castore.log.refs import set_branch, set_pin, set_tag
from castore.log.revisions import Revision, parse_revision, resolve
from castore.log.window import Policy
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
    CheckpointStats,
    DiffReport,
    DropReport,
    FoundDigest,
    FsckReport,
    GcReport,
    LoadReport,
    PinInfo,
    RefInfo,
    ReflogEntry,
    StoredObject,
    StoreInfo,
    StoreStats,
    TreeEntry,
    ValueReport,
    WindowReport,
)
from castore.storage.local import LocalStorage
from castore.system import random_bytes
from castore.upkeep.fsck import fsck as check_store
from castore.upkeep.gc import gc as collect
from castore.upkeep.info import store_info
from castore.upkeep.pins import list_pins, own_pin
from castore.upkeep.reserve import make_reserve
from castore.upkeep.unlink import Unlinker
from castore.upkeep.window import Numbers, Retention, set_window, show_window
from castore.upkeep.window import drop as drop_checkpoint

__all__ = ["HeldPin", "Progress", "Store"]

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
        self._unlinker = Unlinker(storage)
        self._numbers: Numbers = {}
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

        Waits, too, until the packs that a window or a drop freed are unlinked.  The store can be
        opened again.  What another thread still reads fails.
        """
        with self._saving:
            if not self._closed:
                self._closed = True
                self._unlinker.wait()
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
            window: which older checkpoints of the branch stay, see :meth:`window`: a dict of its
                options, or a number for ``keep_last``; for this save, in the place of the policy
                that is stored for the branch.  What goes is let go by the entry that adds this
                checkpoint; should that fail, the save is done all the same and its report tells.
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
        policy = None if window is None else _policy_of(window)
        _refuse_unbuilt(audit=audit)
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
            retention = self._retention(branch, policy)
            options = SaveOptions(
                branch=branch,
                expected=self._seen.get(branch, (None, 0))[0],
                step=number,
                meta=meta,
                message=message,
                verify=verify == "now",
                strict_steps=strict_steps,
                progress=progress,
                retain=retention,
            )
            saved = save_state(self._parts, description, options)
            self._unlinker.add(retention.condemned)  # takes its time, and nobody waits for it
            self._see(branch, Digest.fromhex(saved.digest), saved.seq)
            # The checkpoint exists: what goes wrong from here on is the next call's to say.
            with contextlib.suppress(OSError, CastoreError):
                self._parts.log.tidy()
            make_reserve(self._storage)
        assert saved.report is not None
        for text in (*saved.report.warnings, *self._unlinker.failures()):
            _warn(text)
        return saved

    def _retention(self, branch: str, policy: Policy | None) -> Retention:
        return Retention(self._storage, branch, policy, self._numbers)

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
        self._warn_of(report.healed)

    def _warn_of(self, healed: Iterable[str]) -> None:
        """Warn of damage that another copy made good."""
        for text in healed:
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
        self._unlinker = Unlinker(self._storage)  # what is left to do is the parent's

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

    # -- looking into contents --------------------------------------------------------------------

    def diff(
        self,
        a: str = "main~1",
        b: str | None = None,
        *,
        paths: str | Sequence[str] = (),
        values: bool = True,
        whole_norm: bool = False,
        first: bool = False,
        progress: Progress | None = None,
    ) -> DiffReport:
        """How the state of ``b`` differs from that of ``a``.

        Subtrees and chunks that both share are not read.  Every chunk that is read is hashed first.

        Args:
            a: a revision, ``REV:PATH`` for a part of its state, or ``REV..REV`` for both.
            b: another; if None the head of the branch that ``a`` begins with (of main, where that
                is a tag or digest).
            paths: only what lies at or below these key paths; globs, where ``*`` stays within one
                key and ``**`` crosses.
            values: False reads no chunk: what differs is told, and not by how much.
            whole_norm: read the shared chunks of changed tensors too, so that ``relative`` is to
                the norm of the whole tensor and not of the chunks that differ.
            first: stop at the first difference: whether there is one, and no more.
            progress: called with numbers of bytes as they are compared.

        Raises:
            BadRevision: no such revision or key path.
            CorruptionError: what has to be read is damaged.
        """
        from castore.inspection.diff import DiffOptions, diff, ends_of

        self._open_or_raise()
        fold = self._parts.log.fold()
        ends = ends_of(a, b, fold)
        lives = [self._resolve(end, fold) for end in ends]
        options = DiffOptions(
            a_path=ends[0].path or "",
            b_path=ends[1].path or "",
            paths=(paths,) if isinstance(paths, str) else tuple(paths),
            values=values,
            whole_norm=whole_norm,
            first=first,
            progress=progress,
        )
        report = diff(self._parts, fold, lives[0], lives[1], options)
        self._warn_of(report.healed)
        return report

    def describe(
        self, rev: str, *, stats: bool = True, progress: Progress | None = None
    ) -> ValueReport:
        """One value (``REV:PATH``) closely: its chunks, where they lie, what its numbers come to.

        Args:
            rev: a revision and a key path; of a state that is a single tensor, the revision alone.
            stats: False reads no chunk.
            progress: called with numbers of bytes as they are read.

        Raises:
            BadRevision: no such revision or key path, or a container is there.
            CorruptionError: what has to be read is damaged.
        """
        from castore.inspection.tensor import describe

        self._open_or_raise()
        revision = parse_revision(rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        report = describe(self._parts, fold, live, revision.path or "", stats, progress)
        self._warn_of(report.healed)
        return report

    def find_chunk(self, *digests: str) -> list[FoundDigest]:
        """What each digest (or prefix of six digits or more) names, and who has it.

        Of a chunk: packs, tensors, rows, checkpoints.  Of a tree, chunk list or checkpoint: what it
        is, and the checkpoints that reach it.  Looks at all live checkpoints; needs no index.

        Raises:
            BadRevision: a digest is none, or nothing here has it.
            AmbiguousRevision: a prefix fits several.
        """
        from castore.inspection.find import find_chunks

        self._open_or_raise()
        return find_chunks(self._parts, self._parts.log.fold(), digests)

    @overload
    def stats(self, rev: None = None, *, by: None = None) -> StoreStats: ...

    @overload
    def stats(self, rev: str | None = None, *, by: str) -> CheckpointStats: ...

    @overload
    def stats(self, rev: str, *, by: str | None = None) -> CheckpointStats: ...

    def stats(
        self, rev: str | None = None, *, by: str | None = None
    ) -> StoreStats | CheckpointStats:
        """What the store takes branch by branch, or a checkpoint by tensor, role or dtype.

        Reads metadata only.

        Args:
            rev: a revision (``REV:PATH`` for a part of its state); None for the whole store, or
                main where ``by`` is given.
            by: ``"tensor"``, ``"role"`` (the default) or ``"dtype"``.

        Raises:
            CorruptionError: metadata is damaged.
        """
        from castore.inspection.stats import checkpoint_stats, store_stats

        self._open_or_raise()
        if rev is None and by is None:
            return store_stats(self._parts)
        revision = parse_revision("main" if rev is None else rev)
        fold = self._parts.log.fold()
        live = self._resolve(revision, fold)
        return checkpoint_stats(self._parts, fold, live, revision.path or "", by or "role")

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

    def window(
        self,
        branch: str = "main",
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: str | Iterable[str] | None = None,
        keep_within: str | timedelta | None = None,
        off: bool = False,
        below_three: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> WindowReport:
        """Which checkpoints of a branch stay; the others are let go, and what only they need freed.

        With options, this policy takes the place of the branch's old one, and is applied: now, and
        in every later save on the branch.  Without, the branch's policy and what it would do now is
        shown.  Each rule adds to what the others keep; the newest checkpoint, and what a tag or a
        pin holds, always stay.  Where checkpoints were not verified, as many as must be are read
        back from the device first: what is not verified never pushes out what is.

        Args:
            branch: the branch.  Its own list is all that counts; a checkpoint that another branch
                lists too leaves this list and stays live.
            keep_last: the newest so many verified ones, and everything newer; 3 where not given.
            keep_every: those whose step is a multiple of this.
            keep_best: ``METRIC[:min|max][:N]``, or several: the best N (1) by a number in ``meta``
                (``loss``, or ``eval/loss`` of nested dicts), least first unless ``max`` is said.
            keep_within: ``"2d"``, ``"36h"``: those at most so much older than the newest.
            off: clear the branch's policy: then nothing is let go.
            below_three: allow ``keep_last`` under 3.
            dry_run: only say what would be done; nothing is read back or stored.
            progress: called with numbers of bytes as they are read back.

        Returns:
            A decision and a reason for each checkpoint of the list.

        Raises:
            UsageError: an option is none, or ``keep_last`` is under 3.
            SaveFailed: the medium failed.
        """
        check_name(branch)
        given = [keep_last, keep_every, keep_best, keep_within]
        if off and any(value is not None for value in given):
            raise UsageError("off=True clears the policy: it goes without other options")
        policy = None
        if any(value is not None for value in given):
            policy = Policy.of(
                keep_last=keep_last,
                keep_every=keep_every,
                keep_best=keep_best,
                keep_within=keep_within,
                below_three=below_three,
            )
        retention = self._retention(branch, policy)
        if dry_run or (policy is None and not off):
            self._open_or_raise()
            return show_window(retention, self._parts.log.fold())
        self._writable()
        report = set_window(self._parts.log, retention, off=off, progress=progress)
        self._unlinker.add(retention.condemned)
        return report

    def drop(self, rev: str) -> DropReport:
        """Let one checkpoint go, and free what only it needs.

        Raises:
            UsageError: it is the newest of a branch, or a tag or pin holds it.
        """
        self._writable()
        live = self._resolve(parse_revision(rev), self._parts.log.fold())
        report, release = drop_checkpoint(self._storage, self._parts.log, live.digest, rev)
        self._unlinker.add(release.condemned)
        return report

    def gc(self, *, dry_run: bool = False, drop_all: bool = False) -> GcReport:
        """Remove what nothing needs: checkpoints on no list, tag or pin, and debris.

        Needs no free space.  Pins whose owner is surely dead are given up.

        Args:
            dry_run: only say what would be done, with a reason for every checkpoint and pack.
            drop_all: go on even if every checkpoint there is would be let go.

        Raises:
            UsageError: every checkpoint would be let go, and ``drop_all`` is not said.
        """
        if dry_run:
            self._open_or_raise()
        else:
            self._writable()
            self._unlinker.wait()
        return collect(self._storage, self._parts.log, dry_run=dry_run, drop_all=drop_all)

    # -- pins -------------------------------------------------------------------------------------

    def pin(self, rev: str = "main", name: str | None = None, *, lasting: bool = False) -> HeldPin:
        """Keep a checkpoint from being let go while it is read.

            with store.pin("main~2") as pin:
                state = store.load(pin.digest)

        Args:
            rev: a revision.
            name: the pin's name; one is made up where none is given.
            lasting: the pin stays until :meth:`unpin`, whatever becomes of this process; else it
                is given up at the end of the block, or by gc once this process is dead.

        Raises:
            CheckpointGone: it was let go meanwhile.
        """
        target = self._target(rev, False)
        assert target is not None
        if name is None:
            name = f"pin-{target.short}" + ("" if lasting else f"-{random_bytes(4).hex()}")
        owner = () if lasting else own_pin()
        return HeldPin(self, set_pin(self._parts.log, self.path, name, target, owner), owner)

    def unpin(self, name: str) -> AppliedChange:
        """Give a pin up, whosever it is."""
        self._writable()
        return set_pin(self._parts.log, self.path, name, None)

    def pins(self) -> tuple[PinInfo, ...]:
        """All pins, by name."""
        self._open_or_raise()
        return list_pins(self._parts.log.fold())


class HeldPin:
    """A pin, to be used in a ``with`` statement: the end of the block gives it up.

    Attributes:
        name: its name.
        digest: the checkpoint it keeps, hex: the revision to load by.
        change: what was done.
    """

    def __init__(self, store: Store, change: AppliedChange, owner: tuple[Any, ...]) -> None:
        self.name = change.name
        self.digest = change.new or ""
        self.change = change
        self._store = store
        self._owner = owner

    def release(self) -> None:
        """Give the pin up; nothing where that was done, or in a forked child."""
        if self._owner == own_pin():
            with contextlib.suppress(BadRevision):
                self._store.unpin(self.name)

    def __enter__(self) -> HeldPin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


# -- helpers --------------------------------------------------------------------------------------


def _warn(text: str) -> None:
    """Warn at the caller's own line, however deep in castore we are."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "castore":
        level, frame = level + 1, frame.f_back
    python_warnings.warn(text, CastoreWarning, stacklevel=level)


def _policy_of(window: Any) -> Policy:
    """A policy from what a save was given."""
    if isinstance(window, Mapping):
        known = {"keep_last", "keep_every", "keep_best", "keep_within", "below_three"}
        if odd := [name for name in window if name not in known]:
            raise UsageError(f"window= knows {', '.join(sorted(known))}, not {odd[0]!r}")
        return Policy.of(**window)
    if isinstance(window, int) and not isinstance(window, bool):
        return Policy.of(keep_last=window)
    raise UsageError(f"window= is a dict such as {{'keep_last': 3}}, or a number, not {window!r}")


def _refuse_unbuilt(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise UnsupportedFeature(f"{name}= is not in this version")


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_STORES):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)
