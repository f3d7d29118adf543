"""numpy: arrays, scalars, dtypes, byte order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import BadState
from castore.state import describe
from castore.state.descr import describe_dtype, parse_dtype
from tests.same import assert_same
from tests.state.harness import Memory, round_trip
from tests.strategies import arrays


@given(arrays(), st.sampled_from([4096, 8192]))
def test_any_array(array: np.ndarray[Any, Any], chunk_size: int) -> None:
    assert_same(array, round_trip(array, chunk_size))


@given(arrays())
def test_any_dtype_is_described_canonically(array: np.ndarray[Any, Any]) -> None:
    descr = describe_dtype(array.dtype)
    again = parse_dtype(descr)
    assert (repr(again), again.char) == (repr(array.dtype), array.dtype.char)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", ">u2", "?", "<c16", ">c8", "<U7", ">U3"])
@pytest.mark.parametrize("order", ["C", "F", "T", "backwards", "wide"])
def test_large_arrays_of_each_order(dtype: str, order: str) -> None:
    array = np.arange(3 * 2000).reshape(3, 2000).astype(dtype)
    array = {
        "C": array,
        "F": np.asfortranarray(array),
        "T": array.T,
        "backwards": array[::-1, ::-2],
        "wide": np.broadcast_to(array[0], (4, 2000)),
    }[order]
    loaded = round_trip(array)
    assert_same(array, loaded)
    assert loaded.flags.c_contiguous
    assert loaded.flags.writeable
    assert loaded.flags.owndata


def test_byte_order_is_part_of_the_type_and_not_of_the_bytes() -> None:
    big, little = np.arange(3000, dtype=">f4"), np.arange(3000, dtype="<f4")
    memory = Memory()
    memory.save(little)
    chunks = dict(memory.chunks)
    memory.save(big)
    assert memory.chunks == chunks


def test_nan_payloads_and_odd_bools() -> None:
    codes = np.array([0x7FA00001, 0xFFC12345, 0x7F800001, 1] * 200, ">u4")
    state = [codes.view(">f4"), codes.view(">f4")[::-1], codes.view("<f4"), codes.view(">c8")[::-1]]
    state.append(np.array([0, 1, 2, 255], "u1").view(bool)[::-1])
    assert_same(state, round_trip(state))


def test_padding_is_not_part_of_the_value() -> None:
    dtype = np.dtype([("a", "i1"), ("b", "<i4")], align=True)
    zero, noise = np.zeros(100, dtype), np.full(800, 0xEE, "u1").view(dtype)
    noise["a"], noise["b"] = 0, 0
    assert Memory().save(zero) == Memory().save(noise)


def test_T10_A36_scalars_keep_their_types() -> None:
    state = [np.float64(1.5), np.int32(3), np.str_("x"), np.bool_(1), np.longlong(3), np.int64(3)]
    state += [np.datetime64("2026-01-01T00:00", "25s"), np.timedelta64(3, "ns"), np.str_("a\0")]
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert type(loaded[4]) is np.longlong
    assert_same({np.int64(3): 1, np.str_("k"): 2}, round_trip({np.int64(3): 1, np.str_("k"): 2}))


def test_arrays_in_one_memory_are_tied() -> None:
    a = np.arange(2000)
    state = {"a": a, "b": a, "view": a[:], "part": a[:9], "other": a.copy(), "big": a.view(">i8")}
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert loaded["a"] is loaded["b"] is loaded["view"]
    loaded["a"][0] = 5
    assert loaded["part"][0] == loaded["other"][0] == 0
    big = np.arange(2000).astype(">i8")
    assert_same([big, big], round_trip([big, big]))


def test_no_item_size() -> None:
    state = [np.ndarray((3,), "<U0"), np.ndarray((2, 0), "|V0"), np.zeros(2, [("a", "<U0")])]
    assert_same(state, round_trip(state))


class Custom(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.array([None]), "dtype"),
        (np.zeros(3, np.longdouble), "its layout differs between machines"),
        (np.longdouble(3), "its layout differs between machines"),
        (np.zeros(3).view(Custom), "numpy.asarray"),
        (np.ma.masked_array([1, 2], [0, 1]), "value.data and value.mask"),
        (np.rec.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), "numpy.ndarray"),
        (np.array(["a", "b"], np.dtypes.StringDType()), "astype"),
        (np.zeros(2, np.dtype("f4", metadata={"a": 1})), "metadata"),
        (np.zeros(2, np.dtype([(("title", "a"), "f4")])), "titles"),
        (np.zeros(2, [("a", "f4")])[0], "structured numpy scalar"),
        (np.zeros(2, np.dtype((np.record, [("a", "f4")]))), "numpy.void"),
        (np.str_("x" * 20_000), "numpy scalar of 80000 bytes"),
        (np.dtype("f4"), "dtype.str"),
        (np.random.default_rng(), "bit_generator.state"),
        (np.random.RandomState(), "get_state"),
        (np.float32, "code is never kept"),
    ],
)
def test_refused_with_advice(value: Any, what: str) -> None:
    with pytest.raises(BadState) as caught:
        describe({"a": [value]}, 4096)
    assert caught.value.path == "a/0"
    assert what in str(caught.value)


def test_overlapping_fields_are_refused() -> None:
    spec = {"names": ["x", "y"], "formats": ["<i4", "<i2"], "offsets": [0, 2], "itemsize": 4}
    with pytest.raises(BadState, match="overlap"):
        describe(np.zeros(2, np.dtype(spec)), 4096)


def test_memmap_is_refused(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", dtype="f4", mode="w+", shape=(3,))
    with pytest.raises(BadState, match=r"numpy.memmap; save numpy.array\(value\)"):
        describe({"a": mapped}, 4096)
