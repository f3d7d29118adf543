"""The reserve: a few MiB given up first when the disk is full, so that what frees room can act."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence

from castore.log.entry import Change, Entry
from castore.log.fold import Fold
from castore.log.log import AppendFateUnknown, Log
from castore.storage.protocol import FateUnknown, NotDurable, Storage
from castore.system import random_bytes

__all__ = ["RESERVE", "RESERVE_NAME", "append_with_reserve", "give_up_reserve", "make_reserve"]

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


def append_with_reserve(
    storage: Storage, log: Log, decide: Callable[[Fold], Sequence[Change]], why: str
) -> Entry | None:
    """Append to the log; on a full disk give up the reserve and try once more.

    For acts that may be done twice, so whatever became of the first entry.  But an fsync that
    failed is never tried again: the entry that it was for may not be durable.

    Raises:
        AppendFateUnknown, OSError: as of :meth:`castore.log.log.Log.append`.
    """
    try:
        return log.append(decide, why)
    except (OSError, AppendFateUnknown) as e:
        cause = e.cause if isinstance(e, AppendFateUnknown) else e
        if e is not cause and (isinstance(cause, NotDurable) or not isinstance(cause, FateUnknown)):
            raise
        if cause.errno not in (errno.ENOSPC, errno.EDQUOT) or not give_up_reserve(storage):
            raise
    return log.append(decide, why)
