"""The one place that reads the clock, the environment and the machine's identity.

Everything else takes these as values, so that tests can put the clock where they like.  No safety
rests on anything that is read here.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

__all__ = [
    "ProcessIdentity",
    "cache_dir",
    "cores",
    "env",
    "format_time",
    "identity",
    "monotonic",
    "new_save_id",
    "now_ns",
    "process_alive",
    "random_bytes",
    "worker_threads",
]


def now_ns() -> int:
    """Wall-clock time in nanoseconds since the Unix epoch: for display, never for order."""
    return time.time_ns()


def monotonic() -> float:
    """Seconds of a clock that never goes back, for measuring."""
    return time.perf_counter()


def format_time(ns: int) -> str:
    """``ns`` since the epoch as ISO 8601 in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ns / 1e9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return f"(time out of range: {ns} ns)"


def env(name: str) -> str | None:
    """An environment variable, or None."""
    return os.environ.get(name)


def random_bytes(n: int) -> bytes:
    """``n`` random bytes from the operating system."""
    return secrets.token_bytes(n)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_threads() -> int:
    """How many threads hash, copy and read: one for each core, within the memory we may take.

    Each holds a buffer of one chunk; 24 of 4 MiB and those on their way to the disk stay below the
    160 MiB that a save may need beside the state.
    """
    return max(1, min(cores(), 24))


def cache_dir() -> Path:
    """``$CASTORE_CACHE_DIR``, else ``$XDG_CACHE_HOME/castore``, else ``~/.cache/castore``."""
    if own := env("CASTORE_CACHE_DIR"):
        return Path(own)
    if xdg := env("XDG_CACHE_HOME"):
        return Path(xdg) / "castore"
    return Path.home() / ".cache" / "castore"


def new_save_id() -> str:
    """A unique id that sorts by time: ``20261201T152408123-9f3ac01b22de4455``.

    The time is for people; uniqueness rests on the 64 random bits.
    """
    ns = now_ns()
    try:
        stamp = datetime.fromtimestamp(ns // 10**9, tz=UTC).strftime("%Y%m%dT%H%M%S")
    except (OverflowError, OSError, ValueError):
        stamp = "19700101T000000"
    return f"{stamp}{ns // 10**6 % 1000:03d}-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Who a writer is: enough to say for sure that it is dead, on the same machine.

    Attributes:
        host: host name.
        boot: the kernel's boot id (empty where unknown).
        pid_space: the pid name space (empty where unknown).
        pid: process id within it.
        start: the process's start time in clock ticks since boot (0 where unknown).
    """

    host: str
    boot: str
    pid_space: str
    pid: int
    start: int

    def describe(self) -> str:
        """``pid 123 on host``."""
        return f"pid {self.pid} on {self.host}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _start_time(pid: int) -> int:
    stat = _read(f"/proc/{pid}/stat")
    fields = stat.rpartition(")")[2].split()  # the name in brackets may hold spaces
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0


@functools.lru_cache(maxsize=4)
def _identity(pid: int) -> ProcessIdentity:
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return ProcessIdentity(
        socket.gethostname(),
        _read("/proc/sys/kernel/random/boot_id"),
        space,
        pid,
        _start_time(pid),
    )


def identity() -> ProcessIdentity:
    """This process (asked anew in a forked child)."""
    return _identity(os.getpid())


def process_alive(who: ProcessIdentity) -> bool | None:
    """True or False where this machine can tell for sure; None where it cannot."""
    me = identity()
    if not who.boot or who.host != me.host:
        return None
    if who.boot != me.boot:
        return False  # same host, another boot: nothing of it is left
    if not who.pid_space or who.pid_space != me.pid_space:
        return None
    start = _start_time(who.pid)
    return start != 0 and start == who.start
