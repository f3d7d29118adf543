"""The error tree, grouped by what a handler does about it.

Imports nothing.  Every error says what happened, where, what was expected and found, and what to do
next; it pickles (errors cross process and rank boundaries) and has a stable kebab-case ``code``
that is only ever added to.

    CastoreError
    |-- UsageError              the call is wrong: mend the call
    |   |-- BadRevision         no such branch, tag or checkpoint
    |   |-- AmbiguousRevision   a digest prefix fits several
    |   |-- BadState            the state holds what cannot be kept exactly
    |   `-- BadFile             a file handed in is not what it should be
    |-- StoreNotFound           there is no store here
    |-- NoCheckpoint            the store is sound, and has nothing to load
    |-- RefConflict             another writer moved the branch: look, then save again
    |-- CheckpointGone          the window or a drop let it go
    |-- CorruptionError         bytes are damaged: `castore fsck`
    |-- StoreUnreadable         the store or its log cannot be read
    |-- SaveFailed              the disk said no; nothing became visible (unless said so)
    |-- RankError               ranks disagree or are missing
    `-- UnsupportedFeature      written by a newer castore, or not built yet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AmbiguousRevision",
    "BadFile",
    "BadRevision",
    "BadState",
    "CastoreError",
    "CastoreWarning",
    "CheckpointGone",
    "CorruptionError",
    "NoCheckpoint",
    "RankError",
    "RefConflict",
    "SaveFailed",
    "StoreNotFound",
    "StoreUnreadable",
    "UnsupportedFeature",
    "UsageError",
]


class CastoreWarning(UserWarning):
    """Something a caller is to be told although the work was done."""


class CastoreError(Exception):
    """Base of all errors of castore.

    Attributes:
        code: stable kebab-case name of the kind of error.
        exit_code: what the command line exits with.
    """

    code: ClassVar[str] = "castore-error"
    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    @property
    def message(self) -> str:
        """The text without fields."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, for ``--json``."""
        fields = {k: _plain(v) for k, v in self.__dict__.items() if not k.startswith("_")}
        return {"type": "error", "code": self.code, "message": self.message, **fields}


def _rebuild(
    cls: type[CastoreError], args: tuple[Any, ...], fields: dict[str, Any]
) -> CastoreError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(fields)
    return error


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


class UsageError(CastoreError):
    """The call or the command line is wrong."""

    code = "usage"
    exit_code = 2


class BadRevision(UsageError):
    """A revision names nothing in the store."""

    code = "bad-revision"


class AmbiguousRevision(UsageError):
    """A digest prefix fits several checkpoints (``candidates``)."""

    code = "ambiguous-revision"
    candidates: Sequence[str] = ()


class BadState(UsageError):
    """The state holds something that cannot be kept exactly; nothing was written.

    Attributes:
        path: key path of the (first) offending value.
        paths: key paths of all of them.
    """

    code = "bad-state"
    path: str = ""
    paths: Sequence[str] = ()


class BadFile(UsageError):
    """A file handed in is not what it should be, or is hostile."""

    code = "bad-file"
    exit_code = 3


class StoreNotFound(CastoreError):
    """There is no store at that path."""

    code = "store-not-found"


class NoCheckpoint(CastoreError):
    """The branch or store holds no checkpoint yet."""

    code = "no-checkpoint"


class RefConflict(CastoreError):
    """Another writer moved the branch since this store last saw it.

    Attributes:
        branch: the branch's name.
        expected: digest (hex) this store last saw there, or None.
        actual: digest (hex) that stands there now, or None.
        by: who moved it (host, pid), or None where that cannot be read.
        seq: the log entry that did.
    """

    code = "ref-conflict"
    branch: str = ""
    expected: str | None = None
    actual: str | None = None
    by: str | None = None
    seq: int = 0


class CheckpointGone(CastoreError):
    """The checkpoint existed, and was let go: the message says by whom, when and why.

    Attributes:
        checkpoint: its digest, hex.
        seq: the log entry that let it go, where known.
    """

    code = "checkpoint-gone"
    checkpoint: str = ""
    seq: int | None = None


class CorruptionError(CastoreError):
    """Stored bytes are damaged or missing; nothing was returned.

    Attributes:
        findings: :class:`castore.reports.Finding` for each damage met.
        target_modified: True where an in-place load had already changed its target.
    """

    code = "corruption"
    exit_code = 1
    findings: Sequence[Any] = ()
    target_modified: bool = False


class StoreUnreadable(CastoreError):
    """The store or its log cannot be read, so nothing that rests on it was done."""

    code = "store-unreadable"

    @classmethod
    def of(cls, cause: OSError, what: str, where: str) -> StoreUnreadable:
        """``what``, because of an error of the system's; at its file, or at ``where``."""
        path = str(cause.filename or where)
        return cls(f"{what}: {cause.strerror or cause} at {path}", path=path)


class SaveFailed(CastoreError):
    """The save did not finish; the branch's head is what it was (unless ``fate_unknown``).

    Attributes:
        errno: the system's error number, or None.
        path: the file concerned.
        needed: bytes that the save needs at most: new ones met so far, and all not yet looked at.
        free: bytes free on the store's file system, where known.
        fate_unknown: True where the entry may exist or appear: look with ``castore log``.
    """

    code = "save-failed"
    errno: int | None = None
    path: str | None = None
    needed: int | None = None
    free: int | None = None
    fate_unknown: bool = False

    @classmethod
    def of(cls, cause: OSError, what: str, where: str) -> SaveFailed:
        """``what``, because of an error of the system's; at its file, or at ``where``."""
        path = str(cause.filename or where)
        text = f"{what}: {cause.strerror or cause} at {path}"
        return cls(text, errno=cause.errno, path=path)


class RankError(CastoreError):
    """Ranks disagree, are missing or failed (``ranks``)."""

    code = "rank-error"
    ranks: Sequence[int] = ()


class UnsupportedFeature(CastoreError):
    """The store needs, or the caller asked for, what this castore does not have."""

    code = "unsupported-feature"
