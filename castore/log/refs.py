"""Making, moving and removing refs: one log entry each, which lets no checkpoint go."""

from __future__ import annotations

from collections.abc import Callable

from castore.errors import BadRevision, CheckpointGone, SaveFailed, UsageError
from castore.log.entry import Change, SetBranch, SetTag
from castore.log.fold import Fold
from castore.log.log import AppendFateUnknown, Log
from castore.log.names import check_name
from castore.model.digest import Digest
from castore.reports import AppliedChange

__all__ = ["set_branch", "set_tag"]

#: What a ref named, and the change to make, if any.
_Decide = Callable[[Fold], tuple[Digest | None, Change | None]]


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

    def decide(fold: Fold) -> tuple[Digest | None, Change | None]:
        old = fold.tags.get(name)
        if target is None and old is None:
            raise BadRevision(f"there is no tag {name!r}")
        if target is not None and name in fold.heads():
            raise UsageError(f"{name!r} is a branch; a tag needs another name")
        if old == target:
            return old, None
        if old is not None and target is not None and not force:
            raise UsageError(f"tag {name!r} is there, at {old.short}; force=True (-f) moves it")
        return old, SetTag(name, target)

    return _set_ref(log, where, "tag", name, target, decide)


def set_branch(
    log: Log, where: str, name: str, target: Digest | None, force: bool
) -> AppliedChange:
    """Make a branch at a checkpoint (``force``: or move it); without one, remove it.

    Arguments and errors as for :func:`set_tag`.
    """
    check_name(name)

    def decide(fold: Fold) -> tuple[Digest | None, Change | None]:
        old = fold.heads().get(name)
        if target is None and old is None:
            raise BadRevision(f"there is no branch {name!r}")
        if target is not None and name in fold.tags:
            raise UsageError(f"{name!r} is a tag; a branch needs another name")
        if old == target:
            return old, None
        if old is not None and target is not None and not force:
            raise UsageError(f"branch {name!r} is there, at {old.short}; force=True (-f) moves it")
        return old, SetBranch(name, target)

    return _set_ref(log, where, "branch", name, target, decide)


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
        old, change = decide(fold)
        return () if change is None else (change,)

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
