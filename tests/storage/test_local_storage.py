"""Files in a folder: created whole or not at all, and never found outside the store."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import StoreNotFound, UnsupportedFeature, UsageError
from castore.storage.filesystem import file_system_name, is_local_file_system, make_store_folder
from castore.storage.local import LocalStorage
from castore.storage.protocol import FateUnknown, check_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[LocalStorage]:
    made = LocalStorage(tmp_path)
    yield made
    made.close()


def temporaries(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.name.startswith(".")]


# -- names ---------------------------------------------------------------------------------------

GOOD = [
    "castore.json", "log/000000000001", "log/000000000256.fold", "packs/save/r00000-000.data.pack",
    "a", "A-b_c.d", "_x", "0", "x" * 200, "a..b", "a...", ".0123456789abcdef0123456789abcdef.tmp",
]  # fmt: skip
BAD = [
    "", ".", "..", "/", "/etc/passwd", "../x", "a/..", "a/../b", "./a", "a/./b", "a//b", "a/", "/a",
    "a/b/c/d", ".hidden", "a\0b", "a\nb", "a\n", " a", "a b", "~", "-a", "ключ", "a\\b", "x" * 201,
    ".x.tmp", ".0123456789ABCDEF0123456789ABCDEF.tmp", "a*", "٣", "\ud800", "a/\u2044b",
]  # fmt: skip
VERBS: dict[str, Any] = {
    "read": lambda s, n: s.read(n),
    "read_into": lambda s, n: s.read_into(n, 0, memoryview(bytearray(1))),
    "read_device": lambda s, n: s.read_into(n, 0, memoryview(bytearray(1)), device=True),
    "size": lambda s, n: s.size(n),
    "create": lambda s, n: s.create(n, b"x"),
    "new_file": lambda s, n: s.new_file(n),
    "delete": lambda s, n: s.delete(n),
    "make_folder": lambda s, n: s.make_folder(n),
    "remove_folder": lambda s, n: s.remove_folder(n),
    "write_advice": lambda s, n: s.write_advice(n, b"x"),
    "modified": lambda s, n: s.modified(n),
}


@pytest.mark.parametrize("name", GOOD)
def test_names_of_a_store(name: str) -> None:
    assert "/".join(check_name(name)) == name


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", BAD, ids=repr)
def test_no_verb_takes_another_name(
    tmp_path_factory: pytest.TempPathFactory, verb: str, name: str
) -> None:
    outer = tmp_path_factory.getbasetemp() / "names"
    (outer / "store").mkdir(parents=True, exist_ok=True)
    storage = LocalStorage(outer / "store")
    with pytest.raises(ValueError, match="not a file name"):
        VERBS[verb](storage, name)
    storage.close()
    assert sorted(p.name for p in outer.rglob("*")) == ["store"]


@pytest.mark.parametrize("name", [n for n in BAD if n])
def test_no_folder_of_another_name_is_listed_or_synced(storage: LocalStorage, name: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        storage.list(name)
    with pytest.raises(ValueError, match="not a file name"):
        storage.sync_folder(name)


@given(st.text(max_size=30))
def test_any_text_is_a_plain_name_or_refused(name: str) -> None:
    try:
        parts = check_name(name)
    except ValueError:
        return
    assert "/".join(parts) == name
    assert 1 <= len(parts) <= 3
    assert name.isascii()
    assert os.path.normpath(name) == name
    assert not os.path.isabs(name)
    assert ".." not in parts


# -- creating ------------------------------------------------------------------------------------


def test_create_is_whole_and_exclusive(tmp_path: Path, storage: LocalStorage) -> None:
    for n in (0, 1, 4096, 5_000_000):
        name, data = f"file{n}", os.urandom(n)
        assert storage.create(name, data)
        assert storage.read(name) == data
        assert not storage.create(name, b"other")
        assert storage.read(name) == data
        assert storage.size(name) == n
    assert temporaries(tmp_path) == []


def test_one_of_many_creates_wins(tmp_path: Path, storage: LocalStorage) -> None:
    barrier = threading.Barrier(8)
    won: dict[str, list[int]] = {f"file{i}": [] for i in range(20)}

    def create(i: int) -> None:
        for name, winners in won.items():
            barrier.wait()
            if storage.create(name, bytes([i]) * 1000):
                winners.append(i)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name, winners in won.items():
        assert len(winners) == 1
        assert storage.read(name) == bytes(winners) * 1000
    assert temporaries(tmp_path) == []


def test_a_name_taken_by_anything_is_taken(tmp_path: Path, storage: LocalStorage) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    for name in ("folder", "dangling", "fifo"):
        assert not storage.create(name, b"x")
        with pytest.raises(FileExistsError):
            storage.new_file(name)
    assert not (tmp_path / "nowhere").exists()


def test_creating_where_there_is_no_folder(storage: LocalStorage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.create("log/000000000001", b"x")
    with pytest.raises(FileNotFoundError):
        storage.new_file("packs/x")


def test_an_error_before_the_link_leaves_nothing(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def no_space(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space") as e:
        storage.create("file", b"x")
    assert not isinstance(e.value, FateUnknown)
    assert list(tmp_path.iterdir()) == []


def test_an_error_at_or_after_the_link_leaves_the_fate_open(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_link, real_sync = os.link, os.fsync

    def lost_reply(*args: Any, **kwargs: Any) -> None:
        real_link(*args, **kwargs)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", lost_reply)
    with pytest.raises(FateUnknown) as e:
        storage.create("one", b"x")
    assert e.value.errno == errno.EIO
    assert storage.read("one") == b"x"

    def no_folder_sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real_sync(fd)

    monkeypatch.setattr(os, "link", real_link)
    monkeypatch.setattr(os, "fsync", no_folder_sync)
    with pytest.raises(FateUnknown):
        storage.create("two", b"x")
    assert temporaries(tmp_path) == []


def test_a_temporary_file_that_gc_took_is_made_again(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    taken: list[str] = []

    def link(src: str, dst: str, **kwargs: Any) -> None:
        if not taken:
            taken.append(src)
            os.unlink(tmp_path / src)
        real(src, dst, **kwargs)

    monkeypatch.setattr(os, "link", link)
    assert storage.create("file", b"data")
    assert taken
    assert storage.read("file") == b"data"
    assert temporaries(tmp_path) == []


def test_what_was_synced_before_the_name_appears(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's data, then the link, then the folder: in that order, or a crash shows less."""
    steps: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def fsync(fd: int) -> None:
        steps.append("sync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        real_sync(fd)

    def link(*args: Any, **kwargs: Any) -> None:
        steps.append("link")
        real_link(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    storage.create("file", b"x")
    assert steps == ["sync file", "link", "sync folder"]
    steps.clear()
    storage.make_folder("packs")
    storage.make_folder("packs")  # it was there: another may just have made it
    assert steps == ["sync folder", "sync folder"]
    steps.clear()
    file = storage.new_file("packs/x")
    file.append(b"x")
    file.finish()
    assert steps == ["sync file"]
    storage.sync_folder("packs")
    assert steps == ["sync file", "sync folder"]


def test_advice_is_replaced_and_read_as_it_is_now(tmp_path: Path, storage: LocalStorage) -> None:
    storage.make_folder("sessions")
    other = LocalStorage(tmp_path)
    for i in range(3):
        storage.write_advice("sessions/me", b"beat %d" % i)
        assert storage.read("sessions/me") == b"beat %d" % i
        assert other.read("sessions/me") == b"beat %d" % i
    assert storage.modified("sessions/me") is not None
    assert storage.modified("sessions/you") is None
    assert temporaries(tmp_path) == []
    other.close()


def test_a_file_that_another_process_mended_is_read_as_it_is_now(
    tmp_path: Path, storage: LocalStorage
) -> None:
    """`fsck --repair` renames a sound log entry over a damaged one."""
    storage.make_folder("log")
    storage.create("log/000000000001", b"damaged")
    assert storage.read("log/000000000001") == b"damaged"
    (tmp_path / "mended").write_bytes(b"sound!!")
    (tmp_path / "mended").rename(tmp_path / "log/000000000001")
    assert storage.read("log/000000000001") == b"sound!!"
    (tmp_path / "log/000000000001").unlink()
    with pytest.raises(FileNotFoundError):
        storage.read("log/000000000001")


# -- reading, listing, deleting ------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["packs", "log"])
def test_parts_of_a_file(storage: LocalStorage, folder: str) -> None:
    data = os.urandom(10_000)
    storage.make_folder(folder)
    name = f"{folder}/x"
    storage.create(name, data)
    for offset, length in ((0, None), (0, 0), (0, 10), (9_990, 10), (9_990, 100), (20_000, 5),
                           (5_000, None), (20_000, None), (4095, 4098)):  # fmt: skip
        expected = data[offset:] if length is None else data[offset : offset + length]
        assert storage.read(name, offset, length) == expected
        for device in (False, True):
            out = bytearray(b"\xaa" * len(expected) + b"\xaa" * 3)
            n = storage.read_into(name, offset, memoryview(out), device=device)
            whole = data[offset : offset + len(out)]
            assert n == len(whole)
            assert out[:n] == whole
            assert out[n:] == b"\xaa" * (len(out) - n)


def test_what_is_not_there(storage: LocalStorage) -> None:
    for name in ("file", "packs/x", "packs/save/x"):
        with pytest.raises(FileNotFoundError):
            storage.read(name)
        with pytest.raises(FileNotFoundError):
            storage.read_into(name, 0, memoryview(bytearray(1)), device=True)
        assert storage.size(name) is None
        assert storage.delete(name) is False
        assert storage.remove_folder(name) is False
        assert storage.list(name) == []
    storage.create("file", b"x")
    assert storage.size("file/x") is None
    assert storage.list("file") == []


def test_deleting(tmp_path: Path, storage: LocalStorage) -> None:
    storage.make_folder("packs")
    storage.create("packs/x", b"1")
    assert storage.read("packs/x") == b"1"
    assert storage.remove_folder("packs") is False
    assert storage.delete("packs/x") is True
    with pytest.raises(FileNotFoundError):
        storage.read("packs/x")
    assert storage.create("packs/x", b"2")
    assert storage.read("packs/x") == b"2"
    storage.delete("packs/x")
    assert storage.remove_folder("packs") is True
    assert list(tmp_path.iterdir()) == []


def test_listing(tmp_path: Path, storage: LocalStorage) -> None:
    for name in ("b", "a", "c"):
        storage.create(name, b"")
    (tmp_path / "ключ").touch()
    (tmp_path / os.fsdecode(b"\xff\xfe")).touch()  # no UTF-8: a stranger, listed and left alone
    assert storage.list() == sorted(["a", "b", "c", "ключ", "\udcff\udcfe"])


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(StoreNotFound):
            LocalStorage(path)


def test_the_store_s_folder_is_made_once(tmp_path: Path) -> None:
    def make(path: Path) -> None:
        make_store_folder(path, "castore.json", {"log", "packs", "castore.json"})

    make(tmp_path / "x")
    make(tmp_path / "x")
    assert (tmp_path / "x").is_dir()
    (tmp_path / "x" / "log").mkdir()  # one that is just being made
    (tmp_path / "x" / ".0123.tmp").touch()
    make(tmp_path / "x")
    (tmp_path / "x" / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        make(tmp_path / "x")
    (tmp_path / "x" / "castore.json").touch()
    make(tmp_path / "x")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        make(tmp_path / "file")
    for path in (tmp_path / "no" / "parent", tmp_path / "file" / "below"):
        with pytest.raises(StoreNotFound):
            make(path)


def test_a_store_whose_folder_was_moved_stays_the_same(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    storage = LocalStorage(tmp_path / "one")
    storage.create("file", b"x")
    (tmp_path / "one").rename(tmp_path / "two")
    (tmp_path / "one").mkdir()
    assert storage.read("file") == b"x"
    storage.create("more", b"y")
    assert (tmp_path / "two" / "more").exists()
    storage.close()


# -- hostile folders -----------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret")
    (folder / "file").write_bytes(b"secret")
    return folder


def test_a_symbolic_link_in_a_file_s_place_is_not_followed(
    tmp_path: Path, storage: LocalStorage, secret: Path
) -> None:
    (tmp_path / "packs").mkdir()
    for place in ("file", "packs/file"):
        (tmp_path / place).symlink_to(secret / "file")
        for read in ("read", "read_into", "read_device"):
            with pytest.raises(OSError, match=r".+"):
                VERBS[read](storage, place)
        assert storage.size(place) is None
        assert not storage.create(place, b"x")
        with pytest.raises(FileExistsError):
            storage.new_file(place)
        assert storage.delete(place)  # the link goes, what it points at stays
    (tmp_path / "advice").symlink_to(secret / "file")
    storage.write_advice("advice", b"x")  # replaced, not written through
    assert (secret / "file").read_bytes() == b"secret"


def test_a_symbolic_link_in_a_folder_s_place_is_not_followed(
    tmp_path: Path, storage: LocalStorage, secret: Path
) -> None:
    (tmp_path / "packs").symlink_to(secret)
    before = sorted(secret.iterdir())
    assert storage.list("packs") == []
    assert storage.size("packs/file") is None
    for verb in ("read", "read_into", "read_device", "create", "new_file", "write_advice"):
        with pytest.raises(OSError, match=r".+"):
            VERBS[verb](storage, "packs/file")
        with pytest.raises(OSError, match=r".+"):
            VERBS[verb](storage, "packs/new")
    for verb in ("delete", "make_folder", "remove_folder"):
        with pytest.raises(OSError, match=r".+"):
            VERBS[verb](storage, "packs/file")
    with pytest.raises(OSError, match=r".+"):
        storage.sync_folder("packs")
    assert sorted(secret.iterdir()) == before
    assert (secret / "file").read_bytes() == b"secret"


HANG = """
import sys
from castore.storage.local import LocalStorage
storage = LocalStorage(sys.argv[1])
for name in ("fifo", "packs/fifo"):
    for act in (
        lambda: storage.read(name),
        lambda: storage.read_into(name, 0, memoryview(bytearray(4))),
        lambda: storage.read_into(name, 0, memoryview(bytearray(4)), device=True),
        lambda: storage.new_file(name),
    ):
        try:
            act()
        except OSError:
            continue
        sys.exit(1)
    assert storage.size(name) is None
    assert storage.create(name, b"x") is False
print("done")
"""


def test_a_fifo_in_a_file_s_place_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "packs/fifo")
    done = subprocess.run(
        [sys.executable, "-c", HANG, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,  # it would hang for ever
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_devices_and_sockets_are_no_files(tmp_path: Path, storage: LocalStorage) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
        with pytest.raises(OSError, match=r".+"):
            storage.read("sock")
        assert storage.size("sock") is None
    if os.geteuid() == 0:
        os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: endless
        with pytest.raises(OSError, match=r".+"):
            storage.read("zero")
        with pytest.raises(OSError, match=r".+"):
            storage.read_into("zero", 0, memoryview(bytearray(4)), device=True)
        assert storage.size("zero") is None


# -- the file system -----------------------------------------------------------------------------


def test_the_probe_leaves_nothing(tmp_path: Path, storage: LocalStorage) -> None:
    storage.probe()
    assert list(tmp_path.iterdir()) == []
    assert storage.free() > 0
    assert storage.writable()
    assert storage.file_system_name() == file_system_name(tmp_path)
    assert is_local_file_system("/dev/shm")
    assert file_system_name("/dev/shm") == "tmpfs"
    assert not is_local_file_system("/proc")
    assert not is_local_file_system(tmp_path / "nothing")


def test_a_probe_refuses_a_file_system_without_links(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(UnsupportedFeature, match="no hard links"):
        storage.probe()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lacking", ["exclusive links", "exclusive creation"])
def test_a_probe_refuses_a_file_system_that_lets_two_win(
    tmp_path: Path, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    real_link, real_open = os.link, os.open

    def link(src: str, dst: str, **kwargs: Any) -> None:
        try:
            real_link(src, dst, **kwargs)
        except FileExistsError:
            if lacking != "exclusive links":
                raise

    def open_(path: str, flags: int, *args: Any, **kwargs: Any) -> int:
        if lacking == "exclusive creation":
            flags &= ~os.O_EXCL
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "open", open_)
    with pytest.raises(UnsupportedFeature, match=lacking):
        storage.probe()
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    storage = LocalStorage(tmp_path)
    storage.make_folder("packs")
    for i in range(50):
        storage.create(f"packs/{i}", b"x")
        storage.read(f"packs/{i}")
        storage.read_into(f"packs/{i}", 0, memoryview(bytearray(1)), device=True)
        for name in ("link", "fifo", "nothing", "packs/nothing", "no/folder"):
            with pytest.raises(OSError, match=r".+"):
                storage.read(name)
        file = storage.new_file(f"packs/new{i}")
        file.append(b"x")
        if i % 2:
            file.finish()
        file.abandon()
    storage.probe()
    assert count() - before < 20
    storage.close()
    storage.close()
    assert count() == before


def test_a_link_whose_answer_was_no_and_cannot_be_tried_again_is_of_unknown_fate(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_link, really_write, tried = os.link, os.write, []

    def link(src: str, dst: str, **kwargs: int) -> None:
        really_link(src, dst, **kwargs)
        tried.append(dst)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    def write(fd: int, data: bytes) -> int:
        if tried:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(fd, data)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(FateUnknown) as caught:
        storage.create("file", b"data")
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"data"
    assert temporaries(tmp_path) == []


def test_a_device_that_reads_short_is_read_on(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(100_000)
    storage.create("file", data)
    really = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, out, at: really(fd, [out[0][:8192]], at))
    for start, length in ((0, 100_000), (5000, 50_000), (90_000, 20_000), (100_000, 1)):
        out = bytearray(length)
        n = storage.read_into("file", start, memoryview(out), device=True)
        assert bytes(out[:n]) == data[start : start + length]
