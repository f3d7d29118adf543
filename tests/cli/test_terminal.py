"""What people see: colour, tables and a bar, on a terminal and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.driver import on_terminal, text, unstyled


@pytest.mark.parametrize(
    "words",
    [["log"], ["log", "--oneline"], ["info"]],
    ids=" ".join,
)
def test_the_same_words_in_colour(runs: Path, words: list[str]) -> None:
    shown = on_terminal("-s", runs, *words)
    assert "\x1b[" in shown
    plain = text("-s", runs, *words)
    # Ages differ from second to second.
    assert [line for line in unstyled(shown).splitlines() if "ago" not in line] == [
        line for line in plain.splitlines() if "ago" not in line
    ]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour(runs: Path, env: dict[str, str]) -> None:
    assert on_terminal("-s", runs, "log", **env) == text("-s", runs, "log")


@pytest.mark.parametrize("words", [["show"], ["branch", "-v"]], ids=" ".join)
def test_tables_have_headings_on_a_terminal_only(runs: Path, words: list[str]) -> None:
    heading = {"show": "path", "branch": "branch"}[words[0]]
    shown = unstyled(on_terminal("-s", runs, *words)).splitlines()
    plain = text("-s", runs, *words).splitlines()
    [at] = [i for i, line in enumerate(shown) if line.split()[:1] == [heading]]
    # A heading may be wider than what is below it.
    assert [line.split() for line in shown[:at] + shown[at + 1 :]] == [
        line.split() for line in plain
    ]


def test_a_narrow_terminal_loses_nothing(runs: Path) -> None:
    shown = unstyled(on_terminal("-s", runs, "show", "main:optimizer", columns=40))
    assert "optimizer" in shown
    assert "0.999" in "".join(shown.split())


def test_json_is_never_coloured(runs: Path) -> None:
    for words in (["log", "--json"], ["show", "--json"], ["info", "--json"]):
        assert on_terminal("-s", runs, *words) == text("-s", runs, *words)


def test_fsck_shows_a_bar_and_takes_it_away(runs: Path) -> None:
    shown = on_terminal("-s", runs, "fsck")
    assert "checking" in shown
    assert "sound: 4 checkpoints" in unstyled(shown).splitlines()[-1]


def test_damage_is_red(own: Path, flip: Callable[[Path, int], None]) -> None:
    flip(own / "log" / "000000000003", 100)
    assert "\x1b[31m" in on_terminal("-s", own, "fsck", code=1)


def test_control_characters_never_reach_the_terminal(runs: Path) -> None:
    for words in (["log", "main~1"], ["show"], ["show", "main~1"], ["tag", "-v"]):
        assert "\x1b[31m" not in on_terminal("-s", runs, *words, NO_COLOR="1")
    said = on_terminal("-s", runs, "log", "a\x1b[31mb", code=2)
    assert "\x1b[31m" not in said
