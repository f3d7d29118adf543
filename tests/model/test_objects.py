"""Objects: states of every shape become trees and are walked back; hostile ones are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castore.model import keypath
from castore.model.digest import Digest, Kind, kind_digest
from castore.model.encoding import EncodingError, decode, encode
from castore.model.grid import Grid
from castore.model.objects import (
    FAN_OUT,
    INLINE_NODE,
    LIST_DIGESTS,
    MAPPINGS,
    SPILL_DIGESTS,
    CheckpointObject,
    DataValue,
    Leaf,
    Node,
    child_names,
    child_node,
    child_values,
    content_grid,
    data_leaf,
    encode_content,
    encode_tree,
    key_text,
    parse_node,
    read_content,
    read_tree,
    walk,
)
from tests.golden.cases import NoSource
from tests.golden.spec import digest, hash_in, mp


class Shelf:
    """Objects by digest, as packs keep them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, Digest], bytes] = {}
        self.fetched = 0

    def sink(self, kind: Kind, name: Digest, data: bytes) -> None:
        assert kind_digest(kind, data) == name
        self.objects[kind, name] = data

    def fetch(self, kind: Kind, name: Digest) -> bytes:
        self.fetched += 1
        return self.objects[kind, name]

    def put(self, value: Any, kind: Kind = Kind.TREE) -> Digest:
        data = encode(value)
        name = kind_digest(kind, data)
        self.objects[kind, name] = data
        return name


# -- random states -------------------------------------------------------------------------------

# A state here is a scalar, or (container, extra, [(key, state) or state, ...]).

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False),
    st.text(max_size=30), st.binary(max_size=60),
)  # fmt: skip
_keys = st.one_of(st.text(max_size=8), st.integers(-5, 500), st.booleans(), st.none())


def _mappings(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    extra = {"dict": st.none(), "counter": st.none(), "odict": st.one_of(st.none(), inner)}
    extra["defaultdict"] = st.sampled_from([None, "list", "int"])
    return st.sampled_from(sorted(extra)).flatmap(
        lambda container: st.tuples(
            st.just(container),
            extra[container],
            st.lists(st.tuples(_keys, inner), max_size=6, unique_by=lambda p: (type(p[0]), p[0])),
        )
    )


def _sequences(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(["list", "tuple"]), st.none(), st.lists(inner, max_size=6))


states = st.recursive(
    _scalars, lambda inner: st.one_of(_mappings(inner), _sequences(inner)), max_leaves=40
)


def to_node(state: Any) -> Leaf | Node:
    """The node of a state; without recursion, for the deep ones."""
    made: list[Leaf | Node] = []
    stack: list[tuple[Any, bool]] = [(state, False)]
    while stack:
        value, visited = stack.pop()
        if not isinstance(value, tuple):
            made.append(encode(value))
            continue
        container, extra, items = value
        children = [v for _, v in items] if container in MAPPINGS else list(items)
        if not visited:
            stack.append((value, True))
            stack.extend((child, False) for child in (*children, extra))
            continue
        # What was pushed last was made first.
        top = made[len(made) - len(children) - 1 :]
        del made[len(made) - len(children) - 1 :]
        keys = [encode(k) for k, _ in items] if container in MAPPINGS else None
        made.append(Node(container, top[0], keys, top[:0:-1]))
    [node] = made
    return node


def top_node(state: Any) -> Node:
    node = to_node(state)
    return node if isinstance(node, Node) else Node("value", encode(None), None, [node])


def expected_walk(state: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every scalar with its path: the tree's meaning, read off the state itself."""
    out: list[tuple[str, Any]] = []
    stack = [(path, state)]
    while stack:
        path, value = stack.pop()
        if not isinstance(value, tuple):
            out.append((path, value))
            continue
        container, extra, items = value
        prefix = path + "/" if path else ""
        if container in MAPPINGS:
            names = keypath.names([k for k, _ in items])
            children = [v for _, v in items]
        else:
            names, children = [str(i) for i in range(len(items))], list(items)
        if isinstance(extra, tuple):
            names, children = [*names, "~(_metadata)"], [*children, extra]
        pairs = [(prefix + n, c) for n, c in zip(names, children, strict=True)]
        stack.extend(reversed(pairs))
    return out


def rebuild(root: Digest, shelf: Shelf) -> Any:
    """The state again, by read_tree and child_node alone."""

    def build(node: Any) -> Any:
        values = [value(v) for v in child_values(node)]
        if node.container == "value":
            return values[0]
        if node.container in MAPPINGS:
            pairs = [(item[0], v) for item, v in zip(node.items, values, strict=True)]
            return (node.container, value(node.extra), pairs)
        return (node.container, node.extra, values)

    def value(v: Any) -> Any:
        node = child_node(v, shelf.fetch)
        return v if node is None else build(node)

    return build(read_tree(root, shelf.fetch))


@given(states)
def test_a_tree_is_walked_and_read_back(state: Any) -> None:
    shelf = Shelf()
    root = encode_tree(top_node(state), shelf.sink)
    assert list(walk(root, shelf.fetch)) == expected_walk(state)
    assert repr(rebuild(root, shelf)) == repr(state)  # True is not 1, and 0.0 is not -0.0
    assert all(len(node[3]) <= FAN_OUT for node in map(decode, shelf.objects.values()))


@given(states, states)
def test_equal_states_have_equal_roots_and_others_do_not(one: Any, other: Any) -> None:
    first = encode_tree(top_node(one), lambda *_: None)
    assert first == encode_tree(top_node(one), lambda *_: None)
    assert (first == encode_tree(top_node(other), lambda *_: None)) is (repr(one) == repr(other))


def test_the_order_of_a_mapping_is_part_of_it_and_that_of_a_set_is_not() -> None:
    def root(container: str, items: list[Any]) -> Digest:
        return encode_tree(top_node((container, None, items)), lambda *_: None)

    assert root("dict", [("a", 1), ("b", 2)]) != root("dict", [("b", 2), ("a", 1)])
    numbers = [("set", None, list(range(1000))), ("frozenset", None, ["x", b"y", 3, None])]
    for container, _, items in numbers:
        shuffled = random.Random(1).sample(items, len(items))
        assert root(container, items) == root(container, shuffled)
    assert root("list", [1, 2]) != root("list", [2, 1])
    assert root("list", [1, 2]) != root("tuple", [1, 2])


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 511, 512, 513, 65535, 65536, 65537])
@pytest.mark.parametrize("container", ["dict", "list"])
def test_wide_containers_are_split(container: str, n: int) -> None:
    items: list[Any] = [(i, i % 7) for i in range(n)] if container == "dict" else [5] * n
    shelf = Shelf()
    root = encode_tree(top_node((container, None, items)), shelf.sink)
    node = read_tree(root, shelf.fetch)
    assert (node.container, node.level, len(node.items)) == (container, 0, n)
    assert node.items == ([list(item) for item in items] if container == "dict" else items)
    assert max(len(data) for data in shelf.objects.values()) < FAN_OUT * 48
    # One level of parts up to 256 * 256 entries, two above.
    top = decode(shelf.objects[Kind.TREE, root])
    assert top[1] == (0 if n <= FAN_OUT else 1 if n <= FAN_OUT**2 else 2)
    assert read_tree(root, shelf.fetch, most=n).items == node.items
    if n:
        with pytest.raises(EncodingError):
            read_tree(root, shelf.fetch, most=n - 1)


def test_a_change_of_one_entry_rewrites_a_path() -> None:
    def objects(changed: int) -> set[Any]:
        shelf = Shelf()
        items = [(f"layer.{i}", -1 if i == changed else i) for i in range(100_000)]
        encode_tree(top_node(("dict", None, items)), shelf.sink)
        return set(shelf.objects)

    base = objects(-1)
    assert len(base) == 391 + 2 + 1
    assert len(objects(70_000) - base) == 3


def test_only_the_top_of_a_split_container_has_the_extra() -> None:
    items = [(i, None) for i in range(300)]
    shelf = Shelf()
    extra = ("dict", None, [("version", 1)])
    root = encode_tree(top_node(("odict", extra, items)), shelf.sink)
    extras = {name: decode(data)[2] for (_, name), data in shelf.objects.items()}
    assert extras.pop(root) == ["node", ["dict", 0, None, [["version", 1]]]]
    assert set(map(repr, extras.values())) == {"None"}
    assert list(walk(root, shelf.fetch))[-1] == ("~(_metadata)/version", 1)


@pytest.mark.parametrize("container", ["list", "dict", "odict"])
def test_states_may_be_ten_thousand_deep(container: str) -> None:
    state: Any = 42
    for _ in range(10_000):
        items = [("k", state)] if container != "list" else [state]
        state = (container, None, items)
    shelf = Shelf()
    root = encode_tree(top_node(state), shelf.sink)
    [(path, value)] = walk(root, shelf.fetch)
    assert value == 42
    assert path == "/".join(["0" if container == "list" else "k"] * 10_000)


def test_small_nodes_lie_in_their_parents_entry() -> None:
    shelf = Shelf()
    small = ("list", None, ["x" * 100] * 4)
    large = ("list", None, ["x" * 100] * 6)
    encode_tree(top_node(("list", None, [small, large])), shelf.sink)
    assert len(shelf.objects) == 2  # the large one, and the root
    encoded = {k: encode(["list", 0, None, v[2]]) for k, v in (("s", small), ("l", large))}
    assert len(encoded["s"]) <= INLINE_NODE < len(encoded["l"])


def test_the_limit_of_an_inline_node_is_exact() -> None:
    for length, objects in ((INLINE_NODE, 1), (INLINE_NODE + 1, 2)):
        shelf = Shelf()
        padding = length - len(encode(["list", 0, None, ["x" * 200, "y" * 200, ""]]))
        inner = ("list", None, ["x" * 200, "y" * 200, "z" * (padding - 1)])
        assert len(encode(["list", 0, None, list(inner[2])])) == length
        encode_tree(top_node(("tuple", None, [inner])), shelf.sink)
        assert len(shelf.objects) == objects


# -- contents ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n", [0, 1, 2, LIST_DIGESTS, LIST_DIGESTS + 1, SPILL_DIGESTS, SPILL_DIGESTS + 1, 10_000]
)
def test_contents_are_listed_or_spilled(n: int) -> None:
    names = [Digest(hash_in(None, i.to_bytes(4, "little"))) for i in range(n)]
    shelf = Shelf()
    value = decode(encode_content(None, names, shelf.sink))
    assert value[0] == (1 if n <= LIST_DIGESTS else 2)
    assert len(value[1]) <= 32 * LIST_DIGESTS
    assert all(len(decode(data)[1]) <= 32 * SPILL_DIGESTS for data in shelf.objects.values())
    assert read_content(value, shelf.fetch).digests == tuple(names)
    assert read_content(value, shelf.fetch, most=n).digests == tuple(names)
    if n > LIST_DIGESTS:
        with pytest.raises(EncodingError):
            read_content(value, shelf.fetch, most=n - 1)


def test_short_contents_lie_inside() -> None:
    content = read_content(decode(encode_content(b"abc", None, lambda *_: None)), Shelf().fetch)
    assert (content.inline, content.digests) == (b"abc", ())
    with pytest.raises(ValueError, match="before its chunks were hashed"):
        encode_content(None, None, lambda *_: None)


def test_a_tied_value_has_the_content_of_the_one_it_is_tied_to() -> None:
    def value(**kwargs: Any) -> DataValue:
        leaf = data_leaf(["tensor", 0, "u8", 1, [3]], Grid(3, 1, 4096), NoSource(), [5])
        for name, v in kwargs.items():
            setattr(leaf, name, v)
        return leaf

    first = value(inline=b"abc")
    second = value(same_as=first)
    shelf = Shelf()
    root = encode_tree(Node("list", encode(None), None, [first, second]), shelf.sink)
    one, two = read_tree(root, shelf.fetch).items
    assert one == two == ["tensor", 0, "u8", 1, [3], [0, b"abc"], 5]
    assert content_grid(one, 4096) == Grid(3, 1, 4096)
    assert content_grid(["str", [0, b""]], 4096) == Grid(0, 1, 4096)


def spill(shelf: Shelf, level: Any, names: list[bytes]) -> Digest:
    return shelf.put([level, b"".join(names)], Kind.CHUNKS)


def hostile_contents() -> list[tuple[str, Callable[[Shelf], Any]]]:
    leaf = [digest(1)]
    return [
        ("nil", lambda s: None),
        ("a number", lambda s: 5),
        ("no form", lambda s: []),
        ("an unknown form", lambda s: [3, b""]),
        ("text for bytes", lambda s: [0, "abc"]),
        ("half a digest", lambda s: [1, bytes(33)]),
        ("a short digest", lambda s: [2, bytes(31)]),
        ("too many elements", lambda s: [0, b"", b""]),
        ("an empty spilled list", lambda s: [2, spill(s, 0, [])]),
        ("a spilled list that is half a digest", lambda s: [2, spill(s, 0, [bytes(33)])]),
        ("a level that is no number", lambda s: [2, spill(s, "0", leaf)]),
        ("a level that is a bool", lambda s: [2, spill(s, True, leaf)]),
        ("a level below zero", lambda s: [2, spill(s, -1, leaf)]),
        ("a level beyond all bounds", lambda s: [2, spill(s, 10**9, [spill(s, 0, leaf)])]),
        ("a level skipped", lambda s: [2, spill(s, 2, [spill(s, 0, leaf)])]),
        ("a list of another kind", lambda s: [2, s.put({"level": 0}, Kind.CHUNKS)]),
        ("a list with a third element", lambda s: [2, s.put([0, digest(1), 0], Kind.CHUNKS)]),
    ]


@pytest.mark.parametrize(("what", "make"), hostile_contents(), ids=lambda p: str(p)[:40])
def test_hostile_contents_are_refused(what: str, make: Callable[[Shelf], Any]) -> None:
    shelf = Shelf()
    value = make(shelf)
    with pytest.raises(EncodingError):
        read_content(value, shelf.fetch)


def test_a_few_chunk_lists_that_stand_for_millions_are_cut_off() -> None:
    shelf = Shelf()
    name = spill(shelf, 0, [digest(1)] * 4096)
    for level in range(1, 8):
        name = spill(shelf, level, [name] * 4096)
    with pytest.raises(EncodingError):
        read_content([2, name], shelf.fetch, most=10_000)
    assert shelf.fetched < 20


# -- hostile trees -------------------------------------------------------------------------------

LEAF = ["list", 0, None, [1, 2]]


def hostile_nodes() -> list[tuple[str, Callable[[Shelf], Any]]]:
    def upper(count: Any, container: str = "list", level: Any = 1) -> Callable[[Shelf], Any]:
        return lambda s: [container, level, None, [[count, s.put(LEAF)]]]

    return [
        ("nil", lambda s: None),
        ("too short", lambda s: ["list", 0, None]),
        ("too long", lambda s: ["list", 0, None, [], 0]),
        ("an unknown container", lambda s: ["deque", 0, None, []]),
        ("a container that is no text", lambda s: [["list"], 0, None, []]),
        ("a container that is a map", lambda s: [{"list": 1}, 0, None, []]),
        ("a level that is a bool", lambda s: ["list", False, None, []]),
        ("a level below zero", lambda s: ["list", -1, None, []]),
        ("items that are no list", lambda s: ["list", 0, None, {}]),
        ("too many items", lambda s: ["list", 0, None, [0] * 257]),
        ("a mapping of single items", lambda s: ["dict", 0, None, [1]]),
        ("a mapping of triples", lambda s: ["dict", 0, None, [[1, 2, 3]]]),
        ("a value of nothing", lambda s: ["value", 0, None, []]),
        ("a value of two", lambda s: ["value", 0, None, [1, 2]]),
        ("a value that is split", upper(2, "value")),
        ("parts without counts", lambda s: ["list", 1, None, [s.put(LEAF)]]),
        ("a part that is no digest", lambda s: ["list", 1, None, [[2, b"short"]]]),
        ("a count that is a bool", upper(True)),
        ("a count too small", upper(1)),
        ("a count too large", upper(3)),
        ("a count of nothing", lambda s: ["list", 1, None, [[0, s.put(["list", 0, None, []])]]]),
        ("a count below zero", upper(-2)),
        ("a part of another container", upper(2, "tuple")),
        ("a part of another level", upper(2, level=2)),
        ("a part with an extra", lambda s: [
            "list", 1, None, [[1, s.put(["list", 0, 5, [1]])]]]),
        ("counts that cancel out", lambda s: [
            "list", 1, None, [[2, s.put(LEAF)], [-2, s.put(LEAF)]]]),
    ]  # fmt: skip


@pytest.mark.parametrize(("what", "make"), hostile_nodes(), ids=lambda p: str(p)[:40])
def test_hostile_nodes_are_refused(what: str, make: Callable[[Shelf], Any]) -> None:
    shelf = Shelf()
    root = shelf.put(make(shelf))
    with pytest.raises(EncodingError):
        read_tree(root, shelf.fetch)
    with pytest.raises(EncodingError):
        list(walk(root, shelf.fetch))


def hostile_values() -> list[tuple[str, Callable[[Shelf], Any]]]:
    return [
        ("an inline node that is split", lambda s: ["node", ["list", 1, None, [[2, s.put(LEAF)]]]]),
        ("an inline node that is none", lambda s: ["node", 5]),
        ("a tree with too few entries", lambda s: ["tree", s.put(LEAF), 3]),
        ("a tree with too many entries", lambda s: ["tree", s.put(LEAF), 1]),
    ]


@pytest.mark.parametrize(("what", "make"), hostile_values(), ids=lambda p: str(p)[:40])
def test_hostile_values_are_refused(what: str, make: Callable[[Shelf], Any]) -> None:
    shelf = Shelf()
    value = make(shelf)
    with pytest.raises(EncodingError):
        child_node(value, shelf.fetch)
    root = shelf.put(["list", 0, None, [value]])
    with pytest.raises(EncodingError):
        list(walk(root, shelf.fetch))


HOSTILE_KEYS: list[Any] = [
    [], [5], ["node"], ["node", 5], ["node", ["tuple", 0, None, 5]], ["node", [[]]], ["int"],
    ["int", 3], ["int", [0, "x"]], ["int", [1, digest(1)]], ["str", [0, b"\xff"]], ["str", []],
    ["int", [0, b"\x7f" * 4096]], {"a": 1}, ["node", ["tuple", 0, None, [[]]]], [None, 1], [["a"]],
]  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda k: repr(k)[:30])
def test_hostile_keys_are_named_or_refused(key: Any) -> None:
    node = parse_node(["dict", 0, None, [["plain", 1], [key, 2]]])
    try:
        made = child_names(node)
    except EncodingError:
        return
    assert len(set(made)) == 2


def test_keys_as_they_are_shown() -> None:
    assert key_text(["node", ["tuple", 0, None, [1, "a", ["int", [0, b"\0" * 8 + b"\1"]]]]]) == (
        1, "a", 2**64,
    )  # fmt: skip
    assert key_text(["str", [0, b"\xed\xa0\x80"]]) == "\ud800"
    assert repr(key_text(["torch.dtype", "float32"])) == "torch.dtype('float32')"
    assert key_text("plain") == "plain"


def test_a_few_nodes_that_stand_for_millions_are_cut_off() -> None:
    shelf = Shelf()
    name, count = shelf.put(["list", 0, None, [0] * 256]), 256
    for level in range(1, 6):
        name, count = shelf.put(["list", level, None, [[count, name]] * 256]), count * 256
    with pytest.raises(EncodingError):
        read_tree(name, shelf.fetch, most=1 << 24)
    assert shelf.fetched == 1


def test_counts_that_lie_do_not_get_past_the_bound() -> None:
    """Announced entries are few, because a negative count hides the many."""
    shelf = Shelf()
    name, count = shelf.put(["list", 0, None, [0] * 256]), 256
    for level in range(1, 4):
        name, count = shelf.put(["list", level, None, [[count, name]] * 256]), count * 256
    liar = shelf.put(["list", 4, None, [[count, name], [-count, name]]])
    with pytest.raises(EncodingError):
        read_tree(liar, shelf.fetch, most=1000)
    assert shelf.fetched < 10


json_like = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 2**40), st.text(max_size=3),
        st.binary(max_size=33),
        st.sampled_from(["list", "dict", "value", "odict", "node", "tree", "int", "str", 0, 1]),
        st.sampled_from([digest(1), bytes(32)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(st.sampled_from(["list", "dict", "value", "set"]), st.integers(0, 1), st.none(),
                  st.lists(inner, max_size=3)).map(list),
        st.tuples(st.just("node"), inner).map(list),
        st.tuples(st.sampled_from(["int", "str", "tuple"]), inner).map(list),
    ),
    max_leaves=12,
)  # fmt: skip


@given(json_like)
def test_any_object_is_a_tree_or_an_encoding_error(value: Any) -> None:
    shelf = Shelf()
    shelf.objects[Kind.TREE, Digest(digest(1))] = encode(["list", 0, None, [1]])
    shelf.objects[Kind.TREE, Digest(bytes(32))] = encode(None)
    root = shelf.put(value)
    try:
        for path, _ in walk(root, shelf.fetch):
            assert isinstance(path, str)
    except EncodingError:
        pass


# -- the checkpoint object -----------------------------------------------------------------------

digests = st.binary(min_size=32, max_size=32).map(Digest)
plain = st.recursive(
    _scalars, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)  # fmt: skip
checkpoints = st.builds(
    CheckpointObject,
    root=digests,
    step=st.one_of(st.none(), st.integers(-(2**63), 2**63)),
    parent=st.one_of(st.none(), digests),
    time=st.integers(0, 2**63),
    meta=st.one_of(st.none(), st.dictionaries(st.text(max_size=5), plain, max_size=3)).filter(
        lambda meta: "b'" not in repr(meta) and 'b"' not in repr(meta)  # meta holds no bytes
    ),
    message=st.one_of(st.none(), st.text(max_size=20)),
    audit=st.none(),
    ranks=st.none(),
    tensors=st.integers(0, 2**40),
    logical_bytes=st.integers(0, 2**63),
    chunk_size=st.just(4096),
    contents=digests,
)


@given(checkpoints)
def test_checkpoints_are_read_back(checkpoint: CheckpointObject) -> None:
    data = checkpoint.encoded()
    parsed = CheckpointObject.parse(data)
    assert parsed == checkpoint
    assert repr(parsed.meta) == repr(checkpoint.meta)  # in the order given
    assert type(parsed.root) is Digest


GOOD = {
    "root": digest(1), "step": 5, "parent": None, "time": 0, "meta": None, "message": None,
    "audit": None, "ranks": None, "tensors": 1, "logical_bytes": 4, "chunk_size": 4096,
    "contents": digest(2),
}  # fmt: skip


def checkpoint_bytes(**changes: Any) -> bytes:
    return mp(dict(sorted({**GOOD, **changes}.items())))


@pytest.mark.parametrize(
    "changes",
    [
        {"root": None}, {"root": b"short"}, {"root": "x" * 32}, {"root": [1] * 32},
        {"parent": b""}, {"parent": 5}, {"contents": None}, {"extra": 1},
        {"step": "5"}, {"step": True}, {"step": 1.5}, {"time": None}, {"time": "now"},
        {"meta": []}, {"meta": "x"}, {"message": 5}, {"message": b"x"}, {"tensors": None},
        {"logical_bytes": "4"}, {"chunk_size": None}, {"chunk_size": []},
    ],
    ids=repr,
)  # fmt: skip
def test_checkpoints_of_another_shape_are_refused(changes: dict[str, Any]) -> None:
    assert CheckpointObject.parse(checkpoint_bytes()).step == 5
    with pytest.raises(EncodingError):
        CheckpointObject.parse(checkpoint_bytes(**changes))


def test_a_checkpoint_without_a_field_is_refused() -> None:
    for name in GOOD:
        fields = {k: v for k, v in GOOD.items() if k != name}
        with pytest.raises(EncodingError):
            CheckpointObject.parse(mp(dict(sorted(fields.items()))))
