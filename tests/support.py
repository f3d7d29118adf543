"""What the end-to-end tests share: states, comparison by bytes, damage, child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.same import difference

ROOT = Path(__file__).resolve().parents[1]


def training_state(seed: int, *, width: int = 64, step: int = 0) -> dict[str, Any]:
    """A small but typical state: weights, optimizer moments, scalars, RNG, Python leaves."""
    g = torch.Generator().manual_seed(seed)
    weights = {f"layer{i}.weight": torch.randn(width, width, generator=g) for i in range(4)}
    weights["head.weight"] = weights["layer0.weight"]
    moments = {
        i: {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.randn(width, width, generator=g),
            "exp_avg_sq": torch.rand(width, width, generator=g),
        }
        for i in range(4)
    }
    return {
        "model": weights,
        "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]},
        "step": step,
        "rng": g.get_state(),
        "losses": [float(seed), -0.0, float("inf")],
    }


def same(a: Any, b: Any) -> bool:
    """Whether two states are the same by types, bits, order and keys."""
    return difference(a, b) is None


def truth_files(store: Path) -> list[Path]:
    """The files that are the truth: castore.json, packs, log entries."""
    return [
        store / "castore.json",
        *sorted((store / "packs").rglob("*.pack")),
        *sorted(p for p in (store / "log").iterdir() if p.name.isdigit()),
    ]


def flip_bit(path: Path, offset: int, bit: int) -> None:
    """Flip one bit of a file in place."""
    with path.open("r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ (1 << bit)]))


def castore_cli(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python -m castore``."""
    return subprocess.run(
        [sys.executable, "-m", "castore", *args],
        capture_output=True,
        text=True,
        cwd=kwargs.pop("cwd", ROOT),
        timeout=120,
        check=False,
        **kwargs,
    )


def fork(act: Callable[[], None]) -> int:
    """Run ``act`` in a forked child that never returns to the test; its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
            act()
            status = 0
        except BaseException as e:
            print(f"child: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return pid


def wait_ok(pid: int) -> None:
    """Wait for a child that must end well."""
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
