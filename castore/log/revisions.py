"""The revision grammar: how people name a checkpoint.

    main            a branch's head, or a tag
    main~3          three live checkpoints back on the branch's list
    main@{7}        where main stood 7 moves ago
    main@step=1000  the newest on the branch with that step
    4f2a9c          a digest prefix of six hex digits or more
    REV:model/x     a place in the state of REV

A branch or tag may be written in full as git does, ``refs/heads/main``.  Parsing is pure; resolving
looks at a fold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from castore.errors import AmbiguousRevision, BadRevision, CheckpointGone, NoCheckpoint
from castore.log.fold import Branch, Fold, Live
from castore.log.log import Log
from castore.log.names import close_names, plain_name
from castore.model.digest import Digest

__all__ = ["MIN_PREFIX", "Revision", "parse_revision", "resolve"]

#: The shortest digest prefix that names a checkpoint.
MIN_PREFIX = 6

_PREFIX = re.compile(rf"[0-9a-fA-F]{{{MIN_PREFIX},64}}")
#: No number of ours is longer, and Python refuses to read very long ones.
_SUFFIX = re.compile(
    r"~(?P<back>\d{0,18})|@\{(?P<moves>\d{1,18})\}|@step=(?P<step>-?\d{1,19})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Revision:
    """A parsed revision.

    Attributes:
        base: branch, tag or digest prefix.
        at: None, ``("moves", n)`` or ``("step", n)``.
        back: how many checkpoints further back.
        path: key path below it, or None.
    """

    base: str
    at: tuple[str, int] | None = None
    back: int = 0
    path: str | None = None

    def __str__(self) -> str:
        at = ""
        if self.at:
            at = f"@{{{self.at[1]}}}" if self.at[0] == "moves" else f"@step={self.at[1]}"
        back = f"~{self.back}" if self.back else ""
        path = f":{self.path}" if self.path is not None else ""
        return f"{self.base}{at}{back}{path}"


def parse_revision(text: str) -> Revision:
    """Read a revision.

    Raises:
        BadRevision: it is not of the grammar.
    """
    if not isinstance(text, str):
        raise BadRevision(f"a revision is text, such as 'main' or 'main@step=1000', not {text!r}")
    rev, colon, path = text.partition(":")
    cut = min(
        (i for i in (rev.find("~"), rev.find("@{"), rev.find("@step=")) if i >= 0), default=-1
    )
    base, rest = (rev, "") if cut < 0 else (rev[:cut], rev[cut:])
    base = plain_name(base)
    if not base:
        raise BadRevision(f"{text!r} names no branch, tag or digest")
    at: tuple[str, int] | None = None
    back = 0
    while rest:
        m = _SUFFIX.match(rest)
        if m is None or (m["back"] is None and (at or back)):
            raise BadRevision(
                f"{text!r} is no revision: {rest!r} is not understood; "
                "say BRANCH, TAG or DIGEST, then @{N} or @step=N, then ~N, then :PATH"
            )
        if m["back"] is not None:
            back += int(m["back"] or 1)
        elif m["moves"] is not None:
            at = ("moves", int(m["moves"]))
        else:
            at = ("step", int(m["step"]))
        rest = rest[m.end() :]
    return Revision(base, at, back, path if colon else None)


def resolve(revision: Revision, fold: Fold, log: Log) -> Live:
    """The live checkpoint a revision names.

    Raises:
        BadRevision: no such branch, tag, digest, step or place in the list.
        AmbiguousRevision: a digest prefix fits several.
        CheckpointGone: it was let go; says by whom, when and why.
        NoCheckpoint: the branch or the whole store has none.
    """
    branch = fold.branches.get(revision.base)
    if branch is not None and branch.head is not None:
        if revision.at is None:
            return _back(revision, fold, branch.checkpoints, len(branch.checkpoints) - 1)
        kind, n = revision.at
        if kind == "step":
            for i in range(len(branch.checkpoints) - 1, -1, -1):
                if fold.live[branch.checkpoints[i]].add.step == n:
                    return _back(revision, fold, branch.checkpoints, i)
            steps = [fold.live[c].add.step for c in branch.checkpoints[-5:]]
            raise BadRevision(
                f"{revision.base} has no checkpoint of step {n}; its newest steps are "
                f"{', '.join(str(s) for s in steps)}"
            )
        return _moved(revision, branch, n, fold, log)
    if revision.base in fold.tags:
        if revision.at is not None:
            raise BadRevision(f"{revision.base} is a tag: it has no moves and no list of steps")
        return _parents(revision, fold, _live(fold.tags[revision.base], revision, fold, log))
    if branch is not None and revision.at is not None and revision.at[0] == "moves":
        return _moved(revision, branch, revision.at[1], fold, log)  # removed: its moves are known
    return _parents(revision, fold, _by_prefix(revision, fold, log))


def _moved(revision: Revision, branch: Branch, n: int, fold: Fold, log: Log) -> Live:
    """Where a branch stood ``n`` moves ago."""
    if n >= len(branch.moves):
        times = "once" if len(branch.moves) == 1 else f"{len(branch.moves)} times"
        raise BadRevision(
            f"{revision.base} has moved {times}: the furthest back is "
            f"{revision.base}@{{{len(branch.moves) - 1}}}"
        )
    digest = branch.moves[-1 - n][1]
    if digest is None:
        raise BadRevision(f"{revision} is where {revision.base} was removed")
    return _parents(revision, fold, _live(digest, revision, fold, log))


def _back(revision: Revision, fold: Fold, listed: tuple[Digest, ...], i: int) -> Live:
    if revision.back > i:
        raise BadRevision(
            f"{revision} goes back too far: {revision.base} lists {len(listed)} checkpoint"
            f"{'s' if len(listed) != 1 else ''}"
        )
    return fold.live[listed[i - revision.back]]


def _parents(revision: Revision, fold: Fold, live: Live) -> Live:
    for n in range(revision.back):
        parent = live.add.parent
        if parent is None or parent not in fold.live:
            raise BadRevision(
                f"{revision} goes back too far: {live.digest.short} ({n} back) has no live parent"
            )
        live = fold.live[parent]
    return live


def _live(digest: Digest, revision: Revision, fold: Fold, log: Log) -> Live:
    if digest in fold.live:
        return fold.live[digest]
    if digest in fold.gone:
        raise CheckpointGone(
            f"checkpoint {digest.short} ({revision}) was let go: {log.describe(fold.gone[digest])}",
            checkpoint=digest.hex(),
            seq=fold.gone[digest],
        )
    raise BadRevision(f"{revision} names {digest.short}, which the log does not know")


def _by_prefix(revision: Revision, fold: Fold, log: Log) -> Live:
    base = revision.base
    if _PREFIX.fullmatch(base):
        prefix = base.lower()
        found = [d for d in (*fold.live, *fold.gone) if d.hex().startswith(prefix)]
        if len(found) > 1:
            names = [
                f"{d.hex()[: max(12, len(prefix) + 4)]}"
                + (f" (step {fold.live[d].add.step})" if d in fold.live else " (let go)")
                for d in found
            ]
            raise AmbiguousRevision(
                f"{base} fits {len(found)} checkpoints: {', '.join(names[:10])}",
                candidates=[d.hex() for d in found],
            )
        if found:
            return _live(found[0], revision, fold, log)
    if not fold.live and not fold.gone and base == "main":
        raise NoCheckpoint("the store holds no checkpoint yet")
    if base in fold.branches:
        raise BadRevision(_removed(base, fold.branches[base], log))
    names = [*fold.heads(), *sorted(fold.tags)]
    raise BadRevision(f"there is no branch, tag or checkpoint {base!r}; {close_names(base, names)}")


def _removed(name: str, branch: Branch, log: Log) -> str:
    """That a branch was removed: by whom, and how to have it back."""
    text = f"branch {name} was removed: {log.describe(branch.moves[-1][0])}"
    stood = next((d for _, d in reversed(branch.moves) if d is not None), None)
    return text if stood is None else f"{text}; `castore branch {name} {stood.short}` makes it anew"
