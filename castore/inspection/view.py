"""One live checkpoint as inspection sees it: its objects, its values, its chunks.

What is damaged or malformed is a :class:`CorruptionError` that names the checkpoint; what was read
is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from castore.errors import CorruptionError
from castore.inspection.containers import below, join, top_node
from castore.log.fold import Fold, Live
from castore.model import keypath
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.grid import Grid
from castore.model.objects import (
    CONTENT_AT,
    MAX_VALUES,
    Content,
    content_grid,
    read_content,
)
from castore.packs.format import Table
from castore.packs.reader import Damage, PackSet, RecordDamaged
from castore.pipeline.load import corrupted, find_value, finding_of, read_checkpoint, subject_of
from castore.pipeline.parts import Parts
from castore.pipeline.tensor_reads import ChunkReader
from castore.reports import Finding

__all__ = ["Leaf", "View", "leaf_of", "pieces"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is no container, as its tree entry tells it.

    Attributes:
        kind: ``tensor``, ``ndarray``, ``int``, ``str``, ``None``, ``datetime``, ...
        value: the decoded entry.
        dtype: of a tensor or array, as it is stored.
        itemsize: of one item of it, in bytes.
        shape: of a tensor or array.
        grid: where its content is cut, or None where it has none.
        flags: of a tensor.
        tie: number shared with what it is tied to, or None.
        text: the value itself, where it is short.
    """

    kind: str
    value: Any
    dtype: Any = None
    itemsize: int = 0
    shape: tuple[int, ...] | None = None
    grid: Grid | None = None
    flags: int = 0
    tie: int | None = None
    text: str | None = None

    @property
    def is_array(self) -> bool:
        """Whether it is a tensor or a numpy array."""
        return self.shape is not None

    @property
    def held(self) -> Any:
        """Its content as the entry has it, or None."""
        return None if self.grid is None else self.value[CONTENT_AT[self.kind]]

    @property
    def dtype_text(self) -> str | None:
        """The dtype for people."""
        if not self.is_array:
            return None
        return self.dtype if isinstance(self.dtype, str) else repr(self.dtype)

    @property
    def nbytes(self) -> int | None:
        """Length of its content where the entry tells it."""
        if self.is_array and self.grid is not None:
            return self.grid.nbytes
        if self.grid is not None and isinstance(self.held, list) and self.held[0] == 0:
            return len(self.held[1])
        return None


def leaf_of(value: Any, chunk_size: int) -> Leaf:
    """A decoded value that is no container.

    Raises:
        EncodingError: it is no value.
    """
    if not isinstance(value, list):
        kind = "None" if value is None else type(value).__name__
        return Leaf(kind, value, text=repr(value))
    if not value or not isinstance(value[0], str) or value[0] in ("node", "tree"):
        raise EncodingError("no value")
    kind = value[0]
    if kind not in CONTENT_AT:
        return Leaf(kind, value, text=", ".join(map(repr, value[1:])))
    grid = content_grid(value, chunk_size)
    at = CONTENT_AT[kind]
    if kind in ("tensor", "ndarray"):
        if len(value) != at + 2:
            raise EncodingError(f"a {kind} is an array of {at + 2}")
        dtype, itemsize, shape = value[at - 3 : at]
        flags = value[1] if kind == "tensor" else 0
        return Leaf(kind, value, dtype, itemsize, tuple(shape), grid, flags, value[at + 1])
    return Leaf(kind, value, grid=grid, text=_short_text(kind, value[at]))


def _short_text(kind: str, held: Any) -> str | None:
    if kind != "int" or not (isinstance(held, list) and held[0] == 0):
        return None
    number = int.from_bytes(held[1], "little", signed=True)
    return hex(number) if number.bit_length() > keypath.LONG_INT else str(number)


def pieces(leaf: Leaf, content: Content) -> list[tuple[int, int]]:
    """Where in a tensor's or array's bytes each of its chunks lies; one piece if it is inline.

    Raises:
        EncodingError: it has another number of bytes or chunks than its shape says.
    """
    assert leaf.grid is not None
    grid = leaf.grid
    if content.inline is not None:
        if len(content.inline) != grid.nbytes:
            raise EncodingError(f"{len(content.inline)} bytes where the shape has {grid.nbytes}")
        return [(0, grid.nbytes)] if grid.nbytes else []
    if len(content.digests) != grid.chunks:
        raise EncodingError(f"{len(content.digests)} chunks where the shape has {grid.chunks}")
    return grid.spans()


class View:
    """A live checkpoint, open for looking.

    Attributes:
        live: the checkpoint.
        chunk_size: of its grid.
        objects_read: objects fetched so far, the checkpoint itself included.
        reader: reads its chunks.
    """

    def __init__(
        self,
        parts: Parts,
        fold: Fold,
        live: Live,
        tables: dict[str, Table | Damage] | None = None,
    ) -> None:
        """``tables`` may be shared by several views, to read each pack's once.

        Raises:
            CorruptionError: the checkpoint's object is damaged.
        """
        self._storage = parts.storage
        self.live = live
        self.shelf = PackSet(parts.storage, fold.packs_of(live.digest), tables)
        self.reader = ChunkReader(parts.storage, self.shelf, live)
        self.objects_read = 1
        self.checkpoint = read_checkpoint(parts.storage, self.shelf, live)
        self.chunk_size = self.checkpoint.chunk_size
        with self.naming():
            if self.checkpoint.root != live.add.root:
                raise EncodingError("its root is not the one that the log names")
            if self.chunk_size != parts.config.chunk_size:
                raise EncodingError(f"its chunk size {self.chunk_size} is not the store's")

    @contextlib.contextmanager
    def naming(self, path: str | None = None) -> Iterator[None]:
        """Turn what goes wrong with its metadata into an error that names the checkpoint."""
        try:
            yield
        except RecordDamaged as e:
            raise corrupted(self._storage, [finding_of(self.live, e, path)]) from e
        except (EncodingError, IndexError, TypeError) as e:
            raise self.malformed(f"{keypath.display(path or '')}: {e}", path) from e

    def malformed(self, what: str, path: str | None = None) -> CorruptionError:
        """The error for an object that hashes to its digest and is none."""
        subject = subject_of(self.live)
        finding = Finding(
            code="malformed-object",
            severity="damage",
            detail=f"{subject}: {what}",
            checkpoint=subject.checkpoint,
            branch=subject.branch,
            step=subject.step,
            path=path,
        )
        return corrupted(self._storage, [finding])

    @property
    def healed(self) -> tuple[str, ...]:
        """Damage met that another copy made good, in words."""
        return tuple(d.detail for d in (*self.shelf.healed, *self.reader.healed))

    # -- objects and values -----------------------------------------------------------------------

    def fetch(self, kind: Kind, digest: Digest) -> bytes:
        """An object's bytes, checked and counted.

        Raises:
            RecordDamaged: no copy is sound.
        """
        self.objects_read += 1
        return self.shelf.fetch(kind, digest)

    def value_at(self, path: str) -> Any:
        """The value at a key path, decoded; a container as ``TreeNode``, the root by its digest.

        Raises:
            BadRevision: there is none.
            CorruptionError: metadata on the way is damaged.
        """
        with self.naming(path):
            if not path.strip("/"):
                return ["tree", self.checkpoint.root, None]  # named by its digest alone
            return find_value(self.checkpoint.root, path, self.fetch, self.live.digest.short)

    def content(self, leaf: Leaf) -> Content:
        """A leaf's content, its chunk list resolved.

        Raises:
            EncodingError: it is none.
            RecordDamaged: the list cannot be had.
        """
        assert leaf.grid is not None
        most = leaf.grid.chunks if leaf.is_array else MAX_VALUES
        return read_content(leaf.held, self.fetch, most)

    def leaves(self, path: str = "") -> Iterator[tuple[str, Leaf]]:
        """Every value at or below a key path that is no container, in the state's order.

        Does not recurse: states may be 10,000 containers deep.

        Raises:
            BadRevision: no such key path.
            CorruptionError: metadata is damaged.
        """
        left = MAX_VALUES
        stack: list[tuple[str, Any]] = [(path.strip("/"), self.value_at(path))]
        while stack:
            at, value = stack.pop()
            with self.naming(at):
                node = top_node(value, self.fetch)
                if node is None:
                    leaf = leaf_of(value, self.chunk_size)
                elif node.container == "value":
                    stack.append((at, node.items[0]))
                    continue
                else:
                    pairs = below(value, node, self.fetch)
                    left -= len(pairs)
                    if left < 0:
                        raise EncodingError(f"more than {MAX_VALUES} values")
                    stack.extend((join(at, name), child) for name, child in reversed(pairs))
                    continue
            yield at, leaf

    def tied(self) -> dict[int, tuple[str, ...]]:
        """Number of each group of ties -> the key paths of its members."""
        groups: dict[int, list[str]] = {}
        for path, leaf in self.leaves():
            if leaf.tie is not None:
                groups.setdefault(leaf.tie, []).append(path)
        return {number: tuple(paths) for number, paths in groups.items()}
