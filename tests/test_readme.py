"""Every command and code block of the README runs (the two set-up commands aside)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = {"tools/quickstart", "tools/test"}  # have tests of their own, or are this very run


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    found = [
        line.removeprefix("$ ").partition("#")[0].strip() for line in lines if line[:2] == "$ "
    ]
    assert found
    return found


def test_no_block_is_of_another_kind() -> None:
    assert set(re.findall(r"^```(\w*)$", README, re.MULTILINE)) <= {"python", "console", ""}


@pytest.mark.slow
def test_the_readme_runs_in_order(tmp_path: Path) -> None:
    script = "\n".join(blocks("python"))
    assert "castore.save" in script
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bytes were new" in done.stdout
    for command in commands():
        name, *args = shlex.split(command)
        if name in SET_UP:
            assert (ROOT / name).is_file()
            continue
        assert name == "castore"
        done = subprocess.run(
            [sys.executable, "-m", "castore", *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout, command


def test_every_file_it_names_is_there() -> None:
    for name in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / name).exists(), name
