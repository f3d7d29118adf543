"""Where verified bytes go: into a tensor that is there already, of any strides, on any device.

The counterpart of ``tensor_source``: canonical bytes are written row by row through views of the
tensor, so nothing beside the caller's buffer is ever as large as the tensor.  Called from worker
threads, on disjoint ranges.
"""

from __future__ import annotations

import torch

from castore.state.blocks import blocks
from castore.state.dtypes import CARRIERS
from castore.state.memory import address_of, copy_into, host_view

__all__ = ["write_bytes"]

#: Shorter pieces are quicker copied by Python itself than by a call of C that drops the GIL.
_SHORT = 64 << 10


def write_bytes(tensor: torch.Tensor, start: int, data: memoryview) -> None:
    """Write canonical bytes ``start .. start + len(data)`` of a tensor; whole items only.

    The tensor carries no conj or neg bit, and no two of its items share memory.
    """
    if tensor.is_cpu and tensor.is_contiguous():
        out = host_view(tensor.data_ptr() + start, len(data), tensor)
        if len(data) < _SHORT:
            out[:] = data
        else:
            copy_into(out, address_of(data))
        return
    # Inference tensors may be changed in their own mode only, leaves that require a gradient
    # only detached.
    with torch.inference_mode(tensor.is_inference()):
        tensor = tensor.detach()
        if tensor.is_contiguous():
            tensor = tensor.view(-1)
        for block in blocks(tensor.shape, tensor.itemsize, start, start + len(data)):
            part = tensor[block.index] if block.index else tensor
            if block.last >= 0:
                part = part[block.first : block.last]
            _write_bits(part, data[block.start : block.start + block.nbytes])


def _write_bits(part: torch.Tensor, data: memoryview) -> None:
    if part.dtype is torch.complex128:
        part = torch.view_as_real(part)
    carrier = CARRIERS[part.itemsize]
    if address_of(data) % part.itemsize:  # torch copies between aligned items only
        data = memoryview(bytearray(data))
    part.view(carrier).copy_(torch.frombuffer(data, dtype=carrier).view(part.shape))
