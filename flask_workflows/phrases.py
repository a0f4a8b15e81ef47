"""How durations, instants, counts and sizes read to a person."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta
from datetime import tzinfo

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def duration(length: timedelta) -> str:
    """A measured length: "84 ms", "13.1 s", "2 min 5 s", "3 h 11 min", "2 d 4 h"."""
    millis = max(round(length / timedelta(milliseconds=1)), 0)
    if millis < 1000:
        return f"{millis} ms"
    if millis < 59_950:
        return f"{millis / 1000:.1f}".removesuffix(".0") + " s"

    return _two_units(round(millis / 1000))


def age(length: timedelta) -> str:
    """A length that goes on growing or shrinking, to the second at most: "40 s", "3 min", "3 h 11 min"."""
    seconds = max(round(length.total_seconds()), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"

    return _two_units(seconds)


def _two_units(seconds: int) -> str:
    if seconds < 3600:
        return _pair(seconds // 60, "min", seconds % 60, "s")
    if seconds < 86_400:
        return _pair(seconds // 3600, "h", seconds % 3600 // 60, "min")
    if seconds < 100 * 86_400:
        return _pair(seconds // 86_400, "d", seconds % 86_400 // 3600, "h")

    return f"{number(seconds // 86_400)} d"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def local(at: datetime, zone: tzinfo) -> datetime:
    """The instant in a zone; in its own where the calendar ends before that."""
    try:
        return at.astimezone(zone)
    except OverflowError:
        return at


def later(at: datetime, length: timedelta) -> datetime:
    """The instant so much later; the instant itself where the calendar ends before that."""
    try:
        return at + length
    except OverflowError:
        return at


def instant(at: datetime, *, now: datetime, zone: tzinfo, seconds: bool = True) -> str:
    """The time of day today, with the day on other days: "14:01:58", "Thu 4 Dec 09:00", "12 Oct 2025 09:00"."""
    there, today = local(at, zone), now.astimezone(zone).date()
    if there.date() == today:
        return there.strftime("%H:%M:%S" if seconds else "%H:%M")

    day = f"{there.day} {_MONTHS[there.month - 1]}"
    if there.year != today.year:
        day = f"{day} {there.year}"
    elif abs((there.date() - today).days) < 7:
        day = f"{_DAYS[there.weekday()]} {day}"
    return f"{day} {there:%H:%M}"


def number(value: int) -> str:
    """Grouped by thousands: "2,310"."""
    return f"{value:,}"


def count(value: int, *, capped: bool = False) -> str:
    """As `number`; "2,310+" or "10k+" where there are at least so many."""
    if not capped:
        return number(value)
    return f"{value // 1000}k+" if value >= 10_000 else f"{number(value)}+"


def share(part: int, whole: int) -> str:
    """A part of a whole: "20 %", "<1 %", "99.5 %"."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return "<1 %"
    return f"{percent:.1f}".removesuffix(".0") + " %" if 99 < percent < 100 else f"{percent:.0f} %"


def several(value: int, noun: str, plural: str | None = None) -> str:
    """The number and the noun in the right form: "1 run", "2 runs"."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def size(length: int) -> str:
    """A number of bytes: "812 bytes", "3.4 kB", "340 kB", "5.2 MB"."""
    if length < 1000:
        return several(length, "byte")
    for unit in ("kB", "MB"):
        length_in_unit = length / (1000 if unit == "kB" else 1_000_000)
        if length_in_unit < 999.5 or unit == "MB":
            break
    text = f"{length_in_unit:.1f}".removesuffix(".0") if length_in_unit < 10 else f"{length_in_unit:,.0f}"
    return f"{text} {unit}"


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of the first line, with an ellipsis where something is missing."""
    line, newline, _ = text.strip().partition("\n")
    if len(line) > limit:
        return line[: limit - 1].rstrip() + "…"
    return f"{line} …" if newline else line


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of a text of several lines, and how many are left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({number(len(text) - limit)} more characters)"
