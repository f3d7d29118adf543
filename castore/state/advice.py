"""What to tell a user whose state holds something that castore does not keep.

Looks at types only, by name where the type's module need not be imported.  It never runs code of
the value (no ``repr``, no attribute that could be a property).
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

__all__ = ["refusal", "type_name"]


def type_name(cls: type) -> str:
    """``module.Qualified.Name``, without ``builtins``."""
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"{module}{cls.__qualname__}"


#: By the names of the classes a type descends from, most special first: nothing of these is
#: imported for a state that has none of them.
_BY_NAME = {
    "castore.model.patterns._Omitted": "it was left out of a partial load: load the whole state",
    "torch.distributed.tensor._api.DTensor": "save tensor.full_tensor() or tensor.to_local()",
    "torch.distributed._shard.sharded_tensor.api.ShardedTensor": "save its local shards",
    "torch._subclasses.fake_tensor.FakeTensor": "it has no values: leave it out",
    "torch.nn.parameter.UninitializedTensorMixin": "run the model once, so that it has values",
    "torch.Tensor": "this version keeps plain tensors only: save its parts (data, scales)",
    "torch.nn.modules.module.Module": "save module.state_dict()",
    "torch.optim.optimizer.Optimizer": "save optimizer.state_dict()",
    "torch.optim.lr_scheduler.LRScheduler": "save scheduler.state_dict()",
    "numpy.memmap": "save numpy.array(value), a copy in memory",
    "numpy.ma.MaskedArray": "save value.data and value.mask",
    "numpy.ma.core.MaskedArray": "save value.data and value.mask",
    "numpy.rec.recarray": "save value.view(value.dtype.fields or value.dtype, numpy.ndarray)",
    "numpy.ndarray": "save numpy.asarray(value)",
    "numpy.dtype": "save dtype.str",
    "numpy.random._generator.Generator": "save generator.bit_generator.state",
    "numpy.random.bit_generator.BitGenerator": "save bit_generator.state",
    "numpy.random.mtrand.RandomState": "save random_state.get_state()",
    "argparse.Namespace": "save vars(value)",
    "pathlib.PurePath": "save str(value)",
    "random.Random": "save random.getstate()",
    "io.IOBase": "an open file cannot be kept: save its name or contents",
    "_io._IOBase": "an open file cannot be kept: save its name or contents",
}

_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)


def refusal(value: Any) -> tuple[str, str]:
    """The type of ``value`` in words, and what to do instead."""
    cls = type(value)
    return f"a value of type {type_name(cls)}", _advice(value, cls)


def _advice(value: Any, cls: type) -> str:
    for ancestor in cls.__mro__:
        found = _BY_NAME.get(f"{ancestor.__module__}.{ancestor.__qualname__}")
        if found is not None:
            return found
    if issubclass(cls, enum.Enum):
        return "registered enums come in a later version: save value.value or value.name"
    if issubclass(cls, tuple):
        if hasattr(cls, "_fields"):
            return "registered namedtuples come in a later version: save value._asdict()"
        return "save tuple(value)"
    if dataclasses.is_dataclass(cls):
        return "registered dataclasses come in a later version: save dataclasses.asdict(value)"
    if issubclass(cls, _CODE):
        return "code is never kept: leave it out, or save what it needs to be made again"
    for base in (bool, int, float, complex, str, bytes, dict, list, set, frozenset):
        if issubclass(cls, base):
            return f"types are kept exactly: save {base.__name__}(value)"
    if issubclass(cls, (bytearray, memoryview)):
        return "save bytes(value)"
    if issubclass(cls, (range, deque)):
        return "save list(value)"
    if issubclass(cls, MappingProxyType):
        return "save dict(value)"
    if issubclass(cls, SimpleNamespace):
        return "save vars(value)"
    if issubclass(cls, Iterator):
        return "an iterator's place cannot be kept: save list(value), or the numbers that place it"
    if callable(getattr(cls, "state_dict", None)):
        return "save its state_dict()"
    if "__call__" in vars(cls):
        return "code is never kept: leave it out, or save what it needs to be made again"
    return "save its plain parts (a dict of numbers, texts and tensors)"
