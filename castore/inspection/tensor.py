"""One value looked at closely: its chunks and where they lie, and what its numbers come to.

Chunks are read one on each core, hashed, measured and forgotten, so a tensor of any size takes the
memory of a few chunks.  Of a tensor that is several places in the packs each is told, and the first
sound one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from castore.errors import BadRevision
from castore.inspection.containers import top_node
from castore.inspection.view import Leaf, View, leaf_of, pieces
from castore.log.fold import Fold, Live
from castore.model import keypath
from castore.model.digest import Digest
from castore.model.objects import Content, TreeNode
from castore.packs.codecs import Codec
from castore.packs.reader import Location
from castore.pipeline.parts import Parts
from castore.pipeline.tensor_reads import in_order, on_a_fresh_fold
from castore.reports import ChunkPlaces, Place, TensorStats, ValueReport

if TYPE_CHECKING:
    from castore.state.measure import Items, Moments

__all__ = ["codec_name", "describe", "place_of"]

Progress = Callable[[int], None]


def describe(
    parts: Parts, fold: Fold, live: Live, path: str, stats: bool, progress: Progress | None = None
) -> ValueReport:
    """The value at a key path; with ``stats`` its chunks are read.

    Raises:
        BadRevision: nothing is there, or a container.
        CorruptionError: what has to be read is damaged.
        CheckpointGone: the checkpoint was let go meanwhile.
    """

    def act(fold: Fold, lives: Sequence[Live]) -> ValueReport:
        return _describe(View(parts, fold, lives[0]), path.strip("/"), stats, progress)

    return on_a_fresh_fold(parts, fold, (live,), act)


def _describe(view: View, path: str, stats: bool, progress: Progress | None) -> ValueReport:
    value = view.value_at(path)
    with view.naming(path):
        node = top_node(value, view.fetch)
        if node is not None and node.container == "value":
            value, node = node.items[0], None
    if node is not None:
        raise BadRevision(_no_leaf(view, path, node))
    with view.naming(path):
        leaf = leaf_of(value, view.chunk_size)
        content = view.content(leaf) if leaf.grid is not None else Content(b"", ())
        spans = pieces(leaf, content) if leaf.is_array else []
    found = _stats(view, path, leaf, content, spans, progress) if stats else None
    nbytes = leaf.nbytes
    where = tuple(_where(view, leaf, content, spans))
    if nbytes is None and where and all(chunk.places for chunk in where):
        nbytes = sum(chunk.nbytes for chunk in where)
    return ValueReport(
        path=path,
        kind=leaf.kind,
        text=leaf.text,
        dtype=leaf.dtype_text,
        shape=leaf.shape,
        nbytes=nbytes,
        chunks=tuple(d.hex() for d in content.digests),
        tie=leaf.tie,
        checkpoint=view.live.digest.hex(),
        tied_to=_others(view, path, leaf),
        where=where,
        stats=found,
        bytes_read=view.reader.bytes_read,
        healed=view.healed,
    )


def _no_leaf(view: View, path: str, node: TreeNode) -> str:
    return (
        f"{view.live.digest.short} has a {node.container} at {keypath.display(path)}: name a "
        "tensor, an array or another value in it"
    )


def _others(view: View, path: str, leaf: Leaf) -> tuple[str, ...]:
    if leaf.tie is None:
        return ()
    return tuple(other for other in view.tied().get(leaf.tie, ()) if other != path)


# -- where it lies --------------------------------------------------------------------------------


def codec_name(codec: int) -> str:
    """What a codec is called."""
    return Codec(codec).name.lower() if codec in list(Codec) else f"codec {codec}"


def place_of(location: Location) -> Place:
    """A record's place, for a report."""
    record = location.record
    return Place(location.pack.path, record.offset, record.stored_len, codec_name(record.codec))


def _where(
    view: View, leaf: Leaf, content: Content, spans: Sequence[tuple[int, int]]
) -> Iterator[ChunkPlaces]:
    at = 0
    for i, digest in enumerate(content.digests):
        locations = view.reader.places(digest)
        places = tuple(place_of(location) for location in locations)
        if leaf.is_array:
            assert leaf.grid is not None
            start, stop = spans[i]
            rows = leaf.grid.rows_of(start, stop)
        else:  # only the packs know how long the chunks of a text are: a row is a byte
            start, stop = at, at + (locations[0].record.raw_len if locations else 0)
            rows = (start, stop)
        yield ChunkPlaces(digest.hex(), rows, start, stop - start, places)
        at = stop


# -- what its numbers come to ---------------------------------------------------------------------


def _stats(
    view: View,
    path: str,
    leaf: Leaf,
    content: Content,
    spans: Sequence[tuple[int, int]],
    progress: Progress | None,
) -> TensorStats | None:
    if not leaf.is_array:
        return None
    from castore.state.measure import Moments, items_of

    with view.naming(path):
        items = items_of(leaf.kind, leaf.dtype, leaf.itemsize)
    if items.kind == "opaque":
        return None
    total = Moments()
    tasks = (
        partial(_measure, view, path, leaf, items, span, _piece(content, i))
        for i, span in enumerate(spans)
    )
    for found, nbytes in in_order(tasks):
        total += found
        if progress is not None:
            progress(nbytes)
    return _told(total)


def _piece(content: Content, i: int) -> Digest | bytes:
    return content.inline if content.inline is not None else content.digests[i]


def _measure(
    view: View,
    path: str,
    leaf: Leaf,
    items: Items,
    span: tuple[int, int],
    what: Digest | bytes,
) -> tuple[Moments, int]:
    from castore.state.measure import measure

    start, stop = span
    assert leaf.grid is not None
    data: bytes | memoryview = what
    if isinstance(what, Digest):
        data = view.reader.read(what, stop - start, path, leaf.grid.rows_of(start, stop))
    return measure(items, data), stop - start


def _told(total: Moments) -> TensorStats:
    from castore.state.measure import root

    mean = total.mean
    return TensorStats(
        items=total.items,
        nan=total.nan,
        inf=total.inf,
        zeros=total.zeros,
        min=total.low,
        max=total.high,
        mean=mean[0] if mean else None,
        mean_imag=mean[1] if mean and len(mean) > 1 else None,
        std=total.std,
        norm=root(total.squares) if total.finite else None,
        max_abs=total.largest,
    )
