"""Verbs that list, make, move and remove refs: ``tag`` and ``branch``.

git's habits: without a name they list, making one is silent, moving and removing one says where it
stood.  None of them lets a checkpoint go, and each says how it is undone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from castore.cli import output
from castore.cli.common import Verb, json_option, no_path, open_found, store_option
from castore.errors import UsageError
from castore.reports import AppliedChange, Report

if TYPE_CHECKING:
    from castore.store import Store

__all__ = ["branch", "tag"]


@dataclass(frozen=True, slots=True)
class _Ref(Report):
    """A ref and the checkpoint it stands on."""

    name: str
    digest: str
    step: int | None
    time: int
    message: str | None


@click.command(
    "tag",
    cls=Verb,
    short_help="List, make, move, remove tags.",
    help="""\
List tags; or give a checkpoint a name that stays; or take the name away.

A tagged checkpoint stays, whatever the window of its branch says. REV is
main if you name none. A tag that is there is moved only with -f. Removing a
tag lets no checkpoint go.

Costs one log entry; no pack is read.

  castore tag                    list
  castore tag -v                 with digest, step, date
  castore tag best main@step=1000
  castore tag -f best main       move it
  castore tag -d best""",
)
@click.argument("words", nargs=-1, metavar="[NAME [REV]]")
@click.option("-d", "--delete", is_flag=True, help="Remove the tags named.")
@click.option("-f", "--force", is_flag=True, help="Move a tag that is there.")
@click.option("-v", "--verbose", is_flag=True, help="List with digest, step, date, message.")
@json_option
@store_option
def tag(words: tuple[str, ...], delete: bool, force: bool, verbose: bool, as_json: bool) -> None:
    """Run ``castore tag``."""
    _ref("tag", words, delete, force, verbose, as_json)


@click.command(
    "branch",
    cls=Verb,
    short_help="List, make, move, remove branches.",
    help="""\
List branches; or make one at a checkpoint; or move or remove one.

A branch is a training run. A new one begins with the one checkpoint REV
(main if you name none), and the next save on it follows that. A branch that
is there is moved only with -f: to a checkpoint of its own list, that list is
cut there; to any other, the list begins anew with it. Neither moving nor
removing a branch lets a checkpoint go.

Costs one log entry; no pack is read and nothing is copied.

  castore branch                 list
  castore branch -v              with digest, step, date
  castore branch retry main~2    a second run from two checkpoints back
  castore branch -f main main~1  go back by one
  castore branch -d retry""",
)
@click.argument("words", nargs=-1, metavar="[NAME [REV]]")
@click.option("-d", "--delete", is_flag=True, help="Remove the branches named.")
@click.option("-f", "--force", is_flag=True, help="Move a branch that is there.")
@click.option("-v", "--verbose", is_flag=True, help="List with digest, step, date, message.")
@json_option
@store_option
def branch(words: tuple[str, ...], delete: bool, force: bool, verbose: bool, as_json: bool) -> None:
    """Run ``castore branch``."""
    _ref("branch", words, delete, force, verbose, as_json)


def _ref(
    kind: str, words: tuple[str, ...], delete: bool, force: bool, verbose: bool, as_json: bool
) -> None:
    if not words:
        if delete or force:
            raise UsageError(f"which {kind}? Say castore {kind} {'-d' if delete else '-f'} NAME")
        _list(kind, verbose, as_json)
        return
    if verbose:
        raise UsageError("-v is for listing: it goes without a name")
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
        if change.kind == "branch":
            output.note(
                "      the list of a branch begins anew where it is moved back to; what it listed "
                "before stays live"
            )


def _list(kind: str, verbose: bool, as_json: bool) -> None:
    with open_found() as store:
        digests = store.tags() if kind == "tag" else store.branches()
        if not (verbose or as_json):
            for name in digests:
                output.say(output.clean(name))
            return
        refs = []
        for name, digest in digests.items():
            found = store.log(digest, limit=1)[0]
            refs.append(_Ref(name, digest, found.step, found.time, found.message))
    if as_json:
        for ref in refs:
            output.emit(kind, ref.to_dict())
        return
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
