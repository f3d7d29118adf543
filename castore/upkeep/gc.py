"""gc: remove what nothing needs, so that nothing that is needed can ever be removed.

List packs *first*, then fold to the head n, then condemn at exactly n+1 what of the list no live
checkpoint of that fold needs; the number is taken: plan again.  Only packs that a durable entry
condemns are unlinked.  A writer may sleep for a day between any two of its steps: the log orders
it against every condemnation.  If anything that must be known cannot be read, nothing is removed.

This version removes debris: what killed and failed saves left.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence

from castore.errors import SaveFailed, StoreUnreadable
from castore.log.entry import Change, Condemned, Entry
from castore.log.fold import Fold
from castore.log.log import AppendFateUnknown, Log
from castore.reports import GcItem, GcReport
from castore.storage.protocol import FateUnknown, NotDurable, Storage
from castore.upkeep.reserve import give_up_reserve, make_reserve
from castore.upkeep.survey import Found, list_packs, survey

__all__ = ["gc", "plan_condemned"]

_REASONS = {
    "debris": "no live checkpoint needs it",
    "in-flight": "its save may still be at work",
    "quarantined": "set aside by a repair",
    "temporary": "left by a process that died while creating a file",
    "session": "its process is gone",
    "folder": "an empty folder of a dead save",
    "stranger": "not castore's: never touched",
}
_REMOVED = ("debris", "temporary", "session", "folder")


def plan_condemned(fold: Fold, listed: Iterable[str]) -> tuple[str, ...]:
    """Which of the packs listed *before* ``fold`` may be condemned at its number.  Pure."""
    return tuple(p for p in listed if p not in fold.uses and p not in fold.quarantined)


def gc(storage: Storage, log: Log, *, dry_run: bool = False) -> GcReport:
    """Remove debris.

    Returns:
        A reason for every file that no live checkpoint needs.

    Raises:
        StoreUnreadable: the log cannot be read, or a needed pack is not there at its size: nothing
            was removed.
        SaveFailed: the medium failed.
    """
    try:
        listed = list_packs(storage)
    except OSError as e:
        raise StoreUnreadable.of(e, "gc removed nothing", storage.where) from e
    found: list[Found] = []

    def decide(fold: Fold) -> Sequence[Change]:
        found[:] = survey(storage, fold, listed, may_write=not dry_run)
        assert_needed_are_there(storage, fold)
        debris = (f.name.removeprefix("packs/") for f in found if f.what == "debris")
        condemned = plan_condemned(fold, debris)
        return (Condemned(condemned),) if condemned else ()

    done: set[str] = set()
    if dry_run:
        decide(log.fold())
    else:
        try:
            entry = _append_with_reserve(storage, log, decide)
        except AppendFateUnknown as e:
            raise e.told("gc", "castore gc --dry-run") from e
        except OSError as e:
            raise SaveFailed.of(e, "gc removed nothing", storage.where) from e
        condemned = (
            {p for c in entry.changes if isinstance(c, Condemned) for p in c.paths}
            if entry
            else set()
        )
        try:
            done = _sweep(storage, found, condemned)
        except OSError as e:
            what = "gc condemned what nothing needs and could not remove it all; run it again"
            raise SaveFailed.of(e, what, storage.where) from e
        make_reserve(storage)
    fold = log.fold()
    items = tuple(
        GcItem(f.name, f.size, _action(f, done, dry_run), _REASONS[f.what]) for f in found
    )
    gone = [i for i in items if i.action in ("removed", "would remove")]
    return GcReport(
        items,
        removed_bytes=sum(i.size for i in gone),
        removed_files=len(gone),
        dry_run=dry_run,
        live=len(fold.live),
        needed_packs=len(fold.packs),
    )


def _action(found: Found, done: set[str], dry_run: bool) -> str:
    if dry_run:
        return "would remove" if found.what in _REMOVED else "kept"
    return "removed" if found.name in done else "kept"


def _append_with_reserve(
    storage: Storage, log: Log, decide: Callable[[Fold], Sequence[Change]]
) -> Entry | None:
    """Append; on a full disk give up the reserve and try once more."""
    try:
        return log.append(decide, "gc")
    except (OSError, AppendFateUnknown) as e:
        # Condemning twice is harmless: whatever became of the first entry, try again.  But an fsync
        # that failed is never tried again: the entry that it was for may not be durable.
        cause = e.cause if isinstance(e, AppendFateUnknown) else e
        if e is not cause and (isinstance(cause, NotDurable) or not isinstance(cause, FateUnknown)):
            raise
        if cause.errno not in (errno.ENOSPC, errno.EDQUOT) or not give_up_reserve(storage):
            raise
    return log.append(decide, "gc")


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


def _sweep(storage: Storage, found: Sequence[Found], condemned: set[str]) -> set[str]:
    """Unlink what a durable entry condemns, and litter that no rule protects."""
    done: set[str] = set()
    for item in found:
        if item.what == "debris" and item.name.removeprefix("packs/") not in condemned:
            continue
        if item.what in _REMOVED and item.what != "folder":
            storage.delete(item.name)
            done.add(item.name)
    for save in {f.save for f in found if f.save and f.what in ("debris", "folder")}:
        if storage.remove_folder(f"packs/{save}"):
            done.add(f"packs/{save}")
    return done
