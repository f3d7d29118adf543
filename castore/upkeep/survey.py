"""What lies in a store's folder, and what each file is for.  Shared by gc, fsck and info.

A listing is only a hint: it says what *may* be debris.  Whether it is, the log decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from castore.log.fold import Fold, plan_condemned
from castore.packs.format import PACK_NAME
from castore.storage.protocol import Storage
from castore.upkeep.sessions import SAVE_ID, is_live

__all__ = ["Found", "list_packs", "survey"]

#: What a store's folder holds of castore's own.
KNOWN = frozenset(
    {"castore.json", "packs", "log", "sessions", "quarantine", "reserve", "index.lmdb"}
)
_LOG_FILE = re.compile(r"\d{12}(\.fold)?", re.ASCII)
_PROBE = re.compile(r"probe-[0-9a-f]{16}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class Found:
    """One file that no live checkpoint needs.

    Attributes:
        name: its name in the store.
        size: its length.
        what: ``debris`` (a dead save's, or condemned), ``let-go`` (about to be condemned),
            ``in-flight`` (a live session's), ``quarantined``, ``beside`` (kept for the sake of
            packs that are needed), ``temporary``, ``session`` (a dead one's record), ``folder``
            (an empty one), or ``stranger`` (not castore's: counted, never touched).
        save: the save it belongs to, or None.
    """

    name: str
    size: int
    what: str
    save: str | None = None


def list_packs(storage: Storage) -> dict[str, list[str]]:
    """Folder -> file names, of everything below ``packs/``.  gc lists *before* it folds."""
    return {folder: storage.list(f"packs/{folder}") for folder in _listable(storage)}


def _listable(storage: Storage) -> list[str]:
    return [name for name in storage.list("packs") if SAVE_ID.fullmatch(name)]


def survey(
    storage: Storage,
    fold: Fold,
    listed: dict[str, list[str]],
    *,
    let_go: Collection[str] = (),
    may_write: bool = False,
) -> list[Found]:
    """Every file that ``fold`` does not need, with what it is.

    ``let_go`` are the packs that an entry before ``fold`` condemns; ``may_write`` as for
    :func:`castore.upkeep.sessions.is_live`.
    """
    out: list[Found] = []
    removable = set(
        plan_condemned(fold, (f"{save}/{n}" for save, names in listed.items() for n in names))
    )
    for save, names in listed.items():
        live = is_live(storage, save, may_write=may_write)
        if not names:
            out.append(Found(f"packs/{save}", 0, "in-flight" if live else "folder", save))
        for name in names:
            path = f"{save}/{name}"
            if path in fold.packs:
                continue
            if not PACK_NAME.fullmatch(name):
                out.append(Found(f"packs/{path}", 0, "stranger", save))
                continue
            size = storage.size(f"packs/{path}")
            if size is None:
                continue  # gone meanwhile
            what = "in-flight" if live else "debris"
            if path in let_go:
                what = "let-go"
            elif path not in removable:
                what = "quarantined" if path in fold.quarantined else "beside"
            out.append(Found(f"packs/{path}", size, what, save))
    out += [
        Found(f"packs/{name}", 0, "stranger")
        for name in storage.list("packs")
        if not SAVE_ID.fullmatch(name)
    ]
    for folder in ("", "log", "sessions"):
        prefix = f"{folder}/" if folder else ""
        for name in storage.list(folder):
            if _TEMPORARY.fullmatch(name):
                out.append(Found(prefix + name, storage.size(prefix + name) or 0, "temporary"))
            elif folder == "sessions":
                if SAVE_ID.fullmatch(name):
                    if not is_live(storage, name, may_write=may_write):
                        out.append(Found(prefix + name, 0, "session", name))
                elif _PROBE.fullmatch(name):
                    out.append(Found(prefix + name, 0, "temporary"))
                else:
                    out.append(Found(prefix + name, 0, "stranger"))
            elif (folder == "log" and not _LOG_FILE.fullmatch(name)) or (
                not folder and name not in KNOWN and not name.startswith("index.lmdb.")
            ):
                out.append(Found(prefix + name, 0, "stranger"))
    return out
