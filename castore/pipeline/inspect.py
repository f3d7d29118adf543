"""Looking into a checkpoint without loading it: no tensor is read, torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from castore.errors import CorruptionError
from castore.log.fold import Fold, Live
from castore.model import keypath
from castore.model.digest import Digest
from castore.model.encoding import EncodingError
from castore.model.objects import (
    CONTENT_AT,
    MAX_VALUES,
    CheckpointObject,
    TreeNode,
    child_names,
    child_node,
    child_values,
    content_grid,
    read_content,
)
from castore.packs.reader import PackSet, RecordDamaged
from castore.pipeline.load import corrupted, find_value, finding_of, read_checkpoint
from castore.pipeline.parts import Parts
from castore.reports import TreeEntry

__all__ = ["read_meta", "tree"]


def read_meta(parts: Parts, fold: Fold, live: Live) -> CheckpointObject:
    """A live checkpoint's object."""
    return read_checkpoint(parts.storage, fold.packs_of(live.digest), live)


def tree(parts: Parts, fold: Fold, live: Live, path: str | None) -> list[TreeEntry]:
    """The values below a key path, in the state's order; containers before what they hold.

    Raises:
        CorruptionError: metadata is damaged.
        BadRevision: no such key path.
    """
    shelf = PackSet(parts.storage, fold.packs_of(live.digest))
    checkpoint = read_checkpoint(parts.storage, shelf, live)
    try:
        if checkpoint.chunk_size != parts.config.chunk_size:
            raise EncodingError(f"its chunk size {checkpoint.chunk_size} is not the store's")
        value = find_value(checkpoint.root, path or "", shelf.fetch, live.digest.short)
        return list(_entries(value, (path or "").strip("/"), shelf, checkpoint.chunk_size))
    except RecordDamaged as e:
        raise corrupted(parts.storage, [finding_of(live, e, path)]) from e
    except EncodingError as e:
        raise CorruptionError(f"checkpoint {live.digest.short}: {e}") from e


def _entries(value: Any, path: str, shelf: PackSet, chunk_size: int) -> Iterator[TreeEntry]:
    stack: list[tuple[str, Any]] = [(path, value)]
    while stack:
        path, value = stack.pop()
        node = value if isinstance(value, TreeNode) else child_node(value, shelf.fetch, MAX_VALUES)
        if node is None:
            yield _leaf(path, value, shelf, chunk_size)
            continue
        if node.container == "value":
            stack.append((path, node.items[0]))
            continue
        yield TreeEntry(path, node.container, entries=len(node.items))
        prefix = f"{path}/" if path else ""
        pairs = zip(child_names(node), child_values(node), strict=True)
        stack.extend(reversed([(prefix + name, child) for name, child in pairs]))


def _leaf(path: str, value: Any, shelf: PackSet, chunk_size: int) -> TreeEntry:
    if not isinstance(value, list):
        kind = "None" if value is None else type(value).__name__
        return TreeEntry(path, kind, text=repr(value))
    if not value or not isinstance(value[0], str):
        raise EncodingError(f"{path} is no value")
    kind = value[0]
    if kind not in CONTENT_AT:
        return TreeEntry(path, kind, text=", ".join(map(repr, value[1:])))
    grid = content_grid(value, chunk_size)
    most = grid.chunks if grid.rows else MAX_VALUES
    content = read_content(value[CONTENT_AT[kind]], shelf.fetch, most)
    digests: tuple[Digest, ...] = content.digests
    if kind in ("tensor", "ndarray"):
        at = CONTENT_AT[kind]
        dtype, _, shape = value[at - 3 : at]
        return TreeEntry(
            path,
            kind,
            dtype=dtype if isinstance(dtype, str) else repr(dtype),
            shape=tuple(shape),
            nbytes=grid.nbytes,
            chunks=tuple(d.hex() for d in digests),
            tie=value[at + 1],
        )
    text = None
    if kind == "int" and content.inline is not None:
        number = int.from_bytes(content.inline, "little", signed=True)
        text = hex(number) if number.bit_length() > keypath.LONG_INT else str(number)
    nbytes = len(content.inline) if content.inline is not None else None
    return TreeEntry(path, kind, text, nbytes=nbytes, chunks=tuple(d.hex() for d in digests))
