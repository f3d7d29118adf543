"""A store's past as people read it: checkpoints in the log's order.  Opens no pack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from castore.log.fold import Fold, Live, live_in_order
from castore.log.revisions import Revision
from castore.reports import Checkpoint, RefInfo

__all__ = ["checkpoint_of", "history", "refs_of"]


def checkpoint_of(fold: Fold, live: Live, meta: dict[str, Any] | None = None) -> Checkpoint:
    """A live checkpoint as the log tells of it; ``meta`` where it was read."""
    add = live.add
    return Checkpoint(
        digest=live.digest.hex(),
        root=add.root.hex(),
        step=add.step,
        branch=add.branch,
        seq=live.seq,
        parent=add.parent.hex() if add.parent else None,
        time=add.time,
        meta=meta,
        message=add.message,
        logical_bytes=add.logical_bytes,
        new_bytes=add.new_bytes,
        tensors=add.tensors,
        verified=fold.is_verified(live.digest),
    )


def history(fold: Fold, revision: Revision, start: Live) -> Iterator[Live]:
    """From ``start`` back: along the branch's list where it is on it, else along the parents."""
    listed = list(live_in_order(fold, revision.base))
    places = [i for i, live in enumerate(listed) if live.digest == start.digest]
    return iter(listed[places[0] :]) if places else _ancestors(fold, start)


def _ancestors(fold: Fold, live: Live) -> Iterator[Live]:
    while True:
        yield live
        parent = live.add.parent
        if parent is None or parent not in fold.live:
            return
        live = fold.live[parent]


def refs_of(fold: Fold) -> list[RefInfo]:
    """All branches, then all tags, each by name, with the checkpoints they stand on."""
    named = [("branch", name, digest) for name, digest in fold.heads().items()]
    named += [("tag", name, digest) for name, digest in sorted(fold.tags.items())]
    out = []
    for kind, name, digest in named:
        add = fold.live[digest].add
        out.append(RefInfo(name, kind, digest.hex(), add.step, add.time, add.message))
    return out
