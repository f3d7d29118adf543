"""The commit protocol, read top to bottom: how a state becomes a checkpoint that exists.

    1  check that the whole state can be kept                       nothing written
    2  open a session; fold the log to s0; find the branch's head   nothing written
    3  hash, look up, write what is new to data packs; fsync        debris
    4  write trees, tables and intent to the meta packs; fsync      debris
    5  fold to the head n: is all that is relied on still needed by a live checkpoint, and no own
       pack condemned since s0?  If not, look up and write again    debris
    6  create entry n+1; taken: back to 5                           the checkpoint exists, durable
    7  close the session; update the index                          anybody finishes it

A branch's window is part of step 6: the one entry adds, lets go and condemns, decided on the fold
that already has the add.  If that cannot be planned, the entry adds and no more.

Present means: in a pack that a checkpoint live at s0 needs, its file there at the logged size.
That positive rule is what makes deduplication safe beside gc, whatever the interleaving.  Until
step 6 a failed save deletes its own packs; once the entry may exist it deletes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from castore.errors import (
    BadState,
    CastoreError,
    CorruptionError,
    RefConflict,
    SaveFailed,
    UsageError,
)
from castore.log.entry import Add, Change, Verified
from castore.log.fold import Fold, Live, broken_needs, is_present
from castore.log.log import AppendFateUnknown
from castore.model.digest import Buffer, Digest, Kind, derived, kind_digest
from castore.model.encoding import encode
from castore.model.objects import INLINE_BYTES, MAX_OBJECT, CheckpointObject, encode_tree
from castore.model.packinfo import PackInfo
from castore.packs.findings import pack_finding
from castore.packs.format import meta_names
from castore.packs.index import Found
from castore.packs.scrub import scrub_pack
from castore.packs.writer import DataPacks, FinishedPack, PackPlace, TwinWriter, table_object
from castore.pipeline.chunks import ChunkRun, hash_contents
from castore.pipeline.load import read_checkpoint
from castore.pipeline.parts import Parts
from castore.reports import Checkpoint, Finding, SaveReport
from castore.system import identity, monotonic, new_save_id, now_ns, worker_threads
from castore.upkeep.sessions import Session

if TYPE_CHECKING:
    from castore.state import Description

__all__ = ["Retain", "SaveOptions", "save"]

#: A state that keeps less than this share of the parent's bytes is worth a word.
VANISHED = 0.1
#: How often a save looks again before it says that something is wrong.
ATTEMPTS = 100


class Retain(Protocol):
    """What a save lets go in its own entry: the window of its branch."""

    @property
    def let_go(self) -> Sequence[Digest]:
        """What the changes made last let go."""

    def prepare(
        self, fold: Fold, made: Sequence[Change], spared: Digest, beat: Callable[[int], None]
    ) -> str:
        """Read back what must be verified, the new checkpoint ``spared`` aside.

        Returns:
            The policy in words; nothing where there is none.
        """

    def changes(self, fold: Fold, made: Sequence[Change]) -> Sequence[Change]:
        """What an entry after ``fold`` that makes those changes does further."""


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """What the caller asked for, checked.

    Attributes:
        branch: the branch to append to.
        expected: what the caller last saw there, or None for "nothing".
        step, meta, message: as given.
        verify: read everything back from the device before the checkpoint exists.
        strict_steps: refuse a step that repeats or goes back.
        progress: told of content bytes dealt with.
        retain: what lets older checkpoints go, or None.
    """

    branch: str
    expected: Digest | None
    step: int | None = None
    meta: dict[str, Any] | None = None
    message: str | None = None
    verify: bool = False
    strict_steps: bool = False
    progress: Callable[[int], None] | None = None
    retain: Retain | None = None


@dataclass(frozen=True, slots=True)
class _OwnPacks:
    """Where new chunks go, and the note of which went where."""

    packs: DataPacks
    own: dict[Digest, str]

    def chunk(self, digest: Digest, data: Buffer, begins: bool) -> None:
        self.own[digest] = self.packs.add(digest, data, begins=begins)

    def batch(
        self, digests: Sequence[Digest], data: memoryview, starts: list[int], ends: list[int]
    ) -> None:
        self.own.update(dict.fromkeys(digests, self.packs.add_batch(digests, data, starts, ends)))


class _LookAgain(Exception):
    """Something relied on is not needed any more, or an own pack was condemned.

    ``condemned`` are the own packs that are lost; None where that is not known: all of them.
    """

    def __init__(self, condemned: set[str] | None) -> None:
        super().__init__()
        self.condemned = condemned


def save(parts: Parts, description: Description, options: SaveOptions) -> Checkpoint:
    """Save a state that :func:`castore.state.describe` found fit (step 1).

    Returns:
        The checkpoint, which exists and is durable.

    Raises:
        RefConflict: another writer moved the branch.
        SaveFailed: the medium failed; the branch's head is what it was, unless the error's
            ``fate_unknown`` says that the entry may exist.
        CorruptionError: ``verify`` found that the device does not hold what was written; nothing
            became visible.
    """
    return _Save(parts, description, options).run()


@dataclass(slots=True)
class _Written:
    """A checkpoint whose bytes are durable, and the entry it is to become."""

    add: Add
    relied: set[tuple[str, Digest]]


@dataclass(slots=True)
class _Save:
    parts: Parts
    description: Description
    options: SaveOptions
    id: str = field(default_factory=new_save_id)
    began: float = field(default_factory=monotonic)
    time: int = field(default_factory=now_ns)
    #: Own chunks: digest -> path of the own pack they went to.
    own: dict[Digest, str] = field(default_factory=dict)
    finished: dict[str, FinishedPack] = field(default_factory=dict)
    relied: set[tuple[str, Digest]] = field(default_factory=set)
    #: What ``verify`` found bad in others' packs: records, and whole packs.  Counts as absent.
    bad: set[tuple[str, Digest]] = field(default_factory=set)
    bad_packs: set[str] = field(default_factory=set)
    run_state: ChunkRun = field(default_factory=ChunkRun)
    new_bytes: int = 0
    stored_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    s0: int | None = None
    #: Whether the entry may exist: from then on nothing of the save's own is deleted by it.
    may_exist: bool = False
    _sizes: dict[str, bool] = field(default_factory=dict)
    _numbers: dict[str, itertools.count[int]] = field(
        default_factory=lambda: {"data": itertools.count(), "meta": itertools.count()}
    )

    def run(self) -> Checkpoint:
        session = Session(self.parts.storage, self.id)
        with session:
            self.run_state.beat = session.beat
            self.run_state.progress = self.options.progress
            try:
                return self._run()
            except AppendFateUnknown as e:
                raise e.told("the save", f"castore log {self.options.branch}") from e
            except OSError as e:  # the log says so only of an entry that was not created
                self._clean_up()
                raise self._failed(e) from e
            except BaseException:
                if not self.may_exist:
                    self._clean_up()
                raise

    def _run(self) -> Checkpoint:
        for _ in range(ATTEMPTS):
            fold = self.parts.log.fold()  # step 2
            if self.s0 is None:
                self.s0 = fold.seq
            head = self._head(fold)
            self._check_step(head, unchanged_aside=True)
            self._sizes.clear()
            self.relied.clear()
            self.parts.index.update(fold.packs.values())
            contents = self._write_chunks(fold)  # step 3
            root, objects = self._encode()
            try:
                if (same := self._unchanged(head, root, fold)) is not None:
                    return same
                self._check_step(head)
                written = self._write_objects(fold, head, root, contents, objects)  # step 4
                return self._commit(self.s0, written)  # steps 5 and 6
            except _LookAgain as e:
                self._forget(e.condemned)
        raise SaveFailed(
            f"what the save rests on was removed {ATTEMPTS} times while it was being made; is "
            "something deleting checkpoints in a loop? Nothing was saved",
            path=self.parts.storage.where,
        )

    # -- step 2: where the branch stands ----------------------------------------------------------

    def _head(self, fold: Fold) -> Live | None:
        if self.options.branch in fold.tags:
            raise UsageError(f"{self.options.branch!r} is a tag; a branch needs another name")
        branch = fold.branches.get(self.options.branch)
        head = branch.head if branch else None
        if head != self.options.expected:
            last = branch.moves[-1][0] if branch and branch.moves else fold.seq
            expected = self.options.expected
            by = self.parts.log.writer(last)
            who = (
                "another Store of this process" if by == identity().describe() else "another writer"
            )
            raise RefConflict(
                f"branch {self.options.branch} was moved by {who}: expected "
                f"{expected.short if expected else 'no checkpoint'}, found "
                f"{head.short if head else 'no checkpoint'} ({self.parts.log.describe(last)}). "
                f"Nothing was saved. Look with `castore log {self.options.branch}`; two runs use "
                f"two branches; to go on here, load the branch or store.resolve("
                f"{self.options.branch!r}), and save again",
                branch=self.options.branch,
                expected=expected.hex() if expected else None,
                actual=head.hex() if head else None,
                seq=last,
                by=by,
            )
        return fold.live[head] if head is not None else None

    def _check_step(self, head: Live | None, *, unchanged_aside: bool = False) -> None:
        """Tell, or refuse, a step that is not above the head's.

        ``unchanged_aside`` leaves one that repeats alone: it may be the head itself, saved again.
        """
        step = self.options.step
        if head is None or step is None or head.add.step is None or step > head.add.step:
            return
        repeats = step == head.add.step
        if repeats and unchanged_aside:
            return
        how = "repeats" if repeats else "goes back from"
        text = f"step {step} {how} step {head.add.step} of {self.options.branch}"
        if self.options.strict_steps:
            raise UsageError(f"{text}, and strict_steps=True refuses that; nothing was saved")
        self._warn(text)

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    # -- step 3: chunks ---------------------------------------------------------------------------

    def _place(self) -> PackPlace:
        return PackPlace(self.parts.config.store_id, self.parts.config.chunk_size, self.id)

    def _write_chunks(self, fold: Fold) -> Digest:
        packs = DataPacks(self.parts.storage, self._place(), self._numbers["data"].__next__)

        def known(digests: Sequence[Digest]) -> list[str | None]:
            where: list[str | None] = [self.own.get(d) for d in digests]
            if fold.packs and (asked := [i for i, w in enumerate(where) if w is None]):
                found = self.parts.index.find([digests[i] for i in asked])
                for i, places in zip(asked, found, strict=True):
                    where[i] = self._present(fold, digests[i], places)
            return where

        self.run_state.new_bytes = self.run_state.done_bytes = 0
        try:
            hash_contents(
                self.description.contents, self.parts.config.chunk_size, known,
                _OwnPacks(packs, self.own), self.run_state,
            )  # fmt: skip
            for pack in packs.finish():
                self.finished[pack.info.path] = pack
        finally:
            packs.abandon()
        digests = (d for c in self.description.contents for d in c.digests or ())
        return derived("castore 1 contents", b"".join(digests))

    def _present(self, fold: Fold, digest: Digest, places: Iterable[Found]) -> str | None:
        """The pack in which a digest is present, by the positive rule; noted as relied on."""
        for info in self._present_in(fold, digest, places):
            if info.is_data:
                self.relied.add((info.path, digest))
                return info.path
        return None

    def _present_in(
        self, fold: Fold, digest: Digest, places: Iterable[Found]
    ) -> Iterator[PackInfo]:
        """The packs among the index's answers in which a digest is present."""
        for ident, _ in places:
            path = fold.ids.get(ident)
            if path is None or not is_present(fold, path, digest):
                continue
            if path in self.bad_packs or (path, digest) in self.bad:
                continue
            info = fold.packs[path]
            if self._file_is_there(info):
                yield info

    def _file_is_there(self, info: PackInfo) -> bool:
        if info.path not in self._sizes:
            self._sizes[info.path] = self.parts.storage.size(info.file) == info.size
        return self._sizes[info.path]

    def _encode(self) -> tuple[Digest, dict[Digest, tuple[Kind, bytes]]]:
        """The state's root, and every object below it."""
        objects: dict[Digest, tuple[Kind, bytes]] = {}

        def sink(kind: Kind, digest: Digest, data: bytes) -> None:
            if len(data) > MAX_OBJECT:
                raise BadState(
                    f"a container's own entries come to {len(data):,} bytes, and an object has at "
                    f"most {MAX_OBJECT:,}: shorten its keys, or its arrays' dtypes",
                    path="",
                    paths=[""],
                )
            objects[digest] = (kind, data)

        return encode_tree(self.description.root, sink), objects

    # -- nothing to do ----------------------------------------------------------------------------

    def _unchanged(self, head: Live | None, root: Digest, fold: Fold) -> Checkpoint | None:
        """The head itself, where root, step and meta equal its own and it is whole."""
        if head is None or head.add.root != root or head.add.step != self.options.step:
            return None
        if any(head.digest in named for named in fold.damaged.values()) or not all(
            self._file_is_there(info) for info in fold.packs_of(head.digest)
        ):
            return None
        try:
            meta = read_checkpoint(self.parts.storage, fold.packs_of(head.digest), head).meta
        except CorruptionError:
            return None  # then the metadata is worth storing again
        if encode(meta) != encode(self.options.meta) or head.add.message != self.options.message:
            return None
        if self.own:
            return None
        self.parts.log.make_durable(fold.seq)
        verified = fold.is_verified(head.digest)
        if self.options.verify and not verified:
            needs = fold.packs_of(head.digest)
            clean = self._read_back(needs, fold)
            self.parts.log.append(
                lambda f: _verify_changes(f, clean), f"verify {self.options.branch}"
            )
            verified = len(clean) == len(needs)
        self._warn(
            f"nothing changed since {_called(head.add)}: state, step, meta and message equal those "
            f"of {self.options.branch}'s head, so nothing was added"
        )
        return self._saved(head.add, head.seq, verified)

    # -- step 4: objects --------------------------------------------------------------------------

    def _write_objects(
        self,
        fold: Fold,
        head: Live | None,
        root: Digest,
        contents: Digest,
        objects: dict[Digest, tuple[Kind, bytes]],
    ) -> _Written:
        description, options = self.description, self.options
        checkpoint = CheckpointObject(
            root=root,
            step=options.step,
            parent=head.digest if head else None,
            time=self.time,
            meta=options.meta,
            message=options.message,
            audit=None,
            ranks=None,
            tensors=description.tensors,
            logical_bytes=description.logical_bytes,
            chunk_size=self.parts.config.chunk_size,
            contents=contents,
        ).encoded()
        digest = kind_digest(Kind.CHECKPOINT, checkpoint)
        self._note_alarms(head, contents)
        metas = TwinWriter(self.parts.storage, self._place(), self._numbers["meta"].__next__)
        own_data = {
            self.own[d] for c in description.contents for d in c.digests or () if d in self.own
        }
        data = [self.finished[path] for path in sorted(own_data)]
        # Of all tries at once: what a look-again left behind unused is not counted.
        self.new_bytes = sum(row[4] for pack in data for row in pack.table.rows())
        self.stored_bytes = sum(pack.info.size for pack in data)
        foreign_meta = self._known_objects(fold, objects)
        packs = self._needs(fold, data, foreign_meta)
        add = Add(
            branch=options.branch,
            checkpoint=digest,
            root=root,
            contents=contents,
            parent=head.digest if head else None,
            step=options.step,
            time=self.time,
            save=self.id,
            s0=self.s0 or 0,
            tensors=description.tensors,
            logical_bytes=description.logical_bytes,
            new_bytes=self.new_bytes,
            stored_bytes=0,
            message=options.message,
            packs=packs,
        )
        try:
            for d, (kind, body) in objects.items():
                metas.add(kind, d, body)
            metas.add(Kind.CHECKPOINT, digest, checkpoint)
            for pack in data:
                body = table_object(pack)
                metas.add(Kind.TABLE, kind_digest(Kind.TABLE, body), body)
            intent = encode(add.plain())
            metas.add(Kind.INTENT, kind_digest(Kind.INTENT, intent), intent)
            finished = metas.finish()
        finally:
            metas.abandon()
        for pack in finished:
            self.finished[pack.info.path] = pack
            self.stored_bytes += pack.info.size
        try:
            self.parts.storage.sync_folder(f"packs/{self.id}")
        except FileNotFoundError:  # gc took this save for a dead one, and all it had written
            raise _LookAgain(None) from None
        self.parts.storage.sync_folder("packs")
        own = tuple(p.info for p in finished)
        add = replace(add, packs=(*packs, *own), stored_bytes=self.stored_bytes)
        return _Written(add, set(self.relied))

    def _known_objects(
        self, fold: Fold, objects: dict[Digest, tuple[Kind, bytes]]
    ) -> list[PackInfo]:
        """Take out of ``objects`` what a live meta pack and its twin hold; return those packs."""
        if not fold.packs:
            return []
        relied: dict[str, PackInfo] = {}
        digests = list(objects)
        for digest, places in zip(digests, self.parts.index.find(digests), strict=True):
            kept = {info.path: info for info in self._present_in(fold, digest, places)}
            for info in kept.values():
                twins = [f"{info.save}/{n}" for n in meta_names(info.path.partition("/")[2])]
                if all(t in kept for t in twins):
                    relied.update((t, kept[t]) for t in twins)
                    self.relied.update((t, digest) for t in twins)
                    del objects[digest]
                    break
        return list(relied.values())

    def _needs(
        self, fold: Fold, data: list[FinishedPack], foreign_meta: list[PackInfo]
    ) -> tuple[PackInfo, ...]:
        """Every pack the checkpoint needs, its own meta packs aside."""
        foreign = {path: fold.packs[path] for path, _ in self.relied}
        foreign.update((info.path, info) for info in foreign_meta)
        # A data pack keeps its save's meta packs: they hold its table's second copy.
        saves = {info.save for info in foreign.values() if info.is_data}
        for save_id in saves:
            foreign.update((path, fold.packs[path]) for path in fold.metas.get(save_id, ()))
        return (*(foreign[p] for p in sorted(foreign)), *(p.info for p in data))

    def _note_alarms(self, head: Live | None, contents: Digest) -> None:
        if head is None:
            return
        description, add = self.description, head.add
        if add.contents == contents and any(c.digests for c in description.contents):
            self._warn(
                f"no tensor of more than {INLINE_BYTES} bytes changed since {_called(add)}: "
                "a stale buffer saved again?"
            )
        if description.logical_bytes < VANISHED * add.logical_bytes:
            self._warn(
                f"most of the state vanished: {description.logical_bytes:,} bytes where "
                f"{_called(add)} had {add.logical_bytes:,}"
            )

    # -- steps 5 and 6: the entry -----------------------------------------------------------------

    def _commit(self, s0: int, written: _Written) -> Checkpoint:
        add = written.add
        log = self.parts.log
        clean: list[str] = []
        if self.options.verify:
            clean = self._read_back(add.packs, log.fold())
        changes = (add, Verified(tuple(clean))) if self.options.verify else (add,)
        window = self._prepare_window(log.fold(), changes, add.checkpoint)

        def decide(fold: Fold) -> Sequence[Change]:
            self.may_exist = False  # asked (again): whatever was tried before was another's number
            self._head(fold)
            condemned = log.condemned_between(s0, fold.seq)
            mine = {p.path for p in add.packs if p.save == self.id}
            gone = mine if condemned is None else condemned
            if broken_needs(fold, self.id, add.packs, gone) or not all(
                is_present(fold, path, digest) for path, digest in written.relied
            ):
                raise _LookAgain(None if condemned is None else gone & mine)
            further = self._window(fold, changes)
            self.may_exist = True  # an interrupt may come between the link and our knowing of it
            return (*changes, *further)

        step = "" if add.step is None else f" step {add.step}"
        entry = log.append(decide, f"save {add.branch}{step}{window}")
        assert entry is not None
        for pack in self.finished.values():  # step 7
            self.parts.index.add(pack.info.id, pack.table)
        return self._saved(add, entry.seq, len(clean) == len(add.packs))

    def _prepare_window(self, fold: Fold, changes: Sequence[Change], spared: Digest) -> str:
        """Read back what the branch's window wants verified; its policy, for the entry's why."""
        retain = self.options.retain
        if retain is None:
            return ""
        try:
            policy = retain.prepare(fold, changes, spared, lambda _: self.run_state.beat())
        except Exception as e:  # noqa: BLE001 - whatever it is, the save goes on, and tells
            self._no_window(e)
            return ""
        return f", window {policy}" if policy else ""

    def _window(self, fold: Fold, changes: Sequence[Change]) -> Sequence[Change]:
        """What the branch's window lets go of, on the fold that already has the add."""
        if self.options.retain is None:
            return ()
        try:
            return self.options.retain.changes(fold, changes)
        except Exception as e:  # noqa: BLE001 - as above: it is a plain add then
            self._no_window(e)
            return ()

    def _no_window(self, e: Exception) -> None:
        self._warn(
            f"the window of {self.options.branch} was not applied, so nothing was let go: "
            f"{str(e) or type(e).__name__}"
        )

    def _saved(self, add: Add, seq: int, verified: bool) -> Checkpoint:
        retain = self.options.retain
        report = SaveReport(
            tensors=add.tensors,
            logical_bytes=add.logical_bytes,
            new_bytes=self.new_bytes,
            stored_bytes=self.stored_bytes,
            seconds=monotonic() - self.began,
            warnings=tuple(self.warnings),
            verified=verified,
            let_go=tuple(d.hex() for d in retain.let_go) if retain else (),
        )
        return Checkpoint(
            digest=add.checkpoint.hex(),
            root=add.root.hex(),
            step=add.step,
            branch=self.options.branch,
            seq=seq,
            parent=add.parent.hex() if add.parent else None,
            time=add.time,
            meta=self.options.meta,
            report=report,
            message=add.message,
            logical_bytes=add.logical_bytes,
            new_bytes=self.new_bytes,
            tensors=add.tensors,
            verified=verified,
        )

    def _read_back(self, packs: Iterable[PackInfo], fold: Fold) -> list[str]:
        """Read from the device what is not verified yet; hash and decode all of it.

        Own packs must be sound.  What is bad in others' packs counts as absent from here on: if
        this save relies on it, it looks again, and writes it anew.

        Returns:
            Paths of the packs that are sound.
        """
        clean: list[str] = []
        findings: list[Finding] = []
        with ThreadPoolExecutor(worker_threads(), thread_name_prefix="castore-verify") as pool:
            for info in packs:
                if info.path in fold.verified:
                    clean.append(info.path)
                    continue
                state = scrub_pack(self.parts.storage, info, pool, device=True)
                if not state.damages:
                    clean.append(info.path)
                for digest, damage in state.damages:
                    if info.save == self.id:
                        findings.append(pack_finding(damage, digest))
                        continue
                    self._warn(f"others' data is damaged: {damage.detail}; run `castore fsck`")
                    if digest is None:
                        self.bad_packs.add(info.path)
                    else:
                        self.bad.add((info.path, Digest(digest)))
        if findings:
            raise CorruptionError(
                "the device does not hold what was written; nothing was committed: "
                + "; ".join(f.detail for f in findings[:5]),
                findings=findings,
            )
        if self.relied & self.bad or any(path in self.bad_packs for path, _ in self.relied):
            raise _LookAgain(set())
        return clean

    def _forget(self, condemned: set[str] | None) -> None:
        """Before looking again: own packs that gc condemned are lost, and so are their chunks."""
        lost = set(self.finished) if condemned is None else condemned
        if condemned is None:
            self.s0 = None  # nothing of ours is left: the act's look-ups begin anew
        self.own = {d: path for d, path in self.own.items() if path not in lost}
        # Own meta packs are written anew in any case; nothing refers to the old ones.
        for path in list(self.finished):
            if path in lost or not self.finished[path].info.is_data:
                del self.finished[path]
                with contextlib.suppress(OSError):
                    self.parts.storage.delete(f"packs/{path}")

    # -- failure ----------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        """Delete the save's own packs: no entry names them, and none will."""
        storage = self.parts.storage
        with contextlib.suppress(OSError):
            for name in storage.list(f"packs/{self.id}"):
                with contextlib.suppress(OSError, ValueError):
                    storage.delete(f"packs/{self.id}/{name}")
            storage.remove_folder(f"packs/{self.id}")

    def _failed(self, e: OSError) -> CastoreError:
        storage = self.parts.storage
        left = max(0, self.description.logical_bytes - self.run_state.done_bytes)
        needed = self.run_state.new_bytes + left
        try:
            free: int | None = storage.free()
        except OSError:
            free = None
        where = e.filename or f"{storage.where}/packs/{self.id}"
        advice = "mend the cause and save again"
        room = ""
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            room = f" (the save may need {needed:,} bytes more"
            room += ")" if free is None else f", and {free:,} are free)"
            advice = "make room and save again; `castore gc` removes what killed saves left"
        return SaveFailed(
            f"the save failed: {e.strerror or e} at {where}{room}. Branch {self.options.branch} is "
            f"unchanged; {advice}",
            errno=e.errno,
            path=str(where),
            needed=needed,
            free=free,
        )


def _called(add: Add) -> str:
    """How a warning names a checkpoint."""
    digest = f"checkpoint {add.checkpoint.short}"
    return digest if add.step is None else f"step {add.step} ({digest})"


def _verify_changes(fold: Fold, clean: Iterable[str]) -> Sequence[Change]:
    paths = tuple(p for p in clean if p in fold.packs and p not in fold.verified)
    return (Verified(paths),) if paths else ()
