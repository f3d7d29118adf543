"""What a caller says of a save, checked: step, message, meta."""

from __future__ import annotations

import operator
from typing import Any

from castore.errors import BadState, UsageError
from castore.model.encoding import encode

__all__ = ["MAX_MESSAGE", "MAX_META", "checked_message", "plain_meta", "step_number"]

_META_DEPTH = 64
#: Bytes of ``meta``: it is read to look at a checkpoint.
MAX_META = 1 << 20
#: Characters of a message: it stands in the log.
MAX_MESSAGE = 10_000


def step_number(step: Any) -> int | None:
    """A step as a plain int: any whole number of 64 bits.

    Raises:
        UsageError: it is something else.
    """
    if step is None:
        return None
    try:
        number = operator.index(step)
    except TypeError:
        raise UsageError(f"step is a whole number, not {step!r}") from None
    if not -(1 << 63) <= number < 1 << 63 or isinstance(step, bool):
        raise UsageError(f"step is a 64-bit number, not {step!r}")
    return number


def checked_message(message: Any) -> str | None:
    """A message as it is.

    Raises:
        UsageError: no text, no valid Unicode, or too long.
    """
    if message is None:
        return None
    if not isinstance(message, str):
        raise UsageError(f"message is text, not {type(message).__name__}")
    if not _is_unicode(message) or len(message) > MAX_MESSAGE:
        raise UsageError(f"message is at most {MAX_MESSAGE} characters of valid Unicode")
    return message


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_meta(meta: Any) -> dict[str, Any]:
    """A copy of a user's ``meta`` as plain data.

    Raises:
        BadState: it holds something else; names the place.
    """
    if not isinstance(meta, dict):
        raise BadState(f"meta is a dict, not {type(meta).__name__}", path="", paths=[""])
    plain: dict[str, Any] = _plain_meta(meta, "meta", 0)
    size = len(encode(plain))
    if size > MAX_META:
        raise BadState(
            f"meta comes to {size:,} bytes, and has at most {MAX_META:,}: put it into the state",
            path="meta",
            paths=["meta"],
        )
    return plain


def _is_numpy_scalar(value: Any) -> bool:
    """Whether ``value`` is a number or bool of numpy's (whose float64 alone is a ``float``)."""
    kinds = ("bool", "bool_", "int", "uint", "float")
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__.rstrip("0123456789") in kinds


def _plain_meta(value: Any, path: str, depth: int) -> Any:
    if depth > _META_DEPTH:
        raise BadState(f"{path} is nested deeper than {_META_DEPTH}", path=path, paths=[path])
    if isinstance(value, str) and not _is_unicode(value):
        raise BadState(f"{path} is no valid Unicode: {value!r}", path=path, paths=[path])
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return int(value)
        raise BadState(f"{path} is an int beyond 64 bits", path=path, paths=[path])
    if isinstance(value, float):
        return float(value)
    if _is_numpy_scalar(value):
        return _plain_meta(value.item(), path, depth + 1)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not _is_unicode(key):
                raise BadState(
                    f"{path} has a key that is no text: {key!r}", path=path, paths=[path]
                )
        return {k: _plain_meta(v, f"{path}/{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_meta(v, f"{path}/{i}", depth + 1) for i, v in enumerate(value)]
    raise BadState(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}; meta holds numbers, "
        "texts, lists and dicts (of a tensor or array scalar, give .item()); put the rest into the "
        "state",
        path=path,
        paths=[path],
    )
