"""Which key paths a caller asked for: prefixes and globs, as git's path arguments are read.

A path stands for what lies there and everything below.  In a glob ``*``, ``?`` and ``[...]`` stay
within one key, ``**`` crosses any number of them.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

__all__ = ["Paths"]

_WILD = frozenset("*?[")


class Paths:
    """A set of key paths; of no path given, all of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.given = [p.strip("/") for p in paths]
        self._patterns = [tuple(p.split("/")) for p in self.given if p]
        self._all = len(self._patterns) < len(self.given) or not self.given

    @property
    def plain(self) -> list[str]:
        """Those given that are no globs."""
        return [p for p in self.given if not _WILD & set(p)]

    def holds(self, path: str) -> bool:
        """Whether a value at the path was asked for, by itself or with what it lies in."""
        parts = tuple(path.split("/")) if path else ()
        return self._all or any(_prefix(p, parts) for p in self._patterns)

    def leads_on(self, path: str) -> bool:
        """Whether something at the path or below it may have been asked for."""
        parts = tuple(path.split("/")) if path else ()
        return self._all or any(_prefix(p, parts) or _before(p, parts) for p in self._patterns)


@lru_cache(maxsize=4096)
def _prefix(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the pattern matches the path, or one that it lies below."""
    if not pattern:
        return True
    if pattern[0] == "**":
        rest = pattern[1:]
        if not rest:
            return True
        return any(_prefix(rest, parts[i:]) for i in range(len(parts)))
    if not parts or not _one(pattern[0], parts[0]):
        return False
    return _prefix(pattern[1:], parts[1:])


@lru_cache(maxsize=4096)
def _before(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether something below the path may match the pattern."""
    if not parts:
        return True
    if not pattern:
        return False
    if pattern[0] == "**":
        return True
    return _one(pattern[0], parts[0]) and _before(pattern[1:], parts[1:])


def _one(pattern: str, part: str) -> bool:
    return pattern == part or fnmatchcase(part, pattern)
