"""What a partial load must give, said in the plainest way: load all, then leave out."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import castore
from castore.model import keypath

__all__ = ["matched_by", "prune", "taken_by"]

_NOTHING = object()


def _expression(pattern: str) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """For the paths that are matched, and for the empty containers that are (None: everything)."""
    components = pattern.strip("/").split("/") if pattern.strip("/") else []
    below = False
    while components and components[-1] == "**":
        components.pop()
        below = True
    if not components:
        return None, None
    text = ""
    for number, component in enumerate(components):
        if component == "**":
            text += "(?:[^/]+/)*"
            continue
        for part in re.split(r"(\*+)", component):
            text += re.escape(part) if "*" not in part else ".*" if "**" in part else "[^/]*"
        text += "/" if number + 1 < len(components) else ""
    if below:
        return re.compile(f"{text}/.+", re.DOTALL), re.compile(text, re.DOTALL)
    return re.compile(text, re.DOTALL), None


def _upwards(path: str) -> Iterator[str]:
    parts = path.split("/") if path else []
    for n in range(len(parts), 0, -1):
        yield "/".join(parts[:n])


def taken_by(pattern: str, path: str, *, empty: bool = False) -> bool:
    """Whether a pattern takes the value at a path (``empty``: an empty container)."""
    matched, when_empty = _expression(pattern)
    if matched is None:
        return True
    if empty and when_empty is not None and path and when_empty.fullmatch(path):
        return True
    return any(matched.fullmatch(part) for part in _upwards(path))


def _children(value: Any) -> list[tuple[Any, str, Any]] | None:
    """Key, name and value of each entry of a container; None for what is none."""
    if isinstance(value, dict):
        names = keypath.names(value)
        return [(key, name, value[key]) for name, key in zip(names, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(i, str(i), item) for i, item in enumerate(value)]
    return None


def matched_by(pattern: str, value: Any, path: str = "") -> bool:
    """Whether a pattern takes anything of a state."""
    children = _children(value)
    if taken_by(pattern, path, empty=children == []):
        return True
    prefix = f"{path}/" if path else ""
    return any(matched_by(pattern, v, prefix + name) for _, name, v in children or ())


def prune(value: Any, patterns: list[str], path: str = "") -> Any:
    """A state without what no pattern takes."""
    pruned = _prune(value, patterns, path)
    assert pruned is not _NOTHING
    return pruned


def _prune(value: Any, patterns: list[str], path: str) -> Any:
    children = _children(value)
    if any(taken_by(pattern, path, empty=children == []) for pattern in patterns):
        return value
    prefix = f"{path}/" if path else ""
    kept = [(k, _prune(v, patterns, prefix + name)) for k, name, v in children or ()]
    if all(v is _NOTHING for _, v in kept):
        return _NOTHING
    if isinstance(value, (list, tuple)):
        return type(value)(castore.OMITTED if v is _NOTHING else v for _, v in kept)
    items = [(k, v) for k, v in kept if v is not _NOTHING]
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, items)
    if isinstance(value, OrderedDict):
        made = OrderedDict(items)
        made.__dict__.update(vars(value))
        return made
    return Counter(dict(items)) if isinstance(value, Counter) else dict(items)
