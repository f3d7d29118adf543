"""The fold against a model of its own: plain sets and lists, after design.md sections 7 to 10."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from castore.errors import UnsupportedFeature
from castore.log.entry import (
    FIRST_PREV,
    Add,
    Change,
    Condemned,
    Damaged,
    Entry,
    EntryError,
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
    parse_file,
)
from castore.log.fold import (
    Fold,
    broken_needs,
    is_present,
    live_in_order,
    parse_fold,
    render_fold,
)
from castore.model.digest import Digest
from castore.model.packinfo import PackInfo
from tests.golden.spec import digest, hash_in
from tests.log.changes import STORE

# Few of everything, so that random changes meet one another.
CHECKPOINTS = [Digest(digest(100 + i)) for i in range(3)]
CHUNKS = [Digest(digest(200 + i)) for i in range(2)]
BRANCHES = ["main", "retry"]
SAVES = ["20260101T000000000-00000000000000a1", "20260102T000000000-00000000000000b2"]
PACKS = [
    PackInfo(f"{save}/r00000-{i:03d}.{kind}.pack", Digest(hash_in(None, bytes([i, k]))), 4096 * i)
    for k, save in enumerate(SAVES)
    for i, kind in ((1, "data"), (2, "meta"))
]
#: What a replacement or a healing makes: a path is used once.
NEW_PACKS = [
    PackInfo(f"{SAVES[1]}/r00000-{i:03d}.data.pack", Digest(hash_in(None, b"new%d" % i)), 8192)
    for i in range(10, 12)
]
PATHS = [p.path for p in PACKS + NEW_PACKS]


def adds(branch: str, checkpoint: Digest, packs: tuple[PackInfo, ...], step: int | None) -> Add:
    return Add(
        branch, checkpoint, Digest(digest(1)), Digest(digest(2)), None, step, 5, SAVES[0], 0, 3,
        100, 50, 60, None, packs,
    )  # fmt: skip


_checkpoint = st.sampled_from(CHECKPOINTS)
_some_checkpoints = st.lists(_checkpoint, min_size=1, max_size=2).map(tuple)
_some_paths = st.lists(st.sampled_from(PATHS), min_size=1, max_size=4).map(tuple)
_some_chunks = st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=2).map(tuple)
_branch = st.sampled_from(BRANCHES)
_name = st.sampled_from(["one", "two"])
_adds = st.builds(
    adds,
    _branch,
    _checkpoint,
    st.lists(st.sampled_from(PACKS), min_size=1, max_size=3, unique=True).map(tuple),
    st.one_of(st.none(), st.integers(0, 3)),
)
_KINDS = [
    _adds,
    st.builds(SetBranch, _branch, st.one_of(st.none(), _checkpoint)),
    st.builds(SetTag, _name, st.one_of(st.none(), _checkpoint)),
    st.builds(Pin, _name, _checkpoint, st.sampled_from([(), ("host", "boot", "", 4, 5)])),
    st.builds(Unpin, _name),
    st.builds(Unlisted, _branch, _some_checkpoints),
    st.builds(LetGo, _some_checkpoints),
    st.builds(Condemned, _some_paths),
    st.builds(Quarantined, st.lists(st.sampled_from(PATHS), max_size=1).map(tuple)),
    st.builds(
        Replaced,
        st.lists(st.sampled_from(PACKS), max_size=2).map(lambda ps: tuple(p.path for p in ps)),
        st.lists(st.sampled_from(NEW_PACKS), max_size=2, unique=True).map(tuple),
    ),
    st.builds(Verified, _some_paths),
    st.builds(Damaged, st.sampled_from(PATHS), _some_chunks, _some_checkpoints),
    st.builds(Healed, _some_chunks, st.sampled_from(PACKS + NEW_PACKS)),
    st.builds(Leans, st.sampled_from(PATHS), _some_paths),
    st.builds(Features, st.just(()), st.sampled_from([(), ("hints",)])),
    st.builds(Window, _branch, st.sampled_from([None, (("keep_last", 3),), ()])),
]
#: What packs hang on comes more often.
_WEIGHTS = [5, 2, 1, 1, 1, 2, 4, 1, 1, 4, 3, 3, 3, 2, 1, 1]
_changes = st.one_of(
    *(kind for kind, weight in zip(_KINDS, _WEIGHTS, strict=True) for _ in range(weight))
)


# -- the model -----------------------------------------------------------------------------------


@dataclass
class Model:
    """What a store's state is, said with sets.  Slow and plain."""

    order: list[Digest] = field(default_factory=list)  # live, oldest first
    needs: dict[Digest, set[str]] = field(default_factory=dict)
    step: dict[Digest, int | None] = field(default_factory=dict)
    since: dict[Digest, int] = field(default_factory=dict)
    info: dict[str, PackInfo] = field(default_factory=dict)
    lists: dict[str, list[Digest]] = field(default_factory=dict)
    moves: dict[str, list[tuple[int, Digest | None]]] = field(default_factory=dict)
    tags: dict[str, Digest] = field(default_factory=dict)
    pins: dict[str, Any] = field(default_factory=dict)
    gone: dict[Digest, int] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)
    bad: set[tuple[str, Digest]] = field(default_factory=set)  # copies known to be damaged
    unhealed: dict[tuple[str, Digest], set[Digest]] = field(default_factory=dict)
    quarantined: set[str] = field(default_factory=set)
    leans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    windows: dict[str, Any] = field(default_factory=dict)

    @property
    def needed(self) -> set[str]:
        return {path for needs in self.needs.values() for path in needs}

    def change(self, change: Change, seq: int) -> None:
        before = self.needed
        match change:
            case Add():
                self.drop([change.checkpoint])
                d = change.checkpoint
                self.order.append(d)
                self.needs[d] = {p.path for p in change.packs}
                self.step[d] = change.step
                self.since[d] = seq
                self.info.update({p.path: p for p in change.packs})
                self.gone.pop(d, None)
                self.lists.setdefault(change.branch, []).append(d)
                self.moves.setdefault(change.branch, []).append((seq, d))
            case SetBranch(name, d):
                listed = self.lists.get(name, [])
                if d is None:
                    self.lists[name] = []
                elif d in listed:
                    self.lists[name] = listed[: listed.index(d) + 1]
                else:
                    self.lists[name] = [d]
                self.moves.setdefault(name, []).append((seq, d))
            case SetTag(name, d):
                self.tags.pop(name, None)
                if d is not None:
                    self.tags[name] = d
            case Pin(name, d, owner):
                self.pins[name] = (d, owner)
            case Unpin(name):
                self.pins.pop(name, None)
            case Unlisted(name, ds):
                self.lists[name] = [d for d in self.lists[name] if d not in ds]
            case LetGo(ds):
                self.gone.update({d: seq for d in ds if d in self.needs})
                self.drop(ds)
            case Quarantined(paths):
                self.quarantined |= set(paths)
            case Replaced(old, new):
                for d, needs in self.needs.items():
                    if needs & set(old):
                        self.needs[d] = (needs - set(old)) | {p.path for p in new}
                        self.info.update({p.path: p for p in new})
            case Verified(paths):
                self.verified |= set(paths) & self.needed
            case Damaged(path, chunks, ds):
                for chunk in chunks:
                    self.bad.add((path, chunk))
                    self.unhealed[path, chunk] = set(ds)
            case Healed(chunks, pack):
                healed = [key for key in self.unhealed if key[1] in chunks]
                for key in healed:
                    for d in self.unhealed.pop(key):
                        if d in self.needs:
                            self.needs[d] = self.needs[d] | {pack.path}
                            self.info[pack.path] = pack
                self.bad -= {(pack.path, chunk) for chunk in chunks}
            case Leans(path, bases):
                self.leans[path] = bases
            case Window(name, policy):
                self.windows.pop(name, None)
                if policy is not None:
                    self.windows[name] = policy
            case _:
                pass
        # What is known of a pack is kept as long as a live checkpoint needs it.
        for path in before - self.needed:
            self.verified.discard(path)
            self.leans.pop(path, None)
            self.bad = {key for key in self.bad if key[0] != path}
            self.unhealed = {k: v for k, v in self.unhealed.items() if k[0] != path}

    @property
    def dangling(self) -> bool:
        """Whether a ref names what is not live: no writer leaves it so."""
        named = {d for listed in self.lists.values() for d in listed}
        named |= set(self.tags.values()) | {d for d, _ in self.pins.values()}
        return not named <= self.needs.keys()

    def drop(self, ds: Any) -> None:
        for d in ds:
            if d in self.needs:
                self.order.remove(d)
                del self.needs[d], self.step[d], self.since[d]


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[Change, ...]]:
    """Entries of one to three changes, such as writers make; the last may be another."""
    model = Model()
    flat: list[Change] = []
    begin = [
        adds(branch, CHECKPOINTS[i], tuple(PACKS[i : i + 3]), i)
        for i, branch in enumerate(BRANCHES)
    ]
    for change in begin + draw(st.lists(_changes, min_size=4, max_size=30)):
        made = [change]
        match change:
            case SetBranch(name, d) | SetTag(name, d) if d is not None and d not in model.needs:
                made = [type(change)(name, model.order[-1] if model.order else None)]
            case LetGo(ds):  # off every list first, as a window does
                made = [Unlisted(name, ds) for name in model.lists] + made
            case Unlisted(name, _) if name not in model.lists:
                continue
        for each in made:
            model.change(each, 0)
        flat += made
    if draw(st.integers(0, 9)) == 0:  # and one that is refused, or not, at the end
        flat.append(draw(_changes))
    history = []
    while flat:
        n = draw(st.integers(1, 3))
        history.append(tuple(flat[:n]))
        flat = flat[n:]
    return history


def compare(fold: Fold, model: Model) -> None:
    assert list(fold.live) == model.order
    for d, live in fold.live.items():
        assert live.digest == d
        assert set(live.packs) == model.needs[d]
        assert len(set(live.packs)) == len(live.packs)
        assert (live.add.step, live.seq) == (model.step[d], model.since[d])
        assert fold.packs_of(d) == [model.info[path] for path in live.packs]
        assert fold.is_verified(d) == (
            model.needs[d] <= model.verified
            and not any(d in named for named in model.unhealed.values())
        )
    needed = model.needed
    assert set(fold.packs) == set(fold.uses) == needed
    for path in needed:
        assert fold.packs[path] == model.info[path]
        assert fold.uses[path] == sum(path in needs for needs in model.needs.values())
    assert {name: list(b.checkpoints) for name, b in fold.branches.items()} == model.lists
    assert {name: list(b.moves) for name, b in fold.branches.items()} == model.moves
    assert dict(fold.heads()) == {n: ds[-1] for n, ds in model.lists.items() if ds}
    assert fold.tags == model.tags
    assert fold.pins == model.pins
    assert fold.gone == model.gone
    assert fold.verified == model.verified
    assert fold.quarantined == model.quarantined
    assert fold.leans == model.leans
    assert fold.windows == model.windows
    assert (fold.dangling() is not None) is model.dangling
    for path in PATHS:
        for chunk in CHUNKS:
            assert is_present(fold, path, chunk) == (
                path in needed and path not in model.quarantined and (path, chunk) not in model.bad
            )
    for name in BRANCHES:
        assert [live.digest for live in live_in_order(fold, name)] == [
            d for d in reversed(model.lists.get(name, [])) if d in model.needs
        ]


def entry_after(fold: Fold, changes: tuple[Change, ...]) -> Entry:
    act = fold.seq.to_bytes(16, "little")
    return Entry(fold.seq + 1, fold.chain, act, 1000 + fold.seq, "me", "test", STORE, changes)


@settings(max_examples=settings().max_examples * 3)
@given(_histories())
def test_the_fold_is_what_the_model_says(history: list[tuple[Change, ...]]) -> None:
    fold, model = Fold(), Model()
    for changes in history:
        entry = entry_after(fold, changes)
        before, rendered = fold, render_fold(fold, STORE)
        try:
            for change in changes:
                model.change(change, entry.seq)
        except KeyError:
            event("refused")
            with pytest.raises(EntryError):
                fold.apply(entry)
            assert render_fold(fold, STORE) == rendered
            return
        # As the one who wrote it applies it, and as everybody else reads it.
        fold = fold.apply(entry)
        read, problems = parse_file(entry.render(), entry.seq, STORE)
        assert not problems
        assert render_fold(before.apply(read), STORE) == render_fold(fold, STORE)
        compare(fold, model)
        # The fold it came from is as it was.
        assert render_fold(before, STORE) == rendered
        assert (fold.seq, fold.chain) == (entry.seq, entry.digest())
        again = parse_fold(render_fold(fold, STORE), STORE)
        assert again == fold
        assert list(again.live) == list(fold.live)
        assert list(again.packs) == list(fold.packs)
        assert render_fold(again, STORE) == render_fold(fold, STORE)


@given(_histories(), st.integers(0, 14))
def test_folding_on_from_a_fold_file_is_folding_from_the_start(
    history: list[tuple[Change, ...]], at: int
) -> None:
    fold = Fold()
    entries = []
    for changes in history:
        entry = entry_after(fold, changes)
        try:
            fold = fold.apply(entry)
        except EntryError:
            break
        entries.append(entry)
    start = Fold()
    start.advance(entries[:at])
    resumed = parse_fold(render_fold(start, STORE), STORE)
    resumed.advance(entries[at:])
    assert render_fold(resumed, STORE) == render_fold(fold, STORE)


def test_the_model_sees_what_it_is_to_see() -> None:
    """Each rule that data hangs on, once in plain words, on both sides."""
    a, b, c = CHECKPOINTS[:3]
    one, two, three, four = PACKS
    new = NEW_PACKS[0]
    chunk, other = CHUNKS[:2]
    fold, model = Fold(), Model()

    def do(*changes: Change) -> None:
        nonlocal fold
        fold = fold.apply(entry_after(fold, changes))
        for change in changes:
            model.change(change, fold.seq)
        compare(fold, model)

    assert not is_present(fold, one.path, chunk)
    do(adds("main", a, (one, two), 1))
    assert is_present(fold, one.path, chunk)
    do(adds("main", b, (two, three), 2))
    assert fold.uses == {one.path: 1, two.path: 2, three.path: 1}
    # Damage, then healing: the damaged copy never counts as present again.
    do(Damaged(two.path, (chunk,), (a, b)))
    assert not is_present(fold, two.path, chunk)
    assert is_present(fold, two.path, other)
    do(Verified((one.path, two.path, three.path)))
    assert not fold.is_verified(a)
    do(Healed((chunk,), new))
    assert new.path in fold.live[a].packs
    assert new.path in fold.live[b].packs
    assert not is_present(fold, two.path, chunk)
    assert is_present(fold, new.path, chunk)
    assert not fold.is_verified(a)  # the healing pack was not read back yet
    do(Verified((new.path,)))
    assert fold.is_verified(a)
    # A repack: every checkpoint that leaned on the old leans on the new.
    do(Replaced((two.path,), (four,)))
    assert {d: set(v.packs) for d, v in fold.live.items()} == {
        a: {one.path, four.path, new.path},
        b: {three.path, four.path, new.path},
    }
    assert not is_present(fold, two.path, other)
    # Letting go and reviving.
    do(Unlisted("main", (a,)), LetGo((a,)), Condemned((one.path,)))
    assert fold.gone == {a: fold.seq}
    assert one.path not in fold.uses
    do(adds("main", a, (three,), 1))
    assert a not in fold.gone
    assert list(fold.live) == [b, a]
    do(Quarantined((three.path,)))
    assert not is_present(fold, three.path, chunk)
    # Branches: moved within its list, cut; moved elsewhere, begun anew; removed, lets nothing go.
    do(adds("main", c, (), 3))
    do(SetBranch("main", a))
    assert fold.branches["main"].checkpoints == (b, a)
    do(SetBranch("main", c))
    assert fold.branches["main"].checkpoints == (c,)
    do(SetBranch("main", None))
    assert fold.branches["main"].head is None
    assert set(fold.live) == {a, b, c}
    assert [d for _, d in fold.branches["main"].moves] == [a, b, a, c, a, c, None]


def test_what_is_known_of_a_pack_outlasts_that_its_checkpoint_is_added_anew() -> None:
    fold = Fold()
    one = PACKS[0]
    steps: list[tuple[Change, ...]] = [
        (adds("main", CHECKPOINTS[0], (one,), 1),),
        (Verified((one.path,)), Damaged(one.path, (CHUNKS[0],), ()), Leans(one.path, ("x/y",))),
        (adds("other", CHECKPOINTS[0], (one,), 1),),
    ]
    for changes in steps:
        fold = fold.apply(entry_after(fold, changes))
    assert not is_present(fold, one.path, CHUNKS[0])
    assert fold.verified == {one.path}
    assert fold.leans == {one.path: ("x/y",)}
    assert fold.uses == {one.path: 1}


@pytest.mark.parametrize(
    "change",
    [
        SetBranch("main", CHECKPOINTS[1]),
        SetBranch("new", CHECKPOINTS[1]),
        SetTag("x", CHECKPOINTS[1]),
        Pin("x", CHECKPOINTS[1], ()),
        LetGo((CHECKPOINTS[0],)),
    ],
    ids=lambda c: c.tag,
)
def test_a_ref_that_names_what_is_not_live_is_told_of(change: Change) -> None:
    fold = Fold()
    fold = fold.apply(entry_after(fold, (adds("main", CHECKPOINTS[0], (), 1),)))
    assert fold.dangling() is None
    assert fold.apply(entry_after(fold, (change,))).dangling() is not None


def test_a_list_that_is_not_there_cannot_be_shortened() -> None:
    with pytest.raises(EntryError):
        Fold().apply(entry_after(Fold(), (Unlisted("nowhere", ()),)))


# -- the rule for what an entry may name ---------------------------------------------------------


@given(
    st.lists(st.sampled_from(PACKS), max_size=5, unique=True),
    st.lists(st.sampled_from(PACKS), max_size=5, unique=True),
    st.lists(st.sampled_from(PATHS), max_size=3),
    st.lists(st.sampled_from(PATHS), max_size=4),
    st.sampled_from([*SAVES, "20260103T000000000-00000000000000c3"]),
)
def test_broken_needs(
    needed: list[PackInfo],
    named: list[PackInfo],
    quarantined: list[str],
    condemned: list[str],
    save: str,
) -> None:
    fold = Fold()
    fold = fold.apply(
        entry_after(
            fold, (adds("main", CHECKPOINTS[0], tuple(needed), 1), Quarantined(tuple(quarantined)))
        )
    )
    broken = broken_needs(fold, save, named, set(condemned))
    for pack in named:
        if pack.save == save:  # an own pack: not condemned since s0
            sound = pack.path not in condemned
        else:  # a foreign one: needed by a live checkpoint, and in service
            sound = pack in needed and pack.path not in quarantined
        assert (pack.path in broken) is not sound
    assert set(broken) <= {p.path for p in named}


# -- the chain -----------------------------------------------------------------------------------


def test_an_entry_that_does_not_follow_is_refused() -> None:
    fold = Fold()
    first = entry_after(fold, (adds("main", CHECKPOINTS[0], (), 1),))
    assert first.prev == FIRST_PREV
    for entry in (
        Entry(2, FIRST_PREV, bytes(16), 0, "", "", STORE, ()),
        Entry(0, FIRST_PREV, bytes(16), 0, "", "", STORE, ()),
        Entry(1, Digest(digest(1)), bytes(16), 0, "", "", STORE, ()),
    ):
        with pytest.raises(EntryError):
            fold.apply(entry)
    fold = fold.apply(first)
    with pytest.raises(EntryError):
        fold.apply(first)


def test_a_lost_entry_takes_effect_in_its_place() -> None:
    a, b = CHECKPOINTS[:2]
    one, two = PACKS[:2]
    whole = Fold()
    entries = []
    for changes in (
        (adds("main", a, (one,), 1),),
        (adds("main", b, (two,), 2),),
        (SetTag("x", a),),
    ):
        entries.append(entry_after(whole, changes))
        whole = whole.apply(entries[-1])
    mended = Fold()
    mended.advance(entries[:1])
    lost = Lost(2, entries[1].digest(), tuple(_as_read(c.plain()) for c in entries[1].changes))
    mended.skip_lost(lost, entries[1].time)
    mended.advance(entries[2:])
    assert render_fold(mended, STORE) == render_fold(whole, STORE)
    with pytest.raises(EntryError):
        Fold().skip_lost(lost, 0)
    for odd in ((None,), (("tag",),), (("unlist", "nowhere", ()),), ((),)):
        mended = Fold()
        mended.advance(entries[:1])
        with pytest.raises(EntryError):
            mended.skip_lost(Lost(2, entries[1].digest(), odd), 0)


def _as_read(value: Any) -> Any:
    return tuple(map(_as_read, value)) if isinstance(value, list) else value


# -- fold files ----------------------------------------------------------------------------------


def rich_fold() -> Fold:
    """A fold with something of everything in it."""
    a, b, c = CHECKPOINTS[:3]
    fold = Fold()
    for changes in (
        (adds("main", a, tuple(PACKS[:2]), 1), adds("main", b, tuple(PACKS[1:3]), 2)),
        (Verified((PACKS[0].path,)), Damaged(PACKS[1].path, (CHUNKS[0],), (a,))),
        (SetTag("x", a), Pin("p", b, ("host", "boot", "", 4, 5)), Window("main", (("k", 3),))),
        (adds("retry", c, (PACKS[3],), None), Leans(PACKS[2].path, (PACKS[0].path,))),
        (
            Unlisted("retry", (c,)),
            LetGo((c,)),
            Quarantined((PACKS[3].path,)),
            Features((), ("hints",)),
        ),
        (SetBranch("retry", None), Condemned((PACKS[3].path,))),
    ):
        fold = fold.apply(entry_after(fold, changes))
    return fold


def test_every_flipped_bit_of_a_fold_file_is_refused() -> None:
    data = render_fold(rich_fold(), STORE)
    assert parse_fold(data, STORE) == rich_fold()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(EntryError):
            parse_fold(bytes(flipped), STORE)
    for cut in range(0, len(data), 7):
        with pytest.raises(EntryError):
            parse_fold(data[:cut], STORE)
    with pytest.raises(EntryError):
        parse_fold(data + b"\0", STORE)


@given(st.binary(max_size=100))
def test_garbage_is_no_fold_file(data: bytes) -> None:
    for file in (data, b"castfold1" + data):
        with pytest.raises(EntryError):
            parse_fold(file, STORE)


def test_a_fold_file_of_another_store_is_refused() -> None:
    with pytest.raises(EntryError):
        parse_fold(render_fold(rich_fold(), STORE), bytes(16))


def resealed(body: bytes) -> bytes:
    return b"castfold1" + hash_in("castore 1 fold", body) + body


_odd = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 99), st.text(max_size=2), st.just(digest(1)),
        st.just(["tag", "x", digest(1)]), st.just(["new kind", 1]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=settings().max_examples * 4)
@given(st.data())
def test_hostile_fold_files_are_refused_or_read(data: st.DataObject) -> None:
    """Its digest fits: whoever can write a fold file can do that."""
    body = msgpack.unpackb(render_fold(rich_fold(), STORE)[41:])
    place, at = body, data.draw(st.sampled_from(sorted(body)))
    while isinstance(place[at], list) and place[at] and data.draw(st.booleans()):
        place, at = place[at], data.draw(st.integers(0, len(place[at]) - 1))
    place[at] = data.draw(_odd)
    try:
        parse_fold(resealed(msgpack.packb(body)), STORE)
    except (EntryError, UnsupportedFeature):
        event("refused")


def test_a_fold_file_whose_live_checkpoint_is_a_tag_is_refused() -> None:
    body = msgpack.unpackb(render_fold(rich_fold(), STORE)[41:])
    body["live"][0][0] = ["tag", "x", digest(1)]
    with pytest.raises(EntryError):
        parse_fold(resealed(msgpack.packb(body)), STORE)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xc0", b"\x90", b"\x80", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000,
        (b"\xdd\x00\x00\xea\x60" * 900).ljust(60_000, b"\0"), b"\xc1",
    ],
    ids=lambda b: f"{b[:5].hex()}..{len(b)}",
)  # fmt: skip
def test_hostile_bodies_are_refused(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(EntryError):
        parse_fold(resealed(body), STORE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


def test_a_pin_named_as_a_tag_hides_no_dangling_tag() -> None:
    from dataclasses import replace

    fold = rich_fold()
    pinned = next(iter(fold.live))
    odd = replace(fold, tags={"x": digest(99)}, pins={"x": (pinned, ())})
    assert odd.dangling() is not None
