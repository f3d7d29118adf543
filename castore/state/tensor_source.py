"""Where a tensor's canonical bytes come from while saving: its own memory, or row by row from it.

Canonical bytes are the logical values, row-major, little-endian (torch runs on little-endian hosts
only), with conj and neg bits resolved.  A strided, lazy or device tensor is never made whole: each
range is copied through views of its rows.  Called from worker threads, on disjoint ranges.
"""

from __future__ import annotations

import torch

from castore.state.blocks import blocks
from castore.state.dtypes import CARRIERS
from castore.state.memory import address_of, copy_into, host_view

__all__ = ["TensorSource"]

#: Neighbours in a row that lie a page or more apart (a transposed matrix): torch would walk through
#: all those pages for every row.  In tiles, the pages of a tile stay at hand: 3 to 4 times faster.
_FAR = 4096
_TILE = 64


class TensorSource:
    """The canonical bytes of one dense tensor.  Keeps the tensor alive."""

    __slots__ = ("nbytes", "tensor")

    def __init__(self, tensor: torch.Tensor, nbytes: int) -> None:
        self.tensor = tensor
        self.nbytes = nbytes

    def plain(self) -> bool:
        """Whether the canonical bytes lie in host memory as they are."""
        t = self.tensor
        return t.is_cpu and t.is_contiguous() and not (t.is_conj() or t.is_neg())

    def view(self) -> memoryview | None:
        """The tensor's memory, if its canonical bytes lie there as they are."""
        if not self.nbytes:
            return memoryview(b"")
        if not self.plain():
            return None
        return host_view(self.tensor.data_ptr(), self.nbytes, self.tensor)

    def fill(self, out: memoryview, start: int) -> None:
        """Write canonical bytes ``start .. start + len(out)`` into ``out``.

        Extra memory is bounded by ``len(out)``.
        """
        if not len(out):
            return
        if start < 0 or start + len(out) > self.nbytes:
            raise ValueError(f"bytes {start}..{start + len(out)} of {self.nbytes}")
        if self.plain():
            copy_into(out, self.tensor.data_ptr() + start)
            return
        # Workers have their own grad mode: detached, no copy is ever recorded.
        tensor = self.tensor.detach()
        if tensor.is_contiguous():
            tensor = tensor.view(-1)
        for block in blocks(tensor.shape, tensor.itemsize, start, start + len(out)):
            part = tensor[block.index] if block.index else tensor
            into = out[block.start : block.start + block.nbytes]
            if block.last >= 0:
                _copy_bits(part[block.first : block.last], into)
            else:
                item = bytearray(tensor.itemsize)
                _copy_bits(part, memoryview(item))
                into[:] = item[block.skip : block.skip + block.nbytes]


def _bits(part: torch.Tensor) -> torch.Tensor:
    """The logical values of ``part`` as integers of the same size, on the host."""
    if part.is_conj():
        if part.dtype is torch.complex32:
            # torch warns where it makes a tensor of this dtype: flip the imaginary part's sign here
            # (the upper half of a little-endian item) instead.
            return (part.conj().view(torch.int32) ^ -(1 << 31)).to("cpu")
        part = part.resolve_conj()
    if part.is_neg():
        part = part.resolve_neg()
    if part.dtype is torch.complex128:
        part = torch.view_as_real(part)
    return part.view(CARRIERS[part.itemsize]).to("cpu")


def _copy_bits(part: torch.Tensor, out: memoryview) -> None:
    bits = _bits(part)
    if address_of(out) % bits.itemsize:  # torch copies between aligned items only
        bits = bits.contiguous()
        copy_into(out, bits.data_ptr())
        return
    into = torch.frombuffer(out, dtype=bits.dtype).view(bits.shape)
    if bits.dim() < 2 or bits.stride(-1) * bits.itemsize < _FAR:
        into.copy_(bits)
        return
    for at in range(0, bits.shape[-1], _TILE):
        into[..., at : at + _TILE].copy_(bits[..., at : at + _TILE])
