"""Hypothesis strategies for log changes and entries, of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from castore.log.entry import (
    Add,
    Change,
    Condemned,
    Damaged,
    Entry,
    Features,
    Healed,
    Leans,
    LetGo,
    Lost,
    Pin,
    Quarantined,
    Replaced,
    SetBranch,
    SetTag,
    Unlisted,
    Unpin,
    Verified,
    Window,
)
from castore.model.digest import Digest
from castore.model.packinfo import PackInfo

__all__ = ["BY_KIND", "STORE", "changes", "digests", "entries", "packs"]

STORE = bytes(range(16))
KINDS = [
    Add, SetBranch, SetTag, Pin, Unpin, Unlisted, LetGo, Condemned, Quarantined, Replaced,
    Verified, Damaged, Healed, Leans, Features, Window, Lost,
]  # fmt: skip

digests = st.binary(min_size=32, max_size=32).map(Digest)
names = st.text(max_size=12)
numbers = st.integers(0, 2**63)
saves = st.sampled_from(
    ["20261201T152408123-9f3ac01b22de4455", "20261130T000000000-0123456789abcdef"]
)
paths = st.builds(
    "{}/r{:05d}-{:03d}.{}.pack".format,
    saves,
    st.integers(0, 9),
    st.integers(0, 1200),
    st.sampled_from(["data", "meta", "meta2"]),
)
packs = st.builds(PackInfo, paths, digests, numbers)


def _tuple(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, max_size=4).map(tuple)


_plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(), names),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)

BY_KIND: dict[type[Change], st.SearchStrategy[Change]] = {
    Add: st.builds(
        Add,
        branch=names,
        checkpoint=digests,
        root=digests,
        contents=digests,
        parent=st.one_of(st.none(), digests),
        step=st.one_of(st.none(), st.integers(-(2**63), 2**63)),
        time=numbers,
        save=saves,
        s0=numbers,
        tensors=numbers,
        logical_bytes=numbers,
        new_bytes=numbers,
        stored_bytes=numbers,
        message=st.one_of(st.none(), names),
        packs=_tuple(packs),
    ),
    SetBranch: st.builds(SetBranch, names, st.one_of(st.none(), digests)),
    SetTag: st.builds(SetTag, names, st.one_of(st.none(), digests)),
    Pin: st.builds(Pin, names, digests, _tuple(st.one_of(names, numbers))),
    Unpin: st.builds(Unpin, names),
    Unlisted: st.builds(Unlisted, names, _tuple(digests)),
    LetGo: st.builds(LetGo, _tuple(digests)),
    Condemned: st.builds(Condemned, _tuple(paths)),
    Quarantined: st.builds(Quarantined, _tuple(paths)),
    Replaced: st.builds(Replaced, _tuple(paths), _tuple(packs)),
    Verified: st.builds(Verified, _tuple(paths)),
    Damaged: st.builds(Damaged, paths, _tuple(digests), _tuple(digests)),
    Healed: st.builds(Healed, _tuple(digests), packs),
    Leans: st.builds(Leans, paths, _tuple(paths)),
    Features: st.builds(Features, _tuple(names), _tuple(names)),
    Window: st.builds(Window, names, st.one_of(st.none(), _tuple(_plain))),
    Lost: st.builds(Lost, numbers, digests, _tuple(_plain)),
}
assert set(BY_KIND) == set(KINDS)
changes = st.one_of(*BY_KIND.values())
entries = st.builds(
    Entry,
    seq=st.integers(1, 2**40),
    prev=digests,
    act=st.binary(min_size=16, max_size=16),
    time=numbers,
    writer=names,
    why=names,
    store=st.just(STORE),
    changes=st.lists(changes, max_size=4).map(tuple),
)
