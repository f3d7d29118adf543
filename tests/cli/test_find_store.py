"""Which store a verb works on: named before or after the verb, in the environment, or found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.driver import castore, message, record, text


@pytest.fixture
def other(empty: Path) -> dict[str, str]:
    """An environment that names another store."""
    return {"CASTORE_STORE": str(empty)}


@pytest.mark.parametrize(
    "words",
    [
        lambda p: ["-s", p, "rev-parse", "main"],
        lambda p: ["--store", p, "rev-parse", "main"],
        lambda p: ["rev-parse", "--store", p, "main"],
        lambda p: ["rev-parse", "main", f"--store={p}"],
        lambda p: ["-s", "/nowhere", "rev-parse", "main", "--store", p],
    ],
)
def test_named_before_or_after_the_verb_wins(words, runs, digests, other) -> None:
    assert text(*words(runs), env=other) == digests["main"] + "\n"


def test_the_environment_comes_before_what_is_found(runs: Path, empty: Path, other) -> None:
    assert record("info", cwd=runs, env=other)["path"] == str(empty)
    assert record("info", cwd=runs, env={"CASTORE_STORE": ""})["path"] == str(runs)


@pytest.mark.parametrize("below", [".", "packs", "log"])
def test_the_nearest_folder_upwards_that_is_a_store(runs: Path, below: str) -> None:
    assert record("info", cwd=runs / below)["path"] == str(runs)


def test_the_only_one_in_the_folder(own: Path) -> None:
    (own.parent / "notes.castore").write_text("a file")
    (own.parent / "hollow.castore").mkdir()
    assert record("info", cwd=own.parent)["path"] == str(own)


def test_several_or_none_is_wrong_usage_that_says_all(own: Path) -> None:
    shutil.copytree(own, own.with_name("two.castore"))
    said = message("info", cwd=own.parent, code=2)
    for word in ("-s PATH", "--store", "$CASTORE_STORE", "castore.json", "*.castore"):
        assert word in said
    assert "there are 2: own.castore, two.castore" in said
    hollow = own.parent / "hollow"
    hollow.mkdir()
    assert "there is none" in message("info", cwd=hollow, code=2)
    wrong = record("info", cwd=hollow, code=2)
    assert (wrong["type"], wrong["code"], wrong["exit_code"]) == ("error", "usage", 2)


def test_fsck_finds_a_store_that_lost_its_config(own: Path) -> None:
    (own / "castore.json").unlink()
    assert "castore.json is missing" in castore("fsck", cwd=own.parent, code=1).stdout


def test_no_store_there(tmp_path: Path) -> None:
    for verb in ("log", "show", "info", "fsck", "gc", "tag", "branch"):
        assert "there is no" in message("-s", tmp_path / "none", verb, code=3)
    assert "is no store: it has no castore.json" in message("-s", tmp_path, "log", code=3)
    assert record("-s", tmp_path / "none", "log", code=3)["code"] == "store-not-found"
    assert "--store is empty" in message("-s", "", "log", code=2)
