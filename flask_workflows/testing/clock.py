"""Time that only a test moves, and the app it is for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from datetime import timedelta
from typing import TYPE_CHECKING

from flask import current_app

from ..durations import from_ms
from ..durations import instant_ms
from ..durations import to_ms
from ..errors import SetupError
from ..runtime import EXTENSION
from ..runtime import Runtime

if TYPE_CHECKING:
    from ..extension import Workflows


class FixedClock:
    """A clock that stands still until it is moved: `workflows.clock = FixedClock(at)`.

    Every instant that is stored or compared then comes from it: timers, time-outs, retries, leases.
    """

    def __init__(self, at: datetime) -> None:
        self.set(at)

    def __repr__(self) -> str:
        return f"<clock at {self.now():%Y-%m-%d %H:%M:%S} UTC>"

    def now(self) -> datetime:
        """The instant it shows, in UTC."""
        return from_ms(self._ms)

    def set(self, at: datetime) -> None:
        """Show another instant, an aware datetime."""
        self._ms = instant_ms(at, what="the instant of a FixedClock")

    def advance(self, by: timedelta | float) -> None:
        """Move it forward, by a timedelta or seconds."""
        self._ms += to_ms(by, what="what a FixedClock advances by")


def clock_of(workflows: Workflows, what: str) -> FixedClock:
    """The clock that `what` is to move."""
    if not isinstance(workflows.clock, FixedClock):
        raise SetupError(
            f"{what} moves the clock: set workflows.clock = FixedClock(at), or use the fixture workflows_clock"
        )
    return workflows.clock


@contextmanager
def app_of(workflows: Workflows) -> Iterator[Runtime]:
    """The current app, or the only one that has these workflows, in a context of its own."""
    runtime = current_app.extensions.get(EXTENSION) if current_app else None
    if isinstance(runtime, Runtime) and runtime.workflows is workflows:
        yield runtime
        return
    runtimes = list(workflows._runtimes)
    if len(runtimes) != 1:
        raise SetupError(
            f"these workflows are initialised on {len(runtimes)} apps: say which is meant, with app.app_context():"
        )
    with runtimes[0].app.app_context():
        yield runtimes[0]
