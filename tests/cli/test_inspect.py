"""``log``, ``show``, ``rev-parse``, ``info``: what they print, as text and as JSON."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

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
    assert second[-3:] == ["", "    second", "    with \\x1b[31mcolour"]
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
        (["--max-count=1"], [30]),
        (["refs/tags/v1"], [20, 10]),
        (["--reverse"], [10, 20, 30]),
        (["--reverse", "-2"], [20, 30]),
        (["--all"], [30, 25, 20, 10]),
        (["--since", "1 hour ago"], [30, 20, 10]),
        (["--after=yesterday", "-1"], [30]),
        (["--since", "2999-01-01"], []),
        (["--until", "now"], [30, 20, 10]),
        (["--before=2001-01-01T00:00:00Z"], []),
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


def test_log_between_two_checkpoints(runs: Path) -> None:
    with castore.open(runs, readonly=True) as store:
        second = store.resolve("v1").time
    exact = f"{second // 10**9}.{second // 1000 % 10**6:06}"
    # To the microsecond; the same moment is both since and until it.
    later = datetime.fromtimestamp(float(exact), UTC).isoformat()
    assert [r["step"] for r in records("-s", runs, "log", "--since", later)] == [30, 20]
    earlier = datetime.fromtimestamp(float(exact) - 0.000_002, UTC).isoformat()
    assert [r["step"] for r in records("-s", runs, "log", "--until", earlier)] == [10]


@pytest.mark.parametrize("words", [["--since", "soon"], ["--all", "main"], ["--until", ""]])
def test_log_of_nonsense(runs: Path, words: list[str]) -> None:
    message("-s", runs, "log", *words, code=2)


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
    assert tree == TREE


#: Of the state in conftest.py, at step 10.
TREE = """\
(root)             dict     5 entries
frozen             int64    4096            32.0 KiB  8 chunks
model              dict     3 entries
model/weight       float32  300 x 4          4.7 KiB  2 chunks, tie 0
model/bias         float32  3               12 bytes
model/tied         float32  300 x 4          4.7 KiB  2 chunks, tie 0
optimizer          dict     3 entries
optimizer/lr       float    0.5
optimizer/betas    tuple    2 entries
optimizer/betas/0  float    0.9
optimizer/betas/1  float    0.999
optimizer/name     str      'ad\\x1b[31mam'
step               int      10
a~1b               list     2 entries
a~1b/0             bool     True
a~1b/1             None     None
"""


def test_show_json(runs: Path) -> None:
    head, *values = records("-s", runs, "show", "main~2")
    with castore.open(runs, readonly=True) as store:
        expected = store.resolve("main~2").to_dict()
        tree = [{"type": "value", **entry.to_dict()} for entry in store.tree("main~2")]
    # JSON has no NaN.
    assert head.pop("meta") == {"loss": "NaN", "note": "two\nlines"}
    assert expected.pop("meta")
    assert head == {"type": "checkpoint", **expected, "branches": [], "tags": []}
    assert values == tree


def test_show_a_subtree(runs: Path) -> None:
    assert text("-s", runs, "show", "retry:optimizer/betas").splitlines() == [
        "optimizer/betas    tuple  2 entries",
        "optimizer/betas/0  float  0.9",
        "optimizer/betas/1  float  0.999",
    ]
    assert text("-s", runs, "show", "main~2:") == TREE


def test_show_a_tensor(runs: Path) -> None:
    with castore.open(runs, readonly=True) as store:
        [weight] = store.tree("main:model/weight")
    shown = text("-s", runs, "show", "main:model/weight")
    assert shown.startswith(
        "Path:    model/weight\n"
        "Kind:    tensor\n"
        "Dtype:   float32\n"
        "Shape:   300 x 4\n"
        "Bytes:   4,800 (4.7 KiB)\n"
        "Tied to: model/tied\n"
        "Items:   1,200\n"
        "Min:     30\n"
        "Max:     1229\n"
        "Mean:    629.5\n"
    )
    chunks = shown.partition("Chunks:  2\n")[2].splitlines()
    assert [line.split()[0] for line in chunks] == list(weight.chunks)
    assert re.search(r"rows 0\.\.\d+, .* packs/\S+\.data\.pack at \d+ raw$", chunks[0])
    told = record("-s", runs, "show", "main:model/weight")
    assert (told["dtype"], told["shape"]) == ("float32", [300, 4])
    bare = text("-s", runs, "show", "--no-stats", "main:model/weight")
    assert "Mean" not in bare
    small = text("-s", runs, "show", "main:model/bias")
    assert "Bytes:   12\n" in small
    assert "Chunks:  none: it lies inside its tree\n" in small
    assert "Tied" not in small


@pytest.mark.parametrize(
    ("path", "value"),
    [("step", "30"), ("optimizer/lr", "0.5"), ("a~1b/0", "True"),
     ("optimizer/name", "'ad\\x1b[31mam'")],
)  # fmt: skip
def test_show_a_value_is_the_value(runs: Path, path: str, value: str) -> None:
    assert text("-s", runs, "show", f"main:{path}") == value + "\n"


def test_long_lists_of_numbers_are_one_row_until_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "lists.castore"
    state = {
        "rng": random.Random(1).getstate(),
        "short": list(range(16)),
        "mixed": [*range(30), "text"],
        "names": ["a"] * 30,
        "nested": [[i] for i in range(30)],
        "flags": {True, 2.5, *range(100, 130)},
    }
    castore.save(state, path)
    rows = [line.split("  ")[0] for line in text("-s", path, "show", "main:").splitlines()]
    assert "rng/1" in rows
    for collapsed in ("rng/1", "flags"):
        assert not [row for row in rows if row.startswith(f"{collapsed}/")]
    for listed, n in (("short", 16), ("mixed", 31), ("names", 30), ("nested", 60)):
        assert len([row for row in rows if row.startswith(f"{listed}/")]) == n
    [row] = [r for r in text("-s", path, "show").splitlines() if r.startswith("rng/1 ")]
    first = [str(n) for n in state["rng"][1][:2]]
    assert row.split() == [
        "rng/1",
        "tuple",
        "625",
        "entries:",
        f"{first[0]},",
        f"{first[1]},",
        "...",
    ]
    assert len(text("-s", path, "show", "main:rng/1").splitlines()) == 626
    assert len(records("-s", path, "show", "main:rng")) == 629  # JSON has all


def test_an_ordered_dicts_metadata_is_told_and_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "module.castore"
    castore.save({"model": torch.nn.Linear(2, 2).state_dict()}, path)
    shown = text("-s", path, "show")
    assert "model/~(_metadata)  odict    1 entry" in shown
    assert "version" not in shown
    assert "version  int    1" in text("-s", path, "show", "main:model/~(_metadata)")
    with castore.open(path, readonly=True) as store:
        assert store.load("main:model/~(_metadata)") == {"": {"version": 1}}


def test_show_what_is_not_there(runs: Path) -> None:
    said = message("-s", runs, "show", "main:model/nope", code=2)
    assert "model holds weight, bias, tied" in said


# -- revisions ----------------------------------------------------------------------------------


def test_rev_parse(runs: Path, digests: dict[str, str]) -> None:
    main, before = digests["main"], digests["main~1"]
    for words, printed in [
        (["main"], [main]),
        (["main~1", "v1", "main@step=20", "main@{1}", before[:6]], [before] * 5),
        (["--short", "main", "v1"], [main[:12], before[:12]]),
        (["--short=8", "main"], [main[:8]]),
        (["--short=2", "main"], [main[:6]]),
        (["--verify", "main"], [main]),
        (["-q", "--verify", "main"], [main]),
    ]:
        assert text("-s", runs, "rev-parse", *words).splitlines() == printed, words
    assert record("-s", runs, "rev-parse", "v1") == {
        "type": "revision", "rev": "v1", "digest": before
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rev", "said"),
    [
        ("nosuch", "there is no branch, tag or checkpoint 'nosuch'; there is: main, retry, v1"),
        ("main~9", "goes back too far"),
        ("main@step=11", "no checkpoint of step 11"),
        ("main@{99}", "has moved 3 times: the furthest back is main@{2}"),
        ("main@{x}", "is no revision"),
        ("v1@{1}", "is a tag"),
        ("", "names no branch"),
        ("abcdef123456", "there is no branch, tag or checkpoint"),
    ],
)
def test_bad_revisions(runs: Path, rev: str, said: str) -> None:
    wrong = record("-s", runs, "show", rev, code=2)
    assert (wrong["type"], wrong["code"]) == ("error", "bad-revision")
    assert said in wrong["message"]


def test_a_bad_revision_is_told_in_words_on_stderr(runs: Path) -> None:
    assert message("-s", runs, "rev-parse", "nosuch", code=2) == (
        "castore: there is no branch, tag or checkpoint 'nosuch'; there is: main, retry, v1\n"
    )


def test_rev_parse_quiet(runs: Path) -> None:
    for words in (["--verify", "-q", "nosuch"], ["--verify", "-q", "--json", "nosuch"]):
        assert text("-s", runs, "rev-parse", *words, code=2) == ""
    message("-s", runs, "rev-parse", "--verify", "main", "v1", code=2)
    message("-s", runs, "rev-parse", "-q", "main", code=2)
    message("-s", runs, "rev-parse", code=2)


@pytest.fixture
def alike(empty: Path) -> tuple[Path, list[str]]:
    """A store whose log adds two checkpoints with digests that begin alike."""
    named = [Digest(bytes.fromhex("abcdef12" + c * 56)) for c in "34"]
    zero = Digest(bytes(32))
    with castore.open(empty) as store:
        for step, name in enumerate(named):
            add = Add("main", name, zero, zero, None, step, 0, "none", 0, 0, 0, 0, 0, None, ())
            store._parts.log.append(lambda fold, add=add: (add,), "save")
    return empty, [name.hex() for name in named]


def test_an_ambiguous_prefix(alike: tuple[Path, list[str]]) -> None:
    store, named = alike
    said = message("-s", store, "rev-parse", "abcdef1", code=2)
    assert "fits 2 checkpoints: abcdef123333 (step 0), abcdef124444 (step 1)" in said
    wrong = record("-s", store, "log", "abcdef", code=2)
    assert wrong["code"] == "ambiguous-revision"
    assert wrong["candidates"] == named
    # What is shortened stays a revision.
    assert text("-s", store, "rev-parse", "--short=6", "main") == "abcdef124\n"
    assert text("-s", store, "rev-parse", "abcdef124") == named[1] + "\n"


# -- info ---------------------------------------------------------------------------------------


def test_info(runs: Path, digests: dict[str, str]) -> None:
    fields = dict(line.split(":", 1) for line in text("-s", runs, "info").splitlines())
    fields = {name: value.strip() for name, value in fields.items()}
    assert fields["Store"] == str(runs)
    assert fields["Format"] == "version 1, chunks of 4.0 KiB"
    assert fields["Branches"] == f"main {digests['main'][:12]}, retry {digests['retry'][:12]}"
    assert fields["Tags"] == f"v1 {digests['v1'][:12]}"
    assert fields["Checkpoints"] == "4 live, 0 verified"
    assert fields["Packs"].startswith("12 files, 96.0 KiB; they hold states of 146.8 KiB, 1.5 ")
    assert fields["Known damage"] == fields["Writers now"] == "none"
    assert re.fullmatch(r"(now|\d+ \w+ ago) \(\d{4}-\d\d-\d\dT[\d:]{8}Z\)", fields["Last commit"])
    # Silence is told.
    assert fields["Last verification"].startswith("never")
    with castore.open(runs, readonly=True) as store:
        assert record("-s", runs, "info") == {"type": "store", **store.info().to_dict()}


def test_info_of_an_empty_store(empty: Path) -> None:
    shown = text("-s", empty, "info")
    for line in ("Branches:          none", "Last commit:       never", "0 live, 0 verified"):
        assert line in shown
