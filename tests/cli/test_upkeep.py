"""``init``, ``fsck``, ``gc``: stores made, damage told, debris removed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import castore
from tests.cli.driver import castore as run
from tests.cli.driver import message, record, text

Flip = Callable[[Path, int], None]

# -- init ---------------------------------------------------------------------------------------


def test_init(tmp_path: Path) -> None:
    path = tmp_path / "new.castore"
    assert text("init", "new.castore", cwd=tmp_path) == (
        f"Initialized empty castore store in {path}\n"
    )
    assert text("init", path) == f"{path} is a store already: nothing was changed\n"
    assert (
        run("-s", path, "fsck").stdout == "sound: 0 checkpoints, 0 packs; 0 bytes read and hashed\n"
    )
    castore.save({"a": 1}, path)
    found = record("init", path)
    assert (found["type"], found["made"], found["checkpoints"]) == ("store", False, 1)


def test_init_where_the_option_or_the_environment_says(tmp_path: Path) -> None:
    found = record("-s", tmp_path / "a", "init")
    assert (found["path"], found["made"]) == (str(tmp_path / "a"), True)
    # Not by $CASTORE_STORE: that names the store to use, not one to make.
    assert "castore init PATH" in message("init", env={"CASTORE_STORE": str(tmp_path)}, code=2)


@pytest.mark.parametrize(
    ("said", "size"), [("8192", 8192), ("64K", 65536), ("1MiB", 1 << 20), ("4 mb", 4 << 20)]
)
def test_init_chunk_size(tmp_path: Path, said: str, size: int) -> None:
    found = record("init", tmp_path / "new", "--chunk-size", said)
    assert found["chunk_size"] == size
    assert record("init", tmp_path / "new", "--chunk-size", said)["made"] is False
    wrong = message("init", tmp_path / "new", "--chunk-size", "16K", code=2)
    assert "fixed when a store is made" in wrong


@pytest.mark.parametrize("said", ["5", "0", "1G", "-4096", "4Q", "many"])
def test_init_refuses_odd_chunk_sizes(tmp_path: Path, said: str) -> None:
    message("init", tmp_path / "new", f"--chunk-size={said}", code=2)
    assert not (tmp_path / "new").exists()


def test_init_refuses_what_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("x")
    assert "is a file" in message("init", tmp_path / "file", code=2)
    assert "thesis.tex" in message("init", tmp_path / "folder", code=2)
    assert "make it first" in message("init", tmp_path / "no" / "parent", code=3)
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["thesis.tex"]


# -- fsck ---------------------------------------------------------------------------------------


def test_fsck_sound(runs: Path, digests: dict[str, str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in runs.rglob("*")}
    assert re.fullmatch(
        f"newest whole on main   {digests['main'][:12]} \\(step 30\\), its head\n"
        f"newest whole on retry  {digests['retry'][:12]} \\(step 25\\), its head\n"
        r"sound: 4 checkpoints, 12 packs; \d+\.\d KiB read and hashed\n",
        text("-s", runs, "fsck"),
    )
    quick = text("-s", runs, "fsck", "--quick").splitlines()[-1]
    assert quick.startswith("sound: 4 checkpoints, 12 packs; structure and metadata only, ")
    assert {p: p.stat().st_mtime_ns for p in runs.rglob("*")} == before
    found = record("-s", runs, "fsck")
    with castore.open(runs, readonly=True) as store:
        assert found == {"type": "fsck", **store.fsck().to_dict(), "ok": True}


def data_pack(store: Path, rev: str) -> Path:
    """The data pack that a checkpoint's own save wrote."""
    with castore.open(store, readonly=True) as opened:
        live = opened._parts.log.fold().live
        [add] = [v.add for d, v in live.items() if d.hex() == opened.resolve(rev).digest]
    [path] = (store / "packs" / add.save).glob("*.data.pack")
    return path


def test_fsck_names_checkpoint_tensor_and_rows(
    own: Path, digests: dict[str, str], flip: Flip
) -> None:
    pack = data_pack(own, "main")
    flip(pack, 128 + 10)  # the first of the two chunks of model/weight
    done = run("-s", own, "fsck", code=1)
    assert done.stderr == ""
    with castore.open(own, readonly=True) as store:
        [weight] = store.tree("main:model/weight")
    name = pack.relative_to(own).as_posix()
    lines = done.stdout.splitlines()
    assert lines[0] == f"Damaged checkpoint {digests['main'][:12]} (main, step 30)"
    assert lines[1] == f"    model/weight rows 0..255: damaged chunk {weight.chunks[0][:12]}"
    assert re.fullmatch(
        f"        {name} at offset 128: expected {weight.chunks[0][:12]}, found [0-9a-f]{{12}}",
        lines[2],
    )
    assert f"newest whole on main   {digests['main~1'][:12]} (step 20), 1 behind its head" in lines
    assert lines[-1].startswith("DAMAGED: 1 of 4 checkpoints hit; ")
    # A record that was named with its tensor is not told of a second time.
    assert "Damaged files" not in done.stdout
    found = record("-s", own, "fsck", code=1)
    assert found["ok"] is False
    assert digests["main"] not in found["whole"]
    assert {f["path"] for f in found["findings"]} >= {"model/weight"}
    # Structure alone says nothing of it.
    assert run("-s", own, "fsck", "--quick").stdout.splitlines()[-1].startswith("sound: ")


def test_fsck_tells_once_what_hits_many(own: Path, digests: dict[str, str], flip: Flip) -> None:
    pack = data_pack(own, "main~2")
    flip(pack, 128 + 4096)
    flip(pack, 128 + 8192)
    lines = run("-s", own, "fsck", code=1).stdout.splitlines()
    hit = [line for line in lines if line.startswith("Damaged checkpoint ")]
    assert {line.split()[2] for line in hit} == {d[:12] for d in digests.values()}
    assert lines[4] == "    frozen rows 512..1535: 2 damaged chunks"
    assert lines[5].endswith("r00000-000.data.pack at offset 4,224 and on")
    assert lines[6:8] == ["newest whole on main   none", "newest whole on retry  none"]
    assert lines[8].startswith("DAMAGED: 4 of 4 checkpoints hit; ")


def test_fsck_of_a_missing_pack(own: Path) -> None:
    data_pack(own, "retry").unlink()
    shown = run("-s", own, "fsck", code=1).stdout
    assert "(retry, step 25)" in shown
    assert "model/weight rows 0..299: missing pack" in shown
    assert "DAMAGED: 1 of 4 checkpoints hit" in shown


def test_fsck_of_what_hits_no_checkpoint(own: Path, flip: Flip) -> None:
    flip(own / "log" / "000000000003", 100)
    shown = run("-s", own, "fsck", code=1).stdout
    assert "Damaged files\n    log/000000000003: log entry 3: " in shown
    assert shown.splitlines()[-1].startswith("DAMAGED: no checkpoint is hit, 4 are whole; ")


def test_fsck_of_a_store_that_cannot_be_opened(own: Path) -> None:
    (own / "log" / "000000000004").unlink()
    assert "entry 4" in message("-s", own, "log", code=3)
    assert record("-s", own, "log", code=3)["code"] == "store-unreadable"
    lines = run("-s", own, "fsck", code=1).stdout.splitlines()
    assert "    log entry 4 (log/000000000004)" in lines[1]
    assert "The log breaks off: what follows is as far as it could be followed" in lines
    assert lines[-1].startswith("DAMAGED: no checkpoint is hit")


def test_fsck_that_cannot_be_done(tmp_path: Path) -> None:
    (tmp_path / "x" / "packs" / "20260101T000000000-0123456789abcdef").mkdir(parents=True)
    assert "cannot be read" in message("-s", tmp_path / "x", "fsck", code=3)


def test_damaged_metadata_is_damage_to_show_too(own: Path, flip: Flip) -> None:
    for twin in data_pack(own, "main").parent.glob("*.meta*.pack"):
        for offset in range(128, 1200, 16):
            flip(twin, offset)
    said = message("-s", own, "show", code=1)
    assert "is damaged; nothing was returned" in said
    wrong = record("-s", own, "show", code=1)
    assert wrong["code"] == "corruption"
    assert wrong["findings"]
    # The log is sound, so what it tells is not withheld.
    assert text("-s", own, "log").count("checkpoint ") == 3
    text("-s", own, "rev-parse", "main")
    shown = run("-s", own, "fsck", code=1).stdout
    assert "Damaged files" in shown or "damaged" in shown


# -- gc -----------------------------------------------------------------------------------------


@pytest.fixture
def littered(own: Path) -> Path:
    """With what a killed save leaves."""
    save = own / "packs" / "20260101T000000000-0123456789abcdef"
    save.mkdir()
    (save / "r00000-000.data.pack").write_bytes(b"x" * 5000)
    (own / "notes.txt").write_text("mine")
    return own


def test_gc_with_nothing_to_do(own: Path) -> None:
    assert text("-s", own, "gc") == "removed nothing; 4 live checkpoints need 12 packs\n"


def test_gc_gives_reasons(littered: Path) -> None:
    debris = littered / "packs" / "20260101T000000000-0123456789abcdef" / "r00000-000.data.pack"
    name = debris.relative_to(littered).as_posix()
    fsck = text("-s", littered, "fsck")
    assert f"note: {debris.parent.relative_to(littered)}: 1 file" in fsck
    plan = text("-s", littered, "gc", "-n").splitlines()
    # A reason for every checkpoint, for what lies about, and for every pack that is needed.
    assert [line.split()[2:] for line in plan[:4]] == [
        ["10", "on", "the", "list", "of", "main"],
        [
            "20",
            "on",
            "the",
            "list",
            "of",
            "main,",
            "on",
            "the",
            "list",
            "of",
            "retry,",
            "tag",
            "v1",
        ],
        ["25", "on", "the", "list", "of", "retry"],
        ["30", "on", "the", "list", "of", "main"],
    ]
    assert re.split("  +", plan[4]) == [
        "would remove", "4.9 KiB", name, "no live checkpoint needs it",
    ]  # fmt: skip
    assert re.split("  +", plan[5]) == [
        "kept", "0 bytes", "notes.txt", "not castore's: never touched",
    ]  # fmt: skip
    assert len(plan[6:-1]) == 12
    assert all(re.match(r"kept +\d\S* \S+ +packs/.* needs? it$", line) for line in plan[6:-1])
    assert plan[-1] == "would remove 1 file, 4.9 KiB; 4 live checkpoints need 12 packs"
    assert debris.exists()
    dry = record("-s", littered, "gc", "--dry-run")
    assert (dry["type"], dry["dry_run"], dry["removed_bytes"]) == ("gc", True, 5000)
    done = text("-s", littered, "gc").splitlines()
    assert done[0] == f"removed  4.9 KiB  {name}  no live checkpoint needs it"
    assert done[-1] == "removed 1 file, 4.9 KiB; 4 live checkpoints need 12 packs"
    assert not debris.parent.exists()
    assert (littered / "notes.txt").exists()
    assert re.search(r"Last gc: +(now|\d+ seconds? ago) ", text("-s", littered, "info"))
    after = record("-s", littered, "gc")
    assert [item["path"] for item in after["items"]] == ["notes.txt"]


def test_gc_fails_closed(littered: Path) -> None:
    data_pack(littered, "main").unlink()
    said = message("-s", littered, "gc", code=3)
    assert "gc removed nothing" in said
    assert "fsck" in said
