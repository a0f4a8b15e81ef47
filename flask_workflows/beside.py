"""Looks up what explains one run beside itself, for its page and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from .explain import Beside
from .explain import main_step
from .explain import Surroundings
from .runs import AuditEntry
from .runs import Count
from .runs import Run
from .runs import RunStatus
from .runs import Step
from .runs import Worker
from .store import reading as read


def look_beside(
    connection: sa.Connection,
    run: Run,
    open_steps: Sequence[Step],
    around: Surroundings,
    *,
    history: Sequence[AuditEntry] = (),
) -> Beside:
    """What `explain.why` is to know of the run; `history` is what people did to it, newest first."""
    if run.status is RunStatus.WAITING and not run.cancelling and not run.paused:
        step = main_step(run, open_steps)
        if step is not None and step.kind in ("wait", "receive"):
            return _of_wait(connection, run, step)
    return Beside(
        holder=_holder(connection, run, around),
        cancelled_by="" if run.cancel_requested_at is None else _last_to("cancel", history),
        paused_by=_last_to("pause", history) if run.paused else "",
    )


def _last_to(action: str, history: Sequence[AuditEntry]) -> str:
    """Who did it last; empty if nobody known did."""
    return next((entry.actor for entry in history if entry.action == action), "")


def _of_wait(connection: sa.Connection, run: Run, step: Step) -> Beside:
    waited = read.read_awaited(connection, step)
    names = [event.name for event in waited]
    if not names:
        return Beside(waited)
    if step.kind == "receive":
        return Beside(waited, passed=Count(0), unseen=read.count_messages(connection, run.id, names))
    began = step.started_at or run.updated_at
    since = min([began, *(event.since for event in waited if event.since is not None)])
    passed, unseen = read.count_events_since(connection, names, run.workspace, since)
    return Beside(waited, passed=passed, unseen=unseen)


def _holder(connection: sa.Connection, run: Run, around: Surroundings) -> Worker | None:
    if run.worker is None or run.worker in around.names:
        return None
    return read.find_worker(connection, run.worker)
