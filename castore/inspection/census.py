"""The objects of all live checkpoints, each read once however many checkpoints share it.

The log says which checkpoints are live and which packs they need; the packs' tables say where
everything lies.  The index is not asked.  Damage stops nothing here: what cannot be read is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from castore.log.fold import Fold
from castore.model.digest import DIGEST_SIZE, Digest, Kind
from castore.model.encoding import EncodingError, decode
from castore.model.objects import CONTENT_AT, MAPPINGS, MAX_OBJECT, parse_node
from castore.packs.format import Table
from castore.packs.reader import ChunkMap, Damage, PackSet, RecordDamaged, read_record
from castore.pipeline.parts import Parts

__all__ = ["Census", "Object"]


@dataclass(frozen=True, slots=True)
class Object:
    """What a tree or chunk list names: other objects, and chunks.

    Attributes:
        below: trees, parts of trees and chunk lists, with their kinds.
        chunks: digests of the chunks named in it, one after the other.
    """

    below: tuple[tuple[Kind, Digest], ...] = ()
    chunks: bytes = b""

    def chunk_digests(self) -> Iterator[bytes]:
        """The chunks' digests."""
        c = self.chunks
        return (c[i : i + DIGEST_SIZE] for i in range(0, len(c), DIGEST_SIZE))


class Census:
    """All packs that live checkpoints need, as one.

    Attributes:
        tables: pack and table, of those packs whose table can be had.
        data: where chunks lie.
        meta: where objects lie.
        unread: what could not be read, in words, each once.
    """

    def __init__(self, parts: Parts, fold: Fold) -> None:
        self._storage = parts.storage
        shelf = PackSet(parts.storage, fold.packs.values())
        self.tables: list[tuple[Any, Table]] = []
        self.unread: dict[str, None] = {}
        for info in shelf.packs:
            table = shelf.table(info)
            if isinstance(table, Damage):
                self.unread[table.detail] = None
            else:
                self.tables.append((info, table))
        self.data = ChunkMap((i, t) for i, t in self.tables if i.is_data)
        self.meta = ChunkMap((i, t) for i, t in self.tables if not i.is_data)
        self._objects: dict[Digest, Object] = {}

    def fetch(self, kind: Kind, digest: Digest) -> bytes:
        """An object's bytes, checked, from whichever copy is sound.

        Raises:
            RecordDamaged: none is.
        """
        damages: list[Damage] = []
        for place in self.meta.places(digest):
            if place.record.kind is not kind or place.record.raw_len > MAX_OBJECT:
                continue
            try:
                return bytes(read_record(self._storage, place))
            except RecordDamaged as e:
                damages += e.damages
        raise RecordDamaged(
            digest,
            kind,
            damages
            or [
                Damage("missing-record", None, None, digest.hex(), None,
                       f"no readable pack holds {kind.name.lower()} {digest.short}")
            ],
        )  # fmt: skip

    def object(self, kind: Kind, digest: Digest) -> Object:
        """What a tree or chunk list names; nothing, and a note, where it cannot be read."""
        found = self._objects.get(digest)
        if found is None:
            try:
                data = decode(self.fetch(kind, digest))
                found = _tree(data) if kind is Kind.TREE else _list(data)
            except RecordDamaged as e:
                self.unread[f"{kind.name.lower()} {digest.short}: {e.damages[0].detail}"] = None
                found = Object()
            except (EncodingError, IndexError, TypeError, ValueError) as e:
                self.unread[f"{kind.name.lower()} {digest.short} is malformed: {e}"] = None
                found = Object()
            self._objects[digest] = found
        return found

    def reached(self, root: Digest, seen: set[Digest]) -> Iterator[Object]:
        """The objects that a root reaches and ``seen`` has not; it has them then."""
        stack = [(Kind.TREE, root)]
        while stack:
            kind, digest = stack.pop()
            if digest in seen:
                continue
            seen.add(digest)
            found = self.object(kind, digest)
            yield found
            stack.extend(found.below)


def _tree(data: Any) -> Object:
    node = parse_node(data)
    if node.level:
        return Object(tuple((Kind.TREE, Digest(part)) for _count, part in node.items))
    below: list[tuple[Kind, Digest]] = []
    chunks: list[bytes] = []
    stack = [node]
    while stack:
        node = stack.pop()
        values = [i[1] for i in node.items] if node.container in MAPPINGS else node.items
        for value in (*values, node.extra):
            if not isinstance(value, list) or not value:
                continue
            if value[0] == "tree":
                below.append((Kind.TREE, Digest(value[1])))
            elif value[0] == "node":
                stack.append(parse_node(value[1]))
            elif value[0] in CONTENT_AT:
                form, held = value[CONTENT_AT[value[0]]]
                if form == 2:
                    below.append((Kind.CHUNKS, Digest(held)))
                elif form == 1:
                    chunks.append(_whole(held))
    return Object(tuple(below), b"".join(chunks))


def _list(data: Any) -> Object:
    level, held = data
    digests = _whole(held)
    if not level:
        return Object((), digests)
    parts = (digests[i : i + DIGEST_SIZE] for i in range(0, len(digests), DIGEST_SIZE))
    return Object(tuple((Kind.CHUNKS, Digest(part)) for part in parts))


def _whole(held: Any) -> bytes:
    if not isinstance(held, bytes) or len(held) % DIGEST_SIZE:
        raise EncodingError("not a list of digests")
    return held
