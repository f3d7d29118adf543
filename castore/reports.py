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
    "DropReport",
    "Finding",
    "FsckReport",
    "GcCheckpoint",
    "GcItem",
    "GcReport",
    "LoadReport",
    "PinInfo",
    "Report",
    "SaveReport",
    "StoreInfo",
    "TreeEntry",
    "WindowItem",
    "WindowReport",
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
        let_go: digests (hex) of the checkpoints that the branch's window let go with this save.
    """

    tensors: int
    logical_bytes: int
    new_bytes: int
    stored_bytes: int
    seconds: float
    warnings: tuple[str, ...] = ()
    audit: Any = None
    verified: bool = False
    let_go: tuple[str, ...] = ()


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
class GcCheckpoint(Report):
    """A checkpoint that gc let go, would let go, or keeps, and why."""

    digest: str
    branch: str
    step: int | None
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What gc did.

    Attributes:
        items: a reason for every file that is not needed by a live checkpoint; with ``dry_run``
            for every pack.
        removed_bytes: bytes freed (or that would be).
        removed_files: files removed (or that would be).
        dry_run: True where nothing was done.
        live: checkpoints that are live afterwards.
        needed_packs: packs they need.
        checkpoints: those let go; with ``dry_run`` a reason for every one.
        unpinned: pins whose owner is surely dead, given up.
    """

    items: tuple[GcItem, ...]
    removed_bytes: int
    removed_files: int
    dry_run: bool
    live: int
    needed_packs: int
    checkpoints: tuple[GcCheckpoint, ...] = ()
    unpinned: tuple[str, ...] = ()

    @property
    def let_go(self) -> tuple[GcCheckpoint, ...]:
        """The checkpoints that were let go (or would be)."""
        return tuple(c for c in self.checkpoints if c.action != "kept")


@dataclass(frozen=True, slots=True)
class WindowItem(Report):
    """A checkpoint of a branch's list: whether the window keeps it, and why.

    Attributes:
        checkpoint: its digest, hex.
        step: its step.
        time: when it was made, nanoseconds since the epoch.
        verified: whether it is.
        action: ``kept``; ``let go``; ``unlisted`` where it leaves the list and stays live.  With
            ``dry_run`` what would be.
        reason: why, in words.
    """

    checkpoint: str
    step: int | None
    time: int
    verified: bool
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class WindowReport(Report):
    """A branch's window, and what it does.

    Attributes:
        branch: the branch.
        policy: the policy in words, or None where there is none: then nothing is let go.
        items: the branch's list, newest first, with a decision and a reason for each.
        packs: every pack that these need, with the same.
        dry_run: True where nothing was done.
        seq: number of the log entry that was written, or None.
        freed_packs: packs that nothing needs any more (or would be).
        freed_bytes: their bytes.
        read_back: digests (hex) of checkpoints read back from the device first (or that would be).
        damage: what was found damaged while reading back.
    """

    branch: str
    policy: str | None
    items: tuple[WindowItem, ...]
    packs: tuple[GcItem, ...] = ()
    dry_run: bool = False
    seq: int | None = None
    freed_packs: int = 0
    freed_bytes: int = 0
    read_back: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()

    @property
    def let_go(self) -> tuple[WindowItem, ...]:
        """The checkpoints that were let go (or would be)."""
        return tuple(item for item in self.items if item.action == "let go")


@dataclass(frozen=True, slots=True)
class DropReport(Report):
    """A checkpoint that was let go by name.

    Attributes:
        checkpoint: its digest, hex.
        step: its step.
        branches: the branches whose lists it left.
        seq: number of the log entry.
        freed_packs: packs that nothing needs any more.
        freed_bytes: their bytes.
    """

    checkpoint: str
    step: int | None
    branches: tuple[str, ...]
    seq: int
    freed_packs: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class PinInfo(Report):
    """A pin.

    Attributes:
        name: its name.
        digest: the checkpoint it keeps, hex.
        step: that checkpoint's step.
        owner: the process it ends with (``pid 7 on host``), or None: it stays until taken away.
        alive: whether that process lives; None where there is none, or this machine cannot tell.
    """

    name: str
    digest: str
    step: int | None
    owner: str | None
    alive: bool | None


@dataclass(frozen=True, slots=True)
class LoadReport(Report):
    """What a load did.

    Attributes:
        checkpoint: the checkpoint it gave, hex.
        bytes_read: bytes read from packs: chunks, objects, the packs' tables, and the gaps between
            small neighbours; not what was mapped.
        seconds: wall time.
        skipped: what was left out: by ``load_into(strict=False)`` the key paths, with the reason.
        healed: damage that was met where another copy served.
        chunks: chunks read or mapped, and verified.
        objects: objects read (trees, lists of chunks, the checkpoint's own), and verified.
        mapped_bytes: bytes of the tensors that were mapped (and hashed where they lie).
    """

    checkpoint: str
    bytes_read: int
    seconds: float
    skipped: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()
    chunks: int = 0
    objects: int = 0
    mapped_bytes: int = 0


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
    """A store at a glance: see ``castore info``.

    ``last_gc`` is when packs were last condemned: by gc, by a window or by a drop.
    """

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
    debris_files: int = 0
    debris_bytes: int = 0
    pins: tuple[PinInfo, ...] = ()
    windows: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
