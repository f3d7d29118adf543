"""Key paths: every key of a mapping has a name of its own, and a text key can be had back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from castore.model.keypath import display, escape, join, names, split

any_text = st.one_of(
    st.text(st.characters(), max_size=6),  # control characters and lone surrogates too
    st.text(st.sampled_from("~/01x()\"'\\ \n\x00\x7f\ud800é\u202e"), max_size=6),
    st.sampled_from(["1", "-1", "007", "~(1)", '~("")', "~0", "~1", "a/b", "\\x00", "\x00", "_"]),
)
scalars = st.one_of(
    any_text,
    st.integers(-3, 12),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
    st.binary(max_size=3),
    st.sampled_from([1, True, 1.0, "1", b"1", (1,), 0, -0.0, False, "True", "None", None]),
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)


def typed(key: Any) -> Any:
    """What a key is: True, 1 and 1.0 are three."""
    if isinstance(key, tuple):
        return tuple(map(typed, key))
    return (type(key).__name__, repr(key))


@given(st.lists(keys, max_size=12, unique_by=typed))
@example([1, "1"])
@example(["1", 1])
@example([True, 1, 1.0, "True", "1.0"])
@example(["", '~("")', "~0(1)", ()])
@example(["\x00", "\\x00", "\\\\x00"])
@example([1, "1", "~(1)", b"1", (1,)])
@example(["\ud800", "\\ud800"])
@example(["a/b", "a~1b", "a~01b"])
@example([float("nan"), -float("nan"), "nan", 10**400, "~(nan)", "~(nan)~1"])
def test_every_key_has_a_name_of_its_own(found: list[Any]) -> None:
    made = names(found)
    assert len(made) == len(found)
    assert len(set(made)) == len(made)
    for name in made:
        assert name
        assert "/" not in name  # it is one component
        assert name.isprintable()  # and safe to show
        name.encode()
    assert split(join(made)) == made


@given(st.lists(keys, max_size=8, unique_by=typed))
def test_names_are_what_the_page_says(found: list[Any]) -> None:
    made = dict(zip(map(typed, found), names(found), strict=True))
    plain = [k for k in found if type(k) is str and k and k.isprintable()]
    for key in found:
        name = made[typed(key)]
        if type(key) is str and key in plain:
            assert name == key.replace("~", "~0").replace("/", "~1")
        elif type(key) is str and key:
            assert name == escape(key) or name.startswith("~(")
        elif type(key) is int and str(key) not in found:
            assert name == str(key)
        else:
            assert name.startswith("~(")
            assert name.rstrip("~0123456789").endswith(")")


def test_examples_of_the_page() -> None:
    assert names(["layers.0.weight"]) == ["layers.0.weight"]
    assert names([0, 1]) == ["0", "1"]
    assert names([1, "1"]) == ["~(1)", "1"]
    assert names(["1", 1]) == ["1", "~(1)"]
    assert names(["", None, 1.5, (1, "a"), True, b"x"]) == [
        '~("")', "~(None)", "~(1.5)", "~((1, 'a'))", "~(True)", "~(b'x')",
    ]  # fmt: skip
    assert names(["a/b", "a~b", "~1", "a\nb"]) == ["a~1b", "a~0b", "~01", "a\\x0ab"]
    assert names([("a/b",)]) == ["~(('a~1b',))"]
    assert names([]) == []


def unescape(name: str) -> str:
    """RFC 6901."""
    return name.replace("~1", "/").replace("~0", "~")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=20))
@example("~1")
@example("~01/~")
def test_printable_text_comes_back(text: str) -> None:
    escaped = escape(text)
    assert "/" not in escaped
    if text.isprintable():
        assert unescape(escaped) == text


@given(st.text(st.characters(), max_size=20))
def test_escaped_text_can_be_shown(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable()
    escaped.encode()
    assert "/" not in escaped


@given(
    st.text(st.sampled_from("~/01ab"), max_size=8), st.text(st.sampled_from("~/01ab"), max_size=8)
)
def test_different_texts_have_different_names(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) is (one == other)


@pytest.mark.parametrize(
    ("path", "parts"),
    [("", []), ("a", ["a"]), ("a/b~1c", ["a", "b~1c"]), ("0/~(1)", ["0", "~(1)"])],
)
def test_paths_are_split_and_joined(path: str, parts: list[str]) -> None:
    assert split(path) == parts
    assert join(parts) == path


def test_the_root_has_a_name_for_messages() -> None:
    assert display("") == "(the root)"
    assert display("model/x") == "model/x"
