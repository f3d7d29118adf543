"""The chunk grid: where a tensor is cut.

Whole rows along dimension 0, as many as fit in ``chunk_size``, on a grid fixed in *global*
coordinates; a row larger than ``chunk_size`` is cut inside.  So a tensor and its shards along
dimension 0 share every chunk that lies wholly inside a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

__all__ = ["MIN_CHUNK_SIZE", "Grid"]

#: The smallest chunk size a store may have.  A multiple of every element size.
MIN_CHUNK_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Grid:
    """The cuts of one tensor, or of one shard of it.

    Attributes:
        rows: length of dimension 0 (1 for a scalar).
        row_bytes: bytes of one row.
        chunk_size: upper bound of a chunk, in bytes.
        row_offset: global index of the first row (a shard's place in the whole).
    """

    rows: int
    row_bytes: int
    chunk_size: int
    row_offset: int = 0

    @classmethod
    def of(cls, shape: Sequence[int], itemsize: int, chunk_size: int, row_offset: int = 0) -> Grid:
        """The grid of a tensor of ``shape`` whose elements have ``itemsize`` bytes."""
        if not shape:
            return cls(1, itemsize, chunk_size)
        return cls(shape[0], prod(shape[1:]) * itemsize, chunk_size, row_offset)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return self.rows * self.row_bytes

    @property
    def chunks(self) -> int:
        """How many chunks there are, without listing them."""
        if not self.nbytes:
            return 0
        if self.row_bytes > self.chunk_size:
            return self.rows * -(-self.row_bytes // self.chunk_size)
        per = self.chunk_size // self.row_bytes
        first = per - self.row_offset % per
        return 1 + max(0, -(-(self.rows - first) // per))

    def cuts(self) -> Iterator[int]:
        """Byte offsets of the cuts, from 0 to :attr:`nbytes`, both included (0 alone if empty)."""
        yield 0
        if not self.nbytes:
            return
        if self.row_bytes > self.chunk_size:
            for row in range(self.rows):
                base = row * self.row_bytes
                yield from range(base + self.chunk_size, base + self.row_bytes, self.chunk_size)
                yield base + self.row_bytes
            return
        per = self.chunk_size // self.row_bytes
        first = per - self.row_offset % per
        yield from (row * self.row_bytes for row in range(first, self.rows, per))
        yield self.nbytes

    def spans(self) -> list[tuple[int, int]]:
        """``(start, stop)`` of every chunk, in bytes of the tensor's canonical form."""
        return list(pairwise(self.cuts()))

    def rows_of(self, start: int, stop: int) -> tuple[int, int]:
        """The rows, first and past-the-end, that the bytes ``start..stop`` touch."""
        if not self.row_bytes:
            return (0, 0)
        return (
            self.row_offset + start // self.row_bytes,
            self.row_offset + -(-stop // self.row_bytes),
        )
