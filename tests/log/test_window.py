"""The window's pure half: policies as text and bytes, selection, and what letting go frees."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import UnsupportedFeature, UsageError
from castore.log.entry import (
    Add,
    Change,
    Condemned,
    Healed,
    Leans,
    LetGo,
    Pin,
    Quarantined,
    SetBranch,
    SetTag,
    Unlisted,
)
from castore.log.fold import Fold, plan_condemned
from castore.log.window import (
    Best,
    Listed,
    Policy,
    counted,
    holders,
    loose,
    metric_of,
    plan_release,
    select,
    wanting,
)
from castore.model.digest import Digest
from castore.model.packinfo import PackInfo

DAY = 86400 * 10**9


def digest(n: int) -> Digest:
    return Digest(n.to_bytes(32, "big"))


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "policy", "text"),
    [
        ({}, Policy(), "keep_last=3"),
        ({"keep_last": 5}, Policy(5), "keep_last=5"),
        ({"keep_every": 1000}, Policy(3, 1000), "keep_last=3 keep_every=1000"),
        (
            {"keep_best": "loss"},
            Policy(keep_best=(Best("loss", "min", 1),)),
            "keep_last=3 keep_best=loss:min:1",
        ),
        (
            {"keep_best": ["eval/acc:max:2", "val:loss:3", "x:max"]},
            Policy(keep_best=(Best("eval/acc", "max", 2), Best("val:loss", "min", 3),
                              Best("x", "max", 1))),
            "keep_last=3 keep_best=eval/acc:max:2 keep_best=val:loss:min:3 keep_best=x:max:1",
        ),
        ({"keep_within": "2d"}, Policy(keep_within=2 * DAY), "keep_last=3 keep_within=2d"),
        ({"keep_within": "36h"}, Policy(keep_within=3 * DAY // 2),
         "keep_last=3 keep_within=1d12h"),
        ({"keep_within": "1w1.5s"}, Policy(keep_within=7 * DAY + 15 * 10**8),
         "keep_last=3 keep_within=1w1.5s"),
        ({"keep_within": timedelta(minutes=90)}, Policy(keep_within=DAY // 16),
         "keep_last=3 keep_within=1h30m"),
        ({"keep_last": 1, "below_three": True}, Policy(1), "keep_last=1"),
    ],
    ids=str,
)  # fmt: skip
def test_policies(said: dict[str, Any], policy: Policy, text: str) -> None:
    assert Policy.of(**said) == policy
    assert str(policy) == text
    assert Policy.stored(policy.plain()) == policy


@pytest.mark.parametrize(
    "said",
    [
        {"keep_last": 0, "below_three": True}, {"keep_last": 2}, {"keep_last": -1},
        {"keep_last": "3"}, {"keep_last": True}, {"keep_last": 3.0}, {"keep_last": 1 << 63},
        {"keep_every": 0}, {"keep_every": -5}, {"keep_best": ""}, {"keep_best": "loss:min:0"},
        {"keep_best": 5}, {"keep_best": [5]}, {"keep_best": "a\nb"}, {"keep_within": ""},
        {"keep_within": "2"}, {"keep_within": "2 days"}, {"keep_within": "-2d"},
        {"keep_within": "0s"}, {"keep_within": 7}, {"keep_within": "999999999999w"},
        {"keep_within": timedelta(-1)},
    ],
    ids=str,
)  # fmt: skip
def test_odd_policies_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Policy.of(**said)


def test_below_three_is_told_how() -> None:
    with pytest.raises(UsageError, match="below_three=True"):
        Policy.of(keep_last=2)


policies = st.builds(
    Policy,
    st.integers(1, 6),
    st.none() | st.integers(1, 4),
    st.lists(
        st.builds(
            Best, st.sampled_from(["loss", "acc"]), st.sampled_from(["min", "max"]),
            st.integers(1, 3),
        ),
        max_size=2,
    ).map(tuple),
    st.none() | st.integers(1, 8),
)  # fmt: skip


@given(policies)
def test_what_is_stored_is_what_was_meant(policy: Policy) -> None:
    assert Policy.stored(policy.plain()) == policy
    words = dict(word.split("=", 1) for word in str(policy).split() if "keep_best" not in word)
    assert int(words["keep_last"]) == policy.keep_last


@pytest.mark.parametrize(
    "plain",
    [
        (("keep_last", 3), ("keep_moon", 1)), (("keep_last",),), ("keep_last",), (3,),
        (("keep_last", 0),), (("keep_last", None),), (("keep_best", "loss", "mean", 1),),
        (("keep_within", "2d"),), ((),),
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_of_a_newer_castore_is_not_guessed_at(plain: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedFeature, match="lets nothing go"):
        Policy.stored(plain)


@pytest.mark.parametrize(
    ("meta", "value"),
    [
        ({"loss": 2}, 2), ({"loss": 0.5}, 0.5), ({"loss": math.nan}, None), ({"loss": True}, None),
        ({"loss": "0.5"}, None), ({}, None), (None, None), ({"loss": [1]}, None),
        ({"loss": math.inf}, math.inf),
    ],
    ids=str,
)  # fmt: skip
def test_metrics(meta: dict[str, Any] | None, value: float | None) -> None:
    assert metric_of(meta, "loss") == value


def test_metrics_of_nested_metas() -> None:
    meta = {"eval": {"loss": 1.5}, "eval/acc": 3, "flat": 4}
    assert metric_of(meta, "eval/loss") == 1.5
    assert metric_of(meta, "eval/acc") == 3
    assert metric_of(meta, "flat/loss") is None
    assert metric_of(meta, "eval/none/deeper") is None


# -- selecting ------------------------------------------------------------------------------------


def steps_kept(
    checkpoints: Sequence[Listed], policy: Policy, verified: Collection[Digest]
) -> list[int | None]:
    return [c.step for c, keep, _ in select(checkpoints, policy, verified) if keep]


def run(*steps: int, **fields: Any) -> list[Listed]:
    """A list of checkpoints in the order given."""
    return [Listed(digest(i + 1), step, time=i, **fields) for i, step in enumerate(steps)]


def all_of(checkpoints: Sequence[Listed]) -> set[Digest]:
    return {c.digest for c in checkpoints}


def test_order_is_the_log_s_never_that_of_steps_or_times() -> None:
    # A sort by text deletes 10 first, one by time whatever the clock said last.
    listed = run(2, 9, 10, 100)
    assert steps_kept(listed, Policy(), all_of(listed)) == [9, 10, 100]
    again = run(500, 600, 700, 10, 20)  # a second run in the same store
    assert steps_kept(again, Policy(), all_of(again)) == [700, 10, 20]
    back = [replace(c, time=-c.time) for c in listed]  # the clock set back
    assert steps_kept(back, Policy(), all_of(back)) == [9, 10, 100]
    same = [replace(c, time=0, step=7) for c in run(1, 2, 3, 4)]
    assert [d.keep for d in select(same, Policy(), all_of(same))] == [False, True, True, True]


def test_what_is_not_verified_pushes_nothing_out() -> None:
    listed = run(*range(8))
    good = {c.digest for c in listed[1:5]}
    # 2, 3 and 4 are the newest three verified; everything newer stays too.
    assert steps_kept(listed, Policy(), good) == [2, 3, 4, 5, 6, 7]
    assert steps_kept(listed, Policy(), {listed[0].digest}) == list(range(8))
    assert steps_kept(listed, Policy(), ()) == list(range(8))


def test_the_reasons() -> None:
    listed = run(*range(6))
    listed[0] = replace(listed[0], held=("tag v1", "pin p"))
    good = {c.digest for c in listed[:5]}
    assert [(d.keep, d.reason) for d in select(listed, Policy(3, 3), good)] == [
        (True, "step a multiple of 3; tag v1; pin p"),
        (False, "older than the newest 3 verified, and no other rule keeps it"),
        (True, "one of the newest 3 verified"),
        (True, "one of the newest 3 verified; step a multiple of 3"),
        (True, "one of the newest 3 verified"),
        (True, "the newest; not verified, and newer than one of the newest 3 verified"),
    ]


def test_keep_every_is_of_steps_that_are_multiples() -> None:
    listed = [*run(-1000, 0, 999, 1000, 1000, 1500), Listed(digest(99), None), *run(1, 2, 3)]
    kept = steps_kept(listed, Policy(3, 1000), all_of(listed))
    assert kept == [-1000, 0, 1000, 1000, 1, 2, 3]


def scored(*losses: float | None) -> list[Listed]:
    found = zip(run(*range(len(losses))), losses, strict=True)
    return [replace(c, metrics={"loss": metric_of({"loss": x}, "loss")}) for c, x in found]


def test_keep_best() -> None:
    listed = scored(0.9, 0.1, math.nan, 0.5, None, 0.1, 2, 2, 2)
    good = all_of(listed)
    best = lambda mode, n: steps_kept(listed, Policy(keep_best=(Best("loss", mode, n),)), good)
    assert best("min", 1) == [5, 6, 7, 8]  # of equals the newer
    assert best("min", 2) == [1, 5, 6, 7, 8]
    assert best("min", 3) == [1, 3, 5, 6, 7, 8]
    assert best("max", 4) == [0, 6, 7, 8]
    assert best("min", 99) == [0, 1, 3, 5, 6, 7, 8]  # NaN and none are best at nothing


def test_an_unverified_best_stays_beside_the_verified() -> None:
    listed = scored(0.5, 0.1, 0.3, 9, 9, 9)
    policy = Policy(keep_best=(Best("loss"),))
    good = all_of(listed) - {listed[1].digest}
    assert steps_kept(listed, policy, good) == [1, 2, 3, 4, 5]
    [_, one, two, *_] = select(listed, policy, good)
    assert (one.reason, two.reason) == ("best loss (min), though not verified", "best loss (min)")


def test_a_metric_that_cannot_be_read_is_not_guessed_at() -> None:
    listed = scored(0.5, 0.1, 0.3, 9, 9, 9)
    listed[0] = replace(listed[0], metrics={})
    policy = Policy(keep_best=(Best("loss"),))
    assert steps_kept(listed, policy, all_of(listed)) == [0, 1, 3, 4, 5]


def test_keep_within_counts_back_from_the_newest_not_from_now() -> None:
    listed = [replace(c, time=c.step * DAY) for c in run(0, 1, 5, 6, 7, 8)]
    policy = Policy(keep_within=3 * DAY)
    assert steps_kept(listed, policy, all_of(listed)) == [5, 6, 7, 8]
    # One that is not verified, made by a clock far ahead, makes nothing old.
    ahead = [*listed, Listed(digest(50), 9, time=1000 * DAY)]
    assert steps_kept(ahead, policy, all_of(listed)) == [5, 6, 7, 8, 9]


checkpoints = st.lists(
    st.tuples(
        st.none() | st.integers(-4, 12),
        st.integers(0, 12),
        st.sampled_from([(), (), (), ("tag x",)]),
        st.sampled_from([1.0, 2.0, None, math.inf]),
        st.booleans(),
    ),
    max_size=9,
).map(
    lambda rows: (
        [
            Listed(digest(i + 1), step, time, held, {"loss": x, "acc": None if x is None else -x})
            for i, (step, time, held, x, _) in enumerate(rows)
        ],
        {digest(i + 1) for i, row in enumerate(rows) if row[4]},
    )
)
Case = tuple[list[Listed], set[Digest]]


@given(checkpoints, policies)
def test_the_rules_that_no_policy_breaks(case: Case, policy: Policy) -> None:
    listed, verified = case
    found = select(listed, policy, verified)
    assert [d.checkpoint for d in found] == listed
    assert all(d.reason for d in found)
    kept = {d.checkpoint.digest for d in found if d.keep}
    if listed:
        assert listed[-1].digest in kept
    assert {c.digest for c in listed if c.held} <= kept
    newest = [c.digest for c in listed if c.digest in verified][-policy.keep_last :]
    assert set(newest) <= kept
    # What pushes others out is verified, and stays.
    assert counted(listed, policy, verified) <= verified & kept


@given(checkpoints, policies, st.data())
def test_the_unverified_push_nothing_out(case: Case, policy: Policy, data: st.DataObject) -> None:
    listed, verified = case
    strange = [c for c in listed if c.digest not in verified]
    fewer = data.draw(st.lists(st.sampled_from(strange)) if strange else st.just([]))
    without = [c for c in listed if c not in fewer]
    kept = {d.checkpoint.digest for d in select(listed, policy, verified) if d.keep}
    before = {d.checkpoint.digest for d in select(without, policy, verified) if d.keep}
    assert before & verified <= kept


@given(checkpoints, policies)
def test_verifying_more_lets_more_go_and_never_less(case: Case, policy: Policy) -> None:
    listed, verified = case
    dropped = lambda sound: {
        d.checkpoint.digest for d in select(listed, policy, sound) if not d.keep
    }
    assert dropped(verified) <= dropped(all_of(listed))
    wanted = wanting(listed, policy, verified)
    assert not verified & set(wanted)
    # What it asks to verify is enough, and nothing is asked for in vain.
    assert dropped(verified | set(wanted)) == dropped(all_of(listed))
    if wanted:
        assert dropped(verified) < dropped(all_of(listed))
    places = [c.digest for c in listed]
    assert sorted(wanted, key=places.index, reverse=True) == wanted


@given(checkpoints, policies)
def test_what_is_spared_is_not_asked_for(case: Case, policy: Policy) -> None:
    listed, verified = case
    if listed:
        assert listed[-1].digest not in wanting(listed, policy, verified, {listed[-1].digest})


@given(checkpoints, policies)
def test_what_was_selected_stays_selected(case: Case, policy: Policy) -> None:
    listed, verified = case
    kept = [d.checkpoint for d in select(listed, policy, verified) if d.keep]
    assert all(d.keep for d in select(kept, policy, verified))


@given(checkpoints, policies)
def test_each_rule_only_adds(case: Case, policy: Policy) -> None:
    listed, verified = case
    kept = set(steps_of(select(listed, policy, verified)))
    for less in (
        replace(policy, keep_every=None),
        replace(policy, keep_best=()),
        replace(policy, keep_within=None),
    ):
        assert set(steps_of(select(listed, less, verified))) <= kept


def steps_of(found: Sequence[Any]) -> list[Digest]:
    return [d.checkpoint.digest for d in found if d.keep]


# -- letting go -----------------------------------------------------------------------------------


def pack(save: int, kind: str = "data", number: int = 0) -> PackInfo:
    path = f"20261201T000000000-{save:016x}/r00000-{number:03d}.{kind}.pack"
    return PackInfo(path, Digest(path.encode().rjust(80)[-32:]), 4096)


def packs_of(save: int) -> tuple[PackInfo, ...]:
    return pack(save), pack(save, "meta"), pack(save, "meta2")


def add(n: int, packs: Sequence[PackInfo], branch: str = "main") -> Add:
    none = digest(0)
    return Add(
        branch=branch, checkpoint=digest(n), root=none, contents=none, parent=None, step=n, time=n,
        save=packs[0].save, s0=0, tensors=0, logical_bytes=0, new_bytes=0, stored_bytes=0,
        message=None, packs=tuple(packs),
    )  # fmt: skip


def fold_of(*changes: Change) -> Fold:
    return Fold().with_changes(changes)


def test_a_release_is_one_entry_s_changes() -> None:
    fold = fold_of(*(add(n, packs_of(n)) for n in (1, 2, 3)))
    release = plan_release(fold, {"main": [digest(1), digest(2)]})
    freed = tuple(p.path for n in (1, 2) for p in packs_of(n))
    assert release.changes == (
        Unlisted("main", (digest(1), digest(2))),
        LetGo((digest(1), digest(2))),
        Condemned(freed),
    )
    after = fold.with_changes(release.changes)
    assert list(after.live) == [digest(3)]
    assert after.dangling() is None


def test_what_is_on_another_list_leaves_this_one_and_stays_live() -> None:
    fold = fold_of(
        *(add(n, packs_of(n)) for n in (1, 2, 3, 4)),
        SetBranch("retry", digest(1)),
        SetTag("v", digest(2)),
        Pin("p", digest(3), ()),
    )
    release = plan_release(fold, {"main": [digest(1), digest(2), digest(3)]})
    assert release.changes == (Unlisted("main", (digest(1), digest(2), digest(3))),)
    assert release.condemned == ()
    assert holders(fold) == {digest(2): ("tag v",), digest(3): ("pin p",)}


def test_shared_packs_stay() -> None:
    fold = fold_of(add(1, packs_of(1)), add(2, (*packs_of(1), *packs_of(2))), add(3, packs_of(3)))
    assert plan_release(fold, {"main": [digest(1)]}).condemned == ()
    both = plan_release(fold, {"main": [digest(1), digest(2)]})
    assert set(both.condemned) == {p.path for n in (1, 2) for p in packs_of(n)}


def test_bases_and_second_copies_of_tables_stay() -> None:
    base, leaning = pack(1), pack(2)
    fold = fold_of(
        add(1, packs_of(1)), add(2, packs_of(2)), add(3, packs_of(3)),
        Leans(leaning.path, (base.path,)),
    )  # fmt: skip
    # The base's own save goes: its data pack stays, for what leans on it.
    gone = plan_release(fold, {"main": [digest(1)]}).condemned
    assert gone == tuple(p.path for p in packs_of(1)[1:])
    # A data pack that is needed only because it heals keeps its save's meta packs.
    healed = fold_of(
        add(1, packs_of(1)), add(2, packs_of(2)), add(3, packs_of(3)),
    ).with_changes([])  # fmt: skip
    healed.damaged[pack(2).path, digest(77)] = (digest(2),)
    healed = healed.with_changes([Healed((digest(77),), pack(1))])
    release = plan_release(healed, {"main": [digest(1)]})
    assert release.let_go == (digest(1),)
    assert release.condemned == ()
    # ... and gc, which sees them in a listing only, thinks so too.
    after = healed.with_changes(release.changes)
    assert plan_condemned(after, [p.path for p in packs_of(1)]) == ()


def test_what_a_repair_set_aside_is_never_condemned() -> None:
    fold = fold_of(
        add(1, packs_of(1)), add(2, packs_of(2)), Quarantined((pack(1).path,))
    )  # fmt: skip
    assert pack(1).path not in plan_release(fold, {"main": [digest(1)]}).condemned


def test_loose_is_what_nothing_lists_or_holds() -> None:
    fold = fold_of(
        *(add(n, packs_of(n)) for n in (1, 2, 3, 4, 5)),
        SetTag("v", digest(1)), Pin("p", digest(2), ()), SetBranch("main", digest(1)),
    )  # fmt: skip
    assert loose(fold) == [digest(3), digest(4), digest(5)]
    release = plan_release(fold, {}, loose(fold))
    assert release.let_go == (digest(3), digest(4), digest(5))
    # Nothing that is held goes, whoever asks.
    assert plan_release(fold, {}, [digest(1), digest(2)]).changes == ()


@st.composite
def stores(draw: st.DrawFn) -> Fold:
    """Some checkpoints that share packs, on some lists, some held."""
    n = draw(st.integers(1, 6))
    changes: list[Change] = []
    for i in range(1, n + 1):
        shared = draw(st.lists(st.integers(1, i), max_size=2, unique=True))
        packs = dict.fromkeys(p for s in [i, *shared] for p in packs_of(s))
        changes.append(add(i, tuple(packs), draw(st.sampled_from(["main", "other"]))))
    some = st.integers(1, n).map(digest)
    if draw(st.booleans()):
        changes.append(SetTag("t", draw(some)))
    if draw(st.booleans()):
        changes.append(SetBranch("third", draw(some)))
    if draw(st.booleans()):
        changes.append(Pin("p", draw(some), ()))
    return fold_of(*changes)


@given(stores(), st.data())
def test_a_release_frees_all_it_can_and_nothing_needed(fold: Fold, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(fold.heads())))
    *older, _ = fold.branches[name].checkpoints
    gone = data.draw(st.lists(st.sampled_from(older), unique=True) if older else st.just([]))
    release = plan_release(fold, {name: gone})
    after = fold.with_changes(release.changes)
    assert after.dangling() is None
    assert set(release.let_go) <= set(gone)
    assert not set(release.condemned) & set(after.uses)
    assert set(release.condemned) | set(after.uses) == set(fold.uses)
    listed = {d for b in after.branches.values() for d in b.checkpoints}
    for d in gone:
        assert (d in after.live) == (d in listed or d in holders(after))
    assert set(loose(after)) == set(loose(fold))
