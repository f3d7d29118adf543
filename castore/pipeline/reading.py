"""Reading the contents of a checkpoint: chunk by chunk, on all cores, every byte verified.

A content with fresh memory of its own is read straight into place and hashed there: nobody sees it
before all is sound.  Any other (memory of the caller's, or of a device) is read into a buffer of
one chunk, hashed there while it is in the processor's cache, and only then copied into place.
Small neighbours are read in one go.  Where one copy of a chunk is bad another serves; where none is
sound there is a finding, and nothing more is copied into what belongs to the caller.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, cast

from castore.model.digest import Digest, Kind, chunk_digest
from castore.model.packinfo import PackInfo
from castore.packs.findings import Subject, record_finding
from castore.packs.reader import ChunkMap, Damage, Location, PackSet, RecordDamaged, read_record
from castore.reports import Finding
from castore.storage.protocol import Storage
from castore.system import worker_threads

if TYPE_CHECKING:
    from castore.state import Read

__all__ = ["ChunkReader", "Counted", "counted", "run_bounded"]

#: Small records that lie close together in a pack are read in one go of at most this many bytes.
RUN_BYTES = 4 << 20
#: ... where at most this many bytes between them are read for nothing.
RUN_GAP = 64 << 10
#: Contents above this are read chunk by chunk.
LARGE = 64 << 10
#: More findings than this help nobody.
MAX_FINDINGS = 100


class Counted:
    """A medium that counts the bytes read from it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self.bytes_read = 0

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """As the medium has it."""
        data = self._storage.read(name, offset, length)
        self._count(len(data))
        return data

    def read_into(self, name: str, offset: int, out: memoryview, *, device: bool = False) -> int:
        """As the medium has it."""
        n = self._storage.read_into(name, offset, out, device=device)
        self._count(n)
        return n

    def _count(self, n: int) -> None:
        with self._lock:
            self.bytes_read += n

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)


def counted(storage: Storage) -> tuple[Storage, Counted]:
    """A medium whose reads are counted: to read from, and to look at the count."""
    counter = Counted(storage)
    return cast("Storage", counter), counter


class _Small(NamedTuple):
    """A content of one small raw chunk: where from, and where to."""

    pack: PackInfo
    offset: int
    length: int
    read: Read


@dataclass(slots=True)
class _Chunk:
    """One chunk to read: where to, and where from."""

    read: Read
    digest: Digest
    start: int
    stop: int
    places: list[Location]


class ChunkReader:
    """Reads contents of one checkpoint.

    Attributes:
        findings: what is damaged, each place.
        healed: damage that was met where another copy served.
        chunks: chunks read.
    """

    def __init__(
        self,
        storage: Storage,
        shelf: PackSet,
        subject: Subject,
        *,
        verify: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._shelf = shelf
        self._subject = subject
        self._verify = verify
        self._progress = progress
        self._map: ChunkMap | None = None
        self._buffers: SimpleQueue[memoryview] = SimpleQueue()
        self._placing = True
        self.findings: list[Finding] = []
        self.healed: list[Damage] = []
        self.chunks = 0

    @property
    def map(self) -> ChunkMap:
        """Where the chunks lie.  The packs' tables are read when this is first asked for."""
        if self._map is None:
            self._map = self._shelf.chunk_map()
        return self._map

    def check(self, reads: Sequence[Read]) -> None:
        """Read and hash contents, and place nothing."""
        self._placing = False
        try:
            self.read(reads)
        finally:
            self._placing = True

    def read(self, reads: Sequence[Read]) -> None:
        """Read contents, each into its place; what is damaged is in :attr:`findings`."""
        if not reads:
            return
        chunks = self.map
        large: list[_Chunk] = []
        small: list[_Small] = []
        for read in reads:
            if not read.sized:
                read.data = self._whole(read)
                continue
            if read.nbytes <= LARGE and len(read.digests) == 1 and read.whole:
                place = chunks.raw_place(read.digests[0])
                if place is not None and place[2] == read.grid.nbytes:
                    small.append(_Small(*place, read))
                    continue
            for digest, start, stop in read.pieces():
                chunk = _Chunk(read, digest, start, stop, chunks.places(digest))
                if chunk.places:
                    large.append(chunk)
                else:
                    self._lost(chunk)
        self.run(
            [
                *(partial(self._read_large, chunk) for chunk in large),
                *(partial(self._read_run, run) for run in _runs(small)),
            ]
        )

    def run(self, tasks: Sequence[Callable[[], tuple[int, int]]]) -> None:
        """Do tasks on all cores; each gives the numbers of chunks and bytes it dealt with."""
        if tasks:
            threads = worker_threads()
            with ThreadPoolExecutor(threads, thread_name_prefix="castore-read") as pool:
                run_bounded(pool, tasks, 4 * threads, lambda done: self._count(*done))

    def _count(self, chunks: int, nbytes: int) -> None:
        self.chunks += chunks
        if self._progress is not None:
            self._progress(nbytes)

    @contextlib.contextmanager
    def _buffer(self, nbytes: int) -> Iterator[memoryview]:
        """A buffer that stays with this load, so that its pages and cache lines are warm."""
        try:
            whole = self._buffers.get_nowait()
        except Empty:
            whole = memoryview(bytearray(max(nbytes, RUN_BYTES)))
        if len(whole) < nbytes:
            whole = memoryview(bytearray(nbytes))
        try:
            with whole[:nbytes] as part:
                yield part
        finally:
            self._buffers.put(whole)

    def _whole(self, read: Read) -> bytes:
        """A content whose length only its chunks know."""
        out = []
        for digest in read.digests:
            damages: list[Damage] = []
            for place in self.map.places(digest):
                try:
                    out.append(bytes(read_record(self._storage, place)))
                    break
                except RecordDamaged as e:
                    damages += e.damages
            else:
                damages = damages or self._shelf.missing(digest, Kind.CHUNK, data=True)
                self._found(damages[0], digest, read.path, None)
        self._count(len(read.digests), sum(map(len, out)))
        return b"".join(out)

    def _read_large(self, chunk: _Chunk) -> tuple[int, int]:
        nbytes = chunk.stop - chunk.start
        whole = chunk.read.out if self._placing else None
        if whole is not None:
            with whole[chunk.start : chunk.stop] as out:
                self._from_places(chunk, out)
        else:
            with self._buffer(nbytes) as buffer:
                self._by_buffer(chunk, buffer)
        return 1, nbytes

    def _by_buffer(self, chunk: _Chunk, buffer: memoryview) -> None:
        """Read a chunk into a buffer, hash it there, and hand it on."""
        if self._from_places(chunk, buffer):
            self._place(chunk.read, chunk.start, buffer)

    def _place(self, read: Read, start: int, data: memoryview) -> None:
        # After damage the error is certain: leave the caller's memory alone from then on.
        if self._placing and not self.findings:
            read.put(start, data)

    def _from_places(self, chunk: _Chunk, out: memoryview) -> bool:
        """A chunk's bytes from whichever copy is sound; False if there is none."""
        damages: list[Damage] = []
        for place in chunk.places:
            if place.record.raw_len != len(out):
                damages.append(
                    Damage("damaged-record", place.pack.path, place.record.offset,
                           f"{len(out)} bytes", f"{place.record.raw_len} bytes",
                           f"{place.pack.path} at {place.record.offset}: a chunk of "
                           f"{place.record.raw_len} bytes where {len(out)} belong")
                )  # fmt: skip
                continue
            try:
                read_record(self._storage, place, out, check=self._verify)
            except RecordDamaged as e:
                damages += e.damages
                continue
            self.healed += damages
            return True
        rows = chunk.read.grid.rows_of(chunk.start, chunk.stop)
        self._found(damages[0], chunk.digest, chunk.read.path, rows)
        return False

    def _read_run(self, run: list[_Small]) -> tuple[int, int]:
        """Read neighbouring small chunks in one go, then hash and place each."""
        begin = run[0].offset
        total = 0
        with self._buffer(run[-1].offset + run[-1].length - begin) as buffer:
            there = 0
            with contextlib.suppress(OSError):  # then each chunk is tried by itself, and named
                there = self._storage.read_into(run[0].pack.file, begin, buffer)
            for item in run:
                at = item.offset - begin
                data = buffer[at : at + item.length]
                digest = item.read.digests[0]
                total += item.length
                if at + item.length <= there and (not self._verify or chunk_digest(data) == digest):
                    self._place(item.read, 0, data)
                else:
                    chunk = _Chunk(item.read, digest, 0, item.length, self.map.places(digest))
                    self._by_buffer(chunk, data)
        return len(run), total

    def _lost(self, chunk: _Chunk) -> None:
        damage = self._shelf.missing(chunk.digest, Kind.CHUNK, data=True)[0]
        rows = chunk.read.grid.rows_of(chunk.start, chunk.stop)
        self._found(damage, chunk.digest, chunk.read.path, rows)

    def _found(
        self, damage: Damage, digest: Digest, path: str, rows: tuple[int, int] | None
    ) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(
                record_finding(self._subject, damage, digest, path=path, rows=rows)
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


def run_bounded(
    pool: ThreadPoolExecutor,
    tasks: Sequence[Callable[[], tuple[int, int]]],
    limit: int,
    done: Callable[[tuple[int, int]], None],
) -> None:
    """Run tasks, at most ``limit`` waiting at once, so that memory does not grow with them."""
    flying: set[Future[tuple[int, int]]] = set()
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
