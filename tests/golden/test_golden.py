"""Golden bytes: a file that a store holds today must read the same for ever.

The bytes in ``*.hex`` are of format version 1.  WHERE ONE OF THEM CHANGES, THE FORMAT HAS CHANGED:
its version changes with it, and a reader of the old bytes stays.  The tests below the first build
the same bytes by hand from docs/format.md (``spec.py``), so that the page and castore agree, and
not only castore today with castore yesterday.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from castore.log.entry import Add, parse_change, parse_file
from castore.model import objects
from castore.model.config import StoreConfig
from castore.model.digest import Kind, kind_digest
from castore.model.encoding import decode
from castore.model.grid import Grid
from castore.model.objects import CheckpointObject, parse_node
from castore.packs.codecs import Codec
from castore.packs.codecs import decode as decode_codec
from castore.packs.format import PackHeader, Table, parse_footer
from tests.golden import cases
from tests.golden.cases import (
    ACT,
    CHANGES,
    CHUNKS,
    FOREIGN,
    META,
    META2,
    META_OBJECT,
    NONCE,
    OTHER_SAVE,
    OWN,
    SAVE,
    STORE,
    TIME,
    golden,
)
from tests.golden.spec import arr, digest, hash_in, mp

MADE = [(file, name) for file, made in cases.CASES.items() for name in made]


@pytest.mark.parametrize(("file", "name"), MADE, ids=lambda part: part)
def test_what_is_written_is_what_was_always_written(file: str, name: str) -> None:
    assert golden(file)[name] == cases.CASES[file][name]()


def test_no_golden_case_was_forgotten() -> None:
    assert {file: set(golden(file)) for file in cases.CASES} == {
        file: set(made) for file, made in cases.CASES.items()
    }


# -- objects, by hand ----------------------------------------------------------------------------


def by_hand(container: str, items: bytes, extra: Any = None, level: int = 0) -> bytes:
    return arr(mp(container), mp(level), mp(extra), items)


def object_digest(kind: str, data: bytes) -> bytes:
    return hash_in(f"castore 1 {kind}", data)


def test_tree_dict_by_hand() -> None:
    content = [0, bytes(range(16))]
    chunks = [1, digest(0) + digest(1)]
    pairs = [
        ["weight", ["tensor", 0, "float32", 4, [2, 2], content, None]],
        ["big", ["tensor", 3, "float32", 4, [2048], chunks, 7]],
        [5, None],
        [["node", ["tuple", 0, None, [1, "a", True]]], -1.5],
        ["", b"\0\xff"],
        ["nested", ["node", ["dict", 0, None, [["x", 1]]]]],
    ]
    # An int key is one byte, a tuple key a node; short byte strings are themselves.
    assert golden("objects")["tree-dict"] == by_hand("dict", mp(pairs))


@pytest.mark.parametrize(
    ("name", "container", "items", "extra"),
    [
        ("tree-list", "list", [1, "two", 3.0, None], None),
        ("tree-tuple", "tuple", [], None),
        ("tree-set", "set", [2, "a", "b", 300, -1], None),  # ascending by their encodings
        ("tree-frozenset", "frozenset", [True], None),
        (
            "tree-odict",
            "odict",
            [["b", 1], ["a", 2]],
            ["node", ["dict", 0, None, [["version", 1]]]],
        ),
        ("tree-counter", "counter", [[10, 5]], None),
        ("tree-defaultdict", "defaultdict", [["k", []]], "list"),
        (
            "tree-value",
            "value",
            [["tensor", 0, "float32", 4, [2, 2], [0, bytes(range(16))], None]],
            None,
        ),
    ],
)
def test_containers_by_hand(name: str, container: str, items: list[Any], extra: Any) -> None:
    assert golden("objects")[name] == by_hand(container, mp(items), extra)


def test_a_container_too_long_for_its_entry_by_hand() -> None:
    child, parent = cases.tree_with_child()
    assert child == by_hand("list", mp([1000] * 200))
    assert len(child) > 512
    link = ["tree", object_digest("tree", child), 200]
    assert parent == by_hand("dict", mp([["long", link]]))


def test_a_split_container_by_hand() -> None:
    values = [i % 100 for i in range(65538)]
    leaves = [by_hand("list", mp(values[i : i + 256])) for i in range(0, 65538, 256)]
    assert [len(leaf) > 20 for leaf in leaves] == [True] * 256 + [False]
    first = [[256, object_digest("tree", leaf)] for leaf in leaves[:256]]
    last = [[2, object_digest("tree", leaves[256])]]
    upper = [by_hand("list", mp(items), level=1) for items in (first, last)]
    counts = [[65536, object_digest("tree", upper[0])], [2, object_digest("tree", upper[1])]]
    top = by_hand("list", mp(counts), level=2)
    # Leaves first, then what stands over them, the top last.
    given = cases.tree(cases.node("list", values))
    assert given == [*leaves, *upper, top]
    assert golden("objects")["tree-split-last-leaf"] == leaves[256]
    assert golden("objects")["tree-split-last-upper"] == upper[1]
    assert golden("objects")["tree-split-top"] == top


def test_chunk_lists_by_hand() -> None:
    names = [digest(i % 256) for i in range(4097)]
    level_0 = [mp([0, b"".join(names[:4096])]), mp([0, names[4096]])]
    level_1 = mp([1, b"".join(object_digest("chunks", part) for part in level_0)])
    assert cases.content_spilled() == [
        *level_0,
        level_1,
        mp([2, object_digest("chunks", level_1)]),
    ]
    stored = golden("objects")
    assert stored["chunks-level-0"] == level_0[1]
    assert stored["chunks-level-1"] == level_1
    assert stored["content-spilled"] == mp([2, object_digest("chunks", level_1)])
    assert stored["content-inline"] == mp([0, b""])
    assert stored["content-listed"] == mp([1, digest(1) + digest(2)])


def test_checkpoint_by_hand() -> None:
    fields = {
        "audit": None,
        "chunk_size": 4 << 20,
        "contents": digest(3),
        "logical_bytes": 1 << 40,
        "message": "before the warm-up ends",
        "meta": {"loss": 2.31, "a": [1, None], "deep": {"b": True}},
        "parent": digest(2),
        "ranks": None,
        "root": digest(1),
        "step": 1000,
        "tensors": 148,
        "time": TIME,
    }
    assert list(fields) == sorted(fields)
    assert golden("objects")["checkpoint"] == mp(fields)


def test_objects_are_read_back() -> None:
    stored = golden("objects")
    containers = {
        name.removeprefix("tree-"): parse_node(decode(data)).container
        for name, data in stored.items()
        if name.startswith("tree-")
    }
    assert containers.pop("parent") == "dict"
    assert {containers.pop(f"split-{part}") for part in ("last-leaf", "last-upper", "top")} == {
        "list"
    }
    assert all(name == container for name, container in containers.items())
    assert len(containers) == 9
    parsed = CheckpointObject.parse(stored["checkpoint"])
    assert (parsed.step, parsed.parent, parsed.meta) == (
        1000,
        digest(2),
        {"loss": 2.31, "a": [1, None], "deep": {"b": True}},
    )


def test_limits_of_the_page() -> None:
    """They decide what lies where, and so every digest above."""
    assert (objects.INLINE_BYTES, objects.INLINE_NODE, objects.FAN_OUT) == (256, 512, 256)
    assert (objects.LIST_DIGESTS, objects.SPILL_DIGESTS) == (32, 4096)


def test_kinds_have_contexts_of_their_own() -> None:
    data = b"the same bytes"
    names = {
        Kind.CHUNK: hash_in(None, data),
        Kind.TREE: hash_in("castore 1 tree", data),
        Kind.CHUNKS: hash_in("castore 1 chunks", data),
        Kind.CHECKPOINT: hash_in("castore 1 checkpoint", data),
        Kind.TABLE: hash_in("castore 1 table", data),
        Kind.INTENT: hash_in("castore 1 intent", data),
    }
    assert {kind: kind_digest(kind, data) for kind in Kind} == names
    assert len(set(names.values())) == len(Kind)
    assert [int(kind) for kind in Kind] == [0, 1, 2, 3, 4, 5]


# -- packs, by hand ------------------------------------------------------------------------------


def header_by_hand(kind: int) -> bytes:
    return (
        b"\x93castore"
        + struct.pack("<II", 1, kind)
        + STORE
        + struct.pack("<Q", 4096)
        + NONCE
        + SAVE.encode().ljust(40, b"\0")
        + bytes(32)
    )


def footer_by_hand(offset: int, length: int, ident: bytes) -> bytes:
    body = struct.pack("<QQ", offset, length) + ident
    return body + hash_in("castore 1 footer", body)[:8] + b"castore\x93"


def numbers(*values: int) -> bytes:
    return b"".join(struct.pack("<Q", v) for v in values)


def test_pack_header_by_hand() -> None:
    stored = golden("packs")
    assert stored["header-data"] == header_by_hand(0)
    assert stored["header-meta"] == header_by_hand(1)
    assert len(stored["header-data"]) == 128
    assert PackHeader.parse(stored["header-meta"]).meta


def test_pack_footer_by_hand() -> None:
    assert golden("packs")["footer"] == footer_by_hand(4224, 300, digest(5))
    assert len(golden("packs")["footer"]) == 64


def test_table_by_hand() -> None:
    columns = [
        digest(1) + digest(2) + digest(3) + digest(4),
        bytes([0, 1, 0, 5]),
        numbers(128, 4224, 5000, 5000 + (1 << 33)),
        numbers(4096, 100, 1 << 33, 0),
        numbers(4096, 300, 1 << 34, 0),
        bytes([0, 1, 3, 0]),
        [[1, digest(9), []], [2, digest(10), [digest(11), digest(12)]]],
    ]
    data = golden("packs")["table"]
    assert data == mp(columns)
    table = Table.parse(data)
    assert table.render() == data
    assert [r.offset for r in table] == [128, 4224, 5000, 5000 + (1 << 33)]
    assert table[2].bases == (digest(11), digest(12))


def data_pack_by_hand() -> tuple[bytes, bytes, bytes]:
    """Header, table and the whole file."""
    header = header_by_hand(0)
    # 128 is aligned to 64 already; the tensor's second chunk follows its first without a gap.
    offsets = [128, 128 + 4096, 128 + 4096 + 700 + 4]
    table = mp(
        [
            b"".join(hash_in(None, chunk) for chunk in CHUNKS),
            bytes(3),
            numbers(*offsets),
            numbers(4096, 700, 390),
            numbers(4096, 700, 390),
            bytes(3),
            [],
        ]
    )
    assert offsets[2] % 64 == 0
    body = header + CHUNKS[0] + CHUNKS[1] + bytes(4) + CHUNKS[2]
    ident = hash_in("castore 1 pack", header + table)
    footer = footer_by_hand(len(body), len(table), ident)
    padding = -(len(body) + len(table) + 64) % 4096
    return header, table, body + table + bytes(padding) + footer


def test_a_whole_data_pack_by_hand() -> None:
    header, table, file = data_pack_by_hand()
    assert golden("packs")["pack-data"] == file
    assert len(file) == 8192
    finished, _ = cases.data_pack()
    assert finished.info.path == f"{SAVE}/r00000-007.data.pack"
    assert (finished.info.id, finished.info.size) == (
        hash_in("castore 1 pack", header + table),
        8192,
    )


def test_table_copy_by_hand() -> None:
    header, table, _ = data_pack_by_hand()
    assert golden("packs")["table-copy"] == mp(["r00000-007.data.pack", header, table])


def test_a_whole_meta_pack_by_hand() -> None:
    header = header_by_hand(1)
    name = object_digest("tree", META_OBJECT)
    n = len(META_OBJECT)
    table = mp([name, b"\x01", numbers(128), numbers(n), numbers(n), b"\0", []])
    body = header + META_OBJECT
    footer = footer_by_hand(len(body), len(table), hash_in("castore 1 pack", header + table))
    file = (body + table).ljust(4096 - 64, b"\0") + footer
    # Twins differ by their nonces, which are the same here.
    assert golden("packs")["pack-meta"] == golden("packs")["pack-meta2"] == file


def test_footer_finds_the_table() -> None:
    file = golden("packs")["pack-data"]
    offset, length, ident = parse_footer(file[-64:], len(file))
    assert [r.digest for r in Table.parse(file[offset : offset + length])] == [
        hash_in(None, chunk) for chunk in CHUNKS
    ]
    assert ident == hash_in("castore 1 pack", file[:128] + file[offset : offset + length])


def test_a_stored_zstd_frame_stays_readable() -> None:
    # Made by zstd 1.5.7 at level 3; the encoder may change, what it wrote is read for ever.
    frame = bytes.fromhex("28b52ffd6000005d000020636173740100f9294704")
    assert decode_codec(Codec.ZSTD, frame, 256) == b"cast" * 64
    assert (Codec.RAW, Codec.ZSTD, Codec.PLANE, Codec.DELTA, Codec.CAST) == (0, 1, 2, 3, 4)


# -- the log, by hand ----------------------------------------------------------------------------


def packed(pack: Any) -> list[Any]:
    return [pack.path.partition("/")[2], bytes(pack.id), pack.size]


ADD_BY_HAND = [
    "add", "main", digest(20), digest(1), digest(3), digest(2), 1000, TIME, SAVE, 6, 148, 1 << 40,
    4096, 16384, None,
    [[OTHER_SAVE, [packed(FOREIGN)]], [SAVE, [packed(OWN), packed(META), packed(META2)]]],
]  # fmt: skip

CHANGES_BY_HAND: dict[str, list[Any]] = {
    "add": ADD_BY_HAND,
    "branch": ["branch", "retry/one", digest(20)],
    "branch-removed": ["branch", "retry/one", None],
    "tag": ["tag", "release", digest(20)],
    "features": ["features", ["deltas"], ["hints", "more"]],
    "condemn": ["condemn", [OWN.path, META.path]],
    "pin": ["pin", "reader-1", digest(20), ["host", "boot", "pid:[4026531836]", 4711, 98765]],
    "unpin": ["unpin", "reader-1"],
    "unlist": ["unlist", "main", [digest(20), digest(21)]],
    "letgo": ["letgo", [digest(20), digest(21)]],
    "quarantine": ["quarantine", [OWN.path]],
    "replace": [
        "replace",
        [OWN.path, META.path],
        [[OTHER_SAVE, [packed(FOREIGN)]], [SAVE, [packed(META2)]]],
    ],
    "verify": ["verify", [OWN.path, META.path, META2.path]],
    "damage": ["damage", OWN.path, [digest(30)], [digest(20), digest(21)]],
    "heal": ["heal", [digest(30)], [[OTHER_SAVE, [packed(FOREIGN)]]]],
    "lean": ["lean", OWN.path, [FOREIGN.path]],
    "window": ["window", "main", [["keep_last", 3], ["keep_every", 1000]]],
    "window-off": ["window", "main", None],
    "lost": ["lost", 5, digest(50), [["tag", "release", digest(20)]]],
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_by_hand(name: str) -> None:
    plain = CHANGES_BY_HAND[name]
    data = golden("log")[f"change-{name}"]
    assert data == mp(plain)
    assert parse_change(decode(data)) == CHANGES[name]


def test_every_kind_of_change_is_golden() -> None:
    assert {plain[0] for plain in CHANGES_BY_HAND.values()} == {
        "add", "branch", "tag", "features", "condemn", "pin", "unpin", "unlist", "letgo",
        "quarantine", "replace", "verify", "damage", "heal", "lean", "window", "lost",
    }  # fmt: skip


def record_by_hand(*changes: list[Any]) -> bytes:
    return mp(
        {
            "act": ACT,
            "changes": list(changes),
            "prev": digest(60),
            "seq": 7,
            "store": STORE,
            "time": TIME,
            "why": "save main",
            "writer": "pid 4711 on host",
        }
    )


def test_entry_record_by_hand() -> None:
    assert golden("log")["entry-record"] == record_by_hand(*CHANGES_BY_HAND.values())


def test_entry_file_by_hand() -> None:
    record = record_by_hand(["tag", "release", digest(20)])
    head = b"castlog\x01" + struct.pack("<Q", len(record))
    copy = (head + hash_in("castore 1 log entry", record) + record).ljust(4096, b"\0")
    file = golden("log")["entry-file"]
    assert file == copy + copy
    entry, problems = parse_file(file, 7, STORE)
    assert problems == []
    assert entry.digest() == hash_in("castore 1 log entry", record)


def test_intent_by_hand() -> None:
    assert golden("log")["intent"] == mp(ADD_BY_HAND)
    assert isinstance(parse_change(decode(golden("log")["intent"])), Add)


# -- castore.json and the grid -------------------------------------------------------------------


def test_config_by_hand() -> None:
    lines = [
        "{",
        ' "format": "castore",',
        ' "version": 1,',
        ' "store_id": "000102030405060708090a0b0c0d0e0f",',
        ' "chunk_size": 4194304',
        "}",
    ]
    check = hash_in("castore 1 config", "\n".join(lines).encode()).hex()
    lines[4] += ","
    lines.insert(5, f' "digest": "{check}"')
    data = golden("config")["castore.json"]
    assert data.decode() == "\n".join(lines) + "\n"
    assert StoreConfig.parse(data, "store") == StoreConfig(STORE, 4 << 20)


@pytest.mark.parametrize(
    ("shape", "itemsize", "first_row", "cuts"),
    [
        ((), 8, 0, [0, 8]),
        ((0, 5), 4, 0, [0]),
        ((5, 0), 4, 0, [0]),
        ((3,), 4, 0, [0, 12]),
        ((1024,), 4, 0, [0, 4096]),
        ((1025,), 4, 0, [0, 4096, 4100]),
        ((2100,), 4, 0, [0, 4096, 8192, 8400]),
        ((5, 300), 4, 0, [0, 3600, 6000]),  # three whole rows of 1200 bytes fit
        ((2, 1500), 4, 0, [0, 4096, 6000, 10096, 12000]),  # a row is cut by itself
        ((2, 1024), 4, 0, [0, 4096, 8192]),
        ((5, 300), 4, 1, [0, 2400, 6000]),  # a shard: rows 1..5, cut before global row 3
        ((5, 300), 4, 3, [0, 3600, 6000]),
        ((1, 300), 4, 4, [0, 1200]),
        ((2, 1500), 4, 7, [0, 4096, 6000, 10096, 12000]),
    ],
)
def test_grid_cuts(shape: tuple[int, ...], itemsize: int, first_row: int, cuts: list[int]) -> None:
    assert list(Grid.of(shape, itemsize, 4096, first_row).cuts()) == cuts
