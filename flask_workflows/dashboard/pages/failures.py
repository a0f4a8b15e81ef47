"""What failed, grouped by what made it fail."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...explain import said
from ...explain import Text
from ...runs import Count
from ...runs import FailureGroup
from ...runs import Failures

#: The drawing of a group's hours, in its own units.
WIDTH = 120
HEIGHT = 24


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Row:
    """A cause."""

    #: Tells it from the other rows; the hash of the cause where there is one.
    id: str
    cause: str | None
    workflow: str
    step: str | None
    words: Text
    newest: str
    #: The number in the window, and of those the last 24 hours.
    count: int
    today: int
    first: datetime
    last: datetime
    versions: str
    bars: tuple[Bar, ...]
    #: Query string of the list of its runs.
    args: tuple[tuple[str, str], ...]

    @property
    def short_id(self) -> str:
        return f"…{self.newest[-6:]}"


@dataclass(frozen=True, slots=True)
class FailuresPage:
    """The causes; `rows` is null where it took too long to read."""

    rows: tuple[Row, ...] | None
    #: How many failed runs were looked at; capped where there are more.
    looked_at: Count
    #: How many causes are not listed.
    more: int


def failures_page(failures: Failures | None, hours: Sequence[int]) -> FailuresPage:
    """`hours` are the last 24, by their numbers from the epoch."""
    if failures is None:
        return FailuresPage(None, Count(0), 0)
    return FailuresPage(tuple(_row(group, hours) for group in failures.groups), failures.looked_at, failures.more)


def _row(group: FailureGroup, hours: Sequence[int]) -> Row:
    newest = group.newest
    args = (("status", "failed"), ("q", f"cause:{group.cause}"))
    if group.cause is None:
        args = (("status", "failed"), ("workflow", newest.workflow))
    error = newest.error
    return Row(
        id=group.cause or newest.id,
        cause=group.cause,
        workflow=newest.workflow,
        step=None if error is None else error.step,
        words=("no error was stored",) if error is None else (said(error, limit=200),),
        newest=newest.id,
        count=group.count,
        today=sum(group.by_hour.values()),
        first=group.first,
        last=group.last,
        versions=_versions(group.versions),
        bars=bars(group.by_hour, hours),
        args=args,
    )


def _versions(versions: Sequence[int]) -> str:
    """The few newest."""
    listed = ", ".join(map(str, versions[-5:]))
    return listed if len(versions) <= 5 else f"…, {listed}"


def bars(by_hour: Mapping[int, int], hours: Sequence[int]) -> tuple[Bar, ...]:
    """A bar for each hour that has any, to the group's own scale."""
    most = max((by_hour.get(hour, 0) for hour in hours), default=0)
    step = WIDTH / max(len(hours), 1)
    drawn = []
    for number, hour in enumerate(hours):
        if value := by_hour.get(hour, 0):
            height = round(max(value / most * HEIGHT, 2), 1)
            drawn.append(Bar(round(number * step, 1), round(HEIGHT - height, 1), height))
    return tuple(drawn)
