"""A store in a folder of a POSIX file system.

Every access goes through descriptors relative to the store's folder and never follows a symbolic
link below it, so a hostile store cannot lead outside.  ``create`` is temp, fsync, ``link``, fsync
of the folder: whole and durable or absent, and exclusive on local and network file systems alike.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from castore.errors import StoreNotFound, UnsupportedFeature
from castore.storage.files import OpenFiles
from castore.storage.filesystem import file_system_name, fsync_folder
from castore.storage.mapping import Mapping
from castore.storage.protocol import FateUnknown, NotDurable, check_name
from castore.storage.stream import BLOCK, PAGE, BufferPool, StreamFile
from castore.system import random_bytes

__all__ = ["LocalStorage"]

#: Idle descriptors kept for reading (``ulimit -n 64`` must do).
OPEN_FILES = 12
#: Threads that read at once.  Each may have three descriptors open for a moment: the file, and the
#: folders on the way to it.  Hashing, which takes longer, they do without.
READERS = 10
#: Threads that write: enough to keep a queue at the device, few enough for any machine.
WRITE_THREADS = 2
#: Full buffers on their way to the device; each file has one more, which it is filling.
WRITE_BUFFERS = 4

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalStorage:
    """See :class:`castore.storage.protocol.Storage`."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(Path(path).absolute())
        try:
            self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as e:
            raise StoreNotFound(
                f"there is no store at {self._path}; `castore init {self._path}` or "
                "castore.open(path, create=True) makes one",
                path=self._path,
            ) from e
        except NotADirectoryError as e:
            raise StoreNotFound(
                f"{self._path} is no store: a store is a folder", path=self._path
            ) from e
        self._files = OpenFiles(lambda name: self._open(name, _READ), OPEN_FILES, READERS)
        self._device_files = OpenFiles(lambda name: self._open(name, _READ | _O_DIRECT), 2, READERS)
        self._writers: tuple[int, ThreadPoolExecutor] | None = None
        self._pool = BufferPool(WRITE_BUFFERS)
        self._lock = threading.Lock()

    @property
    def where(self) -> str:
        """The folder's absolute path."""
        return self._path

    # -- names ------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, parts: list[str]) -> Iterator[int]:
        fd = os.dup(self._root)
        try:
            for depth, part in enumerate(parts, 1):
                try:
                    inner = os.open(part, _FOLDER, dir_fd=fd)
                except OSError as e:
                    e.filename = "/".join((self._path, *parts[:depth]))  # not only its last part
                    raise
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        parts = check_name(name)
        try:
            with self._folder(parts[:-1]) as fd:
                yield fd, parts[-1]
        except OSError as e:
            if e.filename is None or not str(e.filename).startswith("/"):
                e.filename = f"{self._path}/{name}"
            raise

    def _open(self, name: str, flags: int) -> int:
        with self._parent(name) as (folder, leaf):
            # Not to be held up by a FIFO that somebody put in a file's place.
            fd = os.open(leaf, flags | os.O_NONBLOCK, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", f"{self._path}/{name}")
        return fd

    # -- reading ----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        """A descriptor to read from.

        Those of packs are kept: a pack's name never stands for another file.  A log entry may be
        mended, or be gone, and a session's record is replaced at every beat.
        """
        if name.startswith("packs/"):
            with self._files.reading(name) as fd:
                yield fd
            return
        fd = self._open(name, _READ)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file."""
        with self._reading(name) as fd:
            if length is None:
                length = max(0, os.fstat(fd).st_size - offset)
            parts = []
            while length:
                part = os.pread(fd, length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, name: str, offset: int, out: memoryview, *, device: bool = False) -> int:
        """Fill ``out`` from a file."""
        if device:
            return self._read_device(name, offset, out)
        with self._reading(name) as fd:
            return _fill(fd, offset, out)

    def _read_device(self, name: str, offset: int, out: memoryview) -> int:
        try:
            with self._device_files.reading(name) as fd:
                return _fill_aligned(fd, offset, out)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
        fd = self._open(name, _READ)  # no O_DIRECT here: push the pages out, then read
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _fill(fd, offset, out)
        finally:
            os.close(fd)

    def map(self, name: str, length: int) -> Mapping:
        """The first bytes of a file as memory."""
        fd = self._open(name, _READ)
        try:
            return Mapping(fd, length)
        finally:
            os.close(fd)

    def size(self, name: str) -> int | None:
        """Length of a regular file, or None."""
        try:
            with self._parent(name) as (folder, leaf):
                found = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            if e.errno == errno.ELOOP:
                return None
            raise
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, folder: str = "") -> list[str]:
        """Names in a folder, sorted."""
        try:
            with self._folder(check_name(folder) if folder else []) as fd:
                return sorted(os.listdir(fd))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def modified(self, name: str) -> float | None:
        """The file's mtime by the storage's clock: advice for people and sessions only."""
        try:
            with self._parent(name) as (folder, leaf):
                return os.stat(leaf, dir_fd=folder, follow_symlinks=False).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    # -- writing ----------------------------------------------------------------------------------

    def create(self, name: str, data: bytes) -> bool:
        """Create a whole file durably if absent."""
        with self._parent(name) as (folder, leaf):
            unsure = False  # whether a link was tried whose answer does not settle its fate
            while True:
                try:
                    temporary = self._write_temporary(folder, data)
                except OSError as e:
                    if unsure:
                        raise FateUnknown(e.errno, e.strerror, f"{self._path}/{name}") from e
                    raise
                try:
                    os.link(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    # gc took the temporary file for a dead process's (or the reply to a link that
                    # was made is lost): once more with a new one.
                    unsure = True
                    continue
                except OSError as e:
                    raise FateUnknown(e.errno, e.strerror, f"{self._path}/{name}") from e
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                try:
                    fsync_folder(folder)
                except OSError as e:
                    raise NotDurable(e.errno, e.strerror, f"{self._path}/{name}") from e
                return True

    def write_advice(self, name: str, data: bytes) -> None:
        """Write or replace a file that no safety rests on."""
        with self._parent(name) as (folder, leaf):
            temporary = self._write_temporary(folder, data, durable=False)
            try:
                os.rename(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def _write_temporary(self, folder: int, data: bytes, *, durable: bool = True) -> str:
        temporary = f".{random_bytes(16).hex()}.tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        return temporary

    def new_file(self, name: str) -> StreamFile:
        """Begin a new file under its final name."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._parent(name) as (folder, leaf):
            direct = bool(_O_DIRECT)
            try:
                fd = os.open(leaf, flags | _O_DIRECT, 0o666, dir_fd=folder)
            except OSError as e:
                if e.errno != errno.EINVAL or not direct:
                    raise
                # Some file systems create the file and then refuse the flag.
                direct = False
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(leaf, dir_fd=folder)
                fd = os.open(leaf, flags, 0o666, dir_fd=folder)
        threads = self._writing_threads()  # first: after a fork it makes the pool anew, too
        return StreamFile(fd, direct, self._pool, threads)

    def _writing_threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._writers is None or self._writers[0] != os.getpid():
                if self._writers is not None:
                    self._pool = BufferPool(WRITE_BUFFERS)  # the parent's threads hold the old one
                threads = ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="castore-write")
                self._writers = (os.getpid(), threads)
            return self._writers[1]

    def delete(self, name: str) -> bool:
        """Delete a file."""
        self._files.forget(name)
        self._device_files.forget(name)
        try:
            with self._parent(name) as (folder, leaf):
                os.unlink(leaf, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, name: str) -> None:
        """Make a folder durably (also when it was there: another may just have made it)."""
        with self._parent(name) as (parent, leaf):
            with contextlib.suppress(FileExistsError):
                os.mkdir(leaf, dir_fd=parent)
            fsync_folder(parent)

    def remove_folder(self, name: str) -> bool:
        """Remove an empty folder."""
        try:
            with self._parent(name) as (parent, leaf):
                os.rmdir(leaf, dir_fd=parent)
        except FileNotFoundError:
            return False
        except OSError as e:
            if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def sync_folder(self, name: str) -> None:
        """Make the names in a folder durable."""
        with self._folder(check_name(name) if name else []) as fd:
            try:
                fsync_folder(fd)
            except OSError as e:
                e.filename = f"{self._path}/{name}"
                raise

    def free(self) -> int:
        """Bytes that this user may still write."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def is_folder_of(self, other: LocalStorage) -> bool:
        """Whether both stand for one folder, whatever it is called."""
        mine, its = os.fstat(self._root), os.fstat(other._root)
        return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino)

    def writable(self) -> bool:
        """Whether this process may make files in the store's folder."""
        return os.access(self._path, os.W_OK)

    def file_system_name(self) -> str:
        """What the file system is called, or its type number."""
        return file_system_name(self._path)

    def takes_direct_io(self) -> bool:
        """Whether a file of the store can be opened past the page cache."""
        for name in ("castore.json", "reserve"):
            try:
                os.close(self._open(name, _READ | _O_DIRECT))
                return bool(_O_DIRECT)
            except OSError:
                continue
        return False

    def probe(self) -> None:
        """Try what the protocol needs: exclusive create, hard links, folder fsync.

        Raises:
            UnsupportedFeature: the file system lacks something castore cannot do without.
        """
        name = f"file system ({file_system_name(self._path)})"
        temporary = self._write_temporary(self._root, b"probe")
        other = f".{random_bytes(16).hex()}.tmp"
        try:
            try:
                os.link(temporary, other, src_dir_fd=self._root, dst_dir_fd=self._root)
            except OSError as e:
                raise UnsupportedFeature(
                    f"the {name} at {self._path} has no hard links ({e.strerror}), and castore's "
                    "log is made with them; use another file system",
                    path=self._path,
                ) from e
            for lacking, act in (
                ("exclusive links", lambda: os.link(
                    temporary, other, src_dir_fd=self._root, dst_dir_fd=self._root)),
                ("exclusive creation", lambda: os.open(
                    other, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=self._root)),
            ):  # fmt: skip
                try:
                    act()
                except FileExistsError:
                    continue
                raise UnsupportedFeature(f"the {name} at {self._path} has no {lacking}")
            try:
                os.fsync(self._root)
            except OSError as e:
                raise UnsupportedFeature(
                    f"the {name} at {self._path} cannot make a folder durable (fsync: "
                    f"{e.strerror}), and castore's promises rest on that; use another file system",
                    path=self._path,
                ) from e
        finally:
            for leftover in (temporary, other):
                with contextlib.suppress(OSError):
                    os.unlink(leftover, dir_fd=self._root)

    def after_fork(self) -> None:
        """In a forked child: locks are its own."""
        self._lock = threading.Lock()
        self._files.after_fork()
        self._device_files.after_fork()

    def close(self) -> None:
        """Close descriptors and end the writing threads."""
        self._files.close()
        self._device_files.close()
        if self._writers is not None and self._writers[0] == os.getpid():
            self._writers[1].shutdown(wait=True)
        self._writers = None
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


def _fill(fd: int, offset: int, out: memoryview) -> int:
    done = 0
    while done < len(out):
        n = os.preadv(fd, [out[done:]], offset + done)
        if not n:
            break
        done += n
    return done


def _fill_aligned(fd: int, offset: int, out: memoryview) -> int:
    """Read with O_DIRECT: by whole pages into an aligned buffer, then copied out."""
    done = 0
    with mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer:
        while done < len(out):
            start = (offset + done) // PAGE * PAGE
            skip = offset + done - start
            want = min(BLOCK, -(-(skip + len(out) - done) // PAGE) * PAGE)
            with memoryview(buffer) as view:
                got = os.preadv(fd, [view[:want]], start)
                n = min(got - skip, len(out) - done)
                if n <= 0:
                    break
                out[done : done + n] = view[skip : skip + n]
            done += n
    return done
