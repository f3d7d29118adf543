"""Objects: the canonical records of a checkpoint, and how a state becomes a tree of them.

A *value* is one thing in a state.  None, bool, 64-bit int, float, short text and short bytes are
their own msgpack; everything else is an array that begins with a tag (``docs/format.md``).
A *node* is a container: ``[container, level, extra, items]``.  A small node lies inside its
parent's entry, a larger one is a ``tree`` object named by digest, and one with more than
:data:`FAN_OUT` entries is split, so no object grows with the state.  A *content* is the bytes of a
tensor, array, long text or number: inline, a list of chunk digests, or a spilled list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from castore.model import keypath
from castore.model.digest import DIGEST_SIZE, Buffer, Digest, Kind, kind_digest
from castore.model.encoding import (
    EncodingError,
    array_bytes,
    decode,
    decode_record,
    encode,
    encode_record,
)
from castore.model.grid import Grid

__all__ = [
    "CONTENT_AT",
    "FAN_OUT",
    "INLINE_BYTES",
    "INLINE_NODE",
    "LIST_DIGESTS",
    "MAPPINGS",
    "MAX_OBJECT",
    "MAX_VALUES",
    "METADATA",
    "SEQUENCES",
    "SPILL_DIGESTS",
    "CheckpointObject",
    "Content",
    "DataValue",
    "Leaf",
    "Node",
    "Sink",
    "Source",
    "TreeNode",
    "child_names",
    "child_node",
    "child_values",
    "children",
    "content_grid",
    "data_leaf",
    "encode_content",
    "encode_tree",
    "parse_chunk_list",
    "parse_node",
    "read_content",
    "read_tree",
    "value_digest",
    "walk",
]

#: Contents of at most this many bytes lie inside their entry: no chunk, no pack record.
INLINE_BYTES = 256
#: A node whose encoding is at most this long lies inside its parent's entry.  Small enough that
#: nested inline nodes stay far below the nesting limit of msgpack readers.
INLINE_NODE = 512
#: Entries of one node; a container with more is split into a tree of nodes.
FAN_OUT = 256
#: Chunk digests that an entry holds itself; a longer list is spilled to ``chunks`` objects.
LIST_DIGESTS = 32
#: Digests in one ``chunks`` object.
SPILL_DIGESTS = 4096
#: A state has at most this many values, each occurrence counted: a few objects that share parts
#: could stand for any number, and a walk over them would never end.
MAX_VALUES = 1 << 26
#: No object is longer; a reader may refuse one that says it is.
MAX_OBJECT = 64 << 20

MAPPINGS = frozenset({"dict", "odict", "counter", "defaultdict"})
SEQUENCES = frozenset({"list", "tuple", "set", "frozenset", "value"})
#: How an OrderedDict's ``_metadata`` is called in key paths.
METADATA = "~(_metadata)"

#: Tag of each value that has a content, and where in the array the content stands.
CONTENT_AT = {"tensor": 5, "ndarray": 4, "str": 1, "bytes": 1, "int": 1, "torch.Generator": 2}

Sink = Callable[[Kind, Digest, bytes], None]
Fetch = Callable[[Kind, Digest], bytes]


class Source(Protocol):
    """Where the bytes of a content come from while saving."""

    @property
    def nbytes(self) -> int:
        """Length of the canonical bytes."""

    def view(self) -> memoryview | None:
        """The canonical bytes where they lie in host memory, or None where they must be made."""

    def fill(self, out: memoryview, start: int) -> None:
        """Write the canonical bytes ``start .. start + len(out)`` into ``out``."""


@dataclass(slots=True, eq=False)
class DataValue:
    """A value with a content, while saving: what to store, then (``digests``) what it became.

    Attributes:
        before: encoded elements of the value's array before the content.
        after: encoded elements after it.
        grid: where the content is cut.
        source: its bytes.
        inline: the bytes, if short.
        digests: the chunks' names, in order, filled in by the save.
        same_as: the value whose content this one shares (a tie); that one alone is hashed.
    """

    before: list[bytes]
    after: list[bytes]
    grid: Grid
    source: Source
    inline: bytes | None = None
    digests: list[Digest] | None = None
    same_as: DataValue | None = None

    def encoded(self, sink: Sink) -> bytes:
        """The value's bytes; spilled lists go to ``sink``."""
        held = self.same_as or self
        return array_bytes(
            [*self.before, encode_content(held.inline, held.digests, sink), *self.after]
        )


Leaf = bytes | DataValue


@dataclass(slots=True, eq=False)
class Node:
    """A container while saving.  Keys and plain values are encoded already."""

    container: str
    extra: Leaf | Node
    keys: list[bytes] | None
    values: list[Leaf | Node]


NIL = encode(None)


def encode_content(inline: bytes | None, digests: Sequence[Digest] | None, sink: Sink) -> bytes:
    """``[0, bytes]``, ``[1, digests]`` or ``[2, digest of a chunks object]``."""
    if inline is not None:
        return encode([0, inline])
    if digests is None:
        raise ValueError("a content was encoded before its chunks were hashed")
    if len(digests) <= LIST_DIGESTS:
        return encode([1, b"".join(digests)])
    level = 0
    while True:
        upper = []
        for i in range(0, len(digests), SPILL_DIGESTS):
            data = encode([level, b"".join(digests[i : i + SPILL_DIGESTS])])
            digest = kind_digest(Kind.CHUNKS, data)
            sink(Kind.CHUNKS, digest, data)
            upper.append(digest)
        if len(upper) == 1:
            return encode([2, upper[0]])
        digests, level = upper, level + 1


def encode_tree(root: Node, sink: Sink) -> Digest:
    """Encode a state bottom up; every object goes to ``sink``; returns the root.

    Does not recurse: a state may be 10,000 containers deep.
    """
    done: dict[int, bytes] = {}
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, visited = stack.pop()
        if not visited:
            stack.append((node, True))
            stack.extend((v, False) for v in (*node.values, node.extra) if isinstance(v, Node))
            continue
        extra, *values = [
            v if isinstance(v, bytes) else v.encoded(sink) if isinstance(v, DataValue)
            else done.pop(id(v))
            for v in (node.extra, *node.values)
        ]  # fmt: skip
        if node.keys is not None:
            values = [b"\x92" + k + v for k, v in zip(node.keys, values, strict=True)]
        elif node.container in ("set", "frozenset"):
            values.sort()  # a set has no order: its encoding gives it one
        data, digest = _encode_node(node.container, extra, values, sink)
        if node is root:
            return digest if digest is not None else _emit(Kind.TREE, data, sink)
        if digest is None and len(data) <= INLINE_NODE:
            done[id(node)] = b"\x92" + encode("node") + data
        else:
            digest = digest or _emit(Kind.TREE, data, sink)
            done[id(node)] = array_bytes([encode("tree"), encode(digest), encode(len(values))])
    raise AssertionError("the root was not reached")


def _encode_node(
    container: str, extra: bytes, items: list[bytes], sink: Sink
) -> tuple[bytes, Digest | None]:
    """The bytes of a single-object node, or the digest of a split one."""
    head = encode(container)
    if len(items) <= FAN_OUT:
        return array_bytes([head, encode(0), extra, array_bytes(items)]), None
    counts = [1] * len(items)
    level = 0
    while True:
        upper: list[bytes] = []
        upper_counts: list[int] = []
        top = len(items) <= FAN_OUT
        tail = extra if top else NIL
        for i in range(0, len(items), FAN_OUT):
            part = array_bytes([head, encode(level), tail, array_bytes(items[i : i + FAN_OUT])])
            digest = _emit(Kind.TREE, part, sink)
            if top:
                return b"", digest
            count = sum(counts[i : i + FAN_OUT])
            upper.append(encode([count, digest]))
            upper_counts.append(count)
        items, counts, level = upper, upper_counts, level + 1


def _emit(kind: Kind, data: bytes, sink: Sink) -> Digest:
    digest = kind_digest(kind, data)
    sink(kind, digest, data)
    return digest


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A container as read: items are values, ``[key, value]`` pairs or, above level 0, parts."""

    container: str
    level: int
    extra: Any
    items: list[Any]


def parse_node(value: Any) -> TreeNode:
    """Check the shape of a decoded node.

    Raises:
        EncodingError: it is no node.
    """
    if not (isinstance(value, list) and len(value) == 4):
        raise EncodingError("a node is an array of four")
    container, level, extra, items = value
    if not isinstance(container, str) or container not in MAPPINGS | SEQUENCES:
        raise EncodingError(f"unknown container {container!r}")
    if type(level) is not int or level < 0 or not isinstance(items, list) or len(items) > FAN_OUT:
        raise EncodingError("a node's level or items are out of bounds")
    if container == "value" and (level or len(items) != 1):
        raise EncodingError("a value is one item")
    if level:
        for item in items:
            if not (
                isinstance(item, list)
                and len(item) == 2
                and type(item[0]) is int
                and item[0] > 0
                and _is_digest(item[1])
            ):
                raise EncodingError("an upper node holds [count, digest] pairs")
    elif container in MAPPINGS and not all(isinstance(i, list) and len(i) == 2 for i in items):
        raise EncodingError("a mapping holds [key, value] pairs")
    return TreeNode(container, level, extra, items)


def _is_digest(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == DIGEST_SIZE


@dataclass(frozen=True, slots=True)
class Content:
    """A content as read: its bytes, or the names of its chunks."""

    inline: bytes | None
    digests: tuple[Digest, ...]


def read_content(value: Any, fetch: Fetch, most: int | None = None) -> Content:
    """Resolve a content; spilled lists come through ``fetch``.

    ``most`` bounds the chunks of a spilled list: a few objects can name any number, sharing parts.

    Raises:
        EncodingError: it is none, or has more chunks.
    """
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], bytes):
        form, data = value
        if type(form) is not int:
            raise EncodingError("not a content")
        if form == 0:
            return Content(data, ())
        if form == 1 and len(data) % DIGEST_SIZE == 0:
            return Content(None, _split_digests(data))
        if form == 2 and len(data) == DIGEST_SIZE:
            spilled = _spilled(Digest(data), None, fetch)
            digests = tuple(spilled if most is None else islice(spilled, most + 1))
            if most is not None and len(digests) > most:
                raise EncodingError(f"a content of more than {most} chunks")
            return Content(None, digests)
    raise EncodingError("not a content")


def _split_digests(data: bytes) -> tuple[Digest, ...]:
    if len(data) == DIGEST_SIZE:
        return (Digest(data),)  # by far the commonest
    return tuple(Digest(data[i : i + DIGEST_SIZE]) for i in range(0, len(data), DIGEST_SIZE))


def parse_chunk_list(data: Buffer) -> tuple[int, tuple[Digest, ...]]:
    """A chunk list: its level, and the digests of chunks (level 0) or of lists one level below.

    Raises:
        EncodingError: it is none.
    """
    value = decode(data)
    if not (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and isinstance(value[1], bytes)
        and value[1]
        and len(value[1]) % DIGEST_SIZE == 0
    ):
        raise EncodingError("not a chunks object")
    return value[0], _split_digests(value[1])


def _spilled(digest: Digest, level: int | None, fetch: Fetch) -> Iterator[Digest]:
    found, digests = parse_chunk_list(fetch(Kind.CHUNKS, digest))
    if (level is not None and found != level) or not 0 <= found < 8:
        raise EncodingError("a chunks object stands at the wrong level")
    for part in digests:
        if found:
            yield from _spilled(part, found - 1, fetch)
        else:
            yield part


def read_tree(digest: Digest, fetch: Fetch, most: int | None = None) -> TreeNode:
    """One whole container: a split one is put together again, as a level-0 node.

    ``most`` bounds its entries: a few objects that share parts may stand for any number.

    Raises:
        EncodingError: it is none, or has more entries.
    """
    node = parse_node(decode(fetch(Kind.TREE, digest)))
    if most is not None and _entries(node) > most:
        raise EncodingError(f"a container of more than {most} entries")
    if not node.level:
        return node
    items: list[Any] = []
    stack: list[tuple[int, Any]] = [(node.level, item) for item in reversed(node.items)]
    while stack:
        level, (count, part) = stack.pop()
        child = parse_node(decode(fetch(Kind.TREE, Digest(part))))
        if child.container != node.container or child.level != level - 1 or child.extra is not None:
            raise EncodingError("a part of a split container does not fit its whole")
        if child.level:
            stack.extend((child.level, item) for item in reversed(child.items))
        else:
            items.extend(child.items)
        if count != _entries(child):
            raise EncodingError("a part of a split container has more entries than announced")
    return TreeNode(node.container, 0, node.extra, items)


def _entries(node: TreeNode) -> int:
    """Entries of the container that a node, or part of one, says it has."""
    return sum(count for count, _part in node.items) if node.level else len(node.items)


def child_node(value: Any, fetch: Fetch, most: int | None = None) -> TreeNode | None:
    """The container that a value is, or None; ``most`` as for :func:`read_tree`."""
    if isinstance(value, list) and value:
        if value[0] == "node" and len(value) == 2:
            node = parse_node(value[1])
            if node.level:
                raise EncodingError("an inline node is never split")
            return node
        if value[0] == "tree" and len(value) == 3 and _is_digest(value[1]):
            node = read_tree(Digest(value[1]), fetch, most)
            if len(node.items) != value[2]:
                raise EncodingError("a container has another number of entries than announced")
            return node
    return None


def key_text(value: Any) -> Any:
    """A decoded key as something whose ``repr`` serves in a key path (no torch, no numpy)."""
    if not isinstance(value, list):
        return value
    if value[0] == "node":
        return tuple(key_text(v) for v in value[1][3])
    if value[0] == "int":
        return int.from_bytes(value[1][1], "little", signed=True)
    if value[0] == "str":
        return value[1][1].decode("utf-8", "surrogatepass")
    return _Shown(f"{value[0]}({', '.join(map(repr, value[1:]))})")


class _Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def child_names(node: TreeNode) -> list[str]:
    """The path component of each entry of a level-0 node.

    Raises:
        EncodingError: a key is none.
    """
    if node.container in MAPPINGS:
        try:
            return keypath.names(key_text(item[0]) for item in node.items)
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as e:
            raise EncodingError(f"a mapping's key is malformed: {e}") from e
    return [str(i) for i in range(len(node.items))]


def child_values(node: TreeNode) -> list[Any]:
    """The values of a level-0 node."""
    if node.container in MAPPINGS:
        return [item[1] for item in node.items]
    return node.items


def children(node: TreeNode) -> list[tuple[str, Any]]:
    """Path component and value of all below a level-0 node, an OrderedDict's metadata last.

    Raises:
        EncodingError: a key is none.
    """
    pairs = list(zip(child_names(node), child_values(node), strict=True))
    if isinstance(node.extra, list):
        pairs.append((METADATA, node.extra))
    return pairs


def value_digest(value: Any) -> Digest:
    """What a decoded value is called: the root that a state of just this value has.

    Of a container the digest of its tree; of all else that of the tree which holds it alone,
    whatever it is tied to.  Equal values have equal digests, wherever they lie.
    """
    if isinstance(value, list) and value:
        if value[0] == "tree":
            return Digest(value[1])
        if value[0] == "node":
            return kind_digest(Kind.TREE, encode(value[1]))
        if value[0] in ("tensor", "ndarray"):
            value = [*value[:-1], None]
    return kind_digest(Kind.TREE, encode(["value", 0, None, [value]]))


def walk(root: Digest, fetch: Fetch) -> Iterator[tuple[str, Any]]:
    """Every value of a state that is no container, depth first, as ``(key path, value)``.

    ``fetch(kind, digest)`` returns an object's bytes, checked.

    Raises:
        EncodingError: the tree is malformed, or stands for more than :data:`MAX_VALUES` values.
    """
    left = MAX_VALUES
    stack: list[tuple[str, Any]] = [("", None)]
    node: TreeNode | None = read_tree(root, fetch, left)
    while stack:
        path, value = stack.pop()
        node = node or child_node(value, fetch, left)
        if node is None:
            yield path, value
            continue
        left -= len(node.items)
        if left < 0:
            raise EncodingError(f"more than {MAX_VALUES} values")
        if node.container == "value":
            stack.append((path, node.items[0]))
        else:
            prefix = path + "/" if path else ""
            stack.extend((prefix + name, child) for name, child in reversed(children(node)))
        node = None


def content_grid(value: list[Any], chunk_size: int) -> Grid:
    """The grid of a value that has a content (its length, for texts and bytes, is not known).

    Raises:
        EncodingError: its shape or element size is none.
    """
    at = CONTENT_AT[value[0]]
    if len(value) <= at:
        raise EncodingError(f"a {value[0]} without its content")
    if value[0] not in ("tensor", "ndarray"):
        return Grid(0, 1, chunk_size)
    itemsize, shape = value[at - 2], value[at - 1]
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in (itemsize, *shape))):
        raise EncodingError(f"a {value[0]} with an impossible shape")
    return Grid.of(shape, itemsize, chunk_size)


@dataclass(frozen=True, slots=True)
class CheckpointObject:
    """What a ref points at.  It knows nothing of where bytes lie.

    Attributes:
        root: digest of the state's top tree.
        step: the label given, or None.
        parent: the checkpoint the branch stood at, or None.
        time: nanoseconds since the epoch, for people.
        meta: the user's plain data.
        message: the user's words, or None.
        audit: the audit's result, or None where it was not made.
        ranks: rank manifests, or None for a save by one process.
        tensors: number of tensors.
        logical_bytes: bytes of all contents as the state counts them.
        chunk_size: the grid's chunk size.
        contents: digest of all chunked contents in order: equal where no tensor changed.
    """

    root: Digest
    step: int | None
    parent: Digest | None
    time: int
    meta: dict[str, Any] | None
    message: str | None
    audit: Any
    ranks: Any
    tensors: int
    logical_bytes: int
    chunk_size: int
    contents: Digest

    def encoded(self) -> bytes:
        """Canonical bytes."""
        return encode_record(**{name: getattr(self, name) for name in _CHECKPOINT_FIELDS})

    @classmethod
    def parse(cls, data: Buffer) -> CheckpointObject:
        """Read canonical bytes.

        Raises:
            EncodingError: they are no checkpoint object.
        """
        fields = decode_record(data, _CHECKPOINT_FIELDS)
        for name, kinds in _CHECKPOINT_TYPES.items():
            if type(fields[name]) not in kinds:
                raise EncodingError(f"{name} is of type {type(fields[name]).__name__}")
        for name in ("root", "parent", "contents"):
            if name == "parent" and fields[name] is None:
                continue
            if not _is_digest(fields[name]):
                raise EncodingError(f"{name} is no digest")
            fields[name] = Digest(fields[name])
        for name, kind in _PLAIN_FIELDS.items():
            if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
                raise EncodingError(f"{name} is malformed")
        if not _is_plain(fields["meta"]):
            raise EncodingError("meta holds what is no plain data")
        return cls(**fields)


_PLAIN_FIELDS: dict[str, Any] = {
    "step": int | None,
    "time": int,
    "meta": dict | None,
    "message": str | None,
    "tensors": int,
    "logical_bytes": int,
    "chunk_size": int,
}


def _is_plain(value: Any) -> bool:
    """Whether a decoded meta holds what JSON can say."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, bytes):
            return False
    return True


_CHECKPOINT_FIELDS = tuple(CheckpointObject.__dataclass_fields__)
_CHECKPOINT_TYPES: dict[str, tuple[type, ...]] = {
    "step": (int, type(None)),
    "time": (int,),
    "meta": (dict, type(None)),
    "message": (str, type(None)),
    "tensors": (int,),
    "logical_bytes": (int,),
    "chunk_size": (int,),
}


def data_leaf(
    before: Sequence[Any], grid: Grid, source: Source, after: Sequence[Any] = ()
) -> DataValue:
    """A value with a content, not hashed yet."""
    return DataValue([encode(b) for b in before], [encode(a) for a in after], grid, source)
