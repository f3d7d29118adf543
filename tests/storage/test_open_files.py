"""Descriptors for reading: kept for the next reader, few, and never closed under one."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from castore.storage.files import OpenFiles
from castore.storage.local import OPEN_FILES, LocalStorage


def open_descriptors(below: Path) -> int:
    """How many descriptors of this process lead to files below a folder."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        count += target.startswith(f"{below}/")
    return count


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for i in range(40):
        (tmp_path / str(i)).write_bytes(b"%d" % i * 100)
    return [str(i) for i in range(40)]


def opener(folder: Path, opened: list[str] | None = None) -> Callable[[str], int]:
    def open_(name: str) -> int:
        if opened is not None:
            opened.append(name)
        return os.open(folder / name, os.O_RDONLY)

    return open_


def test_a_descriptor_is_used_again(tmp_path: Path, files: list[str]) -> None:
    opened: list[str] = []
    pool = OpenFiles(opener(tmp_path, opened), 4, 64)
    for _ in range(10):
        for name in files[:4]:
            with pool.reading(name) as fd:
                assert os.pread(fd, 2, 0) == (name * 2).encode()[:2]
    assert opened == files[:4]
    for name in files[:6]:
        with pool.reading(name):
            pass
    assert open_descriptors(tmp_path) == 4  # the two longest unused went
    opened.clear()
    for name in files[2:6]:
        with pool.reading(name):
            pass
    assert opened == []
    pool.close()
    assert open_descriptors(tmp_path) == 0


def test_two_readers_of_one_file_have_a_descriptor_each(tmp_path: Path, files: list[str]) -> None:
    pool = OpenFiles(opener(tmp_path), 4, 64)
    with pool.reading("1") as one, pool.reading("1") as two:
        assert one != two
        assert open_descriptors(tmp_path) == 2
    assert open_descriptors(tmp_path) == 1
    pool.close()


def test_forgetting_closes_what_is_idle(tmp_path: Path, files: list[str]) -> None:
    pool = OpenFiles(opener(tmp_path), 4, 64)
    with pool.reading("1") as fd:
        pool.forget("1")
        assert os.pread(fd, 1, 0) == b"1"  # one in use is never closed under its user
    pool.forget("1")
    pool.forget("never opened")
    assert open_descriptors(tmp_path) == 0


def test_an_error_of_the_reader_closes_the_descriptor(tmp_path: Path, files: list[str]) -> None:
    pool = OpenFiles(opener(tmp_path), 4, 64)
    with pytest.raises(ZeroDivisionError), pool.reading("1"):
        raise ZeroDivisionError
    assert open_descriptors(tmp_path) == 0
    with pytest.raises(FileNotFoundError), pool.reading("nothing"):
        pass
    assert open_descriptors(tmp_path) == 0


@pytest.mark.parametrize(("limit", "readers"), [(1, 3), (4, 1), (12, 64)])
def test_descriptors_stay_few_under_many_threads(
    tmp_path: Path, files: list[str], limit: int, readers: int
) -> None:
    """At most the limit, and one for each reader at work, of whom there are only so many."""
    pool = OpenFiles(opener(tmp_path), limit, readers)
    most = 0
    failures: list[BaseException] = []
    barrier = threading.Barrier(17)

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            barrier.wait()
            for _ in range(300):
                name = chosen.choice(files)
                with pool.reading(name) as fd:
                    assert os.pread(fd, 300, 0) == (name * 100).encode()[:300]
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        most = max(most, open_descriptors(tmp_path))
    assert not failures
    assert 0 < most <= limit + min(readers, 16)
    assert open_descriptors(tmp_path) <= limit
    pool.close()
    assert open_descriptors(tmp_path) == 0


def test_a_storage_keeps_few_descriptors(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.make_folder("packs")
    for i in range(60):
        storage.create(f"packs/{i}", b"%d" % i)
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        chosen = random.Random(seed)
        try:
            for _ in range(200):
                i = chosen.randrange(60)
                out = memoryview(bytearray(len(str(i))))
                assert storage.read_into(f"packs/{i}", 0, out, device=seed % 2 == 0) == len(out)
                assert bytes(out) == b"%d" % i
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, open_descriptors(tmp_path))
    assert not failures
    assert most <= OPEN_FILES + 2 + 16 * 2  # a reader holds its file, and on the way its folder
    assert open_descriptors(tmp_path) <= OPEN_FILES + 2
    storage.close()
    assert open_descriptors(tmp_path) == 0
