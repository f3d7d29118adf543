"""Key paths: how people name a place in a state, ``model/layers.0.weight``.

Containers are joined by ``/``; in a text key ``~`` is ``~0`` and ``/`` is ``~1`` (RFC 6901).  An
int key is its digits unless the same dict also holds that text; every other key, and every clash,
is ``~(repr)``.  Paths are text for people and patterns, never file names; identity is the typed
key.  Control characters are shown escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["LONG_INT", "display", "escape", "join", "names", "split"]


def escape(text: str) -> str:
    r"""``~`` as ``~0``, ``/`` as ``~1``; control characters and lone surrogates as ``\xNN``."""
    text = text.replace("~", "~0").replace("/", "~1")
    return text if text.isprintable() else "".join(_visible(c) for c in text)


def _visible(char: str) -> str:
    if char.isprintable() or char == " ":
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _odd(key: Any) -> str:
    return f"~({escape(_repr(key))})" if key != "" else '~("")'


def _repr(key: Any) -> str:
    try:
        return repr(key)
    except ValueError:  # Python does not write out an int of more than some thousand digits
        return f"tuple of {len(key)}" if isinstance(key, tuple) else hex(key)


#: Bits of an int that is written as its digits; a longer one as ``~(0x...)``.
LONG_INT = 4096


def _name(key: Any) -> str:
    if type(key) is str and key:
        return escape(key)
    return str(key) if type(key) is int and key.bit_length() <= LONG_INT else _odd(key)


def names(keys: Iterable[Any]) -> list[str]:
    """The path component of each key of one mapping, all different."""
    keys = list(keys)
    out = [_name(key) for key in keys]
    if len(set(out)) == len(out):
        return out
    # A clash: a text key that looks like an int's digits wins, and whatever else collides with
    # a name already given is told apart by its repr (with its place, should even that be taken).
    taken: set[str] = {escape(k) for k in keys if type(k) is str and k}
    seen: set[str] = set()
    for i, key in enumerate(keys):
        name = out[i]
        if name in seen or (not (type(key) is str and key) and name in taken):
            name = _odd(key)
        while name in seen:
            name += f"~{i}"
        seen.add(name)
        out[i] = name
    return out


def join(parts: Sequence[str]) -> str:
    """Components as one path; the root is the empty path."""
    return "/".join(parts)


def split(path: str) -> list[str]:
    """A path as components."""
    return path.split("/") if path else []


def display(path: str) -> str:
    """The path for a message: the root by name."""
    return path or "(the root)"
