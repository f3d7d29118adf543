"""The window: which checkpoints of a branch stay, and what letting go of the others frees.

Pure: nothing here reads or writes.  Order is the order of the branch's list, which is the log's;
no file time, no name and no clock of now takes part.  *Verified* and *newest* are what they are at
the fold that the caller looks at.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from castore.errors import UnsupportedFeature, UsageError
from castore.log.entry import Change, Condemned, LetGo, Unlisted
from castore.log.fold import Fold, plan_condemned
from castore.model.digest import Digest

__all__ = [
    "Best",
    "Decision",
    "Listed",
    "Policy",
    "Release",
    "counted",
    "holders",
    "loose",
    "metric_of",
    "plan_release",
    "select",
    "wanting",
]

#: ``keep_last`` where none is given, and the fewest that are taken without ``below_three``.
KEEP_LAST = 3
#: No count and no period is greater.
MOST = (1 << 63) - 1

_BEST = re.compile(r"(?P<metric>.+?)(?::(?P<mode>min|max))?(?::(?P<count>\d{1,18}))?", re.DOTALL)
_PERIOD = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)([wdhms])")
_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_NS = 10**9


# -- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the ``count`` checkpoints whose ``meta`` has the least (or greatest) ``metric``."""

    metric: str
    mode: str = "min"
    count: int = 1

    def __str__(self) -> str:
        return f"{self.metric}:{self.mode}:{self.count}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which checkpoints of a branch stay: each rule adds to what the others keep.

    Attributes:
        keep_last: the newest so many *verified* ones, and everything newer.
        keep_every: those whose step is a multiple of this.
        keep_best: the best by a number in their ``meta``.
        keep_within: those at most so many nanoseconds older than the newest.
    """

    keep_last: int = KEEP_LAST
    keep_every: int | None = None
    keep_best: tuple[Best, ...] = ()
    keep_within: int | None = None

    @classmethod
    def of(
        cls,
        *,
        keep_last: Any = None,
        keep_every: Any = None,
        keep_best: Any = None,
        keep_within: Any = None,
        below_three: bool = False,
    ) -> Policy:
        """A policy from what people say: ``keep_best="loss:min:2"``, ``keep_within="2d"``.

        Raises:
            UsageError: a value is none, or ``keep_last`` is under 3 without ``below_three``.
        """
        last = KEEP_LAST if keep_last is None else _count("keep_last", keep_last)
        if last < KEEP_LAST and not below_three:
            raise UsageError(
                f"keep_last={last} would leave {last} verified checkpoint"
                f"{'' if last == 1 else 's'}: one bad byte away from little or nothing. Keep "
                f"{KEEP_LAST}, or say below_three=True (--below-three)"
            )
        rules = () if keep_best is None else keep_best
        rules = (rules,) if isinstance(rules, (str, Best)) else rules
        if not isinstance(rules, Iterable):
            raise UsageError(f"keep_best is text such as 'loss:min:2', not {rules!r}")
        return cls(
            last,
            None if keep_every is None else _count("keep_every", keep_every),
            tuple(dict.fromkeys(map(_best, rules))),
            None if keep_within is None else _period(keep_within),
        )

    def plain(self) -> tuple[Any, ...]:
        """The policy as the log's ``window`` change holds it: an array of rules, in this order."""
        rules: list[tuple[Any, ...]] = [("keep_last", self.keep_last)]
        if self.keep_every is not None:
            rules.append(("keep_every", self.keep_every))
        rules += [("keep_best", b.metric, b.mode, b.count) for b in self.keep_best]
        if self.keep_within is not None:
            rules.append(("keep_within", self.keep_within))
        return tuple(rules)

    @classmethod
    def stored(cls, plain: tuple[Any, ...]) -> Policy:
        """The reverse of :meth:`plain`.

        Raises:
            UnsupportedFeature: a rule is not known: what it keeps cannot be told.
        """
        try:
            last, every, within = KEEP_LAST, None, None
            best: list[Best] = []
            for name, *values in plain:
                match name, values:
                    case "keep_last", [n]:
                        last = _count("keep_last", n)
                    case "keep_every", [n]:
                        every = _count("keep_every", n)
                    case "keep_best", [str(metric), "min" | "max" as mode, n]:
                        best.append(Best(metric, mode, _count("keep_best", n)))
                    case "keep_within", [n]:
                        within = _count("keep_within", n)
                    case _:
                        raise ValueError(name)
        except (TypeError, ValueError, UsageError) as e:
            raise UnsupportedFeature(
                f"the stored policy {plain!r} has a rule that this castore does not know, so it "
                "lets nothing go; use a newer castore, or set the policy anew"
            ) from e
        return cls(last, every, tuple(best), within)

    def __str__(self) -> str:
        words = [f"keep_last={self.keep_last}"]
        if self.keep_every is not None:
            words.append(f"keep_every={self.keep_every}")
        words += [f"keep_best={best}" for best in self.keep_best]
        if self.keep_within is not None:
            words.append(f"keep_within={period_text(self.keep_within)}")
        return " ".join(words)


def _count(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MOST:
        raise UsageError(f"{name} is a whole number from 1 up, not {value!r}")
    return number


def _best(rule: Any) -> Best:
    if isinstance(rule, Best):
        return rule
    match = _BEST.fullmatch(rule) if isinstance(rule, str) else None
    if match is None or not match["metric"].isprintable():
        raise UsageError(
            f"keep_best is METRIC[:min|max][:N], such as 'loss' or 'eval/accuracy:max:2', not "
            f"{rule!r}"
        )
    return Best(match["metric"], match["mode"] or "min", _count("keep_best", int(match[3] or 1)))


def _period(value: Any) -> int:
    """A length of time in nanoseconds: ``2d``, ``1d12h``, ``1.5h``, or a timedelta."""
    if isinstance(value, timedelta):
        ns = (value // timedelta(microseconds=1)) * 1000
    elif isinstance(value, str) and _PERIOD.sub("", value.strip()) == "" and value.strip():
        ns = round(sum(float(n) * _UNITS[u] for n, u in _PERIOD.findall(value)) * _NS)
    else:
        ns = 0
    if not 1 <= ns <= MOST:
        raise UsageError(
            f"keep_within is a length of time such as '2d', '36h' or '1w' (w, d, h, m, s), or a "
            f"timedelta, not {value!r}"
        )
    return ns


def period_text(ns: int) -> str:
    """A length of time as :func:`_period` reads it: ``2d``, ``1d12h``."""
    seconds, rest = divmod(ns, _NS)
    out = ""
    for unit, length in _UNITS.items():
        n, seconds = divmod(seconds, length)
        if unit == "s" and rest:
            out += f"{n}.{rest:09d}".rstrip("0") + "s"
        elif n:
            out += f"{n}{unit}"
    return out


# -- selecting ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint of a branch's list, as a policy looks at it.

    Attributes:
        digest: its name.
        step: its label.
        time: when it was made, nanoseconds since the epoch by its writer's clock.
        held: what else keeps it: ``tag v1``, ``pin p``.
        metrics: numbers of its ``meta`` by name: None where it has none of that name; a name is
            missing where the ``meta`` could not be read.
    """

    digest: Digest
    step: int | None = None
    time: int = 0
    held: tuple[str, ...] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)


class Decision(NamedTuple):
    """Whether a checkpoint stays on its list, and why."""

    checkpoint: Listed
    keep: bool
    reason: str


def metric_of(meta: Mapping[str, Any] | None, name: str) -> float | None:
    """A number of a checkpoint's ``meta``: by its key, or by a path ``eval/loss`` of keys.

    None where it has none; NaN, which is best at nothing, counts as none.
    """
    value: Any = meta
    if meta is not None and name in meta:
        value = meta[name]
    else:
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return value


def select(
    checkpoints: Sequence[Listed], policy: Policy, verified: Container[Digest]
) -> list[Decision]:
    """Which checkpoints of a branch stay on its list, and why.

    The newest always stays, and so does what a tag or a pin holds.  What is not verified pushes
    nothing out: each rule counts verified checkpoints only, and keeps beside them what is not
    verified and would be better.

    Args:
        checkpoints: the branch's list, oldest first: the log's order.
        policy: the branch's.
        verified: digests of those that are verified.

    Returns:
        A decision for each, in the same order.
    """
    kept: list[list[str]] = [[] for _ in checkpoints]
    if checkpoints:
        kept[-1].append("the newest")
    for rule in _rules(checkpoints, policy, verified):
        for i, reason in rule.kept.items():
            kept[i].append(reason)
    out = []
    for c, found in zip(checkpoints, kept, strict=True):
        reasons = [*found, *c.held]
        gone = f"older than the newest {policy.keep_last} verified, and no other rule keeps it"
        out.append(Decision(c, bool(reasons), "; ".join(reasons) or gone))
    return out


def wanting(
    checkpoints: Sequence[Listed],
    policy: Policy,
    verified: Collection[Digest],
    spared: Collection[Digest] = (),
) -> list[Digest]:
    """Which checkpoints must be verified for the policy to drop all that it would, newest first.

    Arguments are those of :func:`select`, and ``spared``: those that are not to be read back, or
    were and are damaged.
    """
    hoped = {c.digest for c in checkpoints if c.digest not in spared} | set(verified)

    def dropped(sound: Container[Digest]) -> int:
        return sum(not d.keep for d in select(checkpoints, policy, sound))

    if dropped(hoped) == dropped(verified):
        return []
    needed = counted(checkpoints, policy, hoped)
    return [c.digest for c in reversed(checkpoints) if c.digest in needed - set(verified)]


def counted(
    checkpoints: Sequence[Listed], policy: Policy, verified: Container[Digest]
) -> set[Digest]:
    """The verified checkpoints that the rules count: those that push others out."""
    return {
        checkpoints[i].digest for rule in _rules(checkpoints, policy, verified) for i in rule.counts
    }


class _Rule(NamedTuple):
    """What one rule keeps, by place in the list, and which of that it counts."""

    counts: Collection[int]
    kept: dict[int, str]


def _rules(
    checkpoints: Sequence[Listed], policy: Policy, verified: Container[Digest]
) -> Iterator[_Rule]:
    sound = [i for i, c in enumerate(checkpoints) if c.digest in verified]
    yield _last(len(checkpoints), policy.keep_last, sound)
    if policy.keep_every is not None:
        every, reason = policy.keep_every, f"step a multiple of {policy.keep_every:,}"
        steps = ((i, c.step) for i, c in enumerate(checkpoints))
        yield _Rule((), {i: reason for i, s in steps if s is not None and s % every == 0})
    for best in policy.keep_best:
        yield _best_of(checkpoints, best, set(sound))
    if policy.keep_within is not None and sound:
        # From the newest verified: what is not verified must not make others look old.
        since = checkpoints[sound[-1]].time - policy.keep_within
        reason = f"at most {period_text(policy.keep_within)} older than the newest"
        young = (i for i, c in enumerate(checkpoints) if c.time >= since)
        yield _Rule((sound[-1],), dict.fromkeys(young, reason))


def _last(total: int, n: int, sound: Sequence[int]) -> _Rule:
    """The newest ``n`` verified ones, and everything newer; everything where there are fewer."""
    counts = sound[-n:]
    enough = len(counts) == n
    newest = "the newest verified" if n == 1 else f"one of the newest {n} verified"
    newer = f"not verified, and newer than {newest}" if enough else f"fewer than {n} are verified"
    places = range(counts[0] if enough else 0, total)
    return _Rule(counts, {i: newest if i in counts else newer for i in places})


def _best_of(checkpoints: Sequence[Listed], best: Best, sound: Container[int]) -> _Rule:
    """The best verified ones, what is not verified and better, and what could not be read."""
    sign = 1 if best.mode == "min" else -1
    what = f"best {best.metric} ({best.mode})"
    kept = {
        i: f"its {best.metric} could not be read"
        for i, c in enumerate(checkpoints)
        if best.metric not in c.metrics
    }
    ranked = sorted(
        (sign * value, -i)  # of equals the newer is better
        for i, c in enumerate(checkpoints)
        if (value := c.metrics.get(best.metric)) is not None
    )
    counts: list[int] = []
    for _, place in ranked:
        i = -place
        if i not in sound:
            kept[i] = f"{what}, though not verified"
            continue
        counts.append(i)
        kept[i] = what if best.count == 1 else f"{what}: number {len(counts)} of {best.count}"
        if len(counts) == best.count:
            break
    return _Rule(counts, kept)


# -- letting go -----------------------------------------------------------------------------------


class Release(NamedTuple):
    """What an entry does to let checkpoints go.

    Attributes:
        changes: lists shortened, checkpoints let go, packs condemned.
        let_go: checkpoints that are live no more.
        condemned: packs that no live checkpoint needs any more.
    """

    changes: tuple[Change, ...]
    let_go: tuple[Digest, ...]
    condemned: tuple[str, ...]


def holders(fold: Fold) -> dict[Digest, tuple[str, ...]]:
    """Checkpoint -> the tags and pins that hold it: ``tag v1``, ``pin p``."""
    out: dict[Digest, tuple[str, ...]] = {}
    named = [
        *((f"tag {name}", digest) for name, digest in fold.tags.items()),
        *((f"pin {name}", digest) for name, (digest, _) in fold.pins.items()),
    ]
    for name, digest in named:
        out[digest] = (*out.get(digest, ()), name)
    return out


def loose(fold: Fold) -> list[Digest]:
    """Live checkpoints on no list, tag or pin, oldest first."""
    listed = {d for branch in fold.branches.values() for d in branch.checkpoints}
    held = holders(fold)
    return [d for d in fold.live if d not in listed and d not in held]


def plan_release(
    fold: Fold, unlisted: Mapping[str, Collection[Digest]], also: Collection[Digest] = ()
) -> Release:
    """How checkpoints leave lists, and what that lets go and frees: a function of the log alone.

    Args:
        fold: the store at the number before the entry's, all else the entry does included.
        unlisted: branch -> checkpoints that leave its list.  Of these those are let go that are
            then on no list, tag or pin; the others stay live.
        also: further checkpoints to let go, if they are on none either.
    """
    off: list[Change] = [
        Unlisted(name, tuple(digests)) for name, digests in unlisted.items() if digests
    ]
    meant = {d for digests in unlisted.values() for d in digests}.union(also)
    let_go = tuple(d for d in loose(fold.with_changes(off)) if d in meant)
    gone: list[Change] = [LetGo(let_go)] if let_go else []
    after = fold.with_changes([*off, *gone])
    condemned = plan_condemned(after, [p for p in fold.packs if p not in after.packs])
    doomed: list[Change] = [Condemned(condemned)] if condemned else []
    return Release((*off, *gone, *doomed), let_go, condemned)
