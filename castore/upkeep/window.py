"""The window at work: reading back what a policy wants verified, and letting go in one entry.

What is decided is decided on the fold at the number that the entry takes, by the pure functions of
``castore/log/window.py``.  The only bytes that it rests on are the packs read back here and, for
``keep_best``, the ``meta`` of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from castore.errors import CheckpointGone, SaveFailed, UsageError
from castore.log.entry import Change, Entry, Window
from castore.log.fold import Fold
from castore.log.log import AppendFateUnknown, Log
from castore.log.window import (
    Decision,
    Listed,
    Policy,
    Release,
    counted,
    holders,
    metric_of,
    plan_release,
    select,
    wanting,
)
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import CheckpointObject
from castore.packs.reader import PackSet, RecordDamaged
from castore.reports import DropReport, GcItem, WindowItem, WindowReport
from castore.storage.protocol import Storage
from castore.upkeep.readback import ReadBack
from castore.upkeep.reserve import append_with_reserve

__all__ = ["Numbers", "Retention", "drop", "set_window", "show_window"]

#: (checkpoint, metric) -> the number its ``meta`` has: kept by a Store from one save to the next.
Numbers = dict[tuple[Digest, str], float | None]

_Progress = Callable[[int], None]
T = TypeVar("T")


@dataclass(slots=True)
class Retention:
    """One branch's window.  :meth:`prepare` may read packs; then :meth:`changes` decides.

    Attributes:
        storage: the store's medium.
        branch: the branch.
        policy: what to go by, or None for the policy that is stored.
        numbers: what is known of the checkpoints' metrics; added to.
        back: what was read back.
        read: checkpoints that were read back, in order.
        spared: checkpoints that are not to be read back: the one being saved, the damaged ones.
        decisions: what :meth:`changes` decided last.
        release: what it let go of last, or None.
    """

    storage: Storage
    branch: str
    policy: Policy | None
    numbers: Numbers
    back: ReadBack = field(init=False)
    read: list[Digest] = field(default_factory=list)
    spared: set[Digest] = field(default_factory=set)
    decisions: list[Decision] = field(default_factory=list)
    release: Release | None = None

    def __post_init__(self) -> None:
        self.back = ReadBack(self.storage)

    def prepare(
        self,
        fold: Fold,
        made: Sequence[Change] = (),
        spared: Digest | None = None,
        progress: _Progress | None = None,
    ) -> str:
        """Read back the checkpoints that must be verified for the policy to do its work.

        Args:
            fold: the store as it is.
            made: what the entry does beside.
            spared: a checkpoint that is left unverified all the same.
            progress: told of bytes read.

        Returns:
            The policy in words; nothing where there is none.
        """
        policy, at = self._at(fold, made)
        if policy is None:
            return ""
        self.back.progress = progress
        if spared is not None:
            self.spared.add(spared)
        while wanted := self._wanted(at, policy):
            for digest in wanted:
                self.back.read(at, [at.packs[p] for p in self._unread(at, digest)])
                self.read.append(digest)
            # Read once: what is not verified now is damaged, or could not be read.
            self.spared.update(wanted)
        return str(policy)

    def changes(self, fold: Fold, made: Sequence[Change] = ()) -> Sequence[Change]:
        """What an entry after ``fold`` that makes those changes does for the window.

        Packs verified or found damaged, checkpoints taken off the list and let go, packs condemned.
        """
        self.decisions, self.release = [], None
        policy, at = self._at(fold, made)
        if policy is None:
            return ()
        told = self.back.changes(at)
        if told:
            at = at.with_changes(told)
        listed = self._listed(at, policy)
        self.decisions = select(listed, policy, self._verified(at, listed, policy))
        gone = [d.checkpoint.digest for d in self.decisions if not d.keep]
        if not gone:
            return told
        self.release = plan_release(at, {self.branch: gone})
        return [*told, *self.release.changes]

    def foresee(self, fold: Fold) -> str | None:
        """Decide as :meth:`changes` does, as if all that would be read back were sound.

        Returns:
            The policy in words, or None where there is none.
        """
        policy, _ = self._at(fold, ())
        if policy is None:
            self.decisions = [
                Decision(c, True, "there is no policy: nothing is let go")
                for c in self._listed(fold, Policy())
            ]
            return None
        listed = self._listed(fold, policy)
        self.spared.update(d for named in fold.damaged.values() for d in named)
        self.read = self._wanted(fold, policy)
        sound = self._verified(fold, listed, policy).union(self.read)
        self.decisions = select(listed, policy, sound)
        gone = [d.checkpoint.digest for d in self.decisions if not d.keep]
        self.release = plan_release(fold, {self.branch: gone})
        return str(policy)

    @property
    def condemned(self) -> tuple[str, ...]:
        """Packs that the entry condemns, once it is durable."""
        return self.release.condemned if self.release else ()

    @property
    def let_go(self) -> tuple[Digest, ...]:
        """Checkpoints that the entry lets go."""
        return self.release.let_go if self.release else ()

    def _at(self, fold: Fold, made: Sequence[Change]) -> tuple[Policy | None, Fold]:
        """The policy, and the fold as those changes leave it."""
        policy = self.policy
        if policy is None and self.branch in fold.windows:
            policy = Policy.stored(fold.windows[self.branch])
        return policy, fold.with_changes(made) if made and policy else fold

    def _wanted(self, fold: Fold, policy: Policy) -> list[Digest]:
        told = self.back.changes(fold)
        at = fold.with_changes(told) if told else fold
        listed = self._listed(at, policy)
        return wanting(listed, policy, self._verified(at, listed, policy), self.spared)

    def _unread(self, fold: Fold, digest: Digest) -> list[str]:
        """The packs of a checkpoint that are not verified, or not there as they should be."""
        return [
            p for p in fold.live[digest].packs if p not in fold.verified or not self._there(fold, p)
        ]

    def _listed(self, fold: Fold, policy: Policy) -> list[Listed]:
        branch = fold.branches.get(self.branch)
        held = holders(fold)
        return [
            Listed(
                digest,
                fold.live[digest].add.step,
                fold.live[digest].add.time,
                held.get(digest, ()),
                self._metrics(fold, digest, policy),
            )
            for digest in (branch.checkpoints if branch else ())
        ]

    def _metrics(self, fold: Fold, digest: Digest, policy: Policy) -> Mapping[str, float | None]:
        names = [best.metric for best in policy.keep_best]
        if any((digest, name) not in self.numbers for name in names):
            fetch = PackSet(self.storage, fold.packs_of(digest)).fetch
            try:
                meta = CheckpointObject.parse(fetch(Kind.CHECKPOINT, digest)).meta
            except (RecordDamaged, EncodingError):
                return {}
            self.numbers.update(((digest, name), metric_of(meta, name)) for name in names)
        return {name: self.numbers[digest, name] for name in names}

    def _verified(self, fold: Fold, listed: Sequence[Listed], policy: Policy) -> set[Digest]:
        """The checkpoints that are verified and, if they are to push others out, there."""
        sound = {c.digest for c in listed if fold.is_verified(c.digest)}
        while lost := {d for d in counted(listed, policy, sound) if not self._all_there(fold, d)}:
            sound -= lost
        return sound

    def _all_there(self, fold: Fold, digest: Digest) -> bool:
        return all(self._there(fold, path) for path in fold.live[digest].packs)

    def _there(self, fold: Fold, path: str) -> bool:
        info = fold.packs[path]
        return self.storage.size(info.file) == info.size


# -- acts -----------------------------------------------------------------------------------------


def show_window(retention: Retention, fold: Fold) -> WindowReport:
    """What a window would do now.  Writes nothing; reads no pack, but for ``keep_best`` the metas.

    Raises:
        UnsupportedFeature: the policy that is stored has rules of a newer castore.
    """
    policy = retention.foresee(fold)
    return _report(retention, fold, None, policy, dry_run=True)


def set_window(
    log: Log, retention: Retention, *, off: bool = False, progress: _Progress | None = None
) -> WindowReport:
    """Store a branch's policy and apply it, in one entry; ``off``: clear it.

    Raises:
        SaveFailed: the medium failed; nothing was let go, unless its ``fate_unknown`` says that
            the entry may exist.
    """
    branch, policy = retention.branch, None if off else retention.policy
    seen: list[Fold] = []

    def decide(fold: Fold) -> Sequence[Change]:
        seen[:] = [fold]
        plain = policy.plain() if policy else None
        stored: list[Change] = []
        if fold.windows.get(branch) != plain:
            stored = [Window(branch, plain)]
        return stored if policy is None else [*stored, *retention.changes(fold, stored)]

    why = f"window {branch} {policy or 'off'}"

    def act() -> Entry | None:
        if policy is not None:
            retention.prepare(log.fold(), progress=progress)
        return append_with_reserve(retention.storage, log, decide, why)

    entry = _told(f"the window of {branch}", f"castore window {branch}", retention.storage, act)
    return _report(retention, seen[0], entry, str(policy) if policy else None)


def drop(storage: Storage, log: Log, digest: Digest, rev: str) -> tuple[DropReport, Release]:
    """Let one checkpoint go, off every list it is on.

    Raises:
        UsageError: a branch stands on it, or a tag or pin holds it; names them.
        CheckpointGone: it was let go meanwhile.
        SaveFailed: the medium failed.
    """
    done: list[tuple[Fold, list[str], Release]] = []

    def decide(fold: Fold) -> Sequence[Change]:
        if digest not in fold.live:
            raise CheckpointGone(
                f"checkpoint {digest.short} was let go meanwhile: "
                f"{log.describe(fold.gone.get(digest, fold.seq))}",
                checkpoint=digest.hex(),
                seq=fold.gone.get(digest),
            )
        _refuse_needed(fold, digest, rev)
        lists = [name for name, b in sorted(fold.branches.items()) if digest in b.checkpoints]
        release = plan_release(fold, {name: [digest] for name in lists}, [digest])
        done[:] = [(fold, lists, release)]
        return release.changes

    def act() -> Entry | None:
        return append_with_reserve(storage, log, decide, f"drop {rev}")

    entry = _told(f"the drop of {rev}", "castore log", storage, act)
    assert entry is not None
    fold, lists, release = done[0]
    report = DropReport(
        digest.hex(),
        fold.live[digest].add.step,
        tuple(lists),
        entry.seq,
        len(release.condemned),
        sum(fold.packs[p].size for p in release.condemned),
    )
    return report, release


def _refuse_needed(fold: Fold, digest: Digest, rev: str) -> None:
    stand = [name for name, head in fold.heads().items() if head == digest]
    if stand:
        raise UsageError(
            f"{rev} is the newest checkpoint of {', '.join(stand)}, and the newest of a branch is "
            f"never dropped; `castore branch -f {stand[0]} {stand[0]}~1` moves the branch back "
            "first"
        )
    if held := holders(fold).get(digest):
        raise UsageError(
            f"{rev} is held by {', '.join(held)}; `castore tag -d NAME` or `castore unpin NAME` "
            "gives it up first"
        )


def _told(what: str, look: str, storage: Storage, act: Callable[[], T]) -> T:
    """Run an act; say of an error of the system's what it means."""
    try:
        return act()
    except AppendFateUnknown as e:
        raise e.told(what, look) from e
    except OSError as e:
        raise SaveFailed.of(e, f"{what} was not changed, and nothing let go", storage.where) from e


# -- reports --------------------------------------------------------------------------------------


def _report(
    retention: Retention,
    fold: Fold,
    entry: Entry | None,
    policy: str | None,
    *,
    dry_run: bool = False,
) -> WindowReport:
    """What was decided on ``fold``."""
    condemned = set(retention.condemned)
    return WindowReport(
        branch=retention.branch,
        policy=policy,
        items=tuple(_items(retention, fold)),
        packs=tuple(_packs(retention, fold)),
        dry_run=dry_run,
        seq=entry.seq if entry else None,
        freed_packs=len(condemned),
        freed_bytes=sum(fold.packs[p].size for p in condemned),
        read_back=tuple(d.hex() for d in retention.read),
        damage=tuple(retention.back.details),
    )


def _items(retention: Retention, fold: Fold) -> Iterator[WindowItem]:
    at = fold.with_changes(retention.back.changes(fold))
    let_go = set(retention.let_go)
    for c, keep, why in reversed(retention.decisions):
        action, reason = "kept" if keep else "let go" if c.digest in let_go else "unlisted", why
        if action == "unlisted":
            others = [
                name
                for name, branch in sorted(fold.branches.items())
                if name != retention.branch and c.digest in branch.checkpoints
            ]
            reason = f"{why}; it stays live on {', '.join(others)}"
        yield WindowItem(c.digest.hex(), c.step, c.time, at.is_verified(c.digest), action, reason)


def _packs(retention: Retention, fold: Fold) -> Iterator[GcItem]:
    """Every pack that a checkpoint of the list needs, in the order of the list."""
    condemned, let_go = set(retention.condemned), set(retention.let_go)
    kept: dict[str, int] = {}
    for digest, live in fold.live.items():
        if digest not in let_go:
            for path in live.packs:
                kept[path] = kept.get(path, 0) + 1
    lives = (fold.live[d.checkpoint.digest] for d in retention.decisions)
    for path in dict.fromkeys(path for live in lives for path in live.packs):
        n = kept.get(path, 0)
        reason = f"{n:,} live checkpoint{' needs' if n == 1 else 's need'} it"
        if path in condemned:
            reason = "no live checkpoint needs it any more"
        elif not n:
            reason = "a pack that is needed rests on it"
        yield GcItem(
            fold.packs[path].file, fold.packs[path].size,
            "removed" if path in condemned else "kept", reason,
        )  # fmt: skip
