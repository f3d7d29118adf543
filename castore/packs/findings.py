"""Damage in packs as findings: the words that a load, a verification and fsck share."""

from __future__ import annotations

from dataclasses import dataclass

from castore.packs.reader import Damage
from castore.reports import Finding

__all__ = ["Subject", "pack_finding", "record_finding"]


@dataclass(frozen=True, slots=True)
class Subject:
    """The checkpoint that damage hits."""

    checkpoint: str
    branch: str
    step: int | None

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return f"checkpoint {self.checkpoint[:12]} ({self.branch}{step})"


def pack_finding(damage: Damage, digest: bytes | None = None) -> Finding:
    """Damage to a file, whatever it hits."""
    return Finding(
        code=damage.code,
        severity="damage",
        detail=damage.detail,
        file=f"packs/{damage.pack}" if damage.pack else None,
        offset=damage.offset,
        expected=damage.expected,
        found=damage.found,
        digest=digest.hex() if digest else None,
    )


def record_finding(
    subject: Subject,
    damage: Damage,
    digest: bytes,
    *,
    path: str | None = None,
    rows: tuple[int, int] | None = None,
    what: str = "chunk",
) -> Finding:
    """Damage that hits a place in a checkpoint: named down to the rows."""
    place = ""
    if path is not None:
        place = f": {path or '(the root)'}"
        if rows is not None:
            place += (
                f" rows {rows[0]}..{rows[1] - 1}" if rows[1] > rows[0] + 1 else f" row {rows[0]}"
            )
    where = f"packs/{damage.pack}" if damage.pack else "no pack"
    if damage.pack and damage.offset is not None:
        where += f" at offset {damage.offset}"
    comparison = ""
    if damage.expected and damage.code == "damaged-record":
        comparison = f", expected {damage.expected[:12]}, found {(damage.found or '')[:64]}"
        if damage.found and len(damage.found) == 64:
            comparison = f", expected {damage.expected[:12]}, found {damage.found[:12]}"
    code = {"damaged-record": f"damaged-{what}", "missing-record": f"missing-{what}"}
    return Finding(
        code=code.get(damage.code, damage.code),
        severity="damage",
        detail=f"{subject}{place}: {what} in {where}{comparison or ': ' + damage.detail}",
        file=f"packs/{damage.pack}" if damage.pack else None,
        offset=damage.offset,
        expected=damage.expected,
        found=damage.found,
        digest=digest.hex(),
        checkpoint=subject.checkpoint,
        branch=subject.branch,
        step=subject.step,
        path=path,
        rows=rows,
    )
