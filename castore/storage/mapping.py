"""Part of a file as memory: private to this process, and without a descriptor that stays open.

The pages are the page cache's until somebody writes to one: then this process has its own copy of
that page, and the file never learns of it.  Python's own ``mmap`` keeps a descriptor for every
mapping, so a state of many packs would run out of them; this is the same call without.  Used by
:mod:`castore.storage.local` alone.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import weakref
from typing import Any

__all__ = ["Mapping"]

_MAP_NORESERVE = 0x4000
_MADV_POPULATE_READ = 22  # Linux 5.14
_FAILED = ctypes.c_void_p(-1).value


@functools.lru_cache(maxsize=1)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, number)
    return libc


def _unmap(address: int, length: int) -> None:
    _libc().munmap(address, length)


class Mapping:
    """The first bytes of a file, mapped; unmapped when the last view of it is gone."""

    def __init__(self, fd: int, length: int) -> None:
        """Map ``length`` bytes; the descriptor may be closed afterwards.

        Raises:
            OSError: the file is shorter, or cannot be mapped.
        """
        if os.fstat(fd).st_size < length:
            raise OSError(errno.EINVAL, "the file is cut short")
        address = _libc().mmap(
            None,
            length,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | _MAP_NORESERVE,
            fd,
            0,
        )
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address: int = address
        self._length = length
        finalizer = weakref.finalize(self, _unmap, address, length)
        finalizer.atexit = False  # tensors may be in use until the very end

    def view(self, offset: int, length: int) -> memoryview:
        """Some of the bytes, writable; the mapping lives as long as the view does.

        Raises:
            ValueError: they are not all mapped.
        """
        if not 0 <= offset <= offset + length <= self._length:
            raise ValueError(f"bytes {offset}..{offset + length} of {self._length}")
        array = (ctypes.c_ubyte * length).from_address(self._address + offset)
        array._owner = self  # type: ignore[attr-defined]
        return memoryview(array).cast("B")

    def bring(self, offset: int, length: int) -> bool:
        """Have pages read from the medium now, and errors told by an exception, not by a signal.

        False where this kernel cannot: then the first touch of a page that cannot be read is a
        SIGBUS, unless the caller reads the file first.

        Raises:
            OSError: they cannot be read.
        """
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        stop = offset + length
        if not _libc().madvise(self._address + start, stop - start, _MADV_POPULATE_READ):
            return True
        number = ctypes.get_errno()
        if number == errno.EINVAL:
            return False
        raise OSError(number, os.strerror(number))
