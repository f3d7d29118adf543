"""Reading ``castore.json`` where it lies."""

from __future__ import annotations

from castore.model.config import CONFIG_NAME, StoreConfig
from castore.storage.protocol import Storage

__all__ = ["read_config"]

#: No castore.json is longer: what is beyond is not read.
MAX_CONFIG = 4096


def read_config(storage: Storage) -> StoreConfig:
    """A store's configuration.

    Raises:
        FileNotFoundError: it is missing.
        StoreUnreadable: damaged.
        UnsupportedFeature: of another version.
    """
    return StoreConfig.parse(storage.read(CONFIG_NAME, 0, MAX_CONFIG), storage.where)
