"""What castore gives back: frozen records behind both the Python API and the command line.

Plain data with ``to_dict()``; imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = [
    "AppliedChange",
    "Checkpoint",
    "Finding",
    "FsckReport",
    "GcItem",
    "GcReport",
    "LoadReport",
    "Place",
    "RefInfo",
    "ReflogEntry",
    "Report",
    "SaveReport",
    "StoreInfo",
    "StoredObject",
    "TreeEntry",
]


def _plain(value: Any) -> Any:
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class Report:
    """Base of all reports."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: numbers, texts, lists and dicts; digests as hex."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class SaveReport(Report):
    """What a save did.

    Attributes:
        tensors: tensors in the state, each tied name counted.
        logical_bytes: bytes of the state's contents.
        new_bytes: bytes of chunks that the store did not have.
        stored_bytes: bytes that the save added to the disk, metadata and its twin included.
        seconds: wall time of the call.
        warnings: what the caller is to be told.
        audit: result of the NaN/Inf audit, or None where none was made.
        verified: True where everything was read back from the device and checked.
    """

    tensors: int
    logical_bytes: int
    new_bytes: int
    stored_bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()
    audit: Any = None
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint(Report):
    """A checkpoint that exists.

    Attributes:
        digest: its name, hex.
        root: digest of its state, hex; equal states have equal roots.
        step: the label given, or None.
        branch: the branch it was saved on.
        seq: number of the log entry that added it.
        parent: the checkpoint before it on the branch, hex, or None.
        time: when, nanoseconds since the epoch: for display only.
        meta: the user's plain data, or None where it was not read.
        report: what the save did, or None for one that was looked up.
        message: the user's words.
        logical_bytes: bytes of the state.
        new_bytes: bytes that were new to the store when it was saved.
        tensors: tensors in the state.
        verified: whether all it needs was read back and found sound.
    """

    digest: str
    root: str
    step: int | None
    branch: str
    seq: int
    parent: str | None
    time: int
    meta: dict[str, Any] | None
    report: SaveReport | None = None
    message: str | None = None
    logical_bytes: int = 0
    new_bytes: int = 0
    tensors: int = 0
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Finding(Report):
    """One thing that fsck or a load met.

    Attributes:
        code: stable kebab-case kind, for example ``damaged-chunk``.
        severity: ``damage``, ``warning`` or ``info``.
        detail: in words: what, where, expected against found.
        file: the file concerned, relative to the store.
        offset: byte offset in the file.
        expected: digest or size expected.
        found: digest, size or error found.
        digest: the chunk or object concerned, hex.
        checkpoint: hex digest of the checkpoint this hits, or None.
        branch: a branch that lists it.
        step: its step.
        path: key path of the tensor or value hit.
        rows: first and past-the-end row of dimension 0 that is hit.
    """

    code: str
    severity: str
    detail: str
    file: str | None = None
    offset: int | None = None
    expected: str | None = None
    found: str | None = None
    digest: str | None = None
    checkpoint: str | None = None
    branch: str | None = None
    step: int | None = None
    path: str | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FsckReport(Report):
    """What fsck found.

    Attributes:
        findings: everything, damage first.
        checkpoints: live checkpoints looked at.
        packs: packs looked at.
        bytes_read: payload bytes read and hashed.
        newest_whole: branch -> hex digest of its newest checkpoint that is whole, or None.
        whole: hex digests of all live checkpoints that are whole.
        level: ``full`` or ``quick``.
    """

    findings: tuple[Finding, ...]
    checkpoints: int
    packs: int
    bytes_read: int
    newest_whole: Mapping[str, str | None]
    whole: tuple[str, ...]
    level: str = "full"

    @property
    def damage(self) -> tuple[Finding, ...]:
        """The findings that are damage."""
        return tuple(f for f in self.findings if f.severity == "damage")

    @property
    def ok(self) -> bool:
        """True where nothing is damaged."""
        return not self.damage


@dataclass(frozen=True, slots=True)
class GcItem(Report):
    """One file that gc removed, would remove, or left alone, and why."""

    path: str
    size: int
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What gc did.

    Attributes:
        items: a reason for every file that is not needed by a live checkpoint.
        removed_bytes: bytes freed (or that would be).
        removed_files: files removed (or that would be).
        dry_run: True where nothing was done.
        live: live checkpoints.
        needed_packs: packs they need.
    """

    items: tuple[GcItem, ...]
    removed_bytes: int
    removed_files: int
    dry_run: bool
    live: int
    needed_packs: int


@dataclass(frozen=True, slots=True)
class LoadReport(Report):
    """What a load did: the checkpoint it gave, what it skipped and which damage a copy healed."""

    checkpoint: str
    bytes_read: int
    seconds: float
    skipped: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeEntry(Report):
    """One value of a state, as ``show`` lists it.

    Attributes:
        path: key path.
        kind: ``tensor``, ``ndarray``, ``int``, ``str``, ``dict``, ...
        text: the value itself where it is short, else None.
        dtype: of a tensor or array.
        shape: of a tensor or array.
        nbytes: length of its contents, or None where it has none or the length is not recorded.
        chunks: digests of its chunks, hex; empty where it lies inside its entry.
        tie: number shared by tied tensors, or None.
        entries: number of entries of a container, or None.
        digest: what the value is called: the root that a state of just this value has, hex.
    """

    path: str
    kind: str
    text: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    nbytes: int | None = None
    chunks: tuple[str, ...] = ()
    tie: int | None = None
    entries: int | None = None
    digest: str = ""

    @property
    def object(self) -> str:
        """``tree``, ``tensor`` (arrays too) or ``value``."""
        if self.entries is not None:
            return "tree"
        return "tensor" if self.shape is not None and self.kind in _TENSORS else "value"


_TENSORS = ("tensor", "ndarray")


@dataclass(frozen=True, slots=True)
class Place(Report):
    """Where a copy of a chunk or object lies.

    Attributes:
        pack: the pack, as the log names it: ``<save id>/<file name>``.
        offset: where in the file, in bytes.
        stored: length there, in bytes.
        codec: how the pack holds it: ``raw``, ``zstd``, ...
    """

    pack: str
    offset: int
    stored: int
    codec: str


@dataclass(frozen=True, slots=True)
class StoredObject(Report):
    """What a revision or digest names, as ``cat-file`` tells it.

    Attributes:
        name: as it was asked for.
        object: ``checkpoint``, ``tree``, ``tensor``, ``value``, ``chunks``, ``chunk``, ``table``
            or ``intent``.
        digest: its name, hex.
        size: bytes of its contents (a tensor, chunk, text, ...), else of its encoding.
        fields: a checkpoint's record, or None.
        entry: a tree, tensor or value itself, or None.
        entries: what a tree holds, one level.
        chunks: digests of the chunks that a tensor, value or chunk list names, hex.
        places: where its copies lie; empty where it lies inside its tree.
    """

    name: str
    object: str
    digest: str
    size: int
    fields: Mapping[str, Any] | None = None
    entry: TreeEntry | None = None
    entries: tuple[TreeEntry, ...] = ()
    chunks: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class RefInfo(Report):
    """A branch or tag, and the checkpoint it stands on.

    Attributes:
        name: the branch's or tag's.
        kind: ``branch`` or ``tag``.
        digest: the checkpoint, hex.
        step: its step.
        time: when it was saved, nanoseconds since the epoch.
        message: its message.
    """

    name: str
    kind: str
    digest: str
    step: int | None
    time: int
    message: str | None

    @property
    def ref(self) -> str:
        """The name in full, as git has it: ``refs/heads/main``, ``refs/tags/v1``."""
        return f"refs/{'heads' if self.kind == 'branch' else 'tags'}/{self.name}"


@dataclass(frozen=True, slots=True)
class ReflogEntry(Report):
    """One move of a branch: ``main@{index}``.

    Attributes:
        branch: the branch.
        index: how many moves ago the branch came to stand there: 0 is the newest.
        digest: where it then stood, hex; None where it was removed.
        action: ``save``, ``create``, ``move`` or ``remove``; ``unknown`` where the entry is lost.
        step: the checkpoint's step, where the entry or the log tells it.
        message: the checkpoint's message, likewise.
        seq: the log entry that moved it.
        time: when, nanoseconds since the epoch; None where the entry is lost.
        writer: who; None where the entry is lost.
        live: whether the checkpoint is still there.
        let_go: when and why it was let go, in words, or None.
    """

    branch: str
    index: int
    digest: str | None
    action: str
    step: int | None
    message: str | None
    seq: int
    time: int | None
    writer: str | None
    live: bool
    let_go: str | None = None


@dataclass(frozen=True, slots=True)
class AppliedChange(Report):
    """A branch or tag that was made, moved or removed, by which entry, and how to undo it."""

    kind: str
    name: str
    old: str | None
    new: str | None
    seq: int
    undo: str | None = None


@dataclass(frozen=True, slots=True)
class StoreInfo(Report):
    """A store at a glance: see ``castore info``."""

    path: str
    store_id: str
    format: int
    chunk_size: int
    file_system: str
    direct_io: bool
    entries: int
    branches: Mapping[str, str]
    tags: Mapping[str, str]
    checkpoints: int
    verified: int
    packs: int
    pack_bytes: int
    logical_bytes: int
    reserve_bytes: int
    index: str
    sessions: tuple[str, ...]
    known_damage: int
    last_commit: int | None
    last_verification: int | None
    last_gc: int | None
    features: Mapping[str, Any] = field(default_factory=dict)
