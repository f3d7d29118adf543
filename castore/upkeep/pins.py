"""Pins: readers' claims on checkpoints, and whether their owners still live."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from castore.log.fold import Fold
from castore.reports import PinInfo
from castore.system import ProcessIdentity, identity, process_alive

__all__ = ["dead_pins", "list_pins", "own_pin"]


def own_pin() -> tuple[Any, ...]:
    """This process, as the owner of a pin."""
    return astuple(identity())


def _owner(plain: tuple[Any, ...]) -> ProcessIdentity | None:
    """The process that owns a pin, or None where none does, or none that we understand."""
    match plain:
        case (str(host), str(boot), str(space), int(pid), int(start)):
            return ProcessIdentity(host, boot, space, pid, start)
    return None


def dead_pins(fold: Fold) -> list[str]:
    """The pins whose owner is surely dead: same host, and another boot or no such process."""
    owners = ((name, _owner(plain)) for name, (_, plain) in fold.pins.items())
    return [name for name, who in owners if who is not None and process_alive(who) is False]


def list_pins(fold: Fold) -> tuple[PinInfo, ...]:
    """All pins, by name."""
    out = []
    for name, (digest, plain) in sorted(fold.pins.items()):
        who = _owner(plain)
        out.append(
            PinInfo(
                name,
                digest.hex(),
                fold.live[digest].add.step,
                who.describe() if who else "a process of an unknown kind" if plain else None,
                process_alive(who) if who else None,
            )
        )
    return tuple(out)
