"""Verbs about refs: ``branch`` and ``tag`` make, move and remove them; ``show-ref``; ``reflog``.

git's habits: without a name ``branch`` and ``tag`` list, making one is silent, moving and removing
one says where it stood.  None of them lets a checkpoint go, and each says how it is undone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar

import click

from castore.cli import output
from castore.cli.common import (
    REVISIONS,
    Verb,
    complete_branches,
    complete_refs,
    complete_tags,
    json_option,
    no_path,
    open_found,
    short_digests,
    store_option,
)
from castore.errors import BadRevision, UsageError
from castore.reports import AppliedChange, RefInfo, ReflogEntry

if TYPE_CHECKING:
    from castore.store import Store

__all__ = ["branch", "reflog", "show_ref", "tag"]


# -- branch and tag -----------------------------------------------------------------------------


@click.command(
    "tag",
    cls=Verb,
    short_help="List, make, move, remove tags.",
    help="""\
List tags; or give a checkpoint a name that stays; or take the name away.

A tagged checkpoint stays, whatever the window of its branch says. REV is
main if you name none. A tag that is there is moved only with -f. Removing a
tag lets no checkpoint go. With -l the words are patterns of names (* ? [ab],
in quotes), of which any may fit.

Costs one log entry; no pack is read.

  castore tag                    list
  castore tag -v                 with digest, step, date
  castore tag -l 'v*'            those that begin with v
  castore tag best main@step=1000
  castore tag -f best main       move it
  castore tag -d best""",
)
@click.argument("words", nargs=-1, metavar="[NAME [REV]]", shell_complete=complete_tags)
@click.option("-l", "--list", "listing", is_flag=True, help="List; the words are patterns.")
@click.option("-d", "--delete", is_flag=True, help="Remove the tags named.")
@click.option("-f", "--force", is_flag=True, help="Move a tag that is there.")
@click.option("-v", "--verbose", is_flag=True, help="List with digest, step, date, message.")
@click.option(
    "--points-at", metavar="REV", shell_complete=complete_refs, help="List those that stand on REV."
)
@click.option(
    "--contains",
    metavar="REV",
    shell_complete=complete_refs,
    help="List those whose log, from them back, has REV.",
)
@json_option
@store_option
def tag(
    words: tuple[str, ...],
    listing: bool,
    delete: bool,
    force: bool,
    verbose: bool,
    points_at: str | None,
    contains: str | None,
    as_json: bool,
) -> None:
    """Run ``castore tag``."""
    filters = (points_at, contains)
    _ref("tag", words, listing, delete, force, verbose, filters, as_json)


@click.command(
    "branch",
    cls=Verb,
    short_help="List, make, move, remove branches.",
    help="""\
List branches; or make one at a checkpoint; or move or remove one.

A branch is a training run. A new one begins with the one checkpoint REV
(main if you name none), and the next save on it follows that. A branch that
is there is moved only with -f: to a checkpoint of its own list, that list is
cut there; to one where it stood before, it lists its own line again; to any
other, the list begins anew with it. Neither moving nor removing a branch lets
a checkpoint go. With -l the words are patterns of
names (* ? [ab], in quotes), of which any may fit.

There is no -m: a branch's list would not come along. Make another where it
stands, and remove it.

Costs one log entry; no pack is read and nothing is copied.

  castore branch                 list
  castore branch -v              with digest, step, date
  castore branch -l 're*'        those that begin with re
  castore branch --contains v1   those whose log has v1
  castore branch again main~1    a second run from one checkpoint back
  castore branch -f again main   move it
  castore branch -d again""",
)
@click.argument("words", nargs=-1, metavar="[NAME [REV]]", shell_complete=complete_branches)
@click.option("-l", "--list", "listing", is_flag=True, help="List; the words are patterns.")
@click.option("-d", "--delete", is_flag=True, help="Remove the branches named.")
@click.option("-f", "--force", is_flag=True, help="Move a branch that is there.")
@click.option("-v", "--verbose", is_flag=True, help="List with digest, step, date, message.")
@click.option(
    "--points-at", metavar="REV", shell_complete=complete_refs, help="List those that stand on REV."
)
@click.option(
    "--contains", metavar="REV", shell_complete=complete_refs, help="List those whose log has REV."
)
@json_option
@store_option
def branch(
    words: tuple[str, ...],
    listing: bool,
    delete: bool,
    force: bool,
    verbose: bool,
    points_at: str | None,
    contains: str | None,
    as_json: bool,
) -> None:
    """Run ``castore branch``."""
    filters = (points_at, contains)
    _ref("branch", words, listing, delete, force, verbose, filters, as_json)


def _ref(
    kind: str,
    words: tuple[str, ...],
    listing: bool,
    delete: bool,
    force: bool,
    verbose: bool,
    filters: tuple[str | None, str | None],
    as_json: bool,
) -> None:
    if listing or any(filters) or not words:
        if delete or force:
            raise UsageError(f"which {kind}? Say castore {kind} {'-d' if delete else '-f'} NAME")
        _list(kind, words, filters, verbose, as_json)
        return
    if verbose:
        raise UsageError("-v is for listing: with names it wants -l")
    if delete and force:
        raise UsageError("-d and -f exclude one another")
    if not delete and len(words) > 2:
        raise UsageError(f"castore {kind} takes a name and one revision, not {len(words)} words")
    with open_found(readonly=False) as store:
        if delete:
            for name in words:
                _tell(store.path, _act(store, kind)(name, delete=True), as_json)
        else:
            name, rev = words if len(words) == 2 else (words[0], "main")
            change = _act(store, kind)(name, no_path(rev, kind), force=force)
            _tell(store.path, change, as_json)


def _act(store: Store, kind: str) -> Callable[..., AppliedChange]:
    return store.tag if kind == "tag" else store.branch


def _tell(path: str, change: AppliedChange, as_json: bool) -> None:
    """Say what was done: like git, nothing where a ref was merely made."""
    from castore.cli.render import short

    if as_json:
        output.emit("change", change.to_dict())
        return
    name = output.clean(change.name)
    if change.old is not None and change.new is None:
        output.say(f"Deleted {change.kind} {name} (was {short(change.old)})")
    elif change.old is not None and change.old != change.new:
        output.say(f"Updated {change.kind} {name} (was {short(change.old)})")
    if change.undo:
        # The same store, from wherever the person stands.
        undo = change.undo.replace("castore ", f"castore -s {shlex.quote(path)} ", 1)
        output.note(f"undo: {output.clean(undo)}")


def _list(
    kind: str,
    patterns: tuple[str, ...],
    filters: tuple[str | None, str | None],
    verbose: bool,
    as_json: bool,
) -> None:
    points_at, contains = filters
    with open_found() as store:
        refs = [
            ref
            for ref in store.refs()
            if ref.kind == kind
            and (not patterns or any(fnmatchcase(ref.name, p) for p in patterns))
        ]
        if points_at is not None:
            at = _digest(store, points_at)
            refs = [ref for ref in refs if ref.digest == at]
        if contains is not None:
            wanted = _digest(store, contains)
            refs = [ref for ref in refs if any(c.digest == wanted for c in store.log(ref.name))]
    if as_json:
        for ref in refs:
            output.emit(kind, ref.to_dict())
    elif not verbose:
        for ref in refs:
            output.say(output.clean(ref.name))
    else:
        _table(kind, refs)


def _digest(store: Store, rev: str) -> str:
    return store.log(no_path(rev, "this"), limit=1)[0].digest


def _table(kind: str, refs: list[RefInfo]) -> None:
    from castore.cli.render import print_table, short
    from castore.system import format_time

    print_table(
        (kind, "checkpoint", "step", "date", "message"),
        [
            (
                output.clean(ref.name),
                short(ref.digest),
                "" if ref.step is None else str(ref.step),
                format_time(ref.time),
                output.clean((ref.message or "").partition("\n")[0]),
            )
            for ref in refs
        ],
        right=[2],
    )


# -- show-ref -----------------------------------------------------------------------------------


class _ShowRefVerb(Verb):
    bare: ClassVar[Mapping[str, str]] = {"--hash": "64", "-s": "64", "--abbrev": "12"}


@click.command(
    "show-ref",
    cls=_ShowRefVerb,
    short_help="All refs by their whole names, for scripts.",
    epilog="""\
Exit: 0 done; 1 no ref fits the patterns; 2 wrong usage, or with --verify and
--exists no such ref; 3 the store is unreadable; 70 a bug in castore; 130
interrupted.""",
    help="""\
List branches and tags with their digests, by the whole names that git gives
them: refs/heads/main, refs/tags/v1. Every revision may be written so.

A PATTERN fits a ref whose name, or the end of whose name after a '/', it is:
main fits refs/heads/main. If nothing fits, the exit is 1.

--verify takes whole names, and fails on the first that is no ref; with -q
without a word. --exists takes one and prints nothing: 0 it is there, 2 it is
not.

Reads the log alone.

  castore show-ref
  castore show-ref --tags --hash
  castore show-ref retry
  castore show-ref --verify refs/heads/main
  if castore show-ref --exists refs/tags/v1; then echo tagged; fi""",
)
@click.argument("patterns", nargs=-1, metavar="[PATTERN...]", shell_complete=complete_refs)
@click.option("--verify", is_flag=True, help="The words are whole names, each of which must be.")
@click.option("--exists", is_flag=True, help="One whole name: print nothing, the exit tells.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
@click.option("--heads", "--branches", "heads", is_flag=True, help="Branches (and tags if asked).")
@click.option("--tags", is_flag=True, help="Tags (and branches if asked).")
@click.option(
    "-s",
    "--hash",
    "hashes",
    type=click.IntRange(min=6, max=64),
    metavar="[=N]",
    help="Print digests alone, or with --hash=N their first N digits or as many as it takes.",
)
@click.option(
    "--abbrev",
    type=click.IntRange(min=6, max=64),
    metavar="[=N]",
    help="Shorten digests to 12 digits, or to N.",
)
@json_option
@store_option
def show_ref(
    patterns: tuple[str, ...],
    verify: bool,
    exists: bool,
    quiet: bool,
    heads: bool,
    tags: bool,
    hashes: int | None,
    abbrev: int | None,
    as_json: bool,
) -> None:
    """Run ``castore show-ref``."""
    if verify and exists:
        raise UsageError("--verify and --exists exclude one another")
    if (verify and not patterns) or (exists and len(patterns) != 1):
        raise UsageError(f"{'--verify' if verify else '--exists'} takes the whole name of a ref")
    kinds = {"branch"} if heads and not tags else {"tag"} if tags and not heads else None
    with open_found() as store:
        refs = [ref for ref in store.refs() if kinds is None or ref.kind in kinds]
        digits = hashes or abbrev
        digests = [ref.digest for ref in refs]
        shown = short_digests(store, digests, digits) if digits else digests
    known = {ref.ref: (ref, digest) for ref, digest in zip(refs, shown, strict=True)}
    missing = [name for name in patterns if name not in known] if verify or exists else []
    if missing:
        if quiet or (exists and not as_json):
            click.get_current_context().exit(2)
        raise BadRevision(_no_ref(missing[0], known))
    if exists:
        return
    if verify:
        found = [known[name] for name in patterns]
    else:
        found = [both for name, both in known.items() if _fits(name, patterns)]
    for ref, digest in found:
        if as_json:
            output.emit("ref", ref.to_dict(), ref=ref.ref)
        elif not quiet:
            output.say(digest if hashes else f"{digest} {output.clean(ref.ref)}")
    if not found:
        click.get_current_context().exit(1)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(name == p or name.endswith(f"/{p}") for p in patterns)


def _no_ref(name: str, known: Mapping[str, tuple[RefInfo, str]]) -> str:
    close = [ref for ref in known if ref.endswith(f"/{name}")]
    hint = f"; say {close[0]}" if close else ""
    return f"{name!r} is no ref's whole name{hint}"


# -- reflog -------------------------------------------------------------------------------------


@click.command(
    "reflog",
    cls=Verb,
    short_help="Where a branch stood, and what moved it.",
    help=f"""\
List every place where a branch stood (main, if you name none), newest first,
and what moved it there, when, and who did.

The line of main@{{7}} tells of the checkpoint that the revision main@{{7}}
names. A checkpoint that was let go since is listed with when and why; a
removed branch keeps its reflog. This is how a moved or removed branch is
found again: castore branch -f main main@{{1}}.

{REVISIONS}

Reads one log entry a move; no pack is opened.

  castore reflog
  castore reflog retry -n 5
  castore reflog --json | jq -r 'select(.action == "move").digest'
  castore show main@{{1}}""",
)
@click.argument("branch", default="main", shell_complete=complete_branches)
@click.option(
    "-n", "--max-count", "limit", type=click.IntRange(min=0), metavar="N", help="At most N."
)
@json_option
@store_option
def reflog(branch: str, limit: int | None, as_json: bool) -> None:
    """Run ``castore reflog``."""
    with open_found() as store:
        entries = store.reflog(branch, limit=limit)
    for entry in entries:
        if as_json:
            output.emit("move", entry.to_dict())
        else:
            output.say(_move_line(entry))


_ACTIONS = {
    "save": "save",
    "create": "branch: made here",
    "move": "branch: moved here",
    "remove": "branch: removed",
    "unknown": "by an entry that is lost",
}


def _move_line(entry: ReflogEntry) -> str:
    """``b84eb63c9f3c main@{0}: save: step 30 (2026-12-01T15:24:08Z, pid 7 on host)``."""
    from castore.cli.render import short
    from castore.system import format_time

    digest = short(entry.digest) if entry.digest else "-" * 12
    line = output.paint(digest, "yellow" if entry.live else "red")
    line += f" {output.clean(entry.branch)}@{{{entry.index}}}: {_ACTIONS[entry.action]}"
    if entry.step is not None:
        line += f": step {entry.step}" if entry.action == "save" else f", at step {entry.step}"
    if entry.message and entry.action == "save":
        line += f": {output.clean(entry.message.partition(chr(10))[0])}"
    if entry.time is not None:
        line += f" ({format_time(entry.time)}, {output.clean(entry.writer or '')})"
    if entry.let_go:
        line += output.paint(f" [let go: {output.clean(entry.let_go)}]", "red")
    return line
