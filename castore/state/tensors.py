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
    make = _encoder_maker(collector)
    return {torch.Tensor: make(0), torch.nn.Parameter: make(IS_PARAMETER)}


# The shapes of a state are few, its tensors may be 100,000: what follows from dtype, shape and
# flags alone is made once for each.
_Head = tuple[list[bytes], Grid, int, int]


def _encoder_maker(collector: Collector) -> Callable[[int], Encoder]:
    heads: dict[tuple[torch.dtype, torch.Size, int], _Head] = {}
    at_address: dict[int, DataValue] = {}
    views: dict[Any, DataValue] = {}
    data = collector.data

    def head_of(tensor: torch.Tensor, shape: torch.Size, flags: int) -> _Head:
        entry = DENSE.get(tensor.dtype)
        if entry is None:
            raise _not_dense(tensor)
        grid = Grid.of(shape, entry.itemsize, collector.chunk_size)
        elements = [flags, entry.name, entry.itemsize, list(shape)]
        return [_TENSOR, *map(encode, elements)], grid, entry.itemsize, grid.nbytes

    def tied(value: DataValue, first: DataValue) -> bool:
        """Whether the memory that ``value`` shares a first byte with is all the same."""
        views.setdefault(_view_key(first), first)
        twin = views.setdefault(_view_key(value), value)
        if twin is not value:
            collector.tie(twin, value)
        return twin is not value

    def make(kind: int) -> Encoder:
        def encode_tensor(tensor: torch.Tensor) -> Leaf:
            if tensor.layout is not _STRIDED:
                raise _not_dense(tensor)
            dtype = tensor.dtype
            try:
                shape = tensor.shape
            except RuntimeError as e:  # a nested tensor has none
                raise _not_dense(tensor) from e
            flags = kind | REQUIRES_GRAD if tensor.requires_grad else kind
            head = heads.get((dtype, shape, flags))
            if head is None:
                head = heads[dtype, shape, flags] = head_of(tensor, shape, flags)
            before, grid, itemsize, nbytes = head
            address = memory_of(tensor, itemsize, nbytes)
            collector.tensors += 1
            value = DataValue(before, UNTIED, grid, TensorSource(tensor, nbytes))
            if address:
                first = at_address.setdefault(address, value)
                if first is not value and tied(value, first):
                    return value
            if nbytes <= INLINE_BYTES:
                value.inline = _snapshot(value.source, address)
            data.append(value)
            return value

        return encode_tensor

    return make


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


def memory_of(tensor: torch.Tensor, itemsize: int, nbytes: int) -> int:
    """Where the tensor's items begin; 0 where that says nothing about sharing memory.

    Raises:
        Refused: there is no memory there, or less than the shape says.
    """
    if not nbytes:
        if tensor.is_meta:
            raise _no_memory(tensor)
        return 0
    try:
        address = tensor.data_ptr()
        # Freed or shrunk storages (FSDP does it) keep their tensors' shapes; reading them would be
        # a segmentation fault, not an exception.
        room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * itemsize
    except RuntimeError as e:  # inside a transform, or a backend without addresses
        problem = str(e).splitlines()[0]
        raise Refused(f"a tensor out of reach ({problem})", "save plain tensors") from e
    if address and room >= nbytes and tensor.is_contiguous():
        return address
    if not (tensor.is_meta or tensor.is_cpu or tensor.is_cuda):
        return address  # other backends may have neither addresses nor storages: theirs to copy
    if not address or room < _extent(tensor):
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
    if tensor.dtype not in DENSE:
        return Refused(
            f"a tensor of dtype {tensor.dtype}, whose scales are not kept in this version",
            "save tensor.int_repr() and its scales and zero points",
        )
    return Refused(
        f"a tensor of layout {tensor.layout}, not kept in this version",
        "save its parts (indices, values, shape) or tensor.to_dense()",
    )
