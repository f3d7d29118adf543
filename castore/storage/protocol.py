"""What a medium must offer: a dozen verbs, from which every protocol of castore is made.

Names are relative, ``/``-joined, and checked on the way in (:func:`check_name`).  The one rule: a
file is created whole if and only if its name is absent, is never modified, and may be deleted.
That rule holds on a local disk, on network file systems and on object stores alike.  All verbs may
be called from several threads at once.
"""

from __future__ import annotations

import re
from typing import Protocol

from castore.storage.mapping import Mapping

__all__ = ["FateUnknown", "NewFile", "NotDurable", "Storage", "check_name"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")


class FateUnknown(OSError):
    """A create may or may not have happened; look before acting."""


class NotDurable(FateUnknown):
    """A create happened, and the fsync of its folder failed: never to be tried again."""


def check_name(name: str) -> list[str]:
    """Split a name into its parts.

    Raises:
        ValueError: it could leave the store's folder, or is no name of castore's.
    """
    parts = name.split("/")
    if len(parts) > 3 or not all(_NAME.fullmatch(p) or _TEMPORARY.fullmatch(p) for p in parts):
        raise ValueError(f"not a file name of a store: {name!r}")
    return parts


class NewFile(Protocol):
    """A file being written front to back, once."""

    @property
    def position(self) -> int:
        """Bytes appended so far."""

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes; they are copied before this returns."""

    def finish(self) -> int:
        """Pad with zeros to a whole block, make the contents durable, close; return the size.

        The name is durable only after ``sync_folder`` of its folder.
        """

    def abandon(self) -> None:
        """Close without promise; safe to call at any time, also after ``finish``."""


class Storage(Protocol):
    """A store's medium."""

    @property
    def where(self) -> str:
        """What people call it: the folder's path."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file; fewer than asked for where it ends.  FileNotFoundError if absent."""

    def read_into(self, name: str, offset: int, out: memoryview, *, device: bool = False) -> int:
        """Fill ``out``; returns how many bytes there were.  ``device`` goes past any cache."""

    def map(self, name: str, length: int) -> Mapping | None:
        """The first bytes of a file as memory; None where the medium has no such thing.

        Raises:
            OSError: the file is absent or shorter.
        """

    def size(self, name: str) -> int | None:
        """Length of a regular file, or None where there is none."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a whole file durably if the name is absent; False if it was taken.

        Raises:
            FateUnknown: the file may exist, or may exist and not be durable.
        """

    def new_file(self, name: str) -> NewFile:
        """Begin a new file under its final name; FileExistsError if taken."""

    def list(self, folder: str = "") -> list[str]:
        """Names in a folder (a hint: it need not be fresh); empty if it is absent."""

    def delete(self, name: str) -> bool:
        """Delete a file; False if it was absent."""

    def make_folder(self, name: str) -> None:
        """Make a folder if absent, durably."""

    def remove_folder(self, name: str) -> bool:
        """Remove an empty folder; False if absent or not empty."""

    def sync_folder(self, name: str) -> None:
        """Make the names in a folder durable."""

    def write_advice(self, name: str, data: bytes) -> None:
        """Write or replace a file that no safety rests on; not made durable."""

    def modified(self, name: str) -> float | None:
        """The file's mtime by the storage's clock: advice for people and sessions only."""

    def free(self) -> int:
        """Bytes that may still be written."""

    def close(self) -> None:
        """Give up descriptors."""
