"""Loading numpy arrays: checked heads, private memory, ties, byte order.

Imports numpy; ``plan`` imports it only if a tree has an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from castore.model.grid import Grid
from castore.model.objects import Content, Fetch, read_content
from castore.state.arrays import from_canonical
from castore.state.descr import parse_dtype
from castore.state.plain import expect
from castore.state.slots import check_chunks, check_tie, read_shape

__all__ = ["ArraySlot", "ArraySlots"]

_MAX_DIMENSIONS = 64  # numpy's own limit


class ArraySlot:
    """The one buffer of an array, or of all that are tied to it."""

    __slots__ = (
        "array",
        "content",
        "dtype",
        "finished",
        "grid",
        "nbytes",
        "readonly",
        "shape",
    )

    kind = "array"
    wanted = None  # of its chunks: all
    mappable = 0

    def __init__(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], grid: Grid, content: Content
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.grid = grid
        self.nbytes = grid.nbytes
        self.content = content
        self.array: npt.NDArray[Any] | None = None
        self.finished = False
        self.readonly = False

    def allocate(self) -> None:
        """Take the array's memory."""
        # numpy.empty would widen texts of length 0; numpy.ndarray takes the dtype as it is.
        self.array = np.ndarray(self.shape, self.dtype)
        out = self.out() if self.content.inline else None
        if out is not None and self.content.inline:
            out[:] = self.content.inline

    def out(self) -> memoryview:
        """The array's memory."""
        assert self.array is not None
        if not self.nbytes:
            return memoryview(bytearray())
        return self.array.reshape(-1).view(np.uint8).data

    def adopt(self, memory: memoryview) -> None:
        """Never called: arrays are read, since their byte order may have to be turned."""
        raise ValueError("an array is not mapped")

    def put(self, start: int, data: memoryview) -> None:
        """Copy verified bytes into place."""
        self.out()[start : start + len(data)] = data

    def describe(self) -> str:
        """Dtype and shape in words."""
        return f"a numpy array of {self.dtype} and shape {self.shape}"

    def of_shape(self, shape: tuple[int, ...]) -> ArraySlot:
        """A slot for an array of the same dtype and another shape, without a content."""
        grid = Grid.of(shape, self.dtype.itemsize, self.grid.chunk_size)
        return ArraySlot(self.dtype, shape, grid, Content(None, ()))

    def finish(self, data: bytes | None) -> npt.NDArray[Any]:
        """The array, in its own byte order."""
        assert self.array is not None
        if not self.finished:
            from_canonical(self.array)
            self.array.flags.writeable = not self.readonly
            self.finished = True
        return self.array


class ArraySlots:
    """Makes the slots of one plan's arrays."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.ties: dict[int, tuple[ArraySlot, Any]] = {}

    def slot(self, value: list[Any], fetch: Fetch) -> tuple[ArraySlot, bool]:
        """The slot of an encoded array, and whether it is a new one.

        Raises:
            EncodingError: it is no array.
        """
        _tag, descr, itemsize, shape, held, tie = value
        dtype = parse_dtype(descr)
        expect(
            type(itemsize) is int and itemsize == dtype.itemsize,
            f"an item of {itemsize} bytes where its dtype has {dtype.itemsize}",
        )
        sizes = read_shape(shape, itemsize)
        expect(len(sizes) <= _MAX_DIMENSIONS, f"more than {_MAX_DIMENSIONS} dimensions")
        grid = Grid.of(sizes, itemsize, self.chunk_size)
        chunks = grid.chunks
        content = read_content(held, fetch, chunks)
        check_chunks(content, grid.nbytes, chunks)
        slot = ArraySlot(dtype, sizes, grid, content)
        if tie is None:
            return slot, True
        check_tie(tie)
        expect(grid.nbytes > 0, "a tie of an array without items")
        first, first_descr = self.ties.setdefault(tie, (slot, descr))
        if first is not slot:
            same = (first_descr, first.shape) == (descr, sizes)
            expect(same and first.content == content, "a tie of arrays that differ")
        return first, first is slot
