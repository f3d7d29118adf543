"""``tag`` and ``branch``: list, make, move, remove; and how it is undone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import castore
from tests.cli.driver import castore as run
from tests.cli.driver import message, record, records, text

KINDS = pytest.mark.parametrize("kind", ["tag", "branch"])


def refs(store: Path, kind: str) -> dict[str, str]:
    with castore.open(store, readonly=True) as opened:
        return opened.tags() if kind == "tag" else opened.branches()


def test_lists(runs: Path, digests: dict[str, str]) -> None:
    assert text("-s", runs, "tag") == "v1\n"
    assert text("-s", runs, "branch") == "main\nretry\n"
    lines = [line.split() for line in text("-s", runs, "branch", "-v").splitlines()]
    assert [line[:3] for line in lines] == [
        ["main", digests["main"][:12], "30"],
        ["retry", digests["retry"][:12], "25"],
    ]
    assert text("-s", runs, "tag", "-v").endswith("Z  second\n")
    [tag] = records("-s", runs, "tag")
    time = tag.pop("time")
    assert time > 1_700_000_000 * 10**9
    assert tag == {
        "type": "tag", "name": "v1", "digest": digests["v1"], "step": 20,
        "message": "second\nwith \x1b[31mcolour",
    }  # fmt: skip


def test_lists_of_an_empty_store(empty: Path) -> None:
    for kind in ("tag", "branch"):
        assert text("-s", empty, kind) == text("-s", empty, kind, "--json") == ""


@KINDS
def test_make_move_remove_undo(own: Path, digests: dict[str, str], kind: str) -> None:
    def undo(stderr: str) -> None:
        [line] = [line for line in stderr.splitlines() if line.startswith("undo: ")]
        words = shlex.split(line.removeprefix("undo: "))
        assert words[:3] == ["castore", "-s", str(own)]
        run(*words[1:])

    # Making one is silent, and of main where nothing is said.
    assert text("-s", own, kind, "new") == ""
    assert refs(own, kind)["new"] == digests["main"]
    # So is making it again.
    assert text("-s", own, kind, "new", "main") == ""
    # Moving one needs -f, and is told.
    assert "-f" in message("-s", own, kind, "new", "main~1", code=2)
    moved = run("-s", own, kind, "-f", "new", "main~1")
    assert moved.stdout == f"Updated {kind} new (was {digests['main'][:12]})\n"
    assert refs(own, kind)["new"] == digests["main~1"]
    undo(moved.stderr)
    assert refs(own, kind)["new"] == digests["main"]
    gone = run("-s", own, kind, "-d", "new")
    assert gone.stdout == f"Deleted {kind} new (was {digests['main'][:12]})\n"
    assert "new" not in refs(own, kind)
    undo(gone.stderr)
    assert refs(own, kind)["new"] == digests["main"]
    # Nothing was let go by any of it.
    with castore.open(own, readonly=True) as store:
        assert store.info().checkpoints == 4


@KINDS
def test_json(own: Path, digests: dict[str, str], kind: str) -> None:
    made = record("-s", own, kind, "new", "retry")
    assert made["seq"] > 1
    assert made == {
        "type": "change", "kind": kind, "name": "new", "old": None, "new": digests["retry"],
        "seq": made["seq"], "undo": None,
    }  # fmt: skip
    gone = records("-s", own, kind, "-d", "new")
    assert [(g["old"], g["new"]) for g in gone] == [(digests["retry"], None)]
    assert gone[0]["undo"] == f"castore {kind} new {digests['retry'][:12]}"


def test_remove_several(own: Path) -> None:
    text("-s", own, "tag", "v2")
    assert len(run("-s", own, "tag", "-d", "v1", "v2").stdout.splitlines()) == 2
    assert text("-s", own, "tag") == ""


@pytest.mark.parametrize(
    "words",
    [
        ["tag", "-d"],
        ["branch", "-f"],
        ["tag", "-d", "nosuch"],
        ["branch", "-d", "nosuch"],
        ["tag", "-d", "-f", "v1"],
        ["branch", "-v", "main"],
        ["tag", "a", "main", "main"],
        ["branch", "a", "nosuch"],
        ["tag", "a", "main:model"],
        ["branch", "a b"],
        ["tag", "..", "main"],
        ["branch", "deadbeef"],
        ["tag", "--", "-x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_changes_nothing(runs: Path, words: list[str]) -> None:
    message("-s", runs, *words, code=2)
    assert refs(runs, "tag").keys() == {"v1"}
    assert refs(runs, "branch").keys() == {"main", "retry"}


def test_a_tag_and_a_branch_need_two_names(runs: Path) -> None:
    assert "is a branch" in message("-s", runs, "tag", "main", "main~1", code=2)
    assert "is a tag" in message("-s", runs, "branch", "v1", "main", code=2)
