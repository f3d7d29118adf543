"""gc: remove what nothing needs, so that nothing that is needed can ever be removed.

List packs *first*, then fold to the head n, then at exactly n+1 let go of the checkpoints that are
on no list, tag or pin, and condemn what of the list no live checkpoint needs; the number is taken:
plan again.  Only packs that a durable entry condemns are unlinked.  A writer may sleep for a day
between any two of its steps: the log orders it against every condemnation.  If anything that must
be known cannot be read, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from castore.errors import SaveFailed, StoreUnreadable, UsageError
from castore.log.entry import Change, Condemned, LetGo, Unpin
from castore.log.fold import Fold, Live, plan_condemned
from castore.log.log import AppendFateUnknown, Log
from castore.log.window import Release, holders, loose, plan_release
from castore.model.digest import Digest
from castore.reports import GcCheckpoint, GcItem, GcReport
from castore.storage.protocol import Storage
from castore.upkeep.pins import dead_pins
from castore.upkeep.reserve import append_with_reserve, make_reserve
from castore.upkeep.survey import Found, list_packs, survey
from castore.upkeep.unlink import unlink

__all__ = ["gc"]

_REASONS = {
    "debris": "no live checkpoint needs it",
    "let-go": "only checkpoints that are let go needed it",
    "in-flight": "its save may still be at work",
    "quarantined": "set aside by a repair",
    "beside": "it holds the second copy of a table that is needed, or bases of chunks that are",
    "temporary": "left by a process that died while creating a file",
    "session": "its process is gone",
    "folder": "an empty folder of a dead save",
    "stranger": "not castore's: never touched",
}
_LITTER = ("temporary", "session")
_REMOVED = ("debris", "let-go", "folder", *_LITTER)


@dataclass(slots=True)
class _Plan:
    """What gc is to do at the number after ``fold``.

    Attributes:
        fold: the store before.
        after: the store with the checkpoints let go.
        unpinned: pins of dead owners.
        release: the checkpoints let go, and what that frees.
        found: what lies about, as seen from ``after``.
        condemned: packs to condemn.
    """

    fold: Fold
    after: Fold
    unpinned: list[str]
    release: Release
    found: list[Found] = field(default_factory=list)
    condemned: tuple[str, ...] = ()

    def changes(self) -> Sequence[Change]:
        """The entry's changes."""
        out: list[Change] = [Unpin(name) for name in self.unpinned]
        if self.release.let_go:
            out.append(LetGo(self.release.let_go))
        if self.condemned:
            out.append(Condemned(self.condemned))
        return out


def _plan(storage: Storage, fold: Fold, listed: dict[str, list[str]], *, may_write: bool) -> _Plan:
    unpinned = dead_pins(fold)
    base = fold.with_changes([Unpin(name) for name in unpinned])
    release = plan_release(base, {}, loose(base))
    plan = _Plan(fold, base.with_changes(release.changes), unpinned, release)
    plan.found = survey(
        storage, plan.after, listed, let_go=frozenset(release.condemned), may_write=may_write
    )
    assert_needed_are_there(storage, plan.after)
    debris = (f.name.removeprefix("packs/") for f in plan.found if f.what == "debris")
    # What was let go is freed by the log alone, whether or not the listing shows it.
    plan.condemned = plan_condemned(plan.after, dict.fromkeys([*release.condemned, *debris]))
    return plan


def gc(storage: Storage, log: Log, *, dry_run: bool = False, drop_all: bool = False) -> GcReport:
    """Let go of what is on no list, tag or pin, and remove what no live checkpoint needs.

    Args:
        storage: the store's medium.
        log: its log.
        dry_run: only say what would be done.
        drop_all: let go even of every checkpoint there is.

    Returns:
        A reason for every file that no live checkpoint needs; with ``dry_run`` for every pack and
        every checkpoint.

    Raises:
        UsageError: every checkpoint would be let go, without ``drop_all``.
        StoreUnreadable: the log cannot be read, or a needed pack is not there at its size: nothing
            was removed.
        SaveFailed: the medium failed.
    """
    try:
        listed = list_packs(storage)
    except OSError as e:
        raise StoreUnreadable.of(e, "gc removed nothing", storage.where) from e
    if dry_run:
        return _report(_plan(storage, log.fold(), listed, may_write=False), None)
    plans: list[_Plan] = []

    def decide(fold: Fold) -> Sequence[Change]:
        plans[:] = [_plan(storage, fold, listed, may_write=True)]
        gone = len(plans[0].release.let_go)
        if gone and not plans[0].after.live and not drop_all:
            raise UsageError(
                f"gc would let go of every checkpoint of {storage.where} ({gone:,}): none is on a "
                "branch's list, and no tag or pin holds one. `castore branch NAME DIGEST` keeps "
                "one (`castore gc -n` lists them); `castore gc --all` drops them all"
            )
        return plans[0].changes()

    try:
        append_with_reserve(storage, log, decide, "gc")
    except AppendFateUnknown as e:
        raise e.told("gc", "castore gc --dry-run") from e
    except OSError as e:
        raise SaveFailed.of(e, "gc removed nothing", storage.where) from e
    try:
        done = _sweep(storage, plans[0])
    except OSError as e:
        what = "gc condemned what nothing needs and could not remove it all; run it again"
        raise SaveFailed.of(e, what, storage.where) from e
    make_reserve(storage)
    return _report(plans[0], done)


# -- reports --------------------------------------------------------------------------------------


def _report(plan: _Plan, done: set[str] | None) -> GcReport:
    """What was done; what would be where ``done`` is None."""
    items = [GcItem(f.name, f.size, _action(f, done), _REASONS[f.what]) for f in plan.found]
    gone = [i for i in items if i.action in ("removed", "would remove")]
    if done is None:
        items += _needed(plan.after)
    return GcReport(
        tuple(items),
        removed_bytes=sum(i.size for i in gone),
        removed_files=len(gone),
        dry_run=done is None,
        live=len(plan.after.live),
        needed_packs=len(plan.after.packs),
        checkpoints=tuple(_checkpoints(plan, done is None)),
        unpinned=tuple(plan.unpinned),
    )


def _action(found: Found, done: set[str] | None) -> str:
    if done is None:
        return "would remove" if found.what in _REMOVED else "kept"
    return "removed" if found.name in done else "kept"


def _needed(fold: Fold) -> Iterator[GcItem]:
    for path, info in fold.packs.items():
        n = fold.uses[path]
        reason = f"{n:,} live checkpoint{' needs' if n == 1 else 's need'} it"
        yield GcItem(info.file, info.size, "kept", reason)


def _checkpoints(plan: _Plan, dry_run: bool) -> Iterator[GcCheckpoint]:
    """Those let go; in a dry run every one, with what keeps it."""
    word = "would let go" if dry_run else "let go"
    unlisted = "on no branch's list, and no tag or pin holds it"

    def fate(live: Live, action: str, reason: str) -> GcCheckpoint:
        return GcCheckpoint(live.digest.hex(), live.add.branch, live.add.step, action, reason)

    for digest in plan.release.let_go:
        yield fate(plan.fold.live[digest], word, unlisted)
    if dry_run:
        keepers = _keepers(plan.after)
        for digest, live in plan.after.live.items():
            yield fate(live, "kept", ", ".join(keepers[digest]))


def _keepers(fold: Fold) -> dict[Digest, list[str]]:
    out: dict[Digest, list[str]] = {}
    for name, branch in sorted(fold.branches.items()):
        for digest in branch.checkpoints:
            out.setdefault(digest, []).append(f"on the list of {name}")
    for digest, names in holders(fold).items():
        out.setdefault(digest, []).extend(names)
    return out


# -- removing -------------------------------------------------------------------------------------


def assert_needed_are_there(storage: Storage, fold: Fold) -> None:
    """Fail closed: every pack that is needed is there at its size, or its loss is known.

    Raises:
        StoreUnreadable: one is not.
    """
    known_lost = {path for (path, _), named in fold.damaged.items() if named}
    for info in fold.packs.values():
        size = storage.size(info.file)
        if size != info.size and info.path not in known_lost:
            found = "no file" if size is None else f"{size} bytes"
            raise StoreUnreadable(
                f"gc removed nothing: {info.file}, which live checkpoints need, should have "
                f"{info.size} bytes and is {found}; run `castore -s {storage.where} fsck`",
                path=info.file,
            )


def _sweep(storage: Storage, plan: _Plan) -> set[str]:
    """Unlink what a durable entry condemns, and litter that no rule protects."""
    unlink(storage, plan.condemned)
    done = {f"packs/{path}" for path in plan.condemned}
    for item in plan.found:
        if item.what in _LITTER:
            storage.delete(item.name)
            done.add(item.name)
        elif item.what == "folder" and storage.remove_folder(item.name):
            done.add(item.name)
    return done
