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
    "CheckpointSpan",
    "CheckpointStats",
    "ChunkPlaces",
    "DiffEntry",
    "DiffReport",
    "DropReport",
    "Finding",
    "FoundCopy",
    "FoundDigest",
    "FoundPlace",
    "FsckReport",
    "GcCheckpoint",
    "GcItem",
    "GcReport",
    "LoadReport",
    "PinInfo",
    "Place",
    "RefInfo",
    "ReflogEntry",
    "Report",
    "SaveReport",
    "StatsRow",
    "StoreBranchStats",
    "StoreInfo",
    "StoreStats",
    "StoredObject",
    "TensorDifference",
    "TensorStats",
    "TreeEntry",
    "ValueReport",
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


# -- looking into contents ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkPlaces(Report):
    """One chunk of a tensor, and where it lies.

    Attributes:
        digest: its name, hex.
        rows: first and past-the-end row of dimension 0 that it holds (a part of).
        start: where in the tensor's bytes it begins.
        nbytes: its length.
        places: its copies among the packs that the checkpoint needs; none where it is lost.
    """

    digest: str
    rows: tuple[int, int]
    start: int
    nbytes: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class TensorStats(Report):
    """What the values of a tensor or array come to.

    Everything but the counts is about the finite values, and None where there is none.  Of complex
    ones there is no least and no greatest; ``nan``, ``inf`` and ``zeros`` count items.

    Attributes:
        items: how many there are.
        nan: how many are NaN.
        inf: how many are infinite.
        zeros: how many are zero.
        min: the least: exact, an int where the items are.
        max: the greatest.
        mean: their mean.
        mean_imag: the mean of the imaginary halves of complex ones, else None.
        std: their standard deviation, as of a population (divided by how many they are).
        norm: the root of the sum of their squared magnitudes.
        max_abs: the greatest magnitude.
    """

    items: int
    nan: int
    inf: int
    zeros: int
    min: float | None
    max: float | None
    mean: float | None
    mean_imag: float | None
    std: float | None
    norm: float | None
    max_abs: float | None


@dataclass(frozen=True, slots=True)
class ValueReport(TreeEntry):
    """One tensor, array or other value, looked at closely: see :meth:`castore.Store.describe`.

    Attributes:
        checkpoint: the checkpoint it is in, hex.
        tied_to: key paths of what it is tied to.
        where: its chunks, in order, and where each lies.
        stats: what its values come to; None where that was not asked for or it holds no numbers.
        bytes_read: bytes of chunks that were read and hashed for it.
        healed: damage that was met on the way, and that another copy made good.
    """

    checkpoint: str = ""
    tied_to: tuple[str, ...] = ()
    where: tuple[ChunkPlaces, ...] = ()
    stats: TensorStats | None = None
    bytes_read: int = 0
    healed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorDifference(Report):
    """How the values of a tensor differ from what they were, its dtype and shape being the same.

    An item counts as changed where its bits differ.  ``l2``, ``base_l2``, ``relative`` and
    ``max_abs`` are about the items that are finite before and after.

    Attributes:
        items: items of the tensor.
        compared: how many of them lie in chunks that differ; only these were read (but see
            ``whole_norm``).
        changed: how many differ.
        share: ``changed / items``.
        l2: Euclidean norm of the change.
        base_l2: Euclidean norm of what was there before, over ``compared`` or, with
            ``whole_norm``, the whole tensor.
        relative: ``l2 / base_l2``; None where that is 0.
        max_abs: the greatest magnitude of a change; None where nothing is finite on both sides.
        nan_before, nan_after: NaNs among what was compared.
        inf_before, inf_after: infinities among it.
        whole_norm: True where ``base_l2`` is that of the whole tensor.
    """

    items: int
    compared: int
    changed: int
    share: float
    l2: float | None
    base_l2: float | None
    relative: float | None
    max_abs: float | None
    nan_before: int
    nan_after: int
    inf_before: int
    inf_after: int
    whole_norm: bool


@dataclass(frozen=True, slots=True)
class DiffEntry(Report):
    """One value that two states do not share.

    Attributes:
        status: git's letters: ``A`` added, ``D`` removed, ``M`` changed, ``T`` of another type.
        path: key path (in the second state; of what was removed, in the first).
        changes: what differs: ``values`` of a tensor or array, ``value`` of anything else,
            ``dtype``, ``shape``, ``kind``, ``flags`` (a Parameter's, ``requires_grad``), ``tie``,
            ``order`` of a mapping's keys, ``factory`` of a defaultdict.
        kind: ``tensor``, ``ndarray``, ``int``, ``str``, ``dict``, ...; None if removed.
        old_kind: the same in the first state; None if added.  So with all that begin ``old_``.
        text: the value itself, where it is short.
        dtype: of a tensor or array.
        shape: of a tensor or array.
        nbytes: length of its content, where known without reading it.
        chunks: how many chunks it has.
        shared_chunks: how many of these the first state has too: of a tensor of equal dtype and
            shape at the same place, else anywhere in it.
        differing_bytes: bytes of the second state's chunks that are not shared.
        values: how a tensor's values differ; None where its dtype or shape does, or nothing was
            read.
    """

    status: str
    path: str
    changes: tuple[str, ...] = ()
    kind: str | None = None
    old_kind: str | None = None
    text: str | None = None
    old_text: str | None = None
    dtype: str | None = None
    old_dtype: str | None = None
    shape: tuple[int, ...] | None = None
    old_shape: tuple[int, ...] | None = None
    nbytes: int | None = None
    old_nbytes: int | None = None
    chunks: int = 0
    old_chunks: int = 0
    shared_chunks: int = 0
    differing_bytes: int = 0
    values: TensorDifference | None = None


@dataclass(frozen=True, slots=True)
class DiffReport(Report):
    """How one state differs from another.

    Attributes:
        a, b: the checkpoints, hex: what is added is in ``b``.
        a_path, b_path: key paths of what was compared in them; empty for the whole states.
        entries: what differs, in the order of ``b``; what was removed comes last in its container.
        added, removed, changed, retyped: how many entries have each status.
        objects_read: objects of both checkpoints that were fetched.
        chunks_read: chunks that were read and hashed.
        bytes_read: their bytes.
        healed: damage that was met on the way, and that another copy made good.
    """

    a: str
    b: str
    a_path: str
    b_path: str
    entries: tuple[DiffEntry, ...]
    added: int
    removed: int
    changed: int
    retyped: int
    objects_read: int
    chunks_read: int
    bytes_read: int
    healed: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True where nothing differs."""
        return not self.entries


@dataclass(frozen=True, slots=True)
class FoundCopy(Place):
    """A copy of a chunk or object in a pack, read and hashed.

    Attributes:
        length: bytes it decodes to.
        whole: True where the copy was read, and is what its digest says.
        found: what was found where it is not.
        known_damage: True where the log has it as damaged.
    """

    length: int = 0
    whole: bool = False
    found: str | None = None
    known_damage: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSpan(Report):
    """Checkpoints that follow one another on a branch.

    Attributes:
        branch: whose list they are on; None for one that is on no branch's.
        first, last: the oldest and the newest, hex.
        first_step, last_step: their steps.
        count: how many there are.
    """

    branch: str | None
    first: str
    last: str
    first_step: int | None
    last_step: int | None
    count: int


@dataclass(frozen=True, slots=True)
class FoundPlace(Report):
    """A place in a state that holds a chunk or object, and the checkpoints that have it there.

    Attributes:
        path: key path: of the tensor or value of a chunk, of the container of a tree.
        kind: ``tensor``, ``ndarray``, ``str``, ``dict``, ...
        dtype: of a tensor or array.
        shape: of a tensor or array.
        chunk: number of the chunk in its content, from 0; None of what is no chunk.
        rows: first and past-the-end row that the chunk holds (a part of); None of texts.
        checkpoints: where.
    """

    path: str
    kind: str
    dtype: str | None
    shape: tuple[int, ...] | None
    chunk: int | None
    rows: tuple[int, int] | None
    checkpoints: tuple[CheckpointSpan, ...]


@dataclass(frozen=True, slots=True)
class FoundDigest(Report):
    """What a digest names, and who has it: see :meth:`castore.Store.find_chunk`.

    Attributes:
        digest: in full, hex.
        kind: ``chunk``, ``tree``, ``chunks`` (a list of chunks), ``checkpoint``, ``table`` (a copy
            of a pack's), or ``intent`` (of a save).
        copies: where it lies, among the packs that live checkpoints need.
        places: the key paths that hold it.
        checkpoints: all live checkpoints that reach it.
        unread: damage that kept part of the store from being searched, in words.
    """

    digest: str
    kind: str
    copies: tuple[FoundCopy, ...]
    places: tuple[FoundPlace, ...]
    checkpoints: tuple[CheckpointSpan, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StatsRow(Report):
    """What a group of a state's values takes.

    Attributes:
        name: the group: a key path, a role or a dtype.
        count: values in it.
        items: items of the tensors and arrays among them, each tied one counted.
        logical_bytes: bytes of their contents, what is tied counted once, where it first stands.
        unique_bytes: bytes of their different chunks, and of contents inside the tree.
        stored_bytes: what these chunks take in the packs, one copy of each.
        shared_bytes: bytes of these chunks that the parent checkpoint has too; None where that is
            gone.
        dtype: of all of them, where it is one.
        shape: of the tensor, where the group is one.
        role: ``weights``, ``optimizer``, ``rng`` or ``other``, where it is one.
        tied: True for a tensor whose bytes are counted at another it is tied to.
    """

    name: str
    count: int
    items: int
    logical_bytes: int
    unique_bytes: int
    stored_bytes: int
    shared_bytes: int | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    role: str | None = None
    tied: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointStats(Report):
    """What a checkpoint's values take, by tensor, role or dtype.

    Attributes:
        checkpoint: its digest, hex.
        parent: its parent, hex, or None.
        path: key path of the part that was looked at; empty for the whole state.
        by: ``tensor``, ``role`` or ``dtype``.
        rows: the groups.  A chunk that several have is counted in each.
        total: all of them together, each chunk once.
        metadata_bytes: sizes of the meta packs it needs.
        missing_chunks: chunks that no readable table of its packs has; they count as not stored.
    """

    checkpoint: str
    parent: str | None
    path: str
    by: str
    rows: tuple[StatsRow, ...]
    total: StatsRow
    metadata_bytes: int
    missing_chunks: int


@dataclass(frozen=True, slots=True)
class StoreBranchStats(Report):
    """What the checkpoints on a branch take.

    Attributes:
        branch: its name; None for live checkpoints that are on no branch's list.
        checkpoints: live ones on its list.
        logical_bytes: bytes of their states.
        unique_bytes: bytes of their different chunks.
        pack_bytes: sizes of the packs they need.
        own_bytes: sizes of those among them that no other branch needs.
    """

    branch: str | None
    checkpoints: int
    logical_bytes: int
    unique_bytes: int
    pack_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats(Report):
    """What the whole store takes, branch by branch.

    Attributes:
        branches: each of them.
        checkpoints: live ones.
        logical_bytes: bytes of all their states.
        unique_bytes: bytes of all their different chunks.
        stored_bytes: what these take in the packs, every copy counted.
        pack_bytes: sizes of all packs they need, metadata and its twins included.
        metadata_bytes: sizes of the meta packs among them.
        dead_bytes: bytes of chunks in these packs that no live checkpoint reaches.
        debris_bytes: sizes of packs that no live checkpoint needs: ``castore gc`` looks at them.
        ratio: ``logical_bytes / pack_bytes``; None of an empty store.
        missing_chunks: chunks that no readable table has.
    """

    branches: tuple[StoreBranchStats, ...]
    checkpoints: int
    logical_bytes: int
    unique_bytes: int
    stored_bytes: int
    pack_bytes: int
    metadata_bytes: int
    dead_bytes: int
    debris_bytes: int
    ratio: float | None
    missing_chunks: int
