"""Loading: from a checkpoint to a state, every byte hashed and matched on the way.

The tree is read first, as far as it is asked for, and memory laid out for it (nothing is allocated
that the digests do not promise); then ``reading`` brings all chunks, verified; only then are the
Python objects made.  One wrong bit anywhere is an error that names checkpoint, key path, rows, pack
and offset; where another copy of a record is sound, it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from castore.errors import BadRevision, CheckpointGone, CorruptionError
from castore.log.fold import Fold, Live
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import (
    MAX_VALUES,
    CheckpointObject,
    child_node,
    children,
    read_tree,
)
from castore.model.packinfo import PackInfo
from castore.model.patterns import selection_of
from castore.packs.findings import Subject, record_finding
from castore.packs.reader import PackSet, RecordDamaged
from castore.pipeline.mapping import map_contents
from castore.pipeline.parts import Parts
from castore.pipeline.reading import ChunkReader, counted
from castore.reports import Finding, LoadReport
from castore.storage.protocol import Storage
from castore.system import monotonic

__all__ = [
    "LoadOptions",
    "Source",
    "corrupted",
    "find_value",
    "finding_of",
    "load",
    "read_checkpoint",
    "subject_of",
    "while_live",
]

Progress = Callable[[int], None]
T = TypeVar("T")


def subject_of(live: Live) -> Subject:
    """A live checkpoint as findings name it."""
    return Subject(live.digest.hex(), live.add.branch, live.add.step)


def read_checkpoint(
    storage: Storage, packs: Sequence[PackInfo] | PackSet, live: Live
) -> CheckpointObject:
    """The checkpoint object, checked against the log's words.

    Raises:
        CorruptionError: damaged or missing.
    """
    shelf = packs if isinstance(packs, PackSet) else PackSet(storage, packs)
    try:
        return CheckpointObject.parse(shelf.fetch(Kind.CHECKPOINT, live.digest))
    except RecordDamaged as e:
        raise corrupted(storage, [finding_of(live, e)]) from e
    except EncodingError as e:
        raise _malformed(storage, live, str(e)) from e


def finding_of(live: Live, e: RecordDamaged, path: str | None = None) -> Finding:
    """A damaged object of a checkpoint as a finding."""
    return record_finding(
        subject_of(live), e.damages[0], e.digest, path=path, what=e.kind.name.lower()
    )


def corrupted(
    storage: Storage, findings: list[Finding], outcome: str = "nothing was returned"
) -> CorruptionError:
    """The error for findings."""
    shown = "\n  ".join(f.detail for f in findings[:10])
    more = f"\n  ... and {len(findings) - 10} more" if len(findings) > 10 else ""
    return CorruptionError(
        f"{storage.where} is damaged; {outcome}:\n  {shown}{more}\n"
        f"`castore -s {storage.where} fsck` tells what else is hit and what is whole",
        findings=findings,
    )


def _malformed(storage: Storage, live: Live, detail: str) -> CorruptionError:
    subject = subject_of(live)
    finding = Finding(
        code="malformed-object",
        severity="damage",
        detail=f"{subject}: {detail}",
        checkpoint=subject.checkpoint,
        branch=subject.branch,
        step=subject.step,
    )
    return corrupted(storage, [finding])


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load; see :meth:`castore.Store.load`."""

    only: Any = None
    device: Any = None
    verify: bool = True
    mmap: bool = False
    progress: Progress | None = None


def load(
    parts: Parts, fold: Fold, live: Live, path: str | None, options: LoadOptions
) -> tuple[Any, LoadReport]:
    """The state of a live checkpoint, or the value at a key path in it.

    Raises:
        CorruptionError: something it needs is damaged; names each place.
        CheckpointGone: it was let go meanwhile.
        BadRevision: no such key path.
        UsageError: a pattern matches nothing, or a device is none.
    """
    return while_live(
        parts, fold, live, lambda live, packs: _load(parts, live, packs, path or "", options)
    )


def while_live(parts: Parts, fold: Fold, live: Live, act: Callable[[Live, list[PackInfo]], T]) -> T:
    """Do what reads a checkpoint's packs.

    A pack that is missing is looked for once more on a fresh fold: the checkpoint may have been
    let go, or a repack may have put another pack in its place.

    Raises:
        CheckpointGone: it was let go meanwhile.
    """
    while True:
        try:
            return act(live, fold.packs_of(live.digest))
        except CorruptionError as e:
            if not any(f.code in ("missing-pack", "unreadable") for f in e.findings):
                raise
            fold = parts.log.fold()
            now = fold.live.get(live.digest)
            if now is None:
                raise _gone(parts, fold, live) from e
            if now.packs == live.packs:
                raise
            live = now


def _gone(parts: Parts, fold: Fold, live: Live) -> CheckpointGone:
    seq = fold.gone.get(live.digest, 0)
    return CheckpointGone(
        f"checkpoint {live.digest.short} was let go while it was being read: "
        f"{parts.log.describe(seq)}",
        checkpoint=live.digest.hex(),
        seq=seq,
    )


def find_value(root: Digest, path: str, fetch: Callable[[Kind, Digest], bytes], rev: str) -> Any:
    """The decoded value at a key path: a container as ``TreeNode``, else the value itself.

    Raises:
        BadRevision: there is nothing there; names what is.
    """
    node: Any = read_tree(root, fetch, MAX_VALUES)
    done = ""
    rest = path.strip("/")
    while rest:
        if node.container == "value":
            raise BadRevision(f"{rev} is a single value: it has no {path!r}")
        below = dict(children(node))
        step, _, left = rest.partition("/")
        if step not in below:
            near = ", ".join(list(below)[:8]) + (", ..." if len(below) > 8 else "")
            holds = near or "nothing"
            raise BadRevision(f"{rev} has nothing at {path!r}: {done or 'the root'} holds {holds}")
        value = below[step]
        done = f"{done}/{step}" if done else step
        rest = left
        child = child_node(value, fetch, MAX_VALUES)
        if child is None:
            if rest:
                raise BadRevision(f"{rev} has nothing at {path!r}: {done} is no container")
            return value
        node = child
    return node


class Source:
    """One checkpoint, open for reading: its packs, its object, and what is counted.

    Used in a ``with``: what is met inside and means damage becomes a :class:`CorruptionError`.
    """

    def __init__(self, parts: Parts, live: Live, packs: list[PackInfo]) -> None:
        self.parts = parts
        self.live = live
        self.storage, self._count = counted(parts.storage)
        self.shelf = PackSet(self.storage, packs)
        self.path = ""
        self._began = monotonic()
        self._objects = 0

    def __enter__(self) -> Source:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, RecordDamaged):
            raise corrupted(
                self.storage, [finding_of(self.live, error, self.path or None)]
            ) from error
        if isinstance(error, EncodingError):
            raise _malformed(self.storage, self.live, str(error)) from error
        return False

    def fetch(self, kind: Kind, digest: Digest) -> bytes:
        """An object's verified bytes."""
        self._objects += 1
        return self.shelf.fetch(kind, digest)

    def find(self, path: str) -> tuple[Any, CheckpointObject]:
        """The value at a key path, and the checkpoint's object.

        Raises:
            BadRevision: there is nothing there.
        """
        self.path = path.strip("/")
        checkpoint = read_checkpoint(self.storage, self.shelf, self.live)
        self._objects += 1
        if checkpoint.root != self.live.add.root:
            raise EncodingError("its root is not the one that the log names")
        if checkpoint.chunk_size != self.parts.config.chunk_size:
            raise EncodingError(f"its chunk size {checkpoint.chunk_size} is not the store's")
        value = find_value(checkpoint.root, self.path, self.fetch, self.live.digest.short)
        return value, checkpoint

    def reader(self, *, verify: bool = True, progress: Progress | None = None) -> ChunkReader:
        """What reads its chunks."""
        return ChunkReader(
            self.storage, self.shelf, subject_of(self.live), verify=verify, progress=progress
        )

    def report(
        self, reader: ChunkReader, *, mapped: int = 0, skipped: Sequence[str] = ()
    ) -> LoadReport:
        """What was done."""
        return LoadReport(
            self.live.digest.hex(),
            self._count.bytes_read,
            monotonic() - self._began,
            skipped=tuple(skipped),
            healed=tuple(d.detail for d in (*self.shelf.healed, *reader.healed)),
            chunks=reader.chunks,
            objects=self._objects,
            mapped_bytes=mapped,
        )


def _load(
    parts: Parts, live: Live, packs: list[PackInfo], path: str, options: LoadOptions
) -> tuple[Any, LoadReport]:
    from castore.state import plan_state

    with Source(parts, live, packs) as source:
        value, checkpoint = source.find(path)
        plan = plan_state(
            value,
            source.fetch,
            checkpoint.chunk_size,
            path=source.path,
            max_bytes=checkpoint.logical_bytes,
            selection=selection_of(options.only),
            device=options.device,
            allocate=False,
        )
        reader = source.reader(verify=options.verify, progress=options.progress)
        reads, mapped = plan.reads, 0
        if options.mmap:
            reads, mapped = map_contents(source.storage, reader, reads, verify=options.verify)
        plan.allocate()
        reader.read(reads)
        if reader.findings:
            raise corrupted(parts.storage, reader.findings)
        state = plan.finish(readonly=options.mmap)
        return state, source.report(reader, mapped=mapped)
