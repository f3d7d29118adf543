"""How one state differs from another: only what differs is walked, only such chunks are read.

Two trees are gone through side by side, and whatever has the same digest on both sides is passed
over: an equal subtree costs nothing, however large.  What is left is told by key path.  Entries of
mappings are matched by their typed keys, those of lists and tuples by their place.

Of a tensor whose dtype and shape are the same the values are compared, one pair of chunks at a time
on each core: chunks that both sides share are not read, and every other one is hashed first.

The number of a tie is only a name, and no difference: what is, is being tied to other tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from castore.errors import BadRevision
from castore.inspection.containers import (
    Item,
    below,
    items_of_part,
    join,
    names_of,
    part_of,
    top_node,
)
from castore.inspection.paths import Paths
from castore.inspection.view import Leaf, View, leaf_of, pieces
from castore.log.fold import Fold, Live
from castore.log.revisions import Revision, parse_revision
from castore.model.digest import Digest
from castore.model.encoding import encode
from castore.model.objects import MAPPINGS, MAX_VALUES, Content, TreeNode
from castore.pipeline.parts import Parts
from castore.pipeline.tensor_reads import in_order, on_a_fresh_fold
from castore.reports import DiffEntry, DiffReport, TensorDifference
from castore.state.contents import METADATA

if TYPE_CHECKING:
    from castore.state.measure import Difference, Items

__all__ = ["DiffOptions", "diff", "ends_of"]

#: A side that has nothing there.
_NOTHING = object()
_LISTS = frozenset({"list", "tuple"})
_SETS = frozenset({"set", "frozenset"})


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """What to compare, and how closely.

    Attributes:
        a_path, b_path: key paths of what is compared in each state.
        paths: only what lies at or below these key paths; globs.
        values: False reads no chunk.
        whole_norm: reads the shared chunks of changed tensors too, for the norm of the whole.
        first: stop at the first difference.
        progress: told of bytes of chunks as they are read.
    """

    a_path: str = ""
    b_path: str = ""
    paths: tuple[str, ...] = ()
    values: bool = True
    whole_norm: bool = False
    first: bool = False
    progress: Callable[[int], None] | None = None


def diff(parts: Parts, fold: Fold, a: Live, b: Live, options: DiffOptions) -> DiffReport:
    """How the state of ``b`` differs from that of ``a``.

    Raises:
        BadRevision: a key path that neither has.
        CorruptionError: what has to be read is damaged; names each place.
        CheckpointGone: one of the two was let go meanwhile.
    """
    return on_a_fresh_fold(
        parts, fold, (a, b), lambda fold, lives: _Diff(parts, fold, lives, options).run()
    )


def ends_of(a: str, b: str | None, fold: Fold) -> tuple[Revision, Revision]:
    """The two revisions that are meant: ``A..B``, ``A`` and ``B``, or ``A`` alone.

    An end left out (``A..``, ``..B``) is main, git's HEAD here.  ``A`` alone goes to the head of
    the branch it begins with, or where that is a tag or digest to main: to what there is now, as
    ``git diff A`` does.

    Raises:
        BadRevision: not of the grammar.
    """
    base, colon, path = a.partition(":")
    if b is None and ".." in base:
        if "..." in base:
            raise BadRevision(f"{a!r}: castore has no merge base; say A..B")
        left, _, right = base.partition("..")
        b = f"{right or 'main'}{colon}{path}"
        a = f"{left or 'main'}{colon}{path}"
    first = parse_revision(a)
    if b is not None:
        return first, parse_revision(b)
    branch = fold.branches.get(first.base)
    head = first.base if branch is not None and branch.head is not None else "main"
    return first, Revision(head, path=first.path)


@dataclass(slots=True)
class _Changed:
    """A tensor whose values differ, on their way to be read.

    Attributes:
        at: number of its entry.
        before, after: what there was and is.
        old, new: their contents.
    """

    at: int
    before: Leaf
    after: Leaf
    old: Content
    new: Content

    @property
    def same_as(self) -> Any:
        """Equal for what comes to the same numbers: tied tensors, copies."""
        leaf = self.after
        return leaf.kind, leaf.dtype_text, leaf.shape, self.old, self.new


@dataclass(slots=True)
class _Task:
    """One pair of pieces: where in the tensor they lie; ``old`` alone where both share it."""

    at: int
    path: str
    start: int
    stop: int
    rows: tuple[int, int]
    old: Digest | bytes
    new: Digest | bytes | None
    items: Items


@dataclass(slots=True)
class _Sum:
    """What the pieces of one tensor come to so far."""

    found: Difference
    shared: Any  # Decimal: squares of what was read on one side alone


class _Diff:
    def __init__(
        self, parts: Parts, fold: Fold, lives: Sequence[Live], options: DiffOptions
    ) -> None:
        tables: dict[str, Any] = {}
        self.a = View(parts, fold, lives[0], tables)
        self.b = View(parts, fold, lives[1], tables)
        self.options = options
        self.paths = Paths(options.paths)
        self.entries: list[DiffEntry] = []
        self.changed: list[_Changed] = []
        self.ties: tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]] | None = None
        self.left = MAX_VALUES

    def run(self) -> DiffReport:
        options = self.options
        self._check_paths()
        for entry in self._walk():
            self.entries.append(entry)
            if options.first:
                break
        if options.values and not options.first:
            self._read_values()
        count = Counter(entry.status for entry in self.entries)
        readers = (self.a.reader, self.b.reader)
        return DiffReport(
            a=self.a.live.digest.hex(),
            b=self.b.live.digest.hex(),
            a_path=options.a_path,
            b_path=options.b_path,
            entries=tuple(self.entries),
            added=count["A"],
            removed=count["D"],
            changed=count["M"],
            retyped=count["T"],
            objects_read=self.a.objects_read + self.b.objects_read,
            chunks_read=sum(r.chunks_read for r in readers),
            bytes_read=sum(r.bytes_read for r in readers),
            healed=tuple(dict.fromkeys((*self.a.healed, *self.b.healed))),
        )

    def _check_paths(self) -> None:
        """A path that is in neither state is a slip of the pen, and no empty difference."""
        for path in self.paths.plain:
            try:
                self.b.value_at(path)
            except BadRevision as e:
                try:
                    self.a.value_at(path)
                except BadRevision:
                    raise e from None

    # -- walking ----------------------------------------------------------------------------------

    def _walk(self) -> Iterator[DiffEntry]:
        """Every difference, in order.  Does not recurse: states may be 10,000 containers deep."""
        options = self.options
        a, b = self.a.value_at(options.a_path), self.b.value_at(options.b_path)
        stack: list[tuple[str, str, Any, Any]] = [
            (options.a_path.strip("/"), options.b_path.strip("/"), a, b)
        ]
        while stack:
            at_a, at_b, a, b = stack.pop()
            path = at_a if b is _NOTHING else at_b
            if not self.paths.leads_on(path) or _same(a, b):
                continue
            pairs: list[tuple[str, str, Any, Any]] = []
            for found in self._one(at_a, at_b, a, b):
                if isinstance(found, tuple):
                    pairs.append(found)
                elif self.paths.holds(found.path):
                    yield found
            self.left -= len(pairs)
            if self.left < 0:
                raise self.b.malformed(f"more than {MAX_VALUES} values")
            stack.extend(reversed(pairs))

    def _one(
        self, at_a: str, at_b: str, a: Any, b: Any
    ) -> Iterator[DiffEntry | tuple[str, str, Any, Any]]:
        """A pair of values: the difference they are, or pairs of what is below them."""
        node_a, a = _entered(self.a, at_a, a)
        node_b, b = _entered(self.b, at_b, b)
        if b is _NOTHING:
            yield from self._only(self.a, "D", at_a, a, node_a)
        elif a is _NOTHING:
            yield from self._only(self.b, "A", at_b, b, node_b)
        elif node_a is None and node_b is None:
            entry = self._leaves(at_a, at_b, a, b)
            if entry is not None:
                yield entry
        elif node_a is None or node_b is None or not _alike(node_a, node_b):
            yield (at_a, at_b, a, _NOTHING)
            yield (at_a, at_b, _NOTHING, b)
        elif node_b.container in _SETS:
            changes = ("value",) if node_a.container == node_b.container else ("kind",)
            yield self._container(at_b, node_a, node_b, changes)
        else:
            yield from self._containers(at_a, at_b, (a, node_a), (b, node_b))

    def _only(
        self, view: View, status: str, path: str, value: Any, node: TreeNode | None
    ) -> Iterator[DiffEntry | tuple[str, str, Any, Any]]:
        """What one side alone has: its leaves, or a container that holds nothing."""
        with view.naming(path):
            if node is None:
                yield self._told(view, status, path, leaf_of(value, view.chunk_size))
                return
            children = below(value, node, view.fetch)
        if not children or node.container in _SETS:
            kind = node.container
            yield DiffEntry(
                status,
                path,
                kind=kind if status == "A" else None,
                old_kind=kind if status == "D" else None,
            )
            return
        for name, child in children:
            at = join(path, name)
            yield (at, at, *((child, _NOTHING) if status == "D" else (_NOTHING, child)))

    def _told(self, view: View, status: str, path: str, leaf: Leaf) -> DiffEntry:
        chunks = 0
        if leaf.grid is not None and leaf.held[0] != 0:
            chunks = leaf.grid.chunks if leaf.is_array else len(view.content(leaf).digests)
        if status == "D":
            return DiffEntry(
                status,
                path,
                old_kind=leaf.kind,
                old_text=leaf.text,
                old_dtype=leaf.dtype_text,
                old_shape=leaf.shape,
                old_nbytes=leaf.nbytes,
                old_chunks=chunks,
            )
        return DiffEntry(
            status,
            path,
            kind=leaf.kind,
            text=leaf.text,
            dtype=leaf.dtype_text,
            shape=leaf.shape,
            nbytes=leaf.nbytes,
            chunks=chunks,
            differing_bytes=leaf.nbytes or 0,
        )

    # -- containers -------------------------------------------------------------------------------

    def _container(
        self, path: str, a: TreeNode, b: TreeNode, changes: tuple[str, ...]
    ) -> DiffEntry:
        status = "T" if "kind" in changes else "M"
        return DiffEntry(status, path, changes, kind=b.container, old_kind=a.container)

    def _containers(
        self, at_a: str, at_b: str, a: tuple[Any, TreeNode], b: tuple[Any, TreeNode]
    ) -> Iterator[DiffEntry | tuple[str, str, Any, Any]]:
        (value_a, node_a), (value_b, node_b) = a, b
        left, right = self._align(at_a, at_b, node_a, node_b)
        changes = []
        if node_a.container != node_b.container:
            changes.append("kind")
        elif node_a.container == "defaultdict" and node_a.extra != node_b.extra:
            changes.append("factory")
        if node_b.container in MAPPINGS and _reordered(left, right):
            changes.append("order")
        if changes:
            yield self._container(at_b, node_a, node_b, tuple(changes))
        mine = {item.key: item for item in left if item.held}
        theirs = {item.key: item for item in right if item.held}
        with self.a.naming(at_a):
            names_a = names_of(value_a, node_a, left, self.a.fetch)
        with self.b.naming(at_b):
            names_b = names_of(value_b, node_b, right, self.b.fetch)
        for key, item in theirs.items():
            old = mine.get(key)
            name = names_b[key]
            if old is None:
                yield (join(at_a, name), join(at_b, name), _NOTHING, item.value)
            else:
                yield (join(at_a, names_a[key]), join(at_b, name), old.value, item.value)
        for key, item in mine.items():
            if key not in theirs:
                name = names_a[key]
                yield (join(at_a, name), join(at_b, name), item.value, _NOTHING)
        extra_a, extra_b = (
            n.extra if isinstance(n.extra, list) else _NOTHING for n in (node_a, node_b)
        )
        if extra_a is not _NOTHING or extra_b is not _NOTHING:
            yield (join(at_a, METADATA), join(at_b, METADATA), extra_a, extra_b)

    def _align(
        self, at_a: str, at_b: str, node_a: TreeNode, node_b: TreeNode
    ) -> tuple[list[Item], list[Item]]:
        """The entries of two containers, without the parts of split ones that are equal.

        Such a part stays as one item that holds nothing: it has its place in the order.
        """
        left, right = [_Part(0, node_a)], [_Part(0, node_b)]
        together = node_a.level == node_b.level
        done: tuple[list[Item], list[Item]] = ([], [])
        for level in range(max(node_a.level, node_b.level), 0, -1):
            with self.a.naming(at_a):
                left = _opened(self.a, node_a, left, level)
            with self.b.naming(at_b):
                right = _opened(self.b, node_b, right, level)
            if together:
                known = {(p.start, p.digest) for p in left} & {(p.start, p.digest) for p in right}
                for parts, out in zip((left, right), done, strict=True):
                    out += [Item(p.start, ("part", p.digest), None, held=False) for p in parts
                            if (p.start, p.digest) in known]  # fmt: skip
                left = [p for p in left if (p.start, p.digest) not in known]
                right = [p for p in right if (p.start, p.digest) not in known]
            with self.a.naming(at_a):
                left = [p.fetched(self.a, node_a, level - 1) for p in left]
            with self.b.naming(at_b):
                right = [p.fetched(self.b, node_b, level - 1) for p in right]
        for parts, out in zip((left, right), done, strict=True):
            for part in parts:
                assert part.node is not None
                out.extend(items_of_part(part.start, part.node))
            out.sort(key=lambda item: item.place)
        return done

    # -- leaves -----------------------------------------------------------------------------------

    def _leaves(self, at_a: str, at_b: str, a: Any, b: Any) -> DiffEntry | None:
        if not self.paths.holds(at_b):
            return None  # what was asked for would lie below it
        with self.a.naming(at_a):
            before = leaf_of(a, self.a.chunk_size)
            old = self.a.content(before) if before.grid is not None else Content(b"", ())
            if before.is_array:
                pieces(before, old)
        with self.b.naming(at_b):
            after = leaf_of(b, self.b.chunk_size)
            new = self.b.content(after) if after.grid is not None else Content(b"", ())
            if after.is_array:
                pieces(after, new)
        changes = self._changes(at_a, at_b, before, after, old == new)
        if not changes:
            return None
        alike = _array_of_one_shape(before, after)
        shared = _shared(old, new, alike)
        entry = DiffEntry(
            status="T" if {"kind", "dtype", "shape"} & set(changes) else "M",
            path=at_b,
            changes=changes,
            kind=after.kind,
            old_kind=before.kind,
            text=after.text,
            old_text=before.text,
            dtype=after.dtype_text,
            old_dtype=before.dtype_text,
            shape=after.shape,
            old_shape=before.shape,
            nbytes=after.nbytes,
            old_nbytes=before.nbytes,
            chunks=len(new.digests),
            old_chunks=len(old.digests),
            shared_chunks=sum(shared),
            differing_bytes=_differing(after, old, new, shared),
        )
        if alike and "values" in changes:
            self.changed.append(_Changed(len(self.entries), before, after, old, new))
        return entry

    def _changes(
        self, at_a: str, at_b: str, before: Leaf, after: Leaf, same_content: bool
    ) -> tuple[str, ...]:
        if before.kind != after.kind:
            return ("kind",)
        if not after.is_array:
            return () if _same(before.value, after.value) else ("value",)
        changes = []
        if not _same(before.dtype, after.dtype):
            changes.append("dtype")
        if before.shape != after.shape:
            changes.append("shape")
        if not same_content:
            changes.append("values")
        if before.flags != after.flags:
            changes.append("flags")
        if self._tied_otherwise(at_a, at_b, before.tie, after.tie):
            changes.append("tie")
        return tuple(changes)

    def _tied_otherwise(self, at_a: str, at_b: str, a: int | None, b: int | None) -> bool:
        if a == b or at_a != at_b:
            return False
        if a is None or b is None:
            return True
        if self.ties is None:
            self.ties = (self.a.tied(), self.b.tied())
        return self.ties[0][a] != self.ties[1][b]

    # -- values -----------------------------------------------------------------------------------

    def _read_values(self) -> None:
        """Read the chunks that differ, and put into the entries what they come to."""
        if not self.changed:
            return
        from castore.state.measure import Difference

        first: dict[Any, int] = {}  # what comes to the same numbers -> the entry that is read
        twins: dict[int, int] = {}
        for changed in self.changed:
            twins[changed.at] = first.setdefault(changed.same_as, changed.at)
        sums = {at: _Sum(Difference(), 0) for at in first.values()}
        tasks = (partial(self._run_task, task) for task in self._tasks(set(sums)))
        for task, found, squares in in_order(tasks):
            sums[task.at].found += found
            sums[task.at].shared += squares
            if self.options.progress is not None:
                self.options.progress(task.stop - task.start)
        for changed in self.changed:
            told = _difference(changed.after, sums[twins[changed.at]], self.options.whole_norm)
            self.entries[changed.at] = replace(self.entries[changed.at], values=told)

    def _tasks(self, read: set[int]) -> Iterator[_Task]:
        from castore.state.measure import items_of

        for changed in self.changed:
            if changed.at not in read:
                continue
            leaf, path = changed.after, self.entries[changed.at].path
            assert leaf.grid is not None
            with self.b.naming(path):
                items = items_of(leaf.kind, leaf.dtype, leaf.itemsize)
            for i, (start, stop) in enumerate(pieces(leaf, changed.new)):
                old, new = _piece(changed.old, i), _piece(changed.new, i)
                rows = leaf.grid.rows_of(start, stop)
                if old != new:
                    yield _Task(changed.at, path, start, stop, rows, old, new, items)
                elif self.options.whole_norm and items.kind != "opaque":
                    yield _Task(changed.at, path, start, stop, rows, old, None, items)

    def _run_task(self, task: _Task) -> tuple[_Task, Difference, Any]:
        from castore.state.measure import Difference, compare, measure

        before = self._bytes(self.a, task, task.old)
        if task.new is None:
            return task, Difference(), measure(task.items, before).squares
        after = self._bytes(self.b, task, task.new)
        with self.b.naming(task.path):
            return task, compare(task.items, before, after, task.start), 0

    def _bytes(self, view: View, task: _Task, what: Digest | bytes) -> bytes | memoryview:
        if not isinstance(what, Digest):
            return what
        return view.reader.read(what, task.stop - task.start, task.path, task.rows)


# -- containers -----------------------------------------------------------------------------------


def _entered(view: View, path: str, value: Any) -> tuple[TreeNode | None, Any]:
    """The container that a value is, or None; and the value, taken out of a root that holds it."""
    if value is _NOTHING:
        return None, value
    with view.naming(path):
        node = top_node(value, view.fetch)
    if node is not None and node.container == "value":
        return None, node.items[0]
    return node, value


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a split container: where it begins, and the node, or what names it."""

    start: int
    node: TreeNode | None = None
    count: int = 0
    digest: bytes = b""

    def fetched(self, view: View, whole: TreeNode, level: int) -> _Part:
        """The part with its node, if it is of that level; one that lies lower stays as it is."""
        if self.node is not None:
            return self
        return replace(self, node=part_of(whole, level, self.count, self.digest, view.fetch))


def _opened(view: View, whole: TreeNode, parts: Sequence[_Part], level: int) -> list[_Part]:
    """Parts whose nodes have that level as the parts that these name."""
    out: list[_Part] = []
    for part in parts:
        assert part.node is not None
        if part.node.level != level:
            out.append(part)  # the whole of a container that is not split as often
            continue
        at = part.start
        for count, digest in part.node.items:
            out.append(_Part(at, None, count, digest))
            at += count
    return out


def _alike(a: TreeNode, b: TreeNode) -> bool:
    """Whether the entries of two containers can be matched."""
    return any(a.container in group and b.container in group for group in (MAPPINGS, _LISTS, _SETS))


def _reordered(left: Sequence[Item], right: Sequence[Item]) -> bool:
    """Whether the keys that both have stand in another order."""
    keys = [item.key for item in left]
    others = [item.key for item in right]
    common = set(keys) & set(others)
    return [k for k in keys if k in common] != [k for k in others if k in common]


# -- leaves ---------------------------------------------------------------------------------------


def _same(a: Any, b: Any) -> bool:
    """Whether two decoded values are one by their bytes: to Python 1, 1.0 and True are equal."""
    if a is _NOTHING or b is _NOTHING:
        return False
    return encode(_plain(a)) == encode(_plain(b))


def _plain(value: Any) -> Any:
    if isinstance(value, TreeNode):
        return [value.container, value.level, value.extra, value.items]
    return value


def _array_of_one_shape(a: Leaf, b: Leaf) -> bool:
    return (
        b.is_array
        and (a.kind, a.shape, a.itemsize) == (b.kind, b.shape, b.itemsize)
        and _same(a.dtype, b.dtype)
    )


def _shared(old: Content, new: Content, alike: bool) -> list[bool]:
    """Whether ``old`` has each chunk of ``new``: at its place, or where not ``alike`` at all."""
    if alike and len(old.digests) == len(new.digests):
        return [a == b for a, b in zip(old.digests, new.digests, strict=True)]
    known = set(old.digests)
    return [d in known for d in new.digests]


def _differing(leaf: Leaf, old: Content, new: Content, shared: Sequence[bool]) -> int:
    if not leaf.is_array:
        return 0 if old == new else leaf.nbytes or 0
    if new.inline is not None:
        return 0 if old.inline == new.inline else len(new.inline)
    spans = pieces(leaf, new)
    return sum(stop - start for (start, stop), s in zip(spans, shared, strict=True) if not s)


def _piece(content: Content, i: int) -> Digest | bytes:
    return content.inline if content.inline is not None else content.digests[i]


def _difference(leaf: Leaf, total: _Sum, whole_norm: bool) -> TensorDifference:
    from castore.state.measure import root

    found = total.found
    assert leaf.grid is not None
    items = leaf.grid.nbytes // leaf.itemsize
    changed = found.changed + len(found.cut)
    numbers = found.largest is not None
    l2 = root(found.squares) if numbers else None
    base = root(found.base + total.shared) if numbers else None
    return TensorDifference(
        items=items,
        compared=found.items,
        changed=changed,
        share=changed / items,
        l2=l2,
        base_l2=base,
        relative=l2 / base if l2 is not None and base else None,
        max_abs=found.largest,
        nan_before=found.nan[0],
        nan_after=found.nan[1],
        inf_before=found.inf[0],
        inf_after=found.inf[1],
        whole_norm=whole_norm,
    )
