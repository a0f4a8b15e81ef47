"""Durations and instants at the border to stored milliseconds."""

from __future__ import annotations

from datetime import date
from datetime import datetime
from datetime import timedelta
from datetime import timezone
from datetime import UTC
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flask_workflows.durations import from_ms
from flask_workflows.durations import instant_ms
from flask_workflows.durations import to_ms
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidInstant
from flask_workflows.errors import WorkflowsError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (timedelta(), 0),
        (1, 1000),
        (1.5, 1500),
        (0.001, 1),
        (0.029, 29),
        (1e9, 1_000_000_000_000),
        (timedelta(days=7), 604_800_000),
        (timedelta(milliseconds=250), 250),
        (timedelta(days=36525), 3_155_760_000_000),
    ],
)
def test_seconds_and_timedeltas_become_milliseconds(value: timedelta | float, ms: int) -> None:
    assert to_ms(value, what="delay") == ms


@pytest.mark.parametrize("value", [0.0004, 1e-9, 5e-324, timedelta(microseconds=1)])
def test_a_duration_below_a_millisecond_is_one(value: timedelta | float) -> None:
    assert to_ms(value, what="delay") == 1


def test_durations_are_rounded_up_so_that_nothing_wakes_early() -> None:
    assert to_ms(timedelta(milliseconds=3, microseconds=1), what="delay") == 4


@pytest.mark.parametrize("value", [-1, -0.001, -1e-9, -1e300, timedelta(microseconds=-1), timedelta.min])
def test_b67_negative_durations_are_refused(value: timedelta | float) -> None:
    with pytest.raises(InvalidDuration, match="timeout must not be negative"):
        to_ms(value, what="timeout")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_b67_durations_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InvalidDuration, match="delay must be a finite number of seconds"):
        to_ms(value, what="delay")


@pytest.mark.parametrize(
    "value", [1e18, 1e300, 10**400, timedelta.max, timedelta(days=36525, microseconds=1), 2.0**1000]
)
def test_b67_enormous_durations_are_refused(value: timedelta | float) -> None:
    with pytest.raises(InvalidDuration, match="longer than 100 years"):
        to_ms(value, what="delay")


@pytest.mark.parametrize("value", [True, False, "10", None, Decimal(1), 1j, [1]])
def test_b67_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDuration, match=f"delay must be a timedelta .* not {type(value).__name__}"):
        to_ms(value, what="delay")


def test_b60_an_instant_is_the_same_whatever_its_zone() -> None:
    utc = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

    zones = [ZoneInfo("America/Los_Angeles"), ZoneInfo("Asia/Kolkata"), timezone(timedelta(hours=-8))]
    instants = {instant_ms(utc.astimezone(zone), what="wake") for zone in zones}

    assert instants == {1_795_953_600_000}
    assert from_ms(1_795_953_600_000) == utc


def test_b60_naive_datetimes_are_refused() -> None:
    with pytest.raises(InvalidInstant, match="wake must have a time zone"):
        instant_ms(datetime(2026, 11, 29, 12, 0), what="wake")  # noqa: DTZ001


@pytest.mark.parametrize("value", [date(2026, 11, 29), 1_795_953_600_000, "2026-11-29T12:00:00Z", None])
def test_b60_what_is_no_datetime_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInstant, match=f"wake must be a datetime .* not {type(value).__name__}"):
        instant_ms(value, what="wake")


@pytest.mark.parametrize("year", [1, 9999])
@pytest.mark.parametrize("hours", [-23, 0, 23])
def test_b67_the_ends_of_the_calendar_are_instants(year: int, hours: int) -> None:
    aware = datetime(year, 12, 31, tzinfo=timezone(timedelta(hours=hours)))

    assert isinstance(instant_ms(aware, what="wake"), int)


def test_instants_are_rounded_up_so_that_nothing_wakes_early() -> None:
    assert instant_ms(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), what="wake") == 1


def test_milliseconds_become_aware_utc_datetimes() -> None:
    instant = from_ms(1_795_953_600_123)

    assert instant == datetime(2026, 11, 29, 12, 0, 0, 123_000, tzinfo=UTC)
    assert instant.tzinfo is UTC
    assert instant_ms(instant, what="wake") == 1_795_953_600_123


def test_the_errors_are_value_errors_of_this_package() -> None:
    assert issubclass(InvalidDuration, WorkflowsError)
    assert issubclass(InvalidDuration, ValueError)
    assert issubclass(InvalidInstant, WorkflowsError)
    assert issubclass(InvalidInstant, ValueError)
