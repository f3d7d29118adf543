"""No cyclic garbage collection while a walk makes objects by the hundred thousand.

They are all kept and hold no cycles, so collections find nothing, over and over again: half of the
time of describing 100,000 small tensors went there.  For the two walks of this folder only.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_gc"]


@contextmanager
def without_gc() -> Iterator[None]:
    """Switch the collector off, and on again if it was on.

    With several threads in here at once it may come on early; it is never left off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
