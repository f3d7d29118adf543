"""Containers as their objects tell them: top nodes, parts of split ones, entries and their names.

A split container need not be read whole: its parts are named by digest, so those that are known or
of no interest are passed over.  What goes wrong is left to the caller to name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError, decode, encode
from castore.model.objects import (
    MAPPINGS,
    MAX_VALUES,
    TreeNode,
    child_names,
    child_values,
    parse_node,
    read_tree,
)
from castore.state.contents import METADATA

__all__ = ["Item", "below", "items_of_part", "join", "names_of", "part_of", "top_node"]

Fetch = Callable[[Kind, Digest], bytes]


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a container.

    Attributes:
        place: its number among the entries.
        key: what it is matched by: an encoded key, or a place in a list.
        value: the entry's decoded value.
        decoded_key: of a mapping.
        held: False of what only stands for a part that was passed over.
    """

    place: int
    key: Any
    value: Any
    decoded_key: Any = None
    held: bool = True


def join(path: str, name: str) -> str:
    """A key path, one component longer."""
    return f"{path}/{name}" if path else name


def top_node(value: Any, fetch: Fetch) -> TreeNode | None:
    """The container that a decoded value is, as its top node; None of any other value.

    The parts of a split one are not read.  A ``["tree", digest, None]`` stands for a root.

    Raises:
        EncodingError: malformed.
        RecordDamaged: it cannot be had.
    """
    if isinstance(value, TreeNode):
        return value
    if not (isinstance(value, list) and value):
        return None
    if value[0] == "node" and len(value) == 2:
        return parse_node(value[1])
    if value[0] == "tree" and len(value) == 3:
        node = parse_node(decode(fetch(Kind.TREE, Digest(value[1]))))
        count = _entries(node)
        if count > MAX_VALUES or value[2] not in (None, count):
            raise EncodingError("a container has another number of entries than announced")
        return node
    return None


def _entries(node: TreeNode) -> int:
    return sum(count for count, _part in node.items) if node.level else len(node.items)


def part_of(whole: TreeNode, level: int, count: int, digest: bytes, fetch: Fetch) -> TreeNode:
    """One part of a split container, checked against what names it.

    Raises:
        EncodingError: it does not fit.
        RecordDamaged: it cannot be had.
    """
    node = parse_node(decode(fetch(Kind.TREE, Digest(digest))))
    if node.container != whole.container or node.level != level or node.extra is not None:
        raise EncodingError("a part of a split container does not fit its whole")
    if count != _entries(node):
        raise EncodingError("a part of a split container has more entries than announced")
    return node


def items_of_part(start: int, node: TreeNode) -> list[Item]:
    """The entries of a level-0 node, the first of them being number ``start``."""
    if node.container in MAPPINGS:
        return [Item(start + i, encode(k), v, k) for i, (k, v) in enumerate(node.items)]
    return [Item(start + i, start + i, value) for i, value in enumerate(node.items)]


def below(value: Any, node: TreeNode, fetch: Fetch) -> list[tuple[str, Any]]:
    """Name and value of everything in a container, read whole; an OrderedDict's metadata last.

    Args:
        value: the decoded value that the container is.
        node: its top node.
        fetch: gives its parts.
    """
    if node.level:
        node = read_tree(Digest(value[1]), fetch, MAX_VALUES)
    pairs = list(zip(child_names(node), child_values(node), strict=True))
    if isinstance(node.extra, list):
        pairs.append((METADATA, node.extra))
    return pairs


def names_of(value: Any, node: TreeNode, items: Sequence[Item], fetch: Fetch) -> dict[Any, str]:
    """Key of each entry that is held -> its path component.

    A component depends on the mapping's other keys only where it is not a plain text; then all of
    them are read, the parts that were passed over too.  ``items`` lacks none that is not so marked.
    """
    held = [item for item in items if item.held]
    if node.container not in MAPPINGS:
        return {item.key: str(item.place) for item in held}
    if len(held) < len(items) and not all(map(_plain_key, held)):
        every = below(value, node, fetch)
        return {item.key: every[item.place][0] for item in held}
    keys = [[item.decoded_key, None] for item in held]
    names = child_names(TreeNode(node.container, 0, None, keys))
    return {item.key: name for item, name in zip(held, names, strict=True)}


def _plain_key(item: Item) -> bool:
    key = item.decoded_key
    return isinstance(key, str) and bool(key) and key.isprintable() and "\\" not in key
