"""Python state <-> the Merkle model: the only part of the house that knows torch and numpy.

Saving: :func:`describe` checks a state and turns it into nodes and contents, before a byte is
hashed.  Loading: :func:`plan_state` turns a tree that was read back into buffers to fill, and
:meth:`Plan.finish` into Python objects.  Nothing here reads or writes files, hashes or pickles; the
pipeline is its only caller.  torch and numpy are imported only where a state has need of them.
"""

from __future__ import annotations

from castore.state.contents import iter_data
from castore.state.describe import MAX_DEPTH, Description, describe
from castore.state.plan import Plan, Read, plan_state
from castore.state.quiet import without_gc

__all__ = [
    "MAX_DEPTH",
    "Description",
    "Plan",
    "Read",
    "describe",
    "iter_data",
    "plan_state",
    "without_gc",
]
