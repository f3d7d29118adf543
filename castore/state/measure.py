"""What the bytes of a tensor or array come to as numbers: statistics, and how two of them differ.

Works on pieces (chunks, whole rows or parts of a row) and adds the results up, so memory stays at
a few blocks whatever the tensor's size, and pieces may be dealt with on all cores.  Nothing
overflows or vanishes on the way: values are taken as 64-bit floats (integers exactly), their
squares in a range that holds them, and totals as decimals of 60 digits.

NaNs and infinities are counted; every other figure is about the finite values.  Two items count as
changed where their *bits* differ: -0.0 and 0.0, or two NaNs, may be a change that has no size.

Imports numpy; torch only for the 8-bit floats, which numpy has not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from castore.model.digest import Buffer
from castore.model.encoding import EncodingError

__all__ = ["Difference", "Items", "Moments", "compare", "items_of", "measure", "root"]

Array = npt.NDArray[Any]

#: Items dealt with at once: some megabytes of 64-bit floats.
_BLOCK = 1 << 17
#: Squares of magnitudes between these, and sums of a block of them, are far inside the floats.
_TINY, _HUGE = 1e-140, 1e150
_DECIMALS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
_ZERO = Decimal(0)


# -- dtypes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Items:
    """How the items of a dtype read.

    Attributes:
        itemsize: bytes of one.
        kind: ``float``, ``complex``, ``int``, ``bool``; ``opaque`` where they are no numbers, or
            none that can be read here: these are compared bit by bit.
        code: numpy's letters for what is stored: of a complex item, its halves.
        name: of a float that numpy has not: ``bfloat16``, ``float8_e4m3fn``, ...
    """

    itemsize: int
    kind: str
    code: str = ""
    name: str = ""


_TORCH = {
    "float64": Items(8, "float", "<f8"),
    "float32": Items(4, "float", "<f4"),
    "float16": Items(2, "float", "<f2"),
    "bfloat16": Items(2, "float", "<u2", "bfloat16"),
    "complex128": Items(16, "complex", "<f8"),
    "complex64": Items(8, "complex", "<f4"),
    "complex32": Items(4, "complex", "<f2"),
    "bool": Items(1, "bool", "|u1"),
    **{f"int{8 * n}": Items(n, "int", f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"uint{8 * n}": Items(n, "int", f"<u{n}") for n in (1, 2, 4, 8)},
}
_NUMPY = {
    "b1": _TORCH["bool"],
    **{f"i{n}": _TORCH[f"int{8 * n}"] for n in (1, 2, 4, 8)},
    **{f"u{n}": _TORCH[f"uint{8 * n}"] for n in (1, 2, 4, 8)},
    "q": _TORCH["int64"],
    "Q": _TORCH["uint64"],
    "f2": _TORCH["float16"],
    "f4": _TORCH["float32"],
    "f8": _TORCH["float64"],
    "c8": _TORCH["complex64"],
    "c16": _TORCH["complex128"],
}


def items_of(kind: str, dtype: Any, itemsize: int) -> Items:
    """How the items of a ``tensor`` or ``ndarray`` value read, from its dtype as it is stored.

    The contents are little-endian whatever an array's dtype says.

    Raises:
        EncodingError: its items have another size than the dtype's.
    """
    found: Items | None = None
    if kind == "tensor":
        found = _TORCH.get(dtype)
        if found is None and str(dtype).startswith("float8_") and _table(dtype) is not None:
            found = Items(1, "float", "|u1", dtype)
    elif isinstance(dtype, str):
        found = _NUMPY.get(dtype[1:])
    if found is None:
        return Items(itemsize, "opaque")
    if found.itemsize != itemsize:
        raise EncodingError(f"an item of {itemsize} bytes where {dtype} has {found.itemsize}")
    return found


@functools.lru_cache(maxsize=32)
def _table(name: str) -> Array | None:
    """The value of each of the 256 bytes; None where this torch cannot say."""
    try:
        import torch

        every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
        with np.errstate(all="ignore"):  # there are signalling NaNs among them
            values: Array = every.to(torch.float32).numpy().astype(np.float64)
        return values
    except (ImportError, AttributeError, RuntimeError, TypeError):
        return None


def _floats(items: Items, data: Buffer) -> Array:
    """The items as 64-bit floats; complex ones as pairs."""
    stored = np.frombuffer(data, items.code)
    if items.name == "bfloat16":
        upper: Array = stored.astype(np.uint32) << 16
        rounded: Array = upper.view(np.float32).astype(np.float64)
        return rounded
    if items.name:
        table = _table(items.name)
        assert table is not None
        found: Array = table[stored]
        return found
    values: Array = stored.astype(np.float64, copy=False)
    return values.reshape(-1, 2) if items.kind == "complex" else values


def _ints(items: Items, data: Buffer) -> Array:
    stored: Array = np.frombuffer(data, items.code)
    return (stored != 0).astype(np.uint8) if items.kind == "bool" else stored


def _blocks(items: Items, nbytes: int) -> Iterator[slice]:
    if nbytes % items.itemsize:
        raise EncodingError(f"{nbytes} bytes are not whole items of {items.itemsize}")
    step = _BLOCK * items.itemsize
    return (slice(at, min(at + step, nbytes)) for at in range(0, nbytes, step))


# -- totals ---------------------------------------------------------------------------------------


def _add(a: Decimal, b: Decimal) -> Decimal:
    return _DECIMALS.add(a, b)


def _scaled(value: float, power: int) -> Decimal:
    """``value * 2**power``, which may be beyond the floats."""
    exact = Decimal(float(value))
    return exact if not power else _DECIMALS.multiply(exact, _DECIMALS.power(2, power))


def root(square: Decimal) -> float:
    """The square root, as a float: infinite where it is beyond them."""
    return float(_DECIMALS.sqrt(square))


def _in_range(values: Array, largest: float) -> tuple[Array, int]:
    """Values whose squares and sums are floats, and the power of two they are to be raised by."""
    if largest == 0 or _TINY < largest < _HUGE:
        return values, 0
    power = int(np.frexp(largest)[1])
    return np.ldexp(values, -power), power


def _squares(values: Array, largest: float) -> Decimal:
    """The sum of the squares of finite floats, none of them larger than ``largest``."""
    near, power = _in_range(values, largest)
    return _scaled(np.multiply(near, near).sum(), 2 * power)


def _greatest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _magnitude(values: Array) -> float:
    """The largest magnitude of finite floats or pairs of them; 0.0 of none."""
    if not len(values):
        return 0.0
    if values.ndim == 2:
        return float(np.hypot(values[:, 0], values[:, 1]).max())
    return float(max(values.max(), -values.min()))


def _component(values: Array) -> float:
    """The largest magnitude of any number in the array."""
    return float(max(values.max(), -values.min())) if values.size else 0.0


# -- one tensor -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moments:
    """What some items come to; ``+`` joins those of two pieces.

    Attributes:
        items: how many there are.
        finite: how many are neither NaN nor infinite.
        nan: how many are NaN (of a complex item, either half).
        inf: how many others are infinite.
        zeros: how many are zero.
        low, high: the least and the greatest finite value; None of complex ones, and of none.
        largest: the greatest magnitude.
        sums: of the finite values: one, or of complex items that of each half.
        spread: sum of the squared distances from their mean.
        squares: sum of their squared magnitudes.
    """

    items: int = 0
    finite: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    low: float | None = None
    high: float | None = None
    largest: float | None = None
    sums: tuple[Decimal, ...] = ()
    spread: Decimal = _ZERO
    squares: Decimal = _ZERO

    def __add__(self, other: Moments) -> Moments:
        """Join: the distances from two means become those from the common one."""
        lows = [v for v in (self.low, other.low) if v is not None]
        spread = _add(self.spread, other.spread)
        if self.finite and other.finite:
            for a, b in zip(self.sums, other.sums, strict=True):
                apart = _DECIMALS.subtract(
                    _DECIMALS.divide(b, other.finite), _DECIMALS.divide(a, self.finite)
                )
                weight = _DECIMALS.divide(
                    Decimal(self.finite * other.finite), self.finite + other.finite
                )
                spread = _add(spread, _DECIMALS.multiply(_DECIMALS.multiply(apart, apart), weight))
            sums = tuple(_add(a, b) for a, b in zip(self.sums, other.sums, strict=True))
        else:
            sums = self.sums if self.finite else other.sums
        return Moments(
            self.items + other.items,
            self.finite + other.finite,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zeros + other.zeros,
            min(lows, default=None),
            _greatest(self.high, other.high),
            _greatest(self.largest, other.largest),
            sums,
            spread,
            _add(self.squares, other.squares),
        )

    @property
    def mean(self) -> tuple[float, ...] | None:
        """The mean of the finite values: one number, or both halves; None of none."""
        if not self.finite:
            return None
        return tuple(float(_DECIMALS.divide(s, self.finite)) for s in self.sums)

    @property
    def std(self) -> float | None:
        """Their standard deviation (of a population: divided by how many they are)."""
        return root(_DECIMALS.divide(self.spread, self.finite)) if self.finite else None


def measure(items: Items, data: Buffer) -> Moments:
    """The moments of a piece: whole items, as they are stored.

    Raises:
        EncodingError: no whole items, or none that are numbers.
    """
    if items.kind == "opaque":
        raise EncodingError("items that are no numbers have no statistics")
    whole = memoryview(data).cast("B")
    total = Moments()
    with np.errstate(all="ignore"):
        for block in _blocks(items, len(whole)):
            if items.kind in ("int", "bool"):
                total += _of_ints(_ints(items, whole[block]))
            else:
                total += _of_floats(_floats(items, whole[block]))
    return total


def _of_floats(x: Array) -> Moments:
    n = len(x)
    zeros = n - int(np.count_nonzero(x if x.ndim == 1 else x.any(axis=1)))
    nan = inf = 0
    if not (np.isfinite(x.min()) and np.isfinite(x.max())):  # both propagate NaN
        nans, infs = _not_finite(x)
        nan, inf = int(nans.sum()), int(infs.sum())
        x = x[~(nans | infs)]
        if not len(x):
            return Moments(n, 0, nan, inf, zeros)
    near, power = _in_range(x, _component(x))
    sums = near.sum(axis=0)
    apart = near - sums / len(near)
    real = x.ndim == 1
    return Moments(
        items=n,
        finite=len(x),
        nan=nan,
        inf=inf,
        zeros=zeros,
        low=float(x.min()) if real else None,
        high=float(x.max()) if real else None,
        largest=_magnitude(x),
        sums=tuple(_scaled(s, power) for s in np.atleast_1d(sums)),
        spread=_scaled(np.multiply(apart, apart).sum(), 2 * power),
        squares=_scaled(np.multiply(near, near).sum(), 2 * power),
    )


def _of_ints(x: Array) -> Moments:
    n = len(x)
    low, high = int(x.min()), int(x.max())
    # Counted from the least one: exact, and no 64-bit number is lost in a float's 53 bits.
    above = _distance(x, np.full(1, low, x.dtype))
    total = (int((above >> np.uint64(32)).sum()) << 32) + int((above & np.uint64(0xFFFFFFFF)).sum())
    apart = above.astype(np.float64) - total / n
    squares = x.astype(np.float64)
    return Moments(
        items=n,
        finite=n,
        zeros=n - int(np.count_nonzero(x)),
        low=low,
        high=high,
        largest=max(high, -low),
        sums=(Decimal(low * n + total),),
        spread=Decimal(float(np.multiply(apart, apart).sum())),
        squares=Decimal(float(np.multiply(squares, squares).sum())),
    )


def _distance(a: Array, b: Array) -> Array:
    """``|a - b|`` of integers, exactly."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    x, y = a.astype(wide, copy=False), b.astype(wide, copy=False)
    # The wrapped difference of the larger and the smaller is the distance, up to 2**64 - 1.
    return np.where(x >= y, x.view(np.uint64) - y.view(np.uint64),
                    y.view(np.uint64) - x.view(np.uint64))  # fmt: skip


# -- two tensors ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """How two pieces of one shape and dtype differ; ``+`` joins those of two places.

    Attributes:
        items: how many were compared.
        changed: how many differ in a bit (those cut by the piece's borders aside).
        cut: numbers of the items that a border cuts, and that differ in what of them is here.
        finite: how many are finite on both sides; the rest is about these.
        squares: sum of the squared magnitudes of what was added.
        base: sum of the squared magnitudes of what was there before.
        largest: the greatest magnitude of a change; None of none.
        nan: NaNs before, and after.
        inf: infinities before, and after.
    """

    items: int = 0
    changed: int = 0
    cut: frozenset[int] = frozenset()
    finite: int = 0
    squares: Decimal = _ZERO
    base: Decimal = _ZERO
    largest: float | None = None
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.items + other.items,
            self.changed + other.changed,
            self.cut | other.cut,
            self.finite + other.finite,
            _add(self.squares, other.squares),
            _add(self.base, other.base),
            _greatest(self.largest, other.largest),
            (self.nan[0] + other.nan[0], self.nan[1] + other.nan[1]),
            (self.inf[0] + other.inf[0], self.inf[1] + other.inf[1]),
        )


def compare(items: Items, before: Buffer, after: Buffer, start: int = 0) -> Difference:
    """How two pieces of equal length differ.

    Args:
        items: how their items read.
        before: the bytes of one.
        after: the bytes of the other.
        start: where in the tensor they begin, in bytes; items that are no numbers may be cut there.

    Raises:
        EncodingError: the lengths differ, or numbers are cut.
    """
    a, b = memoryview(before).cast("B"), memoryview(after).cast("B")
    if len(a) != len(b):
        raise EncodingError(f"{len(a)} bytes cannot be compared with {len(b)}")
    if items.kind == "opaque":
        return _opaque(items.itemsize, np.frombuffer(a, "u1") != np.frombuffer(b, "u1"), start)
    total = Difference()
    number = _compare_ints if items.kind in ("int", "bool") else _compare_floats
    with np.errstate(all="ignore"):
        for block in _blocks(items, len(a)):
            total += number(items, a[block], b[block])
    return total


def _opaque(itemsize: int, differ: Array, start: int) -> Difference:
    n = len(differ)
    if not itemsize or not n:
        return Difference()
    head = min(n, -start % itemsize)
    tail = (start + n) % itemsize if head < n else 0
    cut = set()
    if differ[:head].any():
        cut.add(start // itemsize)
    if tail and differ[n - tail :].any():
        cut.add((start + n) // itemsize)
    inner = differ[head : n - tail].reshape(-1, itemsize)
    # A cut item is counted where it begins.
    begun = (start + n - 1) // itemsize - (start - 1) // itemsize
    return Difference(begun, int(inner.any(axis=1).sum()), frozenset(cut))


def _changed(items: Items, a: Buffer, b: Buffer) -> int:
    size = min(items.itemsize, 8)
    differ = np.frombuffer(a, f"u{size}") != np.frombuffer(b, f"u{size}")
    if items.itemsize > size:
        differ = differ.reshape(-1, items.itemsize // size).any(axis=1)
    return int(np.count_nonzero(differ))


def _compare_floats(items: Items, before: Buffer, after: Buffer) -> Difference:
    a, b = _floats(items, before), _floats(items, after)
    n = len(a)
    change = b - a
    nan = inf = (0, 0)
    power = 0
    if not np.isfinite(change).all():
        nans, infs = zip(*map(_not_finite, (a, b)), strict=True)
        nan = (int(nans[0].sum()), int(nans[1].sum()))
        inf = (int(infs[0].sum()), int(infs[1].sum()))
        both = ~(nans[0] | infs[0] | nans[1] | infs[1])
        a, b = a[both], b[both]
        change = b - a
        if not np.isfinite(change).all():  # beyond the floats: of halves it is not
            change, power = b * 0.5 - a * 0.5, 1
    squares = _squares(change, _component(change))
    return Difference(
        items=n,
        changed=_changed(items, before, after),
        finite=len(a),
        squares=_DECIMALS.multiply(squares, 4) if power else squares,
        base=_squares(a, _component(a)),
        largest=_magnitude(change) * 2**power if len(a) else None,
        nan=nan,
        inf=inf,
    )


def _not_finite(x: Array) -> tuple[Array, Array]:
    """Which items are NaN, and which others are infinite."""
    nans: Array = np.isnan(x)
    infs: Array = np.isinf(x)
    if x.ndim == 2:
        nans, infs = np.logical_or.reduce(nans, axis=1), np.logical_or.reduce(infs, axis=1)
    return nans, infs & ~nans


def _compare_ints(items: Items, before: Buffer, after: Buffer) -> Difference:
    a, b = _ints(items, before), _ints(items, after)
    apart = _distance(a, b)
    far, base = apart.astype(np.float64), a.astype(np.float64)
    return Difference(
        items=len(a),
        changed=_changed(items, before, after),
        finite=len(a),
        squares=Decimal(float(np.multiply(far, far).sum())),
        base=Decimal(float(np.multiply(base, base).sum())),
        largest=int(apart.max()),
    )
