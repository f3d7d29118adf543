"""The parts of an open store that saving, loading and upkeep work on."""

from __future__ import annotations

from dataclasses import dataclass

from castore.log.log import Log
from castore.model.config import StoreConfig
from castore.packs.index import Index
from castore.storage.protocol import Storage

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """An open store, taken apart."""

    storage: Storage
    config: StoreConfig
    log: Log
    index: Index
