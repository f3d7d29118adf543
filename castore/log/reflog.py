"""Where a branch stood, move by move: the entries that ``main@{N}`` counts.  Opens no pack."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from castore.errors import BadRevision, NoCheckpoint, StoreUnreadable
from castore.log.entry import Add, Change, SetBranch
from castore.log.fold import Fold
from castore.log.log import Log
from castore.log.names import close_names
from castore.model.digest import Digest
from castore.reports import ReflogEntry

__all__ = ["reflog"]


def reflog(fold: Fold, log: Log, name: str, limit: int | None = None) -> list[ReflogEntry]:
    """The moves of a branch, newest first; of a removed one too.

    Reads one log entry for each move it tells of.

    Args:
        fold: the fold at the head.
        log: the store's log.
        name: the branch.
        limit: at most so many.

    Raises:
        BadRevision: there never was such a branch.
        NoCheckpoint: nothing was ever saved.
    """
    if name not in fold.branches:
        if name in fold.tags:
            raise BadRevision(f"{name} is a tag: only branches have a reflog")
        if not fold.branches and name == "main":
            raise NoCheckpoint("the store holds no checkpoint yet")
        raise BadRevision(f"there is no branch {name!r}; {close_names(name, fold.branches)}")
    return list(islice(_entries(fold, log, name), limit))


def _entries(fold: Fold, log: Log, name: str) -> Iterator[ReflogEntry]:
    moves = fold.branches[name].moves
    for index in range(len(moves)):
        at = len(moves) - 1 - index
        seq, digest = moves[at]
        before = moves[at - 1][1] if at else None
        yield _entry(fold, log, name, index, seq, digest, before)


def _entry(
    fold: Fold, log: Log, name: str, index: int, seq: int, digest: Digest | None,
    before: Digest | None,
) -> ReflogEntry:  # fmt: skip
    step = message = time = writer = None
    action = "unknown"
    try:
        entry = log.entry(seq)
    except StoreUnreadable:
        pass  # declared lost: the fold knows the move all the same
    else:
        time, writer = entry.time, entry.writer
        change = _mover(entry.changes, name, digest)
        if isinstance(change, Add):
            action, step, message = "save", change.step, change.message
        else:
            action = "remove" if digest is None else "create" if before is None else "move"
    live = fold.live.get(digest) if digest else None
    if live is not None:
        step, message = live.add.step, live.add.message
    gone = fold.gone.get(digest) if digest else None
    return ReflogEntry(
        branch=name,
        index=index,
        digest=digest.hex() if digest else None,
        action=action,
        step=step,
        message=message,
        seq=seq,
        time=time,
        writer=writer,
        live=live is not None,
        let_go=None if gone is None else log.describe(gone),
    )


def _mover(changes: tuple[Change, ...], name: str, digest: Digest | None) -> Change | None:
    """The change of an entry that took the branch there."""
    for change in changes:
        match change:
            case Add(branch=branch, checkpoint=checkpoint) if (branch, checkpoint) == (
                name,
                digest,
            ):
                return change
            case SetBranch(branch, checkpoint) if (branch, checkpoint) == (name, digest):
                return change
    return None
