"""Packs as files: written, read, scrubbed; every damaged bit of one is found."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from castore.model.digest import Digest, Kind, chunk_digest, kind_digest
from castore.model.encoding import encode
from castore.model.packinfo import PackInfo
from castore.packs.codecs import Codec
from castore.packs.format import (
    HEADER_SIZE,
    PackError,
    PackHeader,
    Record,
    Table,
    pack_id,
    render_footer,
)
from castore.packs.reader import (
    Damage,
    Location,
    PackSet,
    RecordDamaged,
    read_record,
    read_table,
)
from castore.packs.scrub import scrub_pack
from castore.packs.writer import DataPacks, FinishedPack, PackPlace, TwinWriter, table_object
from castore.storage.local import LocalStorage
from tests.golden.cases import SAVE, STORE
from tests.golden.spec import digest
from tests.storage.memory import MemoryStorage

PLACE = PackPlace(STORE, 4096, SAVE)


def chunk(i: int, n: int = 300) -> bytes:
    return (i.to_bytes(4, "little") * n)[:n]


def write_data(
    storage: MemoryStorage | LocalStorage, chunks: list[bytes], place: PackPlace = PLACE
) -> FinishedPack:
    packs = DataPacks(storage, place, count().__next__)
    for data in chunks:
        packs.add(chunk_digest(data), data, begins=True)
    [finished] = packs.finish()
    return finished


def write_meta(
    storage: MemoryStorage | LocalStorage, objects: list[tuple[Kind, bytes]]
) -> list[FinishedPack]:
    metas = TwinWriter(storage, PLACE, count().__next__)
    for kind, data in objects:
        metas.add(kind, kind_digest(kind, data), data)
    return metas.finish()


TREES = [
    (Kind.TREE, encode(["list", 0, None, ["the same text again and again"] * 10])),
    (Kind.TREE, encode(["list", 0, None, list(range(30))])),
    (Kind.INTENT, encode(["add", "main"])),
]


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class _NoThreads:
    """Does at once what it is given: for scrubs by the thousand."""

    map = staticmethod(map)


NO_THREADS: Any = _NoThreads()


# -- writing and reading -------------------------------------------------------------------------


def test_packs_on_a_real_disk_are_read_back(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    storage = LocalStorage(tmp_path)
    storage.make_folder("packs")
    chunks = [chunk(i, n) for i, n in enumerate((1, 63, 64, 65, 4095, 4096, 9_000_000, 0))]
    data = write_data(storage, chunks, PackPlace(STORE, 16 << 20, SAVE))
    metas = write_meta(storage, [*TREES, (Kind.TABLE, table_object(data))])
    shelf = PackSet(storage, [data.info, *(m.info for m in metas)])
    for body in chunks:
        [location] = shelf.chunk_map().places(chunk_digest(body))
        assert read_record(storage, location) == body
        assert read_record(storage, location, device=True) == body
        assert location.record.offset % 64 == 0
    for kind, body in TREES:
        assert shelf.fetch(kind, kind_digest(kind, body)) == body
    for pack in (data, *metas):
        assert (tmp_path / pack.info.file).stat().st_size == pack.info.size
        assert pack.info.size % 4096 == 0
        for device in (False, True):
            state = scrub_pack(storage, pack.info, threads, device=device)
            assert state.damages == []
            assert state.bytes_read == sum(r.stored_len for r in pack.table)
    assert shelf.healed == []
    storage.close()


def test_chunks_of_one_tensor_lie_back_to_back() -> None:
    storage = MemoryStorage()
    packs = DataPacks(storage, PLACE, count().__next__)
    for i, begins in enumerate([True, False, False, True, False]):
        packs.add(chunk_digest(chunk(i, 100)), chunk(i, 100), begins=begins)
    [finished] = packs.finish()
    assert [r.offset for r in finished.table] == [128, 228, 328, 448, 548]


def test_packs_are_rolled_by_size_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("castore.packs.writer.ROLL_BYTES", 1000)
    storage = MemoryStorage()
    packs = DataPacks(storage, PLACE, count().__next__)
    paths = [packs.add(chunk_digest(chunk(i)), chunk(i), begins=i % 4 == 0) for i in range(10)]
    finished = packs.finish()
    assert [len(p.table) for p in finished] == [2, 2, 2, 2, 2]
    assert paths == [p.info.path for p in finished for _ in range(2)]
    assert len({p.info.id for p in finished}) == 5
    monkeypatch.setattr("castore.packs.writer.ROLL_RECORDS", 3)
    metas = write_meta(
        MemoryStorage(), [(Kind.TREE, encode(["list", 0, None, [i]])) for i in range(7)]
    )
    assert [len(p.table) for p in metas] == [3, 3, 3, 3, 1, 1]


def test_twins_hold_the_same_and_have_ids_of_their_own() -> None:
    storage = MemoryStorage()
    one, two = write_meta(storage, TREES)
    assert one.table_bytes == two.table_bytes
    assert one.info.id != two.info.id
    assert (one.info.path, two.info.path) == (
        f"{SAVE}/r00000-000.meta.pack",
        f"{SAVE}/r00000-000.meta2.pack",
    )


def test_an_object_is_written_once_however_often_it_is_given() -> None:
    metas = write_meta(MemoryStorage(), [TREES[0]] * 3)
    assert [len(m.table) for m in metas] == [1, 1]


def test_objects_are_coded_where_that_is_shorter() -> None:
    metas = write_meta(MemoryStorage(), TREES)
    assert [r.codec for r in metas[0].table] == [Codec.ZSTD, Codec.RAW, Codec.RAW]


def test_a_coded_object_is_decoded_and_hashed_before_it_is_written() -> None:
    storage = MemoryStorage()
    with (
        patch("castore.packs.writer.compress", return_value=b"not a frame"),
        pytest.raises(ValueError, match=r".+"),
    ):
        write_meta(storage, TREES)
    assert all(b"not a frame" not in data for data in storage.files.values())


def test_a_folder_that_went_away_is_made_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.make_folder("packs")
    finished = write_data(storage, [chunk(1)])
    assert (tmp_path / finished.info.file).exists()
    storage.close()


def test_a_name_that_is_taken_is_never_written_over() -> None:
    storage = MemoryStorage()
    finished = write_data(storage, [chunk(1)])
    before = bytes(storage.files[finished.info.file])
    with pytest.raises(FileExistsError):
        write_data(storage, [chunk(2)])
    assert storage.files[finished.info.file] == before


# -- every bit -----------------------------------------------------------------------------------


def small_packs() -> tuple[MemoryStorage, list[FinishedPack]]:
    storage = MemoryStorage()
    data = write_data(storage, [chunk(i, 100 + i) for i in range(3)])
    metas = write_meta(storage, [*TREES, (Kind.TABLE, table_object(data))])
    return storage, [data, metas[0]]


@pytest.mark.parametrize("which", [0, 1], ids=["data", "meta"])
def test_a_scrub_finds_every_flipped_bit(which: int) -> None:
    storage, packs = small_packs()
    info = packs[which].info
    file = storage.files[info.file]
    table = packs[which].table
    assert scrub_pack(storage, info, NO_THREADS).damages == []
    padding = {i for i, byte in enumerate(file) if not byte and 1500 < i < len(file) - 64}
    for at in range(len(file)):
        # All bits of what holds something, few of zeros, fewer of padding.
        if at in padding:
            bits = [at % 8] if at % 97 == 0 else []
        else:
            bits = list(range(8)) if file[at] else [at % 8]
        for bit in bits:
            file[at] ^= 1 << bit
            damages = scrub_pack(storage, info, NO_THREADS, table=table).damages
            file[at] ^= 1 << bit
            assert damages, f"bit {bit} of byte {at} was not found"
            for name, damage in damages:
                assert damage.pack == info.path
                rows = [r for r in table if r.offset <= at < r.offset + r.stored_len]
                if rows:  # a record's own byte: the record is named, with its place
                    assert (name, damage.code) == (rows[0].digest, "damaged-record")
                    assert damage.offset == rows[0].offset
    assert scrub_pack(storage, info, NO_THREADS).damages == []


def test_a_scrub_finds_stray_bytes_wherever_they_are(threads: ThreadPoolExecutor) -> None:
    """A pack may have gaps before a payload, before its table and before its footer: of zeros."""
    header = PackHeader(STORE, 4096, bytes(16), False, SAVE).render()
    table = Table.of([Record(NAME, Kind.CHUNK, 200, 100, 100, 0)]).render()
    ident = pack_id(header, table)
    body = header.ljust(200, b"\0") + PAYLOAD + bytes(50) + table
    file = body.ljust(4096 - 64, b"\0") + render_footer(350, len(table), ident)
    info = PackInfo(f"{SAVE}/r00000-000.data.pack", ident, 4096)
    storage = MemoryStorage()
    storage.files[info.file] = bytearray(file)
    assert scrub_pack(storage, info, threads).damages == []
    for at in (128, 199, 300, 349, 350 + len(table), 4031):
        storage.files[info.file][at] = 1
        [(_, damage)] = scrub_pack(storage, info, threads).damages
        storage.files[info.file][at] = 0
        assert (damage.code, damage.offset) == ("stray-bytes", at)


@pytest.mark.parametrize("which", [0, 1], ids=["data", "meta"])
def test_a_scrub_finds_every_other_length(which: int, threads: ThreadPoolExecutor) -> None:
    storage, packs = small_packs()
    info = packs[which].info
    whole = bytes(storage.files[info.file])
    for data in (b"", whole[:-1], whole[:64], whole[:4096][:-1], whole + b"\0", whole + whole):
        storage.files[info.file][:] = data
        codes = {d.code for _, d in scrub_pack(storage, info, threads).damages}
        assert "wrong-size" in codes
    del storage.files[info.file]
    [(_, damage)] = scrub_pack(storage, info, threads).damages
    assert damage.code == "missing-pack"


@pytest.mark.parametrize("which", [0, 1], ids=["data", "meta"])
def test_what_is_read_is_what_was_written_whatever_bit_flips(which: int) -> None:
    storage, packs = small_packs()
    info = packs[which].info
    file = storage.files[info.file]
    rows = list(packs[which].table)
    good = {r.digest: bytes(read_record(storage, Location(info, r))) for r in rows}
    for at in range(0, len(file)):
        if not file[at] and at % 16:
            continue
        bit = at % 8
        file[at] ^= 1 << bit
        shelf = PackSet(storage, [info])
        for row in rows:
            try:
                location = next(shelf.find(row.digest, data=which == 0))
                assert bytes(read_record(storage, location)) == good[row.digest]
            except (StopIteration, RecordDamaged):
                continue
        file[at] ^= 1 << bit


def test_damage_of_one_copy_is_healed_by_the_other() -> None:
    storage = MemoryStorage()
    metas = write_meta(storage, TREES)
    for damaged in metas:
        for row in damaged.table:
            file = storage.files[damaged.info.file]
            file[row.offset] ^= 1
            shelf = PackSet(storage, [m.info for m in metas])
            for kind, body in TREES:
                assert shelf.fetch(kind, kind_digest(kind, body)) == body
            assert all(d.pack == damaged.info.path for d in shelf.healed)
            file[row.offset] ^= 1
    for m in metas:
        storage.files[m.info.file][m.table[0].offset] ^= 1
    kind, body = TREES[0]
    with pytest.raises(RecordDamaged) as e:
        PackSet(storage, [m.info for m in metas]).fetch(kind, kind_digest(kind, body))
    assert len(e.value.damages) == 2
    assert not e.value.all_missing


def test_a_damaged_table_is_had_from_the_meta_packs() -> None:
    storage = MemoryStorage()
    chunks = [chunk(i) for i in range(5)]
    data = write_data(storage, chunks)
    metas = write_meta(storage, [*TREES, (Kind.TABLE, table_object(data))])
    file = storage.files[data.info.file]
    whole = bytes(file)
    table_at = whole.index(data.table_bytes)
    for at in (table_at, table_at + 40, len(file) - 64, len(file) - 1, 0, 20):
        file[at] ^= 0x10
        shelf = PackSet(storage, [data.info, *(m.info for m in metas)])
        for body in chunks:
            [location] = shelf.find(chunk_digest(body), data=True)
            assert read_record(storage, location) == body
        assert [d.code for d in shelf.healed] == ["damaged-table"]
        alone = PackSet(storage, [data.info])
        assert list(alone.find(chunk_digest(chunks[0]), data=True)) == []
        assert [d.code for d in alone.broken()] == ["damaged-table"]
        file[:] = whole


def test_a_table_copy_of_another_pack_is_not_believed() -> None:
    storage = MemoryStorage()
    packs = DataPacks(storage, PLACE, count().__next__)
    packs.add(chunk_digest(chunk(1)), chunk(1), begins=True)
    [data] = packs.finish()
    other = write_data(MemoryStorage(), [chunk(2)])
    body = encode([data.info.path.partition("/")[2], other.header, other.table_bytes])
    metas = write_meta(storage, [(Kind.TABLE, body)])
    storage.files[data.info.file][-1] ^= 1
    shelf = PackSet(storage, [data.info, *(m.info for m in metas)])
    assert isinstance(shelf.table(data.info), Damage)


@given(st.binary(max_size=400), st.integers(0, 3))
def test_random_files_are_no_packs(data: bytes, ending: int) -> None:
    storage = MemoryStorage()
    body = bytearray((data * 30).ljust(4096, b"\1")[:4096])
    info = PackInfo(f"{SAVE}/r00000-000.data.pack", Digest(digest(1)), 4096)
    if ending:
        body[:128] = PackHeader(STORE, 4096, bytes(16), False, SAVE).render()
    if ending > 1:
        body[-64:] = render_footer(128 + ending, 200, info.id)
    storage.files[info.file] = body
    with pytest.raises(PackError):
        read_table(storage, info)


# -- hostile packs: all their digests fit --------------------------------------------------------


def forged(
    record: Record, payload: bytes, save: str = SAVE, chunk_size: int = 4096
) -> tuple[MemoryStorage, PackInfo]:
    """A pack of one record whose table says what it likes."""
    header = PackHeader(STORE, chunk_size, bytes(16), False, save).render()
    table = Table.of([record]).render()
    body = header + payload
    ident = pack_id(header, table)
    footer = render_footer(len(body), len(table), ident)
    file = (body + table).ljust(4096 - 64, b"\0") + footer
    info = PackInfo(f"{save}/r00000-000.data.pack", ident, 4096)
    storage = MemoryStorage()
    storage.files[info.file] = bytearray(file)
    return storage, info


PAYLOAD = b"x" * 100
NAME = chunk_digest(PAYLOAD)
#: 12 bytes of zstd that announce a TiB.
HUGE_FRAME = struct.pack("<I", 0xFD2FB528) + b"\xe0" + struct.pack("<Q", 2**40) + b"\1\0\0"


@pytest.mark.parametrize("claim", [5000, 2**31, 2**40, 2**62, 2**64 - 1])
@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("chunk_size", [4096, 2**40, 2**63])
def test_a_table_that_claims_huge_records_allocates_nothing(
    claim: int, coded: bool, chunk_size: int, threads: ThreadPoolExecutor
) -> None:
    codec = Codec.ZSTD if coded else Codec.RAW
    for stored, raw in ((claim, claim), (len(HUGE_FRAME), claim), (claim, 100)):
        stored_digest = chunk_digest(HUGE_FRAME) if coded else None
        record = Record(NAME, Kind.CHUNK, HEADER_SIZE, stored, raw, codec, stored_digest)
        storage, info = forged(record, HUGE_FRAME, chunk_size=chunk_size)
        tracemalloc.start()
        damages = scrub_pack(storage, info, threads).damages
        found = list(PackSet(storage, [info]).find(NAME, data=True))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert damages
        assert not found
        assert peak < 4 << 20


def test_rows_beyond_the_end_of_the_file_are_refused() -> None:
    for offset in (4096, 5000, 2**40):
        record = Record(NAME, Kind.CHUNK, offset, 100, 100, 0)
        storage, info = forged(record, PAYLOAD)
        with pytest.raises(PackError, match="outside the file"):
            read_table(storage, info)


def test_a_record_is_read_into_the_caller_s_buffer_or_not_at_all() -> None:
    frame = zstandard.ZstdCompressor().compress(PAYLOAD)
    for stored, codec in ((PAYLOAD, 0), (frame, 1)):
        record = Record(
            NAME, Kind.CHUNK, HEADER_SIZE, len(stored), 100, codec,
            chunk_digest(stored) if codec else None,
        )  # fmt: skip
        storage, info = forged(record, stored)
        out = bytearray(100)
        assert bytes(read_record(storage, Location(info, record), memoryview(out))) == PAYLOAD
        assert bytes(out) == PAYLOAD
    for n in (0, 1, 99, 101, 4096):
        record = Record(NAME, Kind.CHUNK, HEADER_SIZE, 100, 100, 0)
        storage, info = forged(record, PAYLOAD)
        with pytest.raises(RecordDamaged):
            read_record(storage, Location(info, record), memoryview(bytearray(n)))


def test_a_chunk_never_passes_for_an_object() -> None:
    body = encode(["list", 0, None, []])
    record = Record(chunk_digest(body), Kind.TREE, HEADER_SIZE, len(body), len(body), 0)
    storage, info = forged(record, body)
    with pytest.raises(RecordDamaged):
        read_record(storage, Location(info, record))
    assert read_record(storage, Location(info, replace(record, kind=Kind.CHUNK))) == body


def test_a_pack_in_another_save_s_place_is_damage(threads: ThreadPoolExecutor) -> None:
    record = Record(NAME, Kind.CHUNK, HEADER_SIZE, 100, 100, 0)
    storage, info = forged(record, PAYLOAD, save="20200101T000000000-0000000000000000")
    moved = PackInfo(f"{SAVE}/r00000-000.data.pack", info.id, info.size)
    storage.files[moved.file] = storage.files[info.file]
    assert [d.code for _, d in scrub_pack(storage, moved, threads).damages] == ["damaged-table"]


def test_a_pack_whose_size_is_no_multiple_of_a_page_is_refused() -> None:
    storage, packs = small_packs()
    info = packs[0].info
    for size in (0, 1, 64, 4095, info.size - 1, info.size + 1):
        with pytest.raises((PackError, OSError)):
            read_table(storage, replace(info, size=size))
