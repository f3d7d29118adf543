"""Numpy arrays of the caller's that a load fills: which fit, and how verified bytes get into them.

Imports numpy.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from castore.state.array_slots import ArraySlot
from castore.state.arrays import assign, little
from castore.state.blocks import blocks
from castore.state.descr import is_simple
from castore.state.targets import Binding, Extent

__all__ = ["Target", "extent", "problem"]


def problem(slot: ArraySlot, target: Any) -> str | None:
    """Why an array of the checkpoint cannot go into ``target``, or None."""
    want = slot.describe()
    if not isinstance(target, np.ndarray):
        return f"{want} in the checkpoint, a {type(target).__name__} in the target"
    if target.dtype != slot.dtype or target.shape != slot.shape:
        have = f"a numpy array of {target.dtype} and shape {target.shape}"
        return f"{want} in the checkpoint, {have} in the target"
    if not target.flags.writeable:
        return "a read-only array in the target"
    if any(s == 0 and n > 1 for n, s in zip(target.shape, target.strides, strict=True)):
        return "a broadcast array in the target, whose items share memory: give what it shows"
    return None


def extent(target: npt.NDArray[Any]) -> Extent | None:
    """Where an array that fits has its memory; None where it has none."""
    if not target.nbytes:
        return None
    start, stop = byte_bounds(target)
    address = target.__array_interface__["data"][0]
    view = (address, target.dtype, target.shape, target.strides)
    return Extent("cpu", start, stop, view, stop - start == target.nbytes)


class Target:
    """The arrays of the target that one content goes to."""

    wanted = None
    mappable = 0

    def __init__(self, slot: ArraySlot, binding: Binding) -> None:
        self.content = slot.content
        self.grid = slot.grid
        self.nbytes = slot.nbytes
        self.readonly = False
        self.binding = binding
        self.arrays: list[npt.NDArray[Any]] = []
        self.lock = threading.Lock()

    def add(self, target: npt.NDArray[Any]) -> None:
        """One more array for the same content."""
        if not any(target is array for array in self.arrays):
            self.arrays.append(target)

    def allocate(self) -> None:
        """Nothing: the memory is the caller's."""

    def adopt(self, memory: memoryview) -> None:
        """Never called: the memory is the caller's."""
        raise ValueError("a target is not mapped")

    def out(self) -> None:
        """None: nothing gets into the caller's memory before it is verified."""
        return

    def put(self, start: int, data: memoryview) -> None:
        """Copy verified bytes into every array."""
        self.binding.touched = True
        for array in self.arrays:
            if is_simple(array.dtype) and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8).data[start : start + len(data)] = data
            else:
                # Two chunks may share an item: one thread at a time.
                with self.lock:
                    _write(array, start, data)

    def done(self) -> None:
        """Nobody need be told."""

    def finish(self, data: bytes | None) -> Any:
        """Never called: the value is there already."""
        raise ValueError("a target is no new value")


def _write(array: npt.NDArray[Any], start: int, data: memoryview) -> None:
    """Write canonical bytes into an array of any strides, byte order and fields."""
    dtype = little(array.dtype)
    for block in blocks(array.shape, dtype.itemsize, start, start + len(data)):
        index: Any = (*block.index, ...)  # the dots keep a single item an array
        part = array[index]
        have = data[block.start : block.start + block.nbytes]
        if block.last >= 0:
            rows = part[block.first : block.last]
            assign(rows, np.frombuffer(have, np.uint8).view(dtype).reshape(rows.shape))
        else:
            item = np.zeros(dtype.itemsize, np.uint8)
            assign(item.view(dtype).reshape(()), part)
            item[block.skip : block.skip + block.nbytes] = np.frombuffer(have, np.uint8)
            assign(part, item.view(dtype).reshape(()))
