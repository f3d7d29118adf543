"""Loading into a state that is there already: no second copy in memory, nothing unverified in it.

The target is compared as a whole before anything is read.  Then every chunk is read into a buffer,
hashed there, and copied into the target's own tensors; plain values are replaced last, when nothing
can fail any more.  Damage leaves the target as it was, or the error says that it did not: only
reading everything twice (``verify_first``) can promise more.
"""

from __future__ import annotations

from typing import Any

from castore.errors import CorruptionError, UsageError
from castore.log.fold import Fold, Live
from castore.model.packinfo import PackInfo
from castore.pipeline.load import Progress, Source, corrupted, subject_of, while_live
from castore.pipeline.parts import Parts
from castore.pipeline.reading import ChunkReader
from castore.reports import LoadReport

__all__ = ["load_into"]

#: Mismatches that the message lists; the error has all.
MAX_SHOWN = 20


def load_into(
    parts: Parts,
    fold: Fold,
    live: Live,
    path: str | None,
    target: Any,
    *,
    strict: bool,
    verify_first: bool,
    progress: Progress | None,
) -> LoadReport:
    """Fill a target from a live checkpoint, or from the value at a key path in it.

    Raises:
        UsageError: the target does not fit; it lists every mismatch, and nothing was touched.
        CorruptionError: something is damaged; ``target_modified`` says whether it was touched.
        CheckpointGone: the checkpoint was let go meanwhile.
        BadRevision: no such key path.
    """
    touched = False

    def act(live: Live, packs: list[PackInfo]) -> LoadReport:
        nonlocal touched
        filling = _Filling(parts, live, packs, progress)
        try:
            return filling.run(path or "", target, strict, verify_first)
        except CorruptionError as e:
            touched = e.target_modified = touched or e.target_modified
            raise

    return while_live(parts, fold, live, act)


class _Filling:
    def __init__(
        self, parts: Parts, live: Live, packs: list[PackInfo], progress: Progress | None
    ) -> None:
        self.parts = parts
        self.live = live
        self.packs = packs
        self.progress = progress

    def run(self, path: str, target: Any, strict: bool, verify_first: bool) -> LoadReport:
        from castore.state import plan_state
        from castore.state.targets import bind_target

        with Source(self.parts, self.live, self.packs) as source:
            value, checkpoint = source.find(path)
            plan = plan_state(
                value,
                source.fetch,
                checkpoint.chunk_size,
                path=source.path,
                max_bytes=checkpoint.logical_bytes,
                allocate=False,
            )
            binding = bind_target(plan, target, strict=strict)
            if binding.mismatches:
                raise self.misfit(binding.mismatches)
            reader = source.reader(progress=self.progress)
            reader.read(binding.texts)
            self.stop_at_damage(reader, False)
            binding.prepare()
            if verify_first:
                reader.check(binding.reads)
                self.stop_at_damage(reader, False)
            reader.read(binding.reads)
            self.stop_at_damage(reader, binding.touched)
            binding.finish()
            return source.report(reader, skipped=[str(item) for item in binding.skipped])

    def stop_at_damage(self, reader: ChunkReader, touched: bool) -> None:
        if reader.findings:
            outcome = "the target is as it was"
            if touched:
                outcome = "the target is partly overwritten, and must not be used as it is"
            error = corrupted(self.parts.storage, reader.findings, outcome)
            error.target_modified = touched
            raise error

    def misfit(self, mismatches: Any) -> UsageError:
        texts = [str(mismatch) for mismatch in mismatches]
        shown = "\n  ".join(texts[:MAX_SHOWN])
        more = f"\n  ... and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
        return UsageError(
            f"the target does not fit {subject_of(self.live)}; nothing was changed:\n  "
            f"{shown}{more}",
            path=mismatches[0].path,
            paths=[mismatch.path for mismatch in mismatches],
            mismatches=texts,
        )
