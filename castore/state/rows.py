"""Some rows of a tensor or array: which chunks hold them, and where each row goes.

Imports numpy (torch only for a tensor).  Called from worker threads, on disjoint chunks.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from castore.errors import UsageError
from castore.model import keypath
from castore.model.objects import Fetch, TreeNode
from castore.state.plan import Plan, plan_state

__all__ = ["plan_rows"]


def plan_rows(
    value: Any, fetch: Fetch, chunk_size: int, rows: Any, *, path: str, max_bytes: int
) -> Plan:
    """As :func:`castore.state.plan_state`, for rows of one tensor or array.

    Args:
        value: what stands at the key path.
        fetch: gives the verified bytes of an object.
        chunk_size: the store's.
        rows: a slice or an int, along dimension 0; None: all.
        path: the key path, for messages.
        max_bytes: of the whole tensor at most.

    Raises:
        EncodingError, UnsupportedFeature: as there.
        UsageError: it is neither, or has no such rows.
    """
    where = keypath.display(path)
    if isinstance(value, TreeNode) and value.container == "value":
        value = value.items[0]
    if not (isinstance(value, list) and value[:1] in (["tensor"], ["ndarray"])):
        raise UsageError(f"{where} is no tensor and no array: load it", path=path)
    plan = plan_state(value, fetch, chunk_size, path=path, max_bytes=max_bytes, allocate=False)
    [whole] = plan.slots
    plan.replace(_RowsSlot(whole, rows, where))
    plan.allocate()
    return plan


class _RowsSlot:
    """The rows that are wanted of a tensor or array.

    ``whole`` is the slot of all of it, checked and without memory; ``part`` has the result's.
    """

    mappable = 0

    def __init__(self, whole: Any, rows: Any, where: str) -> None:
        self.content = whole.content
        self.grid = whole.grid
        self.readonly = False
        shape: tuple[int, ...] = whole.shape
        self.rows, shape = _rows_of(rows, shape, where)
        self.part = whole.of_shape(shape)
        self.nbytes: int = self.part.nbytes
        self.wanted: set[int] | None = None
        if self.rows is not None:
            self.wanted = {
                i
                for i, (start, stop) in enumerate(self.grid.spans())
                if self._positions(start, stop)
            }

    def _positions(self, start: int, stop: int) -> range:
        """Which of the result's rows the bytes ``start..stop`` of the whole have a part in."""
        assert self.rows is not None
        first, last = self.grid.rows_of(start, stop)
        step = self.rows.step
        if step > 0:
            begin, end = first - self.rows.start, last - self.rows.start
        else:
            begin, end = self.rows.start - last + 1, self.rows.start - first + 1
            step = -step
        return range(max(0, -(-begin // step)), min(len(self.rows), -(-end // step)))

    def allocate(self) -> None:
        """Take the result's memory."""
        self.part.allocate()
        if self.content.inline:
            self.put(0, memoryview(bytearray(self.content.inline)))

    def adopt(self, memory: memoryview) -> None:
        """Never called: rows are read."""
        raise ValueError("rows are not mapped")

    def out(self) -> None:
        """None: a chunk is verified in a buffer, and the rows copied from there."""
        return

    def put(self, start: int, data: memoryview) -> None:
        """Copy the wanted rows of a verified chunk."""
        if not self.nbytes:
            return
        if self.rows is None:
            self.part.put(start, data)
            return
        positions = self._positions(start, start + len(data))
        row = self.grid.row_bytes
        if start % row or len(data) % row:  # a piece of one row
            for position in positions:
                self.part.put(position * row + start % row, data)
            return
        if not positions:
            return
        with self.part.out() as out:
            into = np.frombuffer(out, np.uint8).reshape(-1, row)
            have = np.frombuffer(data, np.uint8).reshape(-1, row)
            at = np.arange(positions.start, positions.stop)
            into[positions.start : positions.stop] = have[
                self.rows.start + at * self.rows.step - start // row
            ]
            del into  # before the view that it looks at is released

    def finish(self, data: bytes | None) -> Any:
        """The rows."""
        return self.part.finish(data)


def _rows_of(rows: Any, shape: tuple[int, ...], where: str) -> tuple[range | None, tuple[int, ...]]:
    """The rows as a range (None: all), and the result's shape."""
    if rows is None:
        return None, shape
    if not shape:
        raise UsageError(f"{where} has no dimension, and so no rows")
    if isinstance(rows, slice):
        try:
            wanted = range(*rows.indices(shape[0]))
        except (TypeError, ValueError) as e:
            raise UsageError(f"rows={rows!r}: {e}") from e
        return wanted, (len(wanted), *shape[1:])
    try:
        row = operator.index(rows)
    except TypeError:
        raise UsageError(f"rows is a slice, an int or None, not {rows!r}") from None
    if not -shape[0] <= row < shape[0] or isinstance(rows, bool):
        raise UsageError(f"{where} has {shape[0]} rows, and no row {rows}")
    row %= shape[0]
    return range(row, row + 1), shape[1:]
