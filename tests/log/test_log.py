"""The log on a real folder: appended to from all sides, and read with whatever befell it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from castore.errors import StoreUnreadable, UnsupportedFeature
from castore.log.entry import (
    FIRST_PREV,
    Change,
    Condemned,
    Entry,
    Features,
    Lost,
    Pin,
    SetBranch,
    SetTag,
    Window,
    entry_name,
)
from castore.log.fold import Fold, render_fold
from castore.log.log import FOLD_EVERY, AppendFateUnknown, Log, fold_name
from castore.model.digest import Digest
from castore.storage.local import LocalStorage
from castore.storage.protocol import FateUnknown
from tests.golden.spec import digest, hash_in, mp
from tests.log.changes import STORE
from tests.storage.memory import MemoryStorage

ROOT = Path(__file__).resolve().parents[2]
ONE, TWO = Digest(digest(1)), Digest(digest(2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path


@pytest.fixture
def storage(folder: Path) -> Iterator[LocalStorage]:
    with_log = LocalStorage(folder)
    yield with_log
    with_log.close()


def mark(name: str, n: int = 1) -> Window:
    """A change that leaves its mark in ``fold.windows`` and rests on nothing else."""
    return Window(name, (("keep_last", n),))


def put(log: Log, name: str, n: int = 1) -> Entry:
    entry = log.append(lambda _: (mark(name, n),), f"put {name}")
    assert entry is not None
    return entry


def filled(storage: LocalStorage | MemoryStorage, n: int) -> list[Entry]:
    log = Log(storage, STORE)
    return [put(log, f"t{i}") for i in range(1, n + 1)]


def entries(storage: LocalStorage | MemoryStorage, n: int) -> list[Entry]:
    """Entries 1 to n, each checked against the one before it."""
    log = Log(storage, STORE)
    found = [log.entry(i) for i in range(1, n + 1)]
    prev = FIRST_PREV
    for i, entry in enumerate(found, 1):
        assert (entry.seq, entry.prev) == (i, prev)
        prev = entry.digest()
    return found


class Fickle(LocalStorage):
    """Its ``create`` and ``sync_folder`` may do other things than they say."""

    on_create: Callable[[str, bytes], bool] | None = None
    on_sync: Callable[[], None] | None = None

    def really_create(self, name: str, data: bytes) -> bool:
        return super().create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        act, self.on_create = self.on_create, None
        return act(name, data) if act else super().create(name, data)

    def sync_folder(self, name: str) -> None:
        act, self.on_sync = self.on_sync, None
        if act:
            act()
        super().sync_folder(name)


@pytest.fixture
def fickle(folder: Path) -> Iterator[Fickle]:
    made = Fickle(folder)
    yield made
    made.close()


# -- appending from many sides -------------------------------------------------------------------


def check_appended(storage: LocalStorage, writers: int, each: int) -> None:
    """No gap, no duplicate, the chain whole, every writer's entries in its own order."""
    log = Log(storage, STORE)
    assert log.fold().seq == writers * each
    assert log.listed() == list(range(1, writers * each + 1))
    found = entries(storage, writers * each)
    assert len({entry.act for entry in found}) == len(found)
    names = [change.branch for entry in found for change in entry.changes]
    for w in range(writers):
        assert [n for n in names if n.startswith(f"{w}-")] == [f"{w}-{i:02d}" for i in range(each)]
    assert set(log.fold().windows) == set(names)
    assert not [name for name in storage.list("log") if name.startswith(".")]


@pytest.mark.parametrize("shared", [True, False], ids=["one Log", "a Log each"])
def test_threads_append_side_by_side(folder: Path, storage: LocalStorage, shared: bool) -> None:
    one = Log(storage, STORE)
    failures: list[BaseException] = []

    def write(w: int) -> None:
        own = LocalStorage(folder)
        try:
            log = one if shared else Log(own, STORE)
            for i in range(50):
                put(log, f"{w}-{i:02d}")
        except BaseException as e:
            failures.append(e)
        finally:
            own.close()

    threads = [threading.Thread(target=write, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_appended(storage, 4, 50)


WRITER = """
import sys
from castore.log.entry import Window
from castore.log.log import Log
from castore.storage.local import LocalStorage
folder, writer, each = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = Log(LocalStorage(folder), bytes(range(16)))
print("ready", flush=True)
sys.stdin.readline()
for i in range(each):
    log.append(lambda _: (Window(f"{writer}-{i:02d}", ()),), "test")
"""


def test_processes_append_side_by_side(folder: Path, storage: LocalStorage) -> None:
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, str(folder), str(w), "50"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=ROOT,
                )
            )
            for w in range(4)
        ]
        for writer in writers:
            assert writer.stdout
            assert writer.stdout.readline() == b"ready\n"
        for writer in writers:  # all at once
            assert writer.stdin
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
        for writer in writers:
            writer.communicate(timeout=120)
    assert [writer.returncode for writer in writers] == [0] * 4
    check_appended(storage, 4, 50)


def test_a_number_that_is_taken_is_decided_on_again(fickle: Fickle, storage: LocalStorage) -> None:
    filled(storage, 2)
    log, other = Log(fickle, STORE), Log(storage, STORE)
    seen: list[int] = []
    rivals = iter(["rival-1", "rival-2"])

    def decide(fold: Fold) -> tuple[Change, ...]:
        seen.append(fold.seq)
        return (mark(f"on-{fold.seq}"),)

    def create(name: str, data: bytes) -> bool:
        if rival := next(rivals, None):
            fickle.on_create = create
            put(other, rival)
        return fickle.really_create(name, data)

    fickle.on_create = create
    entry = log.append(decide, "test")
    assert entry is not None
    assert seen == [2, 3, 4]
    assert entry.seq == 5
    assert entry.changes == (mark("on-4"),)
    assert [e.changes[0] for e in entries(storage, 5)[2:]] == [
        mark("rival-1"),
        mark("rival-2"),
        mark("on-4"),
    ]
    assert other.fold().windows == log.fold().windows


def test_nothing_to_do_makes_no_entry(storage: LocalStorage) -> None:
    log = Log(storage, STORE)
    assert log.append(lambda _: (), "test") is None
    assert log.fold().seq == 0
    assert storage.list("log") == []


def test_what_decide_raises_ends_the_act(storage: LocalStorage) -> None:
    filled(storage, 1)

    def decide(_fold: Fold) -> tuple[Change, ...]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Log(storage, STORE).append(decide, "test")
    assert storage.list("log") == ["000000000001"]


# -- replies that are lost, and worse ------------------------------------------------------------


def lost_reply() -> FateUnknown:
    return FateUnknown(errno.EIO, "the reply was lost", "log")


def test_a_lost_reply_is_recognised_as_success(fickle: Fickle) -> None:
    filled(fickle, 2)
    log = Log(fickle, STORE)
    synced: list[str] = []

    def create(name: str, data: bytes) -> bool:
        assert fickle.really_create(name, data)
        fickle.on_sync = lambda: synced.append("log")
        raise lost_reply()

    fickle.on_create = create
    entry = put(log, "mine")
    assert entry.seq == 3
    assert log.entry(3) == entry
    assert synced == ["log"]  # the folder's fsync may be what failed: it is done again
    assert put(log, "next").seq == 4
    entries(fickle, 4)


def test_a_reply_that_says_taken_although_it_is_ours(fickle: Fickle) -> None:
    """NFS: the link succeeded, its reply was lost, and the retry says EEXIST."""
    log = Log(fickle, STORE)

    def create(name: str, data: bytes) -> bool:
        assert fickle.really_create(name, data)
        return False

    fickle.on_create = create
    assert put(log, "mine").seq == 1
    assert Log(fickle, STORE).fold().seq == 1


def test_a_lost_reply_whose_number_is_another_s_is_decided_on_again(fickle: Fickle) -> None:
    log = Log(fickle, STORE)

    def create(name: str, data: bytes) -> bool:
        put(Log(fickle, STORE), "rival")
        raise lost_reply()

    fickle.on_create = create
    assert put(log, "mine").seq == 2
    assert set(Log(fickle, STORE).fold().windows) == {"rival", "mine"}


def test_an_unknown_fate_without_a_file_is_said(fickle: Fickle) -> None:
    filled(fickle, 2)
    log = Log(fickle, STORE)

    def create(name: str, data: bytes) -> bool:
        raise lost_reply()

    fickle.on_create = create
    with pytest.raises(AppendFateUnknown) as e:
        put(log, "mine")
    assert e.value.seq == 3
    assert e.value.cause.errno == errno.EIO
    # The store goes on.
    assert put(log, "later").seq == 3
    assert Log(fickle, STORE).fold().seq == 3


def test_a_create_that_says_yes_and_leaves_nothing(fickle: Fickle) -> None:
    log = Log(fickle, STORE)
    fickle.on_create = lambda name, data: True
    with pytest.raises(AppendFateUnknown):
        put(log, "mine")


def test_a_number_said_to_be_taken_that_nobody_sees_may_be_ours(
    fickle: Fickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the retried link says EEXIST, and a stale look finds no such name."""
    log = Log(fickle, STORE)
    really_size = fickle.size

    def create(name: str, data: bytes) -> bool:
        assert fickle.really_create(name, data)
        monkeypatch.setattr(fickle, "size", lambda n: None if n == name else really_size(n))
        return False

    fickle.on_create = create
    with pytest.raises(AppendFateUnknown):
        put(log, "mine")
    monkeypatch.undo()
    assert set(Log(fickle, STORE).fold().windows) == {"mine"}


def test_a_success_that_cannot_be_made_durable_is_of_unknown_fate(fickle: Fickle) -> None:
    log = Log(fickle, STORE)

    def fail() -> None:
        raise OSError(errno.EIO, "fsync failed", "log")

    def create(name: str, data: bytes) -> bool:
        assert fickle.really_create(name, data)
        fickle.on_sync = fail
        raise lost_reply()

    fickle.on_create = create
    with pytest.raises(AppendFateUnknown):
        put(log, "mine")


def test_an_entry_that_cannot_be_read_back_is_of_unknown_fate(fickle: Fickle) -> None:
    log = Log(fickle, STORE)

    def create(name: str, data: bytes) -> bool:
        return fickle.really_create(name, bytes(len(data)))

    fickle.on_create = create
    with pytest.raises(AppendFateUnknown):
        put(log, "mine")


def test_an_error_before_the_link_is_the_system_s(fickle: Fickle) -> None:
    log = Log(fickle, STORE)

    def create(name: str, data: bytes) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    fickle.on_create = create
    with pytest.raises(OSError, match="No space") as e:
        put(log, "mine")
    assert e.value.errno == errno.ENOSPC
    assert put(log, "mine").seq == 1


class Recorded(LocalStorage):
    """Notes what is done to the log."""

    done: list[tuple[str, str]]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        self.done.append(("read", name))
        return data

    def create(self, name: str, data: bytes) -> bool:
        self.done.append(("create", name))
        return super().create(name, data)

    def sync_folder(self, name: str) -> None:
        self.done.append(("sync", name))
        super().sync_folder(name)

    def delete(self, name: str) -> bool:
        self.done.append(("delete", name))
        return super().delete(name)


@pytest.fixture
def recorded(folder: Path) -> Iterator[Recorded]:
    made = Recorded(folder)
    made.done = []
    yield made
    made.close()


def test_another_s_entry_is_made_durable_before_it_is_built_on(
    recorded: Recorded, storage: LocalStorage
) -> None:
    log = Log(recorded, STORE)
    put(log, "mine")
    filled(storage, 1)  # another process: entry 2
    recorded.done.clear()
    assert put(log, "mine too").seq == 3
    steps = [(what, name) for what, name in recorded.done if what != "read" or name[-1] == "2"]
    assert steps[:3] == [("read", entry_name(2)), ("sync", "log"), ("create", entry_name(3))]
    recorded.done.clear()
    put(log, "and one more")
    assert ("sync", "log") not in recorded.done  # its own entries are durable already


def test_another_s_entry_is_made_durable_before_a_fold_file_rests_on_it(
    recorded: Recorded, storage: LocalStorage
) -> None:
    filled(storage, 3)
    log = Log(recorded, STORE)
    log.write_fold_file(log.fold())
    steps = [step for step in recorded.done if step[0] != "read"]
    assert steps == [("sync", "log"), ("create", fold_name(3))]


# -- damage --------------------------------------------------------------------------------------


def log_file(folder: Path, seq: int) -> Path:
    return folder / entry_name(seq)


def damage(path: Path, *halves: int) -> None:
    data = bytearray(path.read_bytes())
    for half in halves:
        data[len(data) // 2 * half + 60] ^= 0x20
    path.write_bytes(data)


def refuses(storage: LocalStorage, match: str) -> None:
    """Reading says so, and appending does nothing."""
    with pytest.raises(StoreUnreadable, match=match):
        Log(storage, STORE).fold()
    before = storage.list("log")
    called: list[Fold] = []

    def decide(fold: Fold) -> tuple[Change, ...]:
        called.append(fold)
        return (mark("x"),)

    with pytest.raises(StoreUnreadable, match=match):
        Log(storage, STORE).append(decide, "test")
    assert not called
    assert storage.list("log") == before


@pytest.mark.parametrize("missing", [1, 2, 3, 5])
def test_a_gap_is_damage(folder: Path, storage: LocalStorage, missing: int) -> None:
    filled(storage, 6)
    warm = Log(storage, STORE)
    warm.fold()
    log_file(folder, missing).unlink()
    refuses(storage, f"entry {missing} .*missing")
    # One who has folded past it needs it no more.
    assert warm.fold().seq == 6


@pytest.mark.parametrize("width", [1, 2, 30, 63, 64])
def test_a_wide_gap_is_damage(storage: LocalStorage, width: int) -> None:
    found = filled(storage, 2)
    beyond = Entry(3 + width, found[-1].digest(), bytes(16), 0, "", "", STORE, ())
    storage.create(entry_name(beyond.seq), beyond.render())
    refuses(storage, "entry 3 .*missing")


@pytest.mark.parametrize("width", [1, 30, 64])
def test_a_gap_is_seen_though_the_listing_is_stale(
    fickle: Fickle, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A listing is only a hint: numbers are probed by name."""
    found = filled(fickle, 2)
    beyond = Entry(2 + width + 1, found[-1].digest(), bytes(16), 0, "", "", STORE, ())
    assert fickle.really_create(entry_name(beyond.seq), beyond.render())
    monkeypatch.setattr(fickle, "list", lambda folder="": ["000000000001"])
    refuses(fickle, "entry 3 .*missing")


def test_entries_are_found_though_the_listing_is_stale(
    fickle: Fickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(fickle, 5)
    monkeypatch.setattr(fickle, "list", lambda folder="": [])
    log = Log(fickle, STORE)
    assert log.fold().seq == 5
    assert put(log, "next").seq == 6


def test_a_writer_that_was_overtaken_sees_the_gap_too(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 3)
    log = Log(storage, STORE)
    log.fold()
    filled(storage, 2)
    log_file(folder, 4).unlink()
    with pytest.raises(StoreUnreadable, match=r"entry 4 .*missing"):
        put(log, "x")
    assert not log_file(folder, 4).exists()


@pytest.mark.parametrize("folds", [(5,), (3, 5), (5, 4)])
def test_the_last_entry_gone_under_a_fold_file_is_damage(
    folder: Path, storage: LocalStorage, folds: tuple[int, ...]
) -> None:
    """Its number must not be given again: what was built on it may still be there."""
    log = Log(storage, STORE)
    for i in range(1, 6):
        put(log, f"t{i}")
        if i in folds:
            log.write_fold_file(log.fold())
    log_file(folder, 5).unlink()
    refuses(storage, "entry 5 .*missing")
    # Fold files are derived: without it, the log is one that ends at 4.
    (folder / fold_name(5)).unlink()
    assert Log(storage, STORE).fold().seq == 4


def test_the_last_entries_gone_under_a_fold_file_are_damage(
    folder: Path, storage: LocalStorage
) -> None:
    filled(storage, 5)
    log = Log(storage, STORE)
    log.write_fold_file(log.fold())
    for seq in range(1, 6):
        log_file(folder, seq).unlink()
    refuses(storage, "entry [15] .*missing")


@pytest.mark.parametrize("seq", [1, 3, 5])
@pytest.mark.parametrize("half", [0, 1])
def test_a_damaged_half_is_read_from_the_other(
    folder: Path, storage: LocalStorage, seq: int, half: int
) -> None:
    made = filled(storage, 5)
    damage(log_file(folder, seq), half)
    log = Log(storage, STORE)
    assert set(log.fold().windows) == {f"t{i}" for i in range(1, 6)}
    entry, problems = log.examine(seq)
    assert entry == made[seq - 1]
    assert len(problems) == 1
    assert log.examine(seq % 5 + 1)[1] == []
    assert put(log, "next").seq == 6


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_both_halves_damaged_is_unreadable(folder: Path, storage: LocalStorage, seq: int) -> None:
    filled(storage, 5)
    damage(log_file(folder, seq), 0, 1)
    refuses(storage, f"entry {seq} .*damaged")


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(8192), b"castlog\x01", b"castlog\x01" + b"\xff" * 8184]
)
def test_a_torn_entry_is_damage_and_never_a_free_number(
    folder: Path, storage: LocalStorage, content: bytes
) -> None:
    filled(storage, 2)
    log_file(folder, 3).write_bytes(content)
    refuses(storage, r"entry 3 .*damaged")


def test_an_entry_in_another_s_place_is_damage(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 3)
    log_file(folder, 3).write_bytes(log_file(folder, 2).read_bytes())
    refuses(storage, r"it is entry 2, in the place of 3")


def test_an_entry_of_another_store_is_refused(
    folder: Path, storage: LocalStorage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    filled(storage, 2)
    other = tmp_path_factory.mktemp("other")
    (other / "log").mkdir()
    theirs = LocalStorage(other)
    log = Log(theirs, bytes(16))
    for name in ("a", "b", "c"):
        put(log, name)
    log_file(folder, 3).write_bytes((other / entry_name(3)).read_bytes())
    refuses(storage, "it is of store 0000")
    theirs.close()


def test_an_entry_of_another_history_breaks_the_chain(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 3)
    stranger = Entry(3, TWO, bytes(16), 0, "", "", STORE, (mark("x"),))
    log_file(folder, 3).write_bytes(stranger.render())
    refuses(storage, "entry 3 names")


@pytest.mark.parametrize("what", ["folder", "symlink", "fifo"])
def test_what_is_no_file_in_an_entry_s_place_is_damage(
    folder: Path, storage: LocalStorage, what: str
) -> None:
    filled(storage, 2)
    path = log_file(folder, 3)
    if what == "folder":
        path.mkdir()
    elif what == "symlink":
        path.symlink_to(log_file(folder, 2))
    else:
        os.mkfifo(path)
    # No regular file: not an entry; but its number cannot be had either.
    log = Log(storage, STORE)
    with pytest.raises((StoreUnreadable, AppendFateUnknown)):
        put(log, "x")
    assert storage.size(entry_name(3)) is None


def test_strangers_in_the_folder_are_no_entries(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 2)
    for name in (".0123456789abcdef0123456789abcdef.tmp", "3", "0000000000003", "notes.txt",
                 "٠٠٠٠٠٠٠٠٠٠٠٣", "٠٠٠٠٠٠٠٠٠٠٠٣.fold", "000000000003.fold.old"):  # fmt: skip
        (folder / "log" / name).write_bytes(b"x")
    log = Log(storage, STORE)
    assert log.fold().seq == 2
    assert log.listed() == [1, 2]
    assert log.fold_files() == []
    assert put(log, "next").seq == 3


@pytest.mark.parametrize(
    "change",
    [SetTag("x", ONE), SetBranch("x", ONE), Pin("x", ONE, ())],
    ids=lambda c: c.tag,
)
def test_a_ref_to_what_is_not_live_is_damage(storage: LocalStorage, change: Change) -> None:
    found = filled(storage, 2)
    entry = Entry(3, found[-1].digest(), bytes(16), 0, "", "", STORE, (change,))
    storage.create(entry_name(3), entry.render())
    refuses(storage, "after entry 3, .*not live")


# -- what a newer castore wrote ------------------------------------------------------------------


def put_record(storage: LocalStorage, seq: int, prev: Digest, changes: list[Any]) -> None:
    record = mp(
        {"act": bytes(16), "changes": changes, "prev": bytes(prev), "seq": seq, "store": STORE,
         "time": 0, "why": "", "writer": ""}
    )  # fmt: skip
    head = b"castlog\x01" + len(record).to_bytes(8, "little")
    copy = head + hash_in("castore 1 log entry", record) + record
    assert storage.create(entry_name(seq), copy.ljust(4096, b"\0") * 2)


def test_an_unknown_kind_of_change_is_an_unsupported_feature(storage: LocalStorage) -> None:
    found = filled(storage, 2)
    put_record(storage, 3, found[-1].digest(), [["window", "x", []], ["rebase", "main"]])
    log = Log(storage, STORE)
    with pytest.raises(UnsupportedFeature, match="'rebase'"):
        log.fold()
    with pytest.raises(UnsupportedFeature):
        put(log, "x")
    assert log.listed() == [1, 2, 3]


def test_a_required_feature_that_is_not_known_refuses_the_store(storage: LocalStorage) -> None:
    filled(storage, 1)
    log = Log(storage, STORE)
    log.append(lambda _: (Features((), ("colours",)),), "test")
    assert log.fold().optional == ("colours",)
    writer = Log(storage, STORE)
    writer.append(lambda _: (Features(("deltas",), ()),), "test")
    for reader in (log, Log(storage, STORE)):
        with pytest.raises(UnsupportedFeature, match="deltas"):
            reader.fold()
        with pytest.raises(UnsupportedFeature):
            put(reader, "x")


# -- entries that are lost for ever --------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("later", [4, 7])
def test_a_lost_entry_takes_effect_in_its_place(
    folder: Path, storage: LocalStorage, how: str, later: int
) -> None:
    """Entry 4 changes what entry 3 set: told of later, entry 3 must not win."""
    log = Log(storage, STORE)
    put(log, "t1")
    put(log, "t2")
    third = log.append(lambda _: (mark("here", 1), mark("changed", 1)), "test")
    assert third is not None
    put(log, "changed", 2)
    while log.fold().seq < later:
        put(log, "more")
    expected = log.fold().windows
    additions = tuple(("window", name, (("keep_last", 1),)) for name in ("here", "changed"))
    log.append(lambda _: (Lost(3, third.digest(), additions),), "repair")
    put(log, "after")
    path = log_file(folder, 3)
    if how == "missing":
        path.unlink()
    else:
        damage(path, 0, 1)
    fold = Log(storage, STORE).fold()
    assert fold.seq == later + 2
    assert fold.windows == {**expected, "after": (("keep_last", 1),)}
    assert fold.windows["changed"] == (("keep_last", 2),)
    assert put(Log(storage, STORE), "next").seq == later + 3


def test_nothing_is_known_of_a_lost_entry(folder: Path, storage: LocalStorage) -> None:
    found = filled(storage, 4)
    log = Log(storage, STORE)
    log.append(lambda _: (Lost(2, found[1].digest(), ()),), "repair")
    damage(log_file(folder, 2), 0, 1)
    assert set(Log(storage, STORE).fold().windows) == {"t1", "t3", "t4"}


def test_a_lost_entry_that_can_be_read_counts_as_it_is(storage: LocalStorage) -> None:
    found = filled(storage, 4)
    log = Log(storage, STORE)
    log.append(lambda _: (Lost(2, found[1].digest(), ()),), "repair")
    assert set(Log(storage, STORE).fold().windows) == {"t1", "t2", "t3", "t4"}


@pytest.mark.parametrize(
    "lost",
    [
        Lost(2, TWO, ()),  # not the digest that entry 3 names
        Lost(3, ONE, ()),
        Lost(2, ONE, (("window",),)),
        Lost(2, ONE, ((),)),
        Lost(2, ONE, (("unlist", "nowhere", ()),)),
        Lost(2, ONE, (5,)),
    ],
    ids=repr,
)
def test_a_false_word_about_a_lost_entry_is_unreadable(
    folder: Path, storage: LocalStorage, lost: Lost
) -> None:
    found = filled(storage, 4)
    record = found[1].digest() if lost.record == ONE else lost.record
    log = Log(storage, STORE)
    log.append(lambda _: (Lost(lost.seq, record, lost.additions),), "repair")
    damage(log_file(folder, 2), 0, 1)
    with pytest.raises(StoreUnreadable):
        Log(storage, STORE).fold()


# -- fold files ----------------------------------------------------------------------------------


def test_a_fold_file_is_written_every_256_entries_and_two_are_kept() -> None:
    storage = MemoryStorage()
    log = Log(storage, STORE)
    kept = {255: [], 256: [256], 511: [256], 512: [512, 256], 768: [768, 512], 1024: [1024, 768]}
    for i in range(1, 1025):
        put(log, f"t{i % 10}")
        if i in kept:
            assert log.fold_files() == kept[i]
    assert FOLD_EVERY == 256
    assert bytes(storage.files[fold_name(1024)]) == render_fold(log.fold(), STORE)
    assert len(log.listed()) == 1024  # entries are never deleted


def test_a_fold_file_saves_reading(recorded: Recorded) -> None:
    filled(recorded, 20)
    log = Log(recorded, STORE)
    log.write_fold_file(log.fold())
    filled(recorded, 3)
    recorded.done.clear()
    fold = Log(recorded, STORE).fold()
    assert fold.seq == 23
    read = [name for what, name in recorded.done if what == "read"]
    assert read == [fold_name(20), *(entry_name(i) for i in range(20, 24))]


@pytest.mark.parametrize(
    "content",
    [b"", b"castfold1", bytes(100), "flip", "cut", "another store", "another place", "stale"],
)
def test_damaged_fold_files_are_ignored(folder: Path, storage: LocalStorage, content: Any) -> None:
    log = Log(storage, STORE)
    for i in range(1, 7):
        put(log, f"t{i}")
        if i in (2, 4):
            log.write_fold_file(log.fold())
    expected = render_fold(log.fold(), STORE)
    path = folder / fold_name(4)
    data = bytearray(path.read_bytes())
    if content == "flip":
        data[60] ^= 1
    elif content == "cut":
        data = data[:-1]
    elif content == "another store":
        data = bytearray(render_fold(Log(storage, STORE).fold(), bytes(16)))
    elif content == "another place":
        data = bytearray((folder / fold_name(2)).read_bytes())
    elif content == "stale":  # sound, but of another history: a log restored from a backup
        other = Fold(seq=4, chain=TWO, tags={"wrong": ONE})
        data = bytearray(render_fold(other, STORE))
    else:
        data = bytearray(content)
    path.write_bytes(data)
    fresh = Log(storage, STORE)
    assert render_fold(fresh.fold(), STORE) == expected
    assert put(fresh, "next").seq == 7


def test_a_fold_file_that_cannot_be_written_fails_no_append(
    fickle: Fickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("castore.log.log.FOLD_EVERY", 3)
    log = Log(fickle, STORE)
    put(log, "a")
    put(log, "b")

    def create_entry(name: str, data: bytes) -> bool:
        fickle.on_create = no_space
        return fickle.really_create(name, data)

    def no_space(name: str, data: bytes) -> bool:
        assert name == fold_name(3)
        raise OSError(errno.ENOSPC, "No space left on device", name)

    fickle.on_create = create_entry
    assert put(log, "c").seq == 3
    assert fickle.on_create is None
    assert log.fold_files() == []
    log.tidy()  # after a crash or a full disk, it is made up for
    assert log.fold_files() == [3]
    log.tidy()
    assert log.fold_files() == [3]


def test_a_readonly_log_writes_nothing(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 3)
    before = sorted(folder.rglob("*"))
    log = Log(storage, STORE, readonly=True)
    assert log.fold().seq == 3
    log.tidy()
    assert sorted(folder.rglob("*")) == before


# -- condemnations -------------------------------------------------------------------------------


def test_condemnations_are_read_from_the_entries_themselves(
    folder: Path, storage: LocalStorage
) -> None:
    log = Log(storage, STORE)
    for paths in (("a/1",), (), ("a/2", "b/1"), ("a/3",)):
        log.append(lambda _, p=paths: (Condemned(p), mark("x")), "gc")
    log.write_fold_file(log.fold())
    assert log.condemned_between(0, 4) == {"a/1", "a/2", "a/3", "b/1"}
    assert log.condemned_between(1, 3) == {"a/2", "b/1"}
    assert log.condemned_between(4, 4) == set()
    damage(log_file(folder, 3), 0)
    assert log.condemned_between(2, 4) == {"a/2", "a/3", "b/1"}
    damage(log_file(folder, 3), 1)
    # The fold file knows better, and is not asked: unreadable counts as condemning everything.
    assert log.condemned_between(2, 4) is None
    assert log.condemned_between(3, 4) == {"a/3"}
    log_file(folder, 4).unlink()
    assert log.condemned_between(3, 4) is None


def test_an_entry_in_words(folder: Path, storage: LocalStorage) -> None:
    filled(storage, 1)
    log = Log(storage, STORE)
    assert log.describe(1).startswith("put t1, by pid ")
    assert log.describe(2) == "entry 2 (which cannot be read)"
    damage(log_file(folder, 1), 0, 1)
    assert "cannot be read" in Log(storage, STORE).describe(1)
