"""Host memory by address: views of it, copies into it, and a hint to the kernel.

Nothing here checks a bound: callers (``tensors``, ``loading``) have made sure of address and length
before they come.  It must never be handed an address that came from a file.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

__all__ = ["HUGE_FROM", "address_of", "copy_into", "host_bytes", "host_view", "prefer_huge_pages"]

#: From this size on, huge pages are asked for: filling fresh memory is then twice as fast
#: (measured: 1 GiB in 0.43 s against 0.9 s), the time having gone into page faults.
HUGE_FROM = 8 << 20
_PAGE = 4096
_MADV_HUGEPAGE = 14  # <asm-generic/mman-common.h>


def host_view(address: int, nbytes: int, owner: Any) -> memoryview:
    """The memory at ``address`` as writable bytes; ``owner`` lives as long as the view."""
    array = (ctypes.c_ubyte * nbytes).from_address(address)
    array._owner = owner  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def host_bytes(address: int, nbytes: int) -> bytes:
    """A copy of the memory at ``address``."""
    return ctypes.string_at(address, nbytes)


def address_of(out: memoryview) -> int:
    """Where a writable view's memory lies."""
    return ctypes.addressof((ctypes.c_ubyte * len(out)).from_buffer(out))


def copy_into(out: memoryview, address: int) -> None:
    """Fill ``out`` from the memory at ``address``, without the GIL."""
    ctypes.memmove(address_of(out), address, len(out))


@functools.lru_cache(maxsize=1)
def _madvise() -> Any:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.restype = ctypes.c_int
    return found


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages below a large fresh buffer.  A hint: whether it is heard is no matter."""
    start = -(-address // _PAGE) * _PAGE
    stop = (address + nbytes) // _PAGE * _PAGE
    advise = _madvise()
    if advise is not None:
        advise(start, stop - start, _MADV_HUGEPAGE)
