"""Reading a pack whole: every byte of it is covered by a digest, or is padding and zero.

What verification, fsck and ``save(verify="now")`` have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from castore.model.packinfo import PackInfo
from castore.packs.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    PackError,
    Table,
)
from castore.packs.reader import (
    Damage,
    Location,
    PackDamaged,
    RecordDamaged,
    check_size,
    read_record,
    read_table,
    unreadable,
)
from castore.storage.protocol import Storage

__all__ = ["PackState", "scrub_pack"]

#: Records are read in runs of about this many bytes a task.
_RUN = 8 << 20


@dataclass(slots=True)
class PackState:
    """What a scrub of one pack found.

    Attributes:
        info: the pack.
        table: its own table, or None where that is damaged.
        table_offset: where the table lies.
        damages: what is wrong, with the record's digest where it is one record.
        bytes_read: payload bytes read.
    """

    info: PackInfo
    table: Table | None = None
    damages: list[tuple[bytes | None, Damage]] = field(default_factory=list)
    bytes_read: int = 0


def scrub_pack(
    storage: Storage,
    info: PackInfo,
    threads: ThreadPoolExecutor,
    *,
    payloads: bool = True,
    device: bool = False,
    table: Table | None = None,
    progress: Callable[[int], None] | None = None,
) -> PackState:
    """Check a pack: size, header, table, footer, padding and (``payloads``) every record.

    Args:
        storage: where it lies.
        info: what the log says of it.
        threads: who reads and hashes.
        payloads: read every record, or leave them.
        device: read past the page cache.
        table: a table known from elsewhere, used where the pack's own is damaged.
        progress: told of bytes read.
    """
    state = PackState(info)
    try:
        check_size(storage, info)
    except PackDamaged as e:
        state.damages.append((None, e.damage))
        if e.damage.code == "missing-pack":
            return state
    except OSError as e:
        state.damages.append((None, unreadable(info, e)))
        return state
    table_offset: int | None = None
    try:
        header, state.table, table_offset = read_table(storage, info)
        if header.save != info.save:
            raise PackError(f"the header says save {header.save}")
    except PackError as e:
        damage = Damage("damaged-table", info.path, None, info.id.hex(), None,
                        f"{info.file}: {e}")  # fmt: skip
        state.damages.append((None, damage))
    except OSError as e:
        state.damages.append((None, unreadable(info, e)))
    known = state.table or table
    if known is None or not payloads:
        return state
    runs: list[list[Location]] = [[]]
    size = 0
    for record in known:
        if size >= _RUN:
            runs.append([])
            size = 0
        runs[-1].append(Location(info, record))
        size += record.stored_len
    for found, n in threads.map(lambda run: _scrub_run(storage, run, device), runs):
        state.damages += found
        state.bytes_read += n
        if progress is not None:
            progress(n)
    if table_offset is not None:
        try:
            stray = _stray_bytes(storage, info, known, table_offset)
        except OSError as e:
            stray = [unreadable(info, e)]
        state.damages += [(None, d) for d in stray]
    return state


def _scrub_run(
    storage: Storage, run: list[Location], device: bool
) -> tuple[list[tuple[bytes | None, Damage]], int]:
    found: list[tuple[bytes | None, Damage]] = []
    n = 0
    for location in run:
        try:
            read_record(storage, location, device=device, stored_too=True)
        except RecordDamaged as e:
            found += [(location.record.digest, d) for d in e.damages]
        n += location.record.stored_len
    return found, n


def _stray_bytes(storage: Storage, info: PackInfo, table: Table, table_offset: int) -> list[Damage]:
    """Padding that is not zero, in the gaps between header, payloads, table and footer."""
    gaps = []
    end = HEADER_SIZE
    for record in table:
        if record.offset > end:
            gaps.append((end, record.offset))
        end = record.offset + record.stored_len
    gaps.append((end, table_offset))
    gaps.append((table_offset + len(table.render()), info.size - FOOTER_SIZE))
    out = []
    for start, stop in gaps:
        if stop <= start:
            continue
        for at in range(start, stop, _RUN):
            length = min(_RUN, stop - at)
            data = storage.read(info.file, at, length)
            if not data.strip(b"\0") and len(data) == length:
                continue
            stray = at + len(data) - len(data.lstrip(b"\0"))
            out.append(
                Damage("stray-bytes", info.path, stray, "zeros", "other bytes",
                       f"{info.file} at {stray}: padding is not zero")
            )  # fmt: skip
    return out
