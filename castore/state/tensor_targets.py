"""Tensors of the caller's that a load fills: which fit, and how verified bytes get into them.

Filled in place, whatever their strides and device: parameters keep being parameters, views keep
being views, and autograd is told that they changed.  Imports torch.
"""

from __future__ import annotations

from typing import Any

import torch

from castore.state.collector import Refused
from castore.state.targets import Binding, Extent
from castore.state.tensor_sink import write_bytes
from castore.state.tensor_slots import TensorSlot
from castore.state.tensors import memory_of

__all__ = ["Target", "extent", "problem"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def problem(slot: TensorSlot, target: Any) -> str | None:
    """Why a tensor of the checkpoint cannot go into ``target``, or None."""
    want = slot.describe()
    if not isinstance(target, torch.Tensor):
        return f"{want} in the checkpoint, a {type(target).__name__} in the target"
    if type(target) not in _PLAIN or target.layout is not torch.strided or target.is_quantized:
        kind = f"{type(target).__name__} of layout {target.layout}"
        return f"{want} in the checkpoint; this version fills plain dense tensors, not a {kind}"
    name = str(target.dtype).removeprefix("torch.")
    if target.dtype is not slot.head.entry.dtype or tuple(target.shape) != slot.head.shape:
        have = f"a {name} tensor of shape {tuple(target.shape)}"
        return f"{want} in the checkpoint, {have} in the target"
    if target.is_conj() or target.is_neg():
        return "a lazily conjugated or negated view in the target: give what it is a view of"
    if any(s == 0 and n > 1 for n, s in zip(target.shape, target.stride(), strict=True)):
        return "an expanded view in the target, whose items share memory: give what it shows"
    try:
        memory_of(target, target.itemsize, slot.nbytes)
    except Refused as e:
        return f"{e.what} in the target: it cannot be filled"
    return None


def extent(target: torch.Tensor) -> Extent | None:
    """Where a tensor that fits has its memory; None where it has none."""
    if not target.numel():
        return None
    steps = zip(target.shape, target.stride(), strict=True)
    length = (1 + sum((n - 1) * stride for n, stride in steps)) * target.itemsize
    start = target.data_ptr()
    view = (start, target.dtype, target.shape, target.stride())
    dense = length == target.numel() * target.itemsize
    return Extent(str(target.device), start, start + length, view, dense)


class Target:
    """The tensors of the target that one content goes to."""

    wanted = None
    mappable = 0

    def __init__(self, slot: TensorSlot, binding: Binding) -> None:
        self.content = slot.content
        self.grid = slot.grid
        self.nbytes = slot.nbytes
        self.readonly = False
        self.binding = binding
        self.tensors: list[torch.Tensor] = []
        self.views: set[Any] = set()

    def add(self, target: torch.Tensor) -> None:
        """One more tensor for the same content."""
        where = extent(target)
        if where is not None and where.view not in self.views:  # tied in the target too: once
            self.views.add(where.view)
            self.tensors.append(target.detach())

    def allocate(self) -> None:
        """Nothing: the memory is the caller's."""

    def adopt(self, memory: memoryview) -> None:
        """Never called: the memory is the caller's."""
        raise ValueError("a target is not mapped")

    def out(self) -> None:
        """None: nothing gets into the caller's memory before it is verified."""
        return

    def put(self, start: int, data: memoryview) -> None:
        """Copy verified bytes into every tensor."""
        self.binding.touched = True
        for tensor in self.tensors:
            write_bytes(tensor, start, data)

    def done(self) -> None:
        """Graphs that saved the old values are to know that these are gone."""
        for tensor in self.tensors:
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)

    def finish(self, data: bytes | None) -> Any:
        """Never called: the value is there already."""
        raise ValueError("a target is no new value")
