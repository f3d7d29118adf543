"""Reports as text for people: sizes, ages, tables, checkpoints.

Pure but for :func:`print_table`: everything else takes values and gives text, so that it can be
tested without a store.  Decides nothing and looks nothing up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from castore.cli.output import clean, coloured, paint, say, terminal
from castore.model.objects import METADATA
from castore.reports import Checkpoint, TreeEntry
from castore.system import format_time

__all__ = [
    "SHORT",
    "Refs",
    "age",
    "checkpoint_block",
    "count",
    "meta_lines",
    "one_line",
    "print_fields",
    "print_table",
    "rows_text",
    "short",
    "size",
    "tree_rows",
]

#: Hex digits of a digest as people see it.
SHORT = 12
#: A table longer than this is printed as it comes: laying it out would keep people waiting.
_TABLE_ROWS = 2000

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_AGES = (
    (365 * 86400, "year"),
    (30 * 86400, "month"),
    (7 * 86400, "week"),
    (86400, "day"),
    (3600, "hour"),
    (60, "minute"),
    (1, "second"),
)

#: More plain numbers in one list than this are told in one row ...
NUMBERS_LISTED = 16
#: ... that shows the first of them, in about so many characters.
NUMBERS_SHOWN = 16

#: Digest -> (branches, tags) that stand on it.
Refs = Mapping[str, tuple[Sequence[str], Sequence[str]]]


# -- words --------------------------------------------------------------------------------------


def short(digest: str) -> str:
    """A digest as people see it."""
    return digest[:SHORT]


def count(n: int, what: str, many: str | None = None) -> str:
    """``1 file``, ``2 files``, ``10,000 files``."""
    return f"{n:,} {what if n == 1 else many or what + 's'}"


def size(n: int) -> str:
    """Bytes for people: ``17 bytes``, ``586.0 KiB``."""
    if n < 1024:
        return count(n, "byte")
    value = float(n)
    for unit in _UNITS:
        value /= 1024
        if value < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def age(then: int | None, now: int, never: str = "never") -> str:
    """``3 minutes ago (2026-12-01T15:24:08Z)``, or that it never happened."""
    if then is None:
        return never
    when = format_time(then)
    seconds = (now - then) // 10**9
    if seconds < -60:
        return f"{when} (in the future: the clocks of two machines differ)"
    for length, name in _AGES:
        if seconds >= length:
            return f"{count(seconds // length, name)} ago ({when})"
    return f"now ({when})"


def rows_text(rows: tuple[int, int] | None) -> str:
    """``row 7``, ``rows 0..99``, or nothing."""
    if rows is None:
        return ""
    first, stop = rows
    return f"row {first}" if stop - first <= 1 else f"rows {first}..{stop - 1}"


# -- tables -------------------------------------------------------------------------------------


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()
) -> None:
    """Columns: with headings on a terminal, bare lines elsewhere.

    Args:
        headers: the columns' headings.
        rows: their cells; a row may be shorter than the headings.
        right: which columns are numbers, set flush right.
    """
    lines = list(rows)
    flush_right = set(right)
    if terminal() and len(lines) <= _TABLE_ROWS:
        _rich_table(headers, lines, flush_right)
    else:
        for line in plain_table(lines, flush_right):
            say(line)


def plain_table(rows: Sequence[Sequence[str]], right: set[int]) -> Iterator[str]:
    """Rows as lines of aligned cells, two spaces apart."""
    widths: list[int] = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for i, cell in enumerate(row):
            widths[i] = max(widths[i], len(cell))
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "  ".join(cells).rstrip()


def _rich_table(headers: Sequence[str], rows: list[Sequence[str]], right: set[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        # Text, not str: a key path like [red] is data, not markup.
        table.add_row(*(Text(cell) for cell in row))
    colours: Literal["auto"] | None = "auto" if coloured() else None
    Console(highlight=False, color_system=colours).print(table)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """``Name: value`` lines, the values aligned."""
    pairs = list(fields)
    width = max(len(name) for name, _ in pairs) + 1
    for name, value in pairs:
        say(f"{paint(f'{name}:'.ljust(width), 'cyan')} {value}")


# -- checkpoints --------------------------------------------------------------------------------


def _decoration(digest: str, refs: Refs) -> str:
    branches, tags = refs.get(digest, ((), ()))
    names = [paint(clean(b), "green", bold=True) for b in branches]
    names += [paint(f"tag: {clean(t)}", "yellow", bold=True) for t in tags]
    if not names:
        return ""
    return paint(" (", "yellow") + paint(", ", "yellow").join(names) + paint(")", "yellow")


def one_line(checkpoint: Checkpoint, refs: Refs) -> str:
    """A checkpoint as ``log --oneline`` has it."""
    words = [paint(short(checkpoint.digest), "yellow") + _decoration(checkpoint.digest, refs)]
    if checkpoint.step is not None:
        words.append(f"step {checkpoint.step}")
    words.append(f"+{size(checkpoint.new_bytes)}")
    if checkpoint.message:
        words.append(clean(checkpoint.message.partition("\n")[0]))
    return " ".join(words)


def checkpoint_block(checkpoint: Checkpoint, refs: Refs, *, details: bool = False) -> Iterator[str]:
    """A checkpoint as ``log`` has it; with ``details`` as ``show`` has it."""
    head = paint(f"checkpoint {checkpoint.digest}", "yellow")
    yield head + _decoration(checkpoint.digest, refs)
    fields = [("Branch", clean(checkpoint.branch))]
    if checkpoint.step is not None:
        fields.append(("Step", str(checkpoint.step)))
    fields.append(("Date", format_time(checkpoint.time)))
    fields.append(("New", size(checkpoint.new_bytes)))
    tensors = count(checkpoint.tensors, "tensor")
    fields.append(("Size", f"{size(checkpoint.logical_bytes)} in {tensors}"))
    if details:
        fields += [
            ("Root", checkpoint.root),
            ("Parent", checkpoint.parent or "none"),
            ("Entry", str(checkpoint.seq)),
            ("Verified", "yes, read back whole" if checkpoint.verified else "not yet"),
        ]
    width = max(len(name) for name, _ in fields) + 1
    for name, value in fields:
        yield f"{f'{name}:'.ljust(width)} {value}"
    if details and checkpoint.meta:
        yield "Meta:"
        yield from (f"    {line}" for line in meta_lines(checkpoint.meta))
    if checkpoint.message:
        yield ""
        yield from (f"    {line}" for line in clean(checkpoint.message).splitlines())


def meta_lines(meta: Mapping[str, Any]) -> Iterator[str]:
    """A checkpoint's ``meta``, a line a key."""
    for key, value in meta.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{clean(key)}: {clean(text)}".replace("\n", "\\n")


# -- states -------------------------------------------------------------------------------------


def shape_text(shape: Sequence[int]) -> str:
    """``500 x 300``; a scalar's is ``scalar``."""
    return " x ".join(map(str, shape)) if shape else "scalar"


def tree_rows(entries: Sequence[TreeEntry], *, whole: bool = False) -> Iterator[tuple[str, ...]]:
    """The values of a state as rows: path, type, shape or value, size, chunks.

    A long list of plain numbers is one row, and so is an OrderedDict's metadata: nobody reads them
    one by one who did not ask for them.

    Args:
        entries: the values, containers before what they hold.
        whole: the first is listed, whatever it is: it was asked for.
    """
    i = 0
    while i < len(entries):
        entry = entries[i]
        i += 1
        path = clean(entry.path) or "(root)"
        if entry.entries is None:
            yield _leaf_row(path, entry)
            continue
        value = count(entry.entries, "entry", "entries")
        if not (whole and i == 1):
            numbers = entries[i : i + entry.entries]
            if _are_numbers(entry, numbers):
                value += f": {_first(numbers)}, ..."
                i += entry.entries
            elif entry.path.rpartition("/")[2] == METADATA:
                while i < len(entries) and entries[i].path.startswith(f"{entry.path}/"):
                    i += 1
        yield (path, entry.kind, value)


def _first(numbers: Sequence[TreeEntry]) -> str:
    shown = ""
    for number in numbers:
        if len(shown) >= NUMBERS_SHOWN:
            break
        shown += f", {number.text}" if shown else number.text or ""
    return shown


def _are_numbers(entry: TreeEntry, below: Sequence[TreeEntry]) -> bool:
    """Whether a container is a long list of plain numbers."""
    return (
        len(below) == entry.entries
        and entry.entries > NUMBERS_LISTED
        and entry.kind in ("list", "tuple", "set", "frozenset")
        and all(n.kind in ("int", "float", "bool", "complex") and n.text for n in below)
    )


def _leaf_row(path: str, entry: TreeEntry) -> tuple[str, ...]:
    kind = entry.dtype if entry.kind == "tensor" and entry.dtype else entry.kind
    if entry.kind != "tensor" and entry.dtype:
        kind = f"{entry.kind} {entry.dtype}"
    value = shape_text(entry.shape) if entry.shape is not None else clean(entry.text or "")
    chunks = count(len(entry.chunks), "chunk") if entry.chunks else ""
    if entry.tie is not None:
        chunks = ", ".join([*([chunks] if chunks else []), f"tie {entry.tie}"])
    nbytes = "" if entry.nbytes is None else size(entry.nbytes)
    return (path, kind, value, nbytes, chunks)
