"""A bounded set of open files for reading, shared by threads.

An idle descriptor is kept for the next reader and closed when the set is full; one in use is never
closed under its user.  Used by :mod:`castore.storage.local` alone.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["OpenFiles"]


class OpenFiles:
    """At most ``limit`` idle descriptors, plus one for each reader at work."""

    def __init__(self, opener: Callable[[str], int], limit: int) -> None:
        self._opener = opener
        self._limit = limit
        self._idle: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A descriptor of ``name`` that nobody else uses meanwhile."""
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
        """In a forked child: the lock is its own."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            fds = list(self._idle.values())
            self._idle.clear()
        for fd in fds:
            os.close(fd)
