"""Reading packs: where a digest lies, and its bytes, checked.

:class:`PackSet` is the packs one checkpoint needs.  It trusts the log for paths, ids and sizes and
nothing else: a table counts only if it hashes to the id, a record only if it hashes to its digest.
Where a table is damaged its copy in the save's meta packs serves; where a record is, any other
copy among the same packs.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from castore.model.digest import Buffer, Digest, Kind, chunk_digest, kind_digest
from castore.model.encoding import EncodingError, decode
from castore.model.objects import MAX_OBJECT
from castore.model.packinfo import PackInfo
from castore.packs import codecs
from castore.packs.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    PACK_PAGE,
    PackError,
    PackHeader,
    Record,
    Table,
    pack_id,
    parse_footer,
)
from castore.storage.protocol import Storage

__all__ = [
    "ChunkMap",
    "Damage",
    "Location",
    "PackDamaged",
    "PackSet",
    "RecordDamaged",
    "check_size",
    "read_record",
    "read_table",
    "unreadable",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing wrong with one copy of a record, or with a whole pack.

    Attributes:
        code: ``missing-pack``, ``wrong-size``, ``damaged-table``, ``damaged-record``,
            ``missing-record`` or ``unreadable``.
        pack: the pack's path, or None where no pack has the record.
        offset: where in the file, or None.
        expected: digest or size expected, as text.
        found: what was found, as text.
        detail: in words.
    """

    code: str
    pack: str | None
    offset: int | None
    expected: str | None
    found: str | None
    detail: str


class RecordDamaged(Exception):
    """No copy of a record is sound; ``damages`` has one entry for each copy tried."""

    def __init__(self, digest: Digest, kind: Kind, damages: list[Damage]) -> None:
        super().__init__(f"{kind.name.lower()} {digest}: " + "; ".join(d.detail for d in damages))
        self.digest = digest
        self.kind = kind
        self.damages = damages

    @property
    def all_missing(self) -> bool:
        """Whether nothing but absence was met: a repack or gc may explain it."""
        return all(d.code in ("missing-pack", "missing-record") for d in self.damages)


class PackDamaged(Exception):
    """A whole pack is not as the log says."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.detail)
        self.damage = damage


@dataclass(frozen=True, slots=True)
class Location:
    """A record and the pack it lies in."""

    pack: PackInfo
    record: Record


def check_size(storage: Storage, info: PackInfo) -> None:
    """The pack is there at its logged size, or :class:`PackDamaged` tells."""
    size = storage.size(info.file)
    if size is None:
        raise PackDamaged(
            Damage("missing-pack", info.path, None, f"{info.size} bytes", "no file",
                   f"{info.file} is missing")
        )  # fmt: skip
    if size != info.size:
        raise PackDamaged(
            Damage("wrong-size", info.path, min(size, info.size), f"{info.size} bytes",
                   f"{size} bytes", f"{info.file} has {size} bytes, not {info.size}")
        )  # fmt: skip


def read_table(storage: Storage, info: PackInfo) -> tuple[PackHeader, Table, int]:
    """A pack's header, table and the table's offset, checked against the logged id.

    Raises:
        PackError: damaged.
        OSError: unreadable or absent.
    """
    footer = storage.read(info.file, max(0, info.size - PACK_PAGE), PACK_PAGE)
    if len(footer) < FOOTER_SIZE or info.size % PACK_PAGE:
        raise PackError("the file is cut short")
    offset, length, ident = parse_footer(footer[-FOOTER_SIZE:], info.size)
    if ident != info.id:
        raise PackError(f"the footer names pack {ident.short}, the log {info.id.short}")
    header = storage.read(info.file, 0, HEADER_SIZE)
    inside = offset - (info.size - len(footer))
    if inside >= 0:
        table = footer[inside : inside + length]
    else:
        table = storage.read(info.file, offset, length)
    return (*_checked_table(info, header, table), offset)


def _checked_table(info: PackInfo, header: bytes, table: bytes) -> tuple[PackHeader, Table]:
    found = pack_id(header, table)
    if found != info.id:
        raise PackError(f"header and table hash to {found.short}, the log says {info.id.short}")
    parsed, rows = PackHeader.parse(header), Table.parse(table)
    # What is read and decoded later is bounded here: by the file, and by the kind of record.
    rows.check_bounds(info.size, parsed.chunk_size, MAX_OBJECT)
    return parsed, rows


def read_record(
    storage: Storage,
    location: Location,
    out: memoryview | None = None,
    *,
    device: bool = False,
    stored_too: bool = False,
    check: bool = True,
) -> Buffer:
    """A record's decoded bytes, hashed and matched (unless ``check`` is False); into ``out``.

    ``stored_too`` matches the stored bytes of a coded record as well: a flipped bit in them may
    decode to the same.

    Raises:
        RecordDamaged: with the one damage met.
    """
    record = location.record
    buffer = (
        out if out is not None and not record.codec else memoryview(bytearray(record.stored_len))
    )
    try:
        n = storage.read_into(location.pack.file, record.offset, buffer, device=device)
    except OSError as e:
        raise RecordDamaged(record.digest, record.kind, [unreadable(location.pack, e)]) from e
    found: str
    if n < record.stored_len:
        found = f"end of file after {n} of {record.stored_len} bytes"
    elif stored_too and record.codec and chunk_digest(buffer) != record.stored_digest:
        found = "other stored bytes"
    else:
        try:
            data = codecs.decode(record.codec, buffer, record.raw_len)
            digest = kind_digest(record.kind, data) if check else record.digest
            if digest == record.digest:
                if out is not None and data is not out:
                    out[:] = data
                    return out
                return data
            found = digest.hex()
        except codecs.CodecError as e:
            found = str(e)
    raise RecordDamaged(
        record.digest,
        record.kind,
        [
            Damage(
                "damaged-record", location.pack.path, record.offset, record.digest.hex(), found,
                f"{location.pack.file} at {record.offset}: expected {record.digest.short}, "
                f"found {found[:12] if len(found) == 64 else found}",
            )
        ],
    )  # fmt: skip


def unreadable(info: PackInfo, e: OSError) -> Damage:
    """An operating system error as damage."""
    if e.errno == errno.ENOENT:
        return Damage("missing-pack", info.path, None, f"{info.size} bytes", "no file",
                      f"{info.file} is missing")  # fmt: skip
    return Damage("unreadable", info.path, None, None, f"{e.strerror} (errno {e.errno})",
                  f"{info.file} cannot be read: {e.strerror}")  # fmt: skip


class ChunkMap:
    """Where the chunks of several packs lie."""

    def __init__(self, tables: Iterable[tuple[PackInfo, Table]]) -> None:
        self._tables = list(tables)
        self._first: dict[bytes, tuple[int, int]] = {}
        self._more: dict[bytes, list[tuple[int, int]]] = {}
        for t, (_, table) in enumerate(self._tables):
            for row, digest in enumerate(table.digests()):
                if digest in self._first:
                    self._more.setdefault(digest, []).append((t, row))
                else:
                    self._first[digest] = (t, row)

    def places(self, digest: Digest) -> list[Location]:
        """Every place of a chunk."""
        first = self._first.get(digest)
        if first is None:
            return []
        return [
            Location(self._tables[t][0], self._tables[t][1][row])
            for t, row in (first, *self._more.get(digest, ()))
        ]

    def raw_place(self, digest: Digest) -> tuple[PackInfo, int, int] | None:
        """Pack, offset and length of a chunk's first place, if it is raw there: the quick way."""
        first = self._first.get(digest)
        if first is None:
            return None
        info, table = self._tables[first[0]]
        place = table.raw_span(first[1])
        return None if place is None else (info, *place)

    def extent(
        self, digests: Sequence[Digest], lengths: Sequence[int]
    ) -> tuple[PackInfo, int] | None:
        """Pack and offset where chunks of these lengths lie raw, in order and without a gap."""
        for pack, begin in self._raw(digests[0], lengths[0]):
            offset = begin
            for digest, length in zip(digests, lengths, strict=True):
                if (pack, offset) not in self._raw(digest, length):
                    break
                offset += length
            else:
                return pack, begin
        return None

    def _raw(self, digest: Digest, length: int) -> list[tuple[PackInfo, int]]:
        """Packs and offsets where a chunk lies raw, at its length."""
        return [
            (place.pack, place.record.offset)
            for place in self.places(digest)
            if not place.record.codec and place.record.raw_len == length
        ]


class PackSet:
    """The packs that one checkpoint needs.  Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        packs: Iterable[PackInfo],
        tables: dict[str, Table | Damage] | None = None,
    ) -> None:
        """``tables`` may be shared by several sets, to read each table once."""
        self._storage = storage
        self.packs = list(packs)
        self._tables: dict[str, Table | Damage] = {} if tables is None else tables
        self._lock = threading.RLock()
        self.healed: list[Damage] = []

    def table(self, info: PackInfo) -> Table | Damage:
        """A pack's table, or why there is none."""
        with self._lock:
            found = self._tables.get(info.path)
            if found is None:
                found = self._tables[info.path] = self._load_table(info)
            return found

    def _load_table(self, info: PackInfo) -> Table | Damage:
        try:
            check_size(self._storage, info)
            return read_table(self._storage, info)[1]
        except PackDamaged as e:
            if e.damage.code == "missing-pack":
                return e.damage
            damage = e.damage
        except PackError as e:
            damage = Damage("damaged-table", info.path, None, info.id.hex(), None,
                            f"{info.file}: {e}")  # fmt: skip
        except OSError as e:
            damage = unreadable(info, e)
        copy = self._table_copy(info) if info.is_data else None
        if copy is None:
            return damage
        self.healed.append(damage)
        return copy

    def _table_copy(self, info: PackInfo) -> Table | None:
        """A data pack's table from its save's meta packs."""
        for meta in self.packs:
            if meta.is_data or meta.save != info.save:
                continue
            table = self.table(meta)
            if isinstance(table, Damage):
                continue
            for record in table:
                if record.kind is not Kind.TABLE:
                    continue
                try:
                    name, header, rendered = decode(
                        read_record(self._storage, Location(meta, record))
                    )
                    if name == info.path.partition("/")[2]:
                        return _checked_table(info, header, rendered)[1]
                except (RecordDamaged, EncodingError, PackError, ValueError, TypeError):
                    continue
        return None

    def find(self, digest: Digest, *, data: bool) -> Iterator[Location]:
        """Every place of a digest, among data or meta packs."""
        for info in self.packs:
            if info.is_data is data:
                table = self.table(info)
                if not isinstance(table, Damage):
                    record = table.find(digest)
                    if record is not None:
                        yield Location(info, record)

    def chunk_map(self) -> ChunkMap:
        """A look-up over all data packs at once, for reading many chunks."""
        return ChunkMap(
            (info, table)
            for info in self.packs
            if info.is_data and not isinstance(table := self.table(info), Damage)
        )

    def broken(self) -> list[Damage]:
        """The packs whose table could not be had at all."""
        with self._lock:
            tables = (self._tables.get(info.path) for info in self.packs)
            return [t for t in tables if isinstance(t, Damage)]

    def fetch(self, kind: Kind, digest: Digest) -> bytes:
        """An object's bytes, from whichever copy is sound.

        Raises:
            RecordDamaged: none is.
        """
        damages: list[Damage] = []
        for location in self.find(digest, data=False):
            if location.record.kind is not kind or location.record.raw_len > MAX_OBJECT:
                continue
            try:
                data = read_record(self._storage, location)
            except RecordDamaged as e:
                damages += e.damages
                continue
            self.healed += damages
            return bytes(data)
        raise RecordDamaged(digest, kind, damages or self.missing(digest, kind, data=False))

    def missing(self, digest: Digest, kind: Kind, *, data: bool) -> list[Damage]:
        """Why no pack has a digest."""
        broken = [d for d in self.broken() if (d.pack or "").endswith(".data.pack") is data]
        return broken or [
            Damage("missing-record", None, None, digest.hex(), None,
                   f"no pack that the checkpoint needs holds {kind.name.lower()} {digest.short}")
        ]  # fmt: skip
