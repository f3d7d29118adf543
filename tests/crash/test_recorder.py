"""The recorder misses nothing: its list against strace's of the same process."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PROGRAM = """
import json, sys
import torch
import castore
from pathlib import Path
from tests.crash.recorder import Recorder
folder = Path(sys.argv[1])
with Recorder(folder) as recorder:
    with castore.open(folder / "runs.castore", create=True) as store:
        for step in range(2):
            store.save({"x": torch.full((3000,), float(step))}, step=step)
        store.gc()
ops = [(op.kind, op.path, op.other, len(op.data)) for op in recorder.ops]
Path(sys.argv[2]).write_text(json.dumps(ops))
"""

#: Calls that change names or bytes; the recorder must know every one that castore makes.
TRACED = (
    "open,openat,openat2,creat,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,sync_file_range,"
    "link,linkat,symlink,symlinkat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "truncate,ftruncate,fallocate,copy_file_range,sendfile"
)
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += +(-?\d+)")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r" *<\.\.\. \w+ resumed>")
_FD = re.compile(r"^\d+<([^>]*)>")
_AT = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>, "([^"]*)"')


def whole_lines(text: str) -> Iterator[str]:
    """strace's lines, those that another thread cut in two put together."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        pid, _, rest = line.partition(" ")
        if line.endswith(_UNFINISHED):
            begun[pid] = line.removesuffix(_UNFINISHED)
        elif resumed := _RESUMED.match(rest):
            yield begun.pop(pid) + rest[resumed.end() :]
        else:
            yield line


def traced(log: Path, folder: Path) -> Counter[tuple[str, str, str, int]]:
    """strace's log as acts below ``folder``, in the recorder's words."""
    out: Counter[tuple[str, str, str, int]] = Counter()

    def inside(path: str) -> str | None:
        root = str(folder)
        if path != root and not path.startswith(root + "/"):
            return None
        name = path[len(root) + 1 :]
        return None if any(p.startswith("index.lmdb") for p in name.split("/")) else name

    for line in whole_lines(log.read_text()):
        if (call := _CALL.match(line)) is None:
            continue
        name, args, result = call[1], call[2], int(call[3])
        if result < 0:
            continue
        at = [inside(f"{folder_}/{leaf}" if leaf[0] != "/" else leaf)
              for folder_, leaf in _AT.findall(args)]  # fmt: skip
        fd = _FD.match(args)
        of = inside(fd[1]) if fd else None
        match name:
            case "openat":
                if "O_CREAT" in args and at[0] is not None:
                    out["create", at[0], "", 0] += 1
            case "write" | "pwrite64":
                if of is not None:
                    out["write", of, "", result] += 1
            case "fsync":
                if of is not None:
                    out["fsync", of, "", 0] += 1
            case "mkdir" | "mkdirat" | "unlinkat" | "unlink" | "rmdir":
                # mkdir(2) and its like are given as a path alone
                path = at[0] if at else inside(args.split('"')[1])
                kind = "rmdir" if "AT_REMOVEDIR" in args else name.removesuffix("at")
                if path is not None:
                    out[kind, path, "", 0] += 1
            case "linkat" | "renameat" | "renameat2":
                if at[0] is not None and at[1] is not None:
                    out[name.partition("at")[0], at[0], at[1], 0] += 1
            case _:
                if of is not None or any(p is not None for p in at):
                    out[name, str(of or at), "", 0] += 1
    return out


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_recorder_sees_what_strace_sees(tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    folder.mkdir()
    log, ops = tmp_path / "strace.log", tmp_path / "ops.json"
    done = subprocess.run(
        ["strace", "-f", "-y", "-e", f"trace={TRACED}", "-o", str(log),
         sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), str(ops)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    recorded = Counter(
        ("fsync" if kind == "fsyncdir" else kind, path, other, n)
        for kind, path, other, n in json.loads(ops.read_text())
    )
    assert recorded.total() > 30
    assert traced(log, folder) == recorded
