"""Making, moving and removing refs and pins: one log entry each, which lets no checkpoint go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from castore.errors import BadRevision, CheckpointGone, SaveFailed, UsageError
from castore.log.entry import Change, Pin, SetBranch, SetTag, Unpin, Window
from castore.log.fold import Fold
from castore.log.log import AppendFateUnknown, Log
from castore.log.names import check_name
from castore.model.digest import Digest
from castore.reports import AppliedChange

__all__ = ["set_branch", "set_pin", "set_tag"]

#: What a ref named, and the changes to make, if any.
_Decide = Callable[[Fold], tuple[Digest | None, tuple[Change, ...]]]


def set_tag(log: Log, where: str, name: str, target: Digest | None, force: bool) -> AppliedChange:
    """Make a tag at a checkpoint (``force``: or move it); without one, remove it.

    Args:
        log: the store's log.
        where: the store's folder, for messages.
        name: the tag.
        target: the checkpoint, or None.
        force: move a tag that is there.

    Raises:
        UsageError: the name is not fit, is a branch's, or is taken.
        BadRevision: there is no such tag to remove.
        CheckpointGone: the checkpoint was let go meanwhile.
        SaveFailed: the medium failed.
    """
    check_name(name, "tag")

    def decide(fold: Fold) -> tuple[Digest | None, tuple[Change, ...]]:
        old = fold.tags.get(name)
        if target is None and old is None:
            raise BadRevision(f"there is no tag {name!r}")
        if target is not None and name in fold.heads():
            raise UsageError(f"{name!r} is a branch; a tag needs another name")
        if old == target:
            return old, ()
        if old is not None and target is not None and not force:
            raise UsageError(f"tag {name!r} is there, at {old.short}; force=True (-f) moves it")
        return old, (SetTag(name, target),)

    return _set_ref(log, where, "tag", name, target, decide)


def set_branch(
    log: Log, where: str, name: str, target: Digest | None, force: bool
) -> AppliedChange:
    """Make a branch at a checkpoint (``force``: or move it); without one, remove it.

    Arguments and errors as for :func:`set_tag`.
    """
    check_name(name)

    def decide(fold: Fold) -> tuple[Digest | None, tuple[Change, ...]]:
        old = fold.heads().get(name)
        if target is None and old is None:
            raise BadRevision(f"there is no branch {name!r}")
        if target is not None and name in fold.tags:
            raise UsageError(f"{name!r} is a tag; a branch needs another name")
        if old == target:
            return old, ()
        if old is not None and target is not None and not force:
            raise UsageError(f"branch {name!r} is there, at {old.short}; force=True (-f) moves it")
        # Its window ends with it: a branch made anew must not let go by a policy of the past.
        window = (Window(name, None),) if target is None and name in fold.windows else ()
        return old, (SetBranch(name, target), *window)

    return _set_ref(log, where, "branch", name, target, decide)


def set_pin(
    log: Log, where: str, name: str, target: Digest | None, owner: tuple[Any, ...] = ()
) -> AppliedChange:
    """Pin a checkpoint; without one, give the pin up.

    ``owner`` is the process that the pin ends with; empty: it stays until it is given up.  Other
    arguments and errors as for :func:`set_tag`.
    """
    check_name(name, "pin")

    def decide(fold: Fold) -> tuple[Digest | None, tuple[Change, ...]]:
        old, whose = fold.pins.get(name, (None, ()))
        if target is None:
            if old is None:
                known = ", ".join(sorted(fold.pins)) or "none"
                raise BadRevision(f"there is no pin {name!r}; there is: {known}")
            return old, (Unpin(name),)
        if old is not None and (old, whose) != (target, owner):
            raise UsageError(f"pin {name!r} is there, on {old.short}; choose another name")
        return old, () if old else (Pin(name, target, owner),)

    change = _set_ref(log, where, "pin", name, target, decide)
    undo = f"castore pin {change.old[:12]} {name}" if change.old and not target else None
    return replace(change, undo=undo)


def _set_ref(
    log: Log, where: str, kind: str, name: str, target: Digest | None, decide: _Decide
) -> AppliedChange:
    old: Digest | None = None

    def changes(fold: Fold) -> tuple[Change, ...]:
        nonlocal old
        if target is not None and target not in fold.live:
            raise CheckpointGone(
                f"checkpoint {target.short} was let go meanwhile: "
                f"{log.describe(fold.gone.get(target, fold.seq))}",
                checkpoint=target.hex(),
            )
        old, made = decide(fold)
        return made

    verb = "delete" if target is None else "set"
    try:
        entry = log.append(changes, f"{verb} {kind} {name}")
    except AppendFateUnknown as e:
        raise e.told(f"{verb} {kind} {name}", f"castore {kind}") from e
    except OSError as e:
        raise SaveFailed.of(e, f"{kind} {name} was not changed", where) from e
    undo = None
    if old is not None and entry is not None:
        undo = f"castore {kind} {'-f ' if target else ''}{name} {old.hex()[:12]}"
    return AppliedChange(
        kind,
        name,
        old.hex() if old else None,
        target.hex() if target else None,
        entry.seq if entry else log.fold().seq,
        undo,
    )
