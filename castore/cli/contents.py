"""Verbs that look into contents: ``diff``, ``find-chunk``, ``stats``; and ``show`` of one tensor.

They open the store readonly and change nothing.  ``diff`` and ``show`` read chunks, unless told not
to; numpy is imported only then, and torch only for dtypes that numpy has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from castore.cli import output
from castore.cli.common import Verb, json_option, open_found, store_option
from castore.errors import BadRevision, UsageError

if TYPE_CHECKING:
    from castore.reports import DiffReport, ValueReport
    from castore.store import Store

__all__ = ["describe", "diff", "find_chunk", "print_value", "stats"]

_DAMAGE_EXITS = """\
Exit: 0 done; 1 what it had to read is damaged; 2 wrong usage, unknown or
ambiguous revision; 3 the store is unreadable; 70 a bug in castore; 130
interrupted."""


# -- diff ---------------------------------------------------------------------------------------

_CUT = "castore.diff.cut"


class _DiffVerb(Verb):
    """Notes where ``--`` stands: click forgets it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_CUT] = len(self._words(ctx, args[:at]))
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> tuple[str, ...]:
        """The words among arguments that are no options."""
        values, _rest, _order = self.make_parser(ctx).parse_args(list(args))
        found: Any = values.get("words") or ()
        return tuple(found)


@click.command(
    "diff",
    cls=_DiffVerb,
    short_help="How one state differs from another.",
    epilog="""\
Exit: 0 done; 1 what it had to read is damaged, or with --exit-code or -q:
something differs; 2 wrong usage, unknown or ambiguous revision; 3 the store
is unreadable; 70 a bug in castore; 130 interrupted.""",
    help="""\
Show how the state of B differs from that of A.

A..B says the same as A B. An end left out of it is main; A alone goes from A
to the head of its branch (of main, if A is a tag or a digest), as git diff
goes from a commit to what you have now: `castore diff main~1`, or nothing at
all, is what main's last save changed. REV:PATH compares parts of states:
`castore diff main:ema main:model`. With PATH... only what lies at or below
these key paths is told ('*' stays within one key, '**' crosses); '--' before
them keeps a path from being read as a revision.

Letters as git's: A added, D removed, M changed, T of another type (kind,
dtype or shape). Of a tensor that kept dtype and shape: how many items differ
in a bit; L2, the norm of the change; relative, that by the norm of what was;
max, the greatest change of an item; and how many of its chunks are shared.
Norms are about the items that are finite on both sides; NaNs and infinities
are counted. Entries of dicts are matched by key, of lists by place.

Equal subtrees are passed over by their digest, and chunks that both share are
not read, so a frozen base costs nothing: 'relative' is to the chunks that were
read, unless --whole-norm has the rest read too. Every chunk that is read is
hashed first. --stat, --name-status and --name-only read none.

With --json: the totals, then one line an entry.

  castore diff main~1
  castore diff main@step=1000..main@step=2000 model/layers.0
  castore diff --stat v1 main
  castore diff -q main~1 main 'optimizer/**' || echo it moved""",
)
@click.argument("words", nargs=-1, metavar="[A [B] | A..B] [--] [PATH...]")
@click.option("--stat", is_flag=True, help="How many bytes lie in chunks that differ; reads none.")
@click.option("--name-status", is_flag=True, help="Letter and key path alone.")
@click.option("--name-only", is_flag=True, help="Key paths alone.")
@click.option("--exit-code", is_flag=True, help="Exit 1 if something differs.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; --exit-code.")
@click.option("--whole-norm", is_flag=True, help="Relative to the norm of the whole tensor.")
@json_option
@store_option
@click.pass_context
def diff(
    ctx: click.Context,
    words: tuple[str, ...],
    stat: bool,
    name_status: bool,
    name_only: bool,
    exit_code: bool,
    quiet: bool,
    whole_norm: bool,
    as_json: bool,
) -> None:
    """Run ``castore diff``."""
    from castore.cli.progress import progress

    if stat + name_status + name_only > 1:
        raise UsageError("--stat, --name-status and --name-only: one of them")
    values = not (stat or name_status or name_only or quiet)
    with open_found() as store, progress("comparing", lambda: None) as advance:
        a, b, paths = _meant(store, words, ctx.meta.get(_CUT))
        report = store.diff(
            a,
            b,
            paths=paths,
            values=values,
            whole_norm=whole_norm,
            first=quiet,
            progress=advance,
        )
    if not quiet:
        _print_diff(report, "stat" if stat else "status" if name_status else
                    "names" if name_only else "values", as_json)  # fmt: skip
    if (quiet or exit_code) and not report.same:
        ctx.exit(1)


def _meant(
    store: Store, words: tuple[str, ...], cut: int | None
) -> tuple[str, str | None, tuple[str, ...]]:
    """Revisions and key paths among the words: revisions first, paths at the latest after ``--``.

    Raises:
        BadRevision: the first word is no revision.
    """
    revs, paths = (words, ()) if cut is None else (words[:cut], words[cut:])
    if not revs:
        return "main~1", None, paths
    first, rest = revs[0], revs[1:]
    if ".." in first.partition(":")[0] or not rest:
        return first, None, (*rest, *paths)
    if cut is not None:
        if len(rest) > 1:
            raise UsageError(f"two revisions at most, not {len(revs)}")
        return first, rest[0], paths
    try:
        store.log(rest[0].partition(":")[0], limit=1)
    except BadRevision:
        if ":" in rest[0]:
            raise
        return first, None, rest
    return first, rest[0], rest[1:]


def _print_diff(report: DiffReport, how: str, as_json: bool) -> None:
    from castore.cli.render import print_table
    from castore.cli.render_contents import (
        DIFF_HEADERS,
        STAT_HEADERS,
        diff_rows,
        diff_stat_rows,
        diff_summary,
    )

    if as_json:
        whole = report.to_dict()
        entries = whole.pop("entries")
        output.emit("diff", whole)
        for entry in entries:
            output.emit("difference", entry)
    elif how in ("status", "names"):
        for found in report.entries:
            path = output.clean(found.path).replace("\n", "\\n")
            output.say(path if how == "names" else f"{found.status}\t{path}")
    elif report.entries and how == "stat":
        print_table(STAT_HEADERS, diff_stat_rows(report), right=[3, 4])
        output.say(diff_summary(report, stat=True))
    elif report.entries:
        print_table(DIFF_HEADERS, diff_rows(report))
        output.say(diff_summary(report))


# -- show ---------------------------------------------------------------------------------------


def describe(store: Store, rev: str, *, stats: bool) -> ValueReport:
    """One value closely, with a bar while its chunks are read."""
    from castore.cli.progress import progress

    nbytes = None
    if stats:
        nbytes = store.describe(rev, stats=False).nbytes
    with progress("reading", lambda: nbytes) as advance:
        return store.describe(rev, stats=stats, progress=advance)


def print_value(report: ValueReport) -> None:
    """A tensor, array or long value: what is known of it, its numbers, its chunks."""
    from castore.cli.render import print_fields
    from castore.cli.render_contents import value_fields, where_lines

    print_fields(value_fields(report))
    for line in where_lines(report):
        output.say(line)


# -- find-chunk ---------------------------------------------------------------------------------


@click.command(
    "find-chunk",
    cls=Verb,
    short_help="Who has a chunk: packs, tensors, rows, checkpoints.",
    epilog="""\
Exit: 0 done; 1 a copy is damaged or lost, or damage kept part of the store
from being searched; 2 wrong usage, no such digest, or an ambiguous one; 3 the
store is unreadable; 70 a bug in castore; 130 interrupted.""",
    help="""\
Say what each DIGEST names and who has it: what to do with a damage report.

Of a chunk: where its copies lie, and whether each is whole (it is read and
hashed); which tensors hold it, and in which rows; and which checkpoints, as
first .. last of those that follow one another on a branch. Of a tree, a chunk
list or a checkpoint: what it is, and the checkpoints that reach it. Six
digits or more will do.

Looks at all live checkpoints, and reads their metadata once, however much of
it they share. The index is not asked.

  castore find-chunk 3f9a1c07aa12
  castore fsck --json | jq -r '.findings[].digest // empty' | sort -u |
      xargs castore find-chunk""",
)
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@json_option
@store_option
@click.pass_context
def find_chunk(ctx: click.Context, digests: tuple[str, ...], as_json: bool) -> None:
    """Run ``castore find-chunk``."""
    from castore.cli.render_contents import found_lines

    with open_found() as store:
        found = store.find_chunk(*digests)
    for report in found:
        if as_json:
            output.emit("found", report.to_dict())
            continue
        for line in found_lines(report):
            output.say(line)
    unread = list(dict.fromkeys(text for report in found for text in report.unread))
    for text in () if as_json else unread:
        output.note(f"castore: not searched: {output.clean(text)}")
    if unread or any(not r.copies or not all(c.whole for c in r.copies) for r in found):
        ctx.exit(1)


# -- stats --------------------------------------------------------------------------------------


@click.command(
    "stats",
    cls=Verb,
    short_help="What checkpoints and branches take.",
    epilog=_DAMAGE_EXITS,
    help="""\
Show what the whole store takes, branch by branch; or with REV or --by what
the values of one checkpoint take (of main, if you name none).

logical   what the states hold; a tied tensor counts once
unique    their different chunks, and what is small enough to lie in the tree
stored    what these chunks take in the packs
shared    what of them the parent checkpoint has too
packs     sizes of the packs that a branch's checkpoints need
its own   sizes of those that no other branch needs

--by role goes by the words of key paths: rng, random, seed, generator are
rng; optimizer, optim, opt, adam, sgd, exp_avg, momentum_buffer and such are
optimizer; model, module, net, weight, bias, params, ema and such are weights;
the first component that tells decides, and a Parameter counts as weights
where none does. All else is other.

Reads metadata only, no tensor. With --json one object.

  castore stats
  castore stats main --by tensor
  castore stats main:optimizer --by dtype""",
)
@click.argument("rev", required=False, metavar="[REV[:PATH]]")
@click.option(
    "--by",
    type=click.Choice(["tensor", "role", "dtype"]),
    help="What is told of together; role by default.",
)
@json_option
@store_option
def stats(rev: str | None, by: str | None, as_json: bool) -> None:
    """Run ``castore stats``."""
    from castore.cli.render import print_fields, size
    from castore.cli.render_contents import (
        STATS_HEADERS,
        STORE_HEADERS,
        stats_rows,
        store_fields,
        store_rows,
    )

    with open_found() as store:
        if rev is None and by is None:
            of_store = store.stats()
            if as_json:
                output.emit("store-stats", of_store.to_dict())
                return
            if of_store.branches:
                _table(STORE_HEADERS, store_rows(of_store))
                output.say()
            print_fields(store_fields(of_store))
            return
        report = store.stats("main" if rev is None else rev, by=by)
    if as_json:
        output.emit("checkpoint-stats", report.to_dict())
        return
    _table((report.by, *STATS_HEADERS[1:]), stats_rows(report))
    output.say(f"metadata: {size(report.metadata_bytes)} in its meta packs")
    if report.missing_chunks:
        output.note(f"castore: {report.missing_chunks:,} chunks are in no pack that can be read")


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A name and numbers a row, under headings wherever it is printed: the numbers need them."""
    from castore.cli.render import plain_table, print_table

    right = set(range(1, len(headers)))
    if output.terminal():
        print_table(headers, rows, right=right)
        return
    for line in plain_table([headers, *rows], right):
        output.say(line)
