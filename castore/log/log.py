"""Reading the log up to its head, and appending to it: the one place where a store changes.

An entry is created if and only if its number is absent.  Finding the head never trusts a listing:
the newest fold file that fits is the start, then numbers are tried by name.  Whoever acts on an
entry (builds on it, folds it into a fold file, unlinks) fsyncs ``log/`` first: visible is not yet
durable.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence

from castore.errors import SaveFailed, StoreUnreadable, UnsupportedFeature, UsageError
from castore.log.entry import (
    MAX_FILE,
    MAX_RECORD,
    Change,
    Condemned,
    Entry,
    EntryError,
    LetGo,
    Lost,
    Pin,
    SetBranch,
    SetTag,
    entry_name,
    parse_file,
)
from castore.log.fold import Fold, parse_fold, render_fold
from castore.storage.protocol import FateUnknown, NotDurable, Storage
from castore.system import format_time, identity, now_ns, random_bytes

__all__ = ["AppendFateUnknown", "Log", "fold_name"]

#: Numbers probed past the first absent one: a higher entry makes the gap damage.
PROBE = 64
#: A fold file is written at every multiple of this.
FOLD_EVERY = 256
#: A fold file longer than this is not read: the entries say it all.
MAX_FOLD = 1 << 30
#: How many fold files are kept.
FOLDS_KEPT = 2
#: Features this castore knows.
KNOWN_FEATURES: frozenset[str] = frozenset()

#: Changes after which a ref might name what is not live, were the log not sound.
_MOVES = (LetGo, Pin, SetBranch, SetTag)
_ENTRY_FILE = re.compile(r"\d{12}", re.ASCII)
_FOLD_FILE = re.compile(r"(\d{12})\.fold", re.ASCII)


class AppendFateUnknown(Exception):
    """The entry may exist or appear later: nothing that it names may be deleted."""

    def __init__(self, seq: int, cause: OSError) -> None:
        super().__init__(f"whether log entry {seq} exists is not known: {cause}")
        self.seq = seq
        self.cause = cause

    def told(self, what: str, look: str) -> SaveFailed:
        """The error for callers: ``what`` may or may not have happened; ``look`` tells."""
        return SaveFailed(
            f"{what} may or may not have happened: {self}. Nothing was deleted; look with "
            f"`{look}`, then do it again",
            errno=self.cause.errno,
            path=self.cause.filename,
            fate_unknown=True,
        )


def fold_name(seq: int) -> str:
    """The fold file at an entry."""
    return f"log/{seq:012d}.fold"


class Log:
    """A store's log.  Thread-safe; one a process."""

    def __init__(self, storage: Storage, store_id: bytes, *, readonly: bool = False) -> None:
        self._storage = storage
        self._store = store_id
        self._readonly = readonly
        self._fold: Fold | None = None
        self._durable = 0  # the highest entry whose name this process knows to be durable
        self._reached = 0  # how far the log went at the least: to end before is damage
        self._newest_fold = 0
        self._lock = threading.RLock()

    # -- reading ----------------------------------------------------------------------------------

    def fold(self) -> Fold:
        """The fold at the head.

        Raises:
            StoreUnreadable: an entry is missing or damaged in both copies.
            UnsupportedFeature: the log says what this castore does not understand.
        """
        try:
            return self._read_on()
        except OSError as e:
            what = f"the log of {self._storage.where} cannot be read"
            raise StoreUnreadable.of(e, what, "log") from e

    def _read_on(self) -> Fold:
        with self._lock:
            fold = self._fold or self._start()
            mine = self._fold is None  # a fold that was handed out is never changed
            while (step := self._next(fold.seq + 1)) is not None:
                if not mine:
                    fold, mine = fold.snapshot(), True
                self._advance(fold, step)
            if fold.seq < self._reached:  # a number is never reused: what ended here went on once
                name = entry_name(fold.seq + 1)
                raise StoreUnreadable(
                    f"log entry {fold.seq + 1} ({name}) of {self._storage.where} is missing, but "
                    f"the log reached {self._reached} once; run `castore fsck`",
                    path=name,
                )
            unknown = set(fold.required) - KNOWN_FEATURES
            if unknown:
                raise UnsupportedFeature(
                    f"the store {self._storage.where} uses {', '.join(sorted(unknown))}, "
                    "which this castore does not know; use a newer castore"
                )
            self._fold = fold
            return fold

    def _start(self) -> Fold:
        """The newest fold file that fits its entry, or nothing.

        Both it and a listing say how far the log reached at the least.
        """
        self._reached = max(self.listed(), default=0)
        for seq in self.fold_files():
            with contextlib.suppress(OSError, EntryError, StoreUnreadable, UnsupportedFeature):
                if (self._storage.size(fold_name(seq)) or 0) > MAX_FOLD:
                    continue  # derived, and not worth the memory
                fold = parse_fold(self._storage.read(fold_name(seq)), self._store)
                if fold.seq == seq:
                    self._reached = max(self._reached, seq)
                    self._newest_fold = max(self._newest_fold, seq)
                    if self.entry(seq).digest() == fold.chain:
                        return fold
        return Fold()

    def fold_files(self) -> list[int]:
        """Numbers of the fold files there are, newest first."""
        found = (_FOLD_FILE.fullmatch(name) for name in self._storage.list("log"))
        return sorted((int(m[1]) for m in found if m), reverse=True)

    def listed(self) -> list[int]:
        """Numbers of the entries that a listing shows: a hint."""
        return sorted(int(n) for n in self._storage.list("log") if _ENTRY_FILE.fullmatch(n))

    def entry(self, seq: int) -> Entry:
        """One entry.

        Raises:
            StoreUnreadable: missing, or damaged in both copies.
        """
        return self.examine(seq)[0]

    def examine(self, seq: int) -> tuple[Entry, list[str]]:
        """One entry, and what is wrong with its file although a copy is sound."""
        name = entry_name(seq)
        try:
            size = self._storage.size(name)
            if size is not None and size > MAX_FILE:
                raise EntryError(f"it has {size} bytes; no entry has")
            return parse_file(self._read_entry(name, size), seq, self._store)
        except FileNotFoundError as e:
            raise StoreUnreadable(
                f"log entry {seq} ({name}) of {self._storage.where} is missing; run `castore fsck`",
                path=name,
            ) from e
        except (EntryError, OSError) as e:
            how = "damaged" if isinstance(e, EntryError) else "unreadable"
            raise StoreUnreadable(
                f"log entry {seq} ({name}) of {self._storage.where} is {how}: {e}; "
                "run `castore fsck`",
                path=name,
            ) from e

    def _read_entry(self, name: str, size: int | None) -> bytes:
        """An entry's file; where a block of it cannot be read, zeros in the place of its half."""
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            raise
        except OSError:
            if not size:
                raise
            halves, errors = [], []
            for start, stop in ((0, size // 2), (size // 2, size)):
                try:
                    halves.append(self._storage.read(name, start, stop - start))
                except OSError as e:
                    errors.append(e)
                    halves.append(bytes(stop - start))
            if len(errors) == len(halves):
                raise
            return b"".join(halves)

    def _next(self, seq: int) -> Entry | tuple[Lost, int] | None:
        """Entry ``seq``, or what is known of it where it is lost; None past the head."""
        while True:
            try:
                return self.entry(seq)
            except StoreUnreadable as e:
                if isinstance(e.__cause__, FileNotFoundError):
                    if self._higher(seq) is None:
                        return None
                    if self._exists(seq):
                        continue  # it came, and another after it, since we looked
                if (lost := self._lost(seq)) is None:
                    raise
                return lost

    def _advance(self, fold: Fold, step: Entry | tuple[Lost, int]) -> None:
        seq = fold.seq + 1
        try:
            if isinstance(step, Entry):
                fold.advance([step])
                if any(isinstance(c, _MOVES) for c in step.changes) and (odd := fold.dangling()):
                    raise EntryError(f"after entry {seq}, {odd}")
            else:
                fold.skip_lost(*step)
        except EntryError as e:
            raise StoreUnreadable(
                f"the log of {self._storage.where} is broken: {e}; run `castore fsck`",
                path=entry_name(seq),
            ) from e

    def _exists(self, seq: int) -> bool:
        return self._storage.size(entry_name(seq)) is not None

    def _higher(self, seq: int) -> int | None:
        """The first number above ``seq`` that is taken, among the next few."""
        return next((n for n in range(seq + 1, seq + 1 + PROBE) if self._exists(n)), None)

    def _lost(self, seq: int) -> tuple[Lost, int] | None:
        """The later entry that declares ``seq`` lost, if there is one."""
        n = seq
        while (higher := self._higher(n)) is not None:
            n = higher
            with contextlib.suppress(StoreUnreadable):
                entry = self.entry(n)
                for change in entry.changes:
                    if isinstance(change, Lost) and change.seq == seq:
                        return change, entry.time
        return None

    def condemned_between(self, s0: int, n: int) -> set[str] | None:
        """Paths condemned by the entries ``s0+1 .. n``, read from the entries themselves.

        None where one cannot be read: that counts as condemning everything.
        """
        out: set[str] = set()
        for seq in range(s0 + 1, n + 1):
            try:
                entry = self.entry(seq)
            except StoreUnreadable:
                return None
            for change in entry.changes:
                if isinstance(change, Condemned):
                    out.update(change.paths)
        return out

    def after_fork(self) -> None:
        """In a forked child: locks are its own."""
        self._lock = threading.RLock()

    # -- appending --------------------------------------------------------------------------------

    def append(
        self,
        decide: Callable[[Fold], Sequence[Change]],
        why: str,
    ) -> Entry | None:
        """Append what ``decide`` says of the fold at the head; decide again if the number is taken.

        Args:
            decide: changes to make on a fold; none ends the act without an entry.
            why: the verb and reason, for people.

        Returns:
            The entry, durable; None where there was nothing to do.

        Raises:
            AppendFateUnknown: the entry may exist.
            OSError: it does not exist (before it was linked).
        """
        act = random_bytes(16)
        while True:
            fold = self.fold()
            changes = tuple(decide(fold))
            self.make_durable(fold.seq)  # whoever builds on an entry, or acknowledges it
            if not changes:
                return None
            entry = Entry(
                fold.seq + 1, fold.chain, act, now_ns(), identity().describe(), why, self._store,
                changes,
            )  # fmt: skip
            if len(entry.record()) > MAX_RECORD:
                raise UsageError(
                    f"{why}: the log entry would have {len(entry.record()):,} bytes, and none has "
                    f"more than {MAX_RECORD:,}; nothing was written to the log"
                )
            if self._create(entry):
                self._durable = max(self._durable, entry.seq)
                self._remember(fold, entry)
                return entry

    def _create(self, entry: Entry) -> bool:
        name = entry_name(entry.seq)
        try:
            created = self._storage.create(name, entry.render())
            unsure: OSError | None = None
        except NotDurable as e:
            raise AppendFateUnknown(entry.seq, e) from e  # a failed fsync is never tried again
        except FateUnknown as e:
            created, unsure = False, e
        # Whatever the call said: the number is ours if it bears our act's id.
        try:
            there = self._storage.size(name) is not None
            ours = there and self.entry(entry.seq).act == entry.act
        except (OSError, StoreUnreadable) as e:
            cause = e if isinstance(e, OSError) else OSError(str(e))
            raise AppendFateUnknown(entry.seq, unsure or cause) from e
        if ours:
            if not created:
                try:
                    self._storage.sync_folder("log")
                except OSError as e:
                    raise AppendFateUnknown(entry.seq, e) from e
            return True
        if not there:
            # Whatever was said, it may be ours and appear later.
            raise AppendFateUnknown(entry.seq, unsure or OSError(f"{name} is not to be seen"))
        return False

    def make_durable(self, seq: int) -> None:
        """Make the names of all entries up to ``seq`` durable, where they may not be."""
        if seq > self._durable:
            self._storage.sync_folder("log")
            self._durable = seq

    def _remember(self, fold: Fold, entry: Entry) -> None:
        with self._lock:
            self._fold = fold.apply(entry)
            if entry.seq % FOLD_EVERY == 0:
                # Derived: that it cannot be written is no failure of the entry.
                with contextlib.suppress(OSError):
                    self.write_fold_file(self._fold)

    def write_fold_file(self, fold: Fold) -> None:
        """Write the fold as a file, and delete all but the newest two."""
        self.make_durable(fold.seq)
        self._storage.create(fold_name(fold.seq), render_fold(fold, self._store))
        self._newest_fold = max(self._newest_fold, fold.seq)
        for seq in self.fold_files()[FOLDS_KEPT:]:
            self._storage.delete(fold_name(seq))

    def tidy(self) -> None:
        """Write a fold file if the newest is far behind (after a crash took the regular one)."""
        fold = self.fold()
        if not self._readonly and fold.seq - self._newest_fold >= FOLD_EVERY:
            self.write_fold_file(fold)

    def writer(self, seq: int) -> str | None:
        """Who wrote an entry, or None where it cannot be read."""
        try:
            return self.entry(seq).writer
        except StoreUnreadable:
            return None

    def describe(self, seq: int) -> str:
        """``save by pid 3 on host at TIME`` for a message; honest where it cannot be read."""
        try:
            entry = self.entry(seq)
        except StoreUnreadable:
            return f"entry {seq} (which cannot be read)"
        return f"{entry.why}, by {entry.writer} at {format_time(entry.time)} (entry {seq})"
