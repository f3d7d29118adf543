"""Patterns over key paths: which values of a state a caller means.  Pure.

``*`` stands for any text within one key, ``**`` for any text at all, across keys; as a whole
component (``model/**/bias``) ``**`` stands for any number of keys, none included.  Nothing else is
special, so every key path that castore shows, escapes and all, is a pattern that matches it.  A
pattern that matches a container means all of it; ``model/**`` means all that is in ``model``.

A pattern is a small automaton that takes a path key by key.  So a walk over a tree knows at every
container whether anything below it can still match, and leaves alone what cannot.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from castore.errors import UsageError
from castore.model import keypath

__all__ = ["OMITTED", "WHOLE", "Chosen", "Pattern", "Selection", "selection_of"]

#: Names that an error lists.
MAX_NAMES = 8

_FINAL = -1


class _Omitted:
    """The type of :data:`OMITTED`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "castore.OMITTED"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "OMITTED"


#: Stands, in a list or tuple of a state that was loaded with ``only=``, for an item that was left
#: out.  There is one; it is false, pickles as itself, and no state that holds it can be saved.
OMITTED = _Omitted()


@dataclass(slots=True)
class _Node:
    """A state of the automaton: which keys lead on from it, and where to.

    Attributes:
        edges: ``(key, next)``: a key's text, a regular expression, or None for any key.
        wanted: the component that is looked for here, for messages.
        all_below: the pattern ends in ``/**`` here: an empty container is matched as it is.
    """

    edges: list[tuple[str | re.Pattern[str] | None, int]] = field(default_factory=list)
    wanted: str = ""
    all_below: bool = False


class Pattern:
    """One compiled pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        components = keypath.split(text.strip("/"))
        all_below = False
        while components and components[-1] == "**":
            components.pop()
            all_below = True
        #: Whether it matches the root: everything.
        self.everything = not components
        #: Whether it is a plain key path, without a ``*``.
        self.literal = "*" not in text
        if all_below and components:
            components.append("*")
        self.nodes = [_Node()]
        for number, component in enumerate(components):
            last = number == len(components) - 1
            if component == "**":
                self._loop(len(self.nodes) - 1)
            else:
                self._add(component, last)
        self.nodes[-1].all_below = all_below

    def _loop(self, node: int) -> None:
        self.nodes[node].edges.append((None, node))

    def _add(self, component: str, last: bool) -> None:
        """Edges for a component; a ``**`` inside it may end it and go on in any later one."""
        pieces = component.split("**")
        begin = len(self.nodes) - 1
        inner = [begin]  # where each piece is looked for
        for _ in pieces[1:]:
            self.nodes.append(_Node())
            inner.append(len(self.nodes) - 1)
            self._loop(inner[-1])
        end = _FINAL
        if not last:
            self.nodes.append(_Node())
            end = len(self.nodes) - 1
        for i, node in enumerate(inner):
            self.nodes[node].wanted = component
            for j in range(i, len(pieces)):
                text = "**".join(pieces[i : j + 1])
                if i:
                    text = f"*{text}"  # what is left of this key before the piece
                if j + 1 < len(pieces):
                    self.nodes[node].edges.append((_test(f"{text}*"), inner[j + 1]))
                else:
                    self.nodes[node].edges.append((_test(text), end))

    def step(self, node: int, name: str) -> list[int]:
        """The states that a key leads to from one."""
        return [
            target
            for test, target in self.nodes[node].edges
            if test is None
            or (test == name if isinstance(test, str) else test.fullmatch(name) is not None)
        ]

    def matches(self, path: str) -> bool:
        """Whether it matches a key path, or a container that the path leads through."""
        states = {0}
        if self.everything:
            return True
        for name in keypath.split(path):
            states = {after for node in states for after in self.step(node, name)}
            if _FINAL in states:
                return True
        return False


def _test(text: str) -> str | re.Pattern[str] | None:
    if not text.strip("*"):
        return None
    if "*" not in text:
        return text
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", text))), re.DOTALL)


class Chosen(NamedTuple):
    """What a selection says of one value.

    Attributes:
        taken: it is meant, and all that is in it.
        states: ``(pattern, state)`` of each pattern that may match something in it, as far as that
            is of interest: where all is taken anyway, of patterns that have matched nothing yet.
    """

    taken: bool
    states: tuple[tuple[int, int], ...]


#: All of it, and no pattern left to ask.
WHOLE = Chosen(True, ())


class Selection:
    """Several patterns, asked together along one walk over a state.  Serves one walk."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = patterns
        self._matched = [False] * len(patterns)
        #: For each pattern the deepest container that it reached, for messages.
        self._reached: list[tuple[int, str, Callable[[], tuple[str, list[str]]]] | None]
        self._reached = [None] * len(patterns)

    def root(self) -> Chosen:
        """What is said of the root."""
        taken = False
        for number, pattern in enumerate(self.patterns):
            if pattern.everything:
                self._matched[number] = taken = True
        return self._chosen(taken, ((n, 0) for n in range(len(self.patterns))))

    def _chosen(self, taken: bool, states: Iterable[tuple[int, int]]) -> Chosen:
        if taken:
            states = (state for state in states if not self._matched[state[0]])
        found = tuple(states)
        return WHOLE if taken and not found else Chosen(taken, found)

    def inside(self, chosen: Chosen, name: str) -> Chosen:
        """What is said of a container's entry."""
        taken = chosen.taken
        states = []
        for number, node in chosen.states:
            for after in self.patterns[number].step(node, name):
                if after == _FINAL:
                    self._matched[number] = taken = True
                else:
                    states.append((number, after))
        return self._chosen(taken, dict.fromkeys(states))

    def entered(
        self, chosen: Chosen, depth: int, empty: bool, look: Callable[[], tuple[str, list[str]]]
    ) -> Chosen:
        """Note that a container is looked into; what is said of it, knowing whether it is empty.

        ``look`` gives its key path and the names in it.
        """
        taken = chosen.taken
        for number, node in chosen.states:
            reached = self._reached[number]
            if reached is None or depth > reached[0]:
                self._reached[number] = (depth, self.patterns[number].nodes[node].wanted, look)
            if empty and self.patterns[number].nodes[node].all_below:
                self._matched[number] = taken = True
        return chosen._replace(taken=taken)

    def check(self) -> None:
        """All was walked over: every pattern must have matched.

        Raises:
            UsageError: one matched nothing; names it, and what is there instead.
        """
        lost = [n for n, matched in enumerate(self._matched) if not matched]
        if lost:
            raise UsageError(
                "; ".join(self._told(number) for number in lost),
                patterns=[self.patterns[number].text for number in lost],
            )

    def _told(self, number: int) -> str:
        text = f"{self.patterns[number].text!r} matches nothing"
        reached = self._reached[number]
        if reached is None:
            return text
        _, wanted, look = reached
        path, names = look()
        near = difflib.get_close_matches(wanted, names, MAX_NAMES, 0.5) or names[:MAX_NAMES]
        more = ", ..." if len(names) > len(near) else ""
        return f"{text}: {keypath.display(path)} holds {', '.join(near) or 'nothing'}{more}"


def selection_of(only: Any) -> Selection | None:
    """A caller's ``only=`` as patterns; None where all is meant.

    Raises:
        UsageError: it is neither a pattern nor a list of patterns.
    """
    if only is None:
        return None
    texts = [only] if isinstance(only, str) else only
    if not isinstance(texts, (list, tuple, set, frozenset)) or not all(
        isinstance(text, str) for text in texts
    ):
        raise UsageError(f"only= is a pattern such as 'model/**', or a list of them, not {only!r}")
    if not texts:
        raise UsageError("only= is an empty list: it names nothing to load")
    return Selection([Pattern(text) for text in texts])
