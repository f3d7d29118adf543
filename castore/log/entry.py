"""Log entries: their changes, and the bytes of an entry's file.

An entry is a set of changes that take effect together.  The record stands twice in its file, each
copy on blocks of its own, zero-padded: the file is a function of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from typing import Any, ClassVar

from castore.errors import UnsupportedFeature
from castore.model.digest import DIGEST_SIZE, Digest, derived
from castore.model.encoding import EncodingError, decode_record, encode_record
from castore.model.packinfo import PackInfo
from castore.storage.protocol import check_name

__all__ = [
    "ENTRY_BLOCK",
    "FIRST_PREV",
    "MAX_FILE",
    "MAX_RECORD",
    "Add",
    "Change",
    "Condemned",
    "Damaged",
    "Entry",
    "EntryError",
    "Features",
    "Healed",
    "Leans",
    "LetGo",
    "Lost",
    "Pin",
    "Quarantined",
    "Replaced",
    "SetBranch",
    "SetTag",
    "Unlisted",
    "Unpin",
    "Verified",
    "Window",
    "entry_name",
    "pack_packs",
    "parse_file",
    "tuples",
    "unpack_packs",
]

#: Each copy of a record fills whole blocks of this size.
ENTRY_BLOCK = 4096
#: What entry 1 names as the record before it.
FIRST_PREV = Digest(bytes(DIGEST_SIZE))
#: The longest record that is read: a save of 1,000 ranks needs a hundredth of it.
MAX_RECORD = 64 << 20
#: ... and so the longest file.
MAX_FILE = 2 * (MAX_RECORD + 2 * ENTRY_BLOCK)

_MAGIC = b"castlog\x01"
_HEAD = struct.Struct("<8sQ32s")


class EntryError(ValueError):
    """The bytes are no sound entry."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an entry.  ``tag`` names its kind in the bytes."""

    tag: ClassVar[str]

    def plain(self) -> list[Any]:
        """The change as plain data."""
        return [self.tag, *(_plain(getattr(self, f.name)) for f in fields(self))]


@dataclass(frozen=True, slots=True)
class Add(Change):
    """A checkpoint comes onto a branch, with the packs it needs.

    Attributes:
        branch: the branch it is appended to.
        checkpoint: its digest.
        root: digest of its state.
        contents: digest of its chunked contents, in order.
        parent: where the branch stood, or None.
        step: label, or None.
        time: nanoseconds since the epoch.
        save: id of the save.
        s0: the entry that the save's look-ups rest on.
        tensors: number of tensors.
        logical_bytes: bytes of the state.
        new_bytes: bytes of chunks new to the store.
        stored_bytes: bytes written, metadata and its twin included.
        message: the user's words, or None.
        packs: every pack it needs, own and foreign.
    """

    tag = "add"
    branch: str
    checkpoint: Digest
    root: Digest
    contents: Digest
    parent: Digest | None
    step: int | None
    time: int
    save: str
    s0: int
    tensors: int
    logical_bytes: int
    new_bytes: int
    stored_bytes: int
    message: str | None
    packs: tuple[PackInfo, ...]


@dataclass(frozen=True, slots=True)
class SetBranch(Change):
    """A branch is made, moved or (``checkpoint`` None) removed."""

    tag = "branch"
    name: str
    checkpoint: Digest | None


@dataclass(frozen=True, slots=True)
class SetTag(Change):
    """A tag is made, moved or removed."""

    tag = "tag"
    name: str
    checkpoint: Digest | None


@dataclass(frozen=True, slots=True)
class Pin(Change):
    """A reader claims a checkpoint; ``owner`` is its process, empty for a lasting pin."""

    tag = "pin"
    name: str
    checkpoint: Digest
    owner: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Unpin(Change):
    """A pin is given up."""

    tag = "unpin"
    name: str


@dataclass(frozen=True, slots=True)
class Unlisted(Change):
    """Checkpoints leave a branch's list."""

    tag = "unlist"
    branch: str
    checkpoints: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class LetGo(Change):
    """Checkpoints are live no more."""

    tag = "letgo"
    checkpoints: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Condemned(Change):
    """Packs (by path below ``packs/``) that may be unlinked from now on, for ever."""

    tag = "condemn"
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quarantined(Change):
    """Packs taken out of service; they are moved aside, never unlinked."""

    tag = "quarantine"
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replaced(Change):
    """Every live checkpoint that needs one of ``old`` needs ``new`` in their place."""

    tag = "replace"
    old: tuple[str, ...]
    new: tuple[PackInfo, ...]


@dataclass(frozen=True, slots=True)
class Verified(Change):
    """Packs that were read back from the device whole; what is bad in them is logged."""

    tag = "verify"
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Damaged(Change):
    """Records of a pack found bad, and the live checkpoints that reach them."""

    tag = "damage"
    path: str
    digests: tuple[Digest, ...]
    checkpoints: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Healed(Change):
    """Digests of which ``pack`` holds a sound copy: every checkpoint named by damage needs it."""

    tag = "heal"
    digests: tuple[Digest, ...]
    pack: PackInfo


@dataclass(frozen=True, slots=True)
class Leans(Change):
    """Records of ``path`` have their bases in the packs ``bases``."""

    tag = "lean"
    path: str
    bases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Features(Change):
    """Features in use.  A reader that does not know one of ``required`` refuses the store."""

    tag = "features"
    required: tuple[str, ...]
    optional: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window(Change):
    """A branch's policy, or None for none."""

    tag = "window"
    branch: str
    policy: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Lost(Change):
    """Entry ``seq`` is unreadable for ever: its record's digest, and what of it is known."""

    tag = "lost"
    seq: int
    record: Digest
    additions: tuple[Any, ...]


_KINDS: dict[str, type[Change]] = {
    kind.tag: kind
    for kind in (
        Add, SetBranch, SetTag, Pin, Unpin, Unlisted, LetGo, Condemned, Quarantined, Replaced,
        Verified, Damaged, Healed, Leans, Features, Window, Lost,
    )
}  # fmt: skip


def pack_packs(packs: tuple[PackInfo, ...]) -> list[Any]:
    """Packs in order, those of one save that are neighbours together.

    ``[[save id, [[file name, id, size], ...]], ...]``
    """
    return [
        [save, [[p.path[len(save) + 1 :], bytes(p.id), p.size] for p in group]]
        for save, group in groupby(packs, key=lambda p: p.save)
    ]


def unpack_packs(value: Any) -> tuple[PackInfo, ...]:
    """The reverse of :func:`pack_packs`."""
    out: list[PackInfo] = []
    for save, rows in value:
        _file_name(save)
        if type(rows) is not list or not rows or (out and out[-1].save == save):
            raise EntryError("packs are not grouped by save")
        out += [
            PackInfo(f"{save}/{_file_name(name)}", Digest(ident), _number(size))
            for name, ident, size in rows
        ]
    return tuple(out)


def _one_pack(value: Any) -> PackInfo:
    [pack] = unpack_packs(value)
    return pack


@lru_cache(maxsize=4096)
def _file_name(name: Any) -> str:
    """A name that is to be part of a path; what the storage would not take is no pack's."""
    if type(name) is not str or len(check_name(name)) != 1:
        raise EntryError(f"not a file name: {name!r}")
    return name


def _plain(value: Any) -> Any:
    if isinstance(value, PackInfo):
        return pack_packs((value,))
    if isinstance(value, tuple):
        if value and isinstance(value[0], PackInfo):
            return pack_packs(value)
        return [_plain(v) for v in value]
    return bytes(value) if isinstance(value, Digest) else value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise EntryError(f"expected a number, found {value!r}")
    return value


Parser = Callable[[Any], Any]


def _parser(hint: str) -> Parser:
    """How a field of an annotated type is read."""
    if hint.endswith("| None"):
        inner = _parser(hint.removesuffix("| None").strip())
        return lambda value: None if value is None else inner(value)
    return _PARSERS[hint]


def _exactly(wanted: type) -> Parser:
    def parse(value: Any) -> Any:
        if type(value) is not wanted:
            raise EntryError(f"expected {wanted.__name__}, found {value!r}")
        return value

    return parse


def _list_of(parse: Parser) -> Parser:
    return lambda value: tuple(map(parse, _exactly(list)(value)))


_PARSERS: dict[str, Parser] = {
    "str": _exactly(str),
    "int": _exactly(int),
    "Digest": Digest,
    "PackInfo": _one_pack,
    "tuple[PackInfo, ...]": lambda value: unpack_packs(_exactly(list)(value)),
    "tuple[Digest, ...]": _list_of(Digest),
    "tuple[str, ...]": _list_of(_exactly(str)),
    "tuple[Any, ...]": lambda value: tuples(_exactly(list)(value)),
}


def tuples(value: Any) -> Any:
    """Plain data with its lists, at every depth, as tuples."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value


#: The annotations of a change's fields, as written, say how each is read.
_FIELDS = {kind: [_parser(str(f.type)) for f in fields(kind)] for kind in _KINDS.values()}


def parse_change(value: Any) -> Change:
    """A change from plain data.

    Raises:
        EntryError: malformed.
        UnsupportedFeature: of a kind this castore does not know.
    """
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        raise EntryError("a change is a list that begins with its kind")
    kind = _KINDS.get(value[0])
    if kind is None:
        raise UnsupportedFeature(
            f"the log holds a change of kind {value[0]!r}, which this castore does not know; "
            "use a newer castore"
        )
    parsers = _FIELDS[kind]
    if len(value) != 1 + len(parsers):
        raise EntryError(f"a change of kind {value[0]!r} has {len(parsers)} fields")
    try:
        return kind(*(parse(v) for parse, v in zip(parsers, value[1:], strict=True)))
    except (TypeError, ValueError, IndexError, RecursionError) as e:
        raise EntryError(f"a change of kind {value[0]!r} is malformed: {e}") from e


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    Attributes:
        seq: its number, from 1.
        prev: digest of the record before it.
        act: random id of the act that wrote it.
        time: nanoseconds since the epoch, for people.
        writer: who wrote it, for people.
        why: the verb and reason, for people.
        store: the store's id.
        changes: what it changes.
    """

    seq: int
    prev: Digest
    act: bytes
    time: int
    writer: str
    why: str
    store: bytes
    changes: tuple[Change, ...]

    def record(self) -> bytes:
        """Canonical bytes of the record."""
        return encode_record(
            seq=self.seq,
            prev=bytes(self.prev),
            act=self.act,
            time=self.time,
            writer=self.writer,
            why=self.why,
            store=self.store,
            changes=[c.plain() for c in self.changes],
        )

    def digest(self) -> Digest:
        """What the next entry names as ``prev``."""
        return record_digest(self.record())

    def render(self) -> bytes:
        """The bytes of the entry's file: the record twice."""
        record = self.record()
        copy = _HEAD.pack(_MAGIC, len(record), record_digest(record)) + record
        return copy.ljust(-(-len(copy) // ENTRY_BLOCK) * ENTRY_BLOCK, b"\0") * 2


_ENTRY_FIELDS: dict[str, type] = {
    "seq": int,
    "prev": Digest,
    "act": bytes,
    "time": int,
    "writer": str,
    "why": str,
    "store": bytes,
    "changes": tuple,
}


def record_digest(record: bytes) -> Digest:
    """BLAKE3 of a record, derived under ``castore 1 log entry``."""
    return derived("castore 1 log entry", record)


def entry_name(seq: int) -> str:
    """The entry's file."""
    return f"log/{seq:012d}"


def parse_file(data: bytes, seq: int, store: bytes) -> tuple[Entry, list[str]]:
    """Read an entry's file from whichever copy is sound.

    Returns:
        The entry, and what is wrong with the file (empty where both copies are as they should be).

    Raises:
        EntryError: no copy is sound.
        UnsupportedFeature: it holds a kind of change that is not known.
    """
    problems: list[str] = []
    for start in (0, len(data) // 2):
        try:
            entry = _parse_copy(data, start)
        except (EntryError, EncodingError, TypeError, ValueError) as e:
            problems.append(f"copy at byte {start}: {e}")
            continue
        if entry.seq != seq:
            problems.append(f"copy at byte {start}: it is entry {entry.seq}, in the place of {seq}")
            continue
        if entry.store != store:
            problems.append(f"copy at byte {start}: it is of store {entry.store.hex()}")
            continue
        if entry.render() != data and not problems:
            problems.append("the copies or their padding are not as written")
        return entry, problems
    raise EntryError("; ".join(problems))


def _parse_copy(data: bytes, start: int) -> Entry:
    if len(data) < start + _HEAD.size:
        raise EntryError("the file is cut short")
    magic, length, digest = _HEAD.unpack_from(data, start)
    if magic != _MAGIC:
        raise EntryError("the magic is wrong")
    begin = start + _HEAD.size
    if length > MAX_RECORD or begin + length > len(data):
        raise EntryError("its length points outside the file")
    record = data[begin : begin + length]
    if record_digest(record) != digest:
        raise EntryError("the record does not match its digest")
    value = decode_record(record, _ENTRY_FIELDS)
    changes = value.pop("changes")
    if not isinstance(changes, list):
        raise EntryError("changes are a list")
    value["prev"] = Digest(value["prev"])
    for name, wanted in _ENTRY_FIELDS.items():
        if name != "changes" and type(value[name]) is not wanted:
            raise EntryError(f"field {name} is malformed")
    return Entry(**value, changes=tuple(parse_change(c) for c in changes))
