"""Flips bits of an index's data.mdb and uses it: a program, since LMDB may die of a damaged file.

    python -m tests.packs.flip_index BASE WORK BIT...

BASE is a folder with a sound index, as :func:`make_index` makes it; WORK a scratch folder.  Prints
the bit before it is tried, and a line that begins with ``WRONG`` for an answer that is not true.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from castore.model.digest import Digest, Kind, derived
from castore.model.packinfo import PackInfo
from castore.packs.format import Record, Table
from castore.packs.index import LmdbIndex
from tests.storage.memory import MemoryStorage

__all__ = ["STORE", "make_index", "pack", "truth"]

STORE = b"the store's id.."


def digest(i: int) -> Digest:
    return derived("test digest", i.to_bytes(8, "little"))


def pack(ident: int, chunks: range | list[int]) -> tuple[Digest, Table]:
    """A pack's id and table."""
    rows = [
        Record(digest(c), Kind(c % 6), 128 + 100 * i, 100, 100, 0) for i, c in enumerate(chunks)
    ]
    return derived("test pack", ident.to_bytes(8, "little")), Table.of(rows)


#: Single records, records under one key (a sub-page), and one key of so many that LMDB makes it a
#: tree of its own.
PACKS = [pack(1, range(120)), pack(2, range(100, 130)), *(pack(3 + i, [7]) for i in range(40))]
MORE = pack(100, range(500, 560))


def truth(packs: list[tuple[Digest, Table]]) -> dict[Digest, set[tuple[Digest, Record]]]:
    """Every place of every digest."""
    places: dict[Digest, set[tuple[Digest, Record]]] = {}
    for ident, table in packs:
        for record in table:
            places.setdefault(record.digest, set()).add((ident, record))
    return places


def make_index(folder: Path) -> None:
    index = LmdbIndex(folder, STORE, MemoryStorage())
    for ident, table in PACKS:
        index.add(ident, table)
    index.close()


def try_index(folder: Path) -> list[str]:
    """Look everything up, learn more, and look again: what is not true."""
    wrong = []
    index = LmdbIndex(folder, STORE, MemoryStorage())
    known = truth(PACKS)
    for places in (known, truth([*PACKS, MORE])):
        asked = [*places, *(digest(i) for i in (600, 601))]
        for name, found in zip(asked, index.find(asked), strict=True):
            if not set(found) <= places.get(name, set()):
                wrong.append(f"{name.short} is said to be at {found}")
        index.update([PackInfo("save/gone.data.pack", digest(9), 4096)])
        index.add(*MORE)
    missing = [name for name, found in zip(MORE[1].digests(), index.find(MORE[1].digests()),
                                           strict=True) if not found]  # fmt: skip
    if len(missing) == len(MORE[1]):
        wrong.append("what was just learnt is not known")
    index.close()
    return wrong


def main(base: Path, work: Path, bits: list[int]) -> None:
    data = (base / "data.mdb").read_bytes()
    for bit in bits:
        print(bit, flush=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        (work / "data.mdb").write_bytes(flipped)
        for wrong in try_index(work):
            print(f"WRONG {bit}: {wrong}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(b) for b in sys.stdin.read().split()])
