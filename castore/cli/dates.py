"""Dates as people say them, after git: ``2026-12-01``, ``2 days ago``, ``yesterday``, ``3h``.

Pure.  Times without a zone are UTC, in which castore shows all times; a date without a time is the
beginning of that day.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta

__all__ = ["DATES", "parse_date"]

#: For help pages.
DATES = """\
A DATE is one as the log shows it (2026-12-01T15:24:08Z), a day (2026-12-01:
its beginning), '2 days ago', '1 week 3 hours ago', 3h, yesterday (24 hours
ago), today (its beginning), monday, 'last month', or @SECONDS since 1970.
Without a zone it is UTC, as all times are shown."""

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: n for n, word in enumerate(_NUMBERS)} | {"a": 1, "an": 1, "last": 1}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_MONTHS = {"month": 1, "year": 12}
_SHORT = {
    "s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "hr": "hour",
    "d": "day", "w": "week", "mo": "month", "y": "year", "yr": "year",
}  # fmt: skip
_WEEKDAYS = [day.lower() for day in calendar.day_name]
_SPAN = re.compile(r"(\d+|[a-z]+)\s*([a-z]+)")
_DAY = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})", re.ASCII)


def parse_date(text: str, now: int) -> int:
    """Nanoseconds since the epoch of a date as people say it.

    Args:
        text: the date.
        now: what time it is, in nanoseconds since the epoch.

    Raises:
        ValueError: it is none.
    """
    words = text.strip()
    if words[:1] == "@" and words[1:].isdecimal():
        return int(words[1:]) * 10**9
    try:
        when = _fixed(words) or _relative(words.lower(), datetime.fromtimestamp(now / 1e9, UTC))
    except OverflowError:
        when = None
    if when is None:
        raise ValueError(
            f"{text!r} is no date: say 2026-12-01, 2026-12-01T15:24:08Z, '2 days ago' or yesterday"
        )
    return int(when.timestamp()) * 10**9 + when.microsecond * 1000


def _fixed(text: str) -> datetime | None:
    """A date of the calendar."""
    if day := _DAY.fullmatch(text):
        text = f"{day[1]}-{day[2]:0>2}-{day[3]:0>2}"
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)


def _relative(text: str, now: datetime) -> datetime | None:
    """A date counted from now."""
    text = re.sub(r"[\s._]+", " ", text)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {
        "now": now,
        "today": midnight,
        "midnight": midnight,
        "yesterday": now - timedelta(days=1),
    }
    if text in named:
        return named[text]
    if (day := text.removeprefix("last ")) in _WEEKDAYS:
        back = (now.weekday() - _WEEKDAYS.index(day)) % 7 or 7
        return now - timedelta(days=back)
    spans = text.removesuffix(" ago")
    if not spans or _SPAN.sub("", spans).strip(" ,"):
        return None
    for number, name in _SPAN.findall(spans):
        n = int(number) if number.isdecimal() else _WORDS.get(number)
        one = name.removesuffix("s")
        unit = _SHORT.get(name) or _SHORT.get(one) or one
        if n is None or unit not in _SECONDS | _MONTHS:
            return None
        if unit in _SECONDS:
            now -= timedelta(seconds=n * _SECONDS[unit])
        else:
            now = _months_before(now, n * _MONTHS[unit])
    return now


def _months_before(when: datetime, n: int) -> datetime:
    """The same day ``n`` months before, or that month's last."""
    months = when.year * 12 + when.month - 1 - n
    year, month = months // 12, months % 12 + 1
    if year < 1:
        raise OverflowError("before the year 1")
    day = min(when.day, calendar.monthrange(year, month)[1])
    return when.replace(year=year, month=month, day=day)
