"""Streams: what is appended is what lies on the disk, to the byte, and a failure is never lost."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from castore.storage.local import WRITE_BUFFERS, LocalStorage
from castore.storage.stream import BLOCK, PAGE, BufferPool, StreamFile

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["disk", "tmpfs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStorage]:
    folder = tmp_path if request.param == "disk" else Path(tempfile.mkdtemp(dir="/dev/shm"))
    made = LocalStorage(folder)
    yield made
    made.close()
    if request.param == "tmpfs":
        shutil.rmtree(folder)


def pattern(n: int, seed: int = 0) -> bytes:
    """Bytes of which no two blocks are equal."""
    return blake3(b"%d %d" % (n, seed)).digest(length=n) if n else b""


def written(storage: LocalStorage, name: str, parts: list[bytes]) -> None:
    """Write parts; check position, size, and the bytes on both ways of reading."""
    file = storage.new_file(name)
    n = 0
    for part in parts:
        assert file.position == n
        file.append(part)
        n += len(part)
    assert file.position == n
    size = file.finish()
    file.abandon()  # safe at any time
    expected = b"".join(parts).ljust(size, b"\0")
    assert size == -(-n // PAGE) * PAGE
    assert storage.size(name) == size
    for device in (False, True):
        out = bytearray(size + 1)
        assert storage.read_into(name, 0, memoryview(out), device=device) == size
        assert out[:size] == expected
    assert storage.read(name) == expected


@pytest.mark.parametrize(
    "n",
    [0, 1, 511, 512, PAGE - 1, PAGE, PAGE + 1, BLOCK - PAGE, BLOCK - 1, BLOCK, BLOCK + 1,
     BLOCK + PAGE, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 6 * BLOCK + 12345],
)  # fmt: skip
def test_sizes_around_the_borders(storage: LocalStorage, n: int) -> None:
    written(storage, "whole", [pattern(n)])
    data = pattern(n, 1)
    written(
        storage, "parts", [data[: n // 3], b"", data[n // 3 : n - 1], data[n - 1 :] if n else b""]
    )


def test_random_parts(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    sizes = st.one_of(
        st.integers(0, 100),
        st.integers(PAGE - 2, PAGE + 2),
        st.integers(BLOCK - 2, BLOCK + 2),
        st.integers(0, 300_000),
    )
    data = pattern(3 * BLOCK)

    @settings(max_examples=settings().max_examples // 3)
    @given(st.lists(st.tuples(sizes, st.integers(0, 2 * BLOCK - 10)), max_size=6))
    def check(cuts: list[tuple[int, int]]) -> None:
        storage.delete("file")
        written(storage, "file", [data[at : at + n] for n, at in cuts])

    check()
    storage.close()


def test_any_buffer_is_taken_and_copied(storage: LocalStorage) -> None:
    file = storage.new_file("file")
    buffer = bytearray(pattern(10_000))
    expected = bytes(buffer)
    file.append(memoryview(buffer)[:5000])
    file.append(memoryview(buffer)[5000:].cast("B", (50, 100)))
    buffer[:] = bytes(10_000)  # the caller's again
    assert file.finish() == 12288
    assert storage.read("file")[:10_000] == expected


def test_a_name_is_taken_once(storage: LocalStorage) -> None:
    storage.new_file("file").abandon()
    with pytest.raises(FileExistsError):
        storage.new_file("file")
    assert storage.delete("file")
    written(storage, "file", [b"x"])


def test_an_abandoned_file_promises_nothing_and_gives_all_back(storage: LocalStorage) -> None:
    for i in range(12):  # more than there are buffers
        file = storage.new_file(f"file{i}")
        file.append(pattern(BLOCK + 5))
        file.abandon()
        file.abandon()
    written(storage, "good", [pattern(2 * BLOCK)])


def test_many_files_may_be_open_at_once(storage: LocalStorage) -> None:
    """All verbs may be called from several threads: a buffer begun in each must not be the last."""

    def work() -> None:
        files = [storage.new_file(f"file{i}") for i in range(12)]
        for i, file in enumerate(files):
            file.append(pattern(100, i))
        for i, file in enumerate(files):
            file.append(pattern(BLOCK, 100 + i))
        for file in files:
            file.finish()
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert done.wait(60), "12 open files wait for one another's buffers"
    for i in range(12):
        assert storage.read(f"file{i}").rstrip(b"\0") == (
            pattern(100, i) + pattern(BLOCK, 100 + i)
        ).rstrip(b"\0")


def test_streams_of_several_threads_do_not_mix(storage: LocalStorage) -> None:
    failures: list[BaseException] = []

    def write(i: int) -> None:
        try:
            file = storage.new_file(f"file{i}")
            data = pattern(2 * BLOCK + i * 1000, i)
            for at in range(0, len(data), 777_777):
                file.append(data[at : at + 777_777])
            file.finish()
            assert storage.read(f"file{i}")[: len(data)] == data
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=write, args=(i,), daemon=True) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures


def test_memory_stays_bounded_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer waits for the device; it does not gather the state in buffers."""
    storage = LocalStorage(tmp_path)
    gate = threading.Event()
    real = os.pwrite

    def slow(fd: int, data: memoryview, offset: int) -> int:
        gate.wait(30)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    file = storage.new_file("file")
    appended: list[int] = []

    def work() -> None:
        for i in range(12):
            file.append(pattern(BLOCK, i))
            appended.append(i)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert len(appended) <= WRITE_BUFFERS + 1
    gate.set()
    thread.join(60)
    assert file.finish() == 12 * BLOCK
    storage.close()


# -- failures ------------------------------------------------------------------------------------


def failing(error: int, after: int) -> tuple[list[int], object]:
    calls: list[int] = []
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > after:
            raise OSError(error, os.strerror(error))
        return real(fd, data, offset)

    return calls, pwrite


def append_and_finish(file: StreamFile, blocks: int) -> None:
    for i in range(blocks):
        file.append(pattern(BLOCK, i))
    file.finish()


@pytest.mark.parametrize(("error", "after"), [(errno.ENOSPC, 0), (errno.EIO, 1), (errno.EDQUOT, 3)])
def test_a_failed_write_reaches_the_caller(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, error: int, after: int
) -> None:
    _, pwrite = failing(error, after)
    with monkeypatch.context() as m:
        m.setattr(os, "pwrite", pwrite)
        file = storage.new_file("file")
        with pytest.raises(OSError, match=r".+") as e:
            append_and_finish(file, 10)
        assert e.value.errno == error
        file.abandon()
    # All buffers came back, and nothing is left that would fail the next file.
    written(storage, "next", [pattern(6 * BLOCK)])


def test_a_failed_fsync_reaches_the_caller_and_is_not_retried(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fsync(fd: int) -> None:
        synced.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    file = storage.new_file("file")
    file.append(b"x")
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Input/output"):
            file.finish()
        file.abandon()
    assert len(synced) == 1


@pytest.mark.parametrize("at_most", [PAGE, 3 * PAGE, PAGE - 96, 1000])
def test_short_writes_are_continued(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, at_most: int
) -> None:
    real = os.pwrite

    def short(fd: int, data: memoryview, offset: int) -> int:
        return real(fd, data[: at_most if offset % (5 * PAGE) else len(data)], offset)

    monkeypatch.setattr(os, "pwrite", short)
    written(storage, "file", [pattern(200_000)])


def test_a_file_system_that_refuses_direct_io_midway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    real = os.pwrite
    refused: list[int] = []

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    written(storage, "file", [pattern(3 * BLOCK)])
    assert refused
    storage.close()


def test_a_file_system_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some create the file and then refuse the flag."""
    storage = LocalStorage(tmp_path)
    real = os.open

    def open_(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_DIRECT:
            if flags & os.O_CREAT:
                os.close(real(path, flags & ~os.O_DIRECT, *args, **kwargs))
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_)
    written(storage, "file", [pattern(BLOCK + 1)])
    storage.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "castore-test", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_reaches_the_caller(tiny: Path) -> None:
    storage = LocalStorage(tiny)
    file = storage.new_file("file")
    with pytest.raises(OSError, match="No space left") as e:
        append_and_finish(file, 5)
    assert e.value.errno == errno.ENOSPC
    file.abandon()
    with pytest.raises(OSError, match="No space left"):
        storage.create("whole", bytes(13 << 20))
    assert [p.name for p in tiny.iterdir()] == ["file"]  # no temporary is left on the full disk
    with pytest.raises(OSError, match="No space left"):
        storage.write_advice("advice", bytes(13 << 20))
    assert [p.name for p in tiny.iterdir()] == ["file"]
    assert storage.delete("file")
    written(storage, "file", [pattern(BLOCK)])
    storage.close()


# -- forks ---------------------------------------------------------------------------------------

FORK = """
import os, sys
from castore.storage.local import LocalStorage
from castore.storage.stream import BLOCK
storage = LocalStorage(sys.argv[1])

def write(name, byte, n):
    file = storage.new_file(name)
    file.append(byte * n)
    return file

write("warm", b"w", BLOCK + 5).finish()  # threads and buffers are there now
held = [write(f"held{i}", b"h", 100) for i in range(4)]
turn, back = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    file = write("child", b"c", 1000)
    os.write(turn[1], b"x")
    os.read(back[0], 1)
    file.finish()
    os._exit(0)
os.read(turn[0], 1)
file = write("parent", b"p", 1000)  # while the child's waits half full
file.finish()
os.write(back[1], b"x")
assert os.waitpid(child, 0)[1] == 0
for f in held:
    f.finish()
"""


def test_a_forked_child_writes_its_own_bytes(tmp_path: Path) -> None:
    """Parent and child write at once: neither may find the other's bytes in its buffers."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, byte in (("parent", b"p"), ("child", b"c")):
        assert (tmp_path / name).read_bytes() == (byte * 1000).ljust(PAGE, b"\0"), name
    for i in range(4):
        assert (tmp_path / f"held{i}").read_bytes() == (b"h" * 100).ljust(PAGE, b"\0")


BUSY_FORK = """
import os, sys, threading
from castore.storage.local import LocalStorage
from castore.storage.stream import BLOCK
storage = LocalStorage(sys.argv[1])
real, gate = os.pwrite, threading.Event()

def waits(*args):
    gate.wait()
    return real(*args)

os.pwrite = waits
parent = storage.new_file("parent")
for _ in range(4):  # all that may be on their way are on their way
    parent.append(b"p" * BLOCK)
child = os.fork()
if child == 0:
    os.pwrite = real
    file = storage.new_file("child")
    file.append(b"c" * (3 * BLOCK))
    file.finish()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
parent.finish()
"""


def test_a_forked_child_does_not_wait_for_its_parent_s_device(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUSY_FORK, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,  # it would hang for ever
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "child").read_bytes() == b"c" * (3 * BLOCK)
    assert (tmp_path / "parent").read_bytes() == b"p" * (4 * BLOCK)


def test_buffers_are_aligned_and_used_again() -> None:
    pool = BufferPool(2)
    first = pool.take()
    address = ctypes.addressof(ctypes.c_char.from_buffer(first))
    assert address % PAGE == 0
    assert len(first) == BLOCK
    pool.give(first)
    assert first in (pool.take(), pool.take())
