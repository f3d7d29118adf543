"""Hypothesis strategies for states: every kind of value and key that castore keeps."""

from __future__ import annotations

import pathlib
import struct
import zoneinfo
from collections import Counter, OrderedDict, defaultdict
from datetime import timedelta, timezone
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

__all__ = ["DTYPES", "arrays", "keys", "leaves", "states", "tensor_of", "tensors"]

_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}

#: Every dtype that a dense tensor of this torch can have, by name.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (getattr(torch, name) for name in sorted(dir(torch)))
    if isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED
}


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """A tensor whose memory is ``data``."""
    if not data:
        return torch.empty((0,), dtype=torch.uint8).view(dtype).reshape(shape)
    # A clone: torch's own, aligned memory.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().view(dtype).reshape(shape)


_shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def _lay_out(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, or a view of it with other strides."""
    how = draw(st.sampled_from(["as is", "transposed", "every other", "expanded", "slice", "lazy"]))
    if how == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, draw(st.integers(1, tensor.dim() - 1)))
    if how == "every other" and tensor.dim():
        return tensor[..., ::2]
    if how == "slice" and tensor.dim():
        return tensor[1:]
    if how == "expanded":
        return tensor.expand((draw(st.integers(1, 3)), *tensor.shape))
    if how == "lazy" and tensor.is_complex() and tensor.dtype is not torch.complex32:
        return draw(st.sampled_from([tensor.conj(), tensor.conj().imag, tensor.real]))
    return tensor


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dense tensor or Parameter."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(_shapes)
    n = int(np.prod(shape)) * dtype.itemsize
    tensor = _lay_out(draw, tensor_of(dtype, shape, draw(st.binary(min_size=n, max_size=n))))
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    kind = draw(st.sampled_from(["tensor", "requires grad", "parameter", "frozen parameter"]))
    if kind == "requires grad" and differentiable:
        return tensor.detach().requires_grad_()
    if kind == "parameter" and differentiable:
        return torch.nn.Parameter(tensor)
    if kind == "frozen parameter":
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor


def _has_titles(dtype: np.dtype[Any]) -> bool:
    """Titles are refused; hypothesis likes them."""
    if dtype.subdtype is not None:
        return _has_titles(dtype.subdtype[0])
    fields = (dtype.fields or {}).values()
    return any(len(field) > 2 or _has_titles(field[0]) for field in fields)


_plain_dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(max_len=5),
    hnp.unicode_string_dtypes(max_len=5),
    st.sampled_from(["<q", ">Q", "|V3", "<M8[25s]", "<m8"]).map(np.dtype),
)
_struct_dtypes = st.one_of(
    hnp.nested_dtypes(subtype_strategy=_plain_dtypes, max_leaves=5),
    st.sampled_from(
        [
            np.dtype([("a", "i1"), ("b", ">f8"), ("c", "<U2", (2,))], align=True),
            np.dtype(
                {"names": ["x", "y"], "formats": [">i2", "u1"], "offsets": [4, 1], "itemsize": 9}
            ),
        ]
    ),
).filter(lambda dtype: dtype.itemsize > 0 and dtype.subdtype is None and not _has_titles(dtype))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Any numpy array."""
    dtype = draw(st.one_of(_plain_dtypes, _plain_dtypes, _struct_dtypes))
    shape = draw(_shapes)
    n = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=n, max_size=n))
    array = np.ndarray(shape, dtype, bytearray(data) if n else None)
    if "U" in str(dtype):
        array = np.zeros(shape, dtype)  # random bytes are no characters
    how = draw(st.sampled_from(["as is", "transposed", "fortran", "backwards", "broadcast"]))
    if how == "transposed":
        return array.T
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "backwards" and array.ndim:
        return array[..., ::-1]
    if how == "broadcast":
        return np.broadcast_to(array, (2, *shape))
    return array


_any_float = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("<d", struct.pack("<Q", n))[0])
_floats = st.one_of(st.floats(), _any_float, st.sampled_from([0.0, -0.0, float("inf")]))
_text = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(), max_size=8),  # lone surrogates too
    st.sampled_from(
        ["", "a/b", "~", "../x", "__metadata__", "\u00e9", "e\u0301", "\0\n", "x" * 5000, "ё" * 200]
    ),
)
_bytes = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"", b"x" * 256, b"x" * 257, b"y" * 9999])
)
_ints = st.one_of(
    st.integers(),
    st.sampled_from([-(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**200, -(2**71), 2**3000]),
)
_zones = st.one_of(
    st.none(),
    st.just(timezone.utc),  # noqa: UP017 - what users write
    st.just(timezone(timedelta(hours=1), "Mitte")),
    st.integers(-86399, 86399).map(lambda s: timezone(timedelta(seconds=s))),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]).map(zoneinfo.ZoneInfo),
)
_times = st.one_of(
    st.datetimes(timezones=_zones, allow_imaginary=True),
    st.dates(),
    st.times(timezones=_zones),
    st.timedeltas(),
)
_paths = st.tuples(
    st.sampled_from([pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath]),
    st.sampled_from(["", ".", "/", "a/b", "//srv/x", "a/../b", "C:\\x", "ключ"]),
).map(lambda pair: pair[0](pair[1]))
_torch_scalars = st.one_of(
    st.lists(st.integers(0, 9), max_size=4).map(torch.Size),
    st.sampled_from([*DTYPES.values(), torch.qint8]),
    st.sampled_from(["cpu", "cuda", "cuda:3", "meta"]).map(torch.device),
    st.sampled_from([torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format]),
)
_numpy_scalars = st.one_of(
    st.sampled_from(
        [np.float64(1.5), np.int32(-3), np.str_("a\0"), np.bytes_(b"b\0"), np.str_("")]
    ),
    st.sampled_from([np.bool_(True), np.datetime64("NaT"), np.datetime64("2026-01-01", "D")]),
    st.sampled_from([np.longlong(5), np.float16("nan"), np.complex64(1 - 2j), np.void(b"abc")]),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
)
_hashable_numpy = _numpy_scalars.filter(lambda v: not isinstance(v, np.void))

_SCALARS = st.one_of(
    st.none(), st.booleans(), _ints, _floats, st.complex_numbers(), _text, _bytes,
    _times, _paths, _torch_scalars, _hashable_numpy,
)  # fmt: skip


# Composites, for the sake of their short repr: hypothesis makes one of each strategy it is given.
@st.composite
def _scalar(draw: st.DrawFn) -> Any:
    return draw(_SCALARS)


_KEYS = st.recursive(_scalar(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


@st.composite
def _key(draw: st.DrawFn) -> Any:
    return draw(_KEYS)


keys = _key()
#: What may be in a set: keys, and frozensets of them.
_elements = st.one_of(keys, st.frozensets(_scalar(), max_size=3))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_LEAVES = st.one_of(
    _scalar(),
    _numpy_scalars,
    tensors(),
    arrays(),
    st.sets(_elements, max_size=4),
    st.frozensets(_elements, max_size=4),
    st.integers(0, 2**32).map(_generator),
)


@st.composite
def _leaf(draw: st.DrawFn) -> Any:
    return draw(_LEAVES)


leaves = _leaf()


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mapping = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        mapping,
        st.tuples(mapping, st.one_of(st.none(), inner), st.booleans()).map(_ordered),
        st.tuples(st.sampled_from([None, list, dict, int, set, float, str]), mapping).map(
            lambda pair: defaultdict(*pair)
        ),
        st.dictionaries(keys, _ints, max_size=4).map(Counter),
    )


def _ordered(drawn: tuple[dict[Any, Any], Any, bool]) -> OrderedDict[Any, Any]:
    items, metadata, has_metadata = drawn
    made = OrderedDict(items)
    if has_metadata:
        made._metadata = metadata  # type: ignore[attr-defined]
    return made


states = st.recursive(leaves, _containers, max_leaves=12)
