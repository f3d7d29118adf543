"""Damage of every way to every region of every kind of file, as a table (T12, B09, B14, B15).

Each is an error at load, or healed with the right bytes, or provably irrelevant (no byte changed);
fsck finds every one, and where tensor bytes are hit it names checkpoint, tensor and rows.
"""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import castore
from castore.opening import fsck_path
from castore.packs.format import FOOTER_SIZE, HEADER_SIZE, PACK_PAGE, parse_footer
from tests.support import castore_cli, flip_bit, same

TRIES = {False: 2, True: 100}
Span = tuple[int, int]


def state_at(step: int) -> dict:
    return {
        "frozen": torch.arange(30_000.0).reshape(300, 100),
        "moving": torch.randn(150, 100, generator=torch.Generator().manual_seed(step)),
        "wide": {i: torch.full((3,), float(i + step)) for i in range(400)},
        "step": step,
    }


def make(path: Path, first: int) -> Path:
    with castore.open(path, create=True, chunk_size=4096) as store:
        for step in (first, first + 1):
            store.save(state_at(step), step=step)
    shutil.rmtree(path / "index.lmdb")
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("table") / "runs.castore", 1)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another store, of the same shape and sizes."""
    return make(tmp_path_factory.mktemp("foreign") / "runs.castore", 3)


# -- where -----------------------------------------------------------------------------------------


def regions(file: Path) -> dict[str, Span]:
    """The parts of a truth file, by name."""
    data = file.read_bytes()
    size = len(data)
    if file.suffix == ".pack":
        offset, length, _ = parse_footer(data[-FOOTER_SIZE:], size)
        found = {
            "header": (0, HEADER_SIZE),
            "payload": (HEADER_SIZE, _end_of_payload(data, offset)),
            "table": (offset, offset + length),
            "padding": (offset + length, size - FOOTER_SIZE),
            "footer": (size - FOOTER_SIZE, size),
        }
    elif file.parent.name == "log":
        half = size // 2
        used = half - (len(data[:half]) - len(data[:half].rstrip(b"\0")))
        found = {
            "first copy": (0, used),
            "second copy": (half, half + used),
            "padding": (used, half),
        }
    else:
        found = {"text": (0, size)}
    return {name: span for name, span in found.items() if span[1] > span[0]}


def _end_of_payload(data: bytes, table: int) -> int:
    return len(data[:table].rstrip(b"\0"))


def kind_of(file: Path) -> str:
    if file.suffix == ".pack":
        return file.name.split(".", 1)[1]
    return "log entry" if file.parent.name == "log" else file.name


# -- how -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hit:
    """A file of a store to be damaged, at a region."""

    store: Path
    foreign: Path
    file: Path
    span: Span
    chance: random.Random

    def __str__(self) -> str:
        return f"{self.file.relative_to(self.store)} {self.span}"


def flip(hit: Hit) -> None:
    flip_bit(hit.file, hit.chance.randrange(*hit.span), hit.chance.randrange(8))


def _rewrite(hit: Hit, change: Callable[[bytearray], None]) -> None:
    data = bytearray(hit.file.read_bytes())
    change(data)
    hit.file.write_bytes(data)


def zero(hit: Hit) -> None:
    """Zeros from somewhere in the region on, for at most a page."""
    start = hit.chance.randrange(*hit.span)
    stop = min(hit.span[1], start + PACK_PAGE)

    def change(data: bytearray) -> None:
        data[start:stop] = bytes(stop - start)

    _rewrite(hit, change)


def swap_pages(hit: Hit) -> None:
    """The page that the region begins in, and another of the file."""

    def change(data: bytearray) -> None:
        pages = len(data) // PACK_PAGE
        if pages < 2:
            return
        a = hit.span[0] // PACK_PAGE * PACK_PAGE
        b = hit.chance.randrange(pages) * PACK_PAGE
        data[a : a + PACK_PAGE], data[b : b + PACK_PAGE] = (
            data[b : b + PACK_PAGE], data[a : a + PACK_PAGE],
        )  # fmt: skip

    _rewrite(hit, change)


def truncate(hit: Hit) -> None:
    with hit.file.open("r+b") as f:
        f.truncate(hit.chance.randrange(*hit.span))


def append(hit: Hit) -> None:
    with hit.file.open("ab") as f:
        f.write(hit.chance.randbytes(hit.chance.choice([1, 100, PACK_PAGE])))


def delete(hit: Hit) -> None:
    hit.file.unlink()


def swap_files(hit: Hit) -> None:
    """With another file of the same kind."""
    others = [f for f in truth(hit.store) if kind_of(f) == kind_of(hit.file) and f != hit.file]
    if others:
        other = hit.chance.choice(others)
        mine, its = hit.file.read_bytes(), other.read_bytes()
        hit.file.write_bytes(its)
        other.write_bytes(mine)


def from_another_store(hit: Hit) -> None:
    theirs = [f for f in truth(hit.foreign) if kind_of(f) == kind_of(hit.file)]
    hit.file.write_bytes(hit.chance.choice(theirs).read_bytes())


IN_REGION = (flip, zero, swap_pages, truncate)
WHOLE = (append, delete, swap_files, from_another_store)


# -- what is expected ------------------------------------------------------------------------------


def truth(store: Path) -> list[Path]:
    """The truth files but castore.json and the first entry, which hold nothing of checkpoints."""
    return [
        store / "castore.json",
        *sorted((store / "packs").rglob("*.pack")),
        *sorted(p for p in (store / "log").iterdir() if re.fullmatch(r"\d+", p.name)),
    ]


def loaded(store: Path) -> str:
    """``exact``, ``named`` or ``SILENT``, over both checkpoints."""
    results = []
    try:
        with castore.open(store, readonly=True) as opened, warnings.catch_warnings():
            warnings.simplefilter("ignore", castore.CastoreWarning)
            for rev, step in (("main", 2), ("main~1", 1)):
                try:
                    results.append("exact" if same(opened.load(rev), state_at(step)) else "SILENT")
                except castore.CorruptionError as e:
                    assert e.findings, e
                    results.append("named")
    except (castore.StoreUnreadable, castore.StoreNotFound) as e:
        assert str(store) in str(e)
        results.append("named")
    return "SILENT" if "SILENT" in results else "named" if "named" in results else "exact"


def hits(sound: Path, foreign: Path, work: Path, n: int) -> Iterator[tuple[Hit, str, Callable]]:
    chance = random.Random(4)
    for file in truth(work):
        parts = regions(sound / file.relative_to(work))
        for name, span in parts.items():
            for how in IN_REGION:
                for _ in range(n):
                    yield Hit(work, foreign, file, span, chance), name, how
        for how in WHOLE:
            if how is delete and file == truth(work)[-1]:
                continue  # the newest entry: see below
            for _ in range(max(1, n // 10)):
                yield Hit(work, foreign, file, (0, 1), chance), "whole", how


@pytest.mark.slow
def test_no_damage_is_silent_and_none_is_missed(
    sound: Path, foreign: Path, tmp_path: Path, campaign: bool
) -> None:
    table: Counter[tuple[str, str, str, str]] = Counter()
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    before = {f: f.read_bytes() for f in truth(work)}
    for hit, region, how in hits(sound, foreign, work, TRIES[campaign]):
        where = f"{how.__name__} of {hit}"
        how(hit)
        changed = [f for f, data in before.items() if not f.exists() or f.read_bytes() != data]
        result = loaded(work)
        assert result != "SILENT", where
        if not changed:
            result = "irrelevant"
            assert fsck_path(work).ok, where
        else:
            report = fsck_path(work)
            assert not report.ok, f"fsck missed {where}"
            named = {f.file for f in report.damage}
            files = {str(f.relative_to(work)) for f in changed}
            if (
                region != "whole" or hit.file.name != "castore.json"
            ):  # the rest is not of that store
                assert named & files, f"{where}: fsck names {named}"
            if region == "payload" and hit.file.name.endswith("data.pack") and how is flip:
                assert any(f.checkpoint and f.path and f.rows for f in report.damage), where
        table[kind_of(hit.file), region, how.__name__, result] += 1
        for file in changed:
            file.write_bytes(before[file])
    assert fsck_path(work).ok
    print(f"\n{'file':14} {'region':12} {'damage':20} {'outcome':10} count")
    for (kind, region, way, result), count in sorted(table.items()):
        print(f"{kind:14} {region:12} {way:20} {result:10} {count:5}")
    # One copy of metadata serves for the other, with the right bytes.
    assert not any(
        kind in ("meta.pack", "meta2.pack") and result == "named" for kind, _, _, result in table
    )
    flipped = {(kind, region) for kind, region, way, _ in table if way == "flip"}
    assert flipped >= {
        ("data.pack", "payload"), ("data.pack", "table"), ("data.pack", "footer"),
        ("meta.pack", "header"), ("log entry", "first copy"), ("log entry", "second copy"),
        ("castore.json", "text"),
    }  # fmt: skip


def test_a_newest_entry_that_is_gone_leaves_a_complete_save(sound: Path, tmp_path: Path) -> None:
    """Nothing that is left tells it from a save killed before its entry; fsck lists it as one."""
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    truth(work)[-1].unlink()
    report = fsck_path(work)
    assert report.ok
    assert [f.code for f in report.findings] == ["uncommitted-save"]
    with castore.open(work, readonly=True) as store:
        assert same(store.load(), state_at(1))


def test_the_command_says_it_by_its_exit_status(sound: Path, tmp_path: Path) -> None:
    work = tmp_path / "runs.castore"
    shutil.copytree(sound, work)
    data = next(f for f in truth(work) if f.name.endswith("data.pack"))
    flip_bit(data, HEADER_SIZE + 100, 1)
    done = castore_cli("-s", str(work), "fsck")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"frozen.* rows \d+", done.stdout + done.stderr)
