"""Mapping tensors where they lie in their packs, once every byte of them was hashed there.

A tensor can be mapped if all its chunks lie raw and back to back in one pack, at an address that
its dtype can have.  What is hashed is the mapping itself, so it is the very bytes that the caller
will see: pages of the page cache, which the file's owner can still change and a failing disk can
still lose, as with any mapped file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from castore.model.digest import chunk_digest
from castore.model.packinfo import PackInfo
from castore.pipeline.reading import ChunkReader
from castore.storage.mapping import Mapping
from castore.storage.protocol import Storage

if TYPE_CHECKING:
    from castore.state import Read

__all__ = ["map_contents"]

#: Bytes that one task hashes.
_BATCH = 4 << 20


class _Mapped:
    """A content that lies in one extent: whether it may be used is known once it was hashed."""

    def __init__(self, read: Read, pack: PackInfo, mapping: Mapping, offset: int) -> None:
        self.read = read
        self.pack = pack
        self.mapping = mapping
        self.offset = offset
        self.sound = True

    def memory(self) -> memoryview:
        return self.mapping.view(self.offset, self.read.nbytes)


def map_contents(
    storage: Storage, reader: ChunkReader, reads: Sequence[Read], *, verify: bool
) -> tuple[list[Read], int]:
    """Map what can be mapped; the contents that are left to read, and the bytes mapped.

    What does not hash to its name where it lies is left to read: another copy may be sound.
    """
    mappings: dict[str, Mapping | None] = {}
    found: list[_Mapped] = []
    left: list[Read] = []
    for read in reads:
        extent = _extent(reader, read)
        mapping = None if extent is None else _mapping(storage, extent[0], mappings)
        if extent is None or mapping is None:
            left.append(read)
        else:
            found.append(_Mapped(read, extent[0], mapping, extent[1]))
    if verify:
        reader.run([partial(_hash, storage, batch) for batch in _batches(found)])
    mapped = 0
    for item in found:
        if item.sound:
            item.read.adopt(item.memory())
            mapped += item.read.nbytes
        else:
            left.append(item.read)
    return left, mapped


def _extent(reader: ChunkReader, read: Read) -> tuple[PackInfo, int] | None:
    """Pack and offset of a content that lies there as it is."""
    if not read.mappable or not read.digests:
        return None
    place = reader.map.extent(read.digests, [stop - start for _, start, stop in read.pieces()])
    return place if place is not None and not place[1] % read.mappable else None


def _mapping(
    storage: Storage, pack: PackInfo, mappings: dict[str, Mapping | None]
) -> Mapping | None:
    """A pack as memory, mapped once; None where it cannot be."""
    if pack.path not in mappings:
        try:
            mappings[pack.path] = storage.map(pack.file, pack.size)
        except OSError:
            mappings[pack.path] = None  # reading will say what is wrong with it
    return mappings[pack.path]


def _batches(found: Sequence[_Mapped]) -> list[list[tuple[_Mapped, bytes, int, int]]]:
    """Chunks to hash, as ``(content, digest, start, stop)``, some megabytes together."""
    batches: list[list[tuple[_Mapped, bytes, int, int]]] = []
    room = 0
    for item in found:
        for digest, start, stop in item.read.pieces():
            if room < stop - start or batches[-1][0][0].pack is not item.pack:
                batches.append([])
                room = _BATCH
            batches[-1].append((item, digest, start, stop))
            room -= stop - start
    return batches


def _hash(storage: Storage, batch: list[tuple[_Mapped, bytes, int, int]]) -> tuple[int, int]:
    total = 0
    for item, digest, start, stop in batch:
        total += stop - start
        if not item.sound:
            continue
        try:
            offset = item.offset + start
            if not item.mapping.bring(offset, stop - start):
                # An older kernel: what cannot be read is an error here, and no signal later.
                buffer = memoryview(bytearray(stop - start))
                storage.read_into(item.pack.file, offset, buffer)
            item.sound = chunk_digest(item.mapping.view(offset, stop - start)) == digest
        except OSError:
            item.sound = False
    return len(batch), total
