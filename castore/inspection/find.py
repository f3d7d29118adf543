"""What a digest names, and who has it: what one reaches for with a report of damage in hand.

All live checkpoints are gone through, each object once however many share it.  First it is found
out which objects lead to what is looked for; then only these are gone into, for key paths and rows.
Damage elsewhere does not stop the search: the report says what could not be looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from castore.errors import AmbiguousRevision, BadRevision
from castore.inspection.census import Census
from castore.inspection.containers import (
    Item,
    items_of_part,
    join,
    names_of,
    part_of,
    top_node,
)
from castore.inspection.spans import spans
from castore.inspection.tensor import place_of
from castore.inspection.view import Leaf, leaf_of
from castore.log.fold import Fold
from castore.log.revisions import MIN_PREFIX
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import MAX_VALUES, TreeNode, read_content
from castore.packs.reader import Location, RecordDamaged, read_record
from castore.pipeline.parts import Parts
from castore.reports import FoundCopy, FoundDigest, FoundPlace
from castore.state.contents import METADATA

__all__ = ["find_chunks"]

_HEX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},64}}")
_NONE: frozenset[Digest] = frozenset()


def find_chunks(parts: Parts, fold: Fold, prefixes: Sequence[str]) -> list[FoundDigest]:
    """What each digest or prefix names, in their order.

    Raises:
        BadRevision: one is no digest, or names nothing.
        AmbiguousRevision: one fits several.
    """
    wanted = [str(p).lower() for p in prefixes]
    for given in wanted:
        if not _HEX.fullmatch(given):
            raise BadRevision(f"{given!r} is no digest: say {MIN_PREFIX} to 64 hex digits of one")
    return _Search(parts, fold, wanted).run()


@dataclass(frozen=True, slots=True)
class _Hit:
    """A place below some container; the path is from there."""

    target: Digest
    path: str
    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    chunk: int | None = None
    rows: tuple[int, int] | None = None


class _Search:
    def __init__(self, parts: Parts, fold: Fold, wanted: Sequence[str]) -> None:
        self.parts = parts
        self.fold = fold
        self.wanted = tuple(wanted)
        self.census = Census(parts, fold)
        self.kinds: dict[Digest, Kind] = {}  # what fits one of the prefixes -> what it is
        self.leads: dict[Digest, frozenset[Digest]] = {}  # object -> what of it is reached there
        self.hits: dict[Digest, list[_Hit]] = {}  # container -> places in it

    def run(self) -> list[FoundDigest]:
        roots = {live.add.root for live in self.fold.live.values()}
        for checkpoint in self.fold.live:
            self._note(checkpoint, Kind.CHECKPOINT)
        for _info, table in self.census.tables:
            for digest, kind, *_ in table.rows():
                self._note(digest, Kind(kind))
        for root in roots:
            self._lead(root)
        return [self._report(self._only(prefix)) for prefix in self.wanted]

    def _note(self, digest: bytes, kind: Kind) -> None:
        if digest.hex().startswith(self.wanted):
            self.kinds.setdefault(Digest(digest), kind)

    def _only(self, prefix: str) -> Digest:
        found = [d for d in self.kinds if d.hex().startswith(prefix)]
        if not found:
            raise BadRevision(
                f"no chunk, object or checkpoint that is live begins with {prefix}"
                + ("; but not all could be read" if self.census.unread else "")
            )
        if len(found) > 1:
            names = ", ".join(f"{d.short} ({self.kinds[d].name.lower()})" for d in found[:10])
            raise AmbiguousRevision(
                f"{prefix} fits {len(found)} digests: {names}", candidates=[d.hex() for d in found]
            )
        return found[0]

    # -- which objects lead there -----------------------------------------------------------------

    def _lead(self, root: Digest) -> None:
        """Note of all objects below a root what they reach: children first, each once."""
        stack: list[tuple[Kind, Digest, bool]] = [(Kind.TREE, root, False)]
        while stack:
            kind, digest, done = stack.pop()
            if digest in self.leads and not done:
                continue
            found = self.census.object(kind, digest)
            if not done:
                self._note(digest, kind)
                stack.append((kind, digest, True))
                stack.extend((k, d, False) for k, d in found.below if d not in self.leads)
                continue
            reached: set[Digest] = {digest} & self.kinds.keys()
            for chunk in found.chunk_digests():
                self._note(chunk, Kind.CHUNK)
            if self.kinds:
                reached.update(Digest(c) for c in found.chunk_digests() if c in self.kinds)
            reached.update(*(self.leads.get(d, _NONE) for _kind, d in found.below))
            self.leads[digest] = frozenset(reached) if reached else _NONE

    # -- where, by key path and rows --------------------------------------------------------------

    def _places(self, container: Digest) -> list[_Hit]:
        """The places below a container that is named by digest; each is gone into once."""
        stack: list[tuple[Digest, list[tuple[str, Any]] | None]] = [(container, None)]
        while stack:
            digest, entries = stack.pop()
            if digest in self.hits:
                continue
            try:
                if entries is None:
                    entries = self._entries(["tree", digest, None])
                    below = [Digest(v[1]) for _path, v in entries if _is_tree(v)]
                    stack.append((digest, entries))
                    stack.extend((d, None) for d in below if d not in self.hits)
                    continue
                self.hits[digest] = list(self._collect(digest, entries))
            except RecordDamaged as e:
                self.census.unread[e.damages[0].detail] = None
                self.hits[digest] = []
            except (EncodingError, IndexError, TypeError, ValueError) as e:
                self.census.unread[f"tree {digest.short} is malformed: {e}"] = None
                self.hits[digest] = []
        return self.hits[container]

    def _entries(self, value: Any) -> list[tuple[str, Any]]:
        """What a container holds that leads on, small containers in it gone through: leaves, trees.

        A container that is itself looked for is among them, by an entry with its own path.
        """
        out: list[tuple[str, Any]] = []
        stack: list[tuple[str, Any]] = [("", value)]
        while stack:
            path, value = stack.pop()
            if path and _is_tree(value):
                if self.leads.get(Digest(value[1])):
                    out.append((path, value))
                continue
            node = top_node(value, self.census.fetch)
            if node is None:
                out.append((path, value))
                continue
            pairs = [(path, node.items[0])] if node.container == "value" else [
                (join(path, name), child) for name, child in self._children(value, node)
            ]  # fmt: skip
            stack.extend(reversed(pairs))
        return out

    def _children(self, value: Any, node: TreeNode) -> Iterator[tuple[str, Any]]:
        """Name and value of the entries, without the parts of a split container that lead nowhere.

        Places that are the parts themselves count as the container's.
        """
        items: list[Item] = []
        parts: list[tuple[int, TreeNode]] = [(0, node)]
        while parts:
            start, part = parts.pop()
            if not part.level:
                items += items_of_part(start, part)
                continue
            for count, digest in part.items:
                if self.leads.get(Digest(digest)):
                    child = part_of(node, part.level - 1, count, digest, self.census.fetch)
                    parts.append((start, child))
                else:
                    items.append(Item(start, ("part", digest), None, held=False))
                start += count
        names = names_of(value, node, items, self.census.fetch)
        for item in items:
            if item.held:
                yield names[item.key], item.value
        if isinstance(node.extra, list):
            yield METADATA, node.extra

    def _collect(self, digest: Digest, entries: Iterable[tuple[str, Any]]) -> Iterator[_Hit]:
        yield from self._own(digest)
        for path, value in entries:
            if _is_tree(value):
                for hit in self.hits[Digest(value[1])]:
                    yield replace(hit, path=join(path, hit.path) if hit.path else path)
                continue
            leaf = leaf_of(value, self.parts.config.chunk_size)
            if leaf.grid is not None:
                yield from self._in_leaf(path, leaf)

    def _own(self, digest: Digest) -> Iterator[_Hit]:
        """The container itself, or a part of it, where that is looked for."""
        targets = {digest} & self.kinds.keys()
        node = top_node(["tree", digest, None], self.census.fetch)
        assert node is not None
        parts = [node]
        while parts:
            part = parts.pop()
            for count, name in part.items if part.level else ():
                if self.leads.get(Digest(name)):
                    targets |= {Digest(name)} & self.kinds.keys()
                    child = part_of(node, part.level - 1, count, name, self.census.fetch)
                    parts.append(child)
        for target in targets:
            yield _Hit(target, "", node.container)

    def _in_leaf(self, path: str, leaf: Leaf) -> Iterator[_Hit]:
        form, held = leaf.held
        about = {"kind": leaf.kind, "dtype": leaf.dtype_text, "shape": leaf.shape}
        if form == 0:
            return
        if form == 2:
            if not self.leads.get(Digest(held)):
                return
            for target in self._lists(Digest(held)):
                yield _Hit(target, path, **about)  # type: ignore[arg-type]
        assert leaf.grid is not None
        most = leaf.grid.chunks if leaf.is_array else MAX_VALUES
        digests = read_content(leaf.held, self.census.fetch, most).digests
        numbers = [i for i, d in enumerate(digests) if d in self.kinds]
        spans_ = leaf.grid.spans() if numbers and leaf.is_array else []
        for i in numbers:
            rows = leaf.grid.rows_of(*spans_[i]) if i < len(spans_) else None
            yield _Hit(digests[i], path, chunk=i, rows=rows, **about)  # type: ignore[arg-type]

    def _lists(self, top: Digest) -> Iterator[Digest]:
        """The chunk lists, from a top one down, that are looked for themselves."""
        stack = [top]
        while stack:
            digest = stack.pop()
            if digest in self.kinds:
                yield digest
            stack.extend(d for _k, d in self.census.object(Kind.CHUNKS, digest).below)

    # -- the report -------------------------------------------------------------------------------

    def _report(self, target: Digest) -> FoundDigest:
        fold, kind = self.fold, self.kinds[target]
        copies = [*self.census.data.places(target), *self.census.meta.places(target)]
        having = {
            d
            for d, live in fold.live.items()
            if d == target or target in self.leads.get(live.add.root, _NONE)
        }
        if kind in (Kind.TABLE, Kind.INTENT):
            packs = {place.pack.path for place in copies}
            having = {d for d, live in fold.live.items() if packs & set(live.packs)}
        by_place: dict[_Hit, set[Digest]] = {}
        for digest, live in fold.live.items():
            if target in self.leads.get(live.add.root, _NONE):
                for hit in self._places(live.add.root):
                    if hit.target == target:
                        by_place.setdefault(hit, set()).add(digest)
        places = [
            FoundPlace(h.path, h.kind, h.dtype, h.shape, h.chunk, h.rows, spans(fold, where))
            for h, where in by_place.items()
        ]
        return FoundDigest(
            digest=target.hex(),
            kind=kind.name.lower(),
            copies=tuple(self._copy(place) for place in copies),
            places=tuple(places),
            checkpoints=spans(fold, having),
            unread=tuple(self.census.unread),
        )

    def _copy(self, location: Location) -> FoundCopy:
        place, record = place_of(location), location.record
        found = None
        try:
            read_record(self.parts.storage, location, stored_too=True)
        except RecordDamaged as e:
            found = e.damages[0].found or e.damages[0].detail
        known = (location.pack.path, record.digest) in self.fold.damaged
        return FoundCopy(
            **{name: getattr(place, name) for name in ("pack", "offset", "stored", "codec")},
            length=record.raw_len,
            whole=found is None,
            found=found,
            known_damage=known,
        )


def _is_tree(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and value[0] == "tree"
