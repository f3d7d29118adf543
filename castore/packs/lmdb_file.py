"""Is a file of LMDB 0.9 fit to be mapped?  Read before LMDB does, since LMDB trusts it blindly.

A damaged file is no error to LMDB: a bit flipped in a page's table of nodes or in a node's header
sends it outside the map (SIGBUS, SIGSEGV) or outside a page that it is about to write.  So every
page that the file's newest transaction reaches is looked at here: that it is the page it should
be, that its nodes fill it exactly and are of the kinds and sizes that our index writes, and that
no page is used twice or both used and free.  What keys and values say is for the index's own
checks.  Pure: pages are had through a function, and nothing is mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["IndexShape", "is_sound"]

_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # size of data (low, high), flags, size of key
_TREE = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, pages of 3 kinds, entries, root
_META = struct.Struct("<IIQQ48s48sQQ")  # magic, version, address, map size, 2 trees, last, txn
_HEAD = _PAGE.size

_BRANCH, _LEAF, _OVERFLOW, _META_PAGE, _DIRTY, _SUBPAGE = 0x01, 0x02, 0x04, 0x08, 0x10, 0x40
_BIG, _SUBTREE, _DUPS = 0x01, 0x02, 0x04  # flags of a node
_INTEGER_KEYS, _DUPSORT = 0x08, 0x04  # flags of a tree
_NOTHING = (1 << 64) - 1
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_LONGEST_KEY = 511
_DEEPEST = 32  # LMDB's cursors go no deeper
#: A file that changes under our eyes so often is as good as unsound.
_TRIES = 20


@dataclass(frozen=True, slots=True)
class IndexShape:
    """What our index keeps: a tree ``name`` of ``key`` -> ``value`` with duplicates, by length."""

    name: bytes
    key: int
    value: int


class _Unsound(Exception):
    pass


def is_sound(read: Callable[[int, int], bytes], size: Callable[[], int], shape: IndexShape) -> bool:
    """Whether LMDB may map a file and change it.

    ``read(offset, length)`` gives its bytes, ``size()`` how many there are.  Another process may
    commit meanwhile: the newest transaction's pages are left alone until after the next commit, so
    a fault counts if the meta pages are still the same, and else all is read again.
    """
    try:
        metas = _meta_pages(read)
        for _ in range(_TRIES):
            try:
                _File(read, _newest(metas), shape).check(size())
                return True
            except (_Unsound, struct.error):
                before, metas = metas, _meta_pages(read)
                if metas == before:
                    return False
    except (_Unsound, struct.error):
        pass
    return False


@dataclass(frozen=True, slots=True)
class _Meta:
    page_size: int
    free: bytes
    main: bytes
    last: int
    txn: int


def _require(holds: bool) -> None:
    if not holds:
        raise _Unsound


def _meta_pages(read: Callable[[int, int], bytes]) -> list[bytes]:
    page_size: int = struct.unpack_from("<I", read(0, 4096), _HEAD + 24)[0]
    _require(512 <= page_size <= 65536 and not page_size & (page_size - 1))
    return [read(0, page_size), read(page_size, page_size)]


def _newest(pages: list[bytes]) -> _Meta:
    """The newer of the two meta pages; both must be sound, since LMDB reads both."""
    found = []
    for number, page in enumerate(pages):
        own, padding, flags, _, _ = _PAGE.unpack_from(page)
        magic, version, _, _, free, main, last, txn = _META.unpack_from(page, _HEAD)
        _require((own, padding, flags) == (number, 0, _META_PAGE))
        _require((magic, version) == (_MAGIC, _VERSION))
        _require(_TREE.unpack(free)[:2] == (len(page), _INTEGER_KEYS))
        _require(_TREE.unpack(main)[:2] == (0, 0))
        found.append(_Meta(len(page), free, main, last, txn))
    older, newer = sorted(found, key=lambda meta: meta.txn)
    # They take turns: transaction n is written to page n & 1.
    _require(newer.txn == 0 or (newer.txn == older.txn + 1 and newer is found[newer.txn & 1]))
    return newer


class _File:
    def __init__(self, read: Callable[[int, int], bytes], meta: _Meta, shape: IndexShape) -> None:
        self._read = read
        self._meta = meta
        self._size = meta.page_size
        self._shape = shape
        self._used = {0, 1}
        # A record that is alone under its key: its node's head, byte by byte, and length.
        plain = _NODE.pack(shape.value, 0, 0, shape.key)
        self._plain = [plain[i : i + 1] for i in range(len(plain))]
        self._step = _even(_NODE.size + shape.key + shape.value)

    def check(self, size: int) -> None:
        meta = self._meta
        _require((meta.last + 1) * meta.page_size <= size)
        free: set[int] = set()
        self._tree(meta.free, lambda page: self._free_leaf(page, free))
        self._tree(meta.main, self._main_leaf)
        _require(free.isdisjoint(self._used))

    # -- trees and pages --------------------------------------------------------------------------

    def _tree(self, record: bytes, leaf: Callable[[bytes], int]) -> int:
        """Check a tree; its number of entries."""
        _, _, depth, _, _, _, entries, root = _TREE.unpack(record)
        if root == _NOTHING:
            _require(depth == entries == 0)
            return 0
        _require(1 <= depth <= _DEEPEST)
        found = 0
        stack = [(root, depth)]
        while stack:
            number, level = stack.pop()
            page = self._page(number)
            _, padding, flags, _, _ = _PAGE.unpack_from(page)
            _require(padding == 0 and flags == (_BRANCH if level > 1 else _LEAF))
            if level > 1:
                stack += [(child, level - 1) for child in self._children(page)]
            else:
                found += leaf(page)
        _require(found == entries)
        return found

    def _page(self, number: int) -> bytes:
        _require(number <= self._meta.last and number not in self._used)
        self._used.add(number)
        page = self._read(number * self._size, self._size)
        _require(_PAGE.unpack_from(page)[0] == number)
        return page

    def _children(self, page: bytes) -> list[int]:
        children = []
        for low, high, top, key, _ in _nodes(page, data_too=False):
            _require(key <= _LONGEST_KEY)
            children.append(low | high << 16 | top << 32)
        _require(len(children) > 1)
        return children

    # -- leaves -----------------------------------------------------------------------------------

    def _record_leaf(self, page: bytes) -> int:
        """A leaf of the index's own tree: nearly always nodes of one length, back to back."""
        lower, upper = _bounds(page)
        n, odd = divmod(lower - _HEAD, 2)
        step = self._step
        if n > 0 and not odd and _HEAD + 2 * n <= upper == self._size - n * step:
            places = struct.unpack_from(f"<{n}H", page, _HEAD)
            if sorted(places) == list(range(upper, self._size, step)) and all(
                page[upper + i :: step] == column * n for i, column in enumerate(self._plain)
            ):
                return n
        entries = 0
        for low, high, flags, key, at in _nodes(page):
            _require(high == 0 and key == self._shape.key)
            data = page[at + 8 + key : at + 8 + key + low]
            if flags == _DUPS:
                entries += self._sub_page(data)
            elif flags == _DUPS | _SUBTREE:
                _require(low == _TREE.size and _TREE.unpack(data)[:2] == (0, 0))
                entries += self._tree(data, self._duplicates)
            else:
                _require(flags == 0 and low == self._shape.value)
                entries += 1
        return entries

    def _duplicates(self, page: bytes) -> int:
        """A page of duplicates: values standing as keys."""
        n = 0
        for low, high, flags, key, _ in _nodes(page):
            _require((low, high, flags, key) == (0, 0, 0, self._shape.value))
            n += 1
        return n

    def _sub_page(self, page: bytes) -> int:
        _, padding, flags, _, _ = _PAGE.unpack_from(page)
        _require(padding == 0 and flags & ~_DIRTY == _LEAF | _SUBPAGE)
        return self._duplicates(page)

    def _main_leaf(self, page: bytes) -> int:
        """A leaf of the file's main tree: single values, and the record of the index's tree."""
        n = 0
        for low, high, flags, key, at in _nodes(page):
            _require(high == 0 and 0 < key <= _LONGEST_KEY)
            name = page[at + 8 : at + 8 + key]
            if flags == _SUBTREE:
                _require(name == self._shape.name and low == _TREE.size)
                record = page[at + 8 + key : at + 8 + key + low]
                _require(_TREE.unpack(record)[:2] == (0, _DUPSORT))
                self._tree(record, self._record_leaf)
            else:
                _require(flags == 0 and name != self._shape.name)
            n += 1
        return n

    def _free_leaf(self, page: bytes, free: set[int]) -> int:
        """A leaf of the free list: transaction -> the pages it freed, descending."""
        n = 0
        for low, high, flags, key, at in _nodes(page):
            _require(key == 8 and flags in (0, _BIG))
            length = low | high << 16
            if flags:
                data = self._overflow(page[at + 16 : at + 24], length)
            else:
                data = page[at + 16 : at + 16 + length]
            _require(length % 8 == 0 and len(data) == length >= 8)
            count, *pages = struct.unpack(f"<{length // 8}Q", data)
            _require(count <= len(pages))
            pages = pages[:count]
            _require(all(2 <= p <= self._meta.last for p in pages))
            _require(all(a > b for a, b in pairwise(pages)))
            _require(free.isdisjoint(pages))
            free.update(pages)
            n += 1
        return n

    def _overflow(self, place: bytes, length: int) -> bytes:
        number: int = struct.unpack("<Q", place)[0]
        pages = -(-(_HEAD + length) // self._size)
        _require(number + pages - 1 <= self._meta.last)
        data = self._page(number)
        own, padding, flags, count = struct.unpack_from("<QHHI", data)
        _require((own, padding, flags) == (number, 0, _OVERFLOW))
        _require(pages <= count <= self._meta.last)
        more = set(range(number + 1, number + count))
        _require(more.isdisjoint(self._used) and max(more, default=0) <= self._meta.last)
        self._used |= more
        return self._read(number * self._size, pages * self._size)[_HEAD : _HEAD + length]


def _bounds(page: bytes) -> tuple[int, int]:
    """Where a page's table of nodes ends, and where its nodes begin."""
    lower, upper = _PAGE.unpack_from(page)[3:]
    return lower, upper


def _even(n: int) -> int:
    return n + (n & 1)


def _nodes(page: bytes, *, data_too: bool = True) -> list[tuple[int, int, int, int, int]]:
    """The heads of a page's nodes and where they stand; they fill the page to its last byte."""
    lower, upper = _bounds(page)
    _require(_HEAD < lower <= upper <= len(page) and lower % 2 == 0)
    places = struct.unpack_from(f"<{(lower - _HEAD) // 2}H", page, _HEAD)
    found = {}
    end = upper
    for at in sorted(places):
        _require(at == end and at + _NODE.size <= len(page))
        low, high, flags, key = _NODE.unpack_from(page, at)
        length = 0
        if data_too:
            length = 8 if flags & _BIG else low | high << 16
        end = at + _even(_NODE.size + key + length)
        _require(end <= len(page))
        found[at] = (low, high, flags, key, at)
    _require(end == len(page))
    return [found[at] for at in places]
