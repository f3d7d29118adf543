"""A new file, written once from front to back past the page cache.

Bytes are gathered in page-aligned buffers and written by a few threads with O_DIRECT where the
file system takes it (two to four times the page cache's speed, and the trainer's cache stays its
own), else buffered.  Always fsynced before ``finish`` returns; an fsync that failed is never
retried.  Used by :mod:`castore.storage.local` alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

__all__ = ["BLOCK", "PAGE", "BufferPool", "StreamFile"]

#: Alignment of every write and of every file's size.
PAGE = 4096
#: Bytes that one write carries.
BLOCK = 4 << 20


class BufferPool:
    """Page-aligned buffers, and the bound on how many may be on their way to the device.

    The buffer that a file is filling never waits, or files begun together could wait for one
    another for ever; handing over a full one does.
    """

    def __init__(self, in_flight: int, size: int = BLOCK) -> None:
        self._free: SimpleQueue[mmap.mmap] = SimpleQueue()
        self._kept = in_flight + 1
        self._room = threading.Semaphore(in_flight)
        self._size = size

    def take(self) -> mmap.mmap:
        """A buffer whose contents are anything."""
        try:
            return self._free.get_nowait()
        except Empty:
            # Private: a forked child must never find its bytes in its parent's buffers.
            return mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give(self, buffer: mmap.mmap) -> None:
        """Return a buffer."""
        if self._free.qsize() < self._kept:
            self._free.put(buffer)

    def depart(self) -> None:
        """Wait until one more may be on its way."""
        self._room.acquire()

    def arrive(self) -> None:
        """One that departed is written, or failed."""
        self._room.release()


class StreamFile:
    """See :class:`castore.storage.protocol.NewFile`.  Not thread-safe: one thread appends."""

    def __init__(self, fd: int, direct: bool, pool: BufferPool, threads: ThreadPoolExecutor):
        self._fd = fd
        self._direct = direct
        self._pool = pool
        self._threads = threads
        self._pending: list[Future[None]] = []
        self._buffer: mmap.mmap | None = None
        self._used = 0
        self._written = 0  # bytes handed to the writing threads

    @property
    def position(self) -> int:
        """Bytes appended so far."""
        return self._written + self._used

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes into the stream; waits while enough of them are on their way."""
        view = memoryview(data).cast("B")
        start, end = 0, len(view)
        while start < end:
            if self._buffer is None:
                self._raise_failed()
                self._buffer = self._pool.take()
            n = min(end - start, BLOCK - self._used)
            self._buffer[self._used : self._used + n] = view[start : start + n]
            self._used += n
            start += n
            if self._used == BLOCK:
                self._flush()

    def _flush(self) -> None:
        buffer, n = self._buffer, self._used
        assert buffer is not None
        self._buffer, self._used = None, 0
        self._pool.depart()
        try:
            self._pending.append(self._threads.submit(self._write, buffer, n, self._written))
        except BaseException:
            self._pool.arrive()
            raise
        self._written += n

    def _write(self, buffer: mmap.mmap, n: int, offset: int) -> None:
        try:
            view = memoryview(buffer)[:n]
            while view:
                direct = self._direct  # another thread may clear it meanwhile
                try:
                    done = os.pwrite(self._fd, view, offset)
                except OSError as e:
                    if e.errno != errno.EINVAL or not direct:
                        raise
                    self._go_through_cache()
                    continue
                if done % PAGE:
                    self._go_through_cache()  # a short write left an unaligned rest
                view = view[done:]
                offset += done
        finally:
            self._pool.give(buffer)
            self._pool.arrive()

    def _go_through_cache(self) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~getattr(os, "O_DIRECT", 0))
        self._direct = False

    def _raise_failed(self) -> None:
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def finish(self) -> int:
        """Pad to a page, write, fsync, close; returns the file's size."""
        if self._used:
            assert self._buffer is not None
            padded = -(-self._used // PAGE) * PAGE
            self._buffer[self._used : padded] = bytes(padded - self._used)
            self._used = padded
            self._flush()
        for future in self._pending:
            future.result()
        self._pending.clear()
        os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)
        return self._written

    def abandon(self) -> None:
        """Close without promise."""
        for future in self._pending:
            with contextlib.suppress(OSError):
                future.result()
        self._pending.clear()
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)
