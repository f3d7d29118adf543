"""Reading single chunks of live checkpoints, for whoever looks into tensors without loading them.

What is handed out was hashed and matched; where no copy of a chunk is sound, one error names the
checkpoint, key path, rows, pack and offset.  Work is spread over all cores with a bounded number of
chunks in memory, and its results come in the order it was given out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from castore.errors import CheckpointGone, CorruptionError
from castore.log.fold import Fold, Live
from castore.model.digest import Digest, Kind
from castore.packs.findings import record_finding
from castore.packs.reader import ChunkMap, Damage, Location, PackSet, RecordDamaged, read_record
from castore.pipeline.load import corrupted, subject_of
from castore.pipeline.parts import Parts
from castore.storage.protocol import Storage
from castore.system import worker_threads

__all__ = ["ChunkReader", "in_order", "on_a_fresh_fold"]

T = TypeVar("T")


class ChunkReader:
    """Reads the chunks of one live checkpoint.  Thread-safe.

    Attributes:
        chunks_read, bytes_read: what was handed out so far.
        healed: damage that was met and that another copy made good.
    """

    def __init__(self, storage: Storage, shelf: PackSet, live: Live) -> None:
        self._storage = storage
        self._shelf = shelf
        self._live = live
        self._map: ChunkMap | None = None
        self._lock = threading.Lock()
        self.chunks_read = 0
        self.bytes_read = 0
        self.healed: list[Damage] = []

    def places(self, digest: Digest) -> list[Location]:
        """Every place of a chunk; the tables of all data packs are read when this is first asked.

        A pack whose table cannot be had has none.
        """
        with self._lock:
            if self._map is None:
                self._map = self._shelf.chunk_map()
        return self._map.places(digest)

    def read(self, digest: Digest, nbytes: int, path: str, rows: tuple[int, int]) -> memoryview:
        """A chunk of ``nbytes`` bytes, hashed; ``path`` and ``rows`` are for the error.

        Raises:
            CorruptionError: no copy of it is sound.
        """
        damages: list[Damage] = []
        for place in self.places(digest):
            record = place.record
            if record.raw_len != nbytes:
                damages.append(
                    Damage("damaged-record", place.pack.path, record.offset, f"{nbytes} bytes",
                           f"{record.raw_len} bytes",
                           f"{place.pack.path} at {record.offset}: a chunk of {record.raw_len} "
                           f"bytes where {nbytes} belong")
                )  # fmt: skip
                continue
            try:
                data = memoryview(read_record(self._storage, place))
            except RecordDamaged as e:
                damages += e.damages
                continue
            with self._lock:
                self.chunks_read += 1
                self.bytes_read += nbytes
                self.healed += damages
            return data
        damages = damages or self._shelf.missing(digest, Kind.CHUNK, data=True)
        finding = record_finding(subject_of(self._live), damages[0], digest, path=path, rows=rows)
        raise corrupted(self._storage, [finding])


def in_order(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of tasks that run on all cores, in the tasks' order.

    At most two more tasks than threads are under way or done and not taken, so memory does not grow
    with them.  An error of a task is raised in its place, and what was not begun is not done.
    """
    flying: deque[Future[T]] = deque()
    threads = worker_threads()
    with ThreadPoolExecutor(threads, thread_name_prefix="castore-look") as pool:
        try:
            for task in tasks:
                flying.append(pool.submit(task))
                if len(flying) > threads + 1:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
        finally:
            for future in flying:
                future.cancel()


def on_a_fresh_fold(
    parts: Parts, fold: Fold, lives: Sequence[Live], act: Callable[[Fold, Sequence[Live]], T]
) -> T:
    """``act(fold, lives)``; again on a fresh fold where a pack was missing that is needed no more.

    A repack may have put another pack in its place while ``act`` was reading.

    Raises:
        CheckpointGone: one of the checkpoints was let go meanwhile.
        CorruptionError: the pack is still needed.
    """
    while True:
        try:
            return act(fold, lives)
        except CorruptionError as e:
            if not any(f.code in ("missing-pack", "unreadable") for f in e.findings):
                raise
            fold = parts.log.fold()
            now = [_still_live(parts, fold, live) for live in lives]
            if [live.packs for live in now] == [live.packs for live in lives]:
                raise
            lives = now


def _still_live(parts: Parts, fold: Fold, live: Live) -> Live:
    if live.digest in fold.live:
        return fold.live[live.digest]
    seq = fold.gone.get(live.digest, 0)
    raise CheckpointGone(
        f"checkpoint {live.digest.short} was let go while it was being read: "
        f"{parts.log.describe(seq)}",
        checkpoint=live.digest.hex(),
        seq=seq,
    )
