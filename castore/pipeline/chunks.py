"""Steps 3a of a save: every content is cut, hashed on all cores, looked up, and written if new.

Worker threads hash; one thread, the caller's, looks digests up and lays new chunks down in the
order of the state, so a tensor's chunks lie back to back.  What is written is the very buffer that
was hashed: a chunk that may be new is copied to a private buffer first, and hashed there, so that
nothing the trainer does meanwhile can come between the digest and the bytes.  A chunk that is
probably known (its tensor's last one was) is hashed where it lies, and not copied at all.

Memory is bounded: a few buffers of one chunk each.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from castore.model.digest import Buffer, Digest, chunk_digest
from castore.model.objects import DataValue
from castore.packs.writer import ALIGNMENT
from castore.system import worker_threads

__all__ = ["ChunkRun", "Put", "hash_contents"]

#: Contents of at most this many bytes, one chunk each, are hashed in batches.
SMALL = 64 << 10
#: Bytes and contents of one batch.
BATCH_BYTES = 1 << 20
BATCH_CONTENTS = 512
#: A chunk below this is copied before it is hashed in any case: the copy is too cheap to save.
PROBE_FROM = 256 << 10

#: Where a chunk is known to be, or None.
Known = Callable[[Sequence[Digest]], list[str | None]]


class Put(Protocol):
    """Where new chunks go."""

    def chunk(self, digest: Digest, data: Buffer, begins: bool) -> None:
        """Append one; ``begins`` where a tensor begins with it."""

    def batch(
        self, digests: Sequence[Digest], data: memoryview, starts: list[int], ends: list[int]
    ) -> None:
        """Append several that lie in ``data``, each start aligned, gaps zero."""


@dataclass(slots=True)
class ChunkRun:
    """What one pass over the contents came to.

    Attributes:
        new_bytes: bytes of chunks that were not known.
        done_bytes: bytes of contents dealt with so far.
    """

    new_bytes: int = 0
    done_bytes: int = 0
    beat: Callable[[], None] = field(default=lambda: None)
    progress: Callable[[int], None] | None = None


@dataclass(slots=True)
class _Piece:
    """One task: a chunk of a content, or a batch of small contents."""

    contents: list[DataValue]
    start: int
    stop: int

    @property
    def batch(self) -> bool:
        return len(self.contents) > 1


def _pieces(contents: Sequence[DataValue]) -> Iterator[_Piece]:
    batch: list[DataValue] = []
    size = 0
    for content in contents:
        n = content.source.nbytes
        if n <= SMALL and n <= content.grid.chunk_size and _one_chunk(content):
            batch.append(content)
            size += n
            if size >= BATCH_BYTES or len(batch) >= BATCH_CONTENTS:
                yield _Piece(batch, 0, size)
                batch, size = [], 0
            continue
        if batch:
            yield _Piece(batch, 0, size)
            batch, size = [], 0
        for start, stop in content.grid.spans():
            yield _Piece([content], start, stop)
    if batch:
        yield _Piece(batch, 0, size)


def _one_chunk(content: DataValue) -> bool:
    grid = content.grid
    return grid.nbytes <= grid.chunk_size and not grid.row_offset


class _Slots:
    """Private buffers of one chunk each, made when first needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> mmap.mmap:
        """A buffer.  Never waits: as many are in use at once as there are tasks in flight."""
        try:
            return self._free.pop()
        except IndexError:
            return mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give(self, slot: mmap.mmap) -> None:
        self._free.append(slot)


@dataclass(slots=True)
class _Hashed:
    digests: list[Digest]
    slot: mmap.mmap | None
    starts: list[int]
    ends: list[int]


def _hash_in_place(piece: _Piece, view: memoryview) -> _Hashed:
    return _Hashed([chunk_digest(view[piece.start : piece.stop])], None, [], [])


def _hash_copy(piece: _Piece, slots: _Slots) -> _Hashed:
    slot = slots.take()
    with memoryview(slot) as whole:
        if not piece.batch:
            n = piece.stop - piece.start
            piece.contents[0].source.fill(whole[:n], piece.start)
            return _Hashed([chunk_digest(whole[:n])], slot, [0], [n])
        digests: list[Digest] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for content in piece.contents:
            end = at + content.source.nbytes
            part = whole[at:end]
            content.source.fill(part, 0)
            digests.append(chunk_digest(part))
            starts.append(at)
            ends.append(end)
            at = end + -end % ALIGNMENT
            if at != end:
                whole[end:at] = bytes(at - end)
        return _Hashed(digests, slot, starts, ends)


def hash_contents(
    contents: Sequence[DataValue], chunk_size: int, known: Known, put: Put, run: ChunkRun
) -> None:
    """Give every content its digests; hand each chunk that is not known to ``put``, once."""
    for content in contents:
        if content.inline is None:
            content.digests = []
    slots = _Slots(max(chunk_size, BATCH_BYTES + SMALL + BATCH_CONTENTS * ALIGNMENT))
    threads = worker_threads()
    flying: deque[tuple[_Piece, Future[_Hashed]]] = deque()
    likely: dict[int, bool] = {}  # content -> whether its last chunk was known
    pieces = _pieces([c for c in contents if c.inline is None])

    with ThreadPoolExecutor(threads, thread_name_prefix="castore-hash") as pool:

        def launch() -> bool:
            piece = next(pieces, None)
            if piece is None:
                return False
            content = piece.contents[0]
            view = None
            if (
                not piece.batch
                and piece.stop - piece.start >= PROBE_FROM
                and likely.get(id(content), True)
            ):
                view = content.source.view()
            if view is not None:
                flying.append((piece, pool.submit(_hash_in_place, piece, view)))
            else:
                flying.append((piece, pool.submit(_hash_copy, piece, slots)))
            return True

        try:
            for _ in range(threads + 2):
                launch()
            while flying:
                piece, future = flying.popleft()
                hashed = future.result()
                where = known(hashed.digests)
                if hashed.slot is None and where[0] is None:
                    # Not known after all: copy, hash the copy, look that up.
                    hashed = pool.submit(_hash_copy, piece, slots).result()
                    where = known(hashed.digests)
                launch()
                _settle(piece, hashed, where, put, run)
                if not piece.batch:
                    likely[id(piece.contents[0])] = where[0] is not None
                if hashed.slot is not None:
                    slots.give(hashed.slot)
                run.done_bytes += piece.stop - piece.start
                run.beat()
                if run.progress is not None:
                    run.progress(piece.stop - piece.start)
        except BaseException:
            for _, future in flying:
                future.cancel()
            raise


def _settle(
    piece: _Piece, hashed: _Hashed, where: list[str | None], put: Put, run: ChunkRun
) -> None:
    """Note the digests, and lay down what is new (once, should it be there twice)."""
    with memoryview(hashed.slot if hashed.slot is not None else b"") as whole:
        if not piece.batch:
            digests = piece.contents[0].digests
            assert digests is not None
            begins = not digests
            digests.append(hashed.digests[0])
            if where[0] is None:
                with whole[: hashed.ends[0]] as data:
                    put.chunk(hashed.digests[0], data, begins)
                run.new_bytes += hashed.ends[0]
            return
        for content, digest in zip(piece.contents, hashed.digests, strict=True):
            content.digests = [digest]
        if not any(where) and len(set(hashed.digests)) == len(hashed.digests):
            with whole[: hashed.ends[-1]] as data:
                put.batch(hashed.digests, data, hashed.starts, hashed.ends)
            run.new_bytes += piece.stop
            return
        fresh: set[Digest] = set()
        for i, digest in enumerate(hashed.digests):
            if where[i] is None and digest not in fresh:
                fresh.add(digest)
                with whole[hashed.starts[i] : hashed.ends[i]] as data:
                    put.chunk(digest, data, True)
                run.new_bytes += hashed.ends[i] - hashed.starts[i]
