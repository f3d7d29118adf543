"""Sources: any range of a tensor's or array's canonical bytes, by any thread, into any buffer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from castore.model.objects import DataValue
from castore.state import describe
from castore.state.blocks import blocks
from tests.same import raw
from tests.strategies import arrays, tensors


def source_of(value: Any) -> Any:
    [data] = describe([value], 4096).data
    assert isinstance(data, DataValue)
    return data.source


def check_ranges(source: Any, expected: bytes, draw: st.DataObject) -> None:
    assert source.nbytes == len(expected)
    view = source.view()
    if view is not None:
        assert bytes(view) == expected
    for _ in range(3):
        start = draw.draw(st.integers(0, len(expected)))
        stop = draw.draw(st.integers(start, len(expected)))
        shift = draw.draw(st.integers(0, 7))  # buffers need not be aligned
        buffer = bytearray(b"\xaa" * (stop - start + 16))
        source.fill(memoryview(buffer)[shift : shift + stop - start], start)
        assert buffer[shift : shift + stop - start] == expected[start:stop]
        assert buffer[:shift] == b"\xaa" * shift
        assert buffer[shift + stop - start :] == b"\xaa" * (16 - shift)


@given(tensors(), st.data())
def test_any_range_of_any_tensor(tensor: torch.Tensor, draw: st.DataObject) -> None:
    check_ranges(source_of(tensor), raw(tensor), draw)


@given(arrays(), st.data())
def test_any_range_of_any_array(array: np.ndarray[Any, Any], draw: st.DataObject) -> None:
    source = source_of(array)
    whole = bytearray(source.nbytes)
    source.fill(memoryview(whole), 0)
    if array.dtype.names is None:
        assert whole == array.astype(array.dtype.newbyteorder("<")).tobytes()
    check_ranges(source, bytes(whole), draw)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(1, 4), st.data())
def test_blocks_cover_a_range_once_and_are_few(
    shape: list[int], itemsize: int, draw: st.DataObject
) -> None:
    total = int(np.prod(shape)) * itemsize
    start = draw.draw(st.integers(0, total))
    stop = draw.draw(st.integers(start, total))
    found = list(blocks(shape, itemsize, start, stop))
    assert len(found) <= 2 * len(shape) + 2
    at = 0
    for block in found:
        assert block.start == at
        at += block.nbytes
    assert at == stop - start


def test_ranges_that_are_not_there_are_refused() -> None:
    for value in (torch.ones(99), torch.ones(9, 11).t(), np.ones(99), np.ones((9, 11)).T):
        source = source_of(value)
        for start in (-1, source.nbytes - 3):
            with pytest.raises(ValueError, match="of"):
                source.fill(memoryview(bytearray(4)), start)


def test_workers_fill_disjoint_ranges_at_once() -> None:
    tensor = torch.randn(300, 701, requires_grad=True).t()
    source, expected = source_of(tensor), raw(tensor)
    out = memoryview(bytearray(source.nbytes))
    step = 1003
    with ThreadPoolExecutor(4) as pool:
        starts = range(0, source.nbytes, step)
        list(pool.map(lambda start: source.fill(out[start : start + step], start), starts))
    assert bytes(out) == expected


def test_a_view_keeps_its_tensor_alive() -> None:
    description = describe([torch.full((100_000,), 7.0)], 4096)
    view = description.contents[0].source.view()
    del description
    torch.full((100_000,), 9.0)
    assert view is not None
    assert set(np.frombuffer(view, "<f4")) == {7.0}


def test_no_copy_is_made_of_a_whole_strided_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("made whole")

    source = source_of(torch.randn(3000, 2000).t())
    monkeypatch.setattr(torch.Tensor, "contiguous", never)
    monkeypatch.setattr(torch.Tensor, "clone", never)
    source.fill(memoryview(bytearray(4096)), 8192)


@pytest.mark.parametrize("n", [0, 1, 64, 65])
def test_short_contents_are_copied_at_once(n: int) -> None:
    tensor = torch.ones(n)
    description = describe([tensor, "x" * 300], 4096)
    tensor.zero_()
    inline = description.data[0].inline
    assert (inline is not None) == (n <= 64)
    if inline is not None:
        assert inline == np.ones(n, "<f4").tobytes()
    assert len(description.contents) == 1 + (inline is None)
