"""What the verbs share: their options and help, finding the store, opening it.

Called by the modules of verbs only.  Finding reads folders and never makes one; a store is opened
readonly by every verb that only looks, so that these work on a read-only mount and leave no trace.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from castore.errors import StoreNotFound, UsageError
from castore.system import env

if TYPE_CHECKING:
    from castore.cli.render import Refs
    from castore.store import Store

__all__ = [
    "EXITS",
    "Verb",
    "find_store",
    "json_option",
    "no_path",
    "open_found",
    "refs_of",
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

F = TypeVar("F", bound=Callable[..., Any])


class Verb(click.Command):
    """A command whose help text is printed as it is written, with the exit codes below it."""

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
        help="The store's folder; -s PATH or --store PATH before the verb says the same.",
    )(f)


def json_option(f: F) -> F:
    """``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, one object a line, sizes in bytes."
    )(f)


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


def find_store() -> str:
    """The store's folder: as given, else ``$CASTORE_STORE``, else found from the current folder.

    Raises:
        UsageError: none is given and none can be found; says where was looked.
    """
    given: str | None = click.get_current_context().obj
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
    for name, digest in store.branches().items():
        refs.setdefault(digest, ([], []))[0].append(name)
    for name, digest in store.tags().items():
        refs.setdefault(digest, ([], []))[1].append(name)
    return refs


def no_path(rev: str, verb: str) -> str:
    """A revision without a key path.

    Raises:
        UsageError: it has one, and the verb is about checkpoints.
    """
    if ":" in rev:
        raise UsageError(f"{verb} is about checkpoints, not what is in them: {rev!r} has a ':'")
    return rev
