"""A second, tiny encoder of docs/format.md's canonical msgpack, and its digests, by hand.

Shares nothing with castore, so that golden bytes rest on the page and not on castore's own output.
"""

from __future__ import annotations

import struct
from typing import Any

from blake3 import blake3

__all__ = ["arr", "digest", "hash_in", "mp"]


def mp(value: Any) -> bytes:
    """Canonical msgpack of plain data."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        head = bytes([0xA0 | len(data)]) if len(data) < 32 else _sized(len(data), 0xD9)
        return head + data
    if isinstance(value, bytes):
        return _sized(len(value), 0xC4) + bytes(value)
    if isinstance(value, (list, tuple)):
        return arr(*map(mp, value))
    assert isinstance(value, dict)
    head = bytes([0x80 | len(value)]) if len(value) < 16 else _sized(len(value), 0xDE, 1)
    return head + b"".join(mp(k) + mp(v) for k, v in value.items())


def arr(*parts: bytes) -> bytes:
    """An array whose elements are encoded already."""
    n = len(parts)
    head = bytes([0x90 | n]) if n < 16 else _sized(n, 0xDC, 1)
    return head + b"".join(parts)


def _sized(n: int, first: int, skip: int = 0) -> bytes:
    """A head with a length: the shortest of 1 (unless ``skip``), 2 or 4 bytes."""
    formats = [(">B", 1 << 8), (">H", 1 << 16), (">I", 1 << 32)][skip:]
    for i, (form, limit) in enumerate(formats):
        if n < limit:
            return bytes([first + i]) + struct.pack(form, n)
    raise AssertionError(n)


def _integer(n: int) -> bytes:
    if 0 <= n < 128 or -32 <= n < 0:
        return struct.pack("b" if n < 0 else "B", n)
    if n > 0:
        for i, form in enumerate((">B", ">H", ">I", ">Q")):
            if n < 1 << (8 << i):
                return bytes([0xCC + i]) + struct.pack(form, n)
    for i, form in enumerate((">b", ">h", ">i", ">q")):
        if n >= -(1 << ((8 << i) - 1)):
            return bytes([0xD0 + i]) + struct.pack(form, n)
    raise AssertionError(n)


def hash_in(context: str | None, data: bytes) -> bytes:
    """BLAKE3, in derive_key mode where a context is given."""
    return blake3(data, derive_key_context=context).digest() if context else blake3(data).digest()


def digest(seed: int) -> bytes:
    """A fixed digest for tests: 32 bytes that differ from one another."""
    return bytes((seed + i * 7) % 256 for i in range(32))
