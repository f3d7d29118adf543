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
from castore.state import devices
from castore.state.dtypes import CARRIERS, Dense, dense
from castore.state.memory import HUGE_FROM, host_view, prefer_huge_pages
from castore.state.plain import expect
from castore.state.slots import check_chunks, check_tie, read_shape
from castore.state.tensor_sink import write_bytes
from castore.state.tensors import IS_PARAMETER, REQUIRES_GRAD

__all__ = ["TensorSlot", "TensorSlots", "Tied"]


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

    __slots__ = ("content", "device", "grid", "head", "made", "nbytes", "readonly", "tensor")

    kind = "tensor"
    wanted = None  # of its chunks: all

    def __init__(self, head: _Head, content: Content) -> None:
        self.head = head
        self.content = content
        self.grid = head.grid
        self.nbytes = head.nbytes
        self.device: torch.device | None = None  # None: the CPU
        self.readonly = False
        self.tensor: torch.Tensor | None = None
        self.made: dict[int, torch.Tensor] | None = None  # by flags, where tied

    def allocate(self) -> None:
        """Take the tensor's memory (on the CPU, whatever torch's default device is)."""
        head = self.head
        if self.tensor is not None:
            return  # mapped
        if self.device is not None:
            self.tensor = devices.empty(head.entry.dtype, head.shape, head.strides, self.device)
            if self.content.inline:
                self.put(0, memoryview(bytearray(self.content.inline)))
            return
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.head.shape

    @property
    def mappable(self) -> int:
        """The size of an item (of one half, where it is complex)."""
        return 0 if self.device is not None or not self.nbytes else self.head.entry.itemsize

    def adopt(self, memory: memoryview) -> None:
        """Make the tensor of memory that is mapped; it lives as long as the tensor does."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        self.tensor = flat.view(self.head.entry.dtype).view(self.head.shape)

    def out(self) -> memoryview | None:
        """The tensor's memory; None if that is on a device."""
        if self.device is not None:
            return None
        assert self.tensor is not None
        return host_view(self.tensor.data_ptr(), self.nbytes, self.tensor)

    def put(self, start: int, data: memoryview) -> None:
        """Copy verified bytes into place."""
        assert self.tensor is not None
        write_bytes(self.tensor, start, data)

    def describe(self) -> str:
        """Dtype and shape in words."""
        return f"a {self.head.entry.name} tensor of shape {self.head.shape}"

    def of_shape(self, shape: tuple[int, ...]) -> TensorSlot:
        """A slot for a plain tensor of the same dtype and another shape, without a content."""
        head = self.head
        grid = Grid.of(shape, head.entry.itemsize, head.grid.chunk_size)
        return TensorSlot(
            _Head(head.entry, shape, _strides(shape), 0, grid, grid.nbytes, grid.chunks),
            Content(None, ()),
        )

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


class Tied:
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

    def slot(self, value: list[Any], fetch: Fetch) -> tuple[TensorSlot | Tied, bool]:
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
        return Tied(first, head.flags), False

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
        grid = Grid.of(sizes, itemsize, self.chunk_size)
        return _Head(entry, sizes, _strides(sizes), flags, grid, grid.nbytes, grid.chunks)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(1, shape[d + 1])
    return tuple(strides)
