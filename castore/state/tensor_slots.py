"""Loading tensors: checked heads, private memory, ties, Parameters.

Every tensor gets memory of its own from torch itself: writable, and resizable like any other.  What
was tied is one tensor again; what was tied with other flags shares its storage.  Imports torch;
``plan`` imports it only if a tree has a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from castore.model.encoding import encode
from castore.model.grid import Grid
from castore.model.objects import Content, Fetch, read_content
from castore.state.dtypes import CARRIERS, Dense, dense
from castore.state.memory import HUGE_FROM, host_view, prefer_huge_pages
from castore.state.plain import expect
from castore.state.slots import check_chunks, check_tie, read_shape
from castore.state.tensors import IS_PARAMETER, REQUIRES_GRAD

__all__ = ["TensorSlot", "TensorSlots"]


@dataclass(frozen=True, slots=True)
class _Head:
    """What follows from a tensor's dtype, shape and flags alone."""

    entry: Dense
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int
    grid: Grid
    nbytes: int
    chunks: int


class TensorSlot:
    """The one buffer of a tensor, or of all that are tied to it."""

    __slots__ = ("content", "grid", "head", "made", "nbytes", "tensor")

    def __init__(self, head: _Head, content: Content) -> None:
        self.head = head
        self.content = content
        self.grid = head.grid
        self.nbytes = head.nbytes
        self.tensor: torch.Tensor | None = None
        self.made: dict[int, torch.Tensor] | None = None  # by flags, where tied

    def allocate(self) -> None:
        """Take the tensor's memory (on the CPU, whatever torch's default device is)."""
        head = self.head
        dtype = head.entry.dtype
        if dtype is torch.complex32:  # torch warns where one is made; not where one is viewed
            carrier = CARRIERS[head.entry.itemsize]
            tensor = torch.empty_strided(head.shape, head.strides, dtype=carrier, device="cpu")
            tensor = tensor.view(dtype)
        else:
            tensor = torch.empty_strided(head.shape, head.strides, dtype=dtype, device="cpu")
        self.tensor = tensor
        inline = self.content.inline
        if inline:
            host_view(tensor.data_ptr(), head.nbytes, tensor)[:] = inline
        elif inline is None and head.nbytes >= HUGE_FROM:
            prefer_huge_pages(tensor.data_ptr(), head.nbytes)

    def out(self) -> memoryview:
        """The tensor's memory."""
        assert self.tensor is not None
        return host_view(self.tensor.data_ptr(), self.nbytes, self.tensor)

    def finish(self, data: bytes | None) -> torch.Tensor:
        """The tensor as the slot's own head has it."""
        return self.as_flagged(self.head.flags)

    def as_flagged(self, flags: int) -> torch.Tensor:
        """The tensor, or another on the same storage where the flags differ."""
        assert self.tensor is not None
        if self.made is None:
            return _flagged(self.tensor, flags)
        made = self.made.get(flags)
        if made is None:
            base = self.tensor if not self.made else self.tensor.detach()
            made = self.made[flags] = _flagged(base, flags)
        return made


def _flagged(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & IS_PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=bool(flags & REQUIRES_GRAD))
    return tensor.requires_grad_() if flags & REQUIRES_GRAD else tensor


class _Tied:
    """A later member of a group of ties: its value comes from the first one's slot."""

    __slots__ = ("flags", "slot")

    def __init__(self, slot: TensorSlot, flags: int) -> None:
        self.slot = slot
        self.flags = flags

    def finish(self, data: bytes | None) -> torch.Tensor:
        """The very tensor of the first member, or one on its storage."""
        return self.slot.as_flagged(self.flags)


class TensorSlots:
    """Makes the slots of one plan's tensors."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.heads: dict[bytes, _Head] = {}
        self.ties: dict[int, TensorSlot] = {}

    def slot(self, value: list[Any], fetch: Fetch) -> tuple[TensorSlot | _Tied, bool]:
        """The slot of an encoded tensor, and whether it has a buffer of its own.

        Raises:
            EncodingError: it is no tensor.
            UnsupportedFeature: of a dtype that this torch lacks.
        """
        _tag, flags, name, itemsize, shape, held, tie = value
        # The encoded head itself is the key: equal in Python is not equal in msgpack (1 == True).
        key = encode([flags, name, itemsize, shape])
        head = self.heads.get(key)
        if head is None:
            head = self.heads[key] = self.read_head(flags, name, itemsize, shape)
        content = read_content(held, fetch, head.chunks)
        check_chunks(content, head.nbytes, head.chunks)
        slot = TensorSlot(head, content)
        if tie is None:
            return slot, True
        check_tie(tie)
        expect(head.nbytes > 0, "a tie of a tensor without items")
        first = self.ties.setdefault(tie, slot)
        if first is slot:
            slot.made = {}
            return slot, True
        same = (first.head.entry, first.head.shape) == (head.entry, head.shape)
        expect(same and first.content == content, "a tie of tensors that differ")
        return _Tied(first, head.flags), False

    def read_head(self, flags: Any, name: Any, itemsize: Any, shape: Any) -> _Head:
        """Check dtype, shape and flags, none of which is trusted."""
        expect(type(flags) is int and 0 <= flags < 4, "a tensor's flags are two bits")
        expect(isinstance(name, str), "a tensor's dtype is a name")
        entry = dense(name)
        expect(
            type(itemsize) is int and itemsize == entry.itemsize,
            f"an item of {itemsize} bytes where {name} has {entry.itemsize}",
        )
        sizes = read_shape(shape, itemsize)
        expect(
            entry.differentiable or not flags & REQUIRES_GRAD,
            f"a tensor of {name} that requires a gradient",
        )
        strides = [1] * len(sizes)
        for d in range(len(sizes) - 2, -1, -1):
            strides[d] = strides[d + 1] * max(1, sizes[d + 1])
        grid = Grid.of(sizes, itemsize, self.chunk_size)
        return _Head(entry, sizes, tuple(strides), flags, grid, grid.nbytes, grid.chunks)
