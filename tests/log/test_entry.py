"""Log entries: every kind comes back; no flipped bit goes unseen or gives another entry."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from castore.errors import UnsupportedFeature
from castore.log.entry import (
    ENTRY_BLOCK,
    FIRST_PREV,
    Add,
    Change,
    Entry,
    EntryError,
    entry_name,
    pack_packs,
    parse_change,
    parse_file,
    unpack_packs,
)
from castore.model.digest import Digest
from castore.model.encoding import decode, encode
from castore.model.packinfo import PackInfo
from tests.golden.cases import ADD, CHANGES, FOREIGN, META, OWN, entry
from tests.golden.spec import digest, hash_in, mp
from tests.log.changes import BY_KIND, STORE, changes, entries, packs


def same(a: Any, b: Any) -> bool:
    """Equal, NaN and types included."""
    return repr(a) == repr(b)


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.tag)
def test_every_kind_of_change_comes_back(kind: type[Change]) -> None:
    @settings(max_examples=settings().max_examples // 3)
    @given(BY_KIND[kind])
    def check(change: Change) -> None:
        plain = change.plain()
        assert plain[0] == kind.tag
        assert same(parse_change(decode(encode(plain))), change)

    check()


@given(entries)
def test_entries_come_back(made: Entry) -> None:
    data = made.render()
    parsed, problems = parse_file(data, made.seq, STORE)
    assert problems == []
    assert same(parsed, made)
    assert parsed.digest() == made.digest() == hash_in("castore 1 log entry", made.record())
    assert len(data) % (2 * ENTRY_BLOCK) == 0
    assert data[: len(data) // 2] == data[len(data) // 2 :]


@given(st.lists(packs, max_size=8).map(tuple))
def test_packs_come_back_in_their_order(found: tuple[PackInfo, ...]) -> None:
    """Equal folds must come from an entry as made and as read: the order is part of it."""
    assert unpack_packs(decode(encode(pack_packs(found)))) == found


def test_packs_of_one_save_name_it_once() -> None:
    assert pack_packs((OWN, META, FOREIGN)) == [
        [
            OWN.save,
            [["r00000-000.data.pack", OWN.id, 8192], ["r00000-000.meta.pack", META.id, 4096]],
        ],
        [FOREIGN.save, [["r00003-012.data.pack", FOREIGN.id, 1 << 33]]],
    ]  # fmt: skip


# -- every bit -----------------------------------------------------------------------------------

# One block a copy, and an entry that needs two.
SHORT = entry(CHANGES["tag"])
LONG = entry(*(change for change in CHANGES.values() for _ in range(3)))


def bits_to_flip(made: Entry) -> list[int]:
    """Bits of head, record and padding in both copies: all that hold something, of a short one."""
    half = len(made.render()) * 4
    used = (48 + len(made.record())) * 8
    chosen = random.Random(7)
    held = list(range(used)) if used < 4000 else sorted(chosen.sample(range(used), 100))
    padding = [chosen.randrange(used, half) for _ in range(30)]
    return [half * copy + bit for copy in (0, 1) for bit in (*held, *padding)]


@pytest.mark.parametrize("made", [SHORT, LONG], ids=["one block", "two blocks"])
def test_a_flipped_bit_gives_the_same_entry_and_a_problem(made: Entry) -> None:
    data = made.render()
    for bit in bits_to_flip(made):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        parsed, problems = parse_file(bytes(flipped), 7, STORE)
        assert problems, f"bit {bit} went unseen"
        assert parsed == made


def test_a_bit_flipped_in_both_copies_is_an_error() -> None:
    data = SHORT.render()
    half = len(data) // 2
    used = 48 + len(SHORT.record())
    for at in range(used):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        flipped[half + (at * 31) % used] ^= 1 << ((at + 3) % 8)
        with pytest.raises(EntryError):
            parse_file(bytes(flipped), 7, STORE)


@pytest.mark.parametrize("made", [SHORT, LONG], ids=["one block", "two blocks"])
def test_files_of_another_length(made: Entry) -> None:
    data = made.render()
    half = len(data) // 2
    for cut in (0, 1, 47, 48, 100, half - 1):
        with pytest.raises(EntryError):
            parse_file(data[:cut], 7, STORE) if cut < 48 + len(made.record()) else parse_file(
                b"x" + data[1:cut], 7, STORE
            )
    for other in (data[:half], data[:-1], data[: half + 10], data + bytes(4096), data * 2):
        parsed, problems = parse_file(other, 7, STORE)
        assert (parsed, bool(problems)) == (made, True)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_an_entry_error(data: bytes, magic: bool) -> None:
    with pytest.raises(EntryError):
        parse_file(b"castlog\x01" + data if magic else data, 7, STORE)


@given(st.data())
def test_mutated_files_are_the_entry_or_an_error(data: st.DataObject) -> None:
    file = bytearray(SHORT.render())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from([0, 4096]))
        at = start + data.draw(st.integers(0, 48 + len(SHORT.record())))
        file[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    try:
        parsed, problems = parse_file(bytes(file), 7, STORE)
    except EntryError:
        return
    assert parsed == SHORT
    assert bool(problems) is (bytes(file) != SHORT.render())


# -- entries that are not what they should be, though their digests fit --------------------------


def file_of(record: bytes) -> bytes:
    head = b"castlog\x01" + struct.pack("<Q", len(record)) + hash_in("castore 1 log entry", record)
    copy = head + record
    return copy.ljust(-(-len(copy) // 4096) * 4096, b"\0") * 2


FIELDS: dict[str, Any] = {
    "act": bytes(16), "changes": [], "prev": digest(1), "seq": 7, "store": STORE, "time": 5,
    "why": "save", "writer": "pid 1",
}  # fmt: skip


def file_with(**fields: Any) -> bytes:
    return file_of(mp({**FIELDS, **fields}))


def test_the_sample_is_sound() -> None:
    parsed, problems = parse_file(file_with(), 7, STORE)
    assert (parsed.seq, parsed.changes, problems) == (7, (), [])


@pytest.mark.parametrize(
    "fields",
    [
        {"seq": 6}, {"seq": "7"}, {"seq": 7.0}, {"seq": None}, {"prev": bytes(31)},
        {"prev": "x" * 32}, {"prev": [1] * 32}, {"prev": None}, {"act": "text"}, {"act": None},
        {"time": "now"}, {"time": None}, {"writer": b"x"}, {"why": None}, {"store": "text"},
        {"store": bytes(16)}, {"store": b""}, {"changes": None}, {"changes": {}},
        {"changes": "tag"}, {"changes": [[]]}, {"changes": [None]}, {"changes": [[5]]},
        {"changes": ["tag"]}, {"extra": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_odd_entries_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(EntryError):
        parse_file(file_of(mp(dict(sorted({**FIELDS, **fields}.items())))), 7, STORE)


def test_an_entry_without_a_field_is_refused() -> None:
    for name in FIELDS:
        record = mp({k: v for k, v in FIELDS.items() if k != name})
        with pytest.raises(EntryError):
            parse_file(file_of(record), 7, STORE)


def test_a_record_that_is_not_canonical_is_refused() -> None:
    record = mp(FIELDS)
    for other in (
        record.replace(b"\xa3seq\x07", b"\xa3seq\xcc\x07"),
        mp(dict(reversed(FIELDS.items()))),
        record + b"\xc0",
    ):
        assert other != record
        with pytest.raises(EntryError):
            parse_file(file_of(other), 7, STORE)


def test_a_number_that_is_a_truth_value_is_refused() -> None:
    with pytest.raises(EntryError):
        parse_file(file_with(seq=True), 1, STORE)
    with pytest.raises(EntryError):
        parse_file(file_with(time=False), 7, STORE)


@pytest.mark.parametrize("kind", ["", "adds", "rebase", "ADD", "\x00"])
def test_an_unknown_kind_of_change_is_told_from_damage(kind: str) -> None:
    with pytest.raises(UnsupportedFeature, match="newer castore"):
        parse_file(file_with(changes=[[kind, 1, 2]]), 7, STORE)


PACKS = [["save", [["r00000-000.data.pack", digest(1), 4096]]]]
MALFORMED: list[list[Any]] = [
    ["tag"], ["tag", "x"], ["tag", "x", digest(1), 0], ["tag", b"x", digest(1)],
    ["tag", None, digest(1)], ["tag", "x", bytes(31)], ["tag", "x", "x" * 32], ["tag", "x", 5],
    ["tag", "x", [0] * 32], ["branch", 5, None], ["unpin", None], ["unpin", 1],
    ["letgo", None], ["letgo", digest(1)], ["letgo", [None]], ["letgo", [b"short"]],
    ["letgo", [[1] * 32]], ["letgo", {}], ["unlist", "main", [5]], ["unlist", None, []],
    ["condemn", "path"], ["condemn", [b"path"]], ["condemn", [None]], ["condemn", {}],
    ["quarantine", [1]], ["verify", [["x"]]], ["features", ["x"]], ["features", None, []],
    ["features", [1], []], ["pin", "x", None, []], ["pin", "x", digest(1), "owner"],
    ["pin", "x", digest(1), None], ["window", 5, []], ["window", "main", {}],
    ["window", "main", "policy"], ["damage", None, [], []], ["damage", "x", [bytes(3)], []],
    ["lean", "x", [1]], ["lost", "5", digest(1), []], ["lost", True, digest(1), []],
    ["lost", 5, None, []], ["lost", 5, digest(1), None], ["lost", 5, digest(1), "x"],
    ["heal", [digest(1)], []], ["heal", [digest(1)], None], ["heal", [digest(1)], {}],
    ["heal", [digest(1)], PACKS * 2], ["heal", [digest(1)], [["save", []]]],
    ["heal", [digest(1)], [["save", [["x", digest(1)]]]]], ["heal", [digest(1)], "packs"],
    ["replace", [], [["save", [["x", digest(1), -1]]]]], ["replace", [], [[5, []]]],
    ["replace", [], [["save", [["x", digest(1), True]]]]], ["replace", [], [[]]],
    ["replace", [], [["save", [["x", digest(1), "1"]]]]], ["replace", [], [["save"]]],
    ["replace", [], [["save", [["x", bytes(5), 1]]]]], ["replace", [], [["save", None]]],
    ["replace", [], [["save", [[5, digest(1), 1]]]]], ["replace", [], {"ab": 1}],
    ["replace", [], [["save", [["x", [0] * 32, 1]]]]], ["replace", [], [{"a": 1, "b": 2}]],
    ["replace", [], [["save", {"abc": 1}]]], ["replace", [], ["ab"]], ["replace", [], [["ab", ""]]],
]  # fmt: skip


@pytest.mark.parametrize("plain", MALFORMED, ids=lambda p: repr(p)[:70])
def test_malformed_changes_are_refused(plain: list[Any]) -> None:
    with pytest.raises(EntryError):
        parse_change(plain)
    with pytest.raises(EntryError):
        parse_file(file_with(changes=[plain]), 7, STORE)


@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("value", [None, 5, -1, "x", b"x", [], True, 1.5, digest(1)])
def test_an_add_with_one_odd_field_is_an_add_or_refused(at: int, value: Any) -> None:
    plain = decode(encode(ADD.plain()))
    plain[at] = value
    try:
        change = parse_change(plain)
    except EntryError:
        return
    assert isinstance(change, Add)
    assert encode(change.plain()) == encode(plain)


@pytest.mark.parametrize(
    ("save", "name"),
    [
        ("..", "x"), ("save", ".."), ("save", "../../../etc/passwd"), ("", "x"), ("save", ""),
        ("/etc", "passwd"), ("save/more", "x"), ("save", "a/b"), ("save", "a\0b"), (".hidden", "x"),
        ("save", "x" * 300), ("save", "ключ"), ("save\n", "x"), ("sa ve", "x"),
    ],
)  # fmt: skip
def test_packs_outside_the_store_are_refused(save: str, name: str) -> None:
    """A hostile log must end in a named error where it is read, and not in the storage's."""
    plain = decode(encode(ADD.plain()))
    plain[-1] = [[save, [[name, digest(1), 4096]]]]
    with pytest.raises(EntryError):
        parse_change(plain)


@pytest.mark.parametrize("depth", [10, 100, 165, 250, 330, 490])
def test_nested_policies_end_in_an_error_and_not_in_a_crash(depth: int) -> None:
    policy: Any = ["keep_last", 3]
    for _ in range(depth):
        policy = [policy]
    try:
        parsed, _ = parse_file(file_with(changes=[["window", "main", policy]]), 7, STORE)
    except EntryError:
        return
    assert decode(parsed.record())["changes"] == [["window", "main", policy]]


def test_hostile_lengths_allocate_nothing() -> None:
    def with_length(n: int) -> bytes:
        return b"castlog\x01" + struct.pack("<Q", n) + bytes(32) + bytes(8192)

    claims = b"\xdd" + struct.pack(">I", 60_000)
    nested = file_of((claims * 900).ljust(60_000, b"\0"))
    tracemalloc.start()
    for data in (with_length(2**63), with_length(2**64 - 1), with_length(8193), nested):
        with pytest.raises(EntryError):
            parse_file(data, 7, STORE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


json_like = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2**40), st.text(max_size=3),
        st.sampled_from([digest(1), b"", "main", OWN.path]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.sampled_from([kind.tag for kind in BY_KIND]), st.lists(json_like, max_size=5))
def test_any_change_is_itself_or_an_entry_error(tag: str, rest: list[Any]) -> None:
    plain = [tag, *rest]
    try:
        change = parse_change(plain)
    except EntryError:
        return
    assert encode(change.plain()) == encode(plain)


@given(changes, st.data())
def test_a_change_with_something_replaced_is_itself_or_an_entry_error(
    change: Change, data: st.DataObject
) -> None:
    plain = decode(encode(change.plain()))
    place, at = plain, data.draw(st.integers(1, len(plain) - 1)) if len(plain) > 1 else 0
    while isinstance(place[at], list) and place[at] and data.draw(st.booleans()):
        place, at = place[at], data.draw(st.integers(0, len(place[at]) - 1))
    place[at] = data.draw(json_like)
    try:
        found = parse_change(plain)
    except (EntryError, UnsupportedFeature):
        return
    assert encode(found.plain()) == encode(plain)


def test_names_and_first_prev() -> None:
    assert entry_name(7) == "log/000000000007"
    assert Digest(bytes(32)) == FIRST_PREV
