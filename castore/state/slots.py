"""What a load has to fill: one slot for each value that has a content.

A slot is checked against what its tree promises *before* memory is taken for it; ``allocate`` then
takes the memory, the pipeline fills it, and ``finish`` makes the value.  ``tensor_slots`` and
``array_slots`` have the kinds that need torch or numpy; only ``plan`` makes slots.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Protocol

from castore.model.encoding import EncodingError
from castore.model.grid import Grid
from castore.model.objects import INLINE_BYTES, Content
from castore.state.plain import expect

__all__ = [
    "MAX_NBYTES",
    "Slot",
    "TextSlot",
    "check_chunks",
    "check_tie",
    "read_shape",
]

#: Of one content: beyond it, sizes are nonsense (and would overflow what counts bytes in C).
MAX_NBYTES = 1 << 62
_MAX_DIMENSIONS = 1024


class Slot(Protocol):
    """A value that waits for its content.

    Attributes:
        content: its bytes if they are inline, else its chunks.
        grid: where it is cut.
        nbytes: its length; for a content of unknown length, the least it can be.
        wanted: numbers of the chunks that are needed; None: all.
        mappable: alignment that the content must have in a file to be mapped there; 0: never.
        readonly: the value is to be marked so, if its kind has such a mark.
    """

    content: Content
    grid: Grid
    nbytes: int
    readonly: bool

    @property
    def wanted(self) -> Container[int] | None:
        """See above."""

    @property
    def mappable(self) -> int:
        """See above."""

    def allocate(self) -> None:
        """Take the memory that the content goes to; fill it if the content is inline."""

    def adopt(self, memory: memoryview) -> None:
        """Take mapped memory, which holds the content, instead."""

    def out(self) -> memoryview | None:
        """Fresh memory of the content's own, where bytes may be read before they are verified."""

    def put(self, start: int, data: memoryview) -> None:
        """Place verified bytes, which begin at ``start`` of the content; from any thread."""

    def finish(self, data: bytes | None) -> Any:
        """The value, all being filled; ``data`` is the content where ``out`` is None."""


@dataclass(slots=True, eq=False)
class TextSlot:
    """A content that becomes a Python object as a whole: text, number, generator state."""

    content: Content
    grid: Grid
    nbytes: int
    make: Callable[[bytes], Any]
    wanted: None = None
    mappable: int = 0
    readonly: bool = False

    @classmethod
    def of(cls, content: Content, make: Callable[[bytes], Any], chunk_size: int) -> TextSlot:
        """Check a content of unknown length."""
        if content.inline is not None:
            expect(len(content.inline) <= INLINE_BYTES, "a long content that is inline")
            nbytes = len(content.inline)
        else:
            expect(bool(content.digests), "a content without chunks")
            nbytes = (len(content.digests) - 1) * chunk_size + 1
        return cls(content, Grid(0, 1, chunk_size), nbytes, make)

    def allocate(self) -> None:
        """Nothing: the pipeline brings the bytes."""

    def adopt(self, memory: memoryview) -> None:
        """Never called: it is no memory."""
        raise ValueError("a text is not mapped")

    def out(self) -> None:
        """None: only the chunks know how long they are."""
        return

    def put(self, start: int, data: memoryview) -> None:
        """Never called: the pipeline brings the bytes as one."""
        raise ValueError("a text comes as a whole")

    def finish(self, data: bytes | None) -> Any:
        """The value."""
        content = self.content.inline if self.content.inline is not None else data
        if content is None:
            raise ValueError("a content was not read")
        expect(
            self.content.inline is not None or len(content) > INLINE_BYTES,
            "a short content that is not inline",
        )
        return self.make(content)


def read_shape(value: Any, itemsize: Any) -> tuple[int, ...]:
    """A shape whose bytes can be counted.

    Raises:
        EncodingError: it is none.
    """
    expect(
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(n) is int and n >= 0 for n in value),
        "a shape is a list of sizes",
    )
    # Counted without the zeros: numpy and torch multiply strides even where there is no item.
    nbytes = max(1, itemsize)
    for n in value:
        nbytes *= max(1, n)
        expect(nbytes <= MAX_NBYTES, f"a shape of more than {MAX_NBYTES} bytes")
    return tuple(value)


def check_chunks(content: Content, nbytes: int, count: int) -> None:
    """Make sure that a content is as long as its value needs.

    Raises:
        EncodingError: its inline bytes or its number of chunks say otherwise.
    """
    inline = content.inline
    if inline is None:
        if len(content.digests) != count:
            found = len(content.digests)
            raise EncodingError(f"a content of {found} chunks where the shape has {count}")
        expect(nbytes > INLINE_BYTES, "a short content that is not inline")
    else:
        if len(inline) != nbytes:
            raise EncodingError(f"a content of {len(inline)} bytes where the shape has {nbytes}")
        expect(nbytes <= INLINE_BYTES, "a long content that is inline")


def check_tie(value: Any) -> None:
    """Make sure that a value is the number of a group of ties.

    Raises:
        EncodingError: it is none.
    """
    expect(type(value) is int and value >= 0, "a tie is a number")
