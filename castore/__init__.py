"""castore: a content-addressed checkpoint store for people who train neural networks.

    import castore

    castore.save(state, "runs.castore", step=1000, meta={"loss": 2.31})
    state = castore.load("runs.castore")

The names below are the public face.  They are loaded when first used, so that ``import castore``
costs nothing and imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from castore.errors import (
        AmbiguousRevision,
        BadFile,
        BadRevision,
        BadState,
        CastoreError,
        CastoreWarning,
        CheckpointGone,
        CorruptionError,
        NoCheckpoint,
        RankError,
        RefConflict,
        SaveFailed,
        StoreNotFound,
        StoreUnreadable,
        UnsupportedFeature,
        UsageError,
    )
    from castore.model.patterns import OMITTED
    from castore.opening import load, save
    from castore.opening import open_store as open
    from castore.reports import (
        AppliedChange,
        Checkpoint,
        CheckpointSpan,
        CheckpointStats,
        ChunkPlaces,
        DiffEntry,
        DiffReport,
        Finding,
        FoundCopy,
        FoundDigest,
        FoundPlace,
        FsckReport,
        GcReport,
        LoadReport,
        Place,
        RefInfo,
        ReflogEntry,
        SaveReport,
        StatsRow,
        StoreBranchStats,
        StoredObject,
        StoreInfo,
        StoreStats,
        TensorDifference,
        TensorStats,
        TreeEntry,
        ValueReport,
    )
    from castore.store import Store

__version__ = "0.1.0"

__all__ = [
    "OMITTED",
    "AmbiguousRevision",
    "AppliedChange",
    "BadFile",
    "BadRevision",
    "BadState",
    "CastoreError",
    "CastoreWarning",
    "Checkpoint",
    "CheckpointGone",
    "CheckpointSpan",
    "CheckpointStats",
    "ChunkPlaces",
    "CorruptionError",
    "DiffEntry",
    "DiffReport",
    "Finding",
    "FoundCopy",
    "FoundDigest",
    "FoundPlace",
    "FsckReport",
    "GcReport",
    "LoadReport",
    "NoCheckpoint",
    "Place",
    "RankError",
    "RefConflict",
    "RefInfo",
    "ReflogEntry",
    "SaveFailed",
    "SaveReport",
    "StatsRow",
    "Store",
    "StoreBranchStats",
    "StoreInfo",
    "StoreNotFound",
    "StoreStats",
    "StoreUnreadable",
    "StoredObject",
    "TensorDifference",
    "TensorStats",
    "TreeEntry",
    "UnsupportedFeature",
    "UsageError",
    "ValueReport",
    "__version__",
    "load",
    "open",
    "save",
]

#: Name -> the module it lies in, where that is neither errors nor reports, and its name there.
_ELSEWHERE = {
    "OMITTED": ("model.patterns", "OMITTED"),
    "Store": ("store", "Store"),
    "load": ("opening", "load"),
    "open": ("opening", "open_store"),
    "save": ("opening", "save"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'castore' has no attribute {name!r}")
    if name in _ELSEWHERE:
        module, there = _ELSEWHERE[name]
        value = getattr(importlib.import_module(f"castore.{module}"), there)
    else:
        module = "errors" if name.endswith("Warning") or _is_error(name) else "reports"
        value = getattr(importlib.import_module(f"castore.{module}"), name)
    globals()[name] = value
    return value


def _is_error(name: str) -> bool:
    return hasattr(importlib.import_module("castore.errors"), name)


def __dir__() -> list[str]:
    return __all__
