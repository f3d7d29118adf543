"""Digests: BLAKE3, one name space for chunks and one for each kind of object.

A chunk is named by plain BLAKE3 of its bytes.  Everything else is hashed in ``derive_key`` mode
with a context per kind, so no chunk can pass for an object, nor one kind for another.
"""

from __future__ import annotations

from enum import IntEnum

from blake3 import blake3

__all__ = ["DIGEST_SIZE", "Buffer", "Digest", "Kind", "chunk_digest", "derived", "kind_digest"]

Buffer = bytes | bytearray | memoryview

DIGEST_SIZE = 32


class Digest(bytes):
    """A 32-byte BLAKE3 digest.  Never mixed with its hex text: see :attr:`hex`."""

    __slots__ = ()

    def __new__(cls, value: bytes) -> Digest:
        """Check type (``bytes`` takes lists of numbers too) and length."""
        if not isinstance(value, bytes):
            raise TypeError(f"a digest is bytes, not {type(value).__name__}")
        if len(value) != DIGEST_SIZE:
            raise ValueError(f"a digest has {DIGEST_SIZE} bytes, not {len(value)}")
        return super().__new__(cls, value)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"Digest({self.hex()})"

    @property
    def short(self) -> str:
        """The first 12 hex digits, for people."""
        return self.hex()[:12]


class Kind(IntEnum):
    """What a record of a pack holds.  The numbers are part of the format."""

    CHUNK = 0
    TREE = 1
    CHUNKS = 2
    CHECKPOINT = 3
    TABLE = 4
    INTENT = 5


_CONTEXTS = {
    Kind.TREE: "castore 1 tree",
    Kind.CHUNKS: "castore 1 chunks",
    Kind.CHECKPOINT: "castore 1 checkpoint",
    Kind.TABLE: "castore 1 table",
    Kind.INTENT: "castore 1 intent",
}


def chunk_digest(data: Buffer) -> Digest:
    """BLAKE3 of a chunk's bytes.  Releases the GIL for all but tiny buffers."""
    return Digest(blake3(data).digest())


def derived(context: str, data: Buffer) -> Digest:
    """BLAKE3 in derive_key mode under ``context``."""
    return Digest(blake3(data, derive_key_context=context).digest())


def kind_digest(kind: Kind, data: Buffer) -> Digest:
    """The name of a record of ``kind`` whose decoded bytes are ``data``."""
    if kind is Kind.CHUNK:
        return chunk_digest(data)
    return derived(_CONTEXTS[kind], data)
