"""A reader made from docs/format.md alone reads what castore writes: the document is complete."""

from __future__ import annotations

import ast
import collections
import datetime
import pathlib
from pathlib import Path

import numpy as np
import pytest
import torch

import castore
from castore.packs import writer
from tests import independent_reader
from tests.support import flip_bit, same


def state_at(step: int) -> dict:
    g = torch.Generator().manual_seed(7)
    emb = torch.randn(50, 30, generator=g)
    metadata = collections.OrderedDict(a=1)
    metadata._metadata = collections.OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    return {
        "model": {
            "spilled": torch.arange(100_000.0),  # 98 chunks: more than an entry lists
            "moving": torch.randn(300, 100, generator=g) + step,
            "embed": emb,
            "head": emb,  # tied
            "bf16": torch.randn(3000, generator=g).bfloat16(),
            "long_rows": torch.randn(3, 5000, generator=g),
        },
        "split": {i: torch.full((4,), float(i)) for i in range(600)},
        "plain": [None, True, -5, 2**80, 1.5, "x" * 1000, b"b" * 400, (1, (2, 3)), {1, 2}, 1 + 2j],
        "odict": metadata,
        "array": np.arange(600, dtype=">i4").reshape(20, 30),
        "scalar": np.float64(0.5),
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "where": pathlib.PurePosixPath("a/b"),
        "default": collections.defaultdict(list, {("k", 1): [step]}),
    }


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(writer, "ROLL_BYTES", 300_000)  # several packs a save
    path = tmp_path / "runs.castore"
    with castore.open(path, create=True, chunk_size=4096) as store:
        store.save(state_at(1), step=1, meta={"loss": 2.5})
        store.save(state_at(2), step=2, message="second")
    folders = sorted((path / "packs").iterdir())
    assert len(list(folders[0].glob("*.data.pack"))) >= 2
    assert len(list(folders[1].glob("*.data.pack"))) == 1  # the rest is the first save's
    return path


def test_it_reads_what_castore_wrote(path: Path) -> None:
    for back, step in ((0, 2), (1, 1)):
        checkpoint, state = independent_reader.load(str(path), "main", back)
        assert checkpoint["step"] == step
        assert same(state, state_at(step))
        assert same(state, castore.load(path, f"main~{back}"))
        model = state["model"]
        assert model["embed"].untyped_storage().data_ptr() == (
            model["head"].untyped_storage().data_ptr()
        )


def test_it_checks_digests_too(path: Path) -> None:
    pack = sorted((path / "packs").glob("*/*.data.pack"))[0]
    flip_bit(pack, 5000, 1)
    with pytest.raises(ValueError, match="no sound copy"):
        independent_reader.load(str(path))


def test_it_is_small_and_imports_nothing_of_castore() -> None:
    source = Path(independent_reader.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for name in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
    }
    assert "castore" not in imported
    assert "tests" not in imported
