"""A bounded set of open files for reading, shared by threads.

An idle descriptor is kept for the next reader and closed when the set is full; one in use is never
closed under its user, and only so many are in use at once: one more reader waits.  Used by
:mod:`castore.storage.local` alone.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["OpenFiles"]


class OpenFiles:
    """At most ``limit`` idle descriptors, and ``readers`` in use."""

    def __init__(self, opener: Callable[[str], int], limit: int, readers: int) -> None:
        self._opener = opener
        self._limit = limit
        self._readers = readers
        self._room = threading.Semaphore(readers)
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A descriptor of ``name`` that nobody else uses meanwhile.

        Not to be asked for another by who has one: that could wait for itself.
        """
        with self._room, self._reading(name) as fd:
            yield fd

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        with self._lock:
            fd = self._idle.pop(name, None)
        if fd is None:
            fd = self._opener(name)
        try:
            yield fd
        except BaseException:
            os.close(fd)
            raise
        surplus = None
        with self._lock:
            if name in self._idle:
                surplus = fd
            else:
                self._idle[name] = fd
                if len(self._idle) > self._limit:
                    _, surplus = self._idle.popitem(last=False)
        if surplus is not None:
            os.close(surplus)

    def forget(self, name: str) -> None:
        """Close the idle descriptor of a file, if there is one."""
        with self._lock:
            fd = self._idle.pop(name, None)
        if fd is not None:
            os.close(fd)

    def after_fork(self) -> None:
        """In a forked child: the locks are its own."""
        self._lock = threading.Lock()
        self._room = threading.Semaphore(self._readers)

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            fds = list(self._idle.values())
            self._idle.clear()
        for fd in fds:
            os.close(fd)
