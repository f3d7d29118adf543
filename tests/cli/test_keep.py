"""``window``, ``drop``, ``pin``, ``unpin``, and gc of checkpoints: what stays, and every reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import castore
from tests.cli.conftest import state
from tests.cli.driver import castore as run
from tests.cli.driver import message, record, records, text


@pytest.fixture
def long(own: Path) -> Path:
    """Six checkpoints on main: 10, 20 (tag v1, list of retry), 30, 40, 50, 60."""
    with castore.open(own) as store:
        for step in (40, 50, 60):
            store.save(state(step), step=step, meta={"loss": 1 / step})
    return own


def steps(store: Path, branch: str = "main") -> list[int | None]:
    with castore.open(store, readonly=True) as opened:
        return [c.step for c in opened.log(branch)]


def rows(lines: list[str]) -> list[list[str]]:
    return [re.split("  +", line) for line in lines]


# -- window -------------------------------------------------------------------------------------


def test_window_gives_a_reason_for_every_checkpoint(long: Path) -> None:
    planned = text("-s", long, "window", "--keep-last", 3, "--keep-every", 30, "-n").splitlines()
    wanted = [
        ["kept", "60", "the newest; one of the newest 3 verified; step a multiple of 30"],
        ["kept", "50", "one of the newest 3 verified"],
        ["kept", "40", "one of the newest 3 verified"],
        ["kept", "30", "step a multiple of 30"],
        ["kept", "20", "tag v1"],
        ["let go", "10", "older than the newest 3 verified, and no other rule keeps it"],
    ]
    assert [[row[0], *row[2:]] for row in rows(planned[:6])] == wanted
    # ... and for every pack they need.
    assert len(planned[6:-3]) == 18
    assert all(re.match(r"(kept|removed) .* packs/\S+  .*need", line) for line in planned[6:-3])
    assert planned[-3:] == [
        "would read back 3 checkpoints first",
        "main: keep_last=3 keep_every=30",
        "would let go 1 checkpoint, 0 bytes",
    ]
    assert steps(long) == [60, 50, 40, 30, 20, 10]
    done = text("-s", long, "window", "--keep-last", 3, "--keep-every", 30).splitlines()
    assert [[row[0], *row[2:]] for row in rows(done[:6])] == wanted
    assert done[6:] == [
        "read back 3 checkpoints first",
        "main: keep_last=3 keep_every=30",
        "let go 1 checkpoint, 0 bytes",
    ]
    assert steps(long) == [60, 50, 40, 30, 20]


def test_window_shows_and_clears(long: Path) -> None:
    assert text("-s", long, "window") == "main   none\nretry  none\n"
    assert text("-s", long, "window", "main").splitlines()[-1] == "main: none; nothing is let go"
    text("-s", long, "window", "main", "--keep-within", "52w", "--keep-best", "loss")
    policy = "keep_last=3 keep_best=loss:min:1 keep_within=52w"
    assert text("-s", long, "window") == f"main   {policy}\nretry  none\n"
    assert text("-s", long, "window", "main").splitlines()[-2:] == [
        f"main: {policy}",
        "would let go nothing",
    ]
    assert records("-s", long, "window") == [
        {"type": "policy", "branch": "main", "policy": policy},
        {"type": "policy", "branch": "retry", "policy": None},
    ]
    shown = record("-s", long, "window", "main")
    with castore.open(long, readonly=True) as store:
        assert shown == {"type": "window", **store.window("main").to_dict()}
    assert re.search(f"Windows: +main {re.escape(policy)}\n", text("-s", long, "info"))
    assert text("-s", long, "window", "--off") == "main: none; nothing is let go\n"
    assert text("-s", long, "window") == "main   none\nretry  none\n"


def test_window_of_a_branch_that_is_not_there_yet(own: Path) -> None:
    done = run("-s", own, "window", "next", "--keep-last", 4)
    assert done.stdout == "next: keep_last=4\nlet go nothing\n"
    assert done.stderr == "next has no checkpoint yet\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--keep-last", "2"], ["--keep-last", "0", "--below-three"], ["--keep-last", "few"],
        ["--keep-within", "soon"], ["--keep-best", ""], ["--off", "--keep-last", "3"],
        ["no good", "--keep-last", "3"], ["main", "retry"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_window_refuses(long: Path, words: list[str]) -> None:
    message("-s", long, "window", *words, code=2)
    assert len(steps(long)) == 6


def test_window_below_three(long: Path) -> None:
    text("-s", long, "window", "--keep-last", 1, "--below-three")
    assert steps(long) == [60, 20]


# -- drop ---------------------------------------------------------------------------------------


def test_drop(long: Path) -> None:
    with castore.open(long, readonly=True) as store:
        third, fourth = (store.resolve(rev).digest for rev in ("main~2", "main~3"))
    assert re.fullmatch(
        rf"Dropped checkpoint {third[:12]} \(step 40\); \d+\.\d KiB freed\n"
        rf"Dropped checkpoint {fourth[:12]} \(step 30\); \d+\.\d KiB freed\n",
        text("-s", long, "drop", "main~2", "main~3"),
    )
    assert steps(long) == [60, 50, 20, 10]
    dropped = record("-s", long, "drop", "main@step=10")
    assert (dropped["type"], dropped["step"], dropped["branches"]) == ("drop", 10, ["main"])
    gone = message("-s", long, "show", third, code=3)
    assert re.search(rf"was let go: drop {third}, by pid \d+ on .* at 2\d\d\d-", gone)
    assert record("-s", long, "show", third, code=3)["code"] == "checkpoint-gone"
    assert run("-s", long, "fsck").stdout.splitlines()[-1].startswith("sound: ")


def test_drop_refuses(long: Path) -> None:
    assert "main is the newest checkpoint of main" in message("-s", long, "drop", "main", code=2)
    assert "held by tag v1" in message("-s", long, "drop", "v1", code=2)
    assert "retry is the newest" in message("-s", long, "drop", "retry", code=2)
    message("-s", long, "drop", "main~9", code=2)
    message("-s", long, "drop", "main~1:model", code=2)
    message("-s", long, "drop", code=2)
    assert len(steps(long)) == 6


# -- pins ---------------------------------------------------------------------------------------


def test_pins(long: Path, digests: dict[str, str]) -> None:
    assert text("-s", long, "pin") == ""
    short = digests["main~2"][:12]
    assert text("-s", long, "pin", "main@step=10") == (
        f"Pinned {short} as pin-{short}; `castore unpin pin-{short}` undoes it\n"
    )
    assert text("-s", long, "pin", "main~1", "paper").endswith("`castore unpin paper` undoes it\n")
    listed = rows(text("-s", long, "pin").splitlines())
    assert listed[0][0] == "paper"
    assert listed[1] == [f"pin-{short}", short, "10", "none: stays until unpinned"]
    found = records("-s", long, "pin")
    assert [(p["type"], p["step"], p["owner"]) for p in found] == [
        ("pin", 50, None), ("pin", 10, None),
    ]  # fmt: skip
    assert "Pins:              2\n" in text("-s", long, "info")
    text("-s", long, "window", "--keep-last", 3)
    assert steps(long) == [60, 50, 40, 20, 10]
    assert text("-s", long, "unpin", f"pin-{short}") == f"Unpinned pin-{short} (was {short})\n"
    assert "there is: paper" in message("-s", long, "unpin", "other", code=2)
    message("-s", long, "pin", "main", "bad name", code=2)
    message("-s", long, "pin", "main", "a", "b", code=2)
    assert "choose another name" in message("-s", long, "pin", "main", "paper", code=2)


def test_a_dead_process_s_pin(long: Path) -> None:
    with castore.open(long) as store:
        owner = store.pin("main~1", "mine")._owner
        store._parts.log.append(
            lambda fold: [castore_pin("dead", fold.heads()["main"], (*owner[:3], 2**22 + 1, 1))],
            "pin dead",
        )
    assert [row[3] for row in rows(text("-s", long, "pin").splitlines())] == [
        f"pid {2**22 + 1} on {owner[0]} (dead: gc gives it up)",
        f"pid {owner[3]} on {owner[0]} (alive)",
    ]
    assert "Pins:              2, 1 of a dead process\n" in text("-s", long, "info")
    assert "give up pin dead: its process is dead\n" in text("-s", long, "gc")
    assert [p["name"] for p in records("-s", long, "pin")] == ["mine"]


def castore_pin(name: str, digest: object, owner: tuple[object, ...]) -> object:
    from castore.log.entry import Pin

    return Pin(name, digest, owner)  # type: ignore[arg-type]


# -- gc -----------------------------------------------------------------------------------------


def test_gc_lets_go_and_says_so(long: Path) -> None:
    undo = run("-s", long, "branch", "-f", "main", "main~1")
    assert "undo: " in undo.stderr
    planned = text("-s", long, "gc", "-n")
    assert re.search(r"would let go +\S+  60  on no branch's list, and no tag or pin h", planned)
    assert "would let go 1 checkpoint\n" in planned
    done = text("-s", long, "gc").splitlines()
    assert re.match(r"let go  \S+  60  on no branch's list", done[0])
    assert done[-2] == "let go 1 checkpoint"
    assert done[-1].startswith("removed 3 files, ")
    assert run("-s", long, "fsck").stdout.splitlines()[-1].startswith("sound: ")


def test_gc_of_everything(long: Path) -> None:
    for name in ("main", "retry"):
        run("-s", long, "branch", "-d", name)
    run("-s", long, "tag", "-d", "v1")
    planned = run("-s", long, "gc", "-n")
    assert planned.stderr == "that is every checkpoint there is: it takes `castore gc --all`\n"
    assert "--all" in message("-s", long, "gc", code=2)
    assert "0 live checkpoints need 0 packs" in text("-s", long, "gc", "--all")
    assert list((long / "packs").iterdir()) == []
