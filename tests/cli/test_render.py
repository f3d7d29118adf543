"""Sizes, ages, tables, text of unknown origin."""

from __future__ import annotations

import io
import json
import sys

import pytest

from castore.cli import output
from castore.cli.damage import findings_text, verdict
from castore.cli.render import age, count, meta_lines, plain_table, rows_text, shape_text, size
from castore.reports import Finding, FsckReport

S = 10**9
NOW = 1_796_138_648 * S


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (4 << 20, "4.0 MiB"),
        (887 << 30, "887.0 GiB"),
        (3 << 50, "3.0 PiB"),
        (5000 << 50, "5000.0 PiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert size(n) == text


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (0, "now"),
        (S - 1, "now"),
        (S, "1 second ago"),
        (59 * S, "59 seconds ago"),
        (60 * S, "1 minute ago"),
        (3 * 60 * S, "3 minutes ago"),
        (3600 * S, "1 hour ago"),
        (47 * 3600 * S, "1 day ago"),
        (15 * 86400 * S, "2 weeks ago"),
        (400 * 86400 * S, "1 year ago"),
        (-30 * S, "now"),
    ],
)
def test_ages(before: int, text: str) -> None:
    assert age(NOW - before, NOW).startswith(f"{text} (20")


def test_ages_that_are_none() -> None:
    assert age(None, NOW) == "never"
    assert age(NOW, NOW) == "now (2026-12-01T15:24:08Z)"
    assert age(NOW + 3600 * S, NOW).endswith("(in the future: the clocks of two machines differ)")


def test_words() -> None:
    assert count(1, "entry", "entries") == "1 entry"
    assert count(10_000, "entry", "entries") == "10,000 entries"
    assert [rows_text(r) for r in (None, (7, 8), (0, 100))] == ["", "row 7", "rows 0..99"]
    assert [shape_text(s) for s in ((), (3,), (3, 4))] == ["scalar", "3", "3 x 4"]


def test_tables() -> None:
    rows = [("a", "1", "x"), ("long", "200"), ()]
    assert list(plain_table(rows, {1})) == ["a       1  x", "long  200", ""]


def test_meta_is_a_line_a_key() -> None:
    meta = {"a": 1.5, "b\x07": "x\ny", "c": {"d": [None, "\x1b"]}}
    assert list(meta_lines(meta)) == [
        "a: 1.5", "b\\x07: x\\ny", 'c: {"d": [null, "\\u001b"]}'
    ]  # fmt: skip


def test_clean() -> None:
    assert output.clean("Grüße, 世界\n\tx") == "Grüße, 世界\n\tx"
    assert output.clean("\x1b]0;evil\x07\u202e\udc80") == "\\x1b]0;evil\\x07\\u202e\\udc80"


def test_json_lines_have_no_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    output.emit("x", {"a": [float("nan"), {"b": float("-inf")}], "c": 1e308}, d=float("inf"))
    assert json.loads(out.getvalue()) == {
        "type": "x", "a": ["NaN", {"b": "-Infinity"}], "c": 1e308, "d": "Infinity"
    }  # fmt: skip


# -- what fsck found ----------------------------------------------------------------------------


def chunk(
    row: int, path: str = "w", checkpoint: str = "c1" * 32, code: str = "damaged-chunk"
) -> Finding:
    return Finding(
        code, "damage", "...", file="packs/s/p", offset=row, expected="e" * 64, found="f" * 64,
        digest=f"{row:064x}", checkpoint=checkpoint, branch="main", step=1, path=path,
        rows=(row, row + 1),
    )  # fmt: skip


def report(*findings: Finding) -> FsckReport:
    return FsckReport(findings, 2, 3, 0, {}, ())


def test_neighbouring_rows_are_joined() -> None:
    found = [*map(chunk, range(5)), chunk(9), chunk(10, path="v")]
    assert list(findings_text(report(*found)))[1::2] == [
        "    w rows 0..4: 5 damaged chunks",
        f"    w row 9: damaged chunk {'0' * 12}",
        f"    v row 10: damaged chunk {'0' * 12}",
    ]


def test_very_much_damage_is_bounded() -> None:
    lines = list(findings_text(report(*(chunk(row) for row in range(0, 2000, 2)))))
    assert len(lines) < 100
    assert lines[-1].endswith("and 960 places more; --json has all")


def test_damage_without_a_place() -> None:
    found = [
        Finding(
            "damaged-tree", "damage", "d", file="packs/s/m", checkpoint="c" * 64, digest="a" * 64
        ),
        Finding("missing-chunk", "damage", "d", checkpoint="c" * 64, path="", digest="b" * 64),
        Finding("malformed-object", "damage", "it is odd", checkpoint="c" * 64),
        Finding("damaged-pack", "damage", "its footer is torn", file="packs/s/q"),
        Finding("x", "warning", "beware"),
        Finding("debris", "info", "left\x1bovers"),
    ]
    assert list(findings_text(report(*found))) == [
        "Damaged checkpoint cccccccccccc ()",
        "    damaged tree aaaaaaaaaaaa",
        "        packs/s/m",
        "    (root): missing chunk bbbbbbbbbbbb",
        "        in no pack",
        "    malformed object",
        "        it is odd",
        "Damaged files",
        "    packs/s/q: its footer is torn",
        "warning: beware",
        "note: left\\x1bovers",
    ]
    assert verdict(report(*found)).startswith("DAMAGED: 2 of 2 checkpoints hit; ")
