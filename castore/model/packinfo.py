"""How a pack is named: by path, id and size.  What log entries hold of packs, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from castore.model.digest import Digest

__all__ = ["PackInfo"]


@dataclass(frozen=True, slots=True)
class PackInfo:
    """A pack as the log names it.

    Attributes:
        path: ``<save id>/<file name>``, below ``packs/``.
        id: digest of header and table.
        size: length of the file.
    """

    path: str
    id: Digest
    size: int

    @property
    def file(self) -> str:
        """The file's name in the store."""
        return f"packs/{self.path}"

    @property
    def save(self) -> str:
        """The id of the save that wrote it."""
        return self.path.partition("/")[0]

    @property
    def is_data(self) -> bool:
        """Whether it holds chunks (else objects)."""
        return self.path.endswith(".data.pack")
