"""Durations and instants as users write them, and the Unix milliseconds that are stored."""

from __future__ import annotations

import math
import re
from datetime import datetime
from datetime import timedelta
from datetime import UTC

from .errors import InvalidDuration
from .errors import InvalidInstant

#: A longer wait is a mistake, milliseconds taken for seconds, and would soon leave the calendar.
LONGEST = timedelta(days=36525)

_TYPED = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd])?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_ms(value: timedelta | float, *, what: str) -> int:
    """Return a duration in whole milliseconds, rounded up, so that nothing wakes early.

    A number means seconds. Raise `InvalidDuration` for what is negative, not finite, longer than
    100 years, or no duration; `what` names it in the message.
    """
    exact = value if isinstance(value, timedelta) else _of_seconds(value, what)
    if exact < timedelta():
        raise InvalidDuration(f"{what} must not be negative")
    if exact > LONGEST:
        raise InvalidDuration(f"{what} must not be longer than 100 years")
    return _ceil_ms(exact)


def read_duration(text: str) -> timedelta:
    """A duration as it is typed: `90` for seconds, `10m`, `12h`, `7d`. Raise `InvalidDuration` for anything else."""
    found = _TYPED.fullmatch(text.strip())
    if found is None:
        raise InvalidDuration(f"{text[:50]!r} is no duration; write seconds, or 10m, 12h, 7d")
    return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])


def instant_ms(value: datetime, *, what: str) -> int:
    """Return an instant as Unix milliseconds, rounded up; raise `InvalidInstant` unless it is an aware datetime."""
    if not isinstance(value, datetime):
        raise InvalidInstant(f"{what} must be a datetime with a time zone, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidInstant(
            f"{what} must have a time zone: datetime.now(UTC), or .replace(tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    return _ceil_ms(value - _EPOCH)


def from_ms(ms: int) -> datetime:
    """Return Unix milliseconds as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def _of_seconds(value: float, what: str) -> timedelta:
    # The annotation does not stop a caller without a type checker; True would be a second.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDuration(f"{what} must be a timedelta or a number of seconds, not {type(value).__name__}")
    if not (isinstance(value, int) or math.isfinite(value)):
        raise InvalidDuration(f"{what} must be a finite number of seconds, not {value}")
    try:
        # timedelta rounds to microseconds, which keeps 0.029 s at 29 ms; times 1000 it is a bit more.
        exact = timedelta(seconds=value)
    except OverflowError:
        return timedelta.max if value > 0 else timedelta.min
    # What rounds to nothing still has a sign.
    return exact or _MICROSECOND * ((value > 0) - (value < 0))


def _ceil_ms(exact: timedelta) -> int:
    return -(-exact // timedelta(milliseconds=1))
