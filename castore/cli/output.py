"""Where words go: results to stdout, messages to stderr, colour only to a terminal.

The one module of the command line that writes (a bar and tables aside).  A reader that went away
(``| head``) ends the writing and nothing else, so that a verb's exit status is still its verdict.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import sys
from collections.abc import Mapping
from typing import IO, Any

import click

from castore.system import env

__all__ = [
    "clean",
    "colour",
    "coloured",
    "emit",
    "failed",
    "flush",
    "is_terminal",
    "note",
    "paint",
    "pour",
    "prepare",
    "say",
    "terminal",
]


class _Nowhere(io.TextIOBase):
    """Takes the place of a stdout that takes no more: its reader has gone, or it failed."""

    def __init__(self, *, failed: bool) -> None:
        super().__init__()
        self.failed = failed

    def write(self, text: str) -> int:
        return len(text)


def prepare() -> None:
    """Make the streams bear any text: what they cannot encode is shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _write(text: str) -> None:
    if sys.stdout is None:  # closed by the caller: >&-
        return
    try:
        sys.stdout.write(text)
    except OSError as e:
        _give_up(e)


def _give_up(e: OSError) -> None:
    """Write no more, or the interpreter tries again at exit and reports it in its own way."""
    failed = not isinstance(e, BrokenPipeError)
    sys.stdout = _Nowhere(failed=failed)
    if failed:
        raise OSError(e.errno, f"the output could not be written: {e.strerror or e}") from e


def flush() -> None:
    """Hand over what is buffered, so that a failure is met here and not at exit.

    Raises:
        OSError: it could not be written, and not because the reader went away.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as e:
        _give_up(e)


def failed() -> bool:
    """Whether results could not be written, and not because the reader went away."""
    return isinstance(sys.stdout, _Nowhere) and sys.stdout.failed


def say(text: str = "", *, end: str = "\n") -> None:
    """A line of a result."""
    _write(text + end)


def pour(data: bytes) -> None:
    """Bytes of a result, as they are."""
    if sys.stdout is None or isinstance(sys.stdout, _Nowhere):
        return
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    except OSError as e:
        _give_up(e)


def emit(kind: str, record: Mapping[str, Any], **more: Any) -> None:
    """A result as one line of JSON, with its ``type`` first."""
    line = {"type": kind, **record, **more}
    try:
        text = json.dumps(line, allow_nan=False)
    except ValueError:
        text = json.dumps(_strict(line), allow_nan=False)
    _write(text + "\n")


def _strict(value: Any) -> Any:
    """What JSON has no number for becomes ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return value


def note(text: str) -> None:
    """A message for people.  That nobody can read it is no failure."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def clean(text: str) -> str:
    """Text of unknown origin without control characters: they could drive the terminal."""
    if text.isprintable():
        return text
    # A lone surrogate is not printable either, and the stream shows it escaped.
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


# -- terminals ----------------------------------------------------------------------------------


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a stream goes to a terminal that can do more than print."""
    try:
        return stream is not None and stream.isatty() and env("TERM") != "dumb"
    except ValueError:  # closed
        return False


@functools.cache
def terminal() -> bool:
    """Whether results go to a person: tables and colour are for people."""
    return is_terminal(sys.stdout)


#: What ``--color`` said: ``auto``, ``always`` or ``never``.
_colour = "auto"


def colour(when: str) -> None:
    """Heed ``--color``: ``auto``, ``always`` or ``never``."""
    global _colour  # noqa: PLW0603 - one process is one command line
    _colour = when


def coloured() -> bool:
    """Whether results are coloured (``$NO_COLOR`` set: not unless asked for)."""
    if _colour == "auto":
        return terminal() and not env("NO_COLOR")
    return _colour == "always"


def paint(text: str, colour: str, *, bold: bool = False) -> str:
    """The text in a colour, where there are colours."""
    return click.style(text, fg=colour, bold=bold or None) if coloured() else text
