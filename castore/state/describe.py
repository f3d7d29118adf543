"""From a Python state to the Merkle model: the walk, its checks, and the refusals.

The first step of a save (design, section 8): when :func:`describe` returns, the whole state can be
kept exactly; when it raises, nothing was hashed, let alone written.  The pipeline calls it, fills
in the digests of ``contents`` and encodes ``root``.  It never recurses (a state may be 10,000
containers deep) and never changes the state.

Types are exact: a subclass may hold more than its base, so it is refused rather than cut down.
Identity is kept for tensors and arrays (ties); a container that is reachable twice is stored twice.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from castore.errors import BadState
from castore.model import keypath
from castore.model.encoding import decode, encode
from castore.model.objects import MAX_VALUES, DataValue, Node
from castore.state import plain
from castore.state.advice import refusal, type_name
from castore.state.collector import NIL, BytesSource, Collector, Encoder, Refused
from castore.state.contents import child_paths
from castore.state.quiet import without_gc

__all__ = ["FACTORIES", "MAX_DEPTH", "NO_METADATA", "Description", "describe"]

#: Containers within containers.
MAX_DEPTH = 10_000
#: Offenders that a refusal spells out; all of them are in ``BadState.paths``.
MAX_SHOWN = 20

#: What a defaultdict may make: these have names that mean the same everywhere.
FACTORIES: dict[str, type] = {
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "set": set,
    "str": str,
}
_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}

_CONTAINERS: dict[type, str] = {
    dict: "dict",
    OrderedDict: "odict",
    Counter: "counter",
    defaultdict: "defaultdict",
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
}
_MAPPINGS = frozenset({dict, OrderedDict, Counter, defaultdict})
_SETS = frozenset({set, frozenset})

#: ``extra`` of an OrderedDict whose ``_metadata`` is None (nil says that it has none).
NO_METADATA = ["none"]


@dataclass(frozen=True, slots=True)
class Description:
    """A state that can be kept exactly, ready to be hashed.

    Attributes:
        root: its top container.
        contents: every content to hash, once each, in traversal order; the save sets ``digests``.
        data: every value with a content of its own, short (inline) ones too, in the same order.
        tensors: number of tensors, each tied name counted.
        logical_bytes: bytes of all contents, what is tied counted once.
    """

    root: Node
    contents: list[DataValue]
    data: list[DataValue]
    tensors: int
    logical_bytes: int


def describe(state: Any, chunk_size: int) -> Description:
    """Check a state and describe it; short contents are copied, long ones are not touched.

    Args:
        state: any supported value.
        chunk_size: the store's.

    Raises:
        BadState: it holds what cannot be kept exactly; all of it is listed.
    """
    collector = Collector(chunk_size)
    with without_gc():
        root = _Walk(collector).run(state)
        collector.number_ties()
    return Description(
        root,
        [value for value in collector.data if value.inline is None],
        collector.data,
        collector.tensors,
        collector.logical_bytes,
    )


class _Frame:
    """A container on the way from the root to where the walk is."""

    __slots__ = ("container", "data_from", "items", "metadata", "names", "node", "table")

    def __init__(
        self, container: Any, node: Node, items: Iterator[Any], table: dict[type, Encoder]
    ) -> None:
        self.container = container
        self.node = node
        self.items = items
        self.table = table
        self.metadata = False  # whether the last value belongs in node.extra
        self.data_from = -1  # of a set: where its contents begin among all contents
        self.names: list[str] | None = None

    def name(self, i: int) -> str:
        """The path component of the ``i``-th value."""
        if self.names is None:
            count = len(self.container) if self.container is not None else 0
            self.names = child_paths(self.node.keys, count)
        return self.names[i]


class _Walk:
    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.frames: list[_Frame] = []
        self.values = 0
        self.offenders: list[tuple[str, str, str]] = []  # path, what, advice
        self.scalars = dict(plain.SCALAR_ENCODERS)
        # Who has a tensor has imported torch: where torch is not, nothing can be one.
        torch_there = sys.modules.get("torch") is not None
        numpy_there = sys.modules.get("numpy") is not None
        if torch_there:
            from castore.state import torch_values

            self.scalars |= torch_values.SCALAR_ENCODERS
        if numpy_there:
            from castore.state import arrays

            self.scalars |= arrays.SCALAR_ENCODERS
        # What is hashed by its value may stand in a set; a tensor's place there is its identity.
        self.in_sets: dict[type, Encoder] = {**self.scalars, **plain.encoders(collector)}
        self.table = dict(self.in_sets)
        if torch_there:
            from castore.state import tensors

            self.table |= tensors.encoders(collector) | torch_values.encoders(collector)
        if numpy_there:
            self.table |= arrays.encoders(collector)

    def run(self, state: Any) -> Node:
        if type(state) in _CONTAINERS:
            top = self.enter(state)
            if top is None:
                raise _bad_state(self.offenders)
            root = top
        else:
            root = _Frame(None, Node("value", NIL, None, []), iter([state]), self.table)
        self.frames.append(root)
        on_path = {id(state)}
        while self.frames:
            frame = self.frames[-1]
            child = self.next_container(frame, on_path)
            if child is not None:
                on_path.add(id(child.container))
                self.frames.append(child)
                continue
            if frame.metadata:
                frame.node.extra = frame.node.values.pop()
            if frame.data_from >= 0:
                self.sort_data(frame.data_from)
            on_path.discard(id(frame.container))
            self.frames.pop()
        if self.offenders:
            raise _bad_state(self.offenders)
        return root.node

    def next_container(self, frame: _Frame, on_path: set[int]) -> _Frame | None:
        """Encode values until one is a container to go down into; None at the end."""
        values, table = frame.node.values, frame.table
        for value in frame.items:
            encoder = table.get(type(value))
            if encoder is not None:
                try:
                    values.append(encoder(value))
                except Refused as e:
                    self.refuse(e.what, e.advice)
                continue
            if type(value) not in _CONTAINERS:
                self.refuse_value(value, frame)
            elif id(value) in on_path:
                self.refuse("a container that contains itself", "break the cycle")
            elif len(self.frames) >= MAX_DEPTH:
                self.refuse(f"containers nested more than {MAX_DEPTH} deep", "flatten the state")
            else:
                child = self.enter(value)
                if child is not None:
                    values.append(child.node)
                    return child
        return None

    # -- opening a container ------------------------------------------------------------------

    def enter(self, container: Any) -> _Frame | None:
        """A frame for a container; None where the container itself is refused."""
        self.values += len(container)
        if self.values > MAX_VALUES:
            self.refuse(
                f"more than {MAX_VALUES} values in all", "keep numbers in tensors or arrays"
            )
            raise _bad_state(self.offenders)  # there may be no end to them
        cls = type(container)
        node = Node(_CONTAINERS[cls], NIL, None, [])
        table = self.frames[-1].table if self.frames else self.table
        frame = _Frame(container, node, iter(container), table)
        if cls in _SETS:
            frame.table = self.in_sets
            if table is not self.in_sets:  # the outermost set sorts for those within it
                frame.data_from = len(self.collector.data)
        if cls in _MAPPINGS:
            node.keys = self.encode_keys(container)
            frame.items = iter(container.values())
            if cls is defaultdict:
                factory = container.default_factory
                if factory is not None:
                    name = _FACTORY_NAMES.get(factory) if isinstance(factory, type) else None
                    if name is None:
                        self.refuse(
                            "a defaultdict whose factory is no plain type",
                            f"only {', '.join(FACTORIES)} are kept: save dict(value)",
                        )
                        return None
                    node.extra = encode(name)
            elif cls is not dict and container.__dict__:
                return self.enter_with_attributes(frame)
        return frame

    def enter_with_attributes(self, frame: _Frame) -> _Frame | None:
        attributes = frame.container.__dict__
        if type(frame.container) is not OrderedDict or list(attributes) != ["_metadata"]:
            shown = ", ".join(sorted(map(str, attributes)))
            self.refuse(
                f"a {type(frame.container).__name__} with attributes of its own ({shown})",
                "only an OrderedDict's _metadata is kept: save the others as values",
            )
            return None
        metadata = attributes["_metadata"]
        if metadata is None:
            frame.node.extra = encode(NO_METADATA)
        else:
            frame.items = iter([*frame.container.values(), metadata])
            frame.metadata = True
        return frame

    def encode_keys(self, mapping: dict[Any, Any]) -> list[bytes]:
        keys = []
        for key in mapping:
            try:
                keys.append(plain.encode_key(key, self.scalars))
            except Refused as e:
                name = f"~({keypath.escape(_shown_key(key))})"
                path = keypath.join([p for p in (self.path(), name) if p])
                self.offenders.append((path, e.what, e.advice))
                keys.append(encode(name))
        # Python tells two ZoneInfo objects of one key apart; once loaded there is only one.
        aware = [
            plain.decode_key(decode(data), plain.SCALAR_DECODERS.get)
            for key, data in zip(mapping, keys, strict=True)
            if type(key) is datetime and key.tzinfo is not None
        ]
        if len(set(keys)) != len(keys) or len(set(aware)) != len(aware):
            what = "keys that differ to Python and are one when written down"
            self.offenders.append((self.path(), what, "tell them apart by their values"))
        return keys

    def sort_data(self, start: int) -> None:
        """Order the contents within a set by their bytes: a set's own order is chance."""
        data = self.collector.data
        part = data[start:]
        if len(part) > 1:
            data[start:] = sorted(part, key=_content_order)

    # -- refusing -----------------------------------------------------------------------------

    def path(self) -> str:
        """The key path of the value that the innermost frame is at."""
        parts = [
            f.name(len(f.node.values) - 1) for f in self.frames[:-1] if f.container is not None
        ]
        if self.frames and self.frames[-1].container is not None:
            parts.append(self.frames[-1].name(len(self.frames[-1].node.values)))
        return keypath.join(parts)

    def refuse(self, what: str, advice: str) -> None:
        """Note an offender, and put something in its place so that the walk goes on."""
        self.offenders.append((self.path(), what, advice))
        if self.frames:
            self.frames[-1].node.values.append(NIL)

    def refuse_value(self, value: Any, frame: _Frame) -> None:
        if type(value) in self.table and frame.table is self.in_sets:
            what = f"a {type_name(type(value))} in a set"
            self.refuse(
                what, "its place there is its identity, which a load cannot keep: use a list"
            )
        else:
            self.refuse(*refusal(value))


def _content_order(value: DataValue) -> tuple[list[bytes], bytes]:
    assert isinstance(value.source, BytesSource)
    return value.before, value.source.data


def _shown_key(key: Any) -> str:
    """A key that is refused, in a few characters, without running code of its type."""
    if type(key) in (int, str, bytes, float, bool):
        text = repr(key)
        return text if len(text) <= 80 else text[:77] + "..."
    return type_name(type(key))


def _bad_state(offenders: list[tuple[str, str, str]]) -> BadState:
    lines = [
        f"{keypath.display(path)}: {what}; {advice}" for path, what, advice in offenders[:MAX_SHOWN]
    ]
    paths = tuple(path for path, _, _ in offenders)
    if len(lines) == 1:
        message = f"the state cannot be kept exactly, nothing was written: {lines[0]}"
    else:
        if len(offenders) > len(lines):
            lines.append(f"and {len(offenders) - len(lines)} more")
        message = "\n  ".join(
            [
                f"the state cannot be kept exactly ({len(paths)} values), nothing was written:",
                *lines,
            ]
        )
    return BadState(message, path=paths[0], paths=paths)
