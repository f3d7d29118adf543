"""Canonical encoding: one byte string per value, and no other is read."""

from __future__ import annotations

import math
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from castore.model.digest import Digest
from castore.model.encoding import (
    EncodingError,
    array_bytes,
    decode,
    decode_record,
    encode,
    encode_record,
)
from tests.golden.spec import mp

_any_float = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", struct.pack("<Q", n))[0])
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**n + k for n in (5, 7, 8, 15, 16, 31, 32, 63) for k in (-1, 0)]),
    st.sampled_from([-(2**n) + k for n in (5, 7, 8, 15, 16, 31, 32) for k in (-1, 0)]),
    st.floats(),
    _any_float,
    st.text(max_size=40),
    st.binary(max_size=300),
)
values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=5), inner, max_size=18)
    ),
    max_leaves=25,
)


def exactly(a: Any, b: Any) -> bool:
    """Equal by type, order and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(exactly, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(exactly(a[k], b[k]) for k in a)
    return bool(a == b)


@given(values)
def test_what_was_written_is_read(value: Any) -> None:
    data = encode(value)
    assert exactly(decode(data), value)
    assert exactly(decode(memoryview(bytearray(data))), value)


@given(values)
def test_the_bytes_are_those_of_the_page(value: Any) -> None:
    assert encode(value) == mp(value)


def is_the_only_encoding(data: bytes) -> bool:
    """Whether ``data`` is refused, or is what the value it is read as encodes to."""
    try:
        value = decode(data)
    except EncodingError:
        return True
    return encode(value) == data and mp(value) == data


@given(st.binary(max_size=200))
@example(b"\xcc\x05")  # 5 in two bytes
@example(b"\xd0\x05")  # 5 as a signed byte
@example(b"\xd9\x01a")  # a text in a longer form
@example(b"\xc5\x00\x01a")
@example(b"\xdc\x00\x01\xc0")
@example(b"\xde\x00\x01\xa1a\xc0")
@example(b"\xca\x3f\x80\x00\x00")  # 1.0 in 32 bits
@example(b"\x82\xa1a\x01\xa1a\x02")  # a field twice
@example(b"\x82\xa1a\x01\xa1a\x01")
@example(b"\xc0\xc0")  # more than one value
@example(b"")
@example(b"\xc1")
@example(b"\xa1\xff")  # not UTF-8
@example(b"\xa3\xed\xa0\x80")  # a lone surrogate
@example(b"\x81\x01\x02")  # a number as a field's name
@example(b"\x81\xc0\x02")
@example(b"\x81\x90\x02")  # an unhashable one
@example(b"\xd4\x05\x00")  # an extension type
@example(b"\xd6\xff\x00\x00\x00\x00")  # a timestamp
def test_no_other_bytes_are_read(data: bytes) -> None:
    assert is_the_only_encoding(data)


@pytest.mark.parametrize("data", [b"\xc7\x00\x05", b"\xc8\x00\x00\x05", b"\xc9" + bytes(5)])
def test_empty_extension_types_are_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        decode(data)
    with pytest.raises(EncodingError):
        decode(b"\x91" + data)


@given(values, st.data())
def test_mutated_bytes_are_refused_or_are_canonical(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        how = data.draw(st.sampled_from(["flip", "insert", "delete", "overwrite"]))
        if how == "flip":
            encoded[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "insert":
            encoded[at:at] = data.draw(st.binary(max_size=4))
        elif how == "delete" and len(encoded) > 1:
            del encoded[at]
        else:
            encoded[at] = data.draw(st.integers(0, 255))
    assert is_the_only_encoding(bytes(encoded))


def test_every_single_flip_of_a_sample_is_refused_or_another_value() -> None:
    value = ["tensor", 3, "float32", 4, [2, 70000, -1], [0, b"abc"], None, {"a": 1.5, "b": [True]}]
    data = encode(value)
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << (i % 8)
        assert is_the_only_encoding(bytes(flipped)), f"bit {i}"


@given(st.integers(0, 70000))
@example(15)
@example(16)
@example(65535)
@example(65536)
def test_array_of_encoded_parts(n: int) -> None:
    assert array_bytes([b"\xc0"] * n) == encode([None] * n)


def test_float_bits_are_kept() -> None:
    for bits in (0x7FF8000000000001, 0xFFF8DEADBEEF0000, 0x7FF0000000000001, 1 << 63, 1):
        data = b"\xcb" + bits.to_bytes(8, "big")
        value = decode(data)
        assert struct.pack(">d", value) == data[1:]
        assert encode(value) == data
    assert math.isnan(decode(b"\xcb" + (0x7FF8000000000001).to_bytes(8, "big")))


# -- hostile lengths -----------------------------------------------------------------------------


def nested_claims(n: int, claim: int, depth: int) -> bytes:
    """Arrays in arrays, each of which claims ``claim`` elements."""
    return (b"\xdd" + struct.pack(">I", claim)) * depth + bytes(max(0, n - 5 * depth))


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # 4 Gi elements in five bytes
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\xdd\x00\x01\x00\x00" * 3000,  # deeper than any reader goes
        b"\x91" * 100_000,
        b"\x81\xa1a" * 50_000,
        nested_claims(200_000, 200_000, 1000),
        nested_claims(4_000, 4_000, 800),
        nested_claims(1_000, 1_000, 190),
        (b"\xdc\xff\xff" * 1000).ljust(65536, b"\0"),
        b"\x91" * 400 + nested_claims(100_000, 99_000, 100),
    ],
    ids=lambda data: f"{data[:6].hex()}..{len(data)}",
)
def test_hostile_lengths_allocate_no_more_than_the_input(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(EncodingError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A byte of msgpack can be an element of a list, which is a pointer.
    assert peak < 40 * len(data) + 4_000_000


def test_nesting_ends_in_an_error_and_not_in_a_crash() -> None:
    for depth in (100, 511, 512, 1024, 1025, 100_000):
        data = b"\x91" * depth + b"\xc0"
        try:
            value = decode(data)
        except EncodingError:
            continue
        assert encode(value) == data
    with pytest.raises(EncodingError):
        decode(b"\x91" * 100_000 + b"\xc0")


# -- records -------------------------------------------------------------------------------------


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), _scalars, max_size=8))
def test_records_stand_in_ascending_order(fields: dict[str, Any]) -> None:
    data = encode_record(**fields)
    assert data == mp(dict(sorted(fields.items())))
    assert exactly(decode_record(data, fields), dict(sorted(fields.items())))


def test_records_of_other_fields_or_another_order_are_refused() -> None:
    assert decode_record(mp({"a": 1, "b": 2}), ("b", "a")) == {"a": 1, "b": 2}
    for other in (
        {"b": 2, "a": 1},
        {"a": 1},
        {"a": 1, "b": 2, "c": 3},
        {"a": 1, "c": 2},
        [1, 2],
        None,
    ):
        with pytest.raises(EncodingError):
            decode_record(mp(other), ("a", "b"))


def test_what_msgpack_cannot_hold_is_an_error_of_the_writer() -> None:
    for value in (2**64, -(2**63) - 1, object(), "\ud800", {1, 2}):
        with pytest.raises((OverflowError, TypeError, UnicodeEncodeError)):
            encode(value)


def test_a_digest_is_32_bytes() -> None:
    assert Digest(bytes(32)) == bytes(32)
    assert encode(Digest(bytes(32))) == mp(bytes(32))
    for value in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            Digest(value)
    not_bytes: list[Any] = [
        [1] * 32,
        tuple([0] * 32),
        "x" * 32,
        32,
        None,
        dict.fromkeys(range(32), 0),
    ]
    for value in not_bytes:
        with pytest.raises((TypeError, ValueError)):
            Digest(value)


def test_msgpack_is_the_real_thing() -> None:
    """The tests lean on msgpack's C code: its pure-Python twin has other limits."""
    assert msgpack.Packer.__module__ == "msgpack._cmsgpack"
