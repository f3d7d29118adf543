"""Loading: from a checkpoint to a state, every byte hashed and matched on the way.

The tree is read first and memory laid out for it (nothing is allocated that the digests do not
promise); then all chunks are read by several threads straight into place and hashed there; only
then are the Python objects made.  One wrong bit anywhere is an error that names checkpoint, key
path, rows, pack and offset; where another copy of a record is sound, it serves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from castore.errors import BadRevision, CheckpointGone, CorruptionError
from castore.log.fold import Fold, Live
from castore.model.digest import Digest, Kind, chunk_digest
from castore.model.encoding import EncodingError
from castore.model.objects import (
    MAX_VALUES,
    CheckpointObject,
    child_node,
    children,
    read_tree,
)
from castore.model.packinfo import PackInfo
from castore.packs.findings import Subject, record_finding
from castore.packs.reader import ChunkMap, Damage, Location, PackSet, RecordDamaged, read_record
from castore.pipeline.parts import Parts
from castore.reports import Finding, LoadReport
from castore.storage.protocol import Storage
from castore.system import monotonic, worker_threads

if TYPE_CHECKING:
    from castore.state import Read

__all__ = ["find_value", "load", "read_checkpoint", "subject_of"]

#: Small records that lie close together in a pack are read in one go of at most this many bytes.
RUN_BYTES = 4 << 20
#: ... where at most this many bytes between them are read for nothing.
RUN_GAP = 64 << 10
#: Contents above this are read straight into place, chunk by chunk.
LARGE = 64 << 10
#: More findings than this help nobody.
MAX_FINDINGS = 100


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


def corrupted(storage: Storage, findings: list[Finding]) -> CorruptionError:
    """The error for findings."""
    shown = "\n  ".join(f.detail for f in findings[:10])
    more = f"\n  ... and {len(findings) - 10} more" if len(findings) > 10 else ""
    return CorruptionError(
        f"{storage.where} is damaged; nothing was returned:\n  {shown}{more}\n"
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


def load(
    parts: Parts, fold: Fold, live: Live, path: str | None, *, verify: bool = True,
    progress: Callable[[int], None] | None = None,
) -> tuple[Any, LoadReport]:  # fmt: skip
    """The state of a live checkpoint, or the value at a key path in it.

    A pack that is missing is looked for once more on a fresh fold: the checkpoint may have been
    let go, or a repack may have put another pack in its place.

    Raises:
        CorruptionError: something it needs is damaged; names each place.
        CheckpointGone: it was let go meanwhile.
        BadRevision: no such key path.
    """
    while True:
        try:
            packs = fold.packs_of(live.digest)
            return _Load(parts, live, packs, verify, progress).run(path)
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


class _Small(NamedTuple):
    """A content of one small raw chunk: where from, and where to."""

    pack: PackInfo
    offset: int
    length: int
    out: memoryview
    read: Read


@dataclass(slots=True)
class _Chunk:
    """One chunk to read: where to, and where from."""

    read: Read
    digest: Digest
    start: int
    stop: int
    places: list[Location]


@dataclass(slots=True)
class _Load:
    parts: Parts
    live: Live
    packs: list[PackInfo]
    verify: bool
    progress: Callable[[int], None] | None
    began: float = field(default_factory=monotonic)
    bytes_read: int = 0
    findings: list[Finding] = field(default_factory=list)
    healed: list[Damage] = field(default_factory=list)

    def run(self, path: str | None) -> tuple[Any, LoadReport]:
        from castore.state import plan_state

        parts, live = self.parts, self.live
        shelf = PackSet(parts.storage, self.packs)
        checkpoint = read_checkpoint(parts.storage, shelf, live)
        try:
            if checkpoint.root != live.add.root:
                raise EncodingError("its root is not the one that the log names")
            if checkpoint.chunk_size != parts.config.chunk_size:
                raise EncodingError(f"its chunk size {checkpoint.chunk_size} is not the store's")
            node = find_value(checkpoint.root, path or "", shelf.fetch, live.digest.short)
            plan = plan_state(
                node,
                shelf.fetch,
                checkpoint.chunk_size,
                path=(path or "").strip("/"),
                max_bytes=checkpoint.logical_bytes,
            )
            self._read_all(shelf, plan.reads)
            if self.findings:
                raise corrupted(parts.storage, self.findings)
            state = plan.finish()
        except RecordDamaged as e:
            raise corrupted(parts.storage, [finding_of(live, e, path)]) from e
        except EncodingError as e:
            raise _malformed(parts.storage, live, str(e)) from e
        report = LoadReport(
            live.digest.hex(),
            self.bytes_read,
            monotonic() - self.began,
            healed=tuple(d.detail for d in (*shelf.healed, *self.healed)),
        )
        return state, report

    # -- chunks -----------------------------------------------------------------------------------

    def _read_all(self, shelf: PackSet, reads: Sequence[Read]) -> None:
        chunks = shelf.chunk_map()
        large: list[_Chunk] = []
        small: list[_Small] = []
        for read in reads:
            out = read.out
            if out is None:
                read.data = self._whole(shelf, read, chunks)
                continue
            if len(out) <= LARGE and len(read.digests) == 1:
                place = chunks.raw_place(read.digests[0])
                if place is not None and place[2] == len(out):
                    small.append(_Small(*place, out, read))
                    continue
            for digest, (start, stop) in zip(read.digests, read.grid.spans(), strict=True):
                chunk = _Chunk(read, digest, start, stop, chunks.places(digest))
                if chunk.places:
                    large.append(chunk)
                else:
                    self._lost(shelf, chunk)
        tasks = [
            *(partial(self._read_large, chunk) for chunk in large),
            *(partial(self._read_run, run, chunks) for run in _runs(small)),
        ]
        with ThreadPoolExecutor(worker_threads(), thread_name_prefix="castore-read") as pool:
            _run_bounded(pool, tasks, 4 * worker_threads(), self._count)

    def _count(self, n: int) -> None:
        self.bytes_read += n
        if self.progress is not None:
            self.progress(n)

    def _whole(self, shelf: PackSet, read: Read, chunks: ChunkMap) -> bytes:
        """A content whose length only its chunks know."""
        out = []
        for digest in read.digests:
            damages: list[Damage] = []
            for place in chunks.places(digest):
                try:
                    out.append(bytes(read_record(self.parts.storage, place)))
                    break
                except RecordDamaged as e:
                    damages += e.damages
            else:
                damages = damages or shelf.missing(digest, Kind.CHUNK, data=True)
                self._found(damages[0], digest, read.path, None)
        self._count(sum(map(len, out)))
        return b"".join(out)

    def _read_large(self, chunk: _Chunk) -> int:
        """Read a chunk straight into place, and hash it there."""
        assert chunk.read.out is not None
        with chunk.read.out[chunk.start : chunk.stop] as out:
            self._from_places(chunk, out, chunk.places, [])
        return chunk.stop - chunk.start

    def _from_places(
        self, chunk: _Chunk, out: memoryview, places: Sequence[Location], damages: list[Damage]
    ) -> None:
        for place in places:
            if place.record.raw_len != len(out):
                damages.append(
                    Damage("damaged-record", place.pack.path, place.record.offset,
                           f"{len(out)} bytes", f"{place.record.raw_len} bytes",
                           f"{place.pack.path} at {place.record.offset}: a chunk of "
                           f"{place.record.raw_len} bytes where {len(out)} belong")
                )  # fmt: skip
                continue
            try:
                read_record(self.parts.storage, place, out, check=self.verify)
            except RecordDamaged as e:
                damages += e.damages
                continue
            self.healed += damages
            return
        rows = chunk.read.grid.rows_of(chunk.start, chunk.stop)
        self._found(damages[0], chunk.digest, chunk.read.path, rows)

    def _read_run(self, run: list[_Small], chunks: ChunkMap) -> int:
        """Read neighbouring small chunks in one go, then hash and place each."""
        begin = run[0].offset
        buffer = memoryview(bytearray(run[-1].offset + run[-1].length - begin))
        there = 0
        with contextlib.suppress(OSError):  # then each chunk is tried by itself, and named
            there = self.parts.storage.read_into(run[0].pack.file, begin, buffer)
        total = 0
        for item in run:
            at = item.offset - begin
            data = buffer[at : at + item.length]
            digest = item.read.digests[0]
            if at + item.length <= there and (not self.verify or chunk_digest(data) == digest):
                item.out[:] = data
            else:
                chunk = _Chunk(item.read, digest, 0, item.length, chunks.places(digest))
                self._from_places(chunk, item.out, chunk.places, [])
            total += item.length
        return total

    def _lost(self, shelf: PackSet, chunk: _Chunk) -> None:
        damage = shelf.missing(chunk.digest, Kind.CHUNK, data=True)[0]
        rows = chunk.read.grid.rows_of(chunk.start, chunk.stop)
        self._found(damage, chunk.digest, chunk.read.path, rows)

    def _found(
        self, damage: Damage, digest: Digest, path: str, rows: tuple[int, int] | None
    ) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(
                record_finding(subject_of(self.live), damage, digest, path=path, rows=rows)
            )


def _runs(small: list[_Small]) -> Iterator[list[_Small]]:
    """Small chunks by neighbourhood in their packs."""
    small.sort(key=lambda s: (s.pack.path, s.offset))
    run: list[_Small] = []
    for item in small:
        if run and (
            item.pack is not run[0].pack
            or item.offset - (run[-1].offset + run[-1].length) > RUN_GAP
            or item.offset + item.length - run[0].offset > RUN_BYTES
        ):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _run_bounded(
    pool: ThreadPoolExecutor,
    tasks: Sequence[Callable[[], int]],
    limit: int,
    done: Callable[[int], None],
) -> None:
    """Run tasks, at most ``limit`` waiting at once, so that memory does not grow with them."""
    flying: set[Future[int]] = set()
    try:
        for task in tasks:
            if len(flying) >= limit:
                finished, flying = wait(flying, return_when=FIRST_COMPLETED)
                for future in finished:
                    done(future.result())
            flying.add(pool.submit(task))
        for future in flying:
            done(future.result())
    except BaseException:
        for future in flying:
            future.cancel()
        raise
