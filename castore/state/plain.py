"""Plain Python values, both ways: numbers, texts, byte strings, paths; and the keys of mappings.

``None``, ``bool``, ints of 64 bits, floats and short texts and byte strings are their own msgpack;
the others are arrays that begin with a tag.  A *scalar* has no content, so it may also be a key.
Never imports torch or numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from castore.errors import UnsupportedFeature
from castore.model.encoding import EncodingError, array_bytes, encode
from castore.model.objects import CONTENT_AT, INLINE_BYTES, Leaf
from castore.state import times
from castore.state.collector import Collector, Encoder, Refused, is_text

__all__ = [
    "MAX_KEY",
    "MAX_SCALAR",
    "SCALAR_DECODERS",
    "SCALAR_ENCODERS",
    "ScalarDecoder",
    "ScalarEncoder",
    "check_native",
    "content_decoder",
    "decode_key",
    "encode_key",
    "encoders",
    "expect",
]

ScalarEncoder = Callable[[Any], bytes]
ScalarDecoder = Callable[[list[Any]], Any]

#: The longest encoding of a key.  A node has 256 entries, so its object stays far below MAX_OBJECT.
MAX_KEY = 64 << 10
#: The longest encoding of a scalar that has no content (a path, a numpy text scalar).
MAX_SCALAR = 64 << 10
#: Tuples within tuples as keys.  The msgpack below nests three levels for each.
MAX_KEY_DEPTH = 32

_INT_MIN, _INT_STOP = -(1 << 63), 1 << 64
_TUPLE_KEY = (encode("tuple"), encode(0), encode(None))
_NODE = encode("node")
_PATHS: dict[str, type[PurePath]] = {
    "PosixPath": PosixPath,
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
}


def expect(condition: bool, problem: str) -> None:
    """Refuse what was read.

    Raises:
        EncodingError: ``condition`` does not hold.
    """
    if not condition:
        raise EncodingError(problem)


def _int_bytes(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "little", signed=True)


def _bounded(data: bytes, what: str, advice: str) -> bytes:
    if len(data) > MAX_SCALAR:
        raise Refused(f"{what} of {len(data)} bytes", advice)
    return data


def _encode_complex(value: complex) -> bytes:
    return encode(["complex", struct.pack("<dd", value.real, value.imag)])


def _encode_path(value: PurePath) -> bytes:
    again = type(value)(str(value))
    if (again.parts, again.drive, again.root) != (value.parts, value.drive, value.root):
        raise Refused(f"a path whose text {str(value)!r} reads otherwise", "keep value.parts")
    text = str(value).encode("utf-8", "surrogatepass")
    data = encode(["path", type(value).__name__, text])
    return _bounded(data, "a path", "keep str(path) instead")


SCALAR_ENCODERS: dict[type, ScalarEncoder] = {
    type(None): encode,
    bool: encode,
    float: encode,
    complex: _encode_complex,
    **dict.fromkeys(_PATHS.values(), _encode_path),
    **times.ENCODERS,
}


def encoders(collector: Collector) -> dict[type, Encoder]:
    """The encoder of each plain type, exactly that type."""

    def encode_int(value: int) -> Leaf:
        if _INT_MIN <= value < _INT_STOP:
            return encode(value)
        return collector.bytes_value([_INT], _int_bytes(value))

    def encode_str(value: str) -> Leaf:
        if value.isascii():
            if len(value) <= INLINE_BYTES:
                return _ascii(value)
            return collector.bytes_value([_STR], value.encode())
        data = value.encode("utf-8", "surrogatepass")
        if len(data) <= INLINE_BYTES and is_text(value):
            return encode(value)
        return collector.bytes_value([_STR], data)

    def encode_bytes(value: bytes) -> Leaf:
        if len(value) <= INLINE_BYTES:
            return encode(value)
        return collector.bytes_value([_BYTES], value)

    return {**SCALAR_ENCODERS, int: encode_int, str: encode_str, bytes: encode_bytes}


_INT, _STR, _BYTES = encode("int"), encode("str"), encode("bytes")


#: What stands before a short text: by its number of bytes.
_TEXT_HEADS = [encode("x" * n)[: -n or None] for n in range(INLINE_BYTES + 1)]


def _ascii(value: str) -> bytes:
    """``encode(value)`` of a short ASCII text, in a fifth of the time: most keys are such."""
    return _TEXT_HEADS[len(value)] + value.encode()


# -- keys ---------------------------------------------------------------------------------------


def encode_key(value: Any, scalars: dict[type, ScalarEncoder]) -> bytes:
    """A mapping's key: as a value, but with its content always inside.

    Raises:
        Refused: it cannot be kept exactly.
    """
    if type(value) is str and value.isascii() and len(value) <= INLINE_BYTES:
        return _ascii(value)
    data = _encode_key(value, scalars, 0)
    if len(data) > MAX_KEY:
        raise Refused(f"a key of {len(data)} bytes", f"keys may have {MAX_KEY} bytes")
    return data


def _encode_key(value: Any, scalars: dict[type, ScalarEncoder], depth: int) -> bytes:
    kind = type(value)
    if kind is str:
        if value.isascii() or is_text(value):
            return encode(value)
        return encode(["str", [0, value.encode("utf-8", "surrogatepass")]])
    if kind is int:
        if _INT_MIN <= value < _INT_STOP:
            return encode(value)
        return encode(["int", [0, _int_bytes(value)]])
    if kind is bytes:
        return encode(value)
    if kind is tuple:
        if depth == MAX_KEY_DEPTH:
            raise Refused("a key of tuples nested too deep", f"at most {MAX_KEY_DEPTH}")
        items = array_bytes([_encode_key(item, scalars, depth + 1) for item in value])
        return array_bytes([_NODE, array_bytes([*_TUPLE_KEY, items])])
    encoder = scalars.get(kind)
    if encoder is None:
        raise Refused(
            f"a key of type {kind.__module__}.{kind.__qualname__}",
            "keys may be plain scalars or tuples of them",
        )
    return encoder(value)


def decode_key(value: Any, scalars: Callable[[str], ScalarDecoder | None], depth: int = 0) -> Any:
    """The key that ``value`` stands for.

    Raises:
        EncodingError: it is none.
    """
    if type(value) is str:
        return value
    if not isinstance(value, list):
        expect(not isinstance(value, dict), "a map is no key")
        return value
    expect(bool(value) and isinstance(value[0], str), "not a key")
    tag = value[0]
    if tag == "node":
        node = value[1] if len(value) == 2 else None
        expect(
            isinstance(node, list)
            and len(node) == 4
            and node[:3] == ["tuple", 0, None]
            and isinstance(node[3], list)
            and depth < MAX_KEY_DEPTH,
            "a container as a key is a tuple",
        )
        return tuple(decode_key(item, scalars, depth + 1) for item in value[1][3])
    if tag in ("str", "int"):
        held = value[1] if len(value) == 2 else None
        expect(
            isinstance(held, list)
            and len(held) == 2
            and held[0] == 0
            and isinstance(held[1], bytes),
            "a key holds its content",
        )
        if tag == "int":
            return decode_int(value[1][1])
        text = _text(value[1][1])
        expect(not is_text(text), "a key that is not in its shortest form")
        return text
    expect(tag not in CONTENT_AT and tag != "tree", f"a key that is a {tag}")
    decoder = scalars(tag)
    if decoder is None:
        raise UnsupportedFeature(f"a key of kind {tag!r}, which this castore does not know")
    return decoder(value)


# -- reading ------------------------------------------------------------------------------------


def _decode_complex(value: list[Any]) -> complex:
    expect(
        len(value) == 2 and isinstance(value[1], bytes) and len(value[1]) == 16,
        "a complex number is 16 bytes",
    )
    return complex(*struct.unpack("<dd", value[1]))


def _decode_path(value: list[Any]) -> PurePath:
    expect(
        len(value) == 3 and isinstance(value[1], str) and isinstance(value[2], bytes),
        "a path is a class name and its text",
    )
    cls = _PATHS.get(value[1])
    if cls is None:
        raise UnsupportedFeature(f"a path of class {value[1]!r}, which this castore does not know")
    text = _text(value[2])
    try:
        path = cls(text)
    except NotImplementedError as e:
        raise UnsupportedFeature(f"a {value[1]} cannot be made on this system") from e
    expect(str(path) == text, "a path that is not in its shortest form")
    return path


SCALAR_DECODERS: dict[str, ScalarDecoder] = {
    "complex": _decode_complex,
    "path": _decode_path,
    **times.DECODERS,
}


def check_native(value: Any) -> None:
    """Refuse a value without a tag that should have one.

    Raises:
        EncodingError: a map, or a text or byte string that is too long to be its own encoding.
    """
    if isinstance(value, str):
        # A character has at most four bytes, so most texts need no encoding to be measured.
        short = len(value) <= INLINE_BYTES // 4 or len(value.encode()) <= INLINE_BYTES
        expect(short, "a long text that is not a content")
    elif isinstance(value, bytes):
        expect(len(value) <= INLINE_BYTES, "a long byte string that is not a content")
    else:
        expect(not isinstance(value, (dict, list)), "not a value")


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as e:
        raise EncodingError(f"a text that is not UTF-8: {e}") from e


def decode_str(data: bytes) -> str:
    """A long or odd text.

    Raises:
        EncodingError: it is neither, or no UTF-8.
    """
    text = _text(data)
    expect(len(data) > INLINE_BYTES or not is_text(text), "a short text as a content")
    return text


def decode_bytes(data: bytes) -> bytes:
    """A long byte string.

    Raises:
        EncodingError: it is short.
    """
    expect(len(data) > INLINE_BYTES, "a short byte string as a content")
    return data


def decode_int(data: bytes) -> int:
    """An int beyond 64 bits.

    Raises:
        EncodingError: it is not, or not in its shortest form.
    """
    value = int.from_bytes(data, "little", signed=True)
    expect(not _INT_MIN <= value < _INT_STOP, "a small int as a content")
    expect(_int_bytes(value) == data, "an int that is not in its shortest form")
    return value


def content_decoder(tag: str) -> Callable[[bytes], Any] | None:
    """How a plain value is made of its content; None where ``tag`` is of another kind."""
    return {"str": decode_str, "bytes": decode_bytes, "int": decode_int}.get(tag)
