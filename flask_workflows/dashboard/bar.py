"""What stands over every page: the counts in the bar, and at most one notice under it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import timedelta
from typing import TYPE_CHECKING

from flask import current_app

from .. import phrases
from ..errors import ReadTimeout
from ..explain import Name
from ..explain import PATIENCE
from ..explain import Text
from ..explain import work_command
from ..runs import Count
from ..runs import Signs
from ..store import reading as read

if TYPE_CHECKING:
    from .visit import Visit

#: The app's clock and the database's may differ by this.
SKEW = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Bar:
    """`counts` are by the section of the link they stand at, where there is something to count."""

    notice: Text = ()
    counts: Mapping[str, Count] = field(default_factory=dict)


def bar_of(visit: Visit, now: datetime | None, *, counts: bool = True) -> Bar:
    """What stands over a page; over one that tells no times, what is known without the database."""
    signs, skew = (None, timedelta(0)) if now is None else _look(visit, now, counts)
    found = {} if signs is None else {"failures": signs.failures, "waits": signs.overdue}
    return Bar(_notice(visit, signs, skew), {section: count for section, count in found.items() if count.value})


def _look(visit: Visit, now: datetime, counts: bool) -> tuple[Signs | None, timedelta]:
    try:
        with visit.reading() as connection:
            signs = read.read_signs(connection, now, PATIENCE, visit.scope, counts=counts)
            skew = _skew(now) if visit.real_time else timedelta(0)
            if abs(skew) > SKEW:
                # Perhaps the page took long to read.
                skew = _skew(read.database_now(connection))
    except ReadTimeout:
        return None, timedelta(0)
    return signs, skew


def _skew(database: datetime) -> timedelta:
    """By how much the app's clock is ahead."""
    return timedelta(seconds=time.time() - database.timestamp())


def _notice(visit: Visit, signs: Signs | None, skew: timedelta) -> Text:
    if signs is not None and signs.is_due and not signs.works:
        return ("No worker is live, and runs are due. Start one: ", Name(work_command()))
    if abs(skew) > SKEW:
        way = "ahead of" if skew > timedelta(0) else "behind"
        return (f"The app's clock is {phrases.age(abs(skew))} {way} the database's. Set both by the same time server.",)
    if visit.runtime.hooks.authorize is None and current_app.debug:
        return (
            "Open because the app is in debug mode and you are on its machine. Anywhere else these pages are closed "
            "until the app passes ",
            Name("authorize"),
            ".",
        )
    return ("Read-only: nothing can be changed here.",) if visit.read_only else ()
