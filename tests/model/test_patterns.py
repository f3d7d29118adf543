"""Patterns over key paths, against regular expressions over whole paths."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import castore
from castore.errors import UsageError
from castore.model import keypath
from castore.model.patterns import OMITTED, WHOLE, Pattern, selection_of
from tests.reference import taken_by

_component = st.lists(st.sampled_from(["a", "b", "ab", ".", "~1", "~(1)", "*", "**"]), min_size=1)
patterns = st.lists(st.one_of(st.just("**"), _component.map("".join)), min_size=1, max_size=4).map(
    "/".join
)
paths = st.lists(st.text("ab.~1()", min_size=1, max_size=4), max_size=4).map("/".join)


@given(patterns, paths)
def test_patterns_are_what_a_regular_expression_says(pattern: str, path: str) -> None:
    assert Pattern(pattern).matches(path) == taken_by(pattern, path), (pattern, path)


@given(patterns, paths)
def test_a_selection_knows_what_can_still_match(pattern: str, path: str) -> None:
    """Where nothing is left to hope for, no longer path matches either."""
    selection = selection_of(pattern)
    assert selection is not None
    chosen = selection.root()
    for name in keypath.split(path):
        chosen = selection.inside(chosen, name)
    assert chosen.taken == taken_by(pattern, path)
    if not chosen.states and not chosen.taken:
        for more in ("a", "b/a", "ab/b/.", "~1/~(1)/a/b"):
            assert not taken_by(pattern, f"{path}/{more}" if path else more)


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("model/*", ["model/a", "model/a/deep"], ["model", "other/a", "modell/a"]),
        ("model/**", ["model/a", "model/a/b"], ["model", "modell/a"]),
        ("**/bias", ["bias", "a/bias", "a/b/bias", "a/bias/x"], ["a/bias2", "abias"]),
        ("model/**/bias", ["model/bias", "model/a/b/bias"], ["bias", "x/model/bias"]),
        ("**.weight", ["l.weight", "model/l.weight", "a/b/c.weight/x"], ["weight", "a/weight"]),
        ("model/l*.w", ["model/l0.w", "model/l.w"], ["model/l/x.w", "model/x.w"]),
        ("a**b", ["ab", "axb", "a/b", "axx/y/zb"], ["a", "b", "xa/b"]),
        ("**", ["", "a", "a/b"], []),
        ("", ["", "a", "a/b"], []),
        ("/model/", ["model", "model/a"], ["x/model"]),
        ("a~1b/~(1, 2)/~0", ["a~1b/~(1, 2)/~0"], ["a/b"]),
        ("[a].?", ["[a].?"], ["a.x"]),
    ],
)
def test_patterns_by_example(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    for path in matched:
        assert Pattern(pattern).matches(path), path
    for path in not_matched:
        assert not Pattern(pattern).matches(path), path


@given(st.lists(st.one_of(st.text(min_size=1), st.integers(), st.none(), st.floats()), min_size=1))
def test_every_key_path_is_a_pattern_that_matches_it(keys: list[object]) -> None:
    [*names] = (keypath.names([key])[0] for key in keys)
    path = keypath.join(names)
    assert Pattern(path).matches(path)


def test_what_only_takes() -> None:
    assert selection_of(None) is None
    assert selection_of("**").root() == WHOLE  # type: ignore[union-attr]
    for wrong in (3, b"a", [], ["a", 3], {"a": 1}, re.compile("a")):
        with pytest.raises(UsageError, match="only="):
            selection_of(wrong)


def test_omitted_is_one() -> None:
    assert castore.OMITTED is OMITTED
    assert repr(OMITTED) == "castore.OMITTED"
    assert not OMITTED
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps([OMITTED], protocol))[0] is OMITTED
    assert copy.deepcopy([OMITTED])[0] is OMITTED
