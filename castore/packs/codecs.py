"""Codecs: how one pack happens to hold a record's bytes.  Digests are always of the decoded bytes.

The format has a place for five; this version writes and reads the first two.
"""

from __future__ import annotations

from enum import IntEnum

import zstandard

from castore.errors import UnsupportedFeature
from castore.model.digest import Buffer

__all__ = ["Codec", "CodecError", "compress", "decode"]

#: A record of metadata is small and read often; level 3 is zstd's own default.
ZSTD_LEVEL = 3


class Codec(IntEnum):
    """The numbers are part of the format."""

    RAW = 0
    ZSTD = 1
    PLANE = 2
    DELTA = 3
    CAST = 4


class CodecError(ValueError):
    """The stored bytes do not decode to the length that the table announces."""


def compress(data: Buffer) -> bytes | None:
    """``data`` as one zstd frame that states its length, or None where that gains nothing."""
    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return packed if len(packed) < len(data) else None


def decode(codec: int, stored: Buffer, raw_len: int) -> Buffer:
    """Decode a record; never produces, or allocates, more than ``raw_len`` bytes.

    Raises:
        CodecError: another length comes out, or the frame is damaged.
        UnsupportedFeature: the codec is not of this version.
    """
    if codec == Codec.RAW:
        if len(stored) != raw_len:
            raise CodecError(f"expected {raw_len} bytes, found {len(stored)}")
        return stored
    if codec == Codec.ZSTD:
        try:
            announced = zstandard.frame_content_size(stored)
            if announced != raw_len:
                raise CodecError(f"expected {raw_len} bytes, the frame announces {announced}")
            if not raw_len:  # nobody codes nothing; zstandard would not look at the frame
                raise CodecError("a coded record of no bytes")
            return zstandard.ZstdDecompressor().decompress(
                stored, max_output_size=raw_len, allow_extra_data=False
            )
        except zstandard.ZstdError as e:
            raise CodecError(str(e)) from e
    raise UnsupportedFeature(f"a pack uses codec {codec}, which this castore does not read")
