"""The commands whose output is kept in golden/, and how that is made.

``python -m tests.cli.golden_cases`` (from the checkout) makes the files anew, and
docs/json.schema.json with them.  Read every change before you commit it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cli import fixed, schema
from tests.cli.driver import PROGRAM, TIMEOUT, environment

GOLDEN = Path(__file__).with_name("golden")

#: File -> command lines, run one after the other in the folder of a store of its own.
CASES: dict[str, list[str]] = {
    "log": [
        "log",
        "log --oneline",
        "log main~1 -1",
        "log --all --oneline",
        "log --reverse --oneline",
        "log --since 2026-12-01T15:40:00Z --oneline",
        "log --until '2026-12-01 15:40' --oneline",
        "log --json -1",
        "log nosuch",
    ],
    "show": [
        "show",
        "show v1",
        "show main:optimizer",
        "show main:rng/1/0",
        "show main:model/~(_metadata)",
        "show main:step",
        "show main:nosuch",
        "show --json main:a~1b",
    ],
    "info": ["info", "info --json"],
    "ls-tree": [
        "ls-tree main",
        "ls-tree -l main",
        "ls-tree main:model",
        "ls-tree -r --abbrev main model a~1b",
        "ls-tree -r -t --name-only main a~1b/ optimizer",
        "ls-tree -d --object-only --abbrev=8 main",
        "ls-tree -z --name-only main",
        "ls-tree main:step",
        "ls-tree main nosuch",
        "ls-tree --json -l main:model",
    ],
    "cat-file": [
        "cat-file -t main",
        "cat-file -t main:model",
        "cat-file -t main:model/weight",
        "cat-file -t main:step",
        "cat-file -s main:frozen",
        "cat-file -s main:notes",
        "cat-file -p main",
        "cat-file -p v1",
        "cat-file -p main:",
        "cat-file -p main:model/weight",
        "cat-file -p main:notes",
        "cat-file -p main:7",
        "cat-file -p main:optimizer/lr",
        "cat-file -p main:optimizer/name",
        "cat-file -p 824bf275",
        "cat-file -e main:model",
        "cat-file -e main:nosuch",
        "cat-file -e 000000000000",
        "cat-file -t 000000000000",
        "cat-file main",
        "cat-file --raw main:model/bias",
        "cat-file --json main",
        "cat-file --json main:model",
    ],
    "rev-parse": [
        "rev-parse main",
        "rev-parse --short main v1 main~1 main@{1} main@step=310 refs/heads/main refs/tags/v1",
        "rev-parse --short=8 main:model main:frozen",
        "rev-parse --verify -q nosuch",
        "rev-parse --verify nosuch",
        "rev-parse gone",
        "rev-parse --short gone@{1}",
        "rev-parse gone@{0}",
        "rev-parse main@{4}",
        "rev-parse main@{9}",
        "rev-parse main@step=1",
        "rev-parse main~7",
        "rev-parse mian",
        "rev-parse --json main",
    ],
    "show-ref": [
        "show-ref",
        "show-ref --heads",
        "show-ref --branches --tags --hash=8",
        "show-ref --tags --hash",
        "show-ref --abbrev main",
        "show-ref nosuch",
        "show-ref --verify refs/heads/main",
        "show-ref --verify main",
        "show-ref --verify -q main",
        "show-ref --exists refs/tags/v1",
        "show-ref --exists refs/tags/v2",
        "show-ref --json",
    ],
    "reflog": [
        "reflog",
        "reflog -n 1",
        "reflog retry",
        "reflog gone",
        "reflog v1",
        "reflog nosuch",
        "reflog --json -n 2",
    ],
    "branch": [
        "branch",
        "branch -v",
        "branch -l 're*'",
        "branch --points-at v1",
        "branch --contains v1",
        "branch again main~1",
        "branch again main",
        "branch -f again main",
        "branch -d again",
        "branch --json",
        "branch --json again",
        "branch -m again other",
    ],
    "tag": [
        "tag",
        "tag -v",
        "tag -l 'v*' 'x*'",
        "tag --points-at main",
        "tag new v1",
        "tag new",
        "tag -f new",
        "tag -d new",
        "tag --json",
    ],
    "init": [
        "init other.castore --chunk-size 64K",
        "init other.castore",
        "init other.castore --chunk-size 4K",
        "init --json other.castore",
    ],
    "fsck": ["fsck", "fsck --quick", "fsck --json"],
    "gc": ["gc --dry-run", "gc", "gc --json"],
    "help": [
        "help",
        "help log",
        "help show-ref",
        "help revisions",
        "help lgo",
        "help --json completion",
    ],
    "completion": [
        "completion bash",
        "completion zsh",
        "completion fish",
        "completion --json bash",
    ],
}

STORE = "runs.castore"


def normal(text: str, folder: Path) -> str:
    """Without what differs from machine to machine."""
    text = text.replace(str(folder), "/home/you")
    text = re.sub(r"(now|\d+ \w+ ago) \(", "SOME TIME AGO (", text)
    text = re.sub(r"(File system: +).*", r"\1ext4, with direct I/O", text)
    text = re.sub(r'("file_system": )"[^"]*"', r'\1"ext4"', text)
    text = re.sub(r'("direct_io": )\w+', r"\1true", text)
    text = re.sub(r'("path": "[^"]*other.castore", "store_id": ")[0-9a-f]{32}', r"\g<1>...", text)
    return re.sub(r"_castore_completion_[0-9a-f]+", "_castore_completion", text)


def run(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """One command line, in the folder that holds the store."""
    environ = environment(CASTORE_STORE=str(folder / STORE))
    return subprocess.run(
        [*PROGRAM, *shlex.split(line)],
        stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, env=environ, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip


def transcript(name: str, store: Path, folder: Path) -> str:
    """The commands of a file, with what each prints: ``!`` before stderr, the exit if not 0."""
    shutil.copytree(store, folder / STORE)
    out = []
    for line in CASES[name]:
        done = run(line, folder)
        shown = done.stdout.decode("utf-8", "backslashreplace").replace("\0", "\\0")
        out.append(f"$ castore {line}\n{normal(shown, folder)}")
        if shown and not shown.endswith("\n"):
            out.append("\n")
        out += [f"! {text}\n" for text in normal(done.stderr.decode(), folder).splitlines()]
        if done.returncode:
            out.append(f"(exit {done.returncode})\n")
        out.append("\n")
    return "".join(out)


def remake() -> None:
    """Write all the files."""
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) / STORE
        fixed.make(store)
        for name in CASES:
            folder = Path(temporary) / name
            folder.mkdir()
            text = transcript(name, store, folder)
            (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
    schema.KEPT.write_text(schema.rendered(), encoding="utf-8")


if __name__ == "__main__":
    os.umask(0o022)
    remake()
