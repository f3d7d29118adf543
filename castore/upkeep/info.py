"""The store at a glance: the log's words, and a look at its folders.  Opens no pack."""

from __future__ import annotations

from typing import Any

from castore.errors import UnsupportedFeature
from castore.log.fold import Fold
from castore.log.window import Policy
from castore.model.config import FORMAT_VERSION, StoreConfig
from castore.reports import StoreInfo
from castore.storage.local import LocalStorage
from castore.upkeep.pins import list_pins
from castore.upkeep.reserve import RESERVE_NAME
from castore.upkeep.sessions import is_live, session_ids
from castore.upkeep.survey import list_packs, survey

__all__ = ["store_info"]


def store_info(storage: LocalStorage, config: StoreConfig, fold: Fold, index: str) -> StoreInfo:
    """What ``castore info`` tells; ``index`` is where the index lies."""
    litter = ("debris", "temporary", "folder", "session")
    debris = [f for f in survey(storage, fold, list_packs(storage)) if f.what in litter]
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
        debris_files=len(debris),
        debris_bytes=sum(f.size for f in debris),
        pins=list_pins(fold),
        windows={name: _policy(plain) for name, plain in sorted(fold.windows.items())},
        features={"required": fold.required, "optional": fold.optional},
    )


def _policy(plain: tuple[Any, ...]) -> str:
    try:
        return str(Policy.stored(plain))
    except UnsupportedFeature:
        return "rules that this castore does not know"
