"""A byte range of a row-major array as few rectangular blocks: how to copy part of a strided one.

Pure arithmetic, shared by tensors and numpy arrays.  It lets a worker make any range of an array's
canonical bytes from views of it, without ever making the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Block", "blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a byte range.

    Attributes:
        index: indices along the leading dimensions.
        first: first row of what ``index`` selects.
        last: past-the-end row; -1 where ``index`` selects one element (and ``first`` is 0).
        skip: bytes of that element before the range (0 for whole rows).
        start: where the block begins within the range.
        nbytes: its length in bytes.
    """

    index: tuple[int, ...]
    first: int
    last: int
    skip: int
    start: int
    nbytes: int


def blocks(shape: Sequence[int], itemsize: int, start: int, stop: int) -> Iterator[Block]:
    """The bytes ``start .. stop`` of an array's row-major form, as whole rows where possible.

    At most two blocks a dimension and two parts of elements, however long the range.

    Raises:
        ValueError: the array has no such bytes.
    """
    ndim = len(shape)
    sizes = [itemsize] * (ndim + 1)  # sizes[d]: bytes of one row at depth d
    for d in range(ndim - 1, -1, -1):
        sizes[d] = sizes[d + 1] * shape[d]
    if not 0 <= start <= stop <= sizes[0]:
        raise ValueError(f"bytes {start}..{stop} of {sizes[0]}")
    at = start
    while at < stop:
        for d in range(ndim):
            row = sizes[d + 1]
            if at % row == 0 and at + row <= stop:
                first = at // row % shape[d]
                last = min(shape[d], first + (stop - at) // row)
                nbytes = (last - first) * row
                yield Block(_index(shape, sizes, d, at), first, last, 0, at - start, nbytes)
                break
        else:  # less than one element, or an array without dimensions
            skip = at % itemsize
            nbytes = min(itemsize - skip, stop - at)
            yield Block(_index(shape, sizes, ndim, at), 0, -1, skip, at - start, nbytes)
        at += nbytes


def _index(shape: Sequence[int], sizes: Sequence[int], depth: int, at: int) -> tuple[int, ...]:
    return tuple(at // sizes[d + 1] % shape[d] for d in range(depth))
