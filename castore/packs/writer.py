"""Writing packs: records go in, a durable file and its description come out.

One stream of packs a writing process, rolled at :data:`ROLL_BYTES`.  Metadata goes through
:class:`TwinWriter`, which writes every meta pack twice.  A file is created under its final name,
in its own save's folder; nothing refers to it before a log entry does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from typing import Protocol

from castore.model.digest import Buffer, Digest, Kind, chunk_digest, kind_digest
from castore.model.encoding import encode
from castore.model.packinfo import PackInfo
from castore.packs.codecs import Codec, compress, decode
from castore.packs.format import (
    FOOTER_SIZE,
    PACK_PAGE,
    PackHeader,
    Record,
    Table,
    pack_id,
    pack_name,
    render_footer,
)
from castore.storage.protocol import NewFile, Storage
from castore.system import random_bytes

__all__ = ["ALIGNMENT", "DataPacks", "FinishedPack", "PackPlace", "TwinWriter", "table_object"]

#: A pack that has this much is closed and another begun.
ROLL_BYTES = 512 << 20
#: ... or this many records, so that no table grows beyond a few MiB.
ROLL_RECORDS = 100_000
#: A tensor begins at a multiple of this, so that it can be mapped as any dtype.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackPlace:
    """What all packs of one save share."""

    store_id: bytes
    chunk_size: int
    save: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class FinishedPack:
    """A pack whose contents are durable (its name is, after its folder's fsync).

    Attributes:
        info: as a log entry names it.
        header: its first 128 bytes.
        table_bytes: its table, rendered.
        table: its table.
    """

    info: PackInfo
    header: bytes
    table_bytes: bytes
    table: Table


def _create(storage: Storage, path: str) -> NewFile:
    try:
        return storage.new_file(f"packs/{path}")
    except FileNotFoundError:  # the save's folder is not there yet, or gc took it while empty
        storage.make_folder(f"packs/{path.partition('/')[0]}")
        return storage.new_file(f"packs/{path}")


class _Pack:
    """One file being written."""

    def __init__(self, storage: Storage, place: PackPlace, name: str, meta: bool) -> None:
        self.path = f"{place.save}/{name}"
        self._header = PackHeader(
            place.store_id, place.chunk_size, random_bytes(16), meta, place.save
        ).render()
        self._file = _create(storage, self.path)
        self._file.append(self._header)
        self._digests: list[bytes] = []
        self._kinds = bytearray()
        self._offsets: list[int] = []
        self._stored: list[int] = []
        self._raw: list[int] = []
        self._codecs = bytearray()
        self._extras: dict[int, tuple[Digest, tuple[Digest, ...]]] = {}

    @property
    def position(self) -> int:
        return self._file.position

    @property
    def rows(self) -> int:
        return len(self._digests)

    def align(self, alignment: int) -> None:
        gap = -self._file.position % alignment
        if gap:
            self._file.append(bytes(gap))

    def add(self, record: Record, stored: Buffer) -> None:
        """Append a record's payload; where it lies is decided here, not by ``record.offset``."""
        if record.stored_digest is not None:
            self._extras[self.rows] = (record.stored_digest, record.bases)
        self._digests.append(record.digest)
        self._kinds.append(record.kind)
        self._offsets.append(self._file.position)
        self._stored.append(record.stored_len)
        self._raw.append(record.raw_len)
        self._codecs.append(record.codec)
        self._file.append(stored)

    def add_chunks(
        self,
        digests: Sequence[Digest],
        data: memoryview,
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        """Append many raw chunks that lie in ``data`` as they are to lie in the file."""
        self.align(ALIGNMENT)
        base = self._file.position
        lengths = list(map(sub, ends, starts))
        self._digests += digests
        self._kinds += bytes(len(digests))
        self._offsets += [base + start for start in starts]
        self._stored += lengths
        self._raw += lengths
        self._codecs += bytes(len(digests))
        self._file.append(data)

    def finish(self) -> FinishedPack:
        table = Table(
            b"".join(self._digests),
            bytes(self._kinds),
            self._offsets,
            self._stored,
            self._raw,
            bytes(self._codecs),
            self._extras,
        )
        table_bytes = table.render()
        ident = pack_id(self._header, table_bytes)
        offset = self._file.position
        self._file.append(table_bytes)
        self._file.append(bytes(-(self._file.position + FOOTER_SIZE) % PACK_PAGE))
        self._file.append(render_footer(offset, len(table_bytes), ident))
        size = self._file.finish()
        return FinishedPack(PackInfo(self.path, ident, size), self._header, table_bytes, table)

    def abandon(self) -> None:
        self._file.abandon()


class _Numbers(Protocol):
    def __call__(self) -> int:
        """The next number of a pack of this save: a path is used once."""


class DataPacks:
    """The chunks of one save, in as many data packs as they need."""

    def __init__(self, storage: Storage, place: PackPlace, number: _Numbers) -> None:
        self._storage = storage
        self._place = place
        self._number = number
        self._open: _Pack | None = None
        self.finished: list[FinishedPack] = []
        self.stored_bytes = 0

    def add(self, digest: Digest, data: Buffer, *, begins: bool) -> str:
        """Append a raw chunk; ``begins`` where it is the first of a tensor.

        Returns:
            The path of the pack it went to.
        """
        n = len(data)
        pack = self._room(n)
        if begins or not pack.rows:
            pack.align(ALIGNMENT)
        pack.add(Record(digest, Kind.CHUNK, 0, n, n, Codec.RAW), data)
        self.stored_bytes += n
        return pack.path

    def add_batch(
        self,
        digests: Sequence[Digest],
        data: memoryview,
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> str:
        """Append small raw chunks at once: ``data`` holds them, each start aligned, gaps zero.

        Returns:
            The path of the pack they went to.
        """
        pack = self._room(len(data))
        pack.add_chunks(digests, data, starts, ends)
        self.stored_bytes += len(data)
        return pack.path

    def _room(self, coming: int) -> _Pack:
        """The open pack, or a new one where that would grow too large."""
        pack = self._open
        if pack is not None and (pack.position + coming > ROLL_BYTES or pack.rows >= ROLL_RECORDS):
            self._close_open()
            pack = None
        if pack is None:
            name = pack_name(self._place.rank, self._number(), "data")
            pack = self._open = _Pack(self._storage, self._place, name, False)
        return pack

    def _close_open(self) -> None:
        if self._open is not None:
            pack, self._open = self._open, None
            try:
                self.finished.append(pack.finish())
            except BaseException:
                pack.abandon()
                raise

    def finish(self) -> list[FinishedPack]:
        """Make all packs' contents durable."""
        self._close_open()
        return self.finished

    def abandon(self) -> None:
        """Give up what is open."""
        if self._open is not None:
            self._open.abandon()
            self._open = None


class TwinWriter:
    """The objects of one save, in a meta pack and its twin."""

    def __init__(self, storage: Storage, place: PackPlace, number: _Numbers) -> None:
        self._storage = storage
        self._place = place
        self._number = number
        self._open: tuple[_Pack, _Pack] | None = None
        self._seen: set[bytes] = set()
        self.finished: list[FinishedPack] = []
        self.stored_bytes = 0

    def add(self, kind: Kind, digest: Digest, data: bytes) -> None:
        """Append an object to both (once, however often it is given)."""
        if digest in self._seen:
            return
        self._seen.add(digest)
        packed = compress(data)
        if packed is None:
            record = Record(digest, kind, 0, len(data), len(data), Codec.RAW)
            stored = data
        else:
            # A coded record is decoded and hashed again before it is written.
            if kind_digest(kind, decode(Codec.ZSTD, packed, len(data))) != digest:
                raise ValueError(f"zstd did not give back the bytes of object {digest}")
            record = Record(
                digest, kind, 0, len(packed), len(data), Codec.ZSTD, chunk_digest(packed)
            )
            stored = packed
        for pack in self._packs(len(stored)):
            pack.add(record, stored)
        self.stored_bytes += 2 * len(stored)

    def _packs(self, coming: int) -> tuple[_Pack, _Pack]:
        if self._open is not None and (
            self._open[0].position + coming > ROLL_BYTES or self._open[0].rows >= ROLL_RECORDS
        ):
            self._close_open()
        if self._open is None:
            number = self._number()
            one, two = (pack_name(self._place.rank, number, kind) for kind in ("meta", "meta2"))
            first = _Pack(self._storage, self._place, one, True)
            try:
                second = _Pack(self._storage, self._place, two, True)
            except BaseException:
                first.abandon()
                raise
            self._open = (first, second)
        return self._open

    def _close_open(self) -> None:
        if self._open is not None:
            packs, self._open = self._open, None
            try:
                self.finished.extend([pack.finish() for pack in packs])
            except BaseException:
                for pack in packs:
                    pack.abandon()
                raise

    def finish(self) -> list[FinishedPack]:
        """Make all packs' contents durable."""
        self._close_open()
        return self.finished

    def abandon(self) -> None:
        """Give up what is open."""
        if self._open is not None:
            for pack in self._open:
                with contextlib.suppress(OSError):
                    pack.abandon()
            self._open = None


def table_object(pack: FinishedPack) -> bytes:
    """The copy of a data pack's table for the meta packs: ``[name, header, table]``."""
    return encode([pack.info.path.partition("/")[2], pack.header, pack.table_bytes])
