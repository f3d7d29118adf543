"""What must hold of a store after any crash, and the small saves that the crashes hit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import castore
from castore.opening import fsck_path
from tests.support import same

__all__ = ["Broken", "examine", "save", "state_at"]


def state_at(step: int) -> dict[str, Any]:
    """A state of which half is new at each step."""
    return {
        "kept": torch.arange(3000.0),
        "moving": torch.full((500,), float(step)),
        "step": step,
    }


def save(store: castore.Store, step: int, branch: str = "main") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", castore.CastoreWarning)
        store.save(state_at(step), step=step, branch=branch)


class Broken(AssertionError):
    """A promise that a state after a cut breaks."""


def expect(truth: object, text: str) -> None:
    if not truth:
        raise Broken(text)


def examine(path: Path, acks: Sequence[str], last: int) -> None:
    """Hold a store that lived through a cut to its promises.

    Args:
        path: where it lies.
        acks: what was acknowledged before the cut, as ``branch step`` or ``made``.
        last: no step above it was ever begun.
    """
    try:
        if acks:
            report = fsck_path(path)
            expect(report.ok, f"fsck finds damage: {[f.detail for f in report.damage]}")
        with castore.open(path, create=True) as store:
            heads: dict[str, int] = {}
            for ack in acks:
                if ack != "made":
                    branch, step = ack.split()
                    heads[branch] = int(step)
            for branch in {*heads, *store.branches()}:
                found = [c.step for c in store.log(branch)]
                expect(found, f"{branch} is gone")
                acknowledged = heads.get(branch, 0)
                allowed = range(acknowledged, min(acknowledged + 1, last) + 1)
                expect(found[0] in allowed, f"{branch} stands at {found[0]}, not in {allowed}")
                for back, step in enumerate(found):
                    assert step is not None
                    loaded = store.load(f"{branch}~{back}")
                    expect(same(loaded, state_at(step)), f"{branch}~{back} is not step {step}")
            save(store, last + 1)
            expect(same(store.load(), state_at(last + 1)), "the next save is not what loads")
            store.gc()
            left = [item.path for item in store.gc().items]
            expect(not left, f"gc leaves {left}")
        expect(fsck_path(path).ok, "damage after the next save")
    except castore.CastoreError as e:
        raise Broken(f"{type(e).__name__}: {e}") from e
