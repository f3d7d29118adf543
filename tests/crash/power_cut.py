"""What a power cut may leave of a list of acts.

The weakest file system that POSIX allows: after a cut, of the changes to a folder's names that no
fsync of that folder followed any subset may be there, and the contents of a file that no fsync
followed may be whole, empty, cut in half, or zeros.  What was fsynced is there.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.recorder import Op

__all__ = ["State", "snapshot", "states", "write_out"]

#: name -> contents; None for a folder.
State = dict[str, bytes | None]

VARIANTS = ("whole", "empty", "half", "zeroed")


@dataclass(slots=True)
class _File:
    """An inode: its bytes, and whether they are durable.  A folder has no bytes."""

    data: bytearray | None
    durable: bool


@dataclass(slots=True)
class _Change:
    """A change to one folder's names: what happens together or not at all."""

    folder: str
    edits: list[tuple[str, _File | None]]


@dataclass(slots=True)
class _Disk:
    """What programs see, what is durable, and what lies between."""

    seen: dict[str, _File]
    durable: dict[str, _File] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def act(self, op: Op) -> None:
        seen = self.seen
        match op.kind:
            case "create":
                self._edit(op.path, (op.path, _File(bytearray(), False)))
            case "mkdir":
                self._edit(op.path, (op.path, _File(None, True)))
            case "write":
                file = seen[op.path]
                assert file.data is not None
                file.data.extend(bytes(max(0, op.offset - len(file.data))))
                file.data[op.offset : op.offset + len(op.data)] = op.data
                file.durable = False
            case "fsync":
                seen[op.path].durable = True
            case "link":
                self._edit(op.other, (op.other, seen[op.path]))
            case "rename":
                self._edit(op.other, (op.path, None), (op.other, seen[op.path]))
            case "unlink" | "rmdir":
                self._edit(op.path, (op.path, None))
            case "fsyncdir":
                for change in self.pending:
                    if change.folder == op.path:
                        _apply(self.durable, change.edits)
                self.pending = [c for c in self.pending if c.folder != op.path]
            case kind:
                raise ValueError(kind)

    def _edit(self, path: str, *edits: tuple[str, _File | None]) -> None:
        _apply(self.seen, edits)
        self.pending.append(_Change(posixpath.dirname(path), list(edits)))


def _apply(names: dict[str, _File], edits: Sequence[tuple[str, _File | None]]) -> None:
    for path, file in edits:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def snapshot(folder: Path, leave_out: str = "index.lmdb") -> State:
    """A folder as it is."""
    out: State = {}
    for here, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(leave_out)]
        base = os.path.relpath(here, folder)
        for name in folders:
            out[posixpath.normpath(posixpath.join(base, name))] = None
        for name in files:
            path = posixpath.normpath(posixpath.join(base, name))
            out[path] = Path(here, name).read_bytes()
    return out


def write_out(state: State, folder: Path) -> None:
    """Make a folder hold a state."""
    for path in sorted(state):
        data = state[path]
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def states(
    before: State, ops: Sequence[Op], *, most: int | None = None, seed: int = 0
) -> Iterator[tuple[int, State]]:
    """Every state that a cut may leave, as ``(acts done, state)``; each state once.

    Args:
        before: the folder before the first act, all of it durable.
        ops: the acts.
        most: at most so many tries for a cut between the same two acts, drawn by ``seed``.
    """
    base = {
        path: _File(None if data is None else bytearray(data), True)
        for path, data in before.items()
    }
    disk = _Disk(dict(base), dict(base))
    chance = random.Random(seed)
    met: set[int] = set()
    for done in range(len(ops) + 1):
        if done and ops[done - 1].kind != "ack":
            disk.act(ops[done - 1])
        acks = sum(op.kind == "ack" for op in ops[:done])
        for state in _cuts(disk, most, chance):
            key = hash((acks, tuple(sorted(state.items(), key=lambda item: item[0]))))
            if key not in met:
                met.add(key)
                yield done, state


def _cuts(disk: _Disk, most: int | None, chance: random.Random) -> Iterator[State]:
    if most is None or 1 << len(disk.pending) <= most:
        kept: Iterator[tuple[bool, ...]] = itertools.product(
            (False, True), repeat=len(disk.pending)
        )
    else:
        kept = (tuple(chance.random() < 0.5 for _ in disk.pending) for _ in range(most))
    for choice in kept:
        names = dict(disk.durable)
        for keep, change in zip(choice, disk.pending, strict=True):
            if keep:
                _apply(names, change.edits)
        reached = {p: f for p, f in names.items() if _reached(p, names)}
        unsure = list({id(f): f for f in reached.values() if not f.durable and f.data}.values())
        if most is None or 4 ** len(unsure) <= 16:
            fates: Iterator[tuple[str, ...]] = itertools.product(VARIANTS, repeat=len(unsure))
        else:
            fates = (tuple(chance.choices(VARIANTS, k=len(unsure))) for _ in range(8))
        for fate in fates:
            by_file = dict(zip(map(id, unsure), fate, strict=True))
            yield {path: _contents(f, by_file.get(id(f), "whole")) for path, f in reached.items()}


def _reached(path: str, names: dict[str, _File]) -> bool:
    """Whether every folder above ``path`` is there."""
    while path := posixpath.dirname(path):
        if path not in names:
            return False
    return True


def _contents(file: _File, fate: str) -> bytes | None:
    if file.data is None:
        return None
    data = bytes(file.data)
    match fate:
        case "empty":
            return b""
        case "half":
            return data[: len(data) // 2]
        case "zeroed":
            return bytes(len(data))
    return data
