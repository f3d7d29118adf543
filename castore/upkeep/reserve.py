"""The reserve: a few MiB given up first when the disk is full, so that gc can write its entry."""

from __future__ import annotations

import contextlib

from castore.storage.protocol import Storage
from castore.system import random_bytes

__all__ = ["RESERVE", "RESERVE_NAME", "give_up_reserve", "make_reserve"]

RESERVE_NAME = "reserve"
#: Room for many log entries and their folder blocks.
RESERVE = 4 << 20
#: It is made again only where this many times as much is free: never to fill a disk by itself.
_ROOM = 4


def make_reserve(storage: Storage) -> bool:
    """Make the reserve if it is absent and there is room; False where it could not be made.

    Random bytes: zeros might take no room on a file system that compresses.
    """
    with contextlib.suppress(OSError):
        size = storage.size(RESERVE_NAME)
        if size == RESERVE:
            return True
        if storage.free() >= _ROOM * RESERVE:
            if size is not None:
                storage.delete(RESERVE_NAME)
            return storage.create(RESERVE_NAME, random_bytes(RESERVE))
    return False


def give_up_reserve(storage: Storage) -> bool:
    """Delete the reserve; False where there was none."""
    given = storage.delete(RESERVE_NAME)
    with contextlib.suppress(OSError):
        storage.sync_folder("")
    return given
