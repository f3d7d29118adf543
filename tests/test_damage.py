"""Random single-bit flips over all truth files (T12): none silent, all found by fsck."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

import castore
from castore.opening import fsck_path
from tests.support import flip_bit, same, training_state, truth_files

FLIPS = {False: 120, True: 1500}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two checkpoints that share chunks, with wide and deep metadata."""
    path = tmp_path_factory.mktemp("damage") / "runs.castore"
    with castore.open(path, create=True, chunk_size=4096) as store:
        for step in (1, 2):
            store.save(state_at(step), step=step, meta={"loss": 1.0 / step})
        store.tag("first", "main~1")
    shutil.rmtree(path / "index.lmdb")
    return path


def state_at(step: int) -> dict:
    state = training_state(1, width=32, step=step)
    state["frozen"] = torch.arange(100_000.0)
    state["moving"] = torch.full((3000,), float(step))
    state["wide"] = {i: torch.full((3,), float(i)) for i in range(700)}
    return state


def kind_of(path: Path) -> str:
    return path.name if path.suffix != ".pack" else path.name.split(".", 1)[1]


def outcome(path: Path) -> str:
    """What a load of the head does: ``exact``, ``named`` (an error), or ``SILENT``."""
    try:
        with castore.open(path, readonly=True) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore", castore.CastoreWarning)
            loaded = store.load("main")
            older = store.load("first")
    except castore.CorruptionError as e:
        assert e.findings
        return "named"
    except castore.StoreUnreadable as e:
        assert str(path) in str(e)
        return "named"
    return "exact" if same(loaded, state_at(2)) and same(older, state_at(1)) else "SILENT"


@pytest.mark.slow
def test_random_bit_flips_are_never_silent_and_always_found(
    sound: Path, tmp_path: Path, campaign: bool
) -> None:
    chance = random.Random(12)
    files = truth_files(sound)
    table: Counter[tuple[str, str]] = Counter()
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    for _ in range(FLIPS[campaign]):
        original = chance.choice(files)  # by file, not by size: metadata is small
        damaged = work / original.relative_to(sound)
        offset, bit = chance.randrange(original.stat().st_size), chance.randrange(8)
        flip_bit(damaged, offset, bit)
        where = f"{damaged.relative_to(work)} byte {offset} bit {bit}"
        result = outcome(work)
        assert result != "SILENT", where
        report = fsck_path(work)
        assert not report.ok, f"fsck missed {where}"
        assert any(str(damaged.relative_to(work)) == f.file for f in report.damage), where
        table[kind_of(original), result] += 1
        flip_bit(damaged, offset, bit)
    assert fsck_path(work).ok
    for (kind, result), count in sorted(table.items()):
        print(f"{kind:15} {result:6} {count}")
    assert {kind for kind, _ in table} >= {"castore.json", "data.pack", "meta.pack", "meta2.pack"}
    # one copy of metadata or of a log entry damaged: the other serves, with the right bytes
    assert table["meta.pack", "named"] == table["meta2.pack", "named"] == 0


def test_a_flip_in_a_tensor_is_named_down_to_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"
    w = torch.randn(1000, 100)
    with castore.open(path, create=True, chunk_size=40_960) as store:  # 102 rows a chunk
        saved = store.save({"model": {"w": w}, "other": torch.randn(10_000)}, step=5)
        store.save({"model": {"w": w}, "other": torch.randn(10_000)}, step=6)
    pack = sorted((path / "packs").glob("*/r00000-000.data.pack"))[0]
    at = pack.read_bytes().find(w[500].numpy().tobytes())
    flip_bit(pack, at, 3)
    with castore.open(path) as store:
        with pytest.raises(castore.CorruptionError) as caught:
            store.load("main~1")
        (finding,) = caught.value.findings
        assert finding.code == "damaged-chunk"
        assert finding.checkpoint == saved.digest
        assert (finding.path, finding.rows, finding.step) == ("model/w", (408, 510), 5)
        assert finding.file == str(pack.relative_to(path))
        assert finding.offset is not None
        assert finding.offset <= at < finding.offset + 40_960
        assert finding.expected != finding.found
        assert "rows 408..509" in str(caught.value)

        report = store.fsck()
        hit = {(f.step, f.path, f.rows) for f in report.damage if f.checkpoint}
        assert hit == {(5, "model/w", (408, 510)), (6, "model/w", (408, 510))}
        assert report.newest_whole == {"main": None}
        assert torch.equal(store.load("main:other"), store.load("main:other"))

        # the damaged chunk's neighbours are fine, and a save that has the bytes is not blocked
        again = store.save({"model": {"w": w + 1}}, step=7)
        assert torch.equal(store.load()["model"]["w"], w + 1)
        assert store.fsck().newest_whole == {"main": again.digest}


@pytest.mark.parametrize("how", ["missing", "one byte short", "a page short", "empty", "zeros"])
@pytest.mark.parametrize("kind", ["data.pack", "meta.pack", "both metas", "log entry"])
def test_missing_and_short_files_B09_B10(sound: Path, tmp_path: Path, kind: str, how: str) -> None:
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    newest = sorted((work / "packs").iterdir())[-1]
    targets = {
        "data.pack": [newest / "r00000-000.data.pack"],
        "meta.pack": [newest / "r00000-000.meta.pack"],
        "both metas": [newest / "r00000-000.meta.pack", newest / "r00000-000.meta2.pack"],
        "log entry": [work / "log" / "000000000003"],
    }[kind]
    for target in targets:
        data = target.read_bytes()
        target.unlink()
        if how != "missing":
            short = {"one byte short": data[:-1], "a page short": data[:-4096], "empty": b""}
            target.write_bytes(short.get(how, bytes(len(data))))
    result = outcome(work)
    # The twin serves, the entry's other copy, or the table's copy where only the footer is gone.
    heals = kind == "meta.pack" or (
        kind in ("log entry", "data.pack") and how in ("one byte short", "a page short")
    )
    assert result == ("exact" if heals else "named")
    report = fsck_path(work)
    named = {f.file for f in report.damage}
    assert {str(t.relative_to(work)) for t in targets} <= named
    if kind == "data.pack" and not heals:
        assert any(f.checkpoint and f.path == "moving" for f in report.damage)
        with castore.open(work, readonly=True) as store:  # the older checkpoint still loads
            assert same(store.load("first"), state_at(1))


def test_two_packs_swapped_and_a_pack_of_another_store(sound: Path, tmp_path: Path) -> None:
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    a, b = sorted((work / "packs").glob("*/r00000-000.data.pack"))
    swapped = a.read_bytes(), b.read_bytes()
    b.write_bytes(swapped[0])
    a.write_bytes(swapped[1])
    assert outcome(work) == "named"
    assert not fsck_path(work).ok

    shutil.copy(sound / "log" / "000000000002", work / "log" / "000000000003")
    with pytest.raises(castore.StoreUnreadable, match="entry 3"):
        castore.open(work)


def test_symlinks_and_fifos_lead_nowhere_C05(sound: Path, tmp_path: Path) -> None:
    import os

    for kind in ("symlink", "fifo", "folder"):
        work = tmp_path / kind
        shutil.copytree(sound, work)
        pack = sorted((work / "packs").glob("*/r00000-000.data.pack"))[-1]
        elsewhere = tmp_path / f"{kind}.elsewhere"
        if kind == "folder":
            shutil.move(pack.parent, elsewhere)
            pack.parent.symlink_to(elsewhere)
        else:
            shutil.move(pack, elsewhere)
            pack.symlink_to(elsewhere) if kind == "symlink" else os.mkfifo(pack)
        assert outcome(work) == "named", kind
        assert not fsck_path(work).ok


def test_gc_fails_closed(sound: Path, tmp_path: Path) -> None:
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    litter = work / "packs" / "20200101T000000000-0123456789abcdef"
    litter.mkdir()
    (litter / "r00000-000.data.pack").write_bytes(b"debris")
    pack = sorted((work / "packs").glob("*/r00000-000.data.pack"))[-1]
    data = pack.read_bytes()
    pack.write_bytes(data[:-4096])
    with castore.open(work) as store, pytest.raises(castore.StoreUnreadable, match="gc removed"):
        store.gc()
    assert litter.exists()
    pack.write_bytes(data)
    entry = work / "log" / "000000000002"
    good = entry.read_bytes()
    with castore.open(work) as store:
        entry.write_bytes(bytes(len(good)))
    with pytest.raises(castore.StoreUnreadable):
        castore.open(work).gc()
    assert litter.exists()
    entry.write_bytes(good)
    with castore.open(work) as store:
        dry = store.gc(dry_run=True)
        assert dry.removed_bytes == 6
        assert litter.exists()
        assert store.gc().removed_bytes == 6
        assert not litter.exists()
        assert store.fsck().ok


def test_strangers_are_counted_and_never_touched(sound: Path, tmp_path: Path) -> None:
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    for name in ("notes.txt", "packs/readme", "log/x", "sessions/y"):
        (work / name).write_text("mine")
    with castore.open(work) as store:
        report = store.gc()
        assert {i.path for i in report.items} == {
            "notes.txt",
            "packs/readme",
            "log/x",
            "sessions/y",
        }
        assert all(i.action == "kept" for i in report.items)
        assert (work / "notes.txt").exists()
        assert store.fsck().ok
        assert {f.code for f in store.fsck().findings} == {"stranger"}


def test_a_deleted_object_is_written_again_D11(tmp_path: Path) -> None:
    path = tmp_path / "runs.castore"
    w = torch.randn(50_000)
    with castore.open(path, create=True) as store:
        store.save({"w": w}, step=1)
        store.save({"w": w}, step=2, branch="other")
        for pack in (path / "packs").glob("*/*.data.pack"):
            pack.unlink()
        saved = store.save({"w": w}, step=3, branch="third", verify="now")
        assert saved.report is not None
        assert saved.report.new_bytes == 200_000
        assert torch.equal(store.load("third")["w"], w)
