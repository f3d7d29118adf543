"""Reading packs back from the device, and what the log is to say of them.

A pack is verified once all of it was read back and what is bad in it is logged; one whose table,
size or padding is bad is not.  Damage names the live checkpoints that reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from castore.log.entry import Change, Damaged, Verified
from castore.log.fold import Fold, Live
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError
from castore.model.objects import CONTENT_AT, MAX_VALUES, CheckpointObject, read_content, walk
from castore.model.packinfo import PackInfo
from castore.packs.format import Table
from castore.packs.reader import PackSet, RecordDamaged
from castore.packs.scrub import scrub_pack
from castore.storage.protocol import Storage
from castore.system import worker_threads

__all__ = ["ReadBack"]


@dataclass(slots=True)
class ReadBack:
    """What was read back so far.

    Attributes:
        storage: the store's medium.
        progress: told of bytes read.
        bad: pack path -> digests of its bad records (the pack's own id for what is no record);
            empty where all of it is sound.
        details: what is bad, in words.
    """

    storage: Storage
    progress: Callable[[int], None] | None = None
    bad: dict[str, tuple[Digest, ...]] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)

    def read(self, fold: Fold, packs: Iterable[PackInfo]) -> bool:
        """Read packs that were not, from the device and whole; hash and decode every record.

        Returns:
            Whether all of them are sound.  One that could not be read (an error of the system's
            that may pass) is not, and nothing is known of it.
        """
        wanted = list(packs)
        unread: set[str] = set()
        with ThreadPoolExecutor(worker_threads(), thread_name_prefix="castore-verify") as pool:
            for info in wanted:
                if info.path in self.bad:
                    continue
                state = scrub_pack(
                    self.storage, info, pool, device=True, table=self._copy(fold, info),
                    progress=self.progress,
                )  # fmt: skip
                self.details += [damage.detail for _, damage in state.damages]
                if any(damage.code == "unreadable" for _, damage in state.damages):
                    unread.add(info.path)
                else:
                    found = (info.id if d is None else Digest(d) for d, _ in state.damages)
                    self.bad[info.path] = tuple(dict.fromkeys(found))
        return not any(info.path in unread or self.bad[info.path] for info in wanted)

    def _copy(self, fold: Fold, info: PackInfo) -> Table | None:
        """A data pack's table, or the copy of it where that is damaged."""
        if not info.is_data:
            return None
        metas = [fold.packs[path] for path in fold.metas.get(info.save, ())]
        table = PackSet(self.storage, [info, *metas]).table(info)
        return table if isinstance(table, Table) else None

    def changes(self, fold: Fold) -> list[Change]:
        """What an entry after ``fold`` is to say of the packs that were read back."""
        needed = {path: bad for path, bad in self.bad.items() if path in fold.packs}
        verified = tuple(
            path
            for path, bad in needed.items()
            if path not in fold.verified and fold.packs[path].id not in bad
        )
        out: list[Change] = [Verified(verified)] if verified else []
        for path, digests in needed.items():
            new = tuple(d for d in digests if (path, d) not in fold.damaged)
            if new:
                out.append(Damaged(path, new, self._reached(fold, path, set(new))))
        return out

    def _reached(self, fold: Fold, path: str, digests: set[Digest]) -> tuple[Digest, ...]:
        """The live checkpoints that damage in a pack hits.

        Chunks hit those that have them.  What else is damaged hits all that need the pack.
        """
        info = fold.packs[path]
        users = [live for live in fold.live.values() if path in live.packs]
        if info.is_data and info.id not in digests:
            users = [live for live in users if _has_chunk(self.storage, fold, live, digests)]
        return tuple(live.digest for live in users)


def _has_chunk(storage: Storage, fold: Fold, live: Live, digests: Collection[Digest]) -> bool:
    """Whether a checkpoint has one of some chunks; so, too, if that cannot be made out."""
    fetch = PackSet(storage, fold.packs_of(live.digest)).fetch
    try:
        checkpoint = CheckpointObject.parse(fetch(Kind.CHECKPOINT, live.digest))
        for _, value in walk(checkpoint.root, fetch):
            if isinstance(value, list) and value and value[0] in CONTENT_AT:
                content = read_content(value[CONTENT_AT[str(value[0])]], fetch, MAX_VALUES)
                if not content.inline and any(d in digests for d in content.digests):
                    return True
    except (RecordDamaged, EncodingError, IndexError, TypeError, OSError):
        return True
    return False
