"""Trees that no castore wrote: an error with a key path, before memory is taken; never a crash."""

from __future__ import annotations

import contextlib
import copy
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import UnsupportedFeature
from castore.model.digest import Digest, Kind, kind_digest
from castore.model.encoding import EncodingError, decode, encode
from castore.model.objects import NIL, Node, TreeNode, encode_tree, read_tree
from castore.state import plan_state
from tests.state.harness import Memory

KIB4 = 4096
D = bytes(32)
CHUNKS_3 = [1, D * 3]


class Missing(Exception):
    """There is no such object."""


def nothing(kind: Kind, digest: Digest) -> bytes:
    raise Missing


def load(value: Any, **options: Any) -> Any:
    """Plan, fill with zeros, finish."""
    plan = plan_state(value, nothing, KIB4, **options)
    for read in plan.reads:
        out = read.out
        if out is None:
            read.data = bytes(300)
        else:
            out[:] = bytes(len(out))
    return plan.finish()


def tensor(**changes: Any) -> list[Any]:
    """A sound tensor of three chunks, but for what is changed."""
    fields = {"flags": 0, "dtype": "float32", "itemsize": 4, "shape": [3, 1024]}
    fields |= {"content": CHUNKS_3, "tie": None}
    return ["tensor", *(fields | changes).values()]


def array(**changes: Any) -> list[Any]:
    fields = {"dtype": "<f4", "itemsize": 4, "shape": [3, 1024], "content": CHUNKS_3, "tie": None}
    return ["ndarray", *(fields | changes).values()]


def test_the_sound_ones_are_sound() -> None:
    assert load(tensor()).shape == (3, 1024)
    assert load(array()).shape == (3, 1024)


HOSTILE: dict[str, Any] = {
    "no tag": [],
    "tag of another type": [3],
    "map": {"a": 1},
    "nested map": ["node", ["list", 0, None, [{"a": 1}]]],
    "long text": "x" * 300,
    "long bytes": b"x" * 300,
    "short text": ["str", [0, b"abc"]],
    "text that is not UTF-8": ["str", [0, b"\xff" * 300]],
    "long inline": ["bytes", [0, b"x" * 300]],
    "no chunks": ["bytes", [1, b""]],
    "small int": ["int", [0, b"\x05"]],
    "int with a tail": ["int", [0, bytes(20) + b"\x01\x00\x00"]],
    "arity": ["tensor", 0, "float32"],
    "flags": tensor(flags=4),
    "flags bool": tensor(flags=True),
    "flags text": tensor(flags="x"),
    "dtype number": tensor(dtype=3),
    "itemsize": tensor(itemsize=8),
    "itemsize float": tensor(itemsize=4.0),
    "shape text": tensor(shape="x"),
    "negative": tensor(shape=[-3, 1024]),
    "two negatives": tensor(shape=[-3, -1024]),
    "bool": tensor(shape=[True, 3 * 1024]),
    "float": tensor(shape=[3.0, 1024]),
    "huge": tensor(shape=[1 << 61, 1 << 61]),
    "huge and zero": tensor(shape=[1 << 40, 0, 1 << 40], content=[0, b""]),
    "huge without chunks": tensor(shape=[1 << 40]),
    "dimensions": tensor(shape=[1] * 2000),
    "too few chunks": tensor(content=[1, D * 2]),
    "too many chunks": tensor(content=[1, D * 4]),
    "inline for long": tensor(content=[0, bytes(3 * KIB4)]),
    "chunks for short": tensor(shape=[3], content=[1, D]),
    "inline of another length": tensor(shape=[3], content=[0, bytes(11)]),
    "content form": tensor(content=[3, b""]),
    "content type": tensor(content=7),
    "torn digest": tensor(content=[1, D + b"x"]),
    "gradient of ints": tensor(flags=2, dtype="int32"),
    "tie text": tensor(tie="x"),
    "tie negative": tensor(tie=-1),
    "tie bool": tensor(tie=True),
    "tie of nothing": tensor(shape=[0], content=[0, b""], tie=0),
    "tie of others": ["node", ["list", 0, None, [tensor(tie=0), tensor(tie=0, shape=[1024, 3])]]],
    "tie of dtypes": ["node", ["list", 0, None, [tensor(tie=0), tensor(tie=0, dtype="int32")]]],
    "tie of contents": [
        "node", ["list", 0, None, [tensor(tie=0), tensor(tie=0, content=[1, b"x" * 96])]]
    ],
    "array dtype": array(dtype="|O"),
    "array dtype list": array(dtype="<f4,<f4"),
    "array dtype odd": array(dtype="float32"),
    "array dtype long": array(dtype="<U999999999", itemsize=3999999996),
    "array dtype huge": array(dtype="|S999999999", itemsize=999999999, shape=[1]),
    "array longdouble": array(dtype="<f16", itemsize=16),
    "array struct": array(dtype=["struct", 4, False, [["a", "<f4", 2]]]),
    "array overlap": array(dtype=["struct", 4, False, [["a", "<f4", 0], ["b", "<i2", 0]]]),
    "array struct names": array(dtype=["struct", 8, False, [["a", "<f4", 0], ["a", "<f4", 4]]]),
    "array struct odd": array(dtype=["struct", 4, 0, [["a", "<f4", 0]]]),
    "array sub": array(dtype=["sub", "<f4", []]),
    "array sub top": array(dtype=["sub", "<f4", [2]]),
    "array dimensions": array(shape=[1] * 65),
    "scalar": ["npscalar", "<f4", b"abc"],
    "scalar big-endian": ["npscalar", ">f4", b"abcd"],
    "scalar UTF-32": ["npscalar", "<U1", b"\xff" * 4],
    "complex": ["complex", b"x"],
    "path": ["path", "PosixPath", b"a//b"],
    "path text": ["path", "PosixPath", "a"],
    "path NUL": ["path", 3, b"a"],
    "date": ["date", "20260101"],
    "datetime": ["datetime", "2026-01-01 00:00:00", 0, None],
    "datetime zone": ["datetime", "2026-01-01T00:00:00+01:00", 0, None],
    "datetime fold": ["datetime", "2026-01-01T00:00:00", 2, None],
    "datetime offset": ["datetime", "2026-01-01T00:00:00", 0, ["offset", 10**15, None]],
    "zone": ["time", "00:00:00", 0, ["zone", "../../etc/passwd"]],
    "zone long": ["time", "00:00:00", 0, ["zone", "a" * 5000]],
    "timedelta": ["timedelta", 0, 86400, 0],
    "timedelta float": ["timedelta", 1.0, 0, 0],
    "timedelta huge": ["timedelta", 1 << 62, 0, 0],
    "size": ["torch.Size", [1 << 63]],
    "size of text": ["torch.Size", ["x"]],
    "generator": ["torch.Generator", "cpu", [0, b"x"]],
    "generator state": ["torch.Generator", "cpu", CHUNKS_3],
    "generator empty": ["torch.Generator", "cpu", [0, b""]],
    "container": ["node", ["deque", 0, None, []]],
    "container of a type": ["node", [["list"], 0, None, []]],
    "inline level": ["node", ["list", 1, None, []]],
    "value within": ["node", ["list", 0, None, [["node", ["value", 0, None, [1]]]]]],
    "value of many": ["node", ["value", 0, None, [1, 2]]],
    "value of none": ["node", ["value", 0, None, []]],
    "value of a container": ["node", ["value", 0, None, [["node", ["list", 0, None, []]]]]],
    "extra": ["node", ["list", 0, 3, []]],
    "factory": ["node", ["defaultdict", 0, "eval", []]],
    "factory type": ["node", ["defaultdict", 0, ["list"], []]],
    "metadata": ["node", ["odict", 0, ["nothing known", 1], []]],
    "pairs": ["node", ["dict", 0, None, [[1]]]],
    "same key": ["node", ["dict", 0, None, [[1, 1], [True, 2]]]],
    "same key twice": ["node", ["dict", 0, None, [["a", 1], ["a", 2]]]],
    "list as key": ["node", ["dict", 0, None, [[["node", ["list", 0, None, []]], 1]]]],
    "tensor as key": ["node", ["dict", 0, None, [[tensor(), 1]]]],
    "void as key": ["node", ["dict", 0, None, [[["npscalar", "|V2", b"ab"], 1]]]],
    "short text as key": ["node", ["dict", 0, None, [[["str", [0, b"a"]], 1]]]],
    "chunked key": ["node", ["dict", 0, None, [[["str", [1, D]], 1]]]],
    "empty key": ["node", ["dict", 0, None, [[[], 1]]]],
    "set twice": ["node", ["set", 0, None, [1, True]]],
    "set of lists": ["node", ["set", 0, None, [["node", ["list", 0, None, []]]]]],
    "half a node": ["node"],
    "half a tree": ["tree", D],
    "torn tree": ["tree", b"x", 1],
}  # fmt: skip

UNSUPPORTED: dict[str, Any] = {
    "tag": ["hologram", 1],
    "torch tag": ["torch.hologram", 1],
    "key tag": ["node", ["dict", 0, None, [[["hologram"], 1]]]],
    "dtype": tensor(dtype="float2"),
    "quantized": tensor(dtype="qint8", itemsize=1),
    "dtype value": ["torch.dtype", "float2"],
    "layout": ["torch.layout", "origami"],
    "device": ["torch.device", "abacus"],
    "zone": ["datetime", "2026-01-01T00:00:00", 0, ["zone", "Atlantis/Capital"]],
    "path class": ["path", "WindowsPath", b"a"],
    "generator device": ["torch.Generator", "cuda", [0, b"x"]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_are_refused_by_path(name: str) -> None:
    state = TreeNode("dict", 0, None, [["fine", 1], ["bad", HOSTILE[name]]])
    # Only the metadata of an OrderedDict may be any value, one with a tag of the future too.
    error = UnsupportedFeature if name == "metadata" else EncodingError
    with pytest.raises(error, match=r"^bad"):
        load(state)
    with pytest.raises(error, match=r"^up/there"):
        load(HOSTILE[name], path="up/there")


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_known_is_unsupported_and_not_damage(name: str) -> None:
    state = TreeNode("list", 0, None, [1, UNSUPPORTED[name]])
    with pytest.raises(UnsupportedFeature, match=r"^1: "):
        load(state)


def test_nothing_is_allocated_for_a_tree_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "empty_strided", never)
    monkeypatch.setattr(np, "ndarray", never)
    state = TreeNode("list", 0, None, [tensor(), tensor(), ["hologram"]])
    with pytest.raises(UnsupportedFeature):
        load(state)
    with pytest.raises(EncodingError, match=r"^1: more than 20000 bytes"):
        load(TreeNode("list", 0, None, [tensor(), tensor()]), max_bytes=20_000)


def test_sizes_are_bounded_by_the_chunks_that_are_named() -> None:
    # A few objects that share parts name 2**36 chunks; the shape needs three.
    objects: dict[tuple[Kind, Digest], bytes] = {}
    digest = D
    for level in range(4):
        data = encode([level, digest * 512])
        digest = kind_digest(Kind.CHUNKS, data)
        objects[Kind.CHUNKS, Digest(digest)] = data
    bomb = tensor(content=[2, digest])
    with pytest.raises(EncodingError, match="more than 3 chunks"):
        plan_state(bomb, lambda kind, d: objects[kind, d], KIB4)
    text = ["str", [2, digest]]
    with pytest.raises(EncodingError, match="more than 2 chunks"):
        plan_state(text, lambda kind, d: objects[kind, d], KIB4, max_bytes=5000)


def test_no_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] can't allocate memory")

    monkeypatch.setattr(torch, "empty_strided", full)
    with pytest.raises(MemoryError, match=r"no memory for 24576 more bytes of the state"):
        load(TreeNode("list", 0, None, [tensor(), tensor()]))


def test_a_tree_of_shared_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    objects: dict[tuple[Kind, Digest], bytes] = {}

    def tree(node: list[Any]) -> Digest:
        data = encode(node)
        digest = kind_digest(Kind.TREE, data)
        objects[Kind.TREE, digest] = data
        return digest

    digest, count = tree(["list", 0, None, [0] * 256]), 256
    for level in range(1, 5):
        digest = tree(["list", level, None, [[count, digest]] * 256])
        count *= 256
    with pytest.raises(EncodingError, match="more than"):
        plan_state(digest, lambda kind, d: objects[kind, d], KIB4)
    # The same by containers within containers (with a bound that is sooner reached).
    monkeypatch.setattr(sys.modules["castore.state.plan"], "MAX_VALUES", 10_000)
    value: Any = ["node", ["list", 0, None, []]]
    for _ in range(5):
        value = ["tree", tree(["list", 0, None, [value] * 256]), 256]
    with pytest.raises(EncodingError, match="more than"):
        plan_state(value, lambda kind, d: objects[kind, d], KIB4)


# -- fuzzing --------------------------------------------------------------------------------------


def rich_state() -> dict[Any, Any]:
    shared = torch.randn(2000)
    return {
        "a": shared, "b": shared, "s": torch.randn(3), 1: (2**99, "x" * 300, 1j), (1, "k"): {1, 2},
        "np": [np.arange(3), np.zeros(2, [("f", ">i2"), ("g", "<U2", (2,))]), np.float32(1)],
        "t": [torch.float32, torch.Size([1]), torch.device("cpu"), torch.Generator()],
        "py": [datetime(2026, 1, 1, tzinfo=timezone.utc), Path("a"), None, True, b"x"],  # noqa: UP017
    }  # fmt: skip


@pytest.fixture(scope="module")
def rich() -> tuple[Memory, list[Any]]:
    memory = Memory()
    root = memory.save(rich_state())
    node = read_tree(root, memory.fetch)
    return memory, [node.container, node.level, node.extra, node.items]


junk = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 70), st.integers(-(2**63), 2**64 - 1),
        st.floats(), st.text(max_size=3), st.binary(max_size=40), st.just(D),
        st.sampled_from(["tensor", "ndarray", "node", "tree", "list", "dict", "set", "str", "int"]),
        st.sampled_from(["float32", "<f4", "cpu", "torch.Size", "npscalar", "value", "odict"]),
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    found = [path]
    if isinstance(value, list):
        for i, item in enumerate(value):
            found += places(item, (*path, i))
    return found


@given(st.data())
def test_a_tree_with_anything_changed_is_loaded_or_refused(
    rich: tuple[Memory, list[Any]], data: st.DataObject
) -> None:
    memory, original = rich
    tree = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(tree)[1:]))
        at = tree
        for i in place[:-1]:
            at = at[i]
        at[place[-1]] = data.draw(junk)

    def fetch(kind: Kind, digest: Digest) -> bytes:
        if (kind, digest) not in memory.objects:
            raise Missing
        return memory.objects[kind, digest]

    try:
        plan = plan_state(["node", tree], fetch, memory.chunk_size, max_bytes=1 << 24)
        for read in plan.reads:
            out = read.out
            if out is None:
                read.data = bytes(300)
        plan.finish()
    except EncodingError as e:
        assert str(e)
    except (UnsupportedFeature, Missing):
        pass


@given(junk)
def test_any_junk_is_loaded_or_refused(value: Any) -> None:
    try:
        encoded = encode(value)
    except (ValueError, OverflowError):
        return
    with contextlib.suppress(EncodingError, UnsupportedFeature, Missing):
        load(decode(encoded), max_bytes=1 << 24)


def test_reads_of_the_wrong_length_cannot_happen_silently() -> None:
    plan = plan_state(tensor(), nothing, KIB4)
    [read] = plan.reads
    assert read.out is not None
    assert len(read.out) == 3 * KIB4
    with pytest.raises(ValueError, match="memoryview assignment"):
        read.out[0:KIB4] = bytes(KIB4 + 1)
    text = plan_state(["str", CHUNKS_3], nothing, KIB4)
    with pytest.raises(ValueError, match="not read"):
        text.finish()


def test_a_node_that_is_no_node() -> None:
    memory = Memory()
    root = encode_tree(
        Node("list", NIL, None, [encode(["tree", D, 3])]),
        lambda *record: memory.objects.update({record[:2]: record[2]}),
    )
    with pytest.raises(KeyError):
        memory.plan(root)
