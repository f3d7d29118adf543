"""A state that is there already, to be filled from a checkpoint: does it fit, and what goes where.

:func:`bind_target` walks the plan and the target together, touches nothing, and either lists every
place where the two differ or says what to read and what to replace.  Tensors and arrays keep their
memory; plain values (numbers, texts, lists and tuples of them) are replaced in the dict or list
that holds them.  ``tensor_targets`` and ``array_targets`` know torch and numpy.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from castore.model import keypath
from castore.model.objects import MAPPINGS
from castore.state.advice import type_name
from castore.state.contents import METADATA
from castore.state.plan import Frame, Plan, Read
from castore.state.slots import Slot, TextSlot

__all__ = ["Binding", "Mismatch", "bind_target"]


class Mismatch(NamedTuple):
    """A place where checkpoint and target differ."""

    path: str
    detail: str

    def __str__(self) -> str:
        return f"{keypath.display(self.path)}: {self.detail}"


class Extent(NamedTuple):
    """Where the memory of a tensor or array of the target lies.

    Attributes:
        device: addresses of different devices have nothing to do with one another.
        start: first byte.
        stop: past the last byte.
        view: equal for two that show the same memory in the same way.
        dense: it has every byte from first to last.
    """

    device: str
    start: int
    stop: int
    view: tuple[Any, ...]
    dense: bool


class TargetSlot(Slot, Protocol):
    """A slot that fills what the caller owns."""

    def add(self, target: Any) -> None:
        """One more tensor or array to fill with the same content."""

    def done(self) -> None:
        """All was filled: tell whoever must know that it changed."""


@dataclass(slots=True)
class _Replacement:
    """A plain value of the target to be replaced: by what, and in what."""

    frame: Frame  # that holds the value in the checkpoint
    index: int
    child: Frame | None  # the value, if it is a container
    holder: Any  # the target's dict or list; or a list whose items are replaced
    key: Any = None
    attribute: bool = False  # an OrderedDict's metadata
    contents: bool = False  # the items of ``holder`` itself
    value: Any = None


@dataclass(slots=True)
class Binding:
    """What fills a target.

    Attributes:
        mismatches: where it does not fit; nothing may be done unless there is none.
        skipped: what only one of the two has, where that is allowed.
        texts: contents to read first, that do not touch the target.
        reads: contents that go into the target's own memory.
        touched: whether anything in the target was changed.
    """

    mismatches: list[Mismatch] = field(default_factory=list)
    skipped: list[Mismatch] = field(default_factory=list)
    texts: list[Read] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    touched: bool = False
    _filled: dict[int, TargetSlot] = field(default_factory=dict)  # by the id of the plan's slot
    _replacements: list[_Replacement] = field(default_factory=list)
    _anew: list[Frame] = field(default_factory=list)  # parents before children

    def prepare(self) -> None:
        """All texts are read: make the new plain values.  Touches nothing.

        Raises:
            EncodingError, UnsupportedFeature: one cannot be made.
        """
        data = {id(read.slot): read.data for read in self.texts if read.data is not None}
        made = _complete(self._anew, data)
        for item in self._replacements:
            frame, index = item.frame, item.index
            slot = frame.slot_at(index)
            if item.child is not None:
                item.value = made[id(item.child)]
            elif slot is not None:
                item.value = frame.value(index, slot, data)
            else:
                item.value = frame.values[index]

    def finish(self) -> None:
        """All that was read is in place: add what stood in the checkpoint's trees themselves."""
        for slot in self._filled.values():
            if slot.content.inline:
                slot.put(0, memoryview(bytearray(slot.content.inline)))
            slot.done()
        for item in self._replacements:
            self.touched = True
            if item.contents:
                item.holder[:] = item.value
            elif item.attribute:
                item.holder._metadata = item.value
            else:
                item.holder[item.key] = item.value


def bind_target(plan: Plan, target: Any, *, strict: bool) -> Binding:
    """Compare a plan (without memory) with a target, and bind its contents to what they fill.

    With ``strict`` False, keys that only one of the two has are skipped, not mismatches.
    """
    match = _Match(plan, strict)
    match.run(target)
    return match.binding


def _complete(frames: list[Frame], data: dict[int, bytes]) -> dict[int, Any]:
    """Containers made, by the ``id`` of the frame; ``frames`` has parents before children."""
    made: dict[int, Any] = {}
    for frame in reversed(frames):
        value = made[id(frame)] = frame.complete(data)
        if frame.parent is not None:
            frame.parent.values[frame.index] = value
    return made


class _Match:
    def __init__(self, plan: Plan, strict: bool) -> None:
        self.plan = plan
        self.strict = strict
        self.binding = Binding()
        self.children: dict[tuple[int, int], Frame] = {
            (id(f.parent), f.index): f for f in plan.frames if f.parent is not None
        }
        self.bare: set[int] = set()  # frames without a tensor or array, by id
        self.plain: set[int] = set()  # of these, those without a mapping
        for frame in reversed(plan.frames):
            self.classify(frame)
        self.read_of = {id(read.slot): read for read in plan.reads}
        self.extents: list[tuple[Extent, str, Any]] = []  # with path and slot

    def classify(self, frame: Frame) -> None:
        inner = [c for i in range(len(frame.values)) if (c := self.child(frame, i)) is not None]
        if not all(isinstance(slot, TextSlot) for _, slot in frame.pending):
            return
        if all(id(c) in self.bare for c in inner):
            self.bare.add(id(frame))
            if frame.node.container not in MAPPINGS and all(id(c) in self.plain for c in inner):
                self.plain.add(id(frame))

    def child(self, frame: Frame, index: int) -> Frame | None:
        return self.children.get((id(frame), index))

    def differ(self, path: str, detail: str) -> None:
        self.binding.mismatches.append(Mismatch(path, detail))

    def lacking(self, path: str, detail: str) -> None:
        into = self.binding.mismatches if self.strict else self.binding.skipped
        into.append(Mismatch(path, detail))

    def run(self, target: Any) -> None:
        root = self.plan.frames[0]
        if root.node.container == "value":
            list(self.value(root, 0, target, None))  # which holds no container
        elif id(root) in self.plain:
            self.replace(root, None, target, None)
        else:
            stack = [(root, target)]
            while stack:
                frame, holder = stack.pop()
                inner = list(self.container(frame, holder))
                stack.extend(reversed(inner))
        self.find_shared()

    # -- containers -------------------------------------------------------------------------------

    def container(self, frame: Frame, target: Any) -> Iterator[tuple[Frame, Any]]:
        """Compare one container with its counterpart; gives the containers in it."""
        kind = frame.node.container
        if kind in MAPPINGS:
            if not isinstance(target, dict):
                self.differ(frame.path(None), f"a dict in the checkpoint, {_kind(target)} in the "
                            "target")  # fmt: skip
                return
            yield from self.mapping(frame, target)
            return
        fits = isinstance(target, list if kind == "list" else tuple)
        if not fits or kind not in ("list", "tuple"):
            self.differ(frame.path(None), f"a {kind} in the checkpoint, {_kind(target)} in the "
                        "target")  # fmt: skip
            return
        found, have = len(frame.values), len(target)
        if found != have:
            path = frame.path(None)
            self.lacking(path, f"{found} items in the checkpoint, {have} in the target")
        for index in range(min(found, have)):
            holder = (target, index) if kind == "list" else None
            yield from self.value(frame, index, target[index], holder)

    def mapping(self, frame: Frame, target: dict[Any, Any]) -> Iterator[tuple[Frame, Any]]:
        keys = frame.keys or []
        for index, key in enumerate(keys):
            if key in target:
                yield from self.value(frame, index, target[key], (target, key))
            else:
                self.lacking(frame.path(index), "in the checkpoint, not in the target")
        known = set(keys)
        extra = [i for i, key in enumerate(target) if key not in known]
        if extra:
            names = keypath.names(target)
            prefix = frame.path(None)
            for i in extra:
                path = f"{prefix}/{names[i]}" if prefix else names[i]
                self.lacking(path, "in the target, not in the checkpoint")
        if len(frame.values) > len(keys) and isinstance(target, OrderedDict):
            self.metadata(frame, len(keys), target)

    def metadata(self, frame: Frame, index: int, target: OrderedDict[Any, Any]) -> None:
        child = self.child(frame, index)
        slot = frame.slot_at(index)
        if (child is None or id(child) in self.bare) and isinstance(slot, TextSlot | None):
            item = _Replacement(frame, index, child, target, attribute=True)
            self.replacing(item, slot)
        else:
            path = f"{frame.path(None)}/{METADATA}".removeprefix("/")
            self.differ(path, "metadata that holds tensors cannot be replaced in place: load it")

    # -- values -----------------------------------------------------------------------------------

    def value(
        self, frame: Frame, index: int, target: Any, holder: tuple[Any, Any] | None
    ) -> Iterator[tuple[Frame, Any]]:
        """Compare one value; gives it back if it is a container to be looked into."""
        child = self.child(frame, index)
        if child is not None:
            if id(child) in self.plain and _is_plain(target):
                self.replace(frame, index, target, holder)
            else:
                yield child, target
            return
        slot = frame.slot_at(index)
        if slot is None or isinstance(slot, TextSlot):
            if _is_plain(target):
                self.replace(frame, index, target, holder)
            else:
                kind = _kind(frame.values[index]) if slot is None else "a plain value"
                self.differ(frame.path(index), f"{kind} in the checkpoint, {_kind(target)} in the "
                            "target")  # fmt: skip
            return
        self.fill(frame, index, slot, target)

    def replace(
        self, frame: Frame, index: int | None, target: Any, holder: tuple[Any, Any] | None
    ) -> None:
        """Note that a plain value is to be replaced (``index`` None: the frame is the value)."""
        child = frame if index is None else self.child(frame, index)
        slot = None if index is None else frame.slot_at(index)
        if child is not None and child.node.container == "list" and isinstance(target, list):
            item = _Replacement(frame, child.index, child, target, contents=True)
        elif holder is not None and index is not None:
            item = _Replacement(frame, index, child, *holder)
        else:
            self.compare(frame, index, child, slot, target)
            return
        self.replacing(item, slot)

    def replacing(self, item: _Replacement, slot: Any) -> None:
        """Have what a replacement needs read and made."""
        self.binding._replacements.append(item)
        frames = [] if item.child is None else self.below(item.child)
        self.binding._anew += frames
        slots = [slot] if slot is not None else []
        for each in (*slots, *(s for frame in frames for _, s in frame.pending)):
            if each.content.inline is None:
                self.binding.texts.append(self.read_of[id(each)])

    def below(self, frame: Frame) -> list[Frame]:
        """A frame and all in it, parents first."""
        found, stack = [], [frame]
        while stack:
            frame = stack.pop()
            found.append(frame)
            inner = (self.child(frame, i) for i in range(len(frame.values)))
            stack.extend(c for c in inner if c is not None)
        return found

    def compare(
        self, frame: Frame, index: int | None, child: Frame | None, slot: Any, target: Any
    ) -> None:
        """A plain value that stands where nothing can be replaced must be equal already."""
        path = frame.path(index)
        frames = [] if child is None else self.below(child)
        slots = [slot] if slot is not None else []
        slots += [s for each in frames for _, s in each.pending]
        if any(s.content.inline is None for s in slots):
            self.differ(path, "a long value that cannot be replaced in place")
            return
        if child is not None:
            value = _complete(frames, {})[id(child)]
        else:
            assert index is not None
            value = frame.values[index] if slot is None else frame.value(index, slot, {})
        if not _same(value, target):
            self.differ(path, f"{_short(value)} in the checkpoint, {_short(target)} in the target, "
                        "which cannot be replaced where it stands")  # fmt: skip

    def fill(self, frame: Frame, index: int, slot: Any, target: Any) -> None:
        """A tensor or array: bind its content to the target's memory."""
        first = getattr(slot, "slot", slot)  # of those that are tied
        module = import_module(f"castore.state.{first.kind}_targets")
        path = frame.path(index)
        problem = module.problem(first, target)
        if problem is not None:
            self.differ(path, problem)
            return
        binding = self.binding
        extent: Extent | None = module.extent(target)
        if extent is not None:
            self.extents.append((extent, path, first))
        found = binding._filled.get(id(first))
        if found is None:
            slot_of_target: TargetSlot = module.Target(first, binding)
            found = binding._filled[id(first)] = slot_of_target
            read = self.read_of.get(id(first))
            if read is not None:
                read.slot = found
                binding.reads.append(read)
        found.add(target)

    def find_shared(self) -> None:
        """Different contents must not go to the same memory.

        Found where two show it in the same way, or where both have every byte from first to last;
        strided views that lie between one another are the caller's to know.
        """
        views: dict[Any, tuple[str, Any]] = {}
        dense: list[tuple[Extent, str]] = []
        for extent, path, slot in self.extents:
            other, its = views.setdefault((extent.device, extent.view), (path, slot))
            if other is path:
                if extent.dense:
                    dense.append((extent, path))
            elif slot.content != its.content:
                self.shared(path, other)
        dense.sort(key=lambda item: item[0][:3])
        reached: tuple[Extent, str] | None = None
        for item in dense:
            extent, path = item
            if reached is not None and reached[0].device == extent.device:
                if extent.start < reached[0].stop:
                    self.shared(path, reached[1])
                if extent.stop <= reached[0].stop:
                    continue
            reached = item

    def shared(self, path: str, other: str) -> None:
        self.differ(path, f"shares memory with {keypath.display(other)} in the target, but not "
                    "its values in the checkpoint")  # fmt: skip


def _torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_plain(value: Any) -> bool:
    """Whether a value of the target may be replaced as a whole."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            if id(value) not in seen:
                seen.add(id(value))
                stack.extend(value)
        elif isinstance(value, dict) or _torch_tensor(value) or _array(value) or _is_module(value):
            return False
    return True


def _is_module(value: Any) -> bool:
    return callable(getattr(type(value), "state_dict", None))


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return repr(a) == repr(b) or (isinstance(a, (set, frozenset)) and a == b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if _torch_tensor(value):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if _array(value):
        return f"a numpy array of {value.dtype} and shape {value.shape}"
    if value is None:
        return "None"
    if _is_module(value):
        return f"a {type_name(type(value))} (give its state_dict())"
    return f"a {type_name(type(value))}"
