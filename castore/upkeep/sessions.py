"""Sessions: the record of one live writer, so that gc does not make it write twice.

Advice only.  A session that is missing, torn or lying costs a slow writer a second write, never a
byte: what makes a save safe is the log (``pipeline/save.py``, step 5).
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict
from typing import Any

from castore.storage.protocol import Storage
from castore.system import ProcessIdentity, identity, monotonic, now_ns, process_alive, random_bytes

__all__ = ["SAVE_ID", "SILENCE", "Session", "is_live", "session_ids"]

#: A save's id, which is also its folder's and its session's name.
SAVE_ID = re.compile(r"\d{8}T\d{9}-[0-9a-f]{16}", re.ASCII)
#: Another host's session counts as dead after this many seconds without a beat, by the storage's
#: clock: a writer that sleeps longer merely writes again.
SILENCE = 24 * 3600
#: No record is longer: what is beyond is not read.
MAX_RECORD = 4096
#: Seconds between beats.
BEAT = 30.0


class Session:
    """A live writer's record; a context manager that removes it at the end."""

    def __init__(self, storage: Storage, save: str) -> None:
        self.save = save
        self._storage = storage
        self._last = 0.0
        self.beat()

    @property
    def _name(self) -> str:
        return f"sessions/{self.save}"

    def beat(self) -> None:
        """Say that the writer lives, at most every :data:`BEAT` seconds.  Never fails."""
        if self._last and monotonic() - self._last < BEAT:
            return
        self._last = monotonic()
        record = {**asdict(identity()), "time": now_ns()}
        with contextlib.suppress(OSError):
            self._storage.write_advice(self._name, json.dumps(record).encode())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._storage.delete(self._name)


def _parse(data: bytes) -> dict[str, Any] | None:
    """A session's record, or None where it is torn.

    Records are renamed into place when whole: the machine of a torn one went down with its writer.
    """
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(data)
        if isinstance(record, dict):
            return record
    return None


def _writer(record: dict[str, Any]) -> ProcessIdentity | None:
    """Whom a record names, or None where it is strange."""
    wanted = {"host": str, "boot": str, "pid_space": str, "pid": int, "start": int}
    if all(type(record.get(name)) is kind for name, kind in wanted.items()):
        return ProcessIdentity(**{name: record[name] for name in wanted})
    return None


def session_ids(storage: Storage) -> list[str]:
    """Ids of the sessions there are."""
    return [name for name in storage.list("sessions") if SAVE_ID.fullmatch(name)]


def is_live(storage: Storage, save: str, *, may_write: bool, silence: float = SILENCE) -> bool:
    """Whether a save's writer may still be at work.

    Where this machine cannot tell, silence decides, by the storage's own clock; asking that clock
    takes a write, and without ``may_write`` the answer is that the writer lives.
    """
    name = f"sessions/{save}"
    try:
        data = storage.read(name, 0, MAX_RECORD)
    except OSError:
        return False
    if (record := _parse(data)) is None:
        return False
    if (writer := _writer(record)) is not None and (alive := process_alive(writer)) is not None:
        return alive
    if not may_write:
        return True
    try:
        probe = f"sessions/probe-{random_bytes(8).hex()}"
        storage.write_advice(probe, b"")
        now, then = storage.modified(probe), storage.modified(name)
        storage.delete(probe)
    except OSError:
        return True
    return then is not None and now is not None and now - then < silence
