"""The index: true or silent, whatever befalls its file, and never the end of the process."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castore.model.digest import Digest, Kind
from castore.model.packinfo import PackInfo
from castore.packs.format import Record, Table
from castore.packs.index import FIRST_MAP, Found, LmdbIndex, TableIndex
from castore.packs.lmdb_file import IndexShape, is_sound
from tests.packs.flip_index import PACKS, STORE, digest, make_index, pack, truth
from tests.packs.test_pack_files import chunk, write_data
from tests.storage.memory import MemoryStorage

ROOT = Path(__file__).resolve().parents[2]
SHAPE = IndexShape(b"records", 32, 66)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "index.lmdb"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[..., LmdbIndex]]:
    made: list[LmdbIndex] = []

    def open_(where: Path = folder, store: bytes = STORE, storage: Any = None) -> LmdbIndex:
        made.append(LmdbIndex(where, store, storage or MemoryStorage()))
        return made[-1]

    yield open_
    for index in made:
        index.close()


def places(index: LmdbIndex | TableIndex, names: list[Digest]) -> dict[Digest, set[Found]]:
    found = index.find(names)
    assert len(found) == len(names)
    assert all(len(set(f)) == len(f) for f in found)
    return {name: set(f) for name, f in zip(names, found, strict=True) if f}


def sound(folder: Path) -> bool:
    with (folder / "data.mdb").open("rb") as file:
        fd = file.fileno()
        return is_sound(lambda at, n: os.pread(fd, n, at), lambda: os.fstat(fd).st_size, SHAPE)


# -- against a dict ------------------------------------------------------------------------------

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), st.lists(st.integers(0, 60), max_size=25)),
        st.tuples(st.just("add"), st.integers(0, 30), st.just(list(range(300)))),
        st.tuples(st.just("find"), st.lists(st.integers(0, 400), max_size=40)),
        st.just(("reopen",)),
    ),
    max_size=25,
)


@settings(max_examples=settings().max_examples // 2)
@given(_steps)
def test_random_work_against_a_dict(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        work_against_a_dict(Path(folder) / "index.lmdb", steps)


def work_against_a_dict(work: Path, steps: list[Any]) -> None:
    index = LmdbIndex(work, STORE, MemoryStorage())
    known: list[tuple[Digest, Table]] = []
    taken: set[int] = set()
    for step in steps:
        match step:
            case ("add", ident, chunks) if ident not in taken:
                taken.add(ident)
                known.append(pack(ident, list(dict.fromkeys(chunks))))
                index.add(*known[-1])
            case ("find", chunks):
                names = [digest(c) for c in dict.fromkeys(chunks)]
                expected = truth(known)
                assert places(index, names) == {n: expected[n] for n in names if n in expected}
            case ("reopen",):
                index.close()
                assert not known or sound(work)  # what LMDB makes of our work is no false alarm
                index = LmdbIndex(work, STORE, MemoryStorage())
            case _:
                index.add(*next(k for k in known if k[0] == pack(step[1], [])[0]))  # again
    everything = truth(known)
    assert places(index, [*everything, digest(9999)]) == everything
    index.close()


def test_tables_in_memory_say_the_same() -> None:
    tables = TableIndex(MemoryStorage())
    for ident, table in PACKS:
        tables.add(ident, table)
    everything = truth(PACKS)
    assert places(tables, [*everything, digest(9999)]) == everything


def test_what_is_sound_stays_so_over_much_work(folder: Path, opened: Any) -> None:
    """Trees grow, split and free pages; none of it is taken for damage."""
    chosen = random.Random(3)
    index = opened()
    for i in range(60):
        wide = chosen.choice([30, 300, 100_000])
        chunks = [chosen.randrange(wide) for _ in range(chosen.choice([1, 10, 200]))]
        index.add(*pack(i, list(dict.fromkeys(chunks))))
        assert sound(folder), i
    assert places(index, [digest(1)])


def test_packs_are_learnt_from_their_files_once(opened: Any) -> None:
    storage = MemoryStorage()
    made = write_data(storage, [chunk(i) for i in range(5)])
    gone = PackInfo("save/r00000-000.data.pack", digest(1), 4096)
    index = opened(storage=storage)
    index.update([made.info, made.info, gone])
    expected = {r.digest: {(made.info.id, r)} for r in made.table}
    assert places(index, made.table.digests()) == expected
    index.close()
    again = opened(storage=MemoryStorage())  # no pack can be read any more, and none needs to be
    again.update([made.info])
    assert places(again, made.table.digests()) == expected


def test_threads_may_share_an_index(opened: Any) -> None:
    index = opened()
    failures: list[BaseException] = []

    def work(w: int) -> None:
        try:
            for i in range(15):
                ident, table = pack(w * 100 + i, range(w * 1000, w * 1000 + 50))
                index.add(ident, table)
                found = index.find(table.digests())
                assert all(ident in {f[0] for f in places} for places in found)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_two_indexes_of_one_folder_in_one_process(folder: Path, opened: Any) -> None:
    """LMDB opens a file once a process: the second must not throw the first one's file away."""
    one, two = opened(), opened()
    one.add(*PACKS[0])
    two.add(*PACKS[1])
    expected = truth(PACKS[:2])
    for name, found in places(two, PACKS[1][1].digests()).items():
        assert {p for p in expected[name] if p[0] == PACKS[1][0]} <= found <= expected[name]
    assert places(one, PACKS[0][1].digests()).keys() == set(PACKS[0][1].digests())
    one.close()
    two.close()
    assert places(opened(), PACKS[0][1].digests()).keys() == set(PACKS[0][1].digests())
    assert sound(folder)


# -- room ----------------------------------------------------------------------------------------


def test_a_full_map_grows(folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("castore.packs.index.FIRST_MAP", 1 << 16)
    index = opened()
    known = [pack(i, range(i * 1000, i * 1000 + 1000)) for i in range(5)]
    for ident, table in known:
        index.add(ident, table)
    assert (folder / "data.mdb").stat().st_size > 1 << 18
    assert index._fallback is None
    assert places(index, list(truth(known))) == truth(known)
    index.close()
    assert places(opened(), list(truth(known))) == truth(known)


GROW = """
import sys
from pathlib import Path
import castore.packs.index as i
i.FIRST_MAP = 1 << 16
from tests.packs.flip_index import *
index = i.LmdbIndex(Path(sys.argv[1]), STORE, None)
for n in range(20, 25):
    index.add(*pack(n, range(n * 1000, n * 1000 + 1000)))
assert index._fallback is None
"""


def test_a_map_that_another_process_grew_is_grown_too(
    folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("castore.packs.index.FIRST_MAP", 1 << 16)
    index = opened()
    index.add(*pack(1, range(10)))
    subprocess.run([sys.executable, "-c", GROW, str(folder)], cwd=ROOT, check=True, timeout=60)
    assert places(index, [digest(22_500)])
    index.add(*pack(2, range(10, 20)))
    assert places(index, [digest(15), digest(24_999), digest(5)]).keys() == {
        digest(15), digest(24_999), digest(5),
    }  # fmt: skip
    assert index._fallback is None


def test_a_full_table_of_readers_is_no_damage(
    folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    made = write_data(storage, [chunk(1)])
    index = opened(storage=storage)
    index.update([made.info])
    before = (folder / "data.mdb").read_bytes()

    def full(*_: Any) -> Any:
        raise lmdb.ReadersFullError("mdb_txn_begin")

    monkeypatch.setattr(index, "_find", full)
    assert places(index, made.table.digests()) == {
        r.digest: {(made.info.id, r)} for r in made.table
    }
    assert (folder / "data.mdb").read_bytes() == before


# -- what cannot be opened -----------------------------------------------------------------------


def test_without_lmdb_the_tables_serve(
    folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    made = write_data(storage, [chunk(i) for i in range(5)])

    def fails(*_: Any, **__: Any) -> Any:
        raise lmdb.Error("no locks on this file system")

    monkeypatch.setattr(lmdb, "open", fails)
    index = opened(storage=storage)
    index.update([made.info])
    index.add(*PACKS[0])
    assert places(index, made.table.digests()) == {
        r.digest: {(made.info.id, r)} for r in made.table
    }
    assert places(index, PACKS[0][1].digests()) == truth(PACKS[:1])


def test_a_folder_that_cannot_be_made_is_no_failure(tmp_path: Path, opened: Any) -> None:
    (tmp_path / "file").touch()
    index = opened(tmp_path / "file" / "index.lmdb")
    index.add(*PACKS[0])
    assert places(index, PACKS[0][1].digests()) == truth(PACKS[:1])


@pytest.mark.parametrize("when", ["_find", "_put", "_update"])
@pytest.mark.parametrize("error", [lmdb.CorruptedError, lmdb.PageNotFoundError, OSError])
def test_what_lmdb_objects_to_is_rebuilt_once(
    opened: Any, monkeypatch: pytest.MonkeyPatch, when: str, error: type[Exception]
) -> None:
    storage = MemoryStorage()
    made = write_data(storage, [chunk(i) for i in range(5)])
    expected = {r.digest: {(made.info.id, r)} for r in made.table}
    index = opened(storage=storage)
    index.update([made.info])
    real = getattr(index, when)
    failed: list[int] = []

    def once(*args: Any) -> Any:
        if not failed:
            failed.append(1)
            raise error("damaged")
        return real(*args)

    monkeypatch.setattr(index, when, once)
    index.update([made.info])
    index.add(*PACKS[0])
    assert places(index, made.table.digests()) == expected  # known again, not only not wrong
    assert places(index, PACKS[0][1].digests()) in (truth(PACKS[:1]), {})
    assert failed
    assert index._fallback is None


# -- files that are not what they were -----------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base") / "index.lmdb"
    make_index(made)
    return made


def copied(base: Path, folder: Path) -> Path:
    shutil.copytree(base, folder)
    return folder / "data.mdb"


def never_wrong(index: LmdbIndex) -> None:
    """What it says is true, and it learns."""
    everything = truth(PACKS)
    for name, found in places(index, list(everything)).items():
        assert found <= everything[name]
    index.add(*pack(777, range(800, 810)))
    assert places(index, [digest(805)])
    index.close()


def test_a_flip_of_a_page_s_structure_is_seen(base: Path, tmp_path: Path, campaign: bool) -> None:
    """Heads of pages, tables of nodes, heads of nodes, meta pages: what LMDB trusts blindly."""
    data = (base / "data.mdb").read_bytes()
    assert sound(base)
    bits = structural_bits(base, data)
    assert len(bits) > 5000
    if not campaign:
        bits = random.Random(2).sample(bits, 1000)
    unseen = []
    for bit in bits:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        if is_sound(lambda at, n, b=flipped: bytes(b[at : at + n]), lambda: len(data), SHAPE):
            unseen.append(bit)
    # A node of an odd length may say one byte more or less: it has that room, and does no harm.
    assert len(unseen) < 5
    assert run_flips(base, tmp_path / "work", unseen) == []


def test_a_flip_of_the_free_list_is_seen_or_does_no_harm(base: Path, tmp_path: Path) -> None:
    """A page that is both free and in use would be written over under its readers."""
    data = (base / "data.mdb").read_bytes()
    meta = max((0, 4096), key=lambda m: struct.unpack_from("<Q", data, m + 144)[0])
    leaf = 4096 * struct.unpack_from("<Q", data, meta + 40 + 40)[0]
    last = struct.unpack_from("<Q", data, meta + 136)[0]
    assert struct.unpack_from("<H", data, leaf + 10)[0] == 2  # one page holds it all
    nodes = struct.unpack_from(f"<{(struct.unpack_from('<H', data, leaf + 12)[0] - 16) // 2}H",
                               data, leaf + 16)  # fmt: skip
    unseen, seen = [], 0
    for node in nodes:
        length = struct.unpack_from("<H", data, leaf + node)[0]
        for at in range(leaf + node + 16, leaf + node + 16 + length, 8):
            for bit in range(at * 8, at * 8 + 12):
                flipped = bytearray(data)
                flipped[bit // 8] ^= 1 << (bit % 8)
                if is_sound(lambda a, n, b=flipped: bytes(b[a : a + n]), lambda: len(data), SHAPE):
                    unseen.append(bit)  # a page less is free: lost, no more
                else:
                    seen += 1
    assert last > 10
    assert seen > 10 * len(unseen)
    assert run_flips(base, tmp_path / "work", unseen) == []


def structural_bits(base: Path, data: bytes) -> list[int]:
    """Found with a parser of their own: every second bit of every live page's structure."""

    def at(place: int, form: str) -> Any:
        return struct.unpack_from(form, data, place)

    out: list[int] = []

    def bits(start: int, length: int) -> None:
        out.extend(range(start * 8 + start % 2, (start + length) * 8, 2))

    meta = max((0, 4096), key=lambda m: at(m + 144, "<Q")[0])
    for m in (0, 4096):
        bits(m, 12)  # number, padding, flags
        bits(m + 16, 8)  # magic, version
        bits(m + 40, 6)  # page size, flags of the free list
        bits(m + 88, 6)
        bits(m + 144, 8)  # transaction
    for tree in (meta + 40, meta + 88):
        bits(tree + 6, 2)  # depth
        bits(tree + 40, 8)  # root

    def page(number: int, begin: int | None = None) -> None:
        start = number * 4096 if begin is None else begin
        _, _, flags, lower, _ = at(start, "<QHHHH")
        bits(start if begin is None else start + 8, 16 if begin is None else 8)
        n = (lower - 16) // 2
        bits(start + 16, 2 * n)
        for place in at(start + 16, f"<{n}H"):
            node = start + place
            low, high, kind, key = at(node, "<HHHH")
            bits(node, 8)
            if flags & 1:
                page(low | high << 16 | kind << 32)
            elif kind & 2:
                record = node + 8 + key
                bits(record, 8)
                bits(record + 40, 8)
                page(at(record + 40, "<Q")[0])
            elif kind & 4:
                page(0, node + 8 + key)

    for tree in (meta + 40, meta + 88):
        page(at(tree + 40, "<Q")[0])
    return [
        b for b in out if not (data[b // 8] & 0x42 == 0x42 and b % 8 == 4)
    ]  # "dirty": no matter


def run_flips(base: Path, work: Path, bits: list[int]) -> list[str]:
    """What went wrong, crashes included: each is told, and the rest is tried on."""
    problems: list[str] = []
    left = list(bits)
    while left:
        done = subprocess.run(
            [sys.executable, "-m", "tests.packs.flip_index", str(base), str(work)],
            input=" ".join(map(str, left)),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=3000,
            check=False,
        )
        lines = done.stdout.splitlines()
        problems += [line for line in lines if line.startswith("WRONG")]
        if done.returncode == 0:
            return problems
        bit = int([line for line in lines if line.isdigit()][-1])
        problems.append(
            f"CRASH {done.returncode}: page {bit // 8 // 4096}, byte {bit // 8 % 4096}, "
            f"bit {bit % 8}: {done.stderr[-200:]}"
        )
        left = left[left.index(bit) + 1 :]
    return problems


def test_flipped_bits_are_never_believed_and_never_kill(
    base: Path, tmp_path: Path, campaign: bool
) -> None:
    n = (base / "data.mdb").stat().st_size * 8
    bits = list(range(n)) if campaign else random.Random(11).sample(range(n), 150)
    assert run_flips(base, tmp_path / "work", sorted(bits)) == []


def test_flips_that_killed_the_process_once(base: Path, tmp_path: Path) -> None:
    """LMDB 0.9.36 alone: SIGBUS for bits of a leaf's table of nodes and of its nodes' heads."""
    data = (base / "data.mdb").read_bytes()
    bits = random.Random(5).sample(structural_bits(base, data), 100)
    assert run_flips(base, tmp_path / "work", sorted(bits)) == []


@pytest.mark.parametrize(
    "n", [1, 15, 16, 100, 4095, 4096, 4097, 8191, 8192, 8193, 20_000, -4096, -1]
)
def test_a_file_cut_short(base: Path, folder: Path, opened: Any, n: int) -> None:
    path = copied(base, folder)
    path.write_bytes(path.read_bytes()[:n])
    assert not sound(folder)
    never_wrong(opened())


@pytest.mark.parametrize("content", ["zeros", "ones", "noise", "text", "empty", "longer", "holes"])
def test_garbage_in_the_file_s_place(base: Path, folder: Path, opened: Any, content: str) -> None:
    path = copied(base, folder)
    data = path.read_bytes()
    made = {
        "zeros": bytes(len(data)),
        "ones": b"\xff" * len(data),
        "noise": random.Random(1).randbytes(len(data)),
        "text": b"this is no database\n" * 1000,
        "empty": b"",
        "longer": data + bytes(65536),
        "holes": b"".join(data[i : i + 4096] if i < 8192 or i % 8192 else bytes(4096)
                          for i in range(0, len(data), 4096)),
    }[content]  # fmt: skip
    path.write_bytes(made)
    never_wrong(opened())


@pytest.mark.parametrize("page", range(2, 12))
def test_a_page_of_zeros_or_of_another_place(
    base: Path, folder: Path, opened: Any, page: int
) -> None:
    path = copied(base, folder)
    data = path.read_bytes()
    for other in (bytes(4096), data[4096 * (page + 1) :][:4096], data[:4096]):
        path.write_bytes(data[: page * 4096] + other + data[(page + 1) * 4096 :])
        never_wrong(opened())
        shutil.rmtree(folder)
        path = copied(base, folder)


def test_flips_in_the_lock_file(base: Path, folder: Path, opened: Any) -> None:
    copied(base, folder)
    lock = folder / "lock.mdb"
    for seed in range(10):
        data = bytearray(lock.read_bytes())
        for _ in range(20):
            data[random.Random(seed).randrange(len(data))] ^= 0xFF
        lock.write_bytes(data)
        index = opened()
        assert places(index, [digest(1)])
        index.close()


def test_a_deleted_index_is_made_anew(folder: Path, opened: Any) -> None:
    index = opened()
    index.add(*PACKS[0])
    shutil.rmtree(folder)
    assert set(places(index, [digest(1)])) <= {digest(1)}
    index.add(*PACKS[1])
    index.close()
    again = opened()
    again.add(*PACKS[0])
    assert places(again, PACKS[0][1].digests()) == truth(PACKS[:1])


def test_another_store_s_index_is_not_believed(folder: Path, opened: Any) -> None:
    theirs = opened(store=b"another store...")
    theirs.add(*PACKS[0])
    theirs.close()
    index = opened()
    assert places(index, PACKS[0][1].digests()) == {}
    index.add(*PACKS[1])
    assert places(index, PACKS[1][1].digests()) == truth(PACKS[1:2])


def test_an_index_of_another_version_is_not_believed(
    folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr("castore.packs.index.VERSION", b"castore index 0")
        old = opened()
        old.add(*PACKS[0])
        old.close()
    assert places(opened(), PACKS[0][1].digests()) == {}


def test_a_foreign_lmdb_file_is_left_alone_and_replaced(folder: Path, opened: Any) -> None:
    folder.mkdir()
    with lmdb.open(str(folder), max_dbs=3, lib_version=0) as env, env.begin(write=True) as txn:
        txn.put(b"somebody", b"else" * 2000)
    never_wrong(opened())


def test_a_rebuilt_index_leaves_nothing_beside_it(base: Path, folder: Path, opened: Any) -> None:
    path = copied(base, folder)
    path.write_bytes(path.read_bytes()[:5000])
    never_wrong(opened())
    assert [p.name for p in folder.parent.iterdir()] == ["index.lmdb"]


@pytest.mark.parametrize("what", ["folder", "dangling", "data.mdb", "lock.mdb", "fifo"])
def test_an_index_elsewhere_is_not_followed(
    base: Path, folder: Path, opened: Any, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    """A hostile store's index may be a symbolic link to a file of the user's."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    victim = elsewhere / "victim"
    victim.write_bytes(b"")
    copied(base, elsewhere / "theirs")
    before = {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()}
    if what == "folder":
        folder.symlink_to(elsewhere / "theirs")
    elif what == "dangling":
        folder.symlink_to(elsewhere / "nothing")
    else:
        copied(base, folder)
        name = "data.mdb" if what == "fifo" else what
        (folder / name).unlink()
        if what == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(victim)
    never_wrong(opened())
    assert {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()} == before
    assert not (elsewhere / "nothing").exists()


# -- other processes -----------------------------------------------------------------------------

FORKED = """
import os, sys
from pathlib import Path
from castore.packs.index import LmdbIndex
from tests.packs.flip_index import *
from tests.packs.flip_index import digest
index = LmdbIndex(Path(sys.argv[1]), STORE, None)
index.add(*pack(1, range(10)))
assert index.find([digest(3)])[0]
child = os.fork()
if child == 0:
    ok = bool(index.find([digest(3)])[0])
    index.add(*pack(2, range(10, 20)))
    ok = ok and bool(index.find([digest(13)])[0]) and index._fallback is None
    index.close()
    os._exit(0 if ok else 7)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert index.find([digest(3)])[0], "the parent after its child"
assert index.find([digest(13)])[0], "what the child learnt"
index.add(*pack(3, range(20, 30)))
assert index.find([digest(23)])[0]
assert index._fallback is None
index.close()
"""


def test_a_forked_child_opens_its_own(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sound(folder)


WRITER = """
import sys
from pathlib import Path
from castore.packs.index import LmdbIndex
from tests.packs.flip_index import *
who = int(sys.argv[2])
for i in range(12):
    index = LmdbIndex(Path(sys.argv[1]), STORE, None)  # opened anew: looked at while others write
    index.add(*pack(1000 * who + i, range(1000 * who, 1000 * who + 50)))
    found = index.find([d for d in pack(0, range(1000 * who, 1000 * who + 50))[1].digests()])
    assert all(len(f) == i + 1 for f in found), [len(f) for f in found]
    assert index._fallback is None
    index.close()
"""


def test_processes_share_an_index(folder: Path, opened: Any) -> None:
    """None takes another's commit for damage: then it would throw the others' work away."""
    first = opened()
    first.add(*pack(1, range(3)))
    first.close()
    with ThreadPoolExecutor() as pool:
        done = list(
            pool.map(
                lambda who: subprocess.run(
                    [sys.executable, "-c", WRITER, str(folder), str(who)],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                ),
                (1, 2, 3),
            )
        )
    assert [d.stderr for d in done] == ["", "", ""]
    assert sound(folder)
    names = [r.digest for who in (1, 2, 3) for r in pack(0, range(1000 * who, 1000 * who + 50))[1]]
    found = places(opened(), names)
    assert all(len(found[name]) == 12 for name in names)


def test_first_map_is_large_enough_for_a_small_store() -> None:
    assert FIRST_MAP >= 1 << 20
    assert Record(digest(1), Kind.CHUNK, 0, 0, 0, 0).codec == 0
