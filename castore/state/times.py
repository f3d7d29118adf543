"""Dates and times, both ways, with their time zones where these have a stable description.

A zone is an offset (with its name, if it was given one) or a key of the IANA data base; any other
``tzinfo`` is code, and is refused.  The data base itself is the reading machine's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any

from castore.errors import UnsupportedFeature
from castore.model.encoding import EncodingError, encode
from castore.state.collector import Refused, is_text

__all__ = ["DECODERS", "ENCODERS"]

_MAX_NAME = 256  # of a time zone: far more than any real one
_MICROSECOND = timedelta(microseconds=1)


def _zone(value: tzinfo | None) -> list[Any] | None:
    if value is None:
        return None
    zone: list[Any]
    if type(value) is timezone:
        # utcoffset and name, as __init__ was given them: tzname() would make up a name.
        offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
        zone = ["offset", offset // _MICROSECOND, name[0] if name else None]
    else:
        zoneinfo: Any = sys.modules.get("zoneinfo")
        known = zoneinfo is not None and type(value) is zoneinfo.ZoneInfo
        key = getattr(value, "key", None) if known else None
        if key is None:
            raise Refused(
                f"a time zone of type {type(value).__module__}.{type(value).__qualname__}",
                "use datetime.timezone or a zoneinfo.ZoneInfo that has a key",
            )
        zone = ["zone", key]
    text = zone[-1]
    if text is not None and not (len(text) <= _MAX_NAME and is_text(text)):
        raise Refused("a time zone with an odd name", "name it in a few plain characters")
    return zone


def _encode_datetime(value: datetime) -> bytes:
    naive = value.replace(tzinfo=None).isoformat()
    return encode(["datetime", naive, value.fold, _zone(value.tzinfo)])


def _encode_date(value: date) -> bytes:
    return encode(["date", value.isoformat()])


def _encode_time(value: time) -> bytes:
    naive = value.replace(tzinfo=None).isoformat()
    return encode(["time", naive, value.fold, _zone(value.tzinfo)])


def _encode_timedelta(value: timedelta) -> bytes:
    return encode(["timedelta", value.days, value.seconds, value.microseconds])


ENCODERS: dict[type, Callable[[Any], bytes]] = {
    datetime: _encode_datetime,
    date: _encode_date,
    time: _encode_time,
    timedelta: _encode_timedelta,
}


def _read_zone(value: Any) -> tzinfo | None:
    if value is None:
        return None
    if isinstance(value, list) and value:
        if value[0] == "offset" and len(value) == 3 and type(value[1]) is int:
            offset, name = timedelta(microseconds=value[1]), value[2]
            return timezone(offset) if name is None else timezone(offset, name)
        if value[0] == "zone" and len(value) == 2 and isinstance(value[1], str):
            return _zone_info(value[1])
    raise ValueError("not a time zone")


def _zone_info(key: str) -> tzinfo:
    import zoneinfo

    if len(key) > _MAX_NAME:
        raise ValueError("not a time zone")
    try:
        return zoneinfo.ZoneInfo(key)  # refuses keys that lead out of the data base
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as e:
        raise UnsupportedFeature(
            f"this machine's time zone data has no {key!r}: install or update tzdata"
        ) from e


def _iso(value: list[Any], cls: type[datetime] | type[time]) -> Any:
    _tag, text, fold, zone = value
    read = cls.fromisoformat(text)
    if read.tzinfo is not None or read.isoformat() != text or type(fold) is not int:
        raise ValueError("not in its canonical form")
    return read.replace(fold=fold, tzinfo=_read_zone(zone))


def _read_date(value: list[Any]) -> date:
    _tag, text = value
    read = date.fromisoformat(text)
    if read.isoformat() != text:
        raise ValueError("not in its canonical form")
    return read


def _read_timedelta(value: list[Any]) -> timedelta:
    _tag, days, seconds, microseconds = value
    if not all(type(part) is int for part in value[1:]):
        raise TypeError("its parts are ints")
    read = timedelta(days, seconds, microseconds)
    if [read.days, read.seconds, read.microseconds] != value[1:]:
        raise ValueError("not in its canonical form")
    return read


def _reader(read: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def checked(value: list[Any]) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, OverflowError) as e:
            raise EncodingError(f"not a {value[0]}: {e}") from e

    return checked


DECODERS: dict[str, Callable[[list[Any]], Any]] = {
    "datetime": _reader(lambda value: _iso(value, datetime)),
    "date": _reader(_read_date),
    "time": _reader(lambda value: _iso(value, time)),
    "timedelta": _reader(_read_timedelta),
}
