"""Verbs that explain: ``help`` and ``completion``.

A page is made from what ``--help`` prints, its sections told apart; nothing is written twice.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import click

from castore.cli import output
from castore.cli.common import EXITS, REVISIONS, Verb, json_option, store_option
from castore.errors import UsageError
from castore.reports import Report

__all__ = ["HelpOption", "HelpPage", "completion", "help_", "page_of"]

WIDTH = 79
_IN = "  "
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class HelpOption(Report):
    """An option as its page has it: ``-n, --max-count N``, and what it does."""

    names: str
    text: str


@dataclass(frozen=True, slots=True)
class HelpPage(Report):
    """A page of the manual.

    Attributes:
        name: the verb, or the topic.
        title: what it is, in a line.
        synopsis: how it is called, word by word; empty of a topic.
        description: in words.
        options: its options.
        examples: command lines, some with a remark, three spaces or more after the command.
        exit_status: exit code and meaning.
    """

    name: str
    title: str
    synopsis: tuple[str, ...]
    description: str
    options: tuple[HelpOption, ...]
    examples: tuple[str, ...]
    exit_status: tuple[tuple[int, str], ...]


_TOPICS = {
    "revisions": HelpPage(
        "revisions",
        "how checkpoints, and what is in them, are named",
        (),
        f"""\
{REVISIONS}

BRANCH, TAG     main is where branch main stands; v1 what is tagged so. As git
                does you may write refs/heads/main, refs/tags/v1.
DIGEST          six or more hex digits. If they fit several checkpoints, the
                error lists them.
BRANCH@{{N}}      where the branch stood N moves ago: main@{{0}} is now, and
                `castore reflog main` lists them all. Works for a removed
                branch too. What was let go since is told with when and why.
BRANCH@step=N   the newest checkpoint on the branch's list with that step.
REV~N           N checkpoints back: along the branch's list, as `castore log`
                has it; from a tag, digest or @{{N}} along the parents. ~ is ~1.
REV:PATH        what lies at a key path of the state: dict keys and list
                numbers joined by '/', '~1' for a '/' in a key, '~0' for a '~'.
                An int key is its digits; any other key is ~(its repr). REV:
                alone is the whole state.

A window or `castore drop` takes checkpoints off a branch's list, and ~N counts
those that are left.""",
        (),
        (
            "castore log -1 main~1",
            "castore log -1 main@{0}",
            "castore log -1 main@step=1000",
            "castore log -1 refs/tags/v1",
            "castore show main:model/layers.0.weight",
        ),
        (),
    )
}


# -- pages --------------------------------------------------------------------------------------


def page_of(command: click.Command, ctx: click.Context) -> HelpPage:
    """A verb's page, from its help text, options and exit codes."""
    options = []
    arguments = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if isinstance(param, click.Argument):
            arguments.append(param.make_metavar(ctx))
        elif record is not None:
            # click tells of a number's bounds in brackets.
            text = re.sub(r"\s+\[[^\]]*[<>][^\]]*\]$", "", record[1])
            options.append(HelpOption(_joined(record[0]), text))
    short = [f"[{_brief(o)}]" for o in options if not o.names.startswith("--help")]
    synopsis = (f"castore {command.name}", *short, *arguments)
    exits = re.sub(r"\s+", " ", command.epilog or EXITS).removeprefix("Exit: ").rstrip(".")
    return HelpPage(
        command.name or "",
        _lower(command.short_help or "").rstrip("."),
        synopsis,
        command.description if isinstance(command, Verb) else command.help or "",
        tuple(options),
        tuple(command.examples) if isinstance(command, Verb) else (),
        tuple((int(code), what) for code, _, what in (e.partition(" ") for e in exits.split("; "))),
    )


def _lower(text: str) -> str:
    """A sentence as a phrase."""
    return text[:1].lower() + text[1:]


def _joined(names: str) -> str:
    """``--short [=N]`` is one word: the value cannot stand alone."""
    return names.replace(" [=", "[=")


def _brief(option: HelpOption) -> str:
    """The shortest way to write an option."""
    first, *more = option.names.split(", ")
    value = re.search(r"[ \[].*", more[-1] if more else "")
    return first + (value[0] if value and not re.search(r"[ \[]", first) else "")


def _text(page: HelpPage) -> Iterator[str]:
    def heading(text: str) -> str:
        return output.paint(text, "cyan", bold=True)

    yield heading("NAME")
    name = f"castore {page.name}" if page.synopsis else page.name
    yield f"{_IN}{name} - {page.title}"
    if page.synopsis:
        yield ""
        yield heading("SYNOPSIS")
        yield from _filled(page.synopsis)
    yield ""
    yield heading("DESCRIPTION")
    yield from (f"{_IN}{line}".rstrip() for line in page.description.splitlines())
    if page.options:
        yield ""
        yield heading("OPTIONS")
        for option in page.options:
            yield f"{_IN}{output.paint(option.names, 'green')}"
            indent = _IN * 3
            yield from textwrap.wrap(
                option.text, WIDTH, initial_indent=indent, subsequent_indent=indent
            )
    if page.examples:
        yield ""
        yield heading("EXAMPLES")
        yield from (f"{_IN}{line}" for line in page.examples)
    if page.exit_status:
        yield ""
        yield heading("EXIT STATUS")
        yield from (f"{_IN}{code:<4} {what}" for code, what in page.exit_status)


def _filled(words: tuple[str, ...]) -> Iterator[str]:
    """Words on lines of bounded length, none broken; all but the first line set in under it."""
    first, *rest = words
    line = _IN + first
    indent = " " * (len(line) + 1)
    for word in rest:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = indent + word
        else:
            line += f" {word}"
    yield line


@click.command(
    "help",
    cls=Verb,
    short_help="The page of a verb, or of a topic.",
    help="""\
Show the manual's page of a verb; of `revisions`, all the ways to name a
checkpoint; without a word, all verbs.

  castore help
  castore help log
  castore help revisions
  castore help --json rev-parse | jq -r '.options[].names'""",
)
@click.argument("topic", required=False, metavar="[VERB]")
@json_option
@store_option
def help_(topic: str | None, as_json: bool) -> None:
    """Run ``castore help``."""
    ctx = click.get_current_context()
    group = ctx.find_root()
    assert isinstance(group.command, click.Group)
    verbs = group.command.commands
    if topic is None and not as_json:
        output.say(group.get_help())
        return
    if topic is not None and topic not in verbs and topic not in _TOPICS:
        close = difflib.get_close_matches(topic, [*verbs, *_TOPICS], n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"there is no page {topic!r}{hint} `castore help` lists all verbs")
    for name in verbs if topic is None else [topic]:
        page = _TOPICS.get(name)
        if page is None:
            page = page_of(verbs[name], click.Context(verbs[name], group, name))
        if as_json:
            output.emit("help", page.to_dict())
        else:
            for line in _text(page):
                output.say(line)


# -- completion ---------------------------------------------------------------------------------


@click.command(
    "completion",
    cls=Verb,
    short_help="A script that completes verbs and refs in your shell.",
    help="""\
Print the script by which a shell completes castore's verbs, options, branches
and tags. Put into your shell's start-up file:

  bash (4.4 or newer), ~/.bashrc:
      eval "$(castore completion bash)"
  zsh, ~/.zshrc, after compinit:
      eval "$(castore completion zsh)"
  fish, ~/.config/fish/completions/castore.fish:
      castore completion fish | source

Refs come from the store that -s names on the line, or that is found as ever.

  castore completion bash > castore.bash""",
)
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@store_option
def completion(shell: str, as_json: bool) -> None:
    """Run ``castore completion``."""
    from click.shell_completion import get_completion_class

    group = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None
    script = made(group, {}, "castore", "_CASTORE_COMPLETE")
    # Not source(): that of bash starts a bash to look at its version.
    text = (script.source_template % script.source_vars()).strip()
    if as_json:
        output.emit("completion", {"shell": shell, "script": text})
    else:
        output.say(text)
