"""Dates as people say them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from castore.cli.dates import parse_date

#: A Tuesday.
NOW = datetime(2026, 3, 31, 15, 24, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-03-01", "2026-03-01T00:00:00"),
        ("2026/3/1", "2026-03-01T00:00:00"),
        ("2026.03.01", "2026-03-01T00:00:00"),
        ("2026-03-01T12:30:15Z", "2026-03-01T12:30:15"),
        ("2026-03-01 12:30", "2026-03-01T12:30:00"),
        ("2026-03-01T12:30:00+02:00", "2026-03-01T10:30:00"),
        ("2026-03-01T12:30:15.250", "2026-03-01T12:30:15.250000"),
        ("@86400", "1970-01-02T00:00:00"),
        ("now", "2026-03-31T15:24:08"),
        ("today", "2026-03-31T00:00:00"),
        ("yesterday", "2026-03-30T15:24:08"),
        ("Yesterday ", "2026-03-30T15:24:08"),
        ("2 days ago", "2026-03-29T15:24:08"),
        ("2.days.ago", "2026-03-29T15:24:08"),
        ("two days", "2026-03-29T15:24:08"),
        ("a minute ago", "2026-03-31T15:23:08"),
        ("1 week 3 hours ago", "2026-03-24T12:24:08"),
        ("90s", "2026-03-31T15:22:38"),
        ("3h", "2026-03-31T12:24:08"),
        ("2w", "2026-03-17T15:24:08"),
        ("last month", "2026-02-28T15:24:08"),
        ("13 months ago", "2025-02-28T15:24:08"),
        ("1 year ago", "2025-03-31T15:24:08"),
        ("monday", "2026-03-30T15:24:08"),
        ("last tuesday", "2026-03-24T15:24:08"),
    ],
)
def test_dates(text: str, when: str) -> None:
    found = parse_date(text, int(NOW.timestamp()) * 10**9)
    wanted = datetime.fromisoformat(when).replace(tzinfo=UTC)
    assert found == int(wanted.timestamp()) * 10**9 + wanted.microsecond * 1000


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2026-13-01", "2026-02-30", "days ago", "2 fortnights ago", "ago", "2 days hence",
     "9999999 years ago", "99999999999999999999 seconds ago", "12", "@x", "last",
     "2026-03-01T25:00"],
)  # fmt: skip
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(ValueError, match="is no date"):
        parse_date(text, int(NOW.timestamp()) * 10**9)
