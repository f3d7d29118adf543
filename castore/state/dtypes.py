"""The table of torch's dtypes: name <-> dtype, item size, and the integers that carry its bits.

Built by looking at the torch that runs, so a dtype that a later torch brings needs no new line.
Imports torch; imported only where a state or a tree has need of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from castore.errors import UnsupportedFeature

__all__ = ["ALL", "CARRIERS", "DENSE", "Dense", "dense", "named"]

#: Integers by item size: views as these are copied bit for bit, whatever the dtype.
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Dense:
    """A dtype whose tensors are plain arrays of items.

    Attributes:
        name: without ``torch.``; torch's own name where it has several.
        dtype: the dtype.
        itemsize: bytes of one item (sub-byte and packed dtypes: of one storage byte).
        lazy: whether tensors of it may carry a conj or neg bit.
        differentiable: whether they may require a gradient.
    """

    name: str
    dtype: torch.dtype
    itemsize: int
    lazy: bool
    differentiable: bool


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


#: Every dtype by name, the quantized ones too (a state may hold a dtype as a value).
ALL: dict[str, torch.dtype] = {
    _name(value): value
    for value in (getattr(torch, attribute) for attribute in sorted(dir(torch)))
    if isinstance(value, torch.dtype)
}

#: A quantized tensor is more than its items: scales, zero points, an axis.
_QUANTIZED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}

DENSE: dict[torch.dtype, Dense] = {
    dtype: Dense(
        name,
        dtype,
        dtype.itemsize,
        dtype.is_floating_point or dtype.is_complex,
        dtype.is_floating_point or dtype.is_complex,
    )
    for name, dtype in ALL.items()
    if name not in _QUANTIZED and (dtype.itemsize in CARRIERS or dtype is torch.complex128)
}
_BY_NAME = {entry.name: entry for entry in DENSE.values()}


def dense(name: str) -> Dense:
    """The dense dtype of that name.

    Raises:
        UnsupportedFeature: this torch has none.
    """
    entry = _BY_NAME.get(name)
    if entry is None:
        raise UnsupportedFeature(
            f"dtype {name!r}: torch {torch.__version__} has no such dense dtype"
        )
    return entry


def named(name: str) -> torch.dtype:
    """The dtype of that name, dense or not.

    Raises:
        UnsupportedFeature: this torch has none.
    """
    dtype = ALL.get(name)
    if dtype is None:
        raise UnsupportedFeature(f"dtype {name!r}: torch {torch.__version__} has none of that name")
    return dtype
