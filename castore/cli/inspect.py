"""Verbs that look: ``log``, ``show``, ``rev-parse``, ``info``.

They open the store readonly and change nothing.  ``log`` reads the log alone, no pack; none of them
imports torch or numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click
from click.core import ParameterSource

from castore.cli import output
from castore.cli.common import (
    DAMAGE_EXITS,
    REVISIONS,
    Verb,
    complete_refs,
    date_of,
    json_option,
    no_path,
    open_found,
    refs_of,
    short_digests,
    store_option,
)
from castore.cli.dates import DATES
from castore.errors import UsageError
from castore.reports import Checkpoint, Report

if TYPE_CHECKING:
    from castore.store import Store

__all__ = ["Resolved", "info", "log", "rev_parse", "show"]


# -- log ----------------------------------------------------------------------------------------


class _LogVerb(Verb):
    """git's habit: ``log -5`` is ``log -n 5``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        args = [
            f"-n{a[1:]}" if i < end and re.fullmatch(r"-\d+", a) else a for i, a in enumerate(args)
        ]
        return super().parse_args(ctx, args)


@click.command(
    "log",
    cls=_LogVerb,
    short_help="A branch's checkpoints, newest first.",
    help=f"""\
List a branch's checkpoints, newest first (of main, if you name none).

{REVISIONS}
From a REV that is not a branch's head it goes back from there.

{DATES}

Reads the log alone: no pack is opened, so it costs the same for a state of
a megabyte and of a terabyte. New is what was new to the store when the
checkpoint was saved; Size is the whole state.

  castore log                  everything on main
  castore log retry -5         the newest five of branch retry
  castore log main@step=1000   from step 1000 back
  castore log --since yesterday --oneline
  castore log --all --oneline | head
  castore log --json | jq -r 'select(.step % 100 == 0).digest'""",
)
@click.argument("rev", default="main", shell_complete=complete_refs)
@click.option("--oneline", is_flag=True, help="One line a checkpoint.")
@click.option(
    "-n",
    "--max-count",
    "limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="At most N (also -N), of those that the dates leave.",
)
@click.option(
    "--since", "--after", type=date_of, metavar="DATE", help="Only what was saved then or later."
)
@click.option(
    "--until", "--before", type=date_of, metavar="DATE", help="Only what was saved then or before."
)
@click.option("--reverse", is_flag=True, help="Oldest first, of those that are listed.")
@click.option(
    "--all", "everything", is_flag=True, help="What any branch or tag lists, in the log's order."
)
@json_option
@store_option
def log(
    rev: str,
    oneline: bool,
    limit: int | None,
    since: int | None,
    until: int | None,
    reverse: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Run ``castore log``."""
    from castore.cli.render import checkpoint_block, one_line

    dated = since is not None or until is not None
    named = click.get_current_context().get_parameter_source("rev")
    if everything and named is not ParameterSource.DEFAULT:
        raise UsageError("--all lists what every branch and tag does: it takes no revision")
    with open_found() as store:
        if everything:
            listed = _of_all_refs(store)
        else:
            listed = store.log(no_path(rev, "log"), limit=None if dated else limit)
        refs = refs_of(store)
    if dated:
        listed = [
            c
            for c in listed
            if (since is None or c.time >= since) and (until is None or c.time <= until)
        ]
    listed = listed[:limit]
    for i, checkpoint in enumerate(reversed(listed) if reverse else listed):
        if as_json:
            branches, tags = refs.get(checkpoint.digest, ((), ()))
            output.emit("checkpoint", checkpoint.to_dict(), branches=branches, tags=tags)
        elif oneline:
            output.say(one_line(checkpoint, refs))
        else:
            if i:
                output.say()
            for line in checkpoint_block(checkpoint, refs):
                output.say(line)


def _of_all_refs(store: Store) -> list[Checkpoint]:
    """What the logs of all branches and tags list, newest first by the log's order."""
    found = {c.digest: c for ref in store.refs() for c in store.log(ref.name)}
    return sorted(found.values(), key=lambda c: c.seq, reverse=True)


# -- show ---------------------------------------------------------------------------------------


@click.command(
    "show",
    cls=Verb,
    short_help="A checkpoint and its tree, or one value closely.",
    epilog=DAMAGE_EXITS,
    help=f"""\
Show a checkpoint and the tree of its state, or what lies at one key path.

{REVISIONS}
After a colon comes a key path: dict keys and list numbers joined by '/'
('~1' is a '/' in a key, '~0' a '~'). At a container its subtree is listed;
of a tensor or array come dtype, shape, bytes, what it is tied to, what its
values come to (least, greatest, mean, standard deviation, norm, NaNs, ...),
and its chunks with the packs they lie in; of any other value the value
itself. A long list of plain numbers is told in
one line, as is an OrderedDict's metadata; name it, and it is listed.

Reads the checkpoint's metadata, a thousandth of its bytes, and no tensor but
the one that is named: its chunks are read and hashed, unless --no-stats.
With --json: the checkpoint, then one line a value; for REV:PATH the values
alone.

  castore show                        main's head
  castore show main~1
  castore show main:optimizer/param_groups/0
  castore show main:model/layers.0.weight
  castore show --no-stats main:model/layers.0.weight
  castore show v1:step                just the number""",
)
@click.argument("rev", default="main", metavar="[REV[:PATH]]", shell_complete=complete_refs)
@click.option("--no-stats", is_flag=True, help="Of a tensor, do not read its chunks.")
@json_option
@store_option
def show(rev: str, no_stats: bool, as_json: bool) -> None:
    """Run ``castore show``."""
    from castore.cli.contents import describe, print_value
    from castore.cli.render import checkpoint_block, print_table, tree_rows

    base, colon, path = rev.partition(":")
    with open_found() as store:
        checkpoint = store.resolve(base)
        # By digest: a save that comes between must not give one's header and another's tree.
        entries = store.tree(f"{checkpoint.digest}{colon}{path}")
        value = None
        if colon and len(entries) == 1 and (entries[0].chunks or entries[0].shape is not None):
            value = describe(store, f"{checkpoint.digest}:{path}", stats=not no_stats)
        refs = refs_of(store)
    if as_json:
        if not colon:
            branches, tags = refs.get(checkpoint.digest, ((), ()))
            output.emit("checkpoint", checkpoint.to_dict(), branches=branches, tags=tags)
        for entry in entries if value is None else [value]:
            output.emit("value", entry.to_dict())
        return
    if value is not None:
        print_value(value)
        return
    if colon and len(entries) == 1 and entries[0].text is not None:
        output.say(output.clean(entries[0].text))
        return
    if not colon:
        for line in checkpoint_block(checkpoint, refs, details=True):
            output.say(line)
        output.say()
    rows = tree_rows(entries, whole=bool(colon))
    print_table(("path", "type", "value", "size", "chunks"), rows, right=[3])


# -- rev-parse ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolved(Report):
    """What a revision names."""

    rev: str
    digest: str


class _RevParseVerb(Verb):
    """git's habit: ``--short`` may stand alone, and then takes no value from the next word."""

    bare: ClassVar[Mapping[str, str]] = {"--short": "12"}


@click.command(
    "rev-parse",
    cls=_RevParseVerb,
    short_help="The digest that a revision names.",
    epilog=DAMAGE_EXITS,
    help=f"""\
Print the digest of the checkpoint that each REV names, one a line; of
REV:PATH the digest of what lies there, as ls-tree has it.

{REVISIONS}

Reads the log alone; for REV:PATH the checkpoint's metadata. --verify asks
for exactly one REV and prints it or fails; with -q it fails without a word,
for scripts.

  castore rev-parse main
  castore rev-parse --short main~1 v1
  castore rev-parse main:model main~1:model     equal, if it was frozen
  if castore rev-parse --verify -q main@step=1000; then echo resume; fi""",
)
@click.argument(
    "revs", nargs=-1, required=True, metavar="REV[:PATH]...", shell_complete=complete_refs
)
@click.option("--verify", is_flag=True, help="Exactly one REV, which must name something.")
@click.option("-q", "--quiet", is_flag=True, help="With --verify: no message, the exit tells.")
@click.option(
    "--short",
    type=click.IntRange(min=1, max=64),
    metavar="[=N]",
    help="Shorten to 12 digits, or with --short=N to N (6 at least), or as many as it takes.",
)
@json_option
@store_option
def rev_parse(
    revs: tuple[str, ...], verify: bool, quiet: bool, short: int | None, as_json: bool
) -> None:
    """Run ``castore rev-parse``."""
    if verify and len(revs) != 1:
        raise UsageError("--verify takes exactly one revision")
    if quiet and not verify:
        raise UsageError("-q goes with --verify")
    try:
        found = _resolve(revs, short)
    except UsageError as e:
        if not quiet:
            raise
        click.get_current_context().exit(e.exit_code)
    for resolved in found:
        if as_json:
            output.emit("revision", resolved.to_dict())
        else:
            output.say(resolved.digest)


def _resolve(revs: tuple[str, ...], digits: int | None) -> list[Resolved]:
    def digest_of(store: Store, rev: str) -> str:
        if ":" in rev:
            return store.tree(rev, depth=0)[0].digest
        # The newest of a log, not resolve(): that opens a pack to read the meta.
        return store.log(rev, limit=1)[0].digest

    with open_found() as store:
        digests = [digest_of(store, rev) for rev in revs]
        if digits is not None:
            digests = short_digests(store, digests, digits)
    return [Resolved(rev, digest) for rev, digest in zip(revs, digests, strict=True)]


# -- info ---------------------------------------------------------------------------------------


@click.command(
    "info",
    cls=Verb,
    short_help="The store at a glance.",
    help="""\
Show the store at a glance: where and what it is, its refs, its size, and
when something last happened to it.

What never happened is said too: a store that nobody verifies looks like one
that is sound. Reads the log and counts files; opens no pack.

  castore info
  castore info --json | jq .known_damage""",
)
@json_option
@store_option
def info(as_json: bool) -> None:
    """Run ``castore info``."""
    from castore.cli.render import age, count, print_fields, short, size
    from castore.system import now_ns

    with open_found() as store:
        report = store.info()
    if as_json:
        output.emit("store", report.to_dict())
        return
    now = now_ns()

    def names(refs: dict[str, str]) -> str:
        shown = [f"{output.clean(n)} {short(d)}" for n, d in list(refs.items())[:10]]
        more = [f"... {len(refs):,} in all"] if len(refs) > 10 else []
        return ", ".join(shown + more) or "none"

    stored = size(report.pack_bytes)
    ratio = (
        f", {report.logical_bytes / report.pack_bytes:.1f} times as much"
        if 0 < report.pack_bytes < report.logical_bytes
        else ""
    )
    windows = report.windows.items()
    pins = f"{len(report.pins):,}" if report.pins else "none"
    dead = sum(pin.alive is False for pin in report.pins)
    features = [*report.features.get("required", ()), *report.features.get("optional", ())]
    print_fields(
        [
            ("Store", output.clean(report.path)),
            ("Id", report.store_id),
            ("Format", f"version {report.format}, chunks of {size(report.chunk_size)}"),
            ("Features", ", ".join(map(str, features)) or "none"),
            (
                "File system",
                f"{report.file_system}, {'with' if report.direct_io else 'without'} direct I/O",
            ),
            ("Branches", names(dict(report.branches))),
            ("Tags", names(dict(report.tags))),
            ("Checkpoints", f"{report.checkpoints:,} live, {report.verified:,} verified"),
            (
                "Packs",
                f"{count(report.packs, 'file')}, {stored}; they hold states of "
                f"{size(report.logical_bytes)}{ratio}",
            ),
            ("Log", count(report.entries, "entry", "entries")),
            ("Reserve", size(report.reserve_bytes)),
            ("Index", f"{output.clean(report.index)} (a cache)"),
            (
                "Windows",
                "; ".join(f"{output.clean(n)} {output.clean(p)}" for n, p in windows)
                or "none: nothing is let go",
            ),
            ("Pins", f"{pins}{f', {dead} of a dead process' if dead else ''}"),
            ("Writers now", ", ".join(report.sessions) or "none"),
            (
                "Debris",
                f"{count(report.debris_files, 'file')}, {size(report.debris_bytes)}; `castore gc` "
                "removes it"
                if report.debris_files
                else "none",
            ),
            (
                "Known damage",
                count(report.known_damage, "record") if report.known_damage else "none",
            ),
            ("Last commit", age(report.last_commit, now)),
            (
                "Last verification",
                age(report.last_verification, now, "never (fsck reads, and records nothing)"),
            ),
            (
                "Last gc",
                age(report.last_gc, now, "never freed a pack (nor did a window or a drop)"),
            ),
        ]
    )
