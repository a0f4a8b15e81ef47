"""Timers, and what runs wait for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...explain import Name
from ...explain import now_doing
from ...explain import PATIENCE
from ...explain import state
from ...explain import Surroundings
from ...explain import Text
from ...payloads import show_member
from ...payloads import Shown
from ...runs import Count
from ...runs import Head
from ...runs import Run
from ...runs import Step
from ...store.reading.waits import OpenWait
from ...store.reading.waits import OpenWaits
from ...store.reading.waits import Timers
from ...store.reading.waits import WaitGroup
from ...store.reading.waits import WaitGroups


@dataclass(frozen=True, slots=True)
class TimerRow:
    """A sleeping run."""

    id: str
    workflow: str
    state: str
    wakes: datetime
    overdue: bool
    doing: Text
    set_at: datetime

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class TimersShown:
    rows: tuple[TimerRow, ...]
    total: Count
    overdue: int
    earlier: str | None
    later: str | None
    searched: int | None


@dataclass(frozen=True, slots=True)
class WaitsPage:
    """Timers and groups of waits; null where they took too long to read."""

    timers: TimersShown | None
    groups: tuple[WaitGroup, ...] | None
    more_names: str | None
    groups_searched: int | None


def waits_page(
    timers: Timers | None, open_steps: Mapping[str, Sequence[Step]], groups: WaitGroups | None, around: Surroundings
) -> WaitsPage:
    return WaitsPage(
        timers=None if timers is None else _timers(timers, open_steps, around),
        groups=None if groups is None else groups.groups,
        more_names=None if groups is None else groups.after,
        groups_searched=None if groups is None else groups.searched,
    )


def _timers(timers: Timers, open_steps: Mapping[str, Sequence[Step]], around: Surroundings) -> TimersShown:
    rows = tuple(_timer(run, open_steps.get(run.id, ()), around) for run in timers.runs)
    return TimersShown(
        rows=rows,
        total=timers.total,
        overdue=sum(row.overdue for row in rows),
        earlier=None if timers.earlier is None else str(timers.earlier),
        later=None if timers.later is None else str(timers.later),
        searched=timers.searched,
    )


def _timer(run: Run, open_steps: Sequence[Step], around: Surroundings) -> TimerRow:
    wakes = run.due_at or run.updated_at
    overdue = wakes < around.now - PATIENCE
    shown = state(run, open_steps)
    doing = now_doing(run, open_steps, around) if overdue or shown != "sleeping" else _sleep(run, open_steps)
    return TimerRow(run.id, run.workflow, shown, wakes, overdue, doing, run.updated_at)


def _sleep(run: Run, open_steps: Sequence[Step]) -> Text:
    step = next((step for step in open_steps if step.status == "sleeping"), None)
    if step is not None:
        return (f"step {step.number or step.position}, ", Name(step.label))
    return ("start, put off",) if run.started_at is None else ("sleep",)


# The waits of one name ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """A field that must have a value; the value is null where it is not shown."""

    field: str
    value: Shown | None


@dataclass(frozen=True, slots=True)
class WaitRow:
    id: str
    workflow: str
    workspace: str
    matches: tuple[Match, ...]
    since: datetime | None
    waiting_since: datetime
    times_out: datetime | None
    #: Among the rows of the run: it may wait for several events at once.
    number: int

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class WaitPage:
    """The runs that wait for one event or message; null where they took too long to read."""

    name: str
    message: bool
    rows: tuple[WaitRow, ...] | None
    workspaces: bool
    #: Whether these are all there are.
    whole: bool
    after: str | None
    searched: int | None


def wait_page(name: str, message: bool, found: OpenWaits | None, *, first: bool) -> WaitPage:
    if found is None:
        return WaitPage(name, message, None, False, False, None, None)
    whole = first and found.after is None and found.searched is None
    listed = sorted(found.waits, key=lambda wait: (wait.waiting_since, wait.run_id)) if whole else found.waits
    rows = tuple(map(_wait, listed))
    return WaitPage(
        name=name,
        message=message,
        rows=rows,
        workspaces=any(row.workspace for row in rows),
        whole=whole,
        after=None if found.after is None else str(found.after),
        searched=found.searched,
    )


def _wait(wait: OpenWait) -> WaitRow:
    return WaitRow(
        id=wait.run_id,
        workflow=wait.workflow,
        workspace=wait.workspace,
        matches=tuple(_matches(wait)),
        since=wait.since,
        waiting_since=wait.waiting_since,
        times_out=wait.times_out,
        number=wait.number,
    )


def _matches(wait: OpenWait) -> Iterator[Match]:
    for field in wait.fields:
        known = wait.match is not None and field in wait.match
        yield Match(field, _value(field, wait.match[field]) if known and wait.match is not None else None)


def _value(field: str, value: Any) -> Shown:
    text = json.dumps(value, ensure_ascii=False)
    # Dots in a field lead into objects.
    return show_member(field, Head(text, len(text)), path=f"$.{field}")
