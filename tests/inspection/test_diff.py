"""Differences of states: what is told, how much is read for it, and that damage is met loudly."""

from __future__ import annotations

import math
import shutil
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import castore
from castore.reports import DiffEntry, DiffReport
from tests.same import difference, raw
from tests.strategies import states
from tests.support import flip_bit


@pytest.fixture
def store(tmp_path: Path) -> Iterator[castore.Store]:
    with castore.open(tmp_path / "runs.castore", create=True, chunk_size=4096) as store:
        yield store


def between(store: castore.Store, a: Any, b: Any, **options: Any) -> DiffReport:
    """The difference of two states, saved on branches of their own."""
    for branch, state in (("a", a), ("b", b)):
        if branch in store.branches():
            store.branch(branch, delete=True)
        store.save(state, branch=branch)
    return store.diff("a", "b", **options)


def told(report: DiffReport) -> list[tuple[str, str]]:
    return [(entry.status, entry.path) for entry in report.entries]


def one(report: DiffReport) -> DiffEntry:
    [entry] = report.entries
    return entry


# -- what is told -------------------------------------------------------------------------------


def test_letters_paths_and_values(store: castore.Store) -> None:
    a = {"same": 1, "step": 1, "gone": [1, {"x": 2}], "list": [1, 2], "kind": 1, "wide": "x"}
    b = {"same": 1, "step": 2, "list": [1, 3, 4], "kind": 1.0, "wide": "x", "new": {}, "more": {1}}
    report = between(store, a, b)
    assert told(report) == [
        ("M", "step"), ("M", "list/1"), ("A", "list/2"), ("T", "kind"), ("A", "new"), ("A", "more"),
        ("D", "gone/0"), ("D", "gone/1/x"),
    ]  # fmt: skip
    assert (report.added, report.removed, report.changed, report.retyped) == (3, 2, 2, 1)
    step, *_ = report.entries
    assert (step.old_text, step.text, step.changes) == ("1", "2", ("value",))
    kind = report.entries[3]
    assert (kind.old_kind, kind.kind, kind.changes) == ("int", "float", ("kind",))
    assert not report.same
    assert between(store, a, a).same


def test_the_numbers_are_torchs(store: castore.Store) -> None:
    a = torch.randn(3000, 5)
    b = a.clone()
    b[100:900] += 0.25
    b[2999, 4] = -b[2999, 4]
    entry = one(between(store, {"w": a}, {"w": b}))
    values = entry.values
    assert values is not None
    assert values.changed == int((a != b).sum())
    assert values.share == values.changed / a.numel()
    change = (b.double() - a.double()).flatten()
    assert math.isclose(values.l2 or 0, float(change.norm()), rel_tol=1e-12)
    assert values.max_abs == float(change.abs().max())
    # 204 rows are a chunk: the numbers are about those that differ, or with whole_norm all.
    chunks = [slice(at, at + 204) for at in range(0, 3000, 204)]
    differ = torch.cat([a[c] for c in chunks if not torch.equal(a[c], b[c])])
    assert values.compared == differ.numel()
    assert math.isclose(values.base_l2 or 0, float(differ.double().norm()), rel_tol=1e-12)
    assert entry.chunks - entry.shared_chunks == values.compared // 1020 + 1
    whole = one(store.diff("a", "b", whole_norm=True)).values
    assert whole is not None
    assert math.isclose(whole.base_l2 or 0, float(a.double().norm()), rel_tol=1e-12)
    assert math.isclose(whole.relative or 0, float(change.norm() / a.double().norm()), rel_tol=1e-9)
    assert (whole.changed, whole.compared) == (values.changed, values.compared)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn,
                                   torch.complex64, torch.int64, torch.bool])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (7,), (3, 5000), (2, 3, 700)], ids=str)
def test_dtypes_and_rows_larger_than_a_chunk(
    store: castore.Store, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    a, b = ((torch.randn(shape, dtype=torch.complex64) * 3).to(torch.complex64) for _ in range(2))
    a, b = (t.to(dtype) if dtype.is_complex else t.real.to(dtype) for t in (a, b))
    report = between(store, a, b)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = a.to(wide).flatten(), b.to(wide).flatten()
    changed = sum(p != q for p, q in zip(_items(a), _items(b), strict=True))
    if not changed:
        assert report.same
        return
    entry = one(report)
    assert entry.path == ""
    assert entry.values is not None
    assert entry.values.changed == changed
    assert math.isclose(entry.values.l2 or 0, float((y - x).norm()), rel_tol=1e-6)
    assert math.isclose(entry.values.max_abs or 0, float((y - x).abs().max()), rel_tol=1e-6)


def _items(tensor: torch.Tensor) -> list[bytes]:
    data = raw(tensor)
    return [data[i : i + tensor.itemsize] for i in range(0, len(data), tensor.itemsize)]


def test_nans_and_infinities_are_counted_and_left_out_of_norms(store: castore.Store) -> None:
    a = torch.ones(2000)
    b = a.clone()
    a[0], b[1], b[2], b[3] = float("nan"), float("nan"), float("inf"), 4.0
    values = one(between(store, [a], [b])).values
    assert values is not None
    assert (values.nan_before, values.nan_after) == (1, 1)
    assert (values.inf_before, values.inf_after) == (0, 1)
    assert (values.changed, values.l2, values.max_abs) == (4, 3.0, 3.0)
    only = one(between(store, [torch.full((3,), float("nan"))], [torch.ones(3)])).values
    assert only is not None
    assert (only.changed, only.l2, only.relative, only.max_abs) == (3, None, None, None)


def test_from_zero_there_is_no_relative_norm(store: castore.Store) -> None:
    values = one(between(store, [torch.zeros(900)], [torch.ones(900)])).values
    assert values is not None
    assert (values.l2, values.base_l2, values.relative) == (30.0, 0.0, None)


def test_dtype_and_shape_changes_say_so(store: castore.Store) -> None:
    w = torch.arange(6000.0).reshape(3000, 2)
    before = {"a": w, "b": w.clone(), "c": w.clone()}
    report = between(store, before, {"a": w.int(), "b": w[:2048], "c": w.numpy().copy()})
    assert [(e.status, e.changes) for e in report.entries] == [
        ("T", ("dtype", "values")), ("T", ("shape", "values")), ("T", ("kind",))
    ]  # fmt: skip
    a, b, _ = report.entries
    assert (a.old_dtype, a.dtype) == ("float32", "int32")
    assert (b.old_shape, b.shape) == ((3000, 2), (2048, 2))
    assert (b.shared_chunks, b.chunks) == (4, 4)  # the rows that are left are all there already
    assert all(entry.values is None for entry in report.entries)
    assert report.chunks_read == 0


def test_flags_ties_order_and_factories(store: castore.Store) -> None:
    w = torch.randn(600)
    entry = one(between(store, {"w": w}, {"w": torch.nn.Parameter(w)}))
    assert (entry.status, entry.changes, entry.values) == ("M", ("flags",), None)

    report = between(store, {"x": w, "y": w}, {"x": w, "y": w.clone()})
    assert [(e.path, e.changes) for e in report.entries] == [("x", ("tie",)), ("y", ("tie",))]
    # A tie before others shifts their numbers: no difference.
    v = torch.randn(3)
    old = {"z": {"x": w, "y": w}}
    assert told(between(store, old, {"a": [v, v], **old})) == [("A", "a/0"), ("A", "a/1")]
    # ... unless they are tied to others indeed, though each of them is tied.
    (ones,) = torch.ones(1, 600)
    twos, threes = ones.clone(), ones.clone()
    a = {"1": twos, "2": twos, "3": ones, "4": ones}
    b = {"1": twos, "2": threes, "3": threes, "4": twos}
    assert [e.path for e in between(store, a, b).entries] == ["2", "4"]

    entry = one(between(store, {"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert (entry.path, entry.changes, entry.status) == ("", ("order",), "M")
    entry = one(between(store, [defaultdict(int, a=1)], [defaultdict(float, a=1)]))
    assert (entry.path, entry.changes) == ("0", ("factory",))
    report = between(store, [{"a": 1, "b": 2}], [OrderedDict(a=1, b=3)])
    assert [(e.status, e.path, e.changes) for e in report.entries] == [
        ("T", "0", ("kind",)), ("M", "0/b", ("value",))
    ]  # fmt: skip
    assert told(between(store, [{1, 2}], [{1, 3}])) == [("M", "0")]
    assert told(between(store, [1], {"0": 1})) == [("D", "0"), ("A", "0")]


def test_metadata_of_an_ordered_dict_is_told(store: castore.Store) -> None:
    a, b = OrderedDict(w=1), OrderedDict(w=1)
    a._metadata, b._metadata = {"v": 1}, {"v": 2}  # type: ignore[attr-defined]
    assert told(between(store, a, b)) == [("M", "~(_metadata)/v")]
    assert told(between(store, OrderedDict(w=1), b)) == [("A", "~(_metadata)/v")]


def test_typed_keys_are_not_one(store: castore.Store) -> None:
    report = between(store, {1: "int", "1": "text"}, {True: "bool", "1": "text", 2.0: None})
    assert told(report) == [("A", "~(True)"), ("A", "~(2.0)"), ("D", "~(1)")]


def test_opaque_items_that_chunks_cut(store: castore.Store) -> None:
    """Items of three bytes in rows larger than a chunk: some are cut in two."""
    a = np.zeros((2, 5000), "V3")
    b = a.copy()
    view = b.view(np.uint8).reshape(2, 15000)
    view[0, 4094:4098] = 1  # items 1364, 1365 (cut at 4096) and none else
    view[1, 7] = 1
    values = one(between(store, [a], [b])).values
    assert values is not None
    assert (values.items, values.changed) == (10000, 3)
    assert values.l2 is values.max_abs is None


@given(states, states)
def test_a_state_differs_from_another_exactly_where_they_do(
    tmp_path_factory: pytest.TempPathFactory, a: Any, b: Any
) -> None:
    path = tmp_path_factory.mktemp("diff") / "s.castore"
    try:
        with castore.open(path, create=True, chunk_size=4096) as store:
            forth, back = between(store, a, b), store.diff("b", "a")
            assert forth.same == (store.resolve("a").root == store.resolve("b").root)
            assert forth.same == (difference(a, b) is None) or _same_but_ties(a, b)
            assert (forth.added, forth.changed) == (back.removed, back.changed)
            assert {e.path for e in forth.entries if e.status == "A"} == {
                e.path for e in back.entries if e.status == "D"
            }
            names = store.diff("a", "b", values=False)
            assert told(names) == told(forth)
            assert names.chunks_read == 0
            assert store.diff("a", "b", first=True).same == forth.same
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _same_but_ties(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


# -- how much is read -----------------------------------------------------------------------------


def test_equal_subtrees_and_chunks_are_not_read(store: castore.Store) -> None:
    state: dict[str, Any] = {
        "frozen": {
            f"layer{i}": {"w": torch.randn(40, 50), "b": torch.randn(99)} for i in range(99)
        },
        "head": {"w": torch.randn(20_000), "deep": {"x": torch.randn(200)}},
        "step": 1,
    }
    store.save(state, step=1)
    state["head"]["w"][15_000] += 1
    store.save(state, step=2)
    report = store.diff("main~1")
    assert told(report) == [("M", "head/w")]
    # Of each side: the checkpoint, the root, head.
    assert report.objects_read == 2 * 3
    assert (report.chunks_read, report.bytes_read) == (2, 2 * 4096)
    assert store.diff("main~1", values=False).chunks_read == 0
    same = store.diff("main", "main")
    assert (same.same, same.objects_read) == (True, 2)
    # An added subtree has to be gone through on its side alone.
    whole = store.diff("main~1", whole_norm=True)
    assert whole.chunks_read == 2 + one(whole).shared_chunks


def test_only_the_parts_of_a_wide_container_that_differ_are_read(store: castore.Store) -> None:
    state = {f"p{i:06d}": torch.full((3,), float(i)) for i in range(100_000)}
    store.save(state)
    state["p050000"] = torch.zeros(3)
    store.save(state)
    report = store.diff("main~1")
    assert told(report) == [("M", "p050000")]
    # Checkpoint, root, one of its parts, one of that's; the other 390 leaves are equal.
    assert report.objects_read == 2 * 4
    del state["p050000"]
    store.save(state)
    report = store.diff("main~1")
    assert told(report) == [("D", "p050000")]


def test_names_in_a_wide_container_are_those_that_show_knows(store: castore.Store) -> None:
    """Where a name depends on keys that lie in parts which both share."""
    state: dict[Any, Any] = {i: i for i in range(600)}
    state["599"] = "text"
    store.save(state)
    state[599] = 0
    store.save(state)
    entry = one(store.diff("main~1"))
    assert entry.path == "~(599)"
    assert store.load(f"main:{entry.path}") == 0


def test_a_key_that_moves_past_an_equal_part_is_out_of_order(store: castore.Store) -> None:
    middle = [(f"k{i}", i) for i in range(600)]
    a, b = dict(middle), dict(middle)
    a["x"] = b["y"] = 0
    assert told(between(store, a, b)) == [("A", "y"), ("D", "x")]
    moved = dict([*middle[1:256], middle[0], *middle[256:]])
    assert [e.changes for e in between(store, dict(middle), moved).entries] == [("order",)]


def test_tied_tensors_are_read_once(store: castore.Store) -> None:
    w = torch.randn(5000)
    v = w + 1
    report = between(store, {"a": w, "b": w}, {"a": v, "b": v})
    assert told(report) == [("M", "a"), ("M", "b")]
    assert report.entries[0].values == report.entries[1].values
    assert report.chunks_read == 2 * 5


# -- revisions and paths ---------------------------------------------------------------------------


@pytest.fixture
def runs(store: castore.Store) -> castore.Store:
    for step in (1, 2, 3):
        store.save({"model": {"w": torch.full((9,), float(step)), "b": 0}, "step": step}, step=step)
    store.tag("v1", "main~2")
    store.branch("retry", "main~1")
    store.save({"model": {"w": torch.ones(9)}, "step": 9, "ema": {"w": torch.ones(9) * 2}},
               branch="retry", step=9)  # fmt: skip
    return store


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ((), ("main~1", "main")),
        (("main~2",), ("main~2", "main")),
        (("main",), ("main", "main")),
        (("retry~1",), ("retry~1", "retry")),
        (("v1",), ("v1", "main")),
        (("v1", "retry"), ("v1", "retry")),
        (("v1..retry",), ("v1", "retry")),
        (("main~2..",), ("main~2", "main")),
        (("..retry",), ("main", "retry")),
        (("main@step=1..main@{0}",), ("main~2", "main")),
    ],
)
def test_ends(runs: castore.Store, words: tuple[str, ...], ends: tuple[str, str]) -> None:
    report = runs.diff(*words)
    assert (report.a, report.b) == tuple(runs.resolve(end).digest for end in ends)


def test_parts_of_states(runs: castore.Store) -> None:
    report = runs.diff("retry:model", "retry:ema")
    assert [(e.status, e.path) for e in report.entries] == [("M", "ema/w")]
    assert (report.a_path, report.b_path) == ("model", "ema")
    assert told(runs.diff("v1..main:model")) == [("M", "model/w")]
    assert told(runs.diff("v1:step", "main:step")) == [("M", "step")]


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ("model", ["model/w"]),
        (["model/w", "step"], ["model/w", "step"]),
        ("model/b", []),
        ("*/w", ["model/w"]),
        ("**/w", ["model/w"]),
        ("*", ["model/w", "step"]),
        ("st?p", ["step"]),
        ("", ["model/w", "step"]),
        ("x*", []),
    ],
)
def test_paths(runs: castore.Store, paths: str | list[str], found: list[str]) -> None:
    assert [e.path for e in runs.diff("v1", paths=paths).entries] == found


def test_what_is_not_there(runs: castore.Store) -> None:
    with pytest.raises(castore.BadRevision, match="nothing at 'nope'"):
        runs.diff("v1", paths="nope")
    with pytest.raises(castore.BadRevision):
        runs.diff("v1:nope", "main")
    with pytest.raises(castore.BadRevision, match="no merge base"):
        runs.diff("v1...main")
    # In one of the two is enough.
    assert told(runs.diff("v1", "retry", paths="ema")) == [("A", "ema/w")]


# -- damage ---------------------------------------------------------------------------------------


def test_damage_on_the_way_is_named(store: castore.Store, tmp_path: Path) -> None:
    w = torch.randn(1000, 100)  # 10 rows a chunk
    store.save({"m": {"w": w, "other": torch.randn(3000)}}, step=1)
    changed = w.clone()
    changed[500] += 1
    store.save({"m": {"w": changed, "other": torch.ones(3000)}}, step=2)
    [first, second] = sorted((tmp_path / "runs.castore/packs").glob("*/r00000-000.data.pack"))
    for pack, tensor, step in ((first, w, 1), (second, changed, 2)):
        at = pack.read_bytes().find(raw(tensor[500]))
        flip_bit(pack, at, 2)
        with pytest.raises(castore.CorruptionError) as caught:
            store.diff("main~1")
        [finding] = caught.value.findings
        assert (finding.code, finding.path, finding.rows) == ("damaged-chunk", "m/w", (500, 510))
        assert finding.step == step
        assert finding.file == str(pack.relative_to(store.path))
        assert finding.offset is not None
        assert finding.offset <= at < finding.offset + 4096
        assert finding.expected != finding.found
        # What does not read it is not in its way.
        assert told(store.diff("main~1", paths="m/other")) == [("M", "m/other")]
        assert len(store.diff("main~1", values=False).entries) == 2
        flip_bit(pack, at, 2)
    # Damage in a chunk that both share is not met: it is not read.
    at = first.read_bytes().find(raw(w[0]))
    flip_bit(first, at, 2)
    assert told(store.diff("main~1")) == [("M", "m/w"), ("M", "m/other")]
    with pytest.raises(castore.CorruptionError):
        store.diff("main~1", whole_norm=True)


def test_damaged_metadata_is_named_and_a_twin_serves(store: castore.Store, tmp_path: Path) -> None:
    for step in (1, 2):
        store.save({"m": {str(i): step for i in range(300)}}, step=step)
    packs = sorted((tmp_path / "runs.castore/packs").glob("*/r00000-000.meta*.pack"))[2:]
    flip_bit(packs[0], 140, 3)
    with castore.open(store.path, readonly=True) as fresh, pytest.warns(castore.CastoreWarning):
        assert len(fresh.diff("main~1", values=False).entries) == 300
    flip_bit(packs[1], 140, 3)
    with pytest.raises(castore.CorruptionError, match="step 2"):
        castore.open(store.path, readonly=True).diff("main~1")
