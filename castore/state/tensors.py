"""Saving tensors: what can be kept exactly, how it is written, and which share memory.

Kept: dense, strided ``torch.Tensor`` and ``torch.nn.Parameter`` of every dtype, on any device.  Not
kept, as in ``torch.save``: autograd history, ``.grad``, hooks, strides (all values come back
row-major), attributes that somebody hung on a tensor.  Refused: what is more than its items
(sparse, quantized, nested, subclasses) and what has none (meta tensors, freed storages).

Imports torch; ``describe`` imports it only if torch is there already.  It never reads more than
:data:`castore.model.objects.INLINE_BYTES` of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from castore.model.encoding import encode
from castore.model.grid import Grid
from castore.model.objects import INLINE_BYTES, DataValue, Leaf
from castore.state.collector import UNTIED, Collector, Encoder, Refused, plain_bytes
from castore.state.dtypes import DENSE
from castore.state.memory import host_bytes
from castore.state.tensor_source import TensorSource

__all__ = ["IS_PARAMETER", "REQUIRES_GRAD", "encoders"]

IS_PARAMETER = 1
REQUIRES_GRAD = 2

_TENSOR = encode("tensor")
_STRIDED = torch.strided


def encoders(collector: Collector) -> dict[type, Encoder]:
    """The encoders of ``torch.Tensor`` and ``torch.nn.Parameter``, exactly these."""
    encode_tensor = _tensor_encoder(collector)
    return {
        torch.Tensor: lambda value: encode_tensor(value, 0),
        torch.nn.Parameter: lambda value: encode_tensor(value, IS_PARAMETER),
    }


# The shapes of a state are few, its tensors may be 100,000: what follows from dtype, shape and
# flags alone is made once for each.
_Head = tuple[list[bytes], Grid, int]


def _tensor_encoder(collector: Collector) -> Callable[[torch.Tensor, int], Leaf]:
    heads: dict[tuple[torch.dtype, torch.Size, int], _Head] = {}
    at_address: dict[int, DataValue] = {}
    views: dict[Any, DataValue] = {}

    def head_of(tensor: torch.Tensor, shape: torch.Size, flags: int) -> _Head:
        entry = DENSE[tensor.dtype]
        grid = Grid.of(shape, entry.itemsize, collector.chunk_size)
        elements = [flags, entry.name, entry.itemsize, list(shape)]
        return [_TENSOR, *map(encode, elements)], grid, grid.nbytes

    def encode_tensor(tensor: torch.Tensor, flags: int) -> Leaf:
        dtype = tensor.dtype
        if tensor.layout is not _STRIDED or dtype not in DENSE or tensor.is_nested:
            raise _not_dense(tensor)
        shape = tensor.shape
        if tensor.requires_grad:
            flags |= REQUIRES_GRAD
        key = (dtype, shape, flags)
        head = heads.get(key)
        if head is None:
            head = heads[key] = head_of(tensor, shape, flags)
        before, grid, nbytes = head
        address = _address(tensor, nbytes)
        collector.tensors += 1
        value = DataValue(before, UNTIED, grid, TensorSource(tensor, nbytes))
        if address:
            first = at_address.setdefault(address, value)
            if first is not value:
                views.setdefault(_view_key(first), first)
                first = views.setdefault(_view_key(value), value)
                if first is not value:
                    collector.tie(first, value)
                    return value
        if nbytes <= INLINE_BYTES:
            value.inline = _snapshot(value.source, address)
        collector.data.append(value)
        return value

    return encode_tensor


def _snapshot(source: Any, address: int) -> bytes:
    if not source.nbytes:
        return b""
    if source.plain():
        return host_bytes(address, source.nbytes)
    return plain_bytes(source)


def _view_key(value: DataValue) -> tuple[Any, ...]:
    """Equal for two tensors that show the same memory in the same way."""
    assert isinstance(value.source, TensorSource)
    t = value.source.tensor
    conj, neg = t.is_conj(), t.is_neg()
    return (t.data_ptr(), t.device, t.dtype, t.shape, t.stride(), conj, neg)


def _address(tensor: torch.Tensor, nbytes: int) -> int:
    """Where the tensor's items begin; 0 where that says nothing about sharing memory.

    Raises:
        Refused: there is no memory there, or less than the shape says.
    """
    if tensor.is_meta:
        raise _no_memory(tensor)
    if not nbytes:
        return 0
    try:
        address = tensor.data_ptr()
        held = tensor.untyped_storage().nbytes()
    except RuntimeError as e:  # inside a transform, or a backend without addresses
        raise Refused(f"a tensor whose memory cannot be reached: {e}", "save plain tensors") from e
    if not (tensor.is_cpu or tensor.is_cuda):
        return address  # other backends may have neither addresses nor storages: theirs to copy
    # Freed or shrunk storages (FSDP does it) keep their tensors' shapes; reading them would be a
    # segmentation fault, not an exception.
    before = tensor.storage_offset() * tensor.itemsize
    reach = nbytes if tensor.is_contiguous() else _extent(tensor)
    if not address or before + reach > held:
        raise _no_memory(tensor)
    return address


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last item of a tensor that is not empty."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * stride for n, stride in steps)) * tensor.itemsize


def _no_memory(tensor: torch.Tensor) -> Refused:
    if tensor.is_meta:
        return Refused(
            "a tensor on the meta device, which has no values",
            "materialize it first, or leave it out of the state",
        )
    if tensor._is_zerotensor():
        return Refused("a zero tensor without memory", "save tensor.clone()")
    return Refused(
        f"a tensor of shape {tuple(tensor.shape)} whose storage was freed or shrunk",
        "gather the parameters first (FSDP, ZeRO), or leave it out",
    )


def _not_dense(tensor: torch.Tensor) -> Refused:
    if tensor.is_meta:
        return _no_memory(tensor)
    if tensor.is_nested:
        return Refused("a nested tensor", "save tensor.unbind() (a list of tensors)")
    if tensor.is_quantized or tensor.dtype not in DENSE:
        return Refused(
            f"a tensor of dtype {tensor.dtype}, whose scales are not kept in this version",
            "save tensor.int_repr() and its scales and zero points",
        )
    return Refused(
        f"a tensor of layout {tensor.layout}, not kept in this version",
        "save its parts (indices, values, shape) or tensor.to_dense()",
    )
