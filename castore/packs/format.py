"""The bytes of a pack: header, payloads, table of contents, footer.  Pure; see ``docs/format.md``.

A pack's id is the digest of its header and table.  The header holds a fresh nonce, so no two files
ever share an id; the id stands in the footer and in every log entry that needs the pack.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from castore.model.config import valid_chunk_size
from castore.model.digest import DIGEST_SIZE, Buffer, Digest, Kind, derived
from castore.model.encoding import EncodingError, decode, encode

__all__ = [
    "FOOTER_SIZE",
    "HEADER_SIZE",
    "PACK_NAME",
    "PACK_PAGE",
    "PackError",
    "PackHeader",
    "Record",
    "Table",
    "meta_names",
    "pack_id",
    "pack_name",
    "parse_footer",
    "render_footer",
]

VERSION = 1
HEADER_MAGIC = b"\x93castore"
FOOTER_MAGIC = b"castore\x93"
HEADER_SIZE = 128
FOOTER_SIZE = 64
#: A pack's size is a multiple of this; the footer is its last 64 bytes.
PACK_PAGE = 4096

_HEADER = struct.Struct("<8sII16sQ16s40s")
_FOOTER = struct.Struct("<QQ32s8s8s")

#: ``r<rank>-<number>.<kind>.pack``
PACK_NAME = re.compile(r"r\d{5}-\d{3,6}\.(data|meta|meta2)\.pack", re.ASCII)


class PackError(ValueError):
    """A pack's header, table or footer is not what it should be: the text says how."""


def pack_name(rank: int, number: int, kind: str) -> str:
    """The file name of a pack: ``kind`` is ``data``, ``meta`` or ``meta2``."""
    return f"r{rank:05d}-{number:03d}.{kind}.pack"


def meta_names(name: str) -> tuple[str, str]:
    """The names of a meta pack and its twin, given either."""
    stem = name.split(".", maxsplit=1)[0]
    return f"{stem}.meta.pack", f"{stem}.meta2.pack"


@dataclass(frozen=True, slots=True)
class PackHeader:
    """The first 128 bytes of a pack."""

    store_id: bytes
    chunk_size: int
    nonce: bytes
    meta: bool
    save: str

    def render(self) -> bytes:
        """Its bytes."""
        fixed = _HEADER.pack(
            HEADER_MAGIC,
            VERSION,
            1 if self.meta else 0,
            self.store_id,
            self.chunk_size,
            self.nonce,
            self.save.encode("ascii"),
        )
        return fixed.ljust(HEADER_SIZE, b"\0")

    @classmethod
    def parse(cls, data: Buffer) -> PackHeader:
        """Read a header.

        Raises:
            PackError: it is none, or of another version.
        """
        if len(data) < HEADER_SIZE:
            raise PackError(f"the header is cut short: {len(data)} of {HEADER_SIZE} bytes")
        magic, version, kind, store_id, chunk_size, nonce, save = _HEADER.unpack_from(data)
        if magic != HEADER_MAGIC:
            raise PackError("the header's magic is wrong: not a pack, or its start is damaged")
        if version != VERSION:
            raise PackError(f"the header says version {version}, this castore reads {VERSION}")
        if not valid_chunk_size(chunk_size):  # it bounds what a chunk may decode to
            raise PackError(f"the header's chunk size is impossible: {chunk_size}")
        try:
            header = cls(store_id, chunk_size, nonce, kind == 1, save.rstrip(b"\0").decode("ascii"))
        except UnicodeDecodeError as e:
            raise PackError("the header's save id is damaged") from e
        if header.render() != bytes(data[:HEADER_SIZE]):
            raise PackError("the header holds stray bytes")
        return header


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a table.

    Attributes:
        digest: of the decoded bytes.
        kind: what it is.
        offset: where the stored bytes begin in the file.
        stored_len: how many there are.
        raw_len: how many they decode to.
        codec: how they are held.
        stored_digest: plain BLAKE3 of the stored bytes, where coded.
        bases: digests that a delta or cast leans on.
    """

    digest: Digest
    kind: Kind
    offset: int
    stored_len: int
    raw_len: int
    codec: int
    stored_digest: Digest | None = None
    bases: tuple[Digest, ...] = ()


def _numbers(data: bytes) -> array[int]:
    out = array("Q")
    out.frombytes(data)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def _bytes(numbers: Sequence[int]) -> bytes:
    out = array("Q", numbers)
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


class Table:
    """A pack's table of contents, by columns: quick to read with 100,000 rows."""

    __slots__ = ("_codecs", "_digests", "_extras", "_kinds", "_offsets", "_raw", "_rows", "_stored")

    def __init__(
        self,
        digests: bytes = b"",
        kinds: bytes = b"",
        offsets: Sequence[int] = (),
        stored: Sequence[int] = (),
        raw: Sequence[int] = (),
        codecs: bytes = b"",
        extras: dict[int, tuple[Digest, tuple[Digest, ...]]] | None = None,
    ) -> None:
        """Columns as in the format; ``extras``: coded row -> stored digest and bases."""
        self._digests = digests
        self._kinds = kinds
        self._offsets = offsets
        self._stored = stored
        self._raw = raw
        self._codecs = codecs
        self._extras = extras or {}
        self._rows: dict[bytes, int] | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> Table:
        """The table of records that are at hand one by one."""
        return cls(
            b"".join(r.digest for r in records),
            bytes(r.kind for r in records),
            [r.offset for r in records],
            [r.stored_len for r in records],
            [r.raw_len for r in records],
            bytes(r.codec for r in records),
            {i: (r.stored_digest, r.bases) for i, r in enumerate(records) if r.stored_digest},
        )

    def render(self) -> bytes:
        """Canonical bytes: ``[digests, kinds, offsets, stored, raw, codecs, extras]``."""
        return encode(
            [
                self._digests,
                self._kinds,
                _bytes(self._offsets),
                _bytes(self._stored),
                _bytes(self._raw),
                self._codecs,
                [[i, sd, list(bases)] for i, (sd, bases) in self._extras.items()],
            ]
        )

    @classmethod
    def parse(cls, data: Buffer) -> Table:
        """Read canonical bytes.

        Raises:
            PackError: they are no table: columns of unequal length, rows that overlap, ...
        """
        try:
            value = decode(data)
        except EncodingError as e:
            raise PackError(f"the table is {e}") from e
        if not (
            isinstance(value, list)
            and len(value) == 7
            and all(isinstance(v, bytes) for v in value[:6])
            and isinstance(value[6], list)
        ):
            raise PackError("the table has not the seven columns of a table")
        digests, kinds, offsets, stored, raw, codecs, extras = value
        n = len(kinds)
        if [len(digests), len(offsets), len(stored), len(raw), len(codecs)] != [
            DIGEST_SIZE * n, 8 * n, 8 * n, 8 * n, n,
        ]:  # fmt: skip
            raise PackError("the table's columns differ in length")
        table = cls(digests, kinds, _numbers(offsets), _numbers(stored), _numbers(raw), codecs)
        end = HEADER_SIZE
        for offset, length in zip(table._offsets, table._stored, strict=True):
            if offset < end:
                raise PackError("rows of the table overlap or are out of order")
            end = offset + length
        if n and max(kinds) > max(Kind):
            raise PackError("the table names an unknown kind of record")
        try:
            for i, stored_digest, bases in extras:
                if not (type(i) is int and 0 <= i < n and codecs[i] and type(bases) is list):
                    raise PackError("the table's coded rows are out of bounds")
                table._extras[i] = (Digest(stored_digest), tuple(Digest(b) for b in bases))
        except (TypeError, ValueError) as e:
            raise PackError(f"the table's coded rows are malformed: {e}") from e
        if list(table._extras) != [i for i in range(n) if table._codecs[i]] or len(extras) != len(
            table._extras
        ):
            raise PackError("the table's coded rows do not match its codecs")
        return table

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, i: int) -> Record:
        stored_digest, bases = self._extras.get(i, (None, ()))
        return Record(
            Digest(self._digests[i * DIGEST_SIZE : (i + 1) * DIGEST_SIZE]),
            Kind(self._kinds[i]),
            self._offsets[i],
            self._stored[i],
            self._raw[i],
            self._codecs[i],
            stored_digest,
            bases,
        )

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    def rows(self) -> Iterator[tuple[bytes, int, int, int, int, int]]:
        """Digest, kind, offset, stored length, raw length and codec of every row: the quick way."""
        return zip(
            self.digests(),
            self._kinds,
            self._offsets,
            self._stored,
            self._raw,
            self._codecs,
            strict=True,
        )

    def check_bounds(self, size: int, chunk_size: int, object_size: int) -> None:
        """Check that every row lies in a file of ``size`` bytes and decodes to a bounded length.

        Raises:
            PackError: one does not.
        """
        if self._offsets and self._offsets[-1] + self._stored[-1] > size:
            raise PackError("the table points outside the file")
        for kind, stored, raw, codec in zip(
            self._kinds, self._stored, self._raw, self._codecs, strict=True
        ):
            limit = object_size if kind else chunk_size
            if raw > limit or stored > raw or (not codec and raw != stored):
                raise PackError(f"a row of the table has an impossible length: {raw}")

    def raw_span(self, row: int) -> tuple[int, int] | None:
        """Offset and length of a row that is held raw, or None."""
        return None if self._codecs[row] else (self._offsets[row], self._raw[row])

    def find(self, digest: Digest) -> Record | None:
        """The row of a digest, or None."""
        if self._rows is None:
            self._rows = {digest: i for i, digest in enumerate(self.digests())}
        i = self._rows.get(digest)
        return None if i is None else self[i]

    def digests(self) -> list[bytes]:
        """All digests, in the order of the rows."""
        d = self._digests
        return [d[i : i + DIGEST_SIZE] for i in range(0, len(d), DIGEST_SIZE)]


def pack_id(header: Buffer, table: Buffer) -> Digest:
    """A pack's id: BLAKE3 of header and table, derived under ``castore 1 pack``."""
    return derived("castore 1 pack", bytes(header) + bytes(table))


def render_footer(table_offset: int, table_len: int, ident: Digest) -> bytes:
    """The last 64 bytes of a pack."""
    body = struct.pack("<QQ32s", table_offset, table_len, ident)
    return body + derived("castore 1 footer", body)[:8] + FOOTER_MAGIC


def parse_footer(data: Buffer, size: int) -> tuple[int, int, Digest]:
    """Offset and length of the table, and the pack's id.

    Raises:
        PackError: it is no footer, or points outside a file of ``size`` bytes.
    """
    if len(data) != FOOTER_SIZE:
        raise PackError("the footer is cut short")
    offset, length, ident, _, _ = _FOOTER.unpack(data)
    if render_footer(offset, length, Digest(ident)) != bytes(data):
        raise PackError("the footer is damaged")
    if offset < HEADER_SIZE or offset + length > size - FOOTER_SIZE:
        raise PackError("the footer points outside the file")
    return offset, length, Digest(ident)
