"""Sets of checkpoints, told compactly: first and last of those that follow one another.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from castore.log.fold import Fold, Live
from castore.model.digest import Digest
from castore.reports import CheckpointSpan

__all__ = ["spans"]


def spans(fold: Fold, among: Collection[Digest]) -> tuple[CheckpointSpan, ...]:
    """Live checkpoints as spans of the branches that list them, then those that none lists."""
    out: list[CheckpointSpan] = []
    listed: set[Digest] = set()
    for name, branch in sorted(fold.branches.items()):
        run: list[Live] = []
        for digest in branch.checkpoints:
            if digest in among:
                listed.add(digest)
                run.append(fold.live[digest])
            elif run:
                out.append(_span(name, run))
                run = []
        if run:
            out.append(_span(name, run))
    out.extend(_span(None, [live]) for live in _unlisted(fold, among, listed))
    return tuple(out)


def _unlisted(fold: Fold, among: Collection[Digest], listed: set[Digest]) -> Iterator[Live]:
    return (live for d, live in fold.live.items() if d in among and d not in listed)


def _span(branch: str | None, run: list[Live]) -> CheckpointSpan:
    first, last = run[0], run[-1]
    return CheckpointSpan(
        branch, first.digest.hex(), last.digest.hex(), first.add.step, last.add.step, len(run)
    )
