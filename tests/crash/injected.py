"""A castore process of which strace kills one system call, or makes one fail.

The child is forked from this warm process and waits until strace holds it, so that nothing but the
scene itself is traced; one try takes a fraction of a second.  It works with one thread of each
kind, since strace counts calls per thread: from k = 1 on every call of the scene is hit in turn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import castore
from castore import system
from castore.storage import local
from tests.support import fork

__all__ = ["Died", "run_injected", "strace_works"]

#: Exit status of a scene that castore ended with a SaveFailed, and with another of its errors.
SAVE_FAILED = 10
OTHER_ERROR = 11


class Died:
    """How a scene ended.

    Attributes:
        status: the child's exit status; negative: the signal that killed it.
        error: what castore said.
        call: the call that strace killed or made fail, as it wrote it; empty where none was.
    """

    def __init__(self, status: int, error: str, call: str) -> None:
        self.status = status
        self.error = error
        self.call = call


def strace_works() -> None:
    """Skip the test where strace is not there, or may not attach."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    done = subprocess.run(
        ["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("strace may not trace here")


def _held(pid: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def run_injected(scene: Callable[[], None], inject: str, scratch: Path) -> Died:
    """Run ``scene`` in a child under ``strace -e inject=...``."""
    go_reading, go_writing = os.pipe()
    said = scratch / "said"
    said.write_text("")
    log = scratch / "strace.log"

    def child() -> None:
        os.read(go_reading, 1)
        system.cores = lambda: 1
        local.WRITE_THREADS = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", castore.CastoreWarning)
            try:
                scene()
            except castore.CastoreError as e:
                known = isinstance(e, castore.SaveFailed)
                status = SAVE_FAILED if known else OTHER_ERROR
                said.write_text(f"{type(e).__name__}: {e}")
                sys.stderr.flush()
                os._exit(status)
            except BaseException as e:
                said.write_text(f"{type(e).__name__}: {e}")
                raise

    pid = fork(child)
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-qq", "-o", str(log), "-p", str(pid), "-e", f"inject={inject}",
         "-e", f"trace={inject.partition(':')[0]}"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not _held(pid):
        assert tracer.poll() is None, "strace ended before it held the child"
        assert time.monotonic() < deadline, "strace does not get hold of the child"
        time.sleep(0.001)
    os.write(go_writing, b"x")
    os.close(go_writing)
    os.close(go_reading)
    _, status = os.waitpid(pid, 0)
    tracer.wait(timeout=30)
    lines = log.read_text(errors="replace").splitlines()
    hit = [line for line in lines if "(INJECTED)" in line or "killed by SIGKILL" in line]
    return Died(os.waitstatus_to_exitcode(status), said.read_text(), hit[0] if hit else "")
