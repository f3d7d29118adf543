"""What a description gathers while it walks a state: contents, ties and the count of tensors.

The encoders of each kind of value (``plain``, ``tensors``, ``arrays``) write into a
:class:`Collector`; only ``describe`` makes one.  It never hashes and never copies a content of more
than :data:`castore.model.objects.INLINE_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from castore.model.encoding import encode
from castore.model.grid import Grid
from castore.model.objects import INLINE_BYTES, DataValue, Leaf, Source

__all__ = [
    "NIL",
    "UNTIED",
    "BytesSource",
    "Collector",
    "Encoder",
    "Refused",
    "is_text",
    "plain_bytes",
]

NIL = encode(None)
#: ``after`` of a tensor or array that is tied to nothing (shared: 100,000 of them are normal).
UNTIED = [NIL]

Encoder = Callable[[Any], Leaf]


class Refused(Exception):
    """A value that cannot be kept exactly; the walk adds its key path.

    Attributes:
        what: its type, and what about it.
        advice: what the user is to do instead.
    """

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what, advice)
        self.what = what
        self.advice = advice


def is_text(value: str) -> bool:
    """Whether a text can be written as it is: it has no lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class BytesSource:
    """A content that is a ``bytes`` object already: long text, number or byte string."""

    __slots__ = ("data", "nbytes")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nbytes = len(data)

    def view(self) -> memoryview:
        """The bytes themselves."""
        return memoryview(self.data)

    def fill(self, out: memoryview, start: int) -> None:
        """Copy ``start .. start + len(out)`` into ``out``."""
        out[:] = memoryview(self.data)[start : start + len(out)]


def plain_bytes(source: Source) -> bytes:
    """A whole content as ``bytes``: for short ones only."""
    view = source.view()
    if view is not None:
        return view.tobytes()
    buffer = bytearray(source.nbytes)
    if buffer:
        source.fill(memoryview(buffer), 0)
    return bytes(buffer)


@dataclass(slots=True)
class Collector:
    """Everything a state's encoders have in common.

    Attributes:
        chunk_size: upper bound of a chunk, for the grids.
        data: every value with a content of its own, in traversal order.
        tensors: tensors met, each tied name counted.
        ties: the first member of each group of tied values -> the others.
    """

    chunk_size: int
    data: list[DataValue] = field(default_factory=list)
    tensors: int = 0
    ties: dict[DataValue, list[DataValue]] = field(default_factory=dict)

    def bytes_value(self, before: list[bytes], content: bytes) -> DataValue:
        """A value whose content is ``content``."""
        value = DataValue(before, [], Grid(len(content), 1, self.chunk_size), BytesSource(content))
        if len(content) <= INLINE_BYTES:
            value.inline = content
        self.data.append(value)
        return value

    def tie(self, first: DataValue, value: DataValue) -> None:
        """Note that ``value`` lies in the very memory of ``first``."""
        value.same_as = first
        self.ties.setdefault(first, []).append(value)

    def number_ties(self) -> None:
        """Give each group of ties its number, in order of first appearance."""
        if not self.ties:
            return
        numbers: Iterator[int] = iter(range(len(self.ties)))
        for first in self.data:
            if first in self.ties:
                after = [encode(next(numbers))]
                for member in (first, *self.ties[first]):
                    member.after = after

    @property
    def logical_bytes(self) -> int:
        """Bytes of all contents, what is tied counted once."""
        return sum(value.source.nbytes for value in self.data)
