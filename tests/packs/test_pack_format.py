"""Headers, tables and footers of packs: read back, or refused for any other bytes."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from castore.model.digest import Digest, Kind
from castore.packs.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    PACK_NAME,
    PACK_PAGE,
    PackError,
    PackHeader,
    Record,
    Table,
    meta_names,
    pack_id,
    pack_name,
    parse_footer,
    render_footer,
)
from tests.golden.cases import SAVE
from tests.golden.spec import digest, hash_in, mp

digests = st.binary(min_size=32, max_size=32).map(Digest)
lengths = st.one_of(st.integers(0, 5000), st.integers(0, 2**40), st.sampled_from([0, 1, 2**32]))


@st.composite
def tables(draw: st.DrawFn, max_size: int = 12) -> list[Record]:
    """Rows as a writer makes them: in order, not overlapping."""
    rows = []
    end = HEADER_SIZE
    for _ in range(draw(st.integers(0, max_size))):
        offset = end + draw(st.one_of(st.just(0), st.integers(0, 100)))
        stored, raw = draw(lengths), draw(lengths)
        codec = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4]))
        rows.append(
            Record(
                draw(digests),
                draw(st.sampled_from(list(Kind))),
                offset,
                stored,
                raw,
                codec,
                draw(digests) if codec else None,
                tuple(draw(st.lists(digests, max_size=2))) if codec > 2 else (),
            )
        )
        end = offset + stored
    return rows


# -- tables --------------------------------------------------------------------------------------


@given(tables())
def test_tables_are_read_back(rows: list[Record]) -> None:
    made = Table.of(rows)
    data = made.render()
    table = Table.parse(data)
    assert list(table) == list(made) == rows
    assert len(table) == len(rows)
    assert table.render() == data
    assert table.digests() == [r.digest for r in rows]
    assert list(table.rows()) == [
        (r.digest, r.kind, r.offset, r.stored_len, r.raw_len, r.codec) for r in rows
    ]
    for row in rows:
        found = table.find(row.digest)
        assert found is not None
        assert found.digest == row.digest
        assert found in rows
    assert table.find(Digest(bytes(31) + b"\x01")) is None or any(
        r.digest == bytes(31) + b"\x01" for r in rows
    )


@given(tables())
def test_tables_are_the_page_s_columns(rows: list[Record]) -> None:
    def numbers(values: list[int]) -> bytes:
        return b"".join(struct.pack("<Q", v) for v in values)

    assert Table.of(rows).render() == mp(
        [
            b"".join(r.digest for r in rows),
            bytes(r.kind for r in rows),
            numbers([r.offset for r in rows]),
            numbers([r.stored_len for r in rows]),
            numbers([r.raw_len for r in rows]),
            bytes(r.codec for r in rows),
            [[i, r.stored_digest, list(r.bases)] for i, r in enumerate(rows) if r.codec],
        ]
    )


def check_parse(data: bytes) -> None:
    """A table, whose bytes are these and no others, or a PackError."""
    try:
        table = Table.parse(data)
    except PackError:
        return
    assert table.render() == data
    end = HEADER_SIZE
    for row in table:
        assert row.offset >= end
        end = row.offset + row.stored_len


@given(tables(max_size=5), st.data())
def test_mutated_tables_are_refused_or_are_others(rows: list[Record], data: st.DataObject) -> None:
    encoded = bytearray(Table.of(rows).render())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        del encoded[data.draw(st.integers(0, len(encoded) - 1)) :]
    check_parse(bytes(encoded))


@given(st.binary(max_size=300))
def test_random_bytes_are_no_table(data: bytes) -> None:
    check_parse(data)


def columns(**changes: Any) -> bytes:
    """A table of two rows, the second one coded, with some columns changed."""
    made: dict[str, Any] = {
        "digests": digest(1) + digest(2),
        "kinds": b"\0\1",
        "offsets": struct.pack("<QQ", 128, 200),
        "stored": struct.pack("<QQ", 72, 10),
        "raw": struct.pack("<QQ", 72, 30),
        "codecs": b"\0\1",
        "extras": [[1, digest(3), []]],
    }
    made.update(changes)
    return mp(list(made.values()))


HOSTILE: list[dict[str, Any]] = [
    {"digests": digest(1)},
    {"digests": digest(1) + digest(2) + b"x"},
    {"kinds": b"\0"},
    {"kinds": b"\0\6"},
    {"kinds": b"\xff\xff"},
    {"offsets": struct.pack("<Q", 128)},
    {"offsets": struct.pack("<QQ", 127, 200)},  # within the header
    {"offsets": struct.pack("<QQ", 0, 200)},
    {"offsets": struct.pack("<QQ", 128, 199)},  # overlap
    {"offsets": struct.pack("<QQ", 200, 128)},
    {"stored": struct.pack("<QQ", 73, 10)},
    {"stored": struct.pack("<QQ", 2**64 - 1, 10)},
    {"stored": bytes(15)},
    {"raw": bytes(17)},
    {"codecs": b"\0"},
    {"codecs": b"\0\0"},
    {"codecs": b"\1\1"},
    {"extras": []},
    {"extras": None},
    {"extras": {}},
    {"extras": [5]},
    {"extras": [[1, digest(3)]]},
    {"extras": [[1, digest(3), [], 0]]},
    {"extras": [[0, digest(3), []]]},
    {"extras": [[2, digest(3), []]]},
    {"extras": [[-1, digest(3), []]]},
    {"extras": [[True, digest(3), []]]},
    {"extras": [[1.0, digest(3), []]]},
    {"extras": [[2**64 - 1, digest(3), []]]},
    {"extras": [[1, None, []]]},
    {"extras": [[1, bytes(31), []]]},
    {"extras": [[1, [1] * 32, []]]},
    {"extras": [[1, digest(3), [bytes(31)]]]},
    {"extras": [[1, digest(3), None]]},
    {"extras": [[1, digest(3), 5]]},
    {"extras": [[1, digest(3), {}]]},
    {"extras": [[1, digest(3), ""]]},
    {"extras": [[1, digest(3), b""]]},
    {"extras": [[1, digest(3), {digest(4): 1}]]},
    {"extras": [[1, digest(3), []], [1, digest(3), []]]},
    {"extras": "ab"},
    {"digests": "text", "kinds": 0},
]


@pytest.mark.parametrize("changes", HOSTILE, ids=lambda c: repr(c)[:60])
def test_hostile_tables_are_refused(changes: dict[str, Any]) -> None:
    assert len(Table.parse(columns())) == 2
    with pytest.raises(PackError):
        Table.parse(columns(**changes))


@pytest.mark.parametrize("value", [None, [], {}, 5, [b""] * 7, [b""] * 6, [b""] * 6 + [[], []]])
def test_what_is_no_table_is_refused(value: Any) -> None:
    assert len(Table.parse(mp([b""] * 6 + [[]]))) == 0
    with pytest.raises(PackError):
        Table.parse(mp(value))


def test_hostile_tables_allocate_no_more_than_their_bytes() -> None:
    # Six columns and a list that claims as many elements as there are bytes, a thousand deep.
    data = (b"\x97" + mp(b"") * 6 + (b"\xdd" + struct.pack(">I", 300_000)) * 900).ljust(300_000)
    tracemalloc.start()
    with pytest.raises(PackError):
        Table.parse(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_a_large_table_is_read_quickly_and_whole() -> None:
    rows = [
        Record(Digest(hash_in(None, struct.pack("<I", i))), Kind.CHUNK, 128 + i * 64, 64, 64, 0)
        for i in range(20_000)
    ]
    table = Table.parse(Table.of(rows).render())
    assert table[19_999] == rows[-1]
    assert all(table.find(row.digest) == row for row in rows[::97])


# -- headers -------------------------------------------------------------------------------------

headers = st.builds(
    PackHeader,
    store_id=st.binary(min_size=16, max_size=16),
    chunk_size=st.integers(1, 16384).map(lambda n: 4096 * n),
    nonce=st.binary(min_size=16, max_size=16),
    meta=st.booleans(),
    save=st.from_regex(r"[0-9]{8}T[0-9]{9}-[0-9a-f]{16}", fullmatch=True),
)
HEADER = PackHeader(bytes(range(16)), 4096, bytes(range(16, 32)), True, SAVE)


@given(headers, st.binary(max_size=5))
def test_headers_are_read_back(header: PackHeader, more: bytes) -> None:
    data = header.render()
    assert len(data) == HEADER_SIZE
    assert PackHeader.parse(data + more) == header


def test_no_flipped_bit_of_a_header_goes_unseen() -> None:
    data = HEADER.render()
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << (i % 8)
        try:
            header = PackHeader.parse(bytes(flipped))
        except PackError:
            continue
        assert header != HEADER
        assert header.render() == bytes(flipped)


@given(st.binary(max_size=300))
@example(b"\x93castore" + bytes(120))
def test_random_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(PackError):
        PackHeader.parse(data)


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, (64 << 20) + 4096, 2**63, 2**64 - 4096])
def test_a_header_of_an_impossible_chunk_size_is_refused(size: int) -> None:
    """A chunk may decode to as much as that."""
    with pytest.raises(PackError, match="chunk size"):
        PackHeader.parse(PackHeader(bytes(16), size, bytes(16), False, SAVE).render())


def test_a_header_of_another_version_or_cut_short_says_so() -> None:
    data = bytearray(HEADER.render())
    data[8] = 2
    with pytest.raises(PackError, match="version 2"):
        PackHeader.parse(bytes(data))
    with pytest.raises(PackError, match="cut short"):
        PackHeader.parse(HEADER.render()[:127])
    data = bytearray(HEADER.render())
    data[127] = 1
    with pytest.raises(PackError, match="stray"):
        PackHeader.parse(bytes(data))


# -- footers -------------------------------------------------------------------------------------


@given(st.integers(HEADER_SIZE, 2**40), st.integers(0, 2**30), digests, st.integers(0, 5000))
def test_footers_are_read_back(offset: int, length: int, ident: Digest, more: int) -> None:
    data = render_footer(offset, length, ident)
    assert len(data) == FOOTER_SIZE
    assert parse_footer(data, offset + length + FOOTER_SIZE + more) == (offset, length, ident)
    with pytest.raises(PackError):
        parse_footer(data, offset + length + FOOTER_SIZE - 1)


def test_every_flipped_bit_of_a_footer_shows() -> None:
    data = render_footer(4224, 300, Digest(digest(1)))
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << (i % 8)
        with pytest.raises(PackError):
            parse_footer(bytes(flipped), 8192)


@given(st.binary(max_size=80))
def test_random_bytes_are_no_footer(data: bytes) -> None:
    with pytest.raises(PackError):
        parse_footer(data, 1 << 60)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 10), (127, 10), (2**64 - 1, 2**64 - 1), (128, 2**63), (8192, 0)]
)
def test_a_footer_that_points_outside_is_refused(offset: int, length: int) -> None:
    with pytest.raises(PackError):
        parse_footer(render_footer(offset, length, Digest(digest(1))), 8192)


# -- names and ids -------------------------------------------------------------------------------


@given(st.integers(0, 99_999), st.integers(0, 999_999))
def test_pack_names(rank: int, number: int) -> None:
    for kind in ("data", "meta", "meta2"):
        assert PACK_NAME.fullmatch(pack_name(rank, number, kind))
    meta, meta2 = pack_name(rank, number, "meta"), pack_name(rank, number, "meta2")
    assert meta_names(meta) == meta_names(meta2) == (meta, meta2)


@pytest.mark.parametrize(
    "name",
    ["", "r0-000.data.pack", "r00000-00.data.pack", "r00000-000.data.pack\n", "r00000-000.pack",
     "../r00000-000.data.pack", "r00000-000.DATA.pack", "r00000-000.meta3.pack",
     "r٠٠٠٠٠-000.data.pack"],
)  # fmt: skip
def test_other_names_are_no_packs(name: str) -> None:
    assert not PACK_NAME.fullmatch(name)


def test_a_pack_s_id_is_that_of_header_and_table() -> None:
    header, table = HEADER.render(), Table.of([]).render()
    assert pack_id(header, table) == hash_in("castore 1 pack", header + table)
    other = PackHeader(HEADER.store_id, 4096, bytes(16), True, SAVE).render()
    assert pack_id(other, table) != pack_id(header, table)
    assert PACK_PAGE == 4096
