"""Names of branches and tags: the rules of ``git check-ref-format``.

Names are data inside log entries, never file names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from castore.errors import UsageError

__all__ = ["check_name", "close_names", "plain_name"]

#: Longest name, in UTF-8 bytes.
MAX_NAME = 200
#: Names that an error lists.
MAX_NAMES = 10
#: How git writes names in full.  ``show-ref`` prints them so, and every revision may be so written.
_PREFIXES = ("refs/heads/", "refs/tags/")
#: 40 hex digits or more would read as a digest; six are enough for a prefix.
_HEX = re.compile(r"[0-9a-f]{6,64}")
_FORBIDDEN = set(" ~^:?*[\\\x7f")


def check_name(name: str, what: str = "branch") -> str:
    """Return the name if it may be one.

    Raises:
        UsageError: and says which rule it breaks.
    """
    rule = _broken_rule(name)
    if rule:
        raise UsageError(f"{name!r} cannot be the name of a {what}: {rule}")
    return name


def _broken_rule(name: object) -> str | None:
    if not isinstance(name, str):
        return "it is no text"
    if not name:
        return "it is empty"
    try:
        if len(name.encode()) > MAX_NAME:
            return f"it is longer than {MAX_NAME} bytes"
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if any(ord(c) < 0x20 or c in _FORBIDDEN for c in name):
        return "it holds a space, a control character or one of ~ ^ : ? * [ \\"
    if any(part.startswith(".") or part.endswith(".lock") or not part for part in name.split("/")):
        return "a part of it is empty, begins with '.' or ends with '.lock'"
    if ".." in name or "@{" in name or name.endswith(".") or name.startswith("-") or name == "@":
        return "it holds '..' or '@{', begins with '-', ends with '.', or is '@'"
    if name.startswith("refs/"):
        return "'refs/heads/' and 'refs/tags/' before a name are how git writes it in full"
    if "@step=" in name:
        return "it would read as a step of another branch"
    if _HEX.fullmatch(name):
        return "it would read as a digest"
    return None


def plain_name(name: str) -> str:
    """A branch's or tag's name, which may be written in full: ``refs/heads/main``."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def close_names(name: str, names: Iterable[str]) -> str:
    """For an error: what was meant, perhaps, and what there is."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    more = f", ... ({len(names)} in all)" if len(names) > MAX_NAMES else ""
    return f"{hint}there is: {', '.join(names[:MAX_NAMES]) or 'none'}{more}"
