"""castore.json: any change of it shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import StoreUnreadable, UnsupportedFeature
from castore.model.config import (
    DEFAULT_CHUNK_SIZE,
    FORMAT_VERSION,
    StoreConfig,
    valid_chunk_size,
)
from tests.golden.spec import hash_in

STORE = bytes(range(16))
chunk_sizes = st.integers(1, 16384).map(lambda n: n * 4096)


@given(st.binary(min_size=16, max_size=16), chunk_sizes)
def test_what_was_written_is_read(store_id: bytes, chunk_size: int) -> None:
    config = StoreConfig(store_id, chunk_size)
    assert StoreConfig.parse(config.render(), "store") == config


def test_every_flipped_bit_shows() -> None:
    data = StoreConfig(STORE, DEFAULT_CHUNK_SIZE).render()
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << (i % 8)
        with pytest.raises((StoreUnreadable, UnsupportedFeature)) as e:
            StoreConfig.parse(bytes(flipped), "/runs.castore")
        assert "/runs.castore/castore.json" in e.value.message


@given(st.binary(max_size=100))
def test_garbage_is_unreadable(data: bytes) -> None:
    with pytest.raises(StoreUnreadable):
        StoreConfig.parse(data, "store")


def rendered(**changes: Any) -> bytes:
    """castore.json with other fields, and a digest that fits them."""
    fields: dict[str, Any] = {
        "format": "castore", "version": FORMAT_VERSION, "store_id": STORE.hex(),
        "chunk_size": DEFAULT_CHUNK_SIZE,
    }  # fmt: skip
    fields.update(changes)
    plain = json.dumps(fields, indent=1).encode()
    fields["digest"] = hash_in("castore 1 config", plain).hex()
    return json.dumps(fields, indent=1).encode() + b"\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "castor"}, {"format": None}, {"store_id": ""}, {"store_id": "00" * 15},
        {"store_id": "00" * 17}, {"store_id": "xx" * 16}, {"store_id": 5},
        {"store_id": STORE.hex().upper() + "0A"}, {"chunk_size": 0}, {"chunk_size": -4096},
        {"chunk_size": 4095}, {"chunk_size": 4097}, {"chunk_size": (64 << 20) + 4096},
        {"chunk_size": 4096.0}, {"chunk_size": "4096"}, {"chunk_size": True},
        {"chunk_size": None}, {"chunk_size": 10**300}, {"version": "1"}, {"version": None},
        {"version": 1.0}, {"version": True},
    ],
    ids=repr,
)  # fmt: skip
def test_odd_values_are_refused_though_their_digest_fits(changes: dict[str, Any]) -> None:
    assert StoreConfig.parse(rendered(), "store").chunk_size == DEFAULT_CHUNK_SIZE
    with pytest.raises(StoreUnreadable):
        StoreConfig.parse(rendered(**changes), "store")


@pytest.mark.parametrize("version", [0, 2, 3, 10**9])
def test_another_version_is_told_from_damage(version: int) -> None:
    with pytest.raises(UnsupportedFeature, match=f"format version {version};"):
        StoreConfig.parse(rendered(version=version), "store")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"null",
        b"[]",
        b'"castore"',
        b"{}",
        b'{"version": ' + b"1" * 5000 + b"}",
        rendered().replace(b"\n", b"\r\n"),
        rendered()[:-1],
        rendered() + b"\n",
        rendered().replace(b'"version": 1,', b'"version": 2, "version": 1,'),
        rendered().replace(b'"chunk_size": 4194304', b'"chunk_size": 4194304.0'),
        b"\xef\xbb\xbf" + rendered(),
        rendered().decode().encode("utf-16"),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_other_renderings_are_unreadable(data: bytes) -> None:
    with pytest.raises(StoreUnreadable):
        StoreConfig.parse(data, "store")


def test_chunk_sizes_that_a_store_may_have() -> None:
    sizes = [0, 1, 4095, 4096, 4097, 8192, 12288, DEFAULT_CHUNK_SIZE, 64 << 20, (64 << 20) + 4096]
    assert [valid_chunk_size(size) for size in sizes] == [
        False, False, False, True, False, True, True, True, True, False,
    ]  # fmt: skip
    assert not valid_chunk_size(-4096)


def test_a_flip_in_the_version_is_damage_and_no_other_version() -> None:
    good = StoreConfig(bytes(16), 4096).render()
    flipped = good.replace(b'"version": 1', b'"version": 9')
    with pytest.raises(StoreUnreadable):
        StoreConfig.parse(flipped, "here")
