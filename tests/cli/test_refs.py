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
        "type": "tag", "name": "v1", "kind": "tag", "digest": digests["v1"], "step": 20,
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
        ["branch", "refs/heads/x"],
        ["tag", "-l", "-d", "v1"],
        ["branch", "--contains", "nosuch"],
        ["branch", "--points-at", "main:model"],
        ["branch", "-m", "main", "x"],
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


# -- lists that leave something out --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["branch", "-l"], ["main", "retry"]),
        (["branch", "--list", "re*", "x"], ["retry"]),
        (["branch", "-l", "RE*"], []),
        (["branch", "-l", "[lm]ain"], ["main"]),
        (["branch", "--contains", "v1"], ["main", "retry"]),
        (["branch", "--contains", "main"], ["main"]),
        (["branch", "--contains", "main~2"], ["main"]),
        (["branch", "--points-at", "retry"], ["retry"]),
        (["branch", "--points-at", "v1"], []),
        (["tag", "-l", "v*"], ["v1"]),
        (["tag", "--points-at", "main~1"], ["v1"]),
        (["tag", "--contains", "main~2"], ["v1"]),
        (["tag", "--contains", "main"], []),
    ],
    ids=str,
)
def test_filtered_lists(runs: Path, words: list[str], listed: list[str]) -> None:
    assert text("-s", runs, *words).splitlines() == listed
    assert [r["name"] for r in records("-s", runs, *words)] == listed
    assert [line.split()[0] for line in text("-s", runs, *words, "-v").splitlines()] == listed


# -- show-ref -------------------------------------------------------------------------------------


def test_show_ref(runs: Path, digests: dict[str, str]) -> None:
    lines = [
        f"{digests['main']} refs/heads/main",
        f"{digests['retry']} refs/heads/retry",
        f"{digests['v1']} refs/tags/v1",
    ]
    for words, printed in [
        ([], lines),
        (["--heads"], lines[:2]),
        (["--branches"], lines[:2]),
        (["--tags"], lines[2:]),
        (["--tags", "--heads"], lines),
        (["main", "tags/v1"], [lines[0], lines[2]]),
        (["--verify", "refs/tags/v1", "refs/heads/main"], [lines[2], lines[0]]),
        (["-s", "v1"], [digests["v1"]]),
        (["--hash=8", "v1"], [digests["v1"][:8]]),
        (["--abbrev", "v1"], [f"{digests['v1'][:12]} refs/tags/v1"]),
        (["-q"], []),
        (["--exists", "refs/heads/retry"], []),
    ]:
        assert text("-s", runs, "show-ref", *words).splitlines() == printed, words
    for name in ("refs/heads/main", "refs/tags/v1"):  # what it prints, every verb takes
        assert text("-s", runs, "rev-parse", name) == text("-s", runs, "show-ref", "-s", name)


def test_show_ref_exits_as_gits_does(runs: Path, empty: Path) -> None:
    assert text("-s", runs, "show-ref", "nosuch", code=1) == ""
    assert text("-s", runs, "show-ref", "ain", code=1) == ""  # an end, after a '/'
    assert text("-s", empty, "show-ref", code=1) == ""
    assert text("-s", runs, "show-ref", "--exists", "refs/heads/nosuch", code=2) == ""
    assert text("-s", runs, "show-ref", "--exists", "main", code=2) == ""
    assert text("-s", runs, "show-ref", "--verify", "-q", "main", code=2) == ""
    said = message("-s", runs, "show-ref", "--verify", "refs/heads/main", "main", code=2)
    assert "say refs/heads/main" in said
    assert record("-s", runs, "show-ref", "--exists", "x", code=2)["code"] == "bad-revision"
    for words in (
        ["--verify"],
        ["--exists"],
        ["--exists", "a", "b"],
        ["--verify", "--exists", "a"],
    ):
        message("-s", runs, "show-ref", *words, code=2)


# -- reflog ---------------------------------------------------------------------------------------


def test_reflog_tells_what_moved_a_branch_and_agrees_with_the_grammar(own: Path) -> None:
    run("-s", own, "branch", "-f", "main", "main~2")
    run("-s", own, "branch", "-f", "main", "retry")
    run("-s", own, "branch", "-d", "main")
    run("-s", own, "branch", "main", "v1")
    entries = records("-s", own, "reflog")
    assert [(e["action"], e["step"]) for e in entries] == [
        ("create", 20), ("remove", None), ("move", 25), ("move", 10),
        ("save", 30), ("save", 20), ("save", 10),
    ]  # fmt: skip
    lines = text("-s", own, "reflog").splitlines()
    for i, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        assert entry["index"] == i
        assert f" main@{{{i}}}: " in line
        if entry["action"] == "remove":
            assert "was removed" in message("-s", own, "rev-parse", f"main@{{{i}}}", code=2)
        else:
            assert text("-s", own, "rev-parse", f"main@{{{i}}}") == entry["digest"] + "\n"
            assert line.startswith(entry["digest"][:12])
            assert entry["live"]
    assert "furthest back is main@{6}" in message("-s", own, "rev-parse", "main@{7}", code=2)
    assert [e["index"] for e in records("-s", own, "reflog", "-n", "2")] == [0, 1]


def test_a_removed_branch_keeps_its_reflog_and_can_be_had_back(own: Path) -> None:
    run("-s", own, "branch", "-d", "retry")
    was = records("-s", own, "reflog", "retry")[1]["digest"]
    assert text("-s", own, "rev-parse", "retry@{1}") == was + "\n"
    assert "was removed" in message("-s", own, "rev-parse", "retry", code=2)
    run("-s", own, "branch", "retry", "retry@{1}")
    assert text("-s", own, "rev-parse", "retry") == was + "\n"


def test_reflog_of_what_has_none(runs: Path, empty: Path) -> None:
    assert "is a tag" in message("-s", runs, "reflog", "v1", code=2)
    assert "there is: main, retry" in message("-s", runs, "reflog", "nosuch", code=2)
    assert record("-s", empty, "reflog", code=3)["code"] == "no-checkpoint"
