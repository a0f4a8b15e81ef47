"""The list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ... import phrases
from ...explain import Instant
from ...explain import main_step
from ...explain import now_doing
from ...explain import state
from ...explain import Surroundings
from ...explain import Text
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
    tries: int
    created_at: datetime
    took: Text

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class Other:
    """A list with one filter less, for where nothing matches."""

    count: Count
    #: What it is without, as in "without the time limit".
    without: str
    #: Its query string.
    args: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The list; `rows` is null where it took too long to read, `counts` likewise."""

    rows: tuple[Row, ...] | None
    counts: tuple[tuple[RunStatus, Count], ...] | None
    new: Count
    older: str | None
    newer: str | None
    searched: int | None
    #: How many runs match; null where that was not counted.
    total: Count | None = None
    #: Soonest due first, else newest first.
    by_due: bool = False
    others: tuple[Other, ...] = ()


def runs_page(
    page: Page | None,
    counts: Mapping[RunStatus, Count] | None,
    open_steps: Mapping[str, Sequence[Step]],
    tries: Mapping[str, int],
    around: Surroundings,
    *,
    new: Count,
    status: RunStatus | None = None,
    by_due: bool = False,
    others: tuple[Other, ...] = (),
) -> RunsPage:
    """`tries` says of failed runs how often the step was tried that they failed at; `status` which tab is open."""
    rows = (
        None
        if page is None
        else tuple(_row(run, open_steps.get(run.id, ()), tries.get(run.id), around) for run in page.runs)
    )
    return RunsPage(
        rows=rows,
        counts=None if counts is None else tuple((status, counts[status]) for status in TABS),
        new=new,
        older=None if page is None else page.older,
        newer=None if page is None else page.newer,
        searched=None if page is None else page.searched,
        total=None if counts is None else _total(counts, status),
        by_due=by_due,
        others=others,
    )


def _total(counts: Mapping[RunStatus, Count], status: RunStatus | None) -> Count:
    counted = list(counts.values()) if status is None else [counts[status]]
    return Count(sum(count.value for count in counted), any(count.capped for count in counted))


def _row(run: Run, open_steps: Sequence[Step], tries: int | None, around: Surroundings) -> Row:
    return Row(
        id=run.id,
        workflow=run.workflow,
        state=state(run, open_steps),
        doing=now_doing(run, open_steps, around),
        queue=run.queue,
        version=run.version,
        tries=_tries(run, open_steps) if tries is None else tries,
        created_at=run.created_at,
        took=took(run),
    )


def _tries(run: Run, open_steps: Sequence[Step]) -> int:
    """How often the step was tried that the run is at, or else its body since the last step."""
    step = main_step(run, open_steps)
    if step is not None and step.kind == "step":
        return step.attempts
    if run.started_at is None:
        return 0
    return max(run.attempts, 1) if run.finished else run.attempts + 1


def took(run: Run) -> Text:
    if run.took is not None:
        return (phrases.duration(run.took),)
    return () if run.started_at is None else (Instant(run.started_at, "for"),)
