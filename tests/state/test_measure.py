"""Numbers of tensors and arrays, against torch and numpy doing the same their way."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from castore.model.encoding import EncodingError
from castore.state.dtypes import DENSE
from castore.state.measure import Difference, Items, Moments, compare, items_of, measure, root
from tests.same import raw
from tests.strategies import tensor_of

#: Every dtype that has numbers, and those that are bits alone.
NUMBERS = [
    d for d in DENSE.values()
    if items_of("tensor", d.name, d.itemsize).kind != "opaque"
]  # fmt: skip
OPAQUE = [d for d in DENSE.values() if d not in NUMBERS]


def double(tensor: torch.Tensor) -> torch.Tensor:
    """The values as 64-bit floats, complex ones as pairs, by torch."""
    if tensor.dtype is torch.complex32:
        return tensor.view(torch.float16).reshape(-1, 2).to(torch.float64)
    if tensor.is_complex():
        return torch.view_as_real(tensor).to(torch.float64).reshape(-1, 2)
    return tensor.to(torch.float64).reshape(-1)


def finite_rows(values: torch.Tensor) -> torch.Tensor:
    finite = torch.isfinite(values)
    return finite.all(dim=1) if values.ndim == 2 else finite


@st.composite
def of_bytes(draw: st.DrawFn, many: int = 1) -> tuple[Any, list[torch.Tensor]]:
    entry = draw(st.sampled_from(NUMBERS))
    n = draw(st.integers(1, 40))
    size = n * entry.itemsize
    data = [draw(st.binary(min_size=size, max_size=size)) for _ in range(many)]
    return entry, [tensor_of(entry.dtype, (n,), d) for d in data]


def close(a: float | None, b: float, scale: float = 0.0) -> bool:
    assert a is not None
    return a == b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12 * scale)


def halved(items: Items, *pieces: bytes) -> list[tuple[bytes, ...]]:
    cut = len(pieces[0]) // items.itemsize // 3 * items.itemsize
    return [tuple(p[:cut] for p in pieces), tuple(p[cut:] for p in pieces)]


@given(of_bytes())
def test_moments_are_torchs(drawn: tuple[Any, list[torch.Tensor]]) -> None:
    entry, (tensor,) = drawn
    items = items_of("tensor", entry.name, entry.itemsize)
    values = double(tensor)
    finite = values[finite_rows(values)]
    for found in (
        measure(items, raw(tensor)),
        sum((measure(items, *piece) for piece in halved(items, raw(tensor))), Moments()),
    ):
        assert (found.items, found.finite) == (len(values), len(finite))
        nans = torch.isnan(values)
        nan = int((nans.any(dim=1) if values.ndim == 2 else nans).sum())
        assert (found.nan, found.inf) == (nan, len(values) - len(finite) - nan)
        zero = values == 0
        assert found.zeros == int((zero.all(dim=1) if values.ndim == 2 else zero).sum())
        if not len(finite):
            assert found.mean is found.std is found.low is found.largest is None
            continue
        # In a range where torch does not overflow: castore's must not need that.
        scale = float(finite.abs().max()) or 1.0
        near = finite / scale
        mean = np.atleast_1d(near.mean(dim=0).numpy()) * scale
        assert all(close(a, b, scale) for a, b in zip(found.mean or (), mean, strict=True))
        spread = near - near.mean(dim=0)
        std = math.sqrt(float((spread * spread).sum()) / len(near)) * scale
        assert close(found.std, std, scale)
        norm = math.sqrt(float((near * near).sum()))
        assert close(root(found.squares) / scale, norm) or norm * scale == math.inf
        if values.ndim == 1 and tensor.is_floating_point():
            assert (found.low, found.high) == (float(finite.min()), float(finite.max()))
        elif values.ndim == 1:
            exact = [int(v) for v in tensor.tolist()]
            assert (found.low, found.high) == (min(exact), max(exact))
            assert int(found.sums[0]) == sum(exact)
        else:
            assert found.low is found.high is None


@given(of_bytes(many=2))
def test_differences_are_torchs(drawn: tuple[Any, list[torch.Tensor]]) -> None:
    entry, (a, b) = drawn
    b = torch.where(torch.arange(len(b)) % 3 == 0, a.view(b.dtype), b) if _can_where(b) else b
    items = items_of("tensor", entry.name, entry.itemsize)
    x, y = double(a), double(b)
    both = finite_rows(x) & finite_rows(y)
    x, y = x[both], y[both]
    pairs = [raw(a)[i : i + entry.itemsize] != raw(b)[i : i + entry.itemsize]
             for i in range(0, len(raw(a)), entry.itemsize)]  # fmt: skip
    for found in (
        compare(items, raw(a), raw(b)),
        sum((compare(items, *p) for p in halved(items, raw(a), raw(b))), Difference()),
    ):
        assert (found.items, found.changed) == (len(pairs), sum(pairs))
        assert found.finite == len(x)
        assert found.nan == tuple(_nans(double(t)) for t in (a, b))
        if not len(x):
            assert found.largest is None
            continue
        scale = max(float(x.abs().max()), float(y.abs().max())) or 1.0
        change = y / scale - x / scale
        l2 = math.sqrt(float((change * change).sum()))
        tolerance = 1.0 if entry.name in ("int64", "uint64") else 0.0  # torch's lose digits there
        assert close(root(found.squares) / scale, l2, tolerance) or l2 * scale == math.inf
        base = math.sqrt(float((x / scale * (x / scale)).sum()))
        assert close(root(found.base) / scale, base) or base * scale == math.inf
        sizes = change.norm(dim=1) if change.ndim == 2 else change.abs()
        assert found.largest is not None
        largest = float(sizes.max())
        assert close(found.largest / scale, largest, tolerance) or largest * scale == math.inf


def _can_where(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64)


def _nans(values: torch.Tensor) -> int:
    nans = torch.isnan(values)
    return int((nans.any(dim=1) if values.ndim == 2 else nans).sum())


@pytest.mark.parametrize("entry", NUMBERS, ids=lambda d: d.name)
def test_every_bit_pattern_of_a_byte_reads_as_torch_reads_it(entry: Any) -> None:
    """All values of the 8-bit dtypes, 256 of the others."""
    data = bytes(range(256)) * entry.itemsize
    tensor = tensor_of(entry.dtype, (256,), data)
    found = measure(items_of("tensor", entry.name, entry.itemsize), data)
    values = double(tensor)
    finite = values[finite_rows(values)]
    assert found.finite == len(finite)
    if values.ndim == 1:
        assert found.low is not None
        assert found.high is not None
        least, most = float(finite.min()), float(finite.max())
        assert (float(found.low), float(found.high)) == (least, most)


def test_blocks_add_up_to_the_whole() -> None:
    x = torch.randn(700_000, dtype=torch.float32) + 1000
    y = x + torch.randn_like(x)
    items = items_of("tensor", "float32", 4)
    found = measure(items, raw(x))
    assert close(found.std, float(x.double().std(correction=0)))
    assert close(found.mean[0] if found.mean else None, float(x.double().mean()))
    change = compare(items, raw(x), raw(y))
    assert close(root(change.squares), float((y.double() - x.double()).norm()))
    assert close(root(change.base), float(x.double().norm()))


def test_the_largest_doubles_neither_overflow_nor_vanish() -> None:
    items = items_of("tensor", "float64", 8)
    huge = np.array([1.7e308, -1.7e308, 1.7e308, 1.7e308])
    found = measure(items, huge.tobytes())
    assert close(found.mean[0] if found.mean else None, 0.85e308)
    assert close(found.std, 1.7e308 * math.sqrt(0.75))
    change = compare(items, huge.tobytes(), (-huge).tobytes())
    assert root(change.squares) == math.inf  # beyond the floats, and said so
    assert change.largest == math.inf
    assert (change.finite, change.nan, change.inf) == (4, (0, 0), (0, 0))
    tiny = np.array([5e-324, 0.0, 0.0, 1e-300])
    assert root(measure(items, tiny.tobytes()).squares) == 1e-300
    moved = tiny.copy()
    moved[1] = 1e-200
    far = np.array([1e300, 0.0, 0.0, 0.0]) + moved
    near = compare(items, np.array([1e300, 0.0, 0.0, 0.0]).tobytes(), far.tobytes())
    assert close(root(near.squares), 1e-200)


def test_near_integers_far_from_zero_keep_their_spread() -> None:
    x = np.array([2**62 + i for i in range(5)], np.int64)
    found = measure(items_of("ndarray", "<i8", 8), x.tobytes())
    assert close(found.std, math.sqrt(2.0))
    assert int(found.sums[0]) == 5 * 2**62 + 10
    top = np.array([2**64 - 1, 0], np.uint64)
    assert measure(items_of("ndarray", "<u8", 8), top.tobytes()).high == 2**64 - 1
    change = compare(items_of("ndarray", "<u8", 8), top.tobytes(), top[::-1].tobytes())
    assert change.largest == 2**64 - 1
    low = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)
    assert compare(items_of("ndarray", "<i8", 8), *(v.tobytes() for v in low)).largest == 2**64 - 1


def test_bits_that_differ_count_as_changed_whatever_the_values() -> None:
    items = items_of("tensor", "float32", 4)
    a = np.array([0.0, np.nan, 1.0, np.inf], np.float32)
    b = np.array([-0.0, np.nan, 1.0, np.inf], np.float32)
    b.view(np.uint32)[1] ^= 1  # another NaN
    found = compare(items, a.tobytes(), b.tobytes())
    assert (found.changed, found.finite, found.nan, found.inf) == (2, 2, (1, 1), (1, 1))
    assert root(found.squares) == 0.0


@given(st.integers(1, 9), st.integers(0, 20), st.binary(min_size=60, max_size=60), st.data())
def test_opaque_items_that_a_border_cuts_are_counted_once(
    itemsize: int, first: int, before: bytes, data: st.DataObject
) -> None:
    whole = len(before) // itemsize * itemsize
    before = before[:whole]
    after = bytearray(before)
    for at in data.draw(st.lists(st.integers(0, whole - 1), max_size=8)):
        after[at] ^= 1
    items = Items(itemsize, "opaque")
    cuts = sorted({0, min(first, whole), min(first * 2, whole), whole})
    total = Difference()
    for start, stop in pairwise(cuts):
        total += compare(items, before[start:stop], bytes(after[start:stop]), start)
    differ = sum(
        before[i : i + itemsize] != after[i : i + itemsize] for i in range(0, whole, itemsize)
    )
    assert total.changed + len(total.cut) == differ
    assert total.items == whole // itemsize


def test_a_size_that_is_not_the_dtypes_is_refused() -> None:
    with pytest.raises(EncodingError, match="an item of 2 bytes where float32 has 4"):
        items_of("tensor", "float32", 2)
    with pytest.raises(EncodingError):
        items_of("ndarray", ">f8", 4)
    with pytest.raises(EncodingError, match="not whole items"):
        measure(items_of("tensor", "float32", 4), b"123456")
    with pytest.raises(EncodingError, match="cannot be compared"):
        compare(items_of("tensor", "uint8", 1), b"12", b"1")
    assert OPAQUE
    for entry in OPAQUE:
        with pytest.raises(EncodingError, match="no numbers"):
            measure(items_of("tensor", entry.name, entry.itemsize), b"\0" * 16)
