"""A bar on stderr while something long is done: on a terminal only.

Rich is imported only where the bar is drawn.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from castore.cli.output import is_terminal
from castore.cli.render import size

__all__ = ["progress"]


@contextlib.contextmanager
def progress(what: str, total: Callable[[], int | None]) -> Iterator[Callable[[int], None] | None]:
    """Draw a bar while the block runs; gives what to call with each number of bytes done.

    Gives None where nobody would see it.

    Args:
        what: what is being done.
        total: gives the bytes there are to do, or None; asked only where a bar is drawn.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        """Bytes a second, in the units that all else is told in."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{size(int(task.speed))}/s")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        Speed(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    lock = threading.Lock()
    with bar:
        task = bar.add_task(what, total=total())

        def advance(n: int) -> None:
            with lock:
                bar.advance(task, n)

        yield advance
