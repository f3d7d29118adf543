"""What the verbs share: their options and help, finding the store, opening it.

Called by the modules of verbs only.  Finding reads folders and never makes one; a store is opened
readonly by every verb that only looks, so that these work on a read-only mount and leave no trace.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from castore.cli import output
from castore.errors import AmbiguousRevision, BadRevision, CastoreError, StoreNotFound, UsageError
from castore.system import env, now_ns

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from castore.cli.render import Refs
    from castore.store import Store

__all__ = [
    "DAMAGE_EXITS",
    "EXITS",
    "REVISIONS",
    "Verb",
    "colour_option",
    "complete_branches",
    "complete_refs",
    "complete_store",
    "complete_tags",
    "date_of",
    "find_store",
    "json_option",
    "no_path",
    "open_found",
    "refs_of",
    "short_digests",
    "size_of",
    "store_option",
]

STORE_VARIABLE = "CASTORE_STORE"
_CONFIG = "castore.json"
_SUFFIX = ".castore"

#: What every verb may exit with, for the help pages.
EXITS = """\
Exit: 0 done; 2 wrong usage, unknown or ambiguous revision; 3 the store is
unreadable, or the work was refused or failed; 70 a bug in castore; 130
interrupted."""

#: ... of a verb that opens packs.
DAMAGE_EXITS = """\
Exit: 0 done; 1 what it had to read is damaged; 2 wrong usage, unknown or
ambiguous revision; 3 the store is unreadable; 70 a bug in castore; 130
interrupted."""

#: What a revision is, for the help pages; `castore help revisions` tells more.
REVISIONS = """\
REV is a branch, a tag, or six or more digits of a digest; then, if you like,
@{N} (where the branch stood N moves ago) or @step=N (its newest of that
step); then ~N (N checkpoints back)."""

F = TypeVar("F", bound=Callable[..., Any])


class Verb(click.Command):
    """A command whose help text is printed as it is written, with the exit codes below it.

    The text ends with the examples: lines that are set in.  ``castore help`` makes its pages from
    the same text.
    """

    #: Options that may stand without the value they can take, and what that means; the value, if
    #: one is given, is joined to them: ``--short=8``.
    bare: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(colour_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give options that stand alone their value, as git does."""
        bare = {"--color": "always", **self.bare}
        end = args.index("--") if "--" in args else len(args)
        joints = {name: "=" if name.startswith("--") else "" for name in bare}
        args = [a + joints[a] + bare[a] if a in bare and i < end else a for i, a in enumerate(args)]
        return super().parse_args(ctx, args)

    def _parts(self) -> tuple[list[str], list[str]]:
        """The lines of the help text, and those of its examples."""
        lines = (self.help or "").strip().splitlines()
        at = len(lines)
        while at and (not lines[at - 1] or lines[at - 1].startswith(" ")):
            at -= 1
        return lines[:at], lines[at:]

    @property
    def description(self) -> str:
        """The help text without its examples."""
        return "\n".join(self._parts()[0])

    @property
    def examples(self) -> list[str]:
        """The examples, a line each as it is shown."""
        return [line[2:] for line in self._parts()[1] if line]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text without filling its lines anew."""
        formatter.write_paragraph()
        for line in (self.help or "").strip().splitlines():
            formatter.write(f"  {line}".rstrip() + "\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        formatter.write_paragraph()
        formatter.write((self.epilog or EXITS) + "\n")


def _store_given(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.obj = value


def store_option(f: F) -> F:
    """``--store`` after a verb: wins over the one before it."""
    return click.option(
        "--store",
        metavar="PATH",
        expose_value=False,
        callback=_store_given,
        shell_complete=complete_store,
        help="The store's folder; -s PATH or --store PATH before the verb says the same.",
    )(f)


def json_option(f: F) -> F:
    """``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, one object a line, sizes in bytes."
    )(f)


def _set_colour(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        output.colour(value)


def colour_option() -> click.Option:
    """``--color``: before and after every verb."""
    return click.Option(
        ["--color"],
        type=click.Choice(["auto", "always", "never"]),
        metavar="[=WHEN]",
        expose_value=False,
        is_eager=True,
        callback=_set_colour,
        help="Colour: auto (on a terminal, unless $NO_COLOR is set), always or never.",
    )


def date_of(text: str) -> int:
    """A date as git understands it, in nanoseconds since the epoch.

    Raises:
        click.BadParameter: it is none.
    """
    from castore.cli.dates import parse_date

    try:
        return parse_date(text, now_ns())
    except ValueError as e:
        raise click.BadParameter(str(e)) from e


_SIZE = re.compile(r"(\d+)\s*([KMG]?)(i?B)?", re.IGNORECASE)


def size_of(text: str) -> int:
    """A number of bytes: ``1048576``, ``64K``, ``4MiB`` (1024 each).

    Raises:
        click.BadParameter: it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no size: say 65536, 64K or 4MiB")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


# -- finding the store --------------------------------------------------------------------------


def find_store(ctx: click.Context | None = None) -> str:
    """The store's folder: as given, else ``$CASTORE_STORE``, else found from the current folder.

    Raises:
        UsageError: none is given and none can be found; says where was looked.
    """
    given: str | None = (ctx or click.get_current_context()).obj
    if given is not None:
        if not given:
            raise UsageError("--store is empty")
        return given
    if from_env := env(STORE_VARIABLE):
        return from_env
    here = Path().absolute()
    for folder in (here, *here.parents):
        if _holds(folder, _CONFIG):
            return str(folder)
    found = [name for name in _names(here) if name.endswith(_SUFFIX) and _is_store(here / name)]
    if len(found) == 1:
        return found[0]
    seen = f"there are {len(found)}: {', '.join(found[:5])}" if found else "there is none"
    raise UsageError(
        f"which store? Name it with -s PATH (--store PATH), or in ${STORE_VARIABLE}, or work in a "
        f"folder inside one (none above {here} holds a {_CONFIG}), or in a folder that holds "
        f"exactly one *{_SUFFIX} ({seen})"
    )


def _names(folder: Path) -> list[str]:
    """What is in a folder; nothing where that cannot be read."""
    from castore.storage.local import LocalStorage

    try:
        with contextlib.closing(LocalStorage(folder)) as storage:
            return storage.list()
    except (StoreNotFound, OSError):
        return []


def _holds(folder: Path, name: str) -> bool:
    """Whether a folder has such a file, as far as can be seen."""
    from castore.storage.local import LocalStorage

    try:
        with contextlib.closing(LocalStorage(folder)) as storage:
            return storage.size(name) is not None
    except (StoreNotFound, OSError):
        return False


def _is_store(folder: Path) -> bool:
    """A store, or what is left of one: fsck must find a store that lost its castore.json."""
    names = _names(folder)
    return _CONFIG in names or "packs" in names


# -- using it -----------------------------------------------------------------------------------


def open_found(*, readonly: bool = True) -> Store:
    """The store that :func:`find_store` finds, open."""
    from castore.opening import open_store

    return open_store(find_store(), readonly=readonly)


def refs_of(store: Store) -> Refs:
    """Digest -> the branches and tags that stand on it."""
    refs: dict[str, tuple[list[str], list[str]]] = {}
    for ref in store.refs():
        refs.setdefault(ref.digest, ([], []))[ref.kind == "tag"].append(ref.name)
    return refs


def no_path(rev: str, verb: str) -> str:
    """A revision without a key path.

    Raises:
        UsageError: it has one, and the verb is about checkpoints.
    """
    if ":" in rev:
        raise UsageError(f"{verb} is about checkpoints, not what is in them: {rev!r} has a ':'")
    return rev


def short_digests(store: Store, digests: list[str], digits: int) -> list[str]:
    """Digests cut to so many digits, or to as many as it takes to stay one checkpoint's."""
    from castore.log.revisions import MIN_PREFIX

    def shortened(digest: str) -> str:
        for n in range(max(digits, MIN_PREFIX), len(digest)):
            try:
                store.log(digest[:n], limit=1)
            except BadRevision:  # of a value inside a checkpoint: no revision, however long
                return digest[:n]
            except AmbiguousRevision:
                continue
            return digest[:n]
        return digest

    return [shortened(digest) for digest in digests]


# -- completion ---------------------------------------------------------------------------------


def _store_of(ctx: click.Context) -> Store:
    """The store that a command line being typed names: no verb has run, nor will."""
    from castore.opening import open_store

    ctx.obj = ctx.obj or ctx.find_root().params.get("store")
    return open_store(find_store(ctx), readonly=True)


def _complete(
    ctx: click.Context, incomplete: str, kinds: tuple[str, ...]
) -> list[CompletionItem[Any]]:
    """Refs that begin so; nothing where that fails: the shell is no place for messages."""
    from click.shell_completion import CompletionItem

    items: list[CompletionItem[Any]] = []
    with contextlib.suppress(CastoreError, OSError), _store_of(ctx) as store:
        for ref in store.refs():
            if ref.kind in kinds and ref.name.startswith(incomplete):
                step = "" if ref.step is None else f", step {ref.step}"
                items.append(CompletionItem(ref.name, help=f"{ref.kind} {ref.digest[:12]}{step}"))
    return items


def complete_refs(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Branches and tags."""
    return _complete(ctx, incomplete, ("branch", "tag"))


def complete_branches(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Branches."""
    return _complete(ctx, incomplete, ("branch",))


def complete_tags(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Tags."""
    return _complete(ctx, incomplete, ("tag",))


def complete_store(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """Folders: the shell knows them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]
