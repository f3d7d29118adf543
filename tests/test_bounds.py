"""Memory and descriptors are bounded (design, invariant 10; B38)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

#: What saving and loading may need over the state itself, in MiB.
ROOM = 160

MEASURE = """
import sys
import torch, castore

def status(name):  # MiB
    with open("/proc/self/status") as lines:
        return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024
def peak():
    return status("VmHWM")
def now():
    return status("VmRSS")
def forget():  # the kernel forgets the peak on request, so each step has its own
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

path, what = sys.argv[1:]
with castore.open(path, create=True) as store:
    store.save({"warm": torch.randn(100_000), "up": [1]}, branch="warm")
    store.load("warm")
    if what == "one big tensor":
        state = {"w": torch.empty(1024, 128, 1024).normal_()}
    elif what == "transposed":
        state = {"w": torch.empty(512, 256, 1024).normal_().transpose(0, 2)}
    else:
        state = {i: torch.full((256,), float(i)) for i in range(100_000)}
    size = sum(t.numel() * 4 for t in state.values()) >> 20
    forget(); before = now()
    store.save(state)
    print("save", peak() - before)
    del state
    forget(); before = now()
    loaded = store.load()
    print("load", peak() - before - size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["one big tensor", "transposed", "100,000 small tensors"])
def test_peak_memory_is_the_state_and_a_constant(tmp_path: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEASURE, str(tmp_path / "runs.castore"), what],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    over = dict(line.split() for line in done.stdout.splitlines())
    print(what, over)
    # 100,000 tensor objects, their entries and digests are part of what a state costs.
    room = ROOM * (2 if what.startswith("100") else 1)
    assert int(over["save"]) < room
    assert int(over["load"]) < room


DESCRIPTORS = """
import resource, sys, threading
import torch, castore, castore.system
castore.system.cores = lambda: 24  # as many threads as castore ever has
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with castore.open(sys.argv[1], create=True) as store:
    state = {}
    for i in range(60):  # 60 data packs that the last checkpoint needs
        state[i] = torch.full((3000,), float(i))
        store.save(state, step=i)
    for _ in range(20):
        assert store.load()[59][0] == 59.0
        assert store.load(mmap=True, only="5*")[59][0] == 59.0
        assert store.read_tensor("main", "59", 0) == 59.0
        store.load_into(state)
    mapped = [store.load(mmap=True) for _ in range(3)]  # 180 mappings, and no descriptor
    loaded, threads = [], []
    for _ in range(20):
        threads.append(threading.Thread(target=lambda: loaded.append(store.load())))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 20
    for one in loaded + mapped:
        assert all(one[i][0] == i for i in range(60))
    report = store.fsck()
    assert report.ok, report.damage
    assert len(store.resolve().digest) == 64
    print(report.packs)
"""


@pytest.mark.slow
def test_64_descriptors_are_enough(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DESCRIPTORS, str(tmp_path / "runs.castore")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 180
