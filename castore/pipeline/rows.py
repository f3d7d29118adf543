"""Reading some rows of one tensor: only the chunks that hold them are read, and verified."""

from __future__ import annotations

from typing import Any

from castore.log.fold import Fold, Live
from castore.model.packinfo import PackInfo
from castore.pipeline.load import Source, corrupted, while_live
from castore.pipeline.parts import Parts
from castore.reports import LoadReport

__all__ = ["read_rows"]


def read_rows(parts: Parts, fold: Fold, live: Live, path: str, rows: Any) -> tuple[Any, LoadReport]:
    """Rows of the tensor or array at a key path.

    Raises:
        CorruptionError: a chunk that is needed is damaged.
        CheckpointGone: the checkpoint was let go meanwhile.
        BadRevision: no such key path.
        UsageError: no tensor or array there, or no such rows.
    """
    return while_live(parts, fold, live, lambda live, packs: _read(parts, live, packs, path, rows))


def _read(
    parts: Parts, live: Live, packs: list[PackInfo], path: str, rows: Any
) -> tuple[Any, LoadReport]:
    from castore.state.rows import plan_rows

    with Source(parts, live, packs) as source:
        value, checkpoint = source.find(path)
        plan = plan_rows(
            value,
            source.fetch,
            checkpoint.chunk_size,
            rows,
            path=source.path,
            max_bytes=checkpoint.logical_bytes,
        )
        reader = source.reader()
        reader.read(plan.reads)
        if reader.findings:
            raise corrupted(parts.storage, reader.findings)
        return plan.finish(), source.report(reader)
