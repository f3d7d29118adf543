"""What castore must know of the file system a store lies on, and the making of its folder."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Collection
from pathlib import Path

from castore.errors import StoreNotFound, UsageError

__all__ = [
    "file_system_name",
    "fsync_folder",
    "is_local_file_system",
    "make_store_folder",
    "real_path",
]

#: f_type of statfs(2) -> name, for file systems of this machine's own disks and memory.
_LOCAL_TYPES = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlay",
}
#: A directory fsync that the file system does not know is not an error; EIO is.
_NO_FOLDER_FSYNC = (errno.EINVAL, errno.ENOTSUP)


def _type_of(path: str | Path) -> int:
    """The kernel's number of the file system that holds ``path`` (0 where unknown)."""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statfs") or libc.statfs(os.fsencode(path), buffer):
        return 0
    return int(struct.unpack_from("@l", buffer)[0]) & 0xFFFFFFFF


def is_local_file_system(path: str | Path) -> bool:
    """Whether ``path`` lies on a file system known to belong to this machine alone."""
    return _type_of(path) in _LOCAL_TYPES


def file_system_name(path: str | Path) -> str:
    """What the file system is called, or its type number."""
    kind = _type_of(path)
    return _LOCAL_TYPES.get(kind, f"type {kind:#x}")


def real_path(path: str | Path) -> str:
    """The path without symbolic links: one name for one folder."""
    return os.path.realpath(path)


def make_store_folder(path: str | Path, marker: str, known: Collection[str]) -> None:
    """Make a store's own folder durably, or accept one that is empty or a store.

    Args:
        path: the folder; its parent must exist.
        marker: the file that makes a folder a store.
        known: names that a store which is just being made may hold.

    Raises:
        StoreNotFound: the parent does not exist.
        UsageError: the path is no folder, or a folder that holds something else.
    """
    where = Path(path).absolute()
    try:
        os.mkdir(where)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise StoreNotFound(f"{where.parent} is no folder: make it first") from e
    except FileExistsError:
        if not where.is_dir():
            raise UsageError(f"{where} is a file; a store is a folder") from None
        odd = sorted(n for n in os.listdir(where) if n not in known and not n.startswith("."))
        if odd and not (where / marker).exists():
            raise UsageError(
                f"{where} is no store and holds other things ({', '.join(odd[:3])}); "
                "name an empty or a new folder"
            ) from None
    # Also where it was there: its maker may have been killed before this.
    fd = os.open(where.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync_folder(fd)
    finally:
        os.close(fd)


def fsync_folder(fd: int) -> None:
    """Make the names in a folder durable, where the file system knows how."""
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in _NO_FOLDER_FSYNC:
            raise
