"""What a process does to the files below a folder, call by call, with the bytes it writes.

The recorder wraps the ``os`` functions that change a file system and lets them act; what they did
is a list of :class:`Op`.  ``test_recorder`` compares that list with strace's of the same process.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Op", "Recorder"]


@dataclass(frozen=True, slots=True)
class Op:
    """One act.

    Attributes:
        kind: ``create``, ``write``, ``fsync``, ``mkdir``, ``rmdir``, ``link``, ``rename``,
            ``unlink``, ``fsyncdir``; or ``ack``: the caller was told that something is durable.
        path: what it was done to, relative to the recorder's folder.
        other: the new name of a link or rename; the text of an ack.
        offset: of a write.
        data: of a write.
    """

    kind: str
    path: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


class Recorder:
    """A context manager under which everything done below ``folder`` is noted.

    Args:
        folder: only what happens below it counts.
        leave_out: a folder name whose contents do not count (the index: a cache with a life of its
            own).
    """

    def __init__(self, folder: Path, leave_out: str = "index.lmdb") -> None:
        self.folder = os.path.realpath(folder)
        self.leave_out = leave_out
        self.ops: list[Op] = []
        self._lock = threading.Lock()
        self._real: dict[str, Callable[..., Any]] = {}
        self._at: dict[int, int] = {}  # descriptor -> position of the next os.write

    def ack(self, text: str) -> None:
        """Note that what ``text`` names was acknowledged as durable."""
        self.ops.append(Op("ack", other=text))

    def __enter__(self) -> Recorder:
        for name in ("open", "write", "pwrite", "fsync", "mkdir", "rmdir", "link", "rename",
                     "unlink"):  # fmt: skip
            self._real[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *exc: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _name(self, path: Any, dir_fd: int | None = None) -> str | None:
        """``path`` relative to the folder, or None where it lies outside or does not count."""
        base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
        full = os.path.normpath(os.path.join(base, os.fspath(path)))
        return self._inside(full)

    def _inside(self, full: str) -> str | None:
        if full != self.folder and not full.startswith(self.folder + "/"):
            return None
        name = full[len(self.folder) + 1 :]
        parts = name.split("/")
        return None if any(p.startswith(self.leave_out) for p in parts) else name

    def _of(self, fd: int) -> str | None:
        return self._inside(os.readlink(f"/proc/self/fd/{fd}"))

    def _note(self, op: Op) -> None:
        with self._lock:
            self.ops.append(op)

    # -- the wrapped calls ------------------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT and (name := self._name(path, dir_fd)) is not None:
            assert flags & os.O_EXCL, f"{name} is opened in a way that is not create-if-absent"
            self._at[fd] = 0
            self._note(Op("create", name))
        return fd

    def _write(self, fd: int, data: Any) -> int:
        n: int = self._real["write"](fd, data)
        if (name := self._of(fd)) is not None:
            self._note(Op("write", name, offset=self._at[fd], data=bytes(memoryview(data)[:n])))
            self._at[fd] += n
        return n

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        n: int = self._real["pwrite"](fd, data, offset)
        if (name := self._of(fd)) is not None:
            self._note(Op("write", name, offset=offset, data=bytes(memoryview(data)[:n])))
        return n

    def _fsync(self, fd: int) -> None:
        self._real["fsync"](fd)
        if (name := self._of(fd)) is not None:
            kind = "fsyncdir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync"
            self._note(Op(kind, name))

    def _named(self, kind: str, path: Any, dir_fd: int | None) -> None:
        if (name := self._name(path, dir_fd)) is not None:
            self._note(Op(kind, name))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        self._named("mkdir", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._real["rmdir"](path, dir_fd=dir_fd)
        self._named("rmdir", path, dir_fd)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._real["unlink"](path, dir_fd=dir_fd)
        self._named("unlink", path, dir_fd)

    def _link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self._real["link"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._two("link", src, dst, src_dir_fd, dst_dir_fd)

    def _rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self._real["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._two("rename", src, dst, src_dir_fd, dst_dir_fd)

    def _two(self, kind: str, src: Any, dst: Any, src_fd: int | None, dst_fd: int | None) -> None:
        old, new = self._name(src, src_fd), self._name(dst, dst_fd)
        if old is not None and new is not None:
            self._note(Op(kind, old, new))
