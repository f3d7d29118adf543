"""Saving numpy values: arrays and scalars.

Exactly ``numpy.ndarray``, of a plain or structured dtype.  Values, dtype (byte order included) and
shape are kept; memory order is not (all come back row-major), nor are read-only flags.  Canonical
bytes are row-major and little-endian, with the padding of structured items zeroed.

Imports numpy; ``describe`` imports it only if numpy is there already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from castore.model.encoding import EncodingError, encode
from castore.model.grid import Grid
from castore.model.objects import INLINE_BYTES, DataValue, Leaf
from castore.state.blocks import blocks
from castore.state.collector import UNTIED, Collector, Encoder, Refused, plain_bytes
from castore.state.descr import describe_dtype, is_simple, parse_dtype
from castore.state.plain import MAX_SCALAR, ScalarDecoder, ScalarEncoder, expect

__all__ = [
    "SCALAR_DECODERS",
    "SCALAR_ENCODERS",
    "ArraySource",
    "encoders",
    "from_canonical",
    "little",
]

_NDARRAY = encode("ndarray")
_CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def little(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """``dtype`` with all of its parts little-endian, at the same offsets."""
    return dtype.newbyteorder("<")


def assign(into: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
    """Copy values bit for bit; byte order may differ, padding is left alone."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            assign(into[name], array[name])
    elif is_simple(array.dtype) and array.itemsize in _CARRIERS and array.itemsize:
        # As integers: no conversion, however odd the value (a bool of 2, a NaN's payload).
        carrier = _CARRIERS[array.itemsize]
        into.view(carrier)[...] = array.view(carrier)
    else:
        into[...] = array  # the same kind and size: bytes are moved or swapped, never converted


class ArraySource:
    """The canonical bytes of one array.  Keeps the array alive."""

    __slots__ = ("array", "nbytes")

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.nbytes = array.nbytes

    def view(self) -> memoryview | None:
        """The array's memory, if its canonical bytes lie there as they are."""
        array = self.array
        if not self.nbytes:
            return memoryview(b"")
        if not (is_simple(array.dtype) and array.flags.c_contiguous):
            return None
        return array.reshape(-1).view(np.uint8).data

    def fill(self, out: memoryview, start: int) -> None:
        """Write canonical bytes ``start .. start + len(out)`` into ``out``."""
        array = self.array
        dtype = little(array.dtype)
        for block in blocks(array.shape, dtype.itemsize, start, start + len(out)):
            index: Any = (*block.index, ...)  # the dots keep a single item an array
            part = array[index]
            into = out[block.start : block.start + block.nbytes]
            if block.last >= 0:
                rows = part[block.first : block.last]
                if dtype.names is not None:
                    into[:] = bytes(len(into))  # padding
                assign(np.frombuffer(into, np.uint8).view(dtype).reshape(rows.shape), rows)
            else:
                item = np.zeros(dtype.itemsize, np.uint8)
                assign(item.view(dtype).reshape(()), part)
                into[:] = item.tobytes()[block.skip : block.skip + block.nbytes]


def encoders(collector: Collector) -> dict[type, Encoder]:
    """The encoder of ``numpy.ndarray``, exactly that."""
    views: dict[Any, DataValue] = {}

    def encode_array(array: npt.NDArray[Any]) -> Leaf:
        descr = describe_dtype(array.dtype)
        source = ArraySource(array)
        elements = [descr, array.itemsize, list(array.shape)]
        value = DataValue(
            [_NDARRAY, *map(encode, elements)],
            UNTIED,
            Grid.of(array.shape, array.itemsize, collector.chunk_size),
            source,
        )
        if source.nbytes:
            address = array.__array_interface__["data"][0]
            key = (address, array.shape, array.strides, value.before[1])
            first = views.setdefault(key, value)
            if first is not value:
                collector.tie(first, value)
                return value
        if source.nbytes <= INLINE_BYTES:
            value.inline = plain_bytes(source)
        collector.data.append(value)
        return value

    return {np.ndarray: encode_array}


# -- scalars ------------------------------------------------------------------------------------


def _encode_scalar(value: np.generic) -> bytes:
    if isinstance(value, np.str_):  # its dtype drops trailing NULs, which are part of the text
        text = str.__str__(value)
        descr, content = f"<U{len(text)}", text.encode("utf-32-le", "surrogatepass")
    elif isinstance(value, np.bytes_):
        content = bytes.__getitem__(value, slice(None))
        descr = f"|S{len(content)}"
    elif value.dtype.names is not None:
        # A structured scalar is a view of its array, writable and unhashable: no scalar at all.
        raise Refused("a structured numpy scalar", "save numpy.array(value)")
    else:
        descr, content = describe_dtype(value.dtype), value.tobytes()
    data = encode(["npscalar", descr, content])
    if len(data) > MAX_SCALAR:
        raise Refused(f"a numpy scalar of {len(content)} bytes", "save numpy.array(value)")
    return data


def _scalar_types() -> set[type[np.generic]]:
    return {np.dtype(char).type for char in "?bBhHiIlLqQefdgFDGSUVMm"}


SCALAR_ENCODERS: dict[type, ScalarEncoder] = dict.fromkeys(_scalar_types(), _encode_scalar)


def from_canonical(array: npt.NDArray[Any]) -> None:
    """Swap what is big-endian in an array that was filled with canonical bytes."""
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            from_canonical(array[name])
    elif dtype.byteorder == ">":
        array.byteswap(inplace=True)


def _read_scalar(value: list[Any]) -> np.generic:
    expect(
        len(value) == 3 and isinstance(value[1], str) and isinstance(value[2], bytes),
        "a numpy scalar is a dtype and its bytes",
    )
    dtype, content = parse_dtype(value[1]), value[2]
    expect(len(content) == dtype.itemsize, "a numpy scalar of another size than its dtype")
    expect(dtype.byteorder != ">", "a numpy scalar is little-endian")
    if dtype.kind == "U":
        try:
            return np.str_(content.decode("utf-32-le", "surrogatepass"))
        except UnicodeDecodeError as e:
            raise EncodingError(f"a numpy text that is not UTF-32: {e}") from e
    if dtype.kind == "S":
        return np.bytes_(content)
    if dtype.kind == "V":
        return np.void(content)
    return np.frombuffer(content, dtype)[0]  # type: ignore[no-any-return]


SCALAR_DECODERS: dict[str, ScalarDecoder] = {"npscalar": _read_scalar}
