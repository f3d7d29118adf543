"""The store at a glance: the log's words, and a look at its folders.  Opens no pack."""

from __future__ import annotations

from castore.log.fold import Fold
from castore.model.config import FORMAT_VERSION, StoreConfig
from castore.reports import StoreInfo
from castore.storage.local import LocalStorage
from castore.upkeep.reserve import RESERVE_NAME
from castore.upkeep.sessions import is_live, session_ids

__all__ = ["store_info"]


def store_info(storage: LocalStorage, config: StoreConfig, fold: Fold, index: str) -> StoreInfo:
    """What ``castore info`` tells; ``index`` is where the index lies."""
    return StoreInfo(
        path=storage.where,
        store_id=config.store_id.hex(),
        format=FORMAT_VERSION,
        chunk_size=config.chunk_size,
        file_system=storage.file_system_name(),
        direct_io=storage.takes_direct_io(),
        entries=fold.seq,
        branches={n: d.hex() for n, d in fold.heads().items()},
        tags={n: d.hex() for n, d in sorted(fold.tags.items())},
        checkpoints=len(fold.live),
        verified=sum(fold.is_verified(d) for d in fold.live),
        packs=len(fold.packs),
        pack_bytes=sum(p.size for p in fold.packs.values()),
        logical_bytes=sum(v.add.logical_bytes for v in fold.live.values()),
        reserve_bytes=storage.size(RESERVE_NAME) or 0,
        index=index,
        sessions=tuple(
            save for save in session_ids(storage) if is_live(storage, save, may_write=False)
        ),
        known_damage=sum(1 for named in fold.damaged.values() if named),
        last_commit=fold.last.get("commit"),
        last_verification=fold.last.get("verify"),
        last_gc=fold.last.get("gc"),
        features={"required": fold.required, "optional": fold.optional},
    )
