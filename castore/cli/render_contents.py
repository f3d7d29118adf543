"""What lies in states, as text: differences, a tensor closely, who has a chunk, what it all takes.

Pure: takes reports and gives rows and lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from castore.cli.output import clean, paint
from castore.cli.render import count, rows_text, shape_text, short, size
from castore.reports import (
    CheckpointSpan,
    CheckpointStats,
    ChunkPlaces,
    DiffEntry,
    DiffReport,
    FoundDigest,
    FoundPlace,
    StatsRow,
    StoreStats,
    TensorDifference,
    TensorStats,
    ValueReport,
)

__all__ = [
    "DIFF_HEADERS",
    "STATS_HEADERS",
    "STAT_HEADERS",
    "STORE_HEADERS",
    "diff_rows",
    "diff_stat_rows",
    "diff_summary",
    "found_lines",
    "stats_rows",
    "store_fields",
    "store_rows",
    "value_fields",
    "where_lines",
]

#: Of a longer list of chunks, people see the first and the last.
_HEAD, _TAIL = 12, 4
#: Of a value's text.
_TEXT = 60


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _share(share: float) -> str:
    """Never 0 % of something, nor 100 % of not all."""
    if 0 < share < 1:
        share = min(max(share, 1e-6), 0.9999)
    return f"{100 * share:.4g} %"


def _path(path: str) -> str:
    return clean(path) or "(root)"


# -- differences ----------------------------------------------------------------------------------

DIFF_HEADERS = ("", "path", "type", "what", "change", "chunks")
STAT_HEADERS = ("", "path", "type", "differs", "of", "")
_BAR = 20


def diff_rows(report: DiffReport) -> Iterator[tuple[str, ...]]:
    """An entry a row: status, path, type, what differs, by how much, shared chunks."""
    for entry in report.entries:
        told = (_type(entry), _what(entry), _change(entry.values), _chunks(entry))
        yield (entry.status, _path(entry.path), *told)


def _change(values: TensorDifference | None) -> str:
    if values is None or values.l2 is None:
        return ""
    told = f"L2 {_number(values.l2)}, max {_number(values.max_abs)}"
    return told if values.relative is None else f"{told}, relative {_number(values.relative)}"


def _type(entry: DiffEntry) -> str:
    new = _one_type(entry.kind, entry.dtype)
    old = _one_type(entry.old_kind, entry.old_dtype)
    return new if not old or old == new else old if not new else f"{old} -> {new}"


def _one_type(kind: str | None, dtype: str | None) -> str:
    if kind is None:
        return ""
    return clean(dtype if kind == "tensor" and dtype else f"{kind} {dtype}" if dtype else kind)


def _what(entry: DiffEntry) -> str:
    new = _content(entry.shape, entry.text, entry.nbytes)
    old = _content(entry.old_shape, entry.old_text, entry.old_nbytes)
    if entry.status == "A":
        return new
    if entry.status == "D":
        return old
    parts = []
    if entry.values is not None:
        parts.append(_values(entry.values))
    elif "values" in entry.changes and entry.status == "M":
        parts.append(f"{size(entry.differing_bytes)} differ")
    elif "shape" in entry.changes or "value" in entry.changes or "kind" in entry.changes:
        if new != old:
            parts.append(f"{old} -> {new}")
        elif new:
            parts.append(new)
    elif entry.status == "T":
        parts.append(new)
    parts += [_WORDS[change] for change in entry.changes if change in _WORDS and change != "values"]
    return ", ".join(parts) or "changed"


_WORDS = {
    "flags": "Parameter or requires_grad",
    "tie": "tied otherwise",
    "order": "order of keys",
    "factory": "factory",
}


def _content(shape: Sequence[int] | None, text: str | None, nbytes: int | None) -> str:
    if shape is not None:
        return shape_text(shape)
    if text is not None:
        text = clean(text).replace("\n", "\\n")
        return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    return "" if nbytes is None else size(nbytes)


def _values(values: TensorDifference) -> str:
    told = f"{values.changed:,} of {values.items:,} ({_share(values.share)})"
    for name, before, after in (
        ("NaN", values.nan_before, values.nan_after),
        ("inf", values.inf_before, values.inf_after),
    ):
        if before or after:
            told += f", {name} {before:,} -> {after:,}"
    return told


def _chunks(entry: DiffEntry) -> str:
    if entry.status in "AD" or not entry.chunks:
        return ""
    return f"{entry.shared_chunks:,} of {entry.chunks:,} shared"


def diff_stat_rows(report: DiffReport) -> Iterator[tuple[str, ...]]:
    """An entry a row: how much of it lies in chunks that differ, with a bar."""
    for entry in report.entries:
        whole = entry.nbytes if entry.status != "D" else entry.old_nbytes
        differs = entry.differing_bytes if entry.status != "D" else whole or 0
        bar = ""
        if whole and differs:
            bar = {"A": "+", "D": "-"}.get(entry.status, "#") * max(1, _BAR * differs // whole)
        yield (
            entry.status,
            _path(entry.path),
            _type(entry),
            size(differs) if whole else "",
            size(whole) if whole else "",
            bar,
        )


def diff_summary(report: DiffReport, *, stat: bool = False) -> str:
    """The last line: how many of each, and how much was looked at."""
    told = [
        f"{n:,} {word}"
        for n, word in (
            (report.changed, "changed"),
            (report.added, "added"),
            (report.removed, "removed"),
            (report.retyped, "of another type"),
        )
        if n
    ]
    if stat:
        differing = sum(entry.differing_bytes for entry in report.entries)
        return f"{', '.join(told)}; {size(differing)} in chunks that differ"
    part = any(e.values is not None and e.values.compared < e.values.items
               and not e.values.whole_norm for e in report.entries)  # fmt: skip
    note = "; relative: to the chunks that differ (--whole-norm: to the tensor)" if part else ""
    return f"{', '.join(told)}; {size(report.bytes_read)} read and hashed{note}"


# -- one tensor -----------------------------------------------------------------------------------


def value_fields(report: ValueReport) -> Iterator[tuple[str, str]]:
    """What is known of a tensor, array or long value, as name and value."""
    yield "Path", clean(report.path) or "(root)"
    yield "Kind", report.kind
    if report.dtype is not None:
        yield "Dtype", clean(report.dtype)
    if report.shape is not None:
        yield "Shape", shape_text(report.shape)
    if report.nbytes is not None:
        exact = f"{report.nbytes:,} ({size(report.nbytes)})" if report.nbytes >= 1024 else ""
        yield "Bytes", exact or str(report.nbytes)
    if report.tied_to:
        yield "Tied to", ", ".join(_path(other) for other in report.tied_to)
    if report.stats is not None:
        yield from _stats_fields(report.stats)
    yield "Chunks", f"{len(report.chunks):,}" if report.chunks else "none: it lies inside its tree"


def _stats_fields(stats: TensorStats) -> Iterator[tuple[str, str]]:
    yield "Items", f"{stats.items:,}"
    if stats.min is not None:
        yield "Min", _number(stats.min)
        yield "Max", _number(stats.max)
    if stats.mean is not None:
        imaginary = "" if stats.mean_imag is None else f" {stats.mean_imag:+.6g}i"
        yield "Mean", _number(stats.mean) + imaginary
        yield "Std", _number(stats.std)
        yield "L2 norm", _number(stats.norm)
        if stats.min is None:
            yield "Max abs", _number(stats.max_abs)
    yield "Zeros", _of(stats.zeros, stats.items)
    yield "NaN", _of(stats.nan, stats.items)
    yield "Inf", _of(stats.inf, stats.items)


def _of(n: int, whole: int) -> str:
    return f"{n:,} ({_share(n / whole)})" if n else "none"


def where_lines(report: ValueReport) -> Iterator[str]:
    """A line a chunk: digest, rows, size, where; of a long list the first and the last."""
    where = report.where
    is_array = report.shape is not None
    if len(where) <= _HEAD + _TAIL + 1:
        yield from (_where_line(chunk, is_array) for chunk in where)
        return
    yield from (_where_line(chunk, is_array) for chunk in where[:_HEAD])
    yield f"    ... {len(where) - _HEAD - _TAIL:,} more; --json has all"
    yield from (_where_line(chunk, is_array) for chunk in where[-_TAIL:])


def _where_line(chunk: ChunkPlaces, is_array: bool) -> str:
    rows = f"{rows_text(chunk.rows)}, " if is_array else ""
    places = "; ".join(f"packs/{p.pack} at {p.offset:,} {p.codec}" for p in chunk.places)
    lost = paint("in no pack that can be read", "red")
    return f"    {chunk.digest}  {rows}{size(chunk.nbytes)}  {places or lost}"


# -- who has a chunk ------------------------------------------------------------------------------

_KINDS = {
    "tree": "a tree: one container of a state, or a part of one",
    "chunks": "a list of chunks",
    "checkpoint": "a checkpoint",
    "table": "a copy of a pack's table",
    "intent": "what a save was about to enter into the log",
}


def found_lines(report: FoundDigest) -> Iterator[str]:
    """What a digest names, its copies, its places, its checkpoints."""
    length = f" of {size(report.copies[0].length)}" if report.copies else ""
    what = _KINDS.get(report.kind, f"a chunk{length}")
    yield f"{paint(report.digest, 'yellow')} is {what}"
    for copy in report.copies:
        known = ", known as damaged" if copy.known_damage else ""
        if copy.whole:
            state = f"{paint('whole', 'green')}{known}"
        else:
            found = (
                short(copy.found or "") if len(copy.found or "") == 64 else clean(copy.found or "")
            )
            state = f"{paint('DAMAGED', 'red')}{known}: found {found}"
        yield (
            f"    packs/{copy.pack} at {copy.offset:,}, {count(copy.stored, 'byte')}, "
            f"{copy.codec}: {state}"
        )
    if not report.copies:
        yield f"    {paint('in no pack that can be read', 'red')}"
    for place in report.places:
        yield f"  {_place(place)}"
        yield from (f"    {_span(span)}" for span in place.checkpoints)
    if not report.places:
        if not report.checkpoints:
            yield "  no live checkpoint reaches it"
        yield from (f"    {_span(span)}" for span in report.checkpoints)


def _place(place: FoundPlace) -> str:
    what = place.kind if place.kind != "tensor" or place.dtype is None else place.dtype
    shape = f" {shape_text(place.shape)}" if place.shape is not None else ""
    where = ""
    if place.rows is not None:
        where = f": {rows_text(place.rows)}"
    elif place.chunk is not None:
        where = f": chunk {place.chunk}"
    return f"{_path(place.path)} ({clean(what)}{shape}){where}"


def _span(span: CheckpointSpan) -> str:
    branch = "on no branch" if span.branch is None else clean(span.branch)
    first = short(span.first) + _step(span.first_step)
    if span.count == 1:
        return f"{branch}: {first}"
    return (
        f"{branch}: {first} .. {short(span.last)}{_step(span.last_step)}, "
        f"{count(span.count, 'checkpoint')}"
    )


def _step(step: int | None) -> str:
    return "" if step is None else f" (step {step})"


# -- what it takes --------------------------------------------------------------------------------

STATS_HEADERS = ("", "count", "items", "logical", "unique", "stored", "shared")
STORE_HEADERS = ("branch", "checkpoints", "logical", "unique", "packs", "its own")


def stats_rows(report: CheckpointStats) -> Iterator[tuple[str, ...]]:
    """A group a row, the total last."""
    by_tensor = report.by == "tensor"
    for row in report.rows:
        yield _stats_row(row, _path(row.name) if by_tensor else clean(row.name))
    yield _stats_row(report.total, "total")


def _stats_row(row: StatsRow, name: str) -> tuple[str, ...]:
    if row.tied:
        name += " (tied)"
    return (
        name,
        f"{row.count:,}",
        f"{row.items:,}",
        size(row.logical_bytes),
        size(row.unique_bytes),
        size(row.stored_bytes),
        "?" if row.shared_bytes is None else size(row.shared_bytes),
    )


def store_rows(report: StoreStats) -> Iterator[tuple[str, ...]]:
    """A branch a row."""
    for branch in report.branches:
        yield (
            "(on no branch)" if branch.branch is None else clean(branch.branch),
            f"{branch.checkpoints:,}",
            size(branch.logical_bytes),
            size(branch.unique_bytes),
            size(branch.pack_bytes),
            size(branch.own_bytes),
        )


def store_fields(report: StoreStats) -> Iterable[tuple[str, str]]:
    """What all branches come to."""
    ratio = "" if report.ratio is None else f", {report.ratio:.2f} times as much"
    yield "Checkpoints", f"{report.checkpoints:,} live"
    yield "Logical", f"{size(report.logical_bytes)} in their states"
    yield "Unique", f"{size(report.unique_bytes)} in different chunks"
    yield (
        "Packs",
        f"{size(report.pack_bytes)}; they hold states of {size(report.logical_bytes)}{ratio}",
    )
    yield "Chunks", f"{size(report.stored_bytes)} as they are stored"
    yield "Metadata", size(report.metadata_bytes)
    yield "Dead", f"{size(report.dead_bytes)} in these packs that nothing live needs"
    yield "Debris", f"{size(report.debris_bytes)} in packs that nothing live needs"
    if report.missing_chunks:
        yield "Missing", paint(count(report.missing_chunks, "chunk"), "red")
