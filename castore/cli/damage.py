"""What fsck found, as text: which checkpoints, tensors and rows, then files, then the verdict.

Findings come one a damaged place and checkpoint; people ask what a damage means.  So checkpoints
hit in the same places are told of together, neighbouring rows are joined, and a damaged record
that was named with its tensor is not named a second time as a place in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from castore.cli.output import clean, paint
from castore.cli.render import count, rows_text, short, size
from castore.reports import Finding, FsckReport

__all__ = ["Standing", "findings_text", "newest_text", "verdict"]

#: More places of one group than this are left to ``--json``.
MOST = 40


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a branch's newest whole checkpoint stands in its list, as far as the log tells.

    Attributes:
        step: its step.
        behind: how many checkpoints of the branch are newer.
    """

    step: int | None
    behind: int


# -- findings -----------------------------------------------------------------------------------


def findings_text(report: FsckReport) -> Iterator[str]:
    """Every finding: damage by checkpoint, other damage by file, then what is merely told."""
    of_checkpoints: dict[str, list[Finding]] = {}
    of_files = []
    named = {(f.file, f.digest) for f in report.damage if f.checkpoint and f.digest}
    for finding in report.damage:
        if finding.checkpoint:
            of_checkpoints.setdefault(finding.checkpoint, []).append(finding)
        elif finding.digest is None or (finding.file, finding.digest) not in named:
            of_files.append(finding)
    groups: dict[tuple[str, ...], list[list[Finding]]] = {}
    for findings in of_checkpoints.values():
        groups.setdefault(tuple(_places(findings)), []).append(findings)
    for places, members in groups.items():
        for findings in members:
            yield _subject(findings[0])
        yield from (f"    {line}" for line in places)
    if of_files:
        yield paint("Damaged files", "red")
        yield from (f"    {clean(_file_line(f))}" for f in of_files)
    for finding in report.findings:
        if finding.severity == "warning":
            yield f"{paint('warning:', 'yellow')} {clean(finding.detail)}"
        elif finding.severity != "damage":
            yield f"note: {clean(finding.detail)}"


def _subject(finding: Finding) -> str:
    step = "" if finding.step is None else f", step {finding.step}"
    branch = clean(finding.branch or "")
    return paint(f"Damaged checkpoint {short(finding.checkpoint or '')}", "red") + (
        f" ({branch}{step})"
    )


def _places(findings: Sequence[Finding]) -> Iterator[str]:
    """The damaged places of one checkpoint, neighbouring rows joined."""
    runs: list[list[Finding]] = []
    for finding in findings:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and finding.rows is not None
            and last.rows is not None
            and (last.path, last.code, last.file) == (finding.path, finding.code, finding.file)
            and finding.rows[0] <= last.rows[1]
        ):
            runs[-1].append(finding)
        else:
            runs.append([finding])
    for run in runs[:MOST]:
        yield from _place(run)
    if len(runs) > MOST:
        yield f"... and {count(len(runs) - MOST, 'place')} more; --json has all"


def _place(run: Sequence[Finding]) -> Iterator[str]:
    first, last = run[0], run[-1]
    where = ""
    if first.path is not None:
        where = clean(first.path) or "(root)"
        if first.rows is not None and last.rows is not None:
            where += f" {rows_text((first.rows[0], last.rows[1]))}"
        where += ": "
    what = first.code.replace("-", " ")
    if len(run) > 1:
        # Only what has rows is joined, and that is chunks.
        of_chunks = what.endswith(" chunk")
        what = f"{len(run):,} {what}s" if of_chunks else f"{what} ({len(run):,} chunks)"
    elif first.digest:
        what += f" {short(first.digest)}"
    yield where + what
    if first.file is None and first.code not in ("malformed-object",):
        yield "    in no pack"
    elif first.file is not None:
        line = f"    {first.file}"
        if first.offset is not None:
            line += f" at offset {first.offset:,}" + (" and on" if len(run) > 1 else "")
        yield clean(line + (_comparison(first) if len(run) == 1 else ""))
    if first.code == "malformed-object":
        yield f"    {clean(first.detail)}"


def _comparison(finding: Finding) -> str:
    parts = [
        f"{word} {_value(value)}"
        for word, value in (("expected", finding.expected), ("found", finding.found))
        if value
    ]
    return f": {', '.join(parts)}" if parts else ""


def _value(text: str) -> str:
    is_digest = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return short(text) if is_digest else text


def _file_line(finding: Finding) -> str:
    if finding.file is None or finding.file.removeprefix("packs/") in finding.detail:
        return finding.detail
    offset = "" if finding.offset is None else f" at offset {finding.offset:,}"
    return f"{finding.file}{offset}: {finding.detail}{_comparison(finding)}"


# -- the end ------------------------------------------------------------------------------------


def newest_text(report: FsckReport, standings: Mapping[str, Standing] | None) -> Iterator[str]:
    """A line a branch: the newest checkpoint that is whole.

    Args:
        report: what fsck found.
        standings: branch -> where that checkpoint stands; None where the log breaks off, so that
            there may be newer ones.
    """
    if standings is None and report.newest_whole:
        yield paint("The log breaks off: what follows is as far as it could be followed", "red")
    width = max((len(clean(name)) for name in report.newest_whole), default=0)
    for name, digest in report.newest_whole.items():
        lead = f"newest whole on {clean(name).ljust(width)}  "
        if digest is None:
            yield lead + paint("none", "red")
            continue
        standing = (standings or {}).get(name)
        line = lead + short(digest)
        if standing is not None:
            if standing.step is not None:
                line += f" (step {standing.step})"
            line += f", {standing.behind} behind its head" if standing.behind else ", its head"
        yield line


def verdict(report: FsckReport) -> str:
    """The last line: sound or damaged, and how far was looked."""
    looked = f"{count(report.checkpoints, 'checkpoint')}, {count(report.packs, 'pack')}"
    read = f"{size(report.bytes_read)} read and hashed"
    if report.level == "quick":
        read = f"structure and metadata only, {read}; a full fsck reads the chunks too"
    if report.ok:
        return f"{paint('sound', 'green', bold=True)}: {looked}; {read}"
    hit = report.checkpoints - len(report.whole)
    named = {f.checkpoint for f in report.damage if f.checkpoint}
    hit = max(hit, len(named))
    what = (
        f"{hit:,} of {count(report.checkpoints, 'checkpoint')} hit"
        if hit
        else f"no checkpoint is hit, {count(report.checkpoints, 'is', 'are')} whole"
    )
    return f"{paint('DAMAGED', 'red', bold=True)}: {what}; {looked}; {read}"
