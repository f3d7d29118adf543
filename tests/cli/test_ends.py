"""Every way a verb can end: exit codes, what is said where, and never a traceback but for a bug."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import castore
from tests.cli.driver import PROGRAM, ROOT, environment, message, record, text
from tests.cli.driver import castore as run

VERBS = [
    "branch", "cat-file", "completion", "fsck", "gc", "help", "info", "init", "log", "ls-tree",
    "reflog", "rev-parse", "show", "show-ref", "tag",
]  # fmt: skip


def start(*args: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *map(str, args)],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
        **options,
    )  # fmt: skip


# -- 0 and 2 ------------------------------------------------------------------------------------


def test_help_of_every_verb() -> None:
    whole = text("--help")
    for verb in VERBS:
        assert f"\n  {verb} " in whole
        page = text(verb, "--help")
        assert page.startswith(f"Usage: castore {verb} ")
        assert f"  castore {verb}" in page, "an example"
        assert "\nExit: 0 " in page
        assert "--color" in page
        for option in ("--json", "--store PATH"):
            assert option in page
        assert max(map(len, page.splitlines())) <= 80
    assert text("--version") == f"castore {castore.__version__}\n"


@pytest.mark.parametrize(
    "words", [[], ["frobnicate"], ["log", "--frob"], ["log", "a", "b"], ["log", "-n", "x"],
              ["log", "-s", "x"], ["-s"]], ids=" ".join,
)  # fmt: skip
def test_wrong_usage(words: list[str]) -> None:
    said = message(*words, code=2)
    assert said.startswith(("Usage: castore ", "castore: Option '-s' requires"))
    wrong = record(*words, code=2) if words and words[-1] != "-s" else {"code": "usage"}
    assert wrong["code"] == "usage"


# -- 3 ------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written(own: Path) -> None:
    """As root no mode refuses anything: an immutable folder does."""
    lock, unlock = (["chmod", "0555"], ["chmod", "0755"])
    if os.geteuid() == 0:
        lock, unlock = (["chattr", "+i"], ["chattr", "-i"])
    folders = [own, own / "log", own / "packs", own / "sessions"]
    done = subprocess.run([*lock, *folders], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this file system has no immutable folders, and root heeds no modes")
    try:
        for verb in ("log", "show", "info", "fsck", "tag", "branch"):
            text("-s", own, verb)
        text("-s", own, "rev-parse", "main")
        for words in (["tag", "new"], ["branch", "-d", "retry"]):
            said = message("-s", own, *words, code=3)
            assert "not permitted" in said or "Permission denied" in said
            assert record("-s", own, *words, code=3)["type"] == "error"
        text("-s", own, "tag", "v1", "main~1")  # it is there: nothing to write
    finally:
        subprocess.run([*unlock, *folders], check=True)
    assert text("-s", own, "branch") == "main\nretry\n"
    assert "make it first" in message("init", own / "no" / "store", code=3)


def test_a_disk_that_takes_nothing_more(own: Path) -> None:
    def no_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    process = start("-s", own, "tag", "new", stdout=subprocess.PIPE, preexec_fn=no_files)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "File too large" in err
    assert "Traceback" not in err
    assert text("-s", own, "tag") == "v1\n"


@pytest.mark.parametrize(
    "words", [["log"], ["log", "--json"], ["fsck"], ["log", "nosuch", "--json"]]
)
def test_output_that_cannot_be_written(runs: Path, words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = start("-s", runs, *words, stdout=full)
        err = process.communicate(timeout=60)[1]
    assert process.returncode == (2 if "nosuch" in words else 3)
    assert "No space left on device" in err
    assert [line for line in err.splitlines() if not line.startswith("castore: ")] == []


# -- readers that go away -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tree fills a pipe several times."""
    path = tmp_path_factory.mktemp("long") / "long.castore"
    castore.save({f"value {i:06}": i for i in range(20_000)}, path)
    return path


@pytest.mark.parametrize("words", [["show"], ["show", "--json"]])
def test_head(long: Path, words: list[str]) -> None:
    command = " ".join([*PROGRAM, "-s", str(long), *words])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    first, status = done.stdout.splitlines()
    assert "checkpoint" in first
    assert (status, done.stderr) == ("0", "")


def test_a_verdict_nobody_reads_is_still_the_exit_code(own: Path) -> None:
    (own / "log" / "000000000004").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = start("-s", own, "fsck", stdout=writer)
    finally:
        os.close(writer)
    err = process.communicate(timeout=60)[1]
    assert (process.returncode, err) == (1, "")


def test_closed_streams(runs: Path) -> None:
    for words, closed, code in (
        ("log", "1>&-", 0),
        ("log nosuch", "2>&-", 2),
        ("fsck", ">&- 2>&-", 0),
    ):
        command = f"{' '.join(PROGRAM)} -s {runs} {words} {closed}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=environment(),
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (code, "", ""), words


# -- 130 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupted(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "big.castore"
    castore.save({"w": torch.zeros(64 << 20, dtype=torch.uint8).random_()}, path)
    # Held in the middle of a read, however fast the machine: by a debugger's stop, so to say.
    hold = (
        "import sys, time\n"
        "from castore.cli.main import main\n"
        "import castore.storage.local as local\n"
        "def read_into(*args, **kwargs):\n"
        "    print('reading', file=sys.stderr, flush=True)\n"
        "    time.sleep(0.5)\n"
        "    raise OSError(5, 'held')\n"
        "local.LocalStorage.read_into = read_into\n"
        "main(sys.argv[1:])\n"
    )
    words = ["-s", str(path), "fsck", *(["--json"] if as_json else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", hold, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == 130
    assert "Traceback" not in err
    if as_json:
        assert '"code": "interrupted"' in out
        assert '"exit_code": 130' in out
    else:
        assert out == ""
        # Threads that read may say so after it: they are the test's, not castore's.
        assert "castore: interrupted" in err.splitlines()


# -- 70 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_a_bug_is_told_as_one(runs: Path, as_json: bool) -> None:
    broken = (
        "import sys\n"
        "from castore.cli.main import main\n"
        "import castore.store\n"
        "def log(*args, **kwargs): return 1 / 0\n"
        "castore.store.Store.log = log\n"
        "main(sys.argv[1:])\n"
    )
    words = ["-s", str(runs), "log", *(["--json"] if as_json else [])]
    done = subprocess.run(
        [sys.executable, "-c", broken, *words],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 70
    assert "Traceback (most recent call last)" in done.stderr
    said = done.stdout if as_json else done.stderr
    assert "ZeroDivisionError: division by zero" in said
    assert "Please report it" in said


# -- imports ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["log"], ["log", "--json"], ["log", "--since", "1 day ago"], ["show"], ["rev-parse", "main"],
     ["rev-parse", "main:model"], ["info"], ["tag", "-v"], ["branch", "--contains", "v1"],
     ["show-ref"], ["reflog"], ["ls-tree", "-r", "-l", "main"], ["cat-file", "-p", "main"],
     ["cat-file", "-p", "main:model"], ["cat-file", "--raw", "main:model/weight"], ["help"],
     ["help", "log"], ["completion", "bash"], ["fsck"], ["gc", "-n"], ["--help"],
     ["log", "nosuch"]],
    ids=" ".join,
)  # fmt: skip
def test_nothing_heavy_is_imported(runs: Path, words: list[str]) -> None:
    told = (
        "import atexit, sys\n"
        "from castore.cli.main import main\n"
        "loaded = lambda: sorted({'torch', 'numpy', 'rich'} & set(sys.modules))\n"
        "atexit.register(lambda: print(*loaded(), 'END', file=sys.stderr))\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", told, "-s", str(runs), *words],
        capture_output=True, cwd=ROOT, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == b"END"


def test_the_installed_program_is_the_same(runs: Path) -> None:
    by_name = Path(sys.executable).with_name("castore")
    if not by_name.exists():
        code = "from castore.cli.main import main; main()"
        command = [sys.executable, "-c", code]
    else:
        command = [str(by_name)]
    done = subprocess.run(
        [*command, "-s", str(runs), "log"],
        capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == run("-s", runs, "log").stdout
