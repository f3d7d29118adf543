"""``castore.json``: what never changes about a store.  Can be rebuilt from any pack's header."""

from __future__ import annotations

import json
from dataclasses import dataclass

from castore.errors import StoreUnreadable, UnsupportedFeature
from castore.model.digest import derived
from castore.model.grid import MIN_CHUNK_SIZE

__all__ = ["CONFIG_NAME", "DEFAULT_CHUNK_SIZE", "FORMAT_VERSION", "StoreConfig"]

CONFIG_NAME = "castore.json"
FORMAT_VERSION = 1
#: Large enough for hashing and the disk to run at speed, small enough to name a damaged row range.
DEFAULT_CHUNK_SIZE = 4 << 20
MAX_CHUNK_SIZE = 64 << 20
STORE_ID_SIZE = 16


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store's identity.

    Attributes:
        store_id: 16 random bytes.
        chunk_size: upper bound of a chunk, in bytes; a multiple of 4096.
    """

    store_id: bytes
    chunk_size: int

    def render(self) -> bytes:
        """The file's bytes: a function of the values, so that any change of it shows."""
        fields: dict[str, object] = {
            "format": "castore",
            "version": FORMAT_VERSION,
            "store_id": self.store_id.hex(),
            "chunk_size": self.chunk_size,
        }
        plain = json.dumps(fields, indent=1).encode()
        fields["digest"] = derived("castore 1 config", plain).hex()
        return json.dumps(fields, indent=1).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes, where: str) -> StoreConfig:
        """Read the file's bytes.

        Raises:
            StoreUnreadable: damaged.
            UnsupportedFeature: of another version.
        """
        try:
            fields = json.loads(data)
            version = fields["version"]
            config = cls(bytes.fromhex(fields["store_id"]), fields["chunk_size"])
            sound = (
                fields["format"] == "castore"
                and type(config.chunk_size) is int
                and len(config.store_id) == STORE_ID_SIZE
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise _damaged(where)
        plain = json.dumps({k: v for k, v in fields.items() if k != "digest"}, indent=1).encode()
        if fields.get("digest") != derived("castore 1 config", plain).hex():
            raise _damaged(where)  # a flipped bit must not pass for another version
        if version != FORMAT_VERSION and type(version) is int:
            raise UnsupportedFeature(
                f"{where}/{CONFIG_NAME} says format version {version}; this castore reads "
                f"version {FORMAT_VERSION}"
            )
        if config.render() != data or not valid_chunk_size(config.chunk_size):
            raise _damaged(where)
        return config


def valid_chunk_size(size: int) -> bool:
    """Whether a store may have this chunk size."""
    return MIN_CHUNK_SIZE <= size <= MAX_CHUNK_SIZE and size % MIN_CHUNK_SIZE == 0


def _damaged(where: str) -> StoreUnreadable:
    return StoreUnreadable(
        f"{where}/{CONFIG_NAME} is damaged; run `castore -s {where} fsck`",
        path=f"{where}/{CONFIG_NAME}",
    )
