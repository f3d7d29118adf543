"""The main job, end to end, with a toy model: tools/quickstart.py checks its own claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def test_quickstart_fast(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(TOOLS / "quickstart.py"), "--fast", "--out", str(out)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All claims held" in done.stdout
    for part in range(1, 6):
        assert f"[{part}/5]" in done.stdout


def test_quickstart_leaves_a_folder_alone_that_it_did_not_make(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    done = subprocess.run(
        [sys.executable, str(TOOLS / "quickstart.py"), "--fast", "--out", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert precious.read_text() == "mine"
