"""What checkpoints take: logical, unique, stored and shared bytes.  Reads metadata only.

*Logical* is what a state holds, *unique* its different chunks, *stored* what these take in the
packs, *shared* what of them the parent checkpoint has too.  Contents of at most 256 bytes lie
inside the tree: they are logical and unique, and stored with the metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from castore.errors import CorruptionError, UsageError
from castore.inspection.census import Census
from castore.inspection.roles import ROLES, role_of
from castore.inspection.view import Leaf, View, pieces
from castore.log.fold import Fold, Live
from castore.model.digest import Digest
from castore.model.objects import Content
from castore.pipeline.parts import Parts
from castore.pipeline.tensor_reads import on_a_fresh_fold
from castore.reports import CheckpointStats, StatsRow, StoreBranchStats, StoreStats
from castore.upkeep.survey import list_packs, survey

__all__ = ["BY", "checkpoint_stats", "store_stats"]

BY = ("tensor", "role", "dtype")


# -- one checkpoint -------------------------------------------------------------------------------


def checkpoint_stats(parts: Parts, fold: Fold, live: Live, path: str, by: str) -> CheckpointStats:
    """What the values at or below a key path take.

    Raises:
        UsageError: ``by`` is none of :data:`BY`.
        BadRevision: no such key path.
        CorruptionError: metadata is damaged.
        CheckpointGone: the checkpoint was let go meanwhile.
    """
    if by not in BY:
        raise UsageError(f"by is one of {', '.join(BY)}, not {by!r}")

    def act(fold: Fold, lives: Sequence[Live]) -> CheckpointStats:
        return _Count(parts, fold, lives[0], path.strip("/"), by).run()

    return on_a_fresh_fold(parts, fold, (live,), act)


@dataclass(slots=True)
class _Group:
    """Values that are told of together."""

    name: str
    count: int = 0
    items: int = 0
    logical: int = 0
    inline: int = 0
    chunks: set[Digest] = field(default_factory=set)
    dtypes: set[str | None] = field(default_factory=set)
    roles: set[str] = field(default_factory=set)
    shape: tuple[int, ...] | None = None
    tied: bool = False

    def take(self, leaf: Leaf, role: str, content: Content, nbytes: int, tied: bool) -> None:
        """Count a value in; one that is ``tied`` to an earlier one brings no bytes."""
        self.count += 1
        self.dtypes.add(leaf.dtype_text)
        self.roles.add(role)
        if leaf.is_array and leaf.grid is not None and leaf.itemsize:
            self.items += leaf.grid.nbytes // leaf.itemsize
        if tied:
            return
        self.logical += nbytes
        self.inline += len(content.inline or b"")
        self.chunks.update(content.digests)


class _Count:
    def __init__(self, parts: Parts, fold: Fold, live: Live, path: str, by: str) -> None:
        self.fold = fold
        self.view = View(parts, fold, live)
        self.path = path
        self.by = by
        self.lengths: dict[Digest, int] = {}  # chunk -> bytes
        self.stored: dict[Digest, int] = {}
        parent = live.add.parent
        self.parent = parent
        self.theirs: frozenset[Digest] | None = frozenset()
        if parent is not None:
            found = fold.live.get(parent)
            self.theirs = None if found is None else _chunks_of(View(parts, fold, found))

    def run(self) -> CheckpointStats:
        groups: dict[str, _Group] = {}
        total = _Group("total")
        ties: set[int] = set()
        for path, leaf in self.view.leaves(self.path):
            if leaf.grid is None:
                continue
            tied = leaf.tie in ties
            if leaf.tie is not None:
                ties.add(leaf.tie)
            role = role_of(path, kind=leaf.kind, parameter=bool(leaf.flags & 1))
            content, nbytes = self._content(path, leaf)
            name = {"tensor": path, "role": role, "dtype": leaf.dtype_text or leaf.kind}[self.by]
            group = groups.setdefault(name, _Group(name))
            for into in (group, total):
                into.take(leaf, role, content, nbytes, tied)
            if self.by == "tensor":
                group.shape, group.tied = leaf.shape, tied
        metas = [p for p in self.fold.packs_of(self.view.live.digest) if not p.is_data]
        return CheckpointStats(
            checkpoint=self.view.live.digest.hex(),
            parent=self.parent.hex() if self.parent else None,
            path=self.path,
            by=self.by,
            rows=tuple(self._row(group) for group in self._sorted(groups)),
            total=self._row(total),
            metadata_bytes=sum(p.size for p in metas),
            missing_chunks=len(self.lengths.keys() - self.stored.keys()),
        )

    def _sorted(self, groups: dict[str, _Group]) -> list[_Group]:
        """Tensors in the state's order, roles in theirs, dtypes by what they take."""
        if self.by == "role":
            return [groups[role] for role in ROLES if role in groups]
        if self.by == "dtype":
            return sorted(groups.values(), key=lambda g: (-g.logical, g.name))
        return list(groups.values())

    def _content(self, path: str, leaf: Leaf) -> tuple[Content, int]:
        """A leaf's content and its length; the lengths of its chunks are noted."""
        with self.view.naming(path):
            content = self.view.content(leaf)
            spans = pieces(leaf, content) if leaf.is_array else []
        nbytes = len(content.inline or b"")
        for i, digest in enumerate(content.digests):
            places = self.view.reader.places(digest)
            if spans:
                length = spans[i][1] - spans[i][0]
            else:  # only the packs know how long the chunks of a text are
                length = places[0].record.raw_len if places else 0
            self.lengths[digest] = length
            if places:
                self.stored[digest] = places[0].record.stored_len
            nbytes += length
        return content, nbytes

    def _row(self, group: _Group) -> StatsRow:
        shared = None
        if self.theirs is not None:
            shared = sum(self.lengths[d] for d in group.chunks & self.theirs)
        return StatsRow(
            name=group.name,
            count=group.count,
            items=group.items,
            logical_bytes=group.logical,
            unique_bytes=group.inline + sum(self.lengths[d] for d in group.chunks),
            stored_bytes=sum(self.stored.get(d, 0) for d in group.chunks),
            shared_bytes=shared,
            dtype=next(iter(group.dtypes)) if len(group.dtypes) == 1 else None,
            shape=group.shape,
            role=next(iter(group.roles)) if len(group.roles) == 1 else None,
            tied=group.tied,
        )


def _chunks_of(view: View) -> frozenset[Digest]:
    out: set[Digest] = set()
    for path, leaf in view.leaves():
        if leaf.grid is not None:
            with view.naming(path):
                out.update(view.content(leaf).digests)
    return frozenset(out)


# -- the whole store ------------------------------------------------------------------------------


def store_stats(parts: Parts) -> StoreStats:
    """What the store takes, branch by branch.

    Raises:
        CorruptionError: metadata is damaged, so that what is needed cannot be told.
    """
    listed = list_packs(parts.storage)  # before the fold, as gc does: what is new is no debris
    return _Store(parts, parts.log.fold()).run(listed)


class _Store:
    def __init__(self, parts: Parts, fold: Fold) -> None:
        self.parts = parts
        self.fold = fold
        self.census = Census(parts, fold)

    def run(self, listed: Mapping[str, list[str]]) -> StoreStats:
        fold = self.fold
        groups: list[tuple[str | None, list[Live]]] = [
            (name, [fold.live[d] for d in branch.checkpoints])
            for name, branch in sorted(fold.branches.items())
            if branch.checkpoints
        ]
        on_lists = {live.digest for _name, lives in groups for live in lives}
        loose = [live for d, live in fold.live.items() if d not in on_lists]
        if loose:
            groups.append((None, loose))
        needs = [{path for live in lives for path in live.packs} for _name, lives in groups]
        users = Counter(path for paths in needs for path in paths)
        branches = [
            self._branch(name, lives, paths, {path for path in paths if users[path] == 1})
            for (name, lives), paths in zip(groups, needs, strict=True)
        ]
        chunks = self._chunks(fold.live.values())
        if self.census.unread:
            raise CorruptionError(
                f"{self.parts.storage.where} is damaged, and cannot be counted:\n  "
                + "\n  ".join(list(self.census.unread)[:10])
                + f"\n`castore -s {self.parts.storage.where} fsck` tells more"
            )
        unique, missing = self._lengths(chunks)
        stored, dead = self._stored(chunks)
        logical = sum(live.add.logical_bytes for live in fold.live.values())
        packs = sum(p.size for p in fold.packs.values())
        debris = survey(self.parts.storage, fold, dict(listed))
        return StoreStats(
            branches=tuple(branches),
            checkpoints=len(fold.live),
            logical_bytes=logical,
            unique_bytes=unique,
            stored_bytes=stored,
            pack_bytes=packs,
            metadata_bytes=sum(p.size for p in fold.packs.values() if not p.is_data),
            dead_bytes=dead,
            debris_bytes=sum(f.size for f in debris if f.what == "debris"),
            ratio=logical / packs if packs else None,
            missing_chunks=missing,
        )

    def _branch(
        self, name: str | None, lives: Sequence[Live], needs: set[str], own: set[str]
    ) -> StoreBranchStats:
        def size(paths: Iterable[str]) -> int:
            return sum(self.fold.packs[path].size for path in paths)

        return StoreBranchStats(
            branch=name,
            checkpoints=len(lives),
            logical_bytes=sum(live.add.logical_bytes for live in lives),
            unique_bytes=self._lengths(self._chunks(lives))[0],
            pack_bytes=size(needs),
            own_bytes=size(own),
        )

    def _chunks(self, lives: Iterable[Live]) -> set[bytes]:
        seen: set[Digest] = set()
        out: set[bytes] = set()
        for live in lives:
            for found in self.census.reached(live.add.root, seen):
                out.update(found.chunk_digests())
        return out

    def _lengths(self, chunks: set[bytes]) -> tuple[int, int]:
        """Bytes of these chunks, and how many of them no table has."""
        total = missing = 0
        for digest in chunks:
            places = self.census.data.places(Digest(digest))
            total += places[0].record.raw_len if places else 0
            missing += not places
        return total, missing

    def _stored(self, chunks: set[bytes]) -> tuple[int, int]:
        """What these chunks take in the packs (each copy), and what others do."""
        needed = dead = 0
        for info, table in self.census.tables:
            if info.is_data:
                for digest, _kind, _offset, stored, *_ in table.rows():
                    if digest in chunks:
                        needed += stored
                    else:
                        dead += stored
        return needed, dead
