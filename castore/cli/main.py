"""``castore``: the group of verbs, and what becomes of errors.

Every way a verb can end is turned into an exit code here, and nowhere else: 0 done, 1 damage or a
difference, 2 wrong usage, 3 unreadable, refused or failed, 70 a bug in castore, 130 interrupted.
No traceback is shown for anything but a bug.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from castore import __version__
from castore.cli import contents, inspect, keep, output, refs, tree, upkeep
from castore.cli import help as help_pages
from castore.cli.common import Verb, colour_option, complete_store
from castore.errors import CastoreError

__all__ = ["main"]

EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

_HELP = """\
A content-addressed checkpoint store for PyTorch training.

The store is the one that -s (--store) names (after the verb: --store); else
$CASTORE_STORE; else the nearest folder from here upwards that is a store
(holds a castore.json); else the only *.castore in this folder.

A checkpoint is named by a branch (main), a tag, or six or more digits of its
digest; main~3, main@{7} and main@step=1000 go from there; REV:PATH is what
lies at a key path in it.

Every verb takes --json: the same reports as the text, one JSON object a line,
each with a "type"; sizes in bytes, times in nanoseconds since 1970. An error
is {"type": "error", "code": ..., "message": ...} on stdout. NaN and the
infinities are the strings "NaN", "Infinity" and "-Infinity". Fields are only
ever added; docs/json.schema.json has them all.

Results go to stdout, messages and progress to stderr; colour, tables and a
bar only on a terminal ($NO_COLOR or --color=never turns colour off). `castore
help VERB` has a verb's whole page, `castore help revisions` all ways to name
a checkpoint."""

_EPILOG = """\
Exit, every verb: 0 done, sound, same; 1 damage, a problem or a difference
found; 2 wrong usage, unknown or ambiguous revision; 3 unreadable, refused or
failed; 70 a bug in castore; 130 interrupted."""

_SECTIONS = (
    ("Look", (inspect.log, inspect.show, inspect.info)),
    ("Look inside", (contents.diff, contents.find_chunk, contents.stats)),
    ("Look closer", (tree.ls_tree, tree.cat_file, inspect.rev_parse, refs.show_ref, refs.reflog)),
    ("Name", (refs.branch, refs.tag)),
    ("Keep", (keep.window, keep.drop, keep.pin, keep.unpin)),
    ("Upkeep", (upkeep.init, upkeep.fsck, upkeep.gc)),
    ("Learn", (help_pages.help_, help_pages.completion)),
)


class _Verbs(click.Group):
    """The group: its help lists the verbs by family."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(colour_option())

    format_help_text = Verb.format_help_text
    format_epilog = Verb.format_epilog

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs."""
        for title, verbs in _SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(verb.name or "", verb.short_help or "") for verb in verbs])


@click.group(
    "castore",
    cls=_Verbs,
    help=_HELP,
    epilog=_EPILOG,
    options_metavar="[-s PATH]",
    subcommand_metavar="VERB ...",
)
@click.option(
    "-s", "--store", metavar="PATH", shell_complete=complete_store, help="The store's folder."
)
@click.version_option(__version__, message="castore %(version)s")
@click.pass_context
def cli(ctx: click.Context, store: str | None) -> None:
    """Take note of the store that was named."""
    ctx.obj = store


for _, _verbs in _SECTIONS:
    for _verb in _verbs:
        cli.add_command(_verb)


# -- ends ---------------------------------------------------------------------------------------


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        args: its words; those of this process if None.
    """
    words = list(sys.argv[1:] if args is None else args)
    output.prepare()
    code = _guarded(words)
    try:
        output.flush()
    except OSError as e:
        output.note(f"castore: {e.strerror}")
        code = code or EXIT_FAILED
    sys.exit(code)


def _guarded(words: list[str]) -> int:
    """Run a verb; its exit code, with the words for whatever went wrong."""
    try:
        return _run(words)
    except KeyboardInterrupt:  # a second one, while the first was being dealt with
        return EXIT_INTERRUPTED


def _run(words: list[str]) -> int:
    fail = _Failure("--json" in words[: words.index("--") if "--" in words else None])
    try:
        code = cli.main(words, prog_name="castore", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return fail.tell(EXIT_INTERRUPTED, "interrupted", "interrupted")
    except click.ClickException as e:
        return _wrong_usage(e, fail)
    except CastoreError as e:
        return fail.tell(e.exit_code, e.code, e.message, e.to_dict())
    except OSError as e:
        where = f": {e.filename!r}" if e.filename else ""
        return fail.tell(
            EXIT_FAILED,
            "os-error",
            f"{e.strerror or e}{where}",
            {"errno": e.errno, "path": None if e.filename is None else str(e.filename)},
        )
    except MemoryError:
        return fail.tell(EXIT_FAILED, "out-of-memory", "out of memory")
    except Exception as e:  # noqa: BLE001 - the last resort: a bug is told as one, never hidden
        import traceback

        output.note(traceback.format_exc().rstrip())
        return fail.tell(
            EXIT_BUG,
            "bug",
            f"{type(e).__name__}: {e}\nThis is a bug in castore. Please report it, with the lines "
            "above and what you ran.",
        )


def _wrong_usage(e: click.ClickException, fail: _Failure) -> int:
    if not fail.as_json:
        from click.exceptions import NoArgsIsHelpError

        if isinstance(e, NoArgsIsHelpError):
            output.note(e.format_message())
            return EXIT_USAGE
        if isinstance(e, click.UsageError) and e.ctx is not None:
            output.note(e.ctx.get_usage())
            fail.hint = f"`{e.ctx.command_path} --help` tells more"
    return fail.tell(EXIT_USAGE, "usage", e.format_message())


class _Failure:
    """Tells of a failure: on stderr in words, or with ``--json`` on stdout."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.hint: str | None = None

    def tell(
        self, code: int, kind: str, message: str, fields: Mapping[str, Any] | None = None
    ) -> int:
        """Say it; gives the exit code back."""
        try:
            if self.as_json:
                known = ("type", "code", "message")
                more = {k: v for k, v in (fields or {}).items() if k not in known}
                output.emit("error", {"code": kind, "message": message, **more}, exit_code=code)
            output.flush()  # what was printed before comes before
        except OSError as e:
            output.note(f"castore: {e.strerror}")
        if not self.as_json or output.failed():
            output.note(output.clean(f"castore: {message}"))
            if self.hint:
                output.note(self.hint)
        return code
