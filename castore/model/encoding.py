"""Canonical msgpack: one byte string per value.

Writing always yields the canonical form; reading refuses any other, so that two different byte
strings never stand for one value.  Numbers, texts and byte strings have their shortest form;
floats are 64-bit; the fields of a record stand in ascending order (other maps, such as a user's
``meta``, keep the order they were given in: it is part of the value).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgpack

from castore.model.digest import Buffer

__all__ = [
    "EncodingError",
    "array_bytes",
    "decode",
    "decode_record",
    "encode",
    "encode_record",
    "unpack",
]

#: Shorter input is unpacked without a first look: what it can claim is little.
_SMALL = 1024


class EncodingError(ValueError):
    """The bytes are not the canonical encoding of anything."""


def encode(value: Any) -> bytes:
    """Canonical bytes of plain data: None, bool, 64-bit int, float, str, bytes, list, dict[str]."""
    return msgpack.packb(value, use_bin_type=True)  # type: ignore[no-any-return]


def encode_record(**fields: Any) -> bytes:
    """Canonical bytes of a record: its fields in ascending order of their names."""
    return encode(dict(sorted(fields.items())))


def decode_record(data: Buffer, names: Collection[str]) -> dict[str, Any]:
    """Read a record that has exactly the fields ``names``.

    Raises:
        EncodingError: not canonical, or other fields.
    """
    value = decode(data)
    if not isinstance(value, dict) or list(value) != sorted(names):
        found = list(value) if isinstance(value, dict) else type(value).__name__
        raise EncodingError(f"expected a record of {sorted(names)}, found {found}")
    return value


def array_bytes(parts: Sequence[bytes]) -> bytes:
    """The encoding of an array whose elements are encoded already."""
    n = len(parts)
    if n < 16:
        header = bytes((0x90 | n,))
    elif n < 1 << 16:
        header = b"\xdc" + n.to_bytes(2, "big")
    else:
        header = b"\xdd" + n.to_bytes(4, "big")
    return header + b"".join(parts)


def unpack(data: Buffer) -> Any:
    """Read msgpack without extension types, canonical or not.

    Never allocates more than a small multiple of the input's length, whatever lengths it claims.

    Raises:
        EncodingError: it is none, or nested deeper than msgpack's readers go.
    """
    n = len(data)
    try:
        if n > _SMALL:
            # An array is allocated as long as it claims to be before its elements are read, and
            # a thousand may be open at once.  Going through it once shows that all are there.
            whole = msgpack.Unpacker(max_buffer_size=n, read_size=n)
            whole.feed(data)
            whole.skip()
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            use_list=True,
            ext_hook=_no_extension,
            max_str_len=n,
            max_bin_len=n,
            max_array_len=n,
            max_map_len=n,
            max_ext_len=0,
        )
    except Exception as e:  # msgpack raises a zoo of types; all mean the same here
        raise EncodingError(f"not msgpack: {e}") from e


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def decode(data: Buffer) -> Any:
    """Read canonical bytes.

    Raises:
        EncodingError: not msgpack, not canonical, or nested deeper than the format allows.
    """
    value = unpack(data)
    try:
        again = encode(value)
    except Exception as e:
        raise EncodingError(f"not canonical: {e}") from e
    if again != bytes(data):
        raise EncodingError("not canonical: another encoding of the same value")
    return value
