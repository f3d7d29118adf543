"""What a digest or revision names: checkpoint, tree, tensor, value, chunk list or chunk.

A digest is looked for among the live checkpoints, then in the tables of all packs that live
checkpoints need, and last, since most values lie inside their tree and have no record of their own,
among the values of all live trees (each object is read once, however many checkpoints share it).
Nothing is given back that was not hashed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from castore.errors import AmbiguousRevision, BadRevision, CorruptionError
from castore.log.entry import EntryError, parse_change
from castore.log.fold import Fold
from castore.log.revisions import MIN_PREFIX, parse_revision, resolve
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError, decode, encode
from castore.model.objects import (
    CONTENT_AT,
    MAX_VALUES,
    CheckpointObject,
    Content,
    child_values,
    parse_chunk_list,
    parse_node,
    read_content,
    read_tree,
    value_digest,
)
from castore.model.packinfo import PackInfo
from castore.packs.codecs import Codec
from castore.packs.findings import pack_finding
from castore.packs.format import Record, Table
from castore.packs.reader import Damage, PackSet, RecordDamaged, read_record
from castore.pipeline.inspect import entries_below, value_at, whole_value
from castore.pipeline.load import corrupted
from castore.pipeline.parts import Parts
from castore.reports import Place, StoredObject

__all__ = ["find_object", "read_object"]

_HEX = re.compile(rf"[0-9a-fA-F]{{{MIN_PREFIX},64}}")
#: Candidates that an error lists.
MAX_CANDIDATES = 10


def find_object(parts: Parts, fold: Fold, name: str) -> StoredObject:
    """What a name stands for.

    Args:
        parts: the open store's.
        fold: the fold at the head.
        name: a revision, ``REV:PATH``, or six or more digits of any digest.

    Raises:
        BadRevision: nothing is called so.
        AmbiguousRevision: a digest prefix fits several.
        CorruptionError: what it names is damaged.
    """
    looker = _Looker(parts, fold)
    with looker.told(name):
        return looker.described(looker.find(name))


def read_object(parts: Parts, fold: Fold, name: str) -> Iterator[bytes]:
    """The bytes that a name stands for, piece by piece, each hashed before it is given.

    Of a tensor, array, text or chunk its contents; of all else its canonical encoding.  Errors are
    those of :func:`find_object`.
    """
    looker = _Looker(parts, fold)
    with looker.told(name):
        yield from looker.pieces(looker.find(name))


@dataclass(frozen=True, slots=True)
class _Named:
    """What a name was found to stand for.

    Attributes:
        name: as asked.
        path: key path, for what was asked as ``REV:PATH``.
        kind: of a record of its own.  None for what lies inside a tree.
        digest: its name.
        value: decoded, of a tree, tensor or value.
    """

    name: str
    path: str
    kind: Kind | None
    digest: Digest
    value: Any = None


class _Hit(NamedTuple):
    """A record whose digest fits."""

    pack: PackInfo
    record: Record


class _Looker:
    """One look-up.  Reads the packs of one checkpoint where a revision says which."""

    def __init__(self, parts: Parts, fold: Fold) -> None:
        self._parts = parts
        self._fold = fold
        self._tables: dict[str, Table | Damage] = {}
        self._packs = self._set(reversed(fold.packs.values()))  # newest first

    def _set(self, packs: Any) -> PackSet:
        return PackSet(self._parts.storage, packs, self._tables)

    @contextlib.contextmanager
    def told(self, name: str) -> Iterator[None]:
        """Damage met in the block is told in words and findings."""
        try:
            yield
        except RecordDamaged as e:
            finding = pack_finding(e.damages[0], e.digest)
            raise corrupted(self._parts.storage, [finding]) from e
        except (EncodingError, EntryError) as e:
            raise CorruptionError(f"{name}: {e}") from e

    # -- finding ----------------------------------------------------------------------------------

    def find(self, name: str) -> _Named:
        """What a name stands for."""
        revision = parse_revision(name)
        try:
            live = resolve(revision, self._fold, self._parts.log)
        except AmbiguousRevision:
            raise
        except BadRevision:
            if not _HEX.fullmatch(name):
                raise
            return self._by_digest(name)
        self._packs = self._set(self._fold.packs_of(live.digest))
        if revision.path is None:
            return _Named(name, "", Kind.CHECKPOINT, live.digest)
        path = revision.path.strip("/")
        value = value_at(live.add.root, path, self._packs.fetch, live.digest.short)
        return _of_value(name, path, value)

    def _by_digest(self, name: str) -> _Named:
        prefix = name.lower()
        hits = {hit.record.digest: hit for hit in self._records(prefix)}
        found = {digest: hit.record.kind.name.lower() for digest, hit in hits.items()}
        if not hits:
            values = dict(self._values(prefix))
            found = {digest: _word(value) for digest, value in values.items()}
        if len(found) > 1:
            shown = [f"{d.hex()[: max(12, len(prefix) + 4)]} ({w})" for d, w in found.items()]
            raise AmbiguousRevision(
                f"{name} fits {len(found)} objects: {', '.join(shown[:MAX_CANDIDATES])}",
                candidates=[d.hex() for d in found],
            )
        if not found:
            raise BadRevision(
                f"nothing is called {name}: no branch, tag or checkpoint, nor any chunk, object or "
                "value that a live checkpoint reaches"
            )
        if not hits:
            [value] = values.values()
            return _of_value(name, "", value)
        [(digest, hit)] = hits.items()
        if hit.record.kind is Kind.TREE:
            value = whole_value(digest, read_tree(digest, self._packs.fetch, MAX_VALUES))
            return _of_value(name, "", value)
        return _Named(name, "", hit.record.kind, digest)

    def _records(self, prefix: str) -> Iterator[_Hit]:
        """Every record whose digest begins so: objects first, then chunks."""
        low = bytes.fromhex(prefix.ljust(64, "0"))
        high = bytes.fromhex(prefix.ljust(64, "f"))
        for data in (False, True):
            for info in self._packs.packs:
                if info.is_data is not data:
                    continue
                table = self._packs.table(info)
                if isinstance(table, Damage):
                    continue
                for row, digest in enumerate(table.digests()):
                    if low <= digest <= high:
                        yield _Hit(info, table[row])

    def _values(self, prefix: str) -> Iterator[tuple[Digest, Any]]:
        """Every value inside a live tree whose digest begins so; stops at a whole digest.

        Raises:
            RecordDamaged: nothing was found, and not everything could be read.
        """
        seen: set[bytes] = set()
        damage: RecordDamaged | None = None
        found = False
        for live in reversed(self._fold.live.values()):
            shelf = self._set(self._fold.packs_of(live.digest))
            trees: list[bytes] = [live.add.root]
            while trees:
                tree = trees.pop()
                if tree in seen:
                    continue
                seen.add(tree)
                try:
                    data = shelf.fetch(Kind.TREE, Digest(tree))
                except RecordDamaged as e:
                    damage = damage or e
                    continue
                for value in _inside(decode(data), trees):
                    digest = value_digest(value)
                    if digest.hex().startswith(prefix):
                        found = True
                        yield digest, value
                        if len(prefix) == 64:
                            return
        if damage is not None and not found:
            raise damage

    # -- telling ----------------------------------------------------------------------------------

    def described(self, named: _Named) -> StoredObject:
        """The report on what was found."""
        if named.kind is None:
            return self._described_value(named)
        data = self._record(named.kind, named.digest)
        chunks: tuple[Digest, ...] = ()
        record: dict[str, Any] | None = None
        if named.kind is Kind.CHECKPOINT:
            record = _plain_fields(CheckpointObject.parse(data))
        elif named.kind is Kind.CHUNKS:
            level, chunks = parse_chunk_list(data)
            record = {"level": level}
        elif named.kind is Kind.TABLE:
            pack, header, table = decode(data)
            record = {"pack": pack, "records": len(Table.parse(table)), "header": header}
        elif named.kind is Kind.INTENT:
            record = _plain_fields(parse_change(decode(data)))
        return StoredObject(
            named.name,
            named.kind.name.lower(),
            named.digest.hex(),
            len(data),
            fields=record,
            chunks=tuple(d.hex() for d in chunks),
            places=self._places(named.digest, data=named.kind is Kind.CHUNK),
        )

    def _described_value(self, named: _Named) -> StoredObject:
        value = named.value
        chunk_size = self._parts.config.chunk_size
        entry, *below = entries_below(value, named.path, self._packs.fetch, chunk_size, depth=1)
        size = entry.nbytes
        if size is None and entry.chunks:  # texts and numbers: only their chunks know
            size = sum(map(self._length, entry.chunks))
        if size is None:
            size = sum(map(len, self.pieces(named)))
        stored = isinstance(value, list) and value[0] == "tree"
        return StoredObject(
            named.name,
            entry.object,
            entry.digest,
            size,
            entry=entry,
            entries=tuple(below),
            chunks=entry.chunks,
            places=self._places(named.digest, data=False) if stored else (),
        )

    def _length(self, digest: str) -> int:
        found = next(self._packs.find(Digest(bytes.fromhex(digest)), data=True), None)
        return found.record.raw_len if found else 0

    def _places(self, digest: Digest, *, data: bool) -> tuple[Place, ...]:
        return tuple(
            Place(
                at.pack.path,
                at.record.offset,
                at.record.stored_len,
                Codec(at.record.codec).name.lower(),
            )
            for at in self._packs.find(digest, data=data)
        )

    # -- bytes ------------------------------------------------------------------------------------

    def pieces(self, named: _Named) -> Iterator[bytes]:
        """The bytes that a name stands for."""
        if named.kind is not None:
            yield self._record(named.kind, named.digest)
            return
        value = named.value
        content = self._content(value)
        if content is not None and content.inline is not None:
            yield content.inline
        elif content is not None:
            for digest in content.digests:
                yield self._record(Kind.CHUNK, digest)
        elif isinstance(value, list) and value[0] == "tree":
            yield self._record(Kind.TREE, Digest(value[1]))
        elif isinstance(value, list) and value[0] == "node":
            yield encode(value[1])
        elif isinstance(value, str):
            yield value.encode()
        elif isinstance(value, bytes):
            yield value
        else:
            yield encode(value)

    def _content(self, value: Any) -> Content | None:
        """What a value has of contents."""
        if not isinstance(value, list) or value[0] not in CONTENT_AT:
            return None
        return read_content(value[CONTENT_AT[value[0]]], self._packs.fetch, MAX_VALUES)

    def _record(self, kind: Kind, digest: Digest) -> bytes:
        """A chunk's or object's bytes, from whichever copy is sound."""
        if kind is not Kind.CHUNK:
            return self._packs.fetch(kind, digest)
        damages: list[Damage] = []
        for place in self._packs.find(digest, data=True):
            try:
                return bytes(read_record(self._parts.storage, place))
            except RecordDamaged as e:
                damages += e.damages
        missing = self._packs.missing(digest, kind, data=True)
        raise RecordDamaged(digest, kind, damages or missing)


def _of_value(name: str, path: str, value: Any) -> _Named:
    return _Named(name, path, None, value_digest(value), value)


def _inside(decoded: Any, trees: list[bytes]) -> Iterator[Any]:
    """The values inside one tree object; the trees that it names are put on ``trees``."""
    nodes = [decoded]
    while nodes:
        node = parse_node(nodes.pop())
        if node.level:
            trees.extend(part for _, part in node.items)
        values = [] if node.level else child_values(node)
        for value in [*values, node.extra] if isinstance(node.extra, list) else values:
            if isinstance(value, list) and value and value[0] == "tree":
                trees.append(value[1])
                continue
            if isinstance(value, list) and value and value[0] == "node":
                nodes.append(value[1])
            yield value


def _word(value: Any) -> str:
    """What kind of thing a decoded value is."""
    tag = value[0] if isinstance(value, list) else None
    if tag in ("node", "tree"):
        return "tree"
    return "tensor" if tag in ("tensor", "ndarray") else "value"


def _plain_fields(record: Any) -> dict[str, Any]:
    """A record's fields, digests as hex and packs as their paths."""
    return {f.name: _shown(getattr(record, f.name)) for f in fields(record)}


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, PackInfo):
        return value.path
    return [_shown(v) for v in value] if isinstance(value, tuple) else value
