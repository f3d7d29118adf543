"""Walking a described state for its contents, with their key paths.

For audits and messages; pure, without recursion, and it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from castore.model import keypath
from castore.model.encoding import decode
from castore.model.objects import DataValue, Leaf, Node, key_text

__all__ = ["METADATA", "child_paths", "iter_data"]

#: The path component of an OrderedDict's ``_metadata``, which is no entry of it.
METADATA = "~(_metadata)"


def child_paths(keys: list[bytes] | None, count: int) -> list[str]:
    """The path component of each entry of a container, from its encoded keys, then METADATA.

    The same names as :func:`castore.model.objects.child_names` gives when the container is read.
    """
    if keys is None:
        return [*map(str, range(count)), METADATA]
    return [*keypath.names(key_text(decode(key)) for key in keys), METADATA]


def iter_data(root: Node) -> Iterator[tuple[str, DataValue]]:
    """``(key path, value)`` of every value with a content, inline and tied ones too, in order."""
    stack: list[tuple[str, Leaf | Node]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, DataValue):
            yield path, value
        elif isinstance(value, Node):
            if value.container == "value":
                stack.append((path, value.values[0]))
                continue
            names = child_paths(value.keys, len(value.values))
            prefix = path + "/" if path else ""
            children = [*value.values, value.extra]
            stack.extend(
                (prefix + name, child)
                for name, child in zip(reversed(names), reversed(children), strict=True)
                if not isinstance(child, bytes)
            )
