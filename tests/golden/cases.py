"""What castore writes for fixed inputs, one byte string a case.

    python -m tests.golden.cases --write

stores them anew.  That is a change of the format: its version changes with it (docs/format.md,
``castore.model.config.FORMAT_VERSION`` and the ``castore 1 ...`` contexts).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from castore.log.entry import (
    Add,
    Change,
    Condemned,
    Damaged,
    Entry,
    Features,
    Healed,
    Leans,
    LetGo,
    Lost,
    Pin,
    Quarantined,
    Replaced,
    SetBranch,
    SetTag,
    Unlisted,
    Unpin,
    Verified,
    Window,
)
from castore.model.config import StoreConfig
from castore.model.digest import Digest, Kind, chunk_digest, kind_digest
from castore.model.encoding import encode
from castore.model.grid import Grid
from castore.model.objects import (
    CheckpointObject,
    DataValue,
    Node,
    data_leaf,
    encode_content,
    encode_tree,
)
from castore.model.packinfo import PackInfo
from castore.packs.format import PackHeader, Record, Table, render_footer
from castore.packs.writer import DataPacks, FinishedPack, PackPlace, TwinWriter, table_object
from tests.golden.spec import digest
from tests.storage.memory import MemoryStorage

FOLDER = Path(__file__).parent
STORE = bytes(range(16))
SAVE = "20261201T152408123-9f3ac01b22de4455"
OTHER_SAVE = "20261130T000000000-0123456789abcdef"
NONCE = bytes(range(100, 116))
TIME = 1_796_138_648_123_456_789
ACT = bytes(range(200, 216))
CHUNK_SIZE = 4096
CHUNKS = (bytes(range(256)) * 16, b"castore" * 100, b"second tensor" * 30)


def d(seed: int) -> Digest:
    return Digest(digest(seed))


def pack(save: str, name: str, seed: int, size: int) -> PackInfo:
    return PackInfo(f"{save}/{name}", d(seed), size)


OWN = pack(SAVE, "r00000-000.data.pack", 40, 8192)
META = pack(SAVE, "r00000-000.meta.pack", 41, 4096)
META2 = pack(SAVE, "r00000-000.meta2.pack", 42, 4096)
FOREIGN = pack(OTHER_SAVE, "r00003-012.data.pack", 43, 1 << 33)

# -- objects -------------------------------------------------------------------------------------


def tree(node: Node) -> list[bytes]:
    """Every object that a tree becomes, in the order in which they were given; the root is last."""
    given: list[bytes] = []

    def sink(kind: Kind, _digest: Digest, data: bytes) -> None:
        assert kind is Kind.TREE
        given.append(data)

    root = encode_tree(node, sink)
    assert kind_digest(Kind.TREE, given[-1]) == root
    return given


def node(container: str, values: list, keys: list | None = None, extra: object = None) -> Node:
    """A node of plain values; values that are leaves or nodes already stay as they are."""
    return Node(
        container,
        extra if isinstance(extra, (bytes, DataValue, Node)) else encode(extra),
        None if keys is None else [encode(k) for k in keys],
        [v if isinstance(v, (bytes, DataValue, Node)) else encode(v) for v in values],
    )


def no_sink(_kind: Kind, _digest: Digest, _data: bytes) -> None:
    raise AssertionError("nothing is spilled here")


class NoSource:
    """Contents are given to the cases as digests or inline."""

    nbytes = 0

    def view(self) -> memoryview | None:
        return None

    def fill(self, out: memoryview, start: int) -> None:
        raise AssertionError


def tensor(shape: list[int], tie: int | None, flags: int = 0) -> DataValue:
    grid = Grid.of(shape, 4, CHUNK_SIZE)
    return data_leaf(["tensor", flags, "float32", 4, shape], grid, NoSource(), [tie])


def inline_tensor() -> DataValue:
    value = tensor([2, 2], None)
    value.inline = bytes(range(16))
    return value


def chunked_tensor(n: int) -> DataValue:
    value = tensor([n * 1024], 7, flags=3)
    value.digests = [d(i) for i in range(n)]
    return value


TUPLE_KEY = ["node", ["tuple", 0, None, [1, "a", True]]]


def tree_dict() -> bytes:
    keys = ["weight", "big", 5, TUPLE_KEY, "", "nested"]
    nested = node("dict", [1], ["x"])
    values = [inline_tensor(), chunked_tensor(2), None, -1.5, encode(b"\0\xff"), nested]
    return tree(node("dict", values, keys))[-1]


def tree_with_child() -> list[bytes]:
    """A list too long to lie inside its parent's entry, and the parent."""
    return tree(node("dict", [node("list", [1000] * 200)], ["long"]))


SPLIT = 256 * 256 + 2


def tree_split(index: int) -> bytes:
    """A list that is split twice: leaves, the two nodes over them, the top."""
    return tree(node("list", [i % 100 for i in range(SPLIT)]))[index]


def content_spilled() -> list[bytes]:
    """The objects of a content of 4097 chunks: two of level 0, one of level 1, and the content."""
    given: list[bytes] = []
    last = encode_content(
        None, [d(i % 256) for i in range(4097)], lambda kind, dg, data: given.append(data)
    )
    return [*given, last]


def checkpoint() -> bytes:
    return CheckpointObject(
        root=d(1),
        step=1000,
        parent=d(2),
        time=TIME,
        meta={"loss": 2.31, "a": [1, None], "deep": {"b": True}},
        message="before the warm-up ends",
        audit=None,
        ranks=None,
        tensors=148,
        logical_bytes=1 << 40,
        chunk_size=4 << 20,
        contents=d(3),
    ).encoded()


# -- packs ---------------------------------------------------------------------------------------


def header(meta: bool = False) -> bytes:
    return PackHeader(STORE, CHUNK_SIZE, NONCE, meta, SAVE).render()


def table() -> bytes:
    return Table.of(
        [
            Record(d(1), Kind.CHUNK, 128, 4096, 4096, 0),
            Record(d(2), Kind.TREE, 4224, 100, 300, 1, d(9)),
            Record(d(3), Kind.CHUNK, 5000, 1 << 33, 1 << 34, 3, d(10), (d(11), d(12))),
            Record(d(4), Kind.INTENT, 5000 + (1 << 33), 0, 0, 0),
        ]
    ).render()


def data_pack() -> tuple[FinishedPack, bytes]:
    """A whole pack: two chunks of one tensor back to back, and one of another."""
    storage = MemoryStorage()
    with patch("castore.packs.writer.random_bytes", return_value=NONCE):
        packs = DataPacks(storage, PackPlace(STORE, CHUNK_SIZE, SAVE), lambda: 7)
        for data, begins in zip(CHUNKS, (True, False, True), strict=True):
            packs.add(chunk_digest(data), data, begins=begins)
        [finished] = packs.finish()
    return finished, bytes(storage.files[finished.info.file])


#: Too varied for zstd to make it shorter: its bytes would be zstd's and not castore's.
META_OBJECT = tree(node("list", list(range(40))))[-1]


def meta_pack(kind: str) -> bytes:
    storage = MemoryStorage()
    with patch("castore.packs.writer.random_bytes", return_value=NONCE):
        metas = TwinWriter(storage, PackPlace(STORE, CHUNK_SIZE, SAVE, rank=3), lambda: 0)
        metas.add(Kind.TREE, kind_digest(Kind.TREE, META_OBJECT), META_OBJECT)
        metas.finish()
    return bytes(storage.files[f"packs/{SAVE}/r00003-000.{kind}.pack"])


# -- the log -------------------------------------------------------------------------------------

ADD = Add(
    branch="main",
    checkpoint=d(20),
    root=d(1),
    contents=d(3),
    parent=d(2),
    step=1000,
    time=TIME,
    save=SAVE,
    s0=6,
    tensors=148,
    logical_bytes=1 << 40,
    new_bytes=4096,
    stored_bytes=16384,
    message=None,
    packs=(FOREIGN, OWN, META, META2),
)

CHANGES: dict[str, Change] = {
    "add": ADD,
    "branch": SetBranch("retry/one", d(20)),
    "branch-removed": SetBranch("retry/one", None),
    "tag": SetTag("release", d(20)),
    "features": Features(("deltas",), ("hints", "more")),
    "condemn": Condemned((OWN.path, META.path)),
    "pin": Pin("reader-1", d(20), ("host", "boot", "pid:[4026531836]", 4711, 98765)),
    "unpin": Unpin("reader-1"),
    "unlist": Unlisted("main", (d(20), d(21))),
    "letgo": LetGo((d(20), d(21))),
    "quarantine": Quarantined((OWN.path,)),
    "replace": Replaced((OWN.path, META.path), (FOREIGN, META2)),
    "verify": Verified((OWN.path, META.path, META2.path)),
    "damage": Damaged(OWN.path, (d(30),), (d(20), d(21))),
    "heal": Healed((d(30),), FOREIGN),
    "lean": Leans(OWN.path, (FOREIGN.path,)),
    "window": Window("main", (("keep_last", 3), ("keep_every", 1000))),
    "window-off": Window("main", None),
    "lost": Lost(5, d(50), (tuple(SetTag("release", d(20)).plain()),)),
}


def entry(*changes: Change) -> Entry:
    return Entry(7, d(60), ACT, TIME, "pid 4711 on host", "save main", STORE, changes)


#: File -> case -> its bytes.
CASES: dict[str, dict[str, Callable[[], bytes]]] = {
    "objects": {
        "tree-dict": tree_dict,
        "tree-list": lambda: tree(node("list", [1, "two", 3.0, None]))[-1],
        "tree-tuple": lambda: tree(node("tuple", []))[-1],
        "tree-set": lambda: tree(node("set", ["b", 300, "a", 2, -1]))[-1],
        "tree-frozenset": lambda: tree(node("frozenset", [True]))[-1],
        "tree-odict": lambda: tree(
            node("odict", [1, 2], ["b", "a"], node("dict", [1], ["version"]))
        )[-1],
        "tree-counter": lambda: tree(node("counter", [5], [10]))[-1],
        "tree-defaultdict": lambda: tree(node("defaultdict", [[]], ["k"], "list"))[-1],
        "tree-value": lambda: tree(node("value", [inline_tensor()]))[-1],
        "tree-parent": lambda: tree_with_child()[-1],
        "tree-split-last-leaf": lambda: tree_split(256),
        "tree-split-last-upper": lambda: tree_split(258),
        "tree-split-top": lambda: tree_split(259),
        "chunks-level-0": lambda: content_spilled()[1],
        "chunks-level-1": lambda: content_spilled()[2],
        "content-inline": lambda: encode_content(b"", None, no_sink),
        "content-listed": lambda: encode_content(None, [d(1), d(2)], no_sink),
        "content-spilled": lambda: content_spilled()[3],
        "checkpoint": checkpoint,
    },
    "packs": {
        "header-data": header,
        "header-meta": lambda: header(meta=True),
        "table": table,
        "table-copy": lambda: table_object(data_pack()[0]),
        "footer": lambda: render_footer(4224, 300, d(5)),
        "pack-data": lambda: data_pack()[1],
        "pack-meta": lambda: meta_pack("meta"),
        "pack-meta2": lambda: meta_pack("meta2"),
    },
    "log": {
        **{f"change-{name}": lambda c=c: encode(c.plain()) for name, c in CHANGES.items()},
        "intent": lambda: encode(ADD.plain()),
        "entry-record": lambda: entry(*CHANGES.values()).record(),
        "entry-file": lambda: entry(SetTag("release", d(20))).render(),
    },
    "config": {"castore.json": lambda: StoreConfig(STORE, 4 << 20).render()},
}


def to_hex(data: bytes) -> list[str]:
    """64 bytes a line; a run of whole lines of zeros is one line that says how many."""
    lines: list[str] = []
    for i in range(0, len(data), 64):
        part = data[i : i + 64]
        if part == bytes(64):
            run = int(lines.pop().split()[1]) if lines and lines[-1].startswith("zeros ") else 0
            lines.append(f"zeros {run + 64}")
        else:
            lines.append(part.hex())
    return lines


def from_hex(lines: list[str]) -> bytes:
    """The reverse of :func:`to_hex`."""
    return b"".join(
        bytes(int(line.split()[1])) if line.startswith("zeros ") else bytes.fromhex(line)
        for line in lines
    )


def golden(file: str) -> dict[str, bytes]:
    """The stored bytes of a file's cases."""
    cases: dict[str, list[str]] = {}
    for line in (FOLDER / f"{file}.hex").read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            lines = cases[line.strip("[]")] = []
        elif line:
            lines.append(line)
    return {name: from_hex(lines) for name, lines in cases.items()}


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for file, cases in CASES.items():
        text = "\n".join("\n".join([f"[{n}]", *to_hex(make()), ""]) for n, make in cases.items())
        (FOLDER / f"{file}.hex").write_text(text, encoding="ascii")
