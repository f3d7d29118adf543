"""Whether two states are the same: types, bits, order, keys, not ``==``.

``==`` says that 1, 1.0 and True are one, that -0.0 is 0.0 and that no NaN is itself; a checkpoint
store must not.  Does not recurse through lists, tuples and mappings, so depth is no matter.
"""

from __future__ import annotations

import pathlib
import struct
from collections import OrderedDict, defaultdict
from datetime import datetime, time, tzinfo
from typing import Any

import numpy as np
import torch

__all__ = ["assert_same", "difference", "raw"]

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw(tensor: torch.Tensor) -> bytes:
    """The logical values of a tensor, row-major, as bytes; by another way than castore's."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.complex32 and tensor.is_conj():  # torch warns where it resolves these
        halves = tensor.conj().view(torch.int32).contiguous().numpy().view(np.float16).flatten()
        halves[1::2] = -halves[1::2]
        return halves.tobytes()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor)
    bits = tensor.view(_CARRIERS[tensor.itemsize])
    return bits.contiguous().numpy().tobytes()


def array_bytes(array: np.ndarray[Any, Any]) -> Any:
    """The values of an array without what lies between the fields."""
    if array.dtype.names is not None:
        return [array_bytes(array[name]) for name in array.dtype.names]
    return array.tobytes()


def _zone(zone: tzinfo | None) -> Any:
    return (type(zone), repr(zone))


def _leaf(value: Any) -> Any:
    """Plain data that is equal if and only if two leaves of one type are the same."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.requires_grad, raw(value))
    if isinstance(value, np.ndarray):
        dtype = value.dtype
        return (
            repr(dtype),
            dtype.byteorder,
            dtype.isalignedstruct,
            value.shape,
            array_bytes(value),
        )
    if isinstance(value, np.generic):
        # numpy's own views of its texts drop trailing NULs.
        text = "".join(value) if isinstance(value, np.str_) else ""
        return (repr(value.dtype), value.dtype.char, value.tobytes(), text)
    if isinstance(value, torch.Generator):
        return (value.device, raw(value.get_state()))
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if isinstance(value, (datetime, time)):
        return (value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo))
    if isinstance(value, pathlib.PurePath):
        return (str(value), value.parts)
    if isinstance(value, (set, frozenset)):
        return sorted(repr((type(v).__qualname__, _frozen(v))) for v in value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return (value, repr(value))


def _frozen(value: Any) -> Any:
    if type(value) is tuple:
        return [(type(v).__qualname__, _frozen(v)) for v in value]
    return _leaf(value)


def difference(a: Any, b: Any) -> str | None:
    """Where two states differ first, or None."""
    stack: list[tuple[str, Any, Any]] = [("", a, b)]
    while stack:
        path, a, b = stack.pop()
        if type(a) is not type(b):
            return f"{path}: {type(a)} and {type(b)}"
        if isinstance(a, dict):
            if [_key(k) for k in a] != [_key(k) for k in b]:
                return f"{path}: keys {list(a)!r} and {list(b)!r}"
            if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
                return f"{path}: factories"
            if isinstance(a, OrderedDict):
                stack.append((f"{path}/(attributes)", vars(a), vars(b)))
            pairs = zip(a.values(), b.values(), strict=True)
            stack.extend((f"{path}/{k!r:.40}", *pair) for k, pair in zip(a, pairs, strict=True))
        elif type(a) in (list, tuple):
            if len(a) != len(b):
                return f"{path}: {len(a)} and {len(b)} items"
            stack.extend((f"{path}/{i}", *pair) for i, pair in enumerate(zip(a, b, strict=True)))
        elif _leaf(a) != _leaf(b):
            return f"{path}: {a!r:.200} and {b!r:.200}"
    return None


def _key(key: Any) -> Any:
    return (type(key).__qualname__, _frozen(key))


def assert_same(a: Any, b: Any) -> None:
    """Fail, saying where, unless two states are the same."""
    found = difference(a, b)
    assert found is None, found
