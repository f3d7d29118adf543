"""A store that is the same to the last bit wherever and whenever it is made, for golden output."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import castore.opening  # all that saves is loaded from here on, and can be patched
from castore import system
from castore.log.entry import LetGo, Unlisted
from castore.model.digest import Digest
from castore.pipeline import save as save_module

#: 2026-12-01T15:24:08Z; every look at the clock is a minute later.
BEGIN = 1_796_138_648 * 10**9
MINUTE = 60 * 10**9


@contextlib.contextmanager
def fixed_system() -> Iterator[None]:
    """Clock, randomness and identity of castore.system, the same in every run."""
    ticks, draws, saves = itertools.count(), itertools.count(1), itertools.count(1)

    def one_save(*given: Any) -> Any:
        # Its defaults took clock and identifier as they were when the class was made.
        return real(*given, id=system.new_save_id(), time=system.now_ns())

    real = save_module._Save
    fixed: dict[Any, Any] = {
        system.now_ns: lambda: BEGIN + next(ticks) * MINUTE,
        system.random_bytes: lambda n: next(draws).to_bytes(n, "big"),
        system.new_save_id: lambda: f"20261201T152408000-{next(saves):016x}",
        system.identity: lambda: system.ProcessIdentity("gpu-7", "", "", 4242, 0),
    }
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] != "castore":
                continue
            for attribute, value in list(vars(module).items()):
                if callable(value) and getattr(value, "__hash__", None) and value in fixed:
                    stack.enter_context(mock.patch.object(module, attribute, fixed[value]))
        stack.enter_context(mock.patch.object(save_module, "_Save", one_save))
        yield


def state(step: int) -> dict[str, Any]:
    """Of everything something: frozen, changing, tied, long, odd, empty."""
    weight = torch.arange(1200, dtype=torch.float32).reshape(300, 4) + step
    model = OrderedDict(weight=weight, bias=torch.full((3,), float(step)), tied=weight)
    model._metadata = OrderedDict([("", {"version": 1})])  # type: ignore[attr-defined]
    return {
        "model": model,
        "frozen": torch.arange(20_000, dtype=torch.int64),
        "optimizer": {"lr": 0.5, "betas": (0.9, 0.999), "name": "ad\x1b[31mam"},
        "rng": (3, tuple(range(10**9, 10**9 + 625)), None),
        "step": step,
        "a/b": [True, None, {}],
        7: b"\x00\xff" * 200,
        "notes": "line one\nline two " + "x" * 300,
    }


def make(path: Path) -> None:
    """Make the store: main with one let go and one left behind; retry; gone, removed; two tags."""
    with fixed_system(), castore.open(path, create=True, chunk_size=4096) as store:
        first = store.save(state(100), step=100, meta={"loss": 2.5})
        store.save(state(200), step=200, message="second\nwith \x1b[31mcolour")
        store.tag("v1", "main")
        store.branch("retry", "main")
        store.save(state(250), branch="retry", step=250, meta={"loss": 0.5, "sizes": [1, 2]})
        store.save(state(300), step=300, meta={"loss": float("nan"), "note": "two\nlines"})
        store.branch("main", "main~1", force=True)
        store.branch("gone", "retry")
        store.branch("gone", delete=True)
        store.save(state(310), step=310)
        store.tag("best", "main@step=310")
        digest = Digest(bytes.fromhex(first.digest))
        store._parts.log.append(
            lambda fold: (Unlisted("main", (digest,)), LetGo((digest,))), "window main keep_last=2"
        )
    debris = path / "packs" / "20261130T000000000-00000000000000ff"
    debris.mkdir()
    (debris / "r00000-000.data.pack").write_bytes(bytes(8192))
