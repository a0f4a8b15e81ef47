"""Executing what is due, without a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ..durations import from_ms
from ..durations import to_ms
from ..errors import SetupError
from ..runs import LIVE
from ..runs import RunQuery
from ..runtime import Runtime
from ..service import page
from ..store import Scope
from .clock import app_of
from .clock import clock_of

if TYPE_CHECKING:
    from ..extension import Workflows

#: `advance_until_idle` moves the clock no more often.
MOST_MOVES = 1_000


def run_until_idle(workflows: Workflows) -> int:
    """Execute on this thread what is due, and what that makes due, until nothing is; answer how many executions.

    Each goes to where the run ends or waits. The clock stays where it is.
    """
    with app_of(workflows) as runtime:
        return _run(runtime)


def advance_until_idle(workflows: Workflows, limit: timedelta | float | None = None) -> int:
    """As `run_until_idle`, and then move the `FixedClock` to where the next run is due, until none ever will be.

    So each timer, time-out and retry is met at exactly its own time, and in order, as if that time had passed with a
    worker at hand. Runs that wait for an event without a time-out stay. Where a `limit` is given, a timedelta or
    seconds, the clock is moved by that much and no further. Raises `AssertionError` where there is no end to it.
    """
    clock = clock_of(workflows, "advance_until_idle()")
    end = None if limit is None else clock.now() + timedelta(milliseconds=to_ms(limit, what="the limit"))
    with app_of(workflows) as runtime:
        scope = Scope.of(runtime.registry.ranges())
        executions = _run(runtime)
        for _ in range(MOST_MOVES):
            due_at = runtime.store.next_due(scope)
            due = None if due_at is None else from_ms(due_at)
            if due is None or due <= clock.now() or (end is not None and due > end):
                if end is not None:
                    clock.set(end)
                return executions
            clock.set(due)
            executions += _run(runtime)
        raise AssertionError(
            f"after {MOST_MOVES} moves of the clock, to {clock.now():%Y-%m-%d %H:%M}, there are still runs to come: "
            f"{_shown(runtime)}; give a limit, such as timedelta(days=30)"
        )


def _run(runtime: Runtime) -> int:
    if runtime.workflows.recorder is not None:
        raise SetupError("nothing is executed while there is a WorkflowsFake: leave it first")
    runtime.sessions.refuse_if_busy("run_until_idle()")
    executions = 0
    while (executed := runtime.drain()) > 0:
        executions += executed
    return executions


def _shown(runtime: Runtime) -> str:
    runs = [run for status in LIVE for run in page(runtime, RunQuery(status=status, limit=3)).runs]
    return ", ".join(f"{run.workflow} ({run.id}, {run.status})" for run in runs[:3])
