"""The list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ... import phrases
from ...explain import Instant
from ...explain import Name
from ...explain import now_doing
from ...explain import state
from ...explain import Surroundings
from ...explain import Text
from ...explain import work_command
from ...runs import Count
from ...runs import Page
from ...runs import Run
from ...runs import RunStatus
from ...runs import Step

#: The tabs of the list, in the order of a run's life.
TABS = (
    RunStatus.PENDING,
    RunStatus.RUNNING,
    RunStatus.SLEEPING,
    RunStatus.WAITING,
    RunStatus.FAILED,
    RunStatus.COMPLETED,
    RunStatus.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the list."""

    id: str
    workflow: str
    state: str
    doing: Text
    queue: str
    version: int
    created_at: datetime
    took: Text

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The list; `rows` is null where it took too long to read, `counts` likewise."""

    rows: tuple[Row, ...] | None
    counts: tuple[tuple[RunStatus, Count], ...] | None
    new: Count
    older: str | None
    newer: str | None
    searched: int | None
    notice: Text


def runs_page(
    page: Page | None,
    counts: Mapping[RunStatus, Count] | None,
    open_steps: Mapping[str, Sequence[Step]],
    around: Surroundings,
    *,
    new: Count,
) -> RunsPage:
    return RunsPage(
        rows=None if page is None else tuple(_row(run, open_steps.get(run.id, ()), around) for run in page.runs),
        counts=None if counts is None else tuple((status, counts[status]) for status in TABS),
        new=new,
        older=None if page is None else page.older,
        newer=None if page is None else page.newer,
        searched=None if page is None else page.searched,
        notice=_notice(counts, around),
    )


def _row(run: Run, open_steps: Sequence[Step], around: Surroundings) -> Row:
    return Row(
        id=run.id,
        workflow=run.workflow,
        state=state(run, open_steps),
        doing=now_doing(run, open_steps, around),
        queue=run.queue,
        version=run.version,
        created_at=run.created_at,
        took=took(run),
    )


def took(run: Run) -> Text:
    if run.took is not None:
        return (phrases.duration(run.took),)
    return () if run.started_at is None else (Instant(run.started_at, "for"),)


def _notice(counts: Mapping[RunStatus, Count] | None, around: Surroundings) -> Text:
    if around.workers or counts is None or not counts[RunStatus.PENDING].value:
        return ()
    return ("No worker is live, and runs are pending. Start one: ", Name(work_command()))
