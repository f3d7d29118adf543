"""The chunk grid: cuts cover exactly, no chunk is too long, shards share the whole's chunks."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import example, given
from hypothesis import strategies as st

from castore.model.grid import MIN_CHUNK_SIZE, Grid

chunk_sizes = st.sampled_from([MIN_CHUNK_SIZE, 2 * MIN_CHUNK_SIZE, 5 * MIN_CHUNK_SIZE])
row_sizes = st.one_of(
    st.integers(0, 40),
    st.integers(4000, 4200),
    st.sampled_from([MIN_CHUNK_SIZE - 1, MIN_CHUNK_SIZE, MIN_CHUNK_SIZE + 1, 3 * MIN_CHUNK_SIZE]),
    st.integers(0, 100_000),
)
row_counts = st.one_of(st.integers(0, 20), st.integers(0, 3000))


def expected_chunks(rows: int, row: int, chunk_size: int) -> list[tuple[int, int]]:
    """The page's two rules, said another way: a chunk for every group of rows, or part of a row."""
    if not rows * row:
        return []
    if row <= chunk_size:
        per = chunk_size // row
        return [(i * row, min(i + per, rows) * row) for i in range(0, rows, per)]
    return [
        (r * row + i, r * row + min(i + chunk_size, row))
        for r in range(rows)
        for i in range(0, row, chunk_size)
    ]


@given(row_counts, row_sizes, chunk_sizes)
def test_cuts_are_those_of_the_page(rows: int, row: int, chunk_size: int) -> None:
    rows = min(rows, 2_000_000 // max(row, 1))
    grid = Grid(rows, row, chunk_size)
    assert grid.spans() == expected_chunks(rows, row, chunk_size)


@given(row_counts, row_sizes, chunk_sizes, st.integers(0, 10_000))
def test_cuts_cover_exactly(rows: int, row: int, chunk_size: int, offset: int) -> None:
    rows = min(rows, 2_000_000 // max(row, 1))
    grid = Grid(rows, row, chunk_size, offset)
    spans = grid.spans()
    assert sum(stop - start for start, stop in spans) == grid.nbytes == rows * row
    position = 0
    for start, stop in spans:
        assert start == position < stop
        assert stop - start <= chunk_size
        if row <= chunk_size:
            assert start % row == stop % row == 0  # whole rows
        else:
            assert start // row == (stop - 1) // row  # never across two
        position = stop
    assert list(grid.cuts()) == [0, *(stop for _, stop in spans)]
    assert grid.chunks == len(spans)


@given(
    st.integers(1, 2000),
    st.integers(1, 9000),
    chunk_sizes,
    st.lists(st.integers(0, 2000), max_size=6),
)
@example(2000, 8, 4096, [511, 512, 513])
@example(7, 5000, 4096, [3])
def test_shards_share_the_whole_tensors_chunks(
    rows: int, row: int, chunk_size: int, borders: list[int]
) -> None:
    rows = min(rows, 2_000_000 // row)
    whole = Grid(rows, row, chunk_size)
    whole_cuts = set(whole.cuts())
    whole_spans = set(whole.spans())
    edges = sorted({0, rows, *(b for b in borders if b <= rows)})
    shared = 0
    seen = []
    for first, last in pairwise(edges):
        shard = Grid(last - first, row, chunk_size, first)
        base = first * row
        spans = [(base + start, base + stop) for start, stop in shard.spans()]
        seen += spans
        ends = {first * row, last * row}
        # Every cut of a shard is one of the whole's, its own two ends aside.
        assert {cut for span in spans for cut in span} - ends <= whole_cuts
        # Every chunk of the whole that lies within the shard is a chunk of the shard.
        inside = {s for s in whole_spans if base <= s[0] and s[1] <= last * row}
        assert inside <= set(spans)
        shared += len(inside)
    assert seen == sorted(seen)
    assert sum(stop - start for start, stop in seen) == whole.nbytes
    # A border spoils at most the one chunk that it cuts through.
    assert shared >= len(whole_spans) - (len(edges) - 2)


@given(
    st.lists(st.integers(0, 7), max_size=4), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 99)
)
def test_grid_of_a_shape(shape: list[int], itemsize: int, offset: int) -> None:
    grid = Grid.of(shape, itemsize, 4096, offset)
    assert grid.nbytes == prod(shape) * itemsize
    assert grid.rows == (shape[0] if shape else 1)
    assert list(Grid.of(tuple(shape), itemsize, 4096).cuts())[-1] == grid.nbytes


@given(st.integers(1, 300), st.integers(1, 9000), st.integers(0, 1000))
def test_rows_of_a_chunk(rows: int, row: int, offset: int) -> None:
    rows = min(rows, 500_000 // row)
    for start, stop in Grid(rows, row, 4096, offset).spans():
        first, last = Grid(rows, row, 4096, offset).rows_of(start, stop)
        touched = {offset + byte // row for byte in (start, stop - 1)}
        assert (first, last) == (min(touched), max(touched) + 1)


def test_rows_of_nothing() -> None:
    assert Grid(5, 0, 4096).rows_of(0, 0) == (0, 0)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 5000), chunk_sizes)
def test_no_cut_goes_through_an_element(itemsize: int, elements: int, chunk_size: int) -> None:
    for shape in ((elements,), (2, elements), (elements, 3)):
        assert all(cut % itemsize == 0 for cut in Grid.of(shape, itemsize, chunk_size).cuts())
