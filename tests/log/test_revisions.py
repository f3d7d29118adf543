"""The revision grammar: what is parsed prints as it was; what is no revision is a BadRevision."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from castore.errors import (
    AmbiguousRevision,
    BadRevision,
    CheckpointGone,
    NoCheckpoint,
    UsageError,
)
from castore.log.entry import Change, Entry, LetGo, SetBranch, SetTag, Unlisted
from castore.log.fold import Fold
from castore.log.log import Log
from castore.log.names import MAX_NAME, check_name
from castore.log.revisions import Revision, parse_revision, resolve
from castore.model.digest import Digest
from castore.storage.local import LocalStorage
from tests.log.changes import STORE
from tests.log.test_fold import adds

# -- names ---------------------------------------------------------------------------------------


def accepted(name: Any) -> bool:
    try:
        assert check_name(name) == name
    except UsageError as e:
        assert repr(name) in e.message
        return False
    return True


@pytest.mark.parametrize(
    "name",
    ["main", "retry/one", "a", "ключ", "feature/x.y", "v1.0", "@x", "x@", "a@b", "a-b", "run_1",
     "abcde", "ABCDEF", "deadbeefx", "0", "x" * MAX_NAME, "a.lockx", "MAIN", "émile", "a{b}"],
)  # fmt: skip
def test_names_that_git_would_take(name: str) -> None:
    assert accepted(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a..b", ".a", "a/.b", "a.", "a/", "/a", "a//b", "a.lock", "a.lock/b", "-a", "@",
     "a@{b", "a b", "a~b", "a^b", "a:b", "a?b", "a*b", "a[b", "a\\b", "a\x7fb", "a\x00b", "a\nb",
     "abcdef", "0123456789", "f" * 64, "x" * (MAX_NAME + 1), "é" * 101, "\ud800", None, 5, b"main",
     "step@step=5", "main@step=", "@step=5"],
    ids=repr,
)  # fmt: skip
def test_names_that_are_refused(name: Any) -> None:
    assert not accepted(name)


names = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.text(st.sampled_from("ab/.@{}=step-~^:0"), min_size=1, max_size=12),
    st.sampled_from(["main", "retry/one", "a@b", "x@step", "a@step5", "@step", "st@ep=1"]),
)


@given(names)
@example("a@step=5")
@example("a@step=")
@example("a@{0}")
def test_every_name_that_may_be_given_can_be_spoken_of(name: str) -> None:
    if accepted(name):
        assert parse_revision(name) == Revision(name)
        assert parse_revision(f"{name}~2") == Revision(name, back=2)
        assert parse_revision(f"{name}@{{3}}") == Revision(name, ("moves", 3))
        assert parse_revision(f"{name}@step=-4~1:a/b") == Revision(name, ("step", -4), 1, "a/b")


# -- parsing -------------------------------------------------------------------------------------

revisions = st.builds(
    Revision,
    base=names.filter(accepted),
    at=st.one_of(
        st.none(),
        st.tuples(st.just("moves"), st.integers(0, 10**9)),
        st.tuples(st.just("step"), st.integers(-(10**12), 10**12)),
    ),
    back=st.integers(0, 10**6),
    path=st.one_of(st.none(), st.text(max_size=12)),
)


@given(revisions)
def test_what_is_printed_is_parsed(revision: Revision) -> None:
    assert parse_revision(str(revision)) == revision


@given(
    st.one_of(
        st.text(max_size=20),
        st.text(st.characters(), max_size=8),
        st.text(st.sampled_from("main~@{}=step:0123456789-^ ٣²"), max_size=16),
    )
)
@example("main~" + "9" * 5000)
@example("main@{" + "9" * 5000 + "}")
@example("main@step=" + "9" * 5000)
@example("main@step=-" + "9" * 5000)
@example("main~٣")
@example("main~²")
@example("main@{٣}")
@example("\ud800~1")
@example("main~~~")
@example("main~0@{1}")
@example(":")
@example("~1")
@example("@{1}")
@example("")
def test_any_text_is_a_revision_or_a_bad_one(text: str) -> None:
    try:
        revision = parse_revision(text)
    except BadRevision as e:
        assert e.exit_code == 2
        return
    again = parse_revision(str(revision))
    assert again == revision
    assert revision.base
    assert revision.base in text


@pytest.mark.parametrize(
    ("text", "revision"),
    [
        ("main", Revision("main")),
        ("main~", Revision("main", back=1)),
        ("main~3", Revision("main", back=3)),
        ("main~~2", Revision("main", back=3)),
        ("main~0", Revision("main")),
        ("main@{7}", Revision("main", ("moves", 7))),
        ("main@step=1000", Revision("main", ("step", 1000))),
        ("main@step=-5~2", Revision("main", ("step", -5), 2)),
        ("4f2a9c", Revision("4f2a9c")),
        ("main:", Revision("main", path="")),
        ("main:model/layers.0.weight", Revision("main", path="model/layers.0.weight")),
        ("main~1:a~1b/~(1):c", Revision("main", back=1, path="a~1b/~(1):c")),
        ("a@b", Revision("a@b")),
    ],
)
def test_revisions_of_the_page(text: str, revision: Revision) -> None:
    assert parse_revision(text) == revision


@pytest.mark.parametrize(
    "text",
    ["", "~", "~1", ":", ":a", "@{1}", "@step=1", "main~x", "main~-1", "main@{-1}", "main@{}",
     "main@{x}", "main@{1", "main@step=", "main@step=x", "main@step=1.5", "main~1@{2}",
     "main@{1}@{2}", "main@{1}@step=3", "main@{1}x", "main~1x", "main^"],
)  # fmt: skip
def test_what_is_no_revision(text: str) -> None:
    if text == "main^":  # no suffix of ours: a name, and one that nothing can have
        assert parse_revision(text) == Revision("main^")
        return
    with pytest.raises(BadRevision):
        parse_revision(text)


# -- resolving -----------------------------------------------------------------------------------


class Store:
    """A log in memory, as far as resolving asks for one."""

    def __init__(self, storage: LocalStorage) -> None:
        self.log = Log(storage, STORE)
        self.fold = Fold()

    def entry(self, *changes: Change) -> None:
        made = self.log.append(lambda _: changes, "test")
        assert isinstance(made, Entry)
        self.fold = self.log.fold()

    def __call__(self, text: str) -> Digest:
        return resolve(parse_revision(text), self.fold, self.log).digest


def checkpoint(prefix: str, fill: str = "0") -> Digest:
    return Digest(bytes.fromhex(prefix.ljust(64, fill)))


A, B, C, D, E = (checkpoint(p) for p in ("aaaaaa1", "aaaaaa2", "bbbbbb", "cccccc", "dddddd"))


@pytest.fixture
def store(tmp_path: Any) -> Any:
    storage = LocalStorage(tmp_path)
    storage.make_folder("log")
    made = Store(storage)
    parent = None
    for step, digest in ((1, A), (5, B), (5, C), (None, D)):
        add = adds("main", digest, (), step)
        made.entry(type(add)(**{**{f: getattr(add, f) for f in add.__slots__}, "parent": parent}))
        parent = digest
    made.entry(SetTag("release", B), SetBranch("retry", C))
    yield made
    storage.close()


def test_places_on_a_branch(store: Store) -> None:
    assert store("main") == D
    assert [store(f"main~{i}") for i in range(4)] == [D, C, B, A]
    assert [store(f"main@{{{i}}}") for i in range(4)] == [D, C, B, A]
    assert store("main@step=5") == C  # the newest of that step
    assert store("main@step=5~1") == B
    assert store("main@step=1") == A
    assert store("retry") == C
    assert store("release") == B
    assert store("release~1") == A
    for text, words in (
        ("main~4", "back too far"),
        ("main@{4}", "moved 4 times"),
        ("main@step=7", "no checkpoint of step 7"),
        ("retry~1", "back too far"),
        ("release@{0}", "is a tag"),
        ("release~2", "no live parent"),
        ("nowhere", "there is no branch"),
        ("main~1000000", "back too far"),
    ):
        with pytest.raises(BadRevision, match=words):
            store(text)


def test_prefixes(store: Store) -> None:
    assert store("bbbbbb") == C
    assert store("BBBBBB0") == C
    assert store(A.hex()) == A
    assert store("aaaaaa1") == A
    assert store("bbbbbb~1") == B
    with pytest.raises(AmbiguousRevision) as e:
        store("aaaaaa")
    assert set(e.value.candidates) == {A.hex(), B.hex()}
    for text in ("bbbbb", "eeeeee", "f" * 65):
        with pytest.raises(BadRevision):
            store(text)


def test_what_was_let_go_says_when_and_why(store: Store) -> None:
    store.entry(SetTag("release", None), Unlisted("main", (B,)), LetGo((B,)))
    for text in ("main@{2}", "aaaaaa2", B.hex()):
        with pytest.raises(CheckpointGone, match=r"let go: test, by pid \d+ .* \(entry 6\)"):
            store(text)
    assert store("main~2") == A  # the list closes up
    with pytest.raises(AmbiguousRevision):
        store("aaaaaa")


def test_a_removed_branch_says_so(store: Store) -> None:
    store.entry(SetBranch("retry", None))
    with pytest.raises(BadRevision, match="was removed"):
        store("retry")
    store.entry(SetBranch("main", None), SetBranch("main", A))
    assert store("main@{0}") == A
    with pytest.raises(BadRevision, match="was removed"):
        store("main@{1}")
    assert store("main@{2}") == D


def test_an_empty_store_has_nothing_to_load(tmp_path: Any) -> None:
    storage = LocalStorage(tmp_path)
    storage.make_folder("log")
    empty = Store(storage)
    with pytest.raises(NoCheckpoint):
        empty("main")
    with pytest.raises(BadRevision):
        empty("other")
    storage.close()
