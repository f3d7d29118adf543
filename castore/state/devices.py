"""Where a load puts tensors: devices by name, by key path, or by patterns.

Random states and 0-dim tensors (AdamW's ``step``) are host data whatever the rest of the state is
for, so they stay on the CPU unless they are named themselves.  Imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from castore.errors import UnsupportedFeature, UsageError
from castore.model import keypath
from castore.model.patterns import Pattern

if TYPE_CHECKING:
    from castore.state.tensor_slots import TensorSlot

__all__ = ["Placement", "empty"]

#: Bytes of the state of torch's generator on the CPU, in all of its versions.
_RNG_SIZES = {5048, 5056}
#: Words that say in a key path that a short vector of bytes is a random state (CUDA: 16 bytes).
_RNG_WORDS = re.compile(r"rng|random|generator|seed", re.IGNORECASE)


class Placement:
    """A caller's ``device=``, checked: which device each tensor goes to."""

    def __init__(self, device: Any) -> None:
        """Take a name or ``torch.device``, a function of the key path, or a dict of patterns.

        Raises:
            UsageError: it is none of these, or the meta device.
            UnsupportedFeature: there is no such device here.
        """
        self._known: dict[str | int | torch.device, torch.device | None] = {}
        self._rules: list[tuple[Pattern, torch.device | None]] = []
        self._named: dict[str, torch.device | None] = {}
        self._function = None
        if isinstance(device, Mapping):
            for text, name in device.items():
                if not isinstance(text, str):
                    raise UsageError(f"device= is a dict of patterns, and {text!r} is none")
                pattern = Pattern(text)
                self._rules.append((pattern, self._device(name)))
                if pattern.literal:
                    self._named[text.strip("/")] = self._device(name)
        elif callable(device):
            self._function = device
        else:
            self._rules.append((Pattern("**"), self._device(device)))

    def device_of(self, path: str, slot: TensorSlot) -> torch.device | None:
        """Where the tensor at a key path goes; None: to the CPU.

        Raises:
            UsageError, UnsupportedFeature: the function names no device of this machine.
        """
        if self._function is not None:
            return self._device(self._function(path))
        if path in self._named:
            return self._named[path]
        if _is_host_data(path, slot):
            return None
        for pattern, device in self._rules:
            if pattern.matches(path):
                return device
        return None

    def _device(self, name: Any) -> torch.device | None:
        """A device that is here; None for the CPU."""
        if name is None:
            return None
        if not isinstance(name, (str, int, torch.device)):
            raise UsageError(f"{name!r} is no device: give a name such as 'cuda:0'")
        if name not in self._known:
            self._known[name] = _device(name)
        return self._known[name]


def _is_host_data(path: str, slot: TensorSlot) -> bool:
    shape = slot.head.shape
    if not shape:
        return True
    if len(shape) != 1 or slot.head.entry.dtype is not torch.uint8:
        return False
    if shape[0] in _RNG_SIZES:
        return True
    return shape[0] < max(_RNG_SIZES) and any(map(_RNG_WORDS.search, keypath.split(path)))


def _device(name: Any) -> torch.device | None:
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise UsageError(f"{name!r} is no device: {str(e).splitlines()[0]}") from e
    if device.type == "cpu":
        return None
    if device.type == "meta":
        raise UsageError("the meta device keeps no values: there is nothing to load to it")
    try:
        empty(torch.uint8, (1,), (1,), device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        raise UnsupportedFeature(f"device {device} is not here: {str(e).splitlines()[0]}") from e
    return device


def empty(
    dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """A new tensor on a device that is not the CPU."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)
