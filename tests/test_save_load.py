"""The front door: what save and load promise, from outside."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import castore
from tests.same import raw
from tests.support import same, training_state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.castore"


def test_a_state_comes_back_exactly(path: Path) -> None:
    state = training_state(1, step=7)
    saved = castore.save(state, path, step=7, meta={"loss": 2.5, "lr": [1e-3, None]})
    loaded = castore.load(path)
    assert same(loaded, state)
    assert loaded["model"]["head.weight"] is loaded["model"]["layer0.weight"]  # the tie
    assert saved.step == 7
    assert saved.parent is None
    assert saved.report is not None
    assert saved.report.tensors == 18
    assert saved.report.verified is False
    with castore.open(path) as store:
        assert store.resolve("main").meta == {"loss": 2.5, "lr": [1e-3, None]}
        assert store.resolve(saved.digest[:8]).digest == saved.digest


def test_what_is_loaded_is_private_and_writable_A10(path: Path) -> None:
    state = training_state(2)
    castore.save(state, path)
    one, two = castore.load(path), castore.load(path)
    for tensor in one["model"].values():
        tensor.add_(1)
    assert same(two, state)
    assert same(castore.load(path), state)


def test_a_save_keeps_no_reference_to_the_callers_tensors_A09(path: Path) -> None:
    state = training_state(3)
    before = copy.deepcopy(state)
    castore.save(state, path)
    for tensor in state["model"].values():
        tensor.zero_()
    assert same(castore.load(path), before)


def test_equal_bytes_are_stored_once(path: Path) -> None:
    frozen = {f"f{i}": torch.randn(256, 256) for i in range(20)}
    state = {"frozen": frozen, "a": torch.randn(64, 64), "b": torch.randn(64, 64)}
    first = castore.save(state, path, step=0)
    assert first.report is not None
    for step in range(1, 4):
        state["a"] = torch.randn(64, 64)
        saved = castore.save(state, path, step=step)
        assert saved.report is not None
        assert saved.report.new_bytes == 64 * 64 * 4
        assert saved.report.stored_bytes < 64 * 64 * 4 + 64 * 1024
        assert same(castore.load(path), state)
    # across branches, and with other names for the same bytes (A12: identity is the bytes)
    other = castore.save({"renamed": frozen["f3"].clone()}, path, branch="other")
    assert other.report is not None
    assert other.report.new_bytes == 0


def test_equal_chunks_within_one_save_are_stored_once(path: Path) -> None:
    zeros = {f"z{i}": torch.zeros(1 << 20) for i in range(8)}
    saved = castore.save(zeros, path)
    assert saved.report is not None
    assert saved.report.new_bytes == 4 << 20
    small = {f"z{i}": torch.full((1000,), 5.0) for i in range(50)}
    saved = castore.save(small, path, branch="small")
    assert saved.report is not None
    assert saved.report.new_bytes == 4000
    loaded = castore.load(path, "small")
    loaded["z0"].add_(1)  # equal, not tied
    assert torch.equal(loaded["z1"], small["z1"])


def test_nothing_changed_returns_the_head(path: Path) -> None:
    state = training_state(4)
    first = castore.save(state, path, step=1, meta={"loss": 1.0})
    with pytest.warns(castore.CastoreWarning, match="nothing changed"):
        again = castore.save(state, path, step=1, meta={"loss": 1.0})
    assert (again.digest, again.seq) == (first.digest, first.seq)
    assert again.report is not None
    assert again.report.stored_bytes == 0
    with castore.open(path) as store:
        assert len(store.log()) == 1
        assert store.gc().items == ()  # the attempt left nothing
    with pytest.warns(castore.CastoreWarning) as warned:
        other = castore.save(state, path, step=1, meta={"loss": 0.5})
    assert other.digest != first.digest
    assert other.report is not None
    assert [str(w.message) for w in warned] == list(other.report.warnings)
    assert "repeats" in other.report.warnings[0]
    assert warned[0].filename == __file__


def test_a_stale_buffer_is_reported_B28(path: Path) -> None:
    state = training_state(5)
    castore.save(state, path, step=1)
    state["step"] = 2
    with pytest.warns(
        castore.CastoreWarning, match="no tensor of more than 256 bytes changed since step 1"
    ):
        castore.save(state, path, step=2)


def test_a_vanished_state_is_reported(path: Path) -> None:
    castore.save({"w": torch.randn(1000, 1000)}, path, step=1)
    with pytest.warns(castore.CastoreWarning, match="most of the state vanished"):
        castore.save({"w": torch.randn(0)}, path, step=2)


def test_steps_are_labels_T4(path: Path) -> None:
    for step in (2, 9, 10, 100):
        castore.save({"w": torch.full((100,), float(step))}, path, step=step)
    with pytest.warns(castore.CastoreWarning, match="goes back"):
        castore.save({"w": torch.full((100,), -1.0)}, path, step=10)
    with castore.open(path) as store:
        assert [c.step for c in store.log()] == [10, 100, 10, 9, 2]
        assert store.load("main@step=10")["w"][0] == -1.0
        assert store.load("main~1")["w"][0] == 100.0
        with pytest.raises(castore.UsageError, match="strict_steps"):
            store.save({"w": torch.zeros(3)}, step=3, strict_steps=True)
        assert len(store.log()) == 5


def test_order_is_the_logs_not_the_clocks_T4(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5_000, 3_000, 4_000, 1_000])
    for i in range(4):
        hour = next(clock)
        monkeypatch.setattr("castore.pipeline.save.now_ns", lambda hour=hour: hour * 3600 * 10**9)
        castore.save({"i": i}, path, step=i)
    with castore.open(path) as store:
        assert [c.step for c in store.log()] == [3, 2, 1, 0]
        assert store.load() == {"i": 3}


@pytest.mark.parametrize(
    "state",
    [None, 5, 2**90, "text", "x" * 5000, b"raw", (), [], {}, {"a": {}}, torch.tensor(3), (1, [2])],
    ids=lambda s: type(s).__name__,
)
def test_any_value_is_a_state(path: Path, state: object) -> None:
    castore.save(state, path)
    assert same(castore.load(path), state)


def test_a_subtree_by_key_path(path: Path) -> None:
    state = training_state(6)
    castore.save(state, path)
    assert same(castore.load(path, "main:model"), state["model"])
    assert same(castore.load(path, "main:optimizer/state/2/step"), torch.tensor(0.0))
    assert castore.load(path, "main:losses/0") == 6.0
    with pytest.raises(castore.BadRevision, match=r"layer9.*layer0"):
        castore.load(path, "main:model/layer9.weight")


def test_refused_before_the_first_byte(path: Path) -> None:
    castore.save({"w": torch.ones(3)}, path)
    before = sorted(p.name for p in path.rglob("*"))
    for bad, where in [
        ({"model": {"f": lambda: 0}}, "model/f"),
        ({"a": [1, object()]}, "a/1"),
        ({"m": torch.empty(3, device="meta")}, "m"),
    ]:
        with pytest.raises(castore.BadState) as caught:
            castore.save(bad, path)
        assert caught.value.path == where
        assert where in str(caught.value)
    assert sorted(p.name for p in path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"branch": "a b"}, castore.UsageError),
        ({"branch": ""}, castore.UsageError),
        ({"branch": "deadbeef"}, castore.UsageError),
        ({"step": "7"}, castore.UsageError),
        ({"step": 1 << 70}, castore.UsageError),
        ({"meta": {"x": torch.tensor(1)}}, castore.BadState),
        ({"meta": {1: 2}}, castore.BadState),
        ({"verify": "maybe"}, castore.UsageError),
        ({"compression": "plane"}, castore.UnsupportedFeature),
        ({"window": 2}, castore.UsageError),
        ({"window": {"keep": 3}}, castore.UsageError),
        ({"window": {"keep_within": "soon"}}, castore.UsageError),
        ({"window": "3"}, castore.UsageError),
    ],
    ids=str,
)
def test_bad_options_write_nothing(path: Path, options: dict, error: type[Exception]) -> None:
    castore.save({"w": 1}, path)
    with pytest.raises(error):
        castore.save({"w": 2}, path, **options)
    assert castore.load(path) == {"w": 1}


def test_numpy_numbers_serve_as_step_and_meta(path: Path) -> None:
    saved = castore.save({"w": 1}, path, step=np.int64(5), meta={"loss": np.float64(0.5)})
    assert (saved.step, saved.meta) == (5, {"loss": 0.5})
    assert type(saved.meta["loss"]) is float


def test_no_store_no_checkpoint_no_branch_B23(path: Path) -> None:
    with pytest.raises(castore.StoreNotFound):
        castore.load(path)
    with pytest.raises(castore.StoreNotFound):
        castore.open(path.parent / "no" / "such")
    with castore.open(path, create=True) as store:
        with pytest.raises(castore.NoCheckpoint):
            store.load()
        store.save({"a": 1}, step=1)
        with pytest.raises(castore.BadRevision, match="newest steps are 1"):
            store.load("main@step=500")
        with pytest.raises(castore.BadRevision, match="nope"):
            store.load("nope")


def test_a_folder_with_other_things_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(castore.UsageError, match=r"notes\.txt"):
        castore.save({"a": 1}, tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(castore.UsageError, match="is a file"):
        castore.save({"a": 1}, file)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "notes.txt"]


def test_a_store_deleted_and_made_anew_is_noticed(path: Path) -> None:
    castore.save({"a": 1}, path)
    shutil.rmtree(path)
    castore.save({"a": 2}, path)
    assert castore.load(path) == {"a": 2}
    with castore.open(path) as store:
        assert len(store.log()) == 1


def test_a_copy_is_a_store_B32(path: Path, tmp_path: Path) -> None:
    state = training_state(8)
    castore.save(state, path)
    copied = tmp_path / "copy with spaces é"
    shutil.copytree(path, copied, ignore=shutil.ignore_patterns("index.lmdb"))
    assert same(castore.load(copied), state)
    castore.save({"more": 1}, copied, branch="more")
    with castore.open(copied) as store:
        assert store.fsck().ok
    assert same(castore.load(path), state)


def test_all_that_is_derived_may_go(path: Path) -> None:
    with castore.open(path, create=True) as store:
        for i in range(3):
            store.save({"w": torch.full((5000,), float(i))}, step=i)
        store._parts.log.write_fold_file(store._parts.log.fold())
    shutil.rmtree(path / "index.lmdb")
    for fold in (path / "log").glob("*.fold"):
        fold.unlink()
    with castore.open(path) as store:
        assert store.load()["w"][0] == 2.0
        again = store.save({"w": torch.full((5000,), 1.0)}, branch="b")
        assert again.report is not None
        assert again.report.new_bytes == 0  # the index was made again
        assert store.fsck().ok


def test_branches_and_tags(path: Path) -> None:
    with castore.open(path, create=True) as store:
        for i in range(3):
            store.save({"i": i}, step=i)
        store.tag("release", "main~1")
        store.branch("retry", "main~2")
        assert store.load("release") == {"i": 1}
        assert store.load("retry") == {"i": 0}
        assert [c.step for c in store.log("retry")] == [0]
        store.save({"i": 10}, branch="retry", step=10)
        assert [c.step for c in store.log("retry")] == [10, 0]
        assert store.resolve("retry").parent == store.resolve("main~2").digest
        with pytest.raises(castore.UsageError, match="is there"):
            store.tag("release", "main")
        moved = store.tag("release", "main", force=True)
        assert moved.undo is not None
        assert store.load("release") == {"i": 2}
        with pytest.raises(castore.UsageError, match="is a branch"):
            store.tag("main", "main")
        store.branch("retry", delete=True)
        assert sorted(store.branches()) == ["main"]
        with pytest.raises(castore.BadRevision):
            store.load("retry")
        # what a branch leaves stays live until an explicit gc of a later version lets it go
        assert store.fsck().checkpoints == 4
        assert store.load("main@{0}") == {"i": 2}
        assert store.load("main@{2}") == {"i": 0}


def test_moving_a_branch_back_cuts_its_list(path: Path) -> None:
    with castore.open(path, create=True) as store:
        for i in range(4):
            store.save({"i": i}, step=i)
        store.branch("main", "main~2", force=True)
        assert [c.step for c in store.log()] == [1, 0]
        store.save({"i": 9}, step=9)
        assert [c.step for c in store.log()] == [9, 1, 0]
        assert store.load("main@{1}") == {"i": 1}


def test_conflict_names_the_other_and_loses_nothing_D07(path: Path) -> None:
    with castore.open(path, create=True) as one:
        one.save({"who": "one"}, step=1)
        with castore.open(path) as two:
            two.save({"who": "two"}, step=2)
            with pytest.raises(castore.RefConflict) as caught:
                one.save({"who": "one again"}, step=2)
            error = caught.value
            assert error.branch == "main"
            assert error.actual == two.resolve().digest
            assert "pid" in str(error)
            assert "save main step 2" in str(error)
            one.resolve("main")
            one.save({"who": "one again"}, step=3)
            assert [c.step for c in one.log()] == [3, 2, 1]
            assert one.gc().items == ()


def test_readonly(path: Path) -> None:
    castore.save({"a": 1}, path, step=1)
    before = sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*"))
    with castore.open(path, readonly=True) as store:
        assert store.load() == {"a": 1}
        assert [c.step for c in store.log()] == [1]
        assert store.fsck().ok
        assert store.info().checkpoints == 1
        for act in (lambda: store.save(1), store.gc, lambda: store.tag("t")):
            with pytest.raises(castore.UsageError, match="readonly"):
                act()
    assert sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*")) == before


def test_verify_now_reads_back_and_says_so(path: Path) -> None:
    state = training_state(9)
    saved = castore.save(state, path, step=1, verify="now")
    assert saved.report is not None
    assert saved.report.verified
    with castore.open(path) as store:
        assert store.resolve().verified
        assert store.info().verified == 1
        state["model"]["layer1.weight"] += 1
        later = store.save(state, step=2, verify="off")
        assert not later.verified
        assert [c.verified for c in store.log()] == [False, True]


def test_verify_now_catches_a_device_that_lies_B07(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    castore.save({"w": torch.zeros(100_000)}, path, step=1)
    from castore.storage.stream import StreamFile

    honest = StreamFile.finish

    def lie(self: StreamFile) -> int:
        if self.position > 100_000:  # the data pack: one 4 KiB write never reached the disk
            assert self._buffer is not None
            self._buffer[8192:12288] = bytes(4096)
        return honest(self)

    monkeypatch.setattr(StreamFile, "finish", lie)
    with pytest.raises(castore.CorruptionError, match="does not hold what was written"):
        castore.save({"w": torch.randn(100_000)}, path, step=2, verify="now")
    monkeypatch.setattr(StreamFile, "finish", honest)
    assert torch.equal(castore.load(path)["w"], torch.zeros(100_000))
    with castore.open(path) as store:
        assert len(store.log()) == 1
        assert store.gc().items == ()


def test_views_slices_and_lazy_bits_T9(path: Path) -> None:
    big = torch.randn(1_000_000)
    c = torch.tensor([1 + 2j, 3 + 4j])
    state = {
        "slice": big[:10],
        "expanded": torch.arange(12.0).view(1, 12).expand(2, -1),
        "transposed": torch.arange(60_000.0).view(200, 300).t(),
        "channels_last": torch.randn(8, 4, 30, 30).to(memory_format=torch.channels_last),
        "conj": c.conj(),
        "neg": torch._neg_view(torch.tensor([1.0, 3.0])),
        "equal1": torch.zeros(1000),
        "equal2": torch.zeros(1000),
    }
    saved = castore.save(state, path)
    assert saved.report is not None
    assert saved.report.logical_bytes < 800_000  # the slice costs 40 bytes
    loaded = castore.load(path)
    for key, value in state.items():
        assert raw(loaded[key]) == raw(value), key
    loaded["expanded"].add_(1)
    loaded["equal1"].add_(1)
    assert torch.equal(loaded["equal2"], torch.zeros(1000))


def test_big_tensor_of_many_chunks_and_odd_rows(path: Path) -> None:
    with castore.open(path, create=True, chunk_size=4096) as store:
        state = {
            "many": torch.randn(300_000),  # more chunks than an entry lists
            "odd": torch.randn(77, 333),  # rows that do not divide a chunk
            "long_rows": torch.randn(3, 5000),  # rows longer than a chunk
            "t": torch.randn(333, 77).t(),
            "bf16": torch.randn(50_000).bfloat16(),
        }
        store.save(state)
        assert same(store.load(), {**state, "t": state["t"].contiguous()})
        state["odd"][76] += 1
        saved = store.save(state, step=1)
        assert saved.report is not None
        assert 0 < saved.report.new_bytes <= 4096  # one chunk


@pytest.mark.parametrize("when", ["before the link", "after the link", "after the entry"])
def test_an_interrupt_around_the_commit_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    import os

    from castore.packs.index import LmdbIndex

    state = {"w": torch.randn(100_000)}
    with castore.open(path, create=True) as store:
        store.save({"w": torch.zeros(100_000)}, step=1)
        link, add = os.link, LmdbIndex.add

        def interrupted(*args: object, **kwargs: object) -> None:
            if when == "after the link":
                link(*args, **kwargs)
            raise KeyboardInterrupt

        if when == "after the entry":
            monkeypatch.setattr(LmdbIndex, "add", interrupted)
        else:
            monkeypatch.setattr(os, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(state, step=2)
        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(LmdbIndex, "add", add)
        landed = when != "before the link"
        assert [c.step for c in store.log()] == ([2, 1] if landed else [1])
        assert torch.equal(store.load()["w"], state["w"]) is landed
        store.gc()
        assert store.fsck().ok
        assert torch.equal(store.load()["w"], state["w"]) is landed


def test_errors_pickle(path: Path) -> None:
    castore.save({"a": 1}, path)
    for act in (lambda: castore.load(path, "x"), lambda: castore.load(path / "no")):
        with pytest.raises(castore.CastoreError) as caught:
            act()
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert str(again) == str(caught.value)
        assert again.to_dict() == caught.value.to_dict()


def test_closed_store_says_so(path: Path) -> None:
    store = castore.open(path, create=True)
    store.save({"a": 1})
    store.close()
    store.close()
    with pytest.raises(castore.UsageError, match="closed"):
        store.load()
    assert castore.load(path) == {"a": 1}
