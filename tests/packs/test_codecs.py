"""Codecs: a record decodes to the length that the table announces, or to an error."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import UnsupportedFeature
from castore.packs.codecs import Codec, CodecError, compress, decode

ROOT = Path(__file__).resolve().parents[2]
payloads = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 4000)).map(lambda p: p[0] * p[1]),
)


@given(payloads)
def test_compressed_bytes_come_back(data: bytes) -> None:
    packed = compress(data)
    if packed is None:
        return
    assert len(packed) < len(data)
    assert decode(Codec.ZSTD, packed, len(data)) == data
    assert decode(Codec.ZSTD, memoryview(packed), len(data)) == data
    for wrong in (0, 1, len(data) - 1, len(data) + 1, 2**40, 2**64 - 1):
        if wrong != len(data):
            with pytest.raises(CodecError):
                decode(Codec.ZSTD, packed, wrong)


def test_what_gains_nothing_stays_as_it_is() -> None:
    assert compress(b"") is None
    assert compress(bytes(range(256))) is None
    assert compress(b"a" * 1000) is not None


@given(st.binary(max_size=50), st.integers(0, 60))
def test_raw_bytes_have_their_length(data: bytes, length: int) -> None:
    if length == len(data):
        assert decode(Codec.RAW, data, length) is data
    else:
        with pytest.raises(CodecError):
            decode(Codec.RAW, data, length)


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_garbage_is_a_codec_error(data: bytes, length: int) -> None:
    try:
        out = decode(Codec.ZSTD, data, length)
    except CodecError:
        return
    assert len(out) == length


@given(payloads, st.data())
def test_damaged_frames_give_the_length_or_an_error(data: bytes, draw: st.DataObject) -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(data))
    at = draw.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= 1 << draw.draw(st.integers(0, 7))
    if draw.draw(st.booleans()):
        del frame[draw.draw(st.integers(0, len(frame) - 1)) :]
    try:
        out = decode(Codec.ZSTD, bytes(frame), len(data))
    except CodecError:
        return
    assert len(out) == len(data)


def frame_that_claims(n: int) -> bytes:
    """A zstd frame with an 8-byte content size, and one empty raw block."""
    magic = struct.pack("<I", 0xFD2FB528)
    return magic + bytes([0b1110_0000]) + struct.pack("<Q", n) + bytes([1, 0, 0])


@pytest.mark.parametrize("claim", [2**40, 2**32, 2**63, 2**64 - 2, 1 << 30])
def test_a_frame_that_claims_more_than_the_table_allocates_nothing(claim: int) -> None:
    frame = frame_that_claims(claim)
    tracemalloc.start()
    with pytest.raises(CodecError):
        decode(Codec.ZSTD, frame, 4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_frame_without_a_size_is_refused() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1000)
    assert zstandard.frame_content_size(unsized) == -1
    with pytest.raises(CodecError):
        decode(Codec.ZSTD, unsized, 1000)


def test_a_frame_that_holds_less_than_it_claims_is_refused() -> None:
    with pytest.raises(CodecError):
        decode(Codec.ZSTD, frame_that_claims(100), 100)


def test_a_frame_that_expands_to_more_than_it_claims_is_cut_off() -> None:
    """The header says 10 bytes, the block behind it 16 MiB of one byte: it is never made."""
    n = 16 << 20
    honest = zstandard.ZstdCompressor().compress(b"x" * n)
    head = zstandard.frame_header_size(honest)
    magic = struct.pack("<I", 0xFD2FB528)
    liar = magic + bytes([0b1100_0000]) + bytes([0x58]) + struct.pack("<Q", 10) + honest[head:]
    assert zstandard.frame_content_size(liar) == 10
    # Its memory is the C library's own: look at the process.
    code = (
        "import resource, sys; from castore.packs.codecs import *;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "liar = bytes.fromhex(sys.stdin.read())\n"
        "try: decode(Codec.ZSTD, liar, 10)\n"
        "except CodecError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=liar.hex(),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) < n >> 10  # KiB
    assert resource.getpagesize() > 0


def test_what_follows_the_frame_is_refused() -> None:
    """A record is one frame: stray bytes behind it would be bytes that no digest covers."""
    frame = zstandard.ZstdCompressor().compress(b"a" * 1000)
    assert decode(Codec.ZSTD, frame, 1000) == b"a" * 1000
    for more in (b"\0", frame, b"garbage"):
        with pytest.raises(CodecError):
            decode(Codec.ZSTD, frame + more, 1000)


@pytest.mark.parametrize("codec", [2, 3, 4, 5, 255])
def test_codecs_of_other_versions_say_so(codec: int) -> None:
    with pytest.raises(UnsupportedFeature, match=f"codec {codec},"):
        decode(codec, b"", 0)


def test_nothing_is_never_coded() -> None:
    """zstd returns nothing for nothing without a look at the frame, so flips in it go unseen."""
    assert decode(Codec.RAW, b"", 0) == b""
    empty = zstandard.ZstdCompressor().compress(b"")
    for stored in (b"", b"garbage", empty, empty[:-1], empty + b"x"):
        with pytest.raises(CodecError):
            decode(Codec.ZSTD, stored, 0)
