"""Unlinking what a durable entry condemned, beside the work that goes on.

Unlinking large packs is slow, and nothing waits for it: whatever is not done when the process ends
is done by the next ``gc``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from castore.storage.protocol import Storage

__all__ = ["Unlinker", "unlink"]


def unlink(storage: Storage, condemned: Iterable[str]) -> None:
    """Unlink packs that a durable entry condemns, then the folders that are empty.

    Raises:
        OSError: one could not be.
    """
    paths = list(condemned)
    failure: OSError | None = None
    for path in paths:
        try:
            storage.delete(f"packs/{path}")
        except OSError as e:  # the others are worth their room all the same
            failure = failure or e
    for save in dict.fromkeys(path.partition("/")[0] for path in paths):
        storage.remove_folder(f"packs/{save}")
    if failure is not None:
        raise failure


class Unlinker:
    """Unlinks in a thread of its own, which ends when there is nothing left to do."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._thread: threading.Thread | None = None
        self._failures: list[str] = []

    def add(self, condemned: Iterable[str]) -> None:
        """Unlink packs that a durable entry condemns, and return at once."""
        with self._lock:
            self._waiting += condemned
            if self._waiting and self._thread is None:
                # No daemon: a process that ends in good order waits for it.
                thread = threading.Thread(target=self._run, name="castore-unlink")
                try:
                    thread.start()
                except RuntimeError:  # no thread is to be had: the next gc does it
                    self._waiting.clear()
                else:
                    self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                paths, self._waiting = self._waiting, []
                if not paths:
                    self._thread = None
                    return
            try:
                unlink(self._storage, paths)
            except OSError as e:
                with self._lock:
                    self._failures.append(
                        f"what was condemned could not all be removed: {e.strerror or e} at "
                        f"{e.filename or self._storage.where}; `castore gc` removes it"
                    )

    def wait(self) -> None:
        """Wait until all that was given is unlinked, or was tried."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def failures(self) -> list[str]:
        """What went wrong since this was asked last."""
        with self._lock:
            found, self._failures = self._failures, []
        return found
