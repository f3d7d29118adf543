"""Looking into a checkpoint without loading it: no tensor is read, torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from castore.errors import CorruptionError
from castore.log.fold import Fold, Live
from castore.model import keypath
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import (
    CONTENT_AT,
    MAX_VALUES,
    CheckpointObject,
    TreeNode,
    child_node,
    children,
    content_grid,
    read_content,
    value_digest,
)
from castore.packs.reader import PackSet, RecordDamaged
from castore.pipeline.load import corrupted, find_value, finding_of, read_checkpoint
from castore.pipeline.parts import Parts
from castore.reports import TreeEntry

__all__ = ["entries_below", "read_meta", "tree", "value_at", "whole_value"]

Fetch = Callable[[Kind, Digest], bytes]


def read_meta(parts: Parts, fold: Fold, live: Live) -> CheckpointObject:
    """A live checkpoint's object."""
    return read_checkpoint(parts.storage, fold.packs_of(live.digest), live)


def tree(
    parts: Parts, fold: Fold, live: Live, path: str | None, depth: int | None = None
) -> list[TreeEntry]:
    """The values below a key path, in the state's order; containers before what they hold.

    Args:
        parts: the open store's.
        fold: where the checkpoint is live.
        live: the checkpoint.
        path: key path of where to begin; None or empty for the whole state.
        depth: how many containers to go into: 0 gives what lies at the path alone; None all.

    Raises:
        CorruptionError: metadata is damaged.
        BadRevision: no such key path.
    """
    shelf = PackSet(parts.storage, fold.packs_of(live.digest))
    checkpoint = read_checkpoint(parts.storage, shelf, live)
    path = (path or "").strip("/")
    try:
        if checkpoint.chunk_size != parts.config.chunk_size:
            raise EncodingError(f"its chunk size {checkpoint.chunk_size} is not the store's")
        value = value_at(checkpoint.root, path, shelf.fetch, live.digest.short)
        return list(entries_below(value, path, shelf.fetch, checkpoint.chunk_size, depth))
    except RecordDamaged as e:
        raise corrupted(parts.storage, [finding_of(live, e, path)]) from e
    except EncodingError as e:
        raise CorruptionError(f"checkpoint {live.digest.short}: {e}") from e


def value_at(root: Digest, path: str, fetch: Fetch, rev: str) -> Any:
    """The decoded value at a key path, as it stands in its parent; ``rev`` is for messages.

    Raises:
        BadRevision: there is nothing there.
        EncodingError: an object is malformed.
    """
    found = find_value(root, path, fetch, rev)
    if not isinstance(found, TreeNode):
        return found
    if path:
        above, _, name = path.rpartition("/")
        return dict(children(find_value(root, above, fetch, rev)))[name]
    return whole_value(root, found)


def whole_value(digest: Digest, node: TreeNode) -> Any:
    """The value that a tree object is: the container, or the one value that it holds."""
    return node.items[0] if node.container == "value" else ["tree", bytes(digest), len(node.items)]


def entries_below(
    value: Any, path: str, fetch: Fetch, chunk_size: int, depth: int | None = None
) -> Iterator[TreeEntry]:
    """A decoded value at ``path`` and what it holds; ``depth`` as for :func:`tree`.

    Raises:
        EncodingError: what lies there is malformed.
        RecordDamaged: an object cannot be had.
    """
    stack: list[tuple[str, Any, int]] = [(path, value, 0)]
    while stack:
        path, value, level = stack.pop()
        node = child_node(value, fetch, MAX_VALUES)
        if node is None:
            yield _leaf(path, value, fetch, chunk_size)
            continue
        if node.container == "value":
            raise EncodingError(f"{keypath.display(path)} is a value alone where a container is")
        count = len(node.items)
        yield TreeEntry(path, node.container, entries=count, digest=value_digest(value).hex())
        if depth is None or level < depth:
            prefix = f"{path}/" if path else ""
            below = reversed(children(node))
            stack.extend((prefix + name, child, level + 1) for name, child in below)


def _leaf(path: str, value: Any, fetch: Fetch, chunk_size: int) -> TreeEntry:
    if isinstance(value, list) and not (value and isinstance(value[0], str)):
        raise EncodingError(f"{keypath.display(path)} is no value")
    name = value_digest(value).hex()
    if not isinstance(value, list):
        kind = "None" if value is None else type(value).__name__
        return TreeEntry(path, kind, text=repr(value), digest=name)
    kind = value[0]
    if kind not in CONTENT_AT:
        text = ", ".join(map(repr, value[1:])) or None
        return TreeEntry(path, "None" if kind == "none" else kind, text=text, digest=name)
    grid = content_grid(value, chunk_size)
    most = grid.chunks if grid.rows else MAX_VALUES
    at = CONTENT_AT[kind]
    content = read_content(value[at], fetch, most)
    digests: tuple[Digest, ...] = content.digests
    if kind in ("tensor", "ndarray"):
        if len(value) != at + 2:
            raise EncodingError(f"{path}: a {kind} without its tie")
        dtype, _, shape = value[at - 3 : at]
        return TreeEntry(
            path,
            kind,
            dtype=dtype if isinstance(dtype, str) else repr(dtype),
            shape=tuple(shape),
            nbytes=grid.nbytes,
            chunks=tuple(d.hex() for d in digests),
            tie=value[at + 1],
            digest=name,
        )
    text = None
    if kind == "int" and content.inline is not None:
        number = int.from_bytes(content.inline, "little", signed=True)
        text = hex(number) if number.bit_length() > keypath.LONG_INT else str(number)
    nbytes = len(content.inline) if content.inline is not None else None
    chunks = tuple(d.hex() for d in digests)
    return TreeEntry(path, kind, text, nbytes=nbytes, chunks=chunks, digest=name)
