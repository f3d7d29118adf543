"""Runs ``python -m castore`` as people and scripts do: by pipes or in a terminal of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "castore"]
TIMEOUT = 120

#: What the machine that runs the tests may have set.
_MEDDLERS = {"CASTORE_STORE", "CASTORE_CACHE_DIR", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"}


def environment(**more: str) -> dict[str, str]:
    """An environment of known content, where a warning is an error."""
    kept = {k: v for k, v in os.environ.items() if k not in _MEDDLERS}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "PYTHONWARNINGS": "error", "TERM": "xterm", **more}


def castore(
    *args: object, cwd: Path | None = None, env: dict[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run it through pipes; the exit code must be ``code``, and there is no traceback."""
    done = subprocess.run(
        [*PROGRAM, *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env=environment(**(env or {})),
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done


def text(*args: object, **options: Any) -> str:
    """What it prints, with nothing on stderr."""
    done = castore(*args, **options)
    assert done.stderr == ""
    return done.stdout


def records(*args: object, **options: Any) -> list[dict[str, Any]]:
    """What it prints with ``--json``: an object a line, each with its type first."""
    done = castore(*args, "--json", **options)
    assert done.stderr == "", done.stderr
    found = [json.loads(line, parse_constant=_no_constant) for line in done.stdout.splitlines()]
    assert all(next(iter(record)) == "type" for record in found)
    return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def record(*args: object, **options: Any) -> dict[str, Any]:
    """The only record."""
    [found] = records(*args, **options)
    return found


def message(*args: object, code: int, **options: Any) -> str:
    """What it says on stderr when it fails, without a word on stdout."""
    done = castore(*args, code=code, **options)
    assert done.stdout == ""
    assert done.stderr
    return done.stderr


def on_terminal(*args: object, columns: int = 100, code: int = 0, **env: str) -> str:
    """What a person sees: run in a pseudo-terminal of its own, stdout and stderr alike."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            os.chdir(ROOT)
            environ = environment(COLUMNS=str(columns), **env)
            os.execve(sys.executable, [*PROGRAM, *map(str, args)], environ)
        finally:
            os._exit(127)
    seen = b""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if not select.select([fd], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(fd, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not data:
            break
        seen += data
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    shown = seen.decode().replace("\r\n", "\n")
    assert os.waitstatus_to_exitcode(status) == code, shown
    return shown


def unstyled(shown: str) -> str:
    """Without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
