"""The parts of an open store that saving, loading and upkeep work on."""

from __future__ import annotations

from dataclasses import dataclass

from castore.log.log import Log
from castore.model.config import StoreConfig
from castore.packs.index import Index
from castore.storage.protocol import Storage
from castore.system import cores

__all__ = ["Parts", "workers"]

#: More threads than this gain nothing at the speed of one store's disk, and cost memory.
MAX_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """An open store, taken apart."""

    storage: Storage
    config: StoreConfig
    log: Log
    index: Index


def workers() -> int:
    """How many threads hash, copy and read."""
    return max(1, min(cores(), MAX_WORKERS))
