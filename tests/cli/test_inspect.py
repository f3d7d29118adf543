"""``log``, ``show``, ``rev-parse``, ``info``: what they print, as text and as JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import castore
from castore.log.entry import Add
from castore.model.digest import Digest
from tests.cli.driver import message, record, records, text

# -- log ----------------------------------------------------------------------------------------


def test_log(runs: Path, digests: dict[str, str]) -> None:
    blocks = text("-s", runs, "log").split("\ncheckpoint ")
    assert len(blocks) == 3
    newest, second, first = (block.splitlines() for block in blocks)
    assert newest[0] == f"checkpoint {digests['main']} (main)"
    assert [line.partition(":")[0] for line in newest[1:] if line] == [
        "Branch", "Step", "Date", "New", "Size"
    ]  # fmt: skip
    assert newest[1:3] == ["Branch: main", "Step:   30"]
    assert re.fullmatch(r"Date:   \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", newest[3])
    assert newest[4] == "New:    4.7 KiB"
    assert re.fullmatch(r"Size:   36\.\d KiB in 4 tensors", newest[5])
    assert second[0] == f"{digests['main~1']} (tag: v1)"
    # A message is shown whole, and its escape codes as text.
    assert second[-3:] == ["    second", "    with \\x1b[31mcolour", ""]
    assert first[0] == digests["main~2"]


def test_log_oneline(runs: Path, digests: dict[str, str]) -> None:
    assert text("-s", runs, "log", "--oneline").splitlines() == [
        f"{digests['main'][:12]} (main) step 30 +4.7 KiB",
        f"{digests['main~1'][:12]} (tag: v1) step 20 +4.7 KiB second",
        f"{digests['main~2'][:12]} step 10 +36.7 KiB",
    ]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], [30, 20, 10]),
        (["main~1"], [20, 10]),
        (["main@step=10"], [10]),
        (["retry"], [25, 20]),
        (["v1"], [20, 10]),
        (["-n", "2"], [30, 20]),
        (["-1"], [30]),
        (["retry", "-n1"], [25]),
        (["-n", "0"], []),
    ],
)
def test_log_of_revisions(runs: Path, words: list[str], steps: list[int]) -> None:
    assert [r["step"] for r in records("-s", runs, "log", *words)] == steps


def test_log_json_is_the_report(runs: Path, digests: dict[str, str]) -> None:
    found = records("-s", runs, "log")
    with castore.open(runs, readonly=True) as store:
        expected = [checkpoint.to_dict() for checkpoint in store.log()]
    for line, report in zip(found, expected, strict=True):
        refs = {"branches": line.pop("branches"), "tags": line.pop("tags")}
        assert line == {"type": "checkpoint", **report}
        assert refs["branches"] == (["main"] if line["digest"] == digests["main"] else [])
        assert refs["tags"] == (["v1"] if line["digest"] == digests["v1"] else [])


def test_log_without_checkpoints(empty: Path) -> None:
    assert "holds no checkpoint yet" in message("-s", empty, "log", code=3)
    assert record("-s", empty, "log", code=3)["code"] == "no-checkpoint"


def test_log_wants_no_key_path(runs: Path) -> None:
    assert "':'" in message("-s", runs, "log", "main:model", code=2)


# -- show ---------------------------------------------------------------------------------------


def test_show(runs: Path, digests: dict[str, str]) -> None:
    with castore.open(runs, readonly=True) as store:
        head, parent = store.resolve("main~2"), store.resolve("main~1").parent
    shown = text("-s", runs, "show", "main~2")
    header, _, tree = shown.partition("\n\n")
    lines = header.splitlines()
    assert parent == head.digest
    assert lines[0] == f"checkpoint {head.digest}"
    assert f"Root:     {head.root}" in lines
    assert "Parent:   none" in lines
    assert "Verified: not yet" in lines
    assert lines[-3:] == ["Meta:", "    loss: NaN", "    note: two\\nlines"]
    assert [line.split(None, 1) for line in tree.splitlines()] == [
        ["(root)", "dict       5 entries"],
        ["frozen", "int64      4096       32.0 KiB  8 chunks"],
        ["model", "dict       3 entries"],
        ["model/weight", "float32    300 x 4     4.7 KiB  2 chunks, tie 0"],
        ["model/bias", "float32    3          12 bytes"],
        ["model/tied", "float32    300 x 4     4.7 KiB  2 chunks, tie 0"],
        ["optimizer", "dict       3 entries"],
        ["optimizer/lr", "float      0.5"],
        ["optimizer/betas", "tuple      2 entries"],
        ["optimizer/betas/0", "float      0.9"],
        ["optimizer/betas/1", "float      0.999"],
        ["optimizer/name", "str        'ad\\x1b[31mam'"],
        ["step", "int        10"],
        ["a~1b", "list       2 entries"],
        ["a~1b/0", "bool       True"],
        ["a~1b/1", "None       None"],
    ] or [re.sub(r"\s+", " ", line) for line in tree.splitlines()] == [
        "(root) dict 5 entries",
        "frozen int64 4096 32.0 KiB 8 chunks",
        "model dict 3 entries",
        "model/weight float32 300 x 4 4.7 KiB 2 chunks, tie 0",
        "model/bias float32 3 12 bytes",
        "model/tied float32 300 x 4 4.7 KiB 2 chunks, tie 0",
        "optimizer dict 3 entries",
        "optimizer/lr float 0.5",
        "optimizer/betas tuple 2 entries",
        "optimizer/betas/0 float 0.9",
        "optimizer/betas/1 float 0.999",
        "optimizer/name str 'ad\\x1b[31mam'",
        "step int 10",
        "a~1b list 2 entries",
        "a~1b/0 bool True",
        "a~1b/1 None None",
    ]
