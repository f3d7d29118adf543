"""From a tree that was read back to a Python state: the walk, its checks, the reads, the assembly.

:func:`plan_state` walks the tree and checks all of it; only then does it take memory, one buffer a
content.  The pipeline fills what :attr:`Plan.reads` lists (every chunk verified before it gets
there) and :meth:`Plan.finish` puts the Python objects together.  Sizes are never trusted: a buffer
is taken only where as many chunks are named as it needs.  Neither half recurses.

What is read may be hostile: whatever its bytes, the outcome is a state or one of the errors named
below, never code that runs and never memory beyond what the caller allows.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from castore.errors import UnsupportedFeature
from castore.model import keypath
from castore.model.digest import Digest
from castore.model.encoding import EncodingError
from castore.model.grid import Grid
from castore.model.objects import (
    CONTENT_AT,
    MAPPINGS,
    MAX_VALUES,
    Fetch,
    TreeNode,
    child_names,
    child_node,
    read_content,
    read_tree,
)
from castore.model.patterns import OMITTED, WHOLE, Chosen, Selection
from castore.state import plain
from castore.state.contents import METADATA
from castore.state.describe import FACTORIES, MAX_DEPTH, NO_METADATA
from castore.state.plain import ScalarDecoder, expect
from castore.state.quiet import without_gc
from castore.state.slots import MAX_NBYTES, Slot, TextSlot

__all__ = ["Frame", "Plan", "Read", "plan_state"]

#: Elements of the array of each value that has a content.
_ARITY: dict[str, int] = {
    "tensor": 7,
    "ndarray": 6,
    "str": 2,
    "bytes": 2,
    "int": 2,
    "torch.Generator": 3,
}


#: In the place of a value that a selection left out, until the container is made.
_LEFT_OUT = object()


class Read:
    """One content to read: fill :attr:`out`, or :meth:`put` its parts, or set :attr:`data`.

    Attributes:
        digests: its chunks, in order.
        grid: where it is cut; ``rows`` is 0 where the length is known to its chunks alone.
        nbytes: its length; where that is not known, the least it can be.
        sized: whether its length is known; where not, the pipeline sets :attr:`data`.
        data: the content, where its length was not known.
    """

    __slots__ = ("_frame", "_index", "data", "digests", "grid", "nbytes", "sized", "slot")

    def __init__(self, slot: Slot, frame: Frame, index: int) -> None:
        self.slot = slot
        self._frame = frame
        self._index = index
        self.digests: tuple[Digest, ...] = slot.content.digests
        self.grid: Grid = slot.grid
        self.nbytes: int = slot.nbytes
        self.sized = not isinstance(slot, TextSlot)
        self.data: bytes | None = None

    @property
    def path(self) -> str:
        """The key path of the value (of the first one, where several are tied)."""
        return self._frame.path(self._index)

    @property
    def out(self) -> memoryview | None:
        """The content's own fresh memory: writable bytes, exactly as long; made anew at each call.

        None where there is none: then verified bytes are handed to :meth:`put`.
        """
        return self.slot.out()

    def put(self, start: int, data: memoryview) -> None:
        """Place verified bytes, which begin at ``start`` of the content; from any thread."""
        self.slot.put(start, data)

    @property
    def whole(self) -> bool:
        """Whether all of its chunks are needed."""
        return self.slot.wanted is None

    def pieces(self) -> Iterator[tuple[Digest, int, int]]:
        """Digest, start and stop of each chunk that is needed."""
        wanted = self.slot.wanted
        for i, (start, stop) in enumerate(self.grid.spans()):
            if wanted is None or i in wanted:
                yield self.digests[i], start, stop

    @property
    def mappable(self) -> int:
        """Alignment at which the content could be mapped where it lies; 0 where it cannot be."""
        return self.slot.mappable

    def adopt(self, memory: memoryview) -> None:
        """Take mapped, verified bytes in the place of memory of its own."""
        self.slot.adopt(memory)


class Plan:
    """A state to be: what to read, then the state itself.

    Attributes:
        reads: the contents to read, in traversal order, what is tied once.
        nbytes: bytes of all contents, those that were inline included.
        tensors: number of tensors, each tied name counted.
        frames: the containers to be, parents before what they hold.
        slots: the values that have a content of their own.
    """

    __slots__ = ("frames", "nbytes", "reads", "slots", "tensors")

    def __init__(
        self,
        frames: list[Frame],
        slots: list[Slot],
        reads: list[Read],
        nbytes: int,
        tensors: int,
    ) -> None:
        self.frames = frames
        self.slots = slots
        self.reads = reads
        self.nbytes = nbytes
        self.tensors = tensors

    def allocate(self) -> None:
        """Take the memory for all contents, those aside that were mapped.

        Raises:
            MemoryError: there is not enough.
        """
        with without_gc():
            for i, slot in enumerate(self.slots):
                try:
                    slot.allocate()
                except (RuntimeError, MemoryError) as e:  # torch says it with a RuntimeError
                    wanted = self.nbytes - sum(s.nbytes for s in self.slots[:i])
                    raise MemoryError(f"no memory for {wanted} more bytes of the state: {e}") from e

    def finish(self, *, readonly: bool = False) -> Any:
        """Put the state together; call once, when all is read.

        ``readonly`` marks numpy arrays so (torch has no such mark).

        Raises:
            EncodingError: what was read is no state.
            UnsupportedFeature: it needs what is not here.
        """
        if readonly:
            for slot in self.slots:
                slot.readonly = True
        data = self.data()
        frames, self.frames = self.frames, []
        for frame in reversed(frames):  # children stand after their parents
            made = frame.complete(data)
            if frame.parent is None:
                return made
            frame.parent.values[frame.index] = made
        raise ValueError("a plan can be finished once")

    def replace(self, new: Slot) -> None:
        """Have another slot in the place of the plan's only value."""
        [frame] = self.frames
        frame.pending = [(0, new)]
        self.slots = [new]
        for read in self.reads:
            read.slot = new

    def data(self) -> dict[int, bytes]:
        """What was read of contents whose length was not known, by the slot's ``id``."""
        return {id(read.slot): read.data for read in self.reads if read.data is not None}


class Frame:
    """A container to be."""

    __slots__ = (
        "_names",
        "_slots",
        "chosen",
        "depth",
        "index",
        "inner",
        "keys",
        "node",
        "parent",
        "pending",
        "prefix",
        "values",
    )

    def __init__(self, node: TreeNode, parent: Frame | None, index: int, prefix: str) -> None:
        self.node = node
        self.parent = parent
        self.index = index  # among the parent's values
        self.prefix = prefix  # the path, of a frame without a parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.chosen: Chosen | None = None  # where a selection has a say in it
        self.inner: dict[int, Chosen] = {}  # and what it says of entries
        self.keys: list[Any] | None = None
        self.values: list[Any] = []
        self.pending: list[tuple[int, Any]] = []  # values that wait for their content
        self._names: list[str] | None = None
        self._slots: dict[int, Any] | None = None

    def name(self, index: int) -> str:
        """The path component of an entry (past the last one: of metadata)."""
        if self._names is None:
            self._names = [*child_names(self.node), METADATA]
        return self._names[index]

    def path(self, index: int | None) -> str:
        """The key path of a value, or of the container itself."""
        parts = []
        frame: Frame | None = self
        while frame is not None:
            if index is not None and frame.node.container != "value":
                parts.append(frame.name(index))
            if frame.parent is None and frame.prefix:
                parts.append(frame.prefix)
            index = frame.index
            frame = frame.parent
        return keypath.join(parts[::-1])

    def names(self) -> list[str]:
        """The path component of each entry."""
        self.name(0)
        assert self._names is not None
        return self._names[: len(self.node.items)]

    def slot_at(self, index: int) -> Any:
        """The slot that will make a value, or None where the value is there."""
        if self._slots is None:
            self._slots = dict(self.pending)
        return self._slots.get(index)

    @property
    def pruned(self) -> bool:
        """Whether entries may have been left out of it."""
        return self.chosen is not None and not self.chosen.taken

    @property
    def empty(self) -> bool:
        """Whether all of its entries were left out."""
        return self.pruned and all(value is _LEFT_OUT for value in self.values)

    def complete(self, data: dict[int, bytes]) -> Any:
        """The container, what it holds being complete; ``data`` as :meth:`Plan.data` has it.

        Raises:
            EncodingError, UnsupportedFeature: it cannot be made.
        """
        for index, slot in self.pending:
            self.values[index] = self.value(index, slot, data)
        try:
            return self.make()
        except EncodingError as e:
            raise _at(self.path(None), e) from e

    def value(self, index: int, slot: Any, data: dict[int, bytes]) -> Any:
        """A value that waited for its content."""
        try:
            return slot.finish(data.get(id(slot)))
        except EncodingError as e:
            raise _at(self.path(index), e) from e
        except UnsupportedFeature as e:
            raise _unsupported(self.path(index), e) from e

    def make(self) -> Any:
        """The container, all values being there."""
        node, values, keys = self.node, self.values, self.keys
        container = node.container
        if self.pruned and keys is not None:
            kept = [i for i in range(len(keys)) if values[i] is not _LEFT_OUT]
            values = [values[i] for i in (*kept, *range(len(keys), len(values)))]
            keys = [keys[i] for i in kept]
        elif self.pruned and container in ("set", "frozenset"):
            values = [value for value in values if value is not _LEFT_OUT]
        elif self.pruned:
            values = [OMITTED if value is _LEFT_OUT else value for value in values]
        if container == "list":
            return values
        if container == "tuple":
            return tuple(values)
        if container == "value":
            return values[0]
        if container in ("set", "frozenset"):
            try:
                made = set(values) if container == "set" else frozenset(values)
            except TypeError as e:
                raise EncodingError(f"a set of what cannot be in one: {e}") from e
            expect(len(made) == len(values), "a set with the same element twice")
            return made
        assert keys is not None
        metadata = values.pop() if len(values) > len(keys) else None
        items = zip(keys, values, strict=True)
        if container == "dict":
            return dict(items)
        if container == "defaultdict":
            return defaultdict(FACTORIES[node.extra] if node.extra else None, items)
        if container == "counter":
            counter: Counter[Any] = Counter()
            dict.update(counter, items)
            return counter
        ordered = OrderedDict(items)
        if node.extra is not None:
            ordered._metadata = metadata  # type: ignore[attr-defined]
        return ordered


def plan_state(
    value: Any,
    fetch: Fetch,
    chunk_size: int,
    *,
    path: str = "",
    max_bytes: int | None = None,
    selection: Selection | None = None,
    device: Any = None,
    allocate: bool = True,
) -> Plan:
    """Check a tree, or the subtree below one of its values; take the memory for its contents.

    What a selection leaves out is neither fetched nor checked.  Paths in ``selection`` and
    ``device`` begin at ``value``.

    Args:
        value: a root's :class:`Digest`, a :class:`TreeNode`, or a value as it stands in one.
        fetch: gives the verified bytes of an object.
        chunk_size: the store's.
        path: the value's own key path, for messages.
        max_bytes: refuse, before any memory is taken, contents of more bytes in all (what is tied
            counts once): the checkpoint's ``logical_bytes``.
        selection: what is meant of it; None: all.
        device: where tensors go, see :class:`castore.state.devices.Placement`; None: to the CPU.
        allocate: False leaves that to a later :meth:`Plan.allocate`.

    Raises:
        EncodingError: not a state; the text names the key path.
        UnsupportedFeature: a state that this castore, torch or machine cannot make.
        UsageError: a pattern of the selection matches nothing, or a device is none.
        MemoryError: there is not enough.
    """
    walk = _Walk(fetch, chunk_size, path, max_bytes, selection)
    if device is not None:
        walk.placement = _needs("torch", "devices").Placement(device)
    with without_gc():
        walk.run(value)
    if selection is not None:
        selection.check()
    plan = Plan(walk.frames, walk.slots, walk.reads, walk.nbytes, walk.tensors)
    if allocate:
        plan.allocate()
    return plan


def _at(path: str, error: Exception) -> EncodingError:
    return EncodingError(f"{keypath.display(path)}: {error}")


def _unsupported(path: str, error: UnsupportedFeature) -> UnsupportedFeature:
    return UnsupportedFeature(f"{keypath.display(path)}: {error.message}", path=path)


class _Walk:
    def __init__(
        self,
        fetch: Fetch,
        chunk_size: int,
        path: str,
        max_bytes: int | None,
        selection: Selection | None,
    ) -> None:
        self.fetch = fetch
        self.selection = selection
        self.placement: Any = None
        self.chunk_size = chunk_size
        self.path = path
        self.max_bytes = max_bytes
        self.frames: list[Frame] = []
        self.slots: list[Slot] = []
        self.reads: list[Read] = []
        self.nbytes = 0
        self.tensors = 0
        self.values_left = MAX_VALUES
        self.tensor_slots: Any = None
        self.array_slots: Any = None

    def run(self, value: Any) -> None:
        frame: Frame | None = None
        index: int | None = None
        try:
            if isinstance(value, Digest):
                top: TreeNode | None = read_tree(value, self.fetch, MAX_VALUES)
            else:
                top = value if isinstance(value, TreeNode) else child_node(value, self.fetch)
            if top is None:
                top = TreeNode("value", 0, None, [value])
            chosen = None if self.selection is None else self.selection.root()
            stack = [self.enter(top, None, 0, chosen)]
            while stack:
                frame, items = stack[-1]
                for index, item in items:
                    if type(item) is not list:
                        plain.check_native(item)
                        frame.values[index] = item
                        continue
                    tag = item[0] if item else None
                    if type(tag) is not str:
                        raise EncodingError("not a value")
                    if tag not in ("node", "tree"):
                        frame.values[index] = self.leaf(tag, item, frame, index)
                        continue
                    node = child_node(item, self.fetch, self.values_left)
                    expect(node is not None, "not a container")
                    assert node is not None
                    expect(node.container != "value", "a value that only a root may be")
                    expect(frame.node.container != "value", "a container where a value belongs")
                    expect(len(stack) < MAX_DEPTH, f"containers nested over {MAX_DEPTH} deep")
                    stack.append(self.enter(node, frame, index, frame.inner.pop(index, None)))
                    break
                else:
                    stack.pop()
                    self.leave(frame)
        except EncodingError as e:
            raise _at(frame.path(index) if frame else self.path, e) from e
        except UnsupportedFeature as e:
            raise _unsupported(frame.path(index) if frame else self.path, e) from e

    def enter(
        self, node: TreeNode, parent: Frame | None, index: int, chosen: Chosen | None
    ) -> tuple[Frame, Iterator[tuple[int, Any]]]:
        """Check a container, and begin with its values."""
        frame = Frame(node, parent, index, self.path)
        self.values_left -= len(node.items)
        expect(self.values_left >= 0, f"more than {MAX_VALUES} values")
        values = node.items
        if node.container in MAPPINGS:
            values = [item[1] for item in node.items]
            keys = frame.keys = [plain.decode_key(item[0], self.scalar) for item in node.items]
            try:
                different = len(dict.fromkeys(keys))
            except TypeError as e:
                raise EncodingError(f"a key that cannot be one: {e}") from e
            expect(different == len(keys), "the same key twice")
        elif node.container == "value":
            expect(len(values) == 1, "a root value is one value")
        extra = node.extra
        if node.container == "odict" and extra is not None:
            if extra != NO_METADATA:
                values = [*values, extra]
        elif node.container == "defaultdict":
            known = extra is None or (isinstance(extra, str) and extra in FACTORIES)
            expect(known, "a defaultdict whose factory is no plain type")
        else:
            expect(extra is None, f"a {node.container} with something extra")
        self.frames.append(frame)
        if self.selection is not None and chosen is not None:
            return frame, self.choose(self.selection, chosen, frame, values)
        frame.values = [None] * len(values)
        return frame, iter(enumerate(values))

    def choose(
        self, selection: Selection, chosen: Chosen, frame: Frame, values: list[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Those values of a container that are meant, or may hold what is."""
        count = len(frame.node.items)
        frame.values = [None if chosen.taken else _LEFT_OUT] * len(values)
        frame.chosen = chosen
        if frame.node.container == "value":  # no name leads to it: it is the root itself
            if chosen.taken:
                yield 0, values[0]
            return
        frame.chosen = chosen = selection.entered(
            chosen, frame.depth, not count, lambda: (frame.path(None), frame.names())
        )
        for index in range(count):
            value = values[index]
            inner = selection.inside(chosen, frame.name(index))
            container = type(value) is list and value[:1] in (["node"], ["tree"])
            if inner.taken or (inner.states and container):
                if container and inner != WHOLE:
                    frame.inner[index] = inner
                yield index, value
        if len(values) > count and not frame.empty:  # metadata belong to the container as such
            yield count, values[count]

    def leave(self, frame: Frame) -> None:
        """All of a container was looked at: it stays if anything in it does."""
        if frame.empty:
            self.frames.pop()
        elif frame.parent is not None:
            frame.parent.values[frame.index] = None

    # -- values -------------------------------------------------------------------------------

    def scalar(self, tag: str) -> ScalarDecoder | None:
        """How a scalar with that tag is read; None for a tag that is not known."""
        found = plain.SCALAR_DECODERS.get(tag)
        if found is not None:
            return found
        if tag.startswith("torch."):
            return _needs("torch", "torch_values").SCALAR_DECODERS.get(tag)  # type: ignore[no-any-return]
        if tag == "npscalar":
            return _needs("numpy", "arrays").SCALAR_DECODERS.get(tag)  # type: ignore[no-any-return]
        return None

    def leaf(self, tag: str, value: list[Any], frame: Frame, index: int) -> Any:
        """The value, or None where a slot will make it."""
        arity = _ARITY.get(tag)
        if arity is None:
            decoder = self.scalar(tag)
            if decoder is None:
                raise UnsupportedFeature(f"a value of kind {tag!r}, which this castore cannot read")
            return decoder(value)
        if len(value) != arity:
            raise EncodingError(f"a {tag} is an array of {arity}")
        slot, new = self.slot(tag, value)
        frame.pending.append((index, slot))
        if new:
            if self.placement is not None and tag == "tensor":
                path = frame.path(index)[len(self.path) :].removeprefix("/")
                slot.device = self.placement.device_of(path, slot)
            self.nbytes += slot.nbytes
            if self.max_bytes is not None and self.nbytes > self.max_bytes:
                raise EncodingError(f"more than {self.max_bytes} bytes in all")
            self.slots.append(slot)
            if slot.content.inline is None:
                self.reads.append(Read(slot, frame, index))
        return None

    def slot(self, tag: str, value: list[Any]) -> tuple[Any, bool]:
        """The slot of a value with a content, and whether it has a buffer of its own."""
        if tag == "tensor":
            self.tensors += 1
            if self.tensor_slots is None:
                self.tensor_slots = _needs("torch", "tensor_slots").TensorSlots(self.chunk_size)
            return self.tensor_slots.slot(value, self.fetch)  # type: ignore[no-any-return]
        if tag == "ndarray":
            if self.array_slots is None:
                self.array_slots = _needs("numpy", "array_slots").ArraySlots(self.chunk_size)
            return self.array_slots.slot(value, self.fetch)  # type: ignore[no-any-return]
        if tag == "torch.Generator":
            make = _needs("torch", "torch_values").make_generator(value)
        else:
            make = plain.content_decoder(tag)
        room = MAX_NBYTES if self.max_bytes is None else self.max_bytes
        content = read_content(value[CONTENT_AT[tag]], self.fetch, room // self.chunk_size + 1)
        return TextSlot.of(content, make, self.chunk_size), True


def _needs(library: str, module: str) -> Any:
    """A module of this folder that imports torch or numpy."""
    try:
        return import_module(f"castore.state.{module}")
    except ModuleNotFoundError as e:
        raise UnsupportedFeature(f"this value needs {library}, which is not installed") from e
