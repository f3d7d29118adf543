"""numpy dtypes as plain data, both ways: ``'<f4'``, or nested lists for structured ones.

The description keeps everything that ``==`` of dtypes sees, and byte order, titles excepted (these
are refused).  A structured dtype is ``["struct", itemsize, aligned, [[name, descr, offset], ...]]``
and a field that is an array ``["sub", descr, shape]``.  What is read is checked letter by letter:
numpy's own parser takes far more than castore writes.  Imports numpy.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np

from castore.model.encoding import EncodingError, encode
from castore.state.collector import Refused, is_text

__all__ = ["describe_dtype", "is_simple", "parse_dtype"]

_UNIT = r"(\[[1-9]?\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
_TEXT = re.compile(
    rf"\|b1|\|[iu]1|[<>]([iu][248]|f[248]|c8|c16|[qQ]|[mM]8{_UNIT}|U\d{{1,9}})|\|[SV]\d{{1,9}}"
)
_MAX_FIELDS = 1024
_MAX_NAME = 256
_MAX_NESTING = 16  # two msgpack levels each; numpy recurses over them, and so may we


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """``dtype`` as plain data.

    Raises:
        Refused: it cannot be kept exactly.
    """
    descr = _describe(dtype, 0)
    if _parse(descr, 0) != dtype:
        raise Refused(f"dtype {dtype!r}", "convert the array to a plain dtype")
    return descr


def is_simple(dtype: np.dtype[Any]) -> bool:
    """Whether an item of ``dtype`` is one number or text, in the host's (little-endian) order."""
    return dtype.names is None and dtype.subdtype is None and dtype.byteorder != ">"


def _describe(dtype: np.dtype[Any], depth: int) -> Any:
    if dtype.metadata is not None:
        raise Refused("a dtype that carries metadata", "use the dtype without it")
    if depth > _MAX_NESTING:
        raise Refused("a structured dtype nested too deep", "save its fields apart")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", _describe(base, depth + 1), list(shape)]
    if dtype.names is not None:
        return _describe_struct(dtype, depth)
    text = dtype.str
    if not _TEXT.fullmatch(text) or dtype.hasobject:
        raise Refused(f"dtype {dtype!r}", _advice(dtype))
    plain = np.dtype(text)
    if plain.char != dtype.char and dtype.char in "qQ":  # longlong: int64's twin, another type
        text = text[0] + dtype.char
        plain = np.dtype(text)
    # An extension dtype (ml_dtypes' bfloat16 is of kind V) passes for a plain one by its letters.
    if plain.type is not dtype.type or plain.char != dtype.char:
        raise Refused(f"dtype {dtype!r}", _advice(dtype))
    return text


def _describe_struct(dtype: np.dtype[Any], depth: int) -> Any:
    assert dtype.names is not None
    assert dtype.fields is not None
    if dtype.type is not np.void:
        raise Refused(f"dtype {dtype!r}", "use the same dtype with type numpy.void")
    if len(dtype.names) > _MAX_FIELDS:
        raise Refused(f"a structured dtype of {len(dtype.names)} fields", "save its fields apart")
    fields = []
    for name in dtype.names:
        field, offset, *title = dtype.fields[name]
        if title:
            raise Refused("a structured dtype with titles", "use the dtype without titles")
        if not (len(name) <= _MAX_NAME and is_text(name)):
            raise Refused("a structured dtype with an odd field name", "rename the field")
        fields.append([name, _describe(field, depth + 1), offset])
    if _overlap(dtype):
        raise Refused("a structured dtype whose fields overlap", "save its fields apart")
    return ["struct", dtype.itemsize, dtype.isalignedstruct, fields]


def _overlap(dtype: np.dtype[Any]) -> bool:
    assert dtype.fields is not None
    spans = sorted(
        (offset, offset + field.itemsize)
        for field, offset, *_ in dtype.fields.values()
        if field.itemsize
    )
    return any(a[1] > b[0] for a, b in pairwise(spans))


def _advice(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "T":
        return "save array.astype('U') or array.tolist()"
    if dtype.hasobject:
        return "save array.tolist(), or an array of a plain dtype"
    if dtype.kind in "fc":
        return "its layout differs between machines: save array.astype('f8') or 'c16'"
    return "save array.view() as a plain dtype of that size, or a torch tensor"


def parse_dtype(descr: Any) -> np.dtype[Any]:
    """The dtype that ``descr`` describes.

    Raises:
        EncodingError: it describes none, or is not the canonical description.
    """
    dtype = _parse(descr, 0)
    try:
        again = _describe(dtype, 0)
    except Refused as e:
        raise EncodingError(f"a dtype that castore does not write: {e.what}") from e
    if encode(again) != encode(descr):  # in Python, 0 is False
        raise EncodingError("a dtype that is not described in its canonical form")
    return dtype


def _parse(descr: Any, depth: int) -> np.dtype[Any]:
    if depth > _MAX_NESTING:
        raise EncodingError("a structured dtype nested too deep")
    try:
        if isinstance(descr, str) and _TEXT.fullmatch(descr):
            return np.dtype(descr)
        if isinstance(descr, list) and descr:
            if descr[0] == "sub" and len(descr) == 3 and descr[2]:
                return np.dtype((_parse(descr[1], depth + 1), tuple(map(_size, descr[2]))))
            if descr[0] == "struct" and len(descr) == 4 and len(descr[3]) <= _MAX_FIELDS:
                return _parse_struct(descr, depth)
    except (TypeError, ValueError, OverflowError) as e:
        raise EncodingError(f"not a dtype: {e}") from e
    raise EncodingError("not a dtype")


def _parse_struct(descr: list[Any], depth: int) -> np.dtype[Any]:
    _tag, itemsize, aligned, fields = descr
    names, formats, offsets = [], [], []
    for name, field, offset in fields:
        if not isinstance(name, str):
            raise EncodingError("a field's name is a text")
        names.append(name)
        formats.append(_parse(field, depth + 1))
        offsets.append(_size(offset))
    spec = {"names": names, "formats": formats, "offsets": offsets, "itemsize": _size(itemsize)}
    return np.dtype(spec, align=aligned is True)  # type: ignore[call-overload, no-any-return]


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise EncodingError("a dtype's sizes and offsets are small ints")
    return value
