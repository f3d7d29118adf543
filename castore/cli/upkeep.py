"""Verbs that make, check and clean stores: ``init``, ``fsck``, ``gc``.

``fsck`` works on what cannot be opened and never writes; ``gc`` lets go and removes only what it
shows a reason for.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from castore.cli import output
from castore.cli.common import (
    Verb,
    find_store,
    json_option,
    open_found,
    size_of,
    store_option,
)
from castore.errors import CastoreError, StoreNotFound, UsageError
from castore.reports import FsckReport

if TYPE_CHECKING:
    from castore.cli.damage import Standing

__all__ = ["fsck", "gc", "init"]


# -- init ---------------------------------------------------------------------------------------


@click.command(
    "init",
    cls=Verb,
    short_help="Make an empty store.",
    help="""\
Make an empty store: one folder at PATH, whose parent must exist.

castore.save makes a store by itself; init is for choosing the chunk size and
for finding out beforehand whether a file system will do. It tries what
castore's protocol needs there (exclusive creation, hard links, fsync of a
folder) and refuses, by name, a file system that lacks it. On a store that is
there it changes nothing.

  castore init runs.castore
  castore init fine.castore --chunk-size 1MiB""",
)
@click.argument("path", required=False)
@click.option(
    "--chunk-size",
    type=size_of,
    metavar="SIZE",
    help="At most this much of a tensor is one chunk: a multiple of 4 KiB, up to 64 MiB; "
    "4MiB by default. Fixed for the life of the store.",
)
@json_option
@store_option
def init(path: str | None, chunk_size: int | None, as_json: bool) -> None:
    """Run ``castore init``."""
    from castore.cli.render import size
    from castore.opening import open_store

    where: str | None = path or click.get_current_context().obj
    if not where:
        raise UsageError("where? Say castore init PATH")
    try:
        with open_store(where, readonly=True) as store:
            report = store.info()
        made = report.entries == 0  # its maker was killed before the first entry: finish it
    except StoreNotFound:
        made = True
    if made:
        if chunk_size is None:
            store = open_store(where, create=True)
        else:
            store = open_store(where, create=True, chunk_size=chunk_size)
        with store:
            report = store.info()
    if chunk_size not in (None, report.chunk_size):
        raise UsageError(
            f"{report.path} is a store already, with chunks of {size(report.chunk_size)}: the "
            "chunk size is fixed when a store is made"
        )
    if as_json:
        output.emit("store", report.to_dict(), made=made)
    elif made:
        output.say(f"Initialized empty castore store in {output.clean(report.path)}")
    else:
        output.say(f"{output.clean(report.path)} is a store already: nothing was changed")


# -- fsck ---------------------------------------------------------------------------------------


@click.command(
    "fsck",
    cls=Verb,
    short_help="Check every byte; say what is damaged and what is whole.",
    epilog="""\
Exit: 0 sound; 1 damage found; 2 wrong usage; 3 the store could not be read or
the check not finished; 70 a bug in castore; 130 interrupted.""",
    help="""\
Check everything, and say what each damage means.

Reads every log entry (both copies), every pack that a live checkpoint needs,
and walks every checkpoint from its root to its chunks; believes nothing but
digests. Each damage is told by checkpoint, tensor and rows; then, for each
branch, the newest checkpoint that is whole; the last line is the verdict.
What killed saves left behind is no damage: `castore gc` removes it.

Never writes, works on a store that cannot be opened, and beside training.
Takes as long as reading the store's packs once; --quick reads the metadata
only and takes seconds, but cannot see a flipped bit in a tensor.

With --json one object: the findings, the checkpoints that are whole, and ok.

  castore fsck
  castore fsck --quick && python train.py
  castore fsck --json | jq -r '.findings[] | select(.path).path' | sort -u""",
)
@click.option("--quick", is_flag=True, help="Structure, sizes and metadata; no chunk is read.")
@json_option
@store_option
def fsck(quick: bool, as_json: bool) -> None:
    """Run ``castore fsck``."""
    from castore.cli.progress import progress
    from castore.opening import fsck_path

    where = find_store()
    with progress("checking", lambda: None if quick else _pack_bytes(where)) as advance:
        report = fsck_path(where, quick=quick, progress=advance)
    if as_json:
        output.emit("fsck", report.to_dict(), ok=report.ok)
    else:
        from castore.cli.damage import findings_text, newest_text, verdict

        for line in findings_text(report):
            output.say(line)
        for line in newest_text(report, _standings(where, report)):
            output.say(line)
        output.say(verdict(report))
    if not report.ok:
        click.get_current_context().exit(1)


def _pack_bytes(where: str) -> int | None:
    """How much there is to read, where the store says so: the bar does without, too."""
    from castore.opening import open_store

    with contextlib.suppress(CastoreError, OSError), open_store(where, readonly=True) as store:
        return store.info().pack_bytes
    return None


def _standings(where: str, report: FsckReport) -> dict[str, Standing] | None:
    """Where the newest whole checkpoints stand; None where the log cannot be read."""
    from castore.cli.damage import Standing
    from castore.opening import open_store

    found: dict[str, Standing] = {}
    try:
        store = open_store(where, readonly=True)
    except (CastoreError, OSError):
        return None
    with store, contextlib.suppress(CastoreError, OSError):
        for name, digest in report.newest_whole.items():
            for behind, checkpoint in enumerate(store.log(name) if digest else ()):
                if checkpoint.digest == digest:
                    found[name] = Standing(checkpoint.step, behind)
                    break
    return found


# -- gc -----------------------------------------------------------------------------------------


@click.command(
    "gc",
    cls=Verb,
    short_help="Remove what nothing needs.",
    help="""\
Let go of checkpoints that are on no branch's list and that no tag or pin
holds (moving or deleting a branch or tag leaves such), and remove what no
live checkpoint needs: their packs, and what killed and failed saves left.

Never removes what a live checkpoint needs, nor what a save that is still at
work may go on to need; a writer on this machine is known to be dead or
alive, another machine's counts as dead after a day of silence. A pin whose
process is surely dead is given up. If the log cannot be read, or a needed
pack is not there, nothing is removed (exit 3): `castore fsck` says what is
wrong. To let go of every checkpoint there is takes --all.

Reads the log and lists the packs; opens none. Needs no free space. Run it
whenever you like, beside training too.

  castore gc -n     every checkpoint and pack: kept or not, and why
  castore gc""",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done; do nothing.")
@click.option("--all", "drop_all", is_flag=True, help="Go on even if no checkpoint would be left.")
@json_option
@store_option
def gc(dry_run: bool, drop_all: bool, as_json: bool) -> None:
    """Run ``castore gc``."""
    from castore.cli.render import count, print_table, short, size

    with open_found(readonly=dry_run) as store:
        report = store.gc(dry_run=dry_run, drop_all=drop_all)
    if as_json:
        output.emit("gc", report.to_dict())
        return
    if report.checkpoints:
        print_table(
            ("action", "checkpoint", "step", "reason"),
            [
                (
                    c.action,
                    short(c.digest),
                    "" if c.step is None else str(c.step),
                    output.clean(c.reason),
                )
                for c in report.checkpoints
            ],
            right=[2],
        )
    if report.items:
        print_table(
            ("action", "size", "file", "reason"),
            [
                (item.action, size(item.size), output.clean(item.path), item.reason)
                for item in report.items
            ],
            right=[1],
        )
    would = "would " if report.dry_run else ""
    for name in report.unpinned:
        output.say(f"{would or ''}give up pin {output.clean(name)}: its process is dead")
    if report.let_go:
        output.say(f"{would}let go {count(len(report.let_go), 'checkpoint')}")
    if report.dry_run and report.let_go and not report.live:
        output.note("that is every checkpoint there is: it takes `castore gc --all`")
    verb = "would remove" if report.dry_run else "removed"
    gone = f"{count(report.removed_files, 'file')}, {size(report.removed_bytes)}"
    output.say(
        f"{verb} {gone if report.removed_files else 'nothing'}; "
        f"{count(report.live, 'live checkpoint')} "
        f"{'needs' if report.live == 1 else 'need'} {count(report.needed_packs, 'pack')}"
    )
