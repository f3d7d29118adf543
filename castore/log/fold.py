"""The fold: the state of everything, as a pure function of the log.

``fold.apply(entry)`` gives the next fold; nothing here reads or writes.  A :class:`Fold` is never
changed once handed out.  The rules that decide whether an act may take a number
(:func:`is_present`, :func:`broken_needs`) and what may be removed (:func:`plan_condemned`) are here
too: they are what makes deduplication safe.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from castore.log.entry import (
    FIRST_PREV,
    Add,
    Change,
    Condemned,
    Damaged,
    Entry,
    EntryError,
    Features,
    Healed,
    Leans,
    LetGo,
    Lost,
    Pin,
    Quarantined,
    Replaced,
    SetBranch,
    SetTag,
    Unlisted,
    Unpin,
    Verified,
    Window,
    parse_change,
    tuples,
)
from castore.model.digest import Digest, derived
from castore.model.encoding import unpack
from castore.model.packinfo import PackInfo

__all__ = [
    "Branch",
    "Fold",
    "Live",
    "broken_needs",
    "is_present",
    "parse_fold",
    "plan_condemned",
    "render_fold",
]


@dataclass(frozen=True, slots=True)
class Live:
    """A live checkpoint: the entry's words about it, and the packs it needs now."""

    add: Add
    seq: int
    packs: tuple[str, ...]

    @property
    def digest(self) -> Digest:
        """Its name."""
        return self.add.checkpoint


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch: its list, oldest first, and every place where it ever stood."""

    checkpoints: tuple[Digest, ...]
    moves: tuple[tuple[int, Digest | None], ...]

    @property
    def head(self) -> Digest | None:
        """Where it stands."""
        return self.checkpoints[-1] if self.checkpoints else None


@dataclass(slots=True)
class Fold:
    """The state of a store at entry ``seq``.

    Attributes:
        seq: number of the last entry folded (0: none).
        chain: digest of that entry's record.
        live: live checkpoints, in the order they were added.
        packs: the packs that live checkpoints need, by path.
        uses: how many live checkpoints need each.
        ids: pack id -> path, of the same packs.
        metas: save id -> paths of its meta packs among them.
        branches, tags, pins: refs.  A removed branch stays, with an empty list, for its moves.
        gone: checkpoint -> the entry that let it go.
        verified: packs read back whole.
        damaged: (pack path, digest) -> the checkpoints that the damage names: none, once healed.
        quarantined: packs out of service.
        leans: pack -> packs that hold bases of its records.
        windows: branch -> policy.
        required, optional: features in use.
        last: verb (``commit``, ``verify``, ``gc``) -> time of its last entry.
    """

    seq: int = 0
    chain: Digest = FIRST_PREV
    live: dict[Digest, Live] = field(default_factory=dict)
    packs: dict[str, PackInfo] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    ids: dict[Digest, str] = field(default_factory=dict)
    metas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    tags: dict[str, Digest] = field(default_factory=dict)
    pins: dict[str, tuple[Digest, tuple[Any, ...]]] = field(default_factory=dict)
    gone: dict[Digest, int] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)
    damaged: dict[tuple[str, Digest], tuple[Digest, ...]] = field(default_factory=dict)
    quarantined: set[str] = field(default_factory=set)
    leans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    windows: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    last: dict[str, int] = field(default_factory=dict)

    def snapshot(self) -> Fold:
        """A copy that may be advanced while this one stays as it is."""
        out = copy.copy(self)
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, (dict, set)):
                setattr(out, name, value.copy())
        return out

    def apply(self, entry: Entry) -> Fold:
        """The fold after ``entry``."""
        out = self.snapshot()
        out.advance([entry])
        return out

    def with_changes(self, changes: Iterable[Change]) -> Fold:
        """The fold as an entry of these changes would leave it: to decide by, not to build on."""
        out = self.snapshot()
        out._apply_changes(changes, self.seq + 1, 0)
        return out

    def advance(self, entries: Iterable[Entry]) -> None:
        """Apply entries to this very fold: for a fold that nobody else holds.

        Raises:
            EntryError: an entry does not follow from what is folded.
        """
        for entry in entries:
            if entry.seq != self.seq + 1:
                raise EntryError(f"entry {entry.seq} does not follow entry {self.seq}")
            if entry.prev != self.chain:
                raise EntryError(
                    f"entry {entry.seq} names {entry.prev.short} as the record before it, "
                    f"but that is {self.chain.short}"
                )
            self._apply_changes(entry.changes, entry.seq, entry.time)
            self.seq, self.chain = entry.seq, entry.digest()

    def skip_lost(self, lost: Lost, time: int) -> None:
        """Go past an entry that is lost for ever, with what is known of it."""
        if lost.seq != self.seq + 1:
            raise EntryError(f"entry {lost.seq} does not follow entry {self.seq}")
        additions = [parse_change(_lists(c)) for c in lost.additions]
        self._apply_changes(additions, lost.seq, time)
        self.seq, self.chain = lost.seq, lost.record

    def _apply_changes(self, changes: Iterable[Change], seq: int, time: int) -> None:
        try:
            self._apply_each(changes, seq, time)
        except KeyError as e:
            raise EntryError(f"entry {seq} changes what is not there: {e}") from e

    def _apply_each(self, changes: Iterable[Change], seq: int, time: int) -> None:
        for change in changes:
            match change:
                case Add():
                    self._add(change, seq)
                    self.last["commit"] = time
                case SetBranch(name, checkpoint):
                    self._set_branch(name, checkpoint, seq)
                case SetTag(name, None):
                    self.tags.pop(name, None)
                case SetTag(name, checkpoint) if checkpoint is not None:
                    self.tags[name] = checkpoint
                case Pin(name, checkpoint, owner):
                    self.pins[name] = (checkpoint, owner)
                case Unpin(name):
                    self.pins.pop(name, None)
                case Unlisted(branch, checkpoints):
                    self._unlist(branch, checkpoints)
                case LetGo(checkpoints):
                    self._let_go(checkpoints, seq)
                case Condemned():
                    self.last["gc"] = time
                case Quarantined(paths):
                    self.quarantined.update(paths)
                case Replaced(old, new):
                    self._replace(old, new)
                case Verified(paths):
                    self.verified.update(p for p in paths if p in self.packs)
                    self.last["verify"] = time
                case Damaged(path, digests, checkpoints):
                    for digest in digests:
                        self.damaged[(path, digest)] = checkpoints
                case Healed(digests, pack):
                    self._heal(digests, pack)
                case Leans(path, bases):
                    self.leans[path] = bases
                case Features(required, optional):
                    self.required, self.optional = required, optional
                case Window(branch, None):
                    self.windows.pop(branch, None)
                case Window(branch, policy) if policy is not None:
                    self.windows[branch] = policy
                case Lost():
                    pass  # takes effect where its number stands, see skip_lost
                case _:
                    raise EntryError(f"a change of kind {change.tag!r} is not understood")

    def _add(self, add: Add, seq: int) -> None:
        old = self.live.pop(add.checkpoint, None)
        self.gone.pop(add.checkpoint, None)
        paths = tuple(p.path for p in add.packs)
        # The packs go to the fold's own table, where equal ones are kept once.
        self.live[add.checkpoint] = Live(replace(add, packs=()), seq, paths)
        for pack in add.packs:
            self._use(pack)
        if old is not None:  # added anew: what is known of its packs is not forgotten meanwhile
            for path in old.packs:
                self._unuse(path)
        branch = self.branches.get(add.branch, Branch((), ()))
        self.branches[add.branch] = Branch(
            (*branch.checkpoints, add.checkpoint), (*branch.moves, (seq, add.checkpoint))
        )

    def _set_branch(self, name: str, checkpoint: Digest | None, seq: int) -> None:
        branch = self.branches.get(name, Branch((), ()))
        if checkpoint is None:
            kept: tuple[Digest, ...] = ()
        elif checkpoint in branch.checkpoints:
            kept = branch.checkpoints[: branch.checkpoints.index(checkpoint) + 1]
        elif any(head == checkpoint for _, head in branch.moves):
            kept = self._line_of(name, checkpoint)
        else:
            kept = (checkpoint,)
        self.branches[name] = Branch(kept, (*branch.moves, (seq, checkpoint)))

    def _line_of(self, name: str, checkpoint: Digest) -> tuple[Digest, ...]:
        """A checkpoint and its live parents, oldest first, as far as all were added to a branch.

        What a branch lists that comes back to where it once stood: a move that is undone, or a
        removal, costs it none of its own.
        """
        line = [checkpoint]
        while (live := self.live[line[-1]]).add.branch == name and live.add.parent in self.live:
            if self.live[live.add.parent].add.branch != name:
                break
            line.append(live.add.parent)
        return tuple(reversed(line))

    def _unlist(self, name: str, checkpoints: Collection[Digest]) -> None:
        branch = self.branches[name]
        self.branches[name] = Branch(
            tuple(c for c in branch.checkpoints if c not in checkpoints), branch.moves
        )

    def _learn(self, pack: PackInfo) -> None:
        self.packs[pack.path] = pack
        self.ids[pack.id] = pack.path
        if not pack.is_data:
            self.metas[pack.save] = (*self.metas.get(pack.save, ()), pack.path)

    def _use(self, pack: PackInfo) -> None:
        if pack.path not in self.packs:
            self._learn(pack)
        self.uses[pack.path] = self.uses.get(pack.path, 0) + 1

    def _unuse(self, path: str) -> None:
        left = self.uses[path] - 1
        if left:
            self.uses[path] = left
            return
        pack = self.packs[path]
        del self.uses[path], self.packs[path], self.ids[pack.id]
        if not pack.is_data:
            self.metas[pack.save] = tuple(p for p in self.metas[pack.save] if p != path)
            if not self.metas[pack.save]:
                del self.metas[pack.save]
        self.leans.pop(path, None)
        self.verified.discard(path)
        for key in [k for k in self.damaged if k[0] == path]:
            del self.damaged[key]

    def _let_go(self, checkpoints: Iterable[Digest], seq: int) -> None:
        for digest in checkpoints:
            live = self.live.pop(digest, None)
            if live is None:
                continue
            self.gone[digest] = seq
            for path in live.packs:
                self._unuse(path)

    def _replace(self, old: Collection[str], new: tuple[PackInfo, ...]) -> None:
        gone = set(old)
        for digest, live in list(self.live.items()):
            if gone.isdisjoint(live.packs):
                continue
            for pack in new:
                if pack.path not in live.packs:
                    self._use(pack)
            kept = [p for p in live.packs if p not in gone]
            kept += [p.path for p in new if p.path not in kept]
            for path in live.packs:
                if path in gone:
                    self._unuse(path)
            self.live[digest] = replace(live, packs=tuple(kept))

    def _heal(self, digests: Collection[Digest], pack: PackInfo) -> None:
        named: set[Digest] = set()
        for key in [k for k in self.damaged if k[1] in digests]:
            named.update(self.damaged[key])
            # The damaged copy stays where it is: it must never count as present again.
            self.damaged[key] = ()
            if key[0] == pack.path:
                del self.damaged[key]
        for digest in named:
            live = self.live.get(digest)
            if live is not None and pack.path not in live.packs:
                self._use(pack)
                self.live[digest] = replace(live, packs=(*live.packs, pack.path))

    # -- questions --------------------------------------------------------------------------------

    def packs_of(self, digest: Digest) -> list[PackInfo]:
        """The packs a live checkpoint needs."""
        return [self.packs[p] for p in self.live[digest].packs]

    def is_verified(self, digest: Digest) -> bool:
        """Whether every pack a live checkpoint needs is verified, and no damage names it."""
        live = self.live[digest]
        return all(p in self.verified for p in live.packs) and not any(
            digest in named for named in self.damaged.values()
        )

    def dangling(self) -> str | None:
        """A branch, tag or pin that names what is not live: no sound log has one."""
        for name, branch in self.branches.items():
            if not self.live.keys() >= set(branch.checkpoints):
                return f"branch {name} lists a checkpoint that is not live"
        # A tag and a pin may have one name.
        named = [*self.tags.items(), *((n, d) for n, (d, _) in self.pins.items())]
        return next(
            (f"{n} names a checkpoint that is not live" for n, d in named if d not in self.live),
            None,
        )

    def heads(self) -> Mapping[str, Digest]:
        """The branches that stand somewhere, and where."""
        return {name: b.head for name, b in sorted(self.branches.items()) if b.head is not None}


# -- the rules ------------------------------------------------------------------------------------


def is_present(fold: Fold, pack: str, digest: Digest) -> bool:
    """The positive rule: a digest counts as present only in a pack that a live checkpoint needs.

    (Its file must be there at the logged size too: that is the caller's to look at.)  A negative
    rule, "not condemned", loses data when a pack is visible but unlogged.
    """
    return pack in fold.uses and (pack, digest) not in fold.damaged and pack not in fold.quarantined


def broken_needs(
    fold: Fold, save: str, packs: Iterable[PackInfo], condemned_since_s0: Collection[str]
) -> list[str]:
    """Which packs an entry may not name at the number it is about to take.

    A foreign pack must still be needed by a live checkpoint; an own one must not have been
    condemned since the act's ``s0``.
    """
    out = []
    for pack in packs:
        if pack.save == save:
            if pack.path in condemned_since_s0:
                out.append(pack.path)
        elif pack.path not in fold.uses or pack.path in fold.quarantined:
            out.append(pack.path)
    return out


def plan_condemned(fold: Fold, paths: Iterable[str]) -> tuple[str, ...]:
    """Which of some packs may be condemned at the number after ``fold``.

    ``paths`` were listed *before* ``fold``, or are named by an entry it holds.  What a live
    checkpoint needs is kept; and so are the bases of what is kept, and, where no other meta pack
    of its save is needed, a meta pack beside a data pack that is: it holds the table's second copy.
    """
    bases = {base for path in fold.uses for base in fold.leans.get(path, ())}
    alone = {pack.save for pack in fold.packs.values() if pack.is_data} - fold.metas.keys()

    def kept(path: str) -> bool:
        beside = path.partition("/")[0] in alone and not path.endswith(".data.pack")
        return path in fold.uses or path in fold.quarantined or path in bases or beside

    return tuple(path for path in paths if not kept(path))


# -- fold files -----------------------------------------------------------------------------------

_MAGIC = b"castfold1"
_CONTEXT = "castore 1 fold"


def _lists(value: Any) -> Any:
    return [_lists(v) for v in value] if isinstance(value, tuple) else value


def render_fold(fold: Fold, store: bytes) -> bytes:
    """The bytes of a fold file.  Derived: losing it costs a longer read of the log."""
    paths = {path: i for i, path in enumerate(fold.packs)}
    body: bytes = msgpack.packb(
        {
            "store": store,
            "seq": fold.seq,
            "chain": fold.chain,
            "packs": [[p.path, p.id, p.size] for p in fold.packs.values()],
            "live": [
                [v.add.plain(), v.seq, [paths[p] for p in v.packs]] for v in fold.live.values()
            ],
            "branches": [[n, b.checkpoints, b.moves] for n, b in fold.branches.items()],
            "tags": list(fold.tags.items()),
            "pins": [[n, d, o] for n, (d, o) in fold.pins.items()],
            "gone": list(fold.gone.items()),
            "verified": sorted(fold.verified),
            "damaged": [[p, d, c] for (p, d), c in fold.damaged.items()],
            "quarantined": sorted(fold.quarantined),
            "leans": list(fold.leans.items()),
            "windows": list(fold.windows.items()),
            "required": fold.required,
            "optional": fold.optional,
            "last": fold.last,
        },
        use_bin_type=True,
    )
    return _MAGIC + derived(_CONTEXT, body) + body


def parse_fold(data: bytes, store: bytes) -> Fold:
    """Read a fold file.

    Raises:
        EntryError: damaged, or of another store.
    """
    head = len(_MAGIC) + 32
    body = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or derived(_CONTEXT, body) != data[len(_MAGIC) : head]:
        raise EntryError("the fold file is damaged")
    try:
        v = unpack(body)
        if v["store"] != store:
            raise EntryError("the fold file is of another store")
        return _read_fold(v)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, AttributeError) as e:
        raise EntryError(f"the fold file is malformed: {e}") from e


def _read_fold(v: dict[str, Any]) -> Fold:
    packs = [PackInfo(p, Digest(i), s) for p, i, s in v["packs"]]
    fold = Fold(seq=v["seq"], chain=Digest(v["chain"]))
    for pack in packs:
        fold._learn(pack)
    for plain, seq, needs in v["live"]:
        add = parse_change(plain)
        if not isinstance(add, Add):
            raise EntryError(f"a live checkpoint is told by {plain[0]!r}")
        fold.live[add.checkpoint] = Live(add, seq, tuple(packs[i].path for i in needs))
        for i in needs:
            fold._use(packs[i])
    for name, checkpoints, moves in v["branches"]:
        fold.branches[name] = Branch(
            tuple(map(Digest, checkpoints)),
            tuple((s, None if d is None else Digest(d)) for s, d in moves),
        )
    fold.tags = {n: Digest(d) for n, d in v["tags"]}
    fold.pins = {n: (Digest(d), tuple(o)) for n, d, o in v["pins"]}
    fold.gone = {Digest(d): s for d, s in v["gone"]}
    fold.verified = set(v["verified"])
    fold.damaged = {(p, Digest(d)): tuple(map(Digest, c)) for p, d, c in v["damaged"]}
    fold.quarantined = set(v["quarantined"])
    fold.leans = {p: tuple(b) for p, b in v["leans"]}
    fold.windows = {b: tuples(p) for b, p in v["windows"]}
    fold.required, fold.optional = tuple(v["required"]), tuple(v["optional"])
    fold.last = dict(v["last"])
    return fold


def live_in_order(fold: Fold, branch: str) -> Iterator[Live]:
    """A branch's live checkpoints, newest first."""
    found = fold.branches.get(branch)
    for digest in reversed(found.checkpoints if found else ()):
        if digest in fold.live:
            yield fold.live[digest]
