"""Small torch values, both ways: Size, dtype, device, layout, memory format and Generator.

Imports torch; imported only where a state or a tree has need of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from castore.errors import UnsupportedFeature
from castore.model.encoding import EncodingError, encode
from castore.model.objects import Leaf
from castore.state import dtypes
from castore.state.collector import Collector, Encoder, Refused, plain_bytes
from castore.state.plain import MAX_SCALAR, ScalarDecoder, ScalarEncoder, expect
from castore.state.tensor_source import TensorSource

__all__ = ["SCALAR_DECODERS", "SCALAR_ENCODERS", "encoders", "make_generator"]


def _by_name(cls: type) -> dict[str, Any]:
    found = (getattr(torch, attribute) for attribute in sorted(dir(torch)))
    return {_short(value): value for value in found if isinstance(value, cls)}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


_NAMED: dict[str, dict[str, Any]] = {
    "torch.dtype": dtypes.ALL,
    "torch.layout": _by_name(torch.layout),
    "torch.memory_format": _by_name(torch.memory_format),
}


def _encode_size(value: torch.Size) -> bytes:
    if not all(type(n) is int for n in value):
        raise Refused("a torch.Size with symbolic dimensions", "save concrete sizes")
    data = encode(["torch.Size", list(value)])
    if len(data) > MAX_SCALAR:
        raise Refused(f"a torch.Size of {len(value)} dimensions", "save list(size)")
    return data


def _encode_named(tag: str) -> ScalarEncoder:
    def encode_named(value: Any) -> bytes:
        name = _short(value)
        if _NAMED[tag].get(name) is not value:
            raise Refused(f"{value}, which torch itself does not name", "leave it out")
        return encode([tag, name])

    return encode_named


SCALAR_ENCODERS: dict[type, ScalarEncoder] = {
    torch.Size: _encode_size,
    torch.dtype: _encode_named("torch.dtype"),
    torch.layout: _encode_named("torch.layout"),
    torch.memory_format: _encode_named("torch.memory_format"),
    torch.device: lambda value: encode(["torch.device", str(value)]),
}


def encoders(collector: Collector) -> dict[type, Encoder]:
    """The encoders that need a collector: of ``torch.Generator``."""

    def encode_generator(value: torch.Generator) -> Leaf:
        state = value.get_state()
        before = [encode("torch.Generator"), encode(str(value.device))]
        return collector.bytes_value(before, plain_bytes(TensorSource(state, state.nbytes)))

    return {torch.Generator: encode_generator}


# -- reading ------------------------------------------------------------------------------------


def _read_size(value: list[Any]) -> torch.Size:
    sizes: Any = value[1] if len(value) == 2 else None
    expect(
        isinstance(sizes, list) and all(type(n) is int and abs(n) < 1 << 63 for n in sizes),
        "a torch.Size is a list of ints",
    )
    return torch.Size(sizes)


def _read_named(value: list[Any]) -> Any:
    expect(len(value) == 2 and isinstance(value[1], str), f"a {value[0]} is a name")
    found = _NAMED[value[0]].get(value[1])
    if found is None:
        raise UnsupportedFeature(
            f"{value[0]} {value[1]!r}: torch {torch.__version__} has none of that name"
        )
    return found


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError as e:
        raise UnsupportedFeature(f"device {text!r}: {str(e).splitlines()[0]}") from e
    expect(str(device) == text, "a device that is not in its canonical form")
    return device


def _read_device(value: list[Any]) -> torch.device:
    expect(len(value) == 2 and isinstance(value[1], str), "a torch.device is a text")
    return _device(value[1])


SCALAR_DECODERS: dict[str, ScalarDecoder] = {
    "torch.Size": _read_size,
    "torch.dtype": _read_named,
    "torch.layout": _read_named,
    "torch.memory_format": _read_named,
    "torch.device": _read_device,
}


def make_generator(value: list[Any]) -> Callable[[bytes], torch.Generator]:
    """How the generator that ``value`` describes is made of its content.

    Raises:
        EncodingError: no generator.
        UnsupportedFeature: of a device that is not here.
    """
    expect(len(value) == 3 and isinstance(value[1], str), "a generator has a device and a state")
    device = _device(value[1])

    def make(content: bytes) -> torch.Generator:
        try:
            generator = torch.Generator(device)
        except (RuntimeError, AssertionError) as e:
            raise UnsupportedFeature(
                f"the generator's device {value[1]} is not here: {str(e).splitlines()[0]}"
            ) from e
        expect(bool(content), "a generator without a state")
        state = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        try:
            generator.set_state(state)
        except (RuntimeError, TypeError) as e:
            raise EncodingError(f"not the state of a generator: {str(e).splitlines()[0]}") from e
        return generator

    return make
