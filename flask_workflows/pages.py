"""What stands on the pages, as plain values: the views fill them in, the templates mark them up.

A page's values do not change while nothing happens. Times are in them as instants, not as "3 min ago", so that equal
values mean an unchanged page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta

from . import phrases
from .explain import Instant
from .explain import Name
from .explain import now_doing
from .explain import state
from .explain import Surroundings
from .explain import Text
from .explain import Why
from .explain import why
from .explain import work_command
from .explain import worker_name
from .payloads import Folded
from .payloads import Frame
from .payloads import read_traceback
from .payloads import show_value
from .payloads import Shown
from .redaction import redact_error
from .runs import Count
from .runs import Head
from .runs import Page
from .runs import Run
from .runs import RunError
from .runs import RunStatus
from .runs import Step

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


def token(values: object) -> str:
    """A short text that is the same as long as the values are."""
    return hashlib.blake2b(repr(values).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


# Runs --------------------------------------------------------------------------------------


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
        took=_took(run),
    )


def _took(run: Run) -> Text:
    if run.took is not None:
        return (phrases.duration(run.took),)
    return () if run.started_at is None else (Instant(run.started_at, "for"),)


def _notice(counts: Mapping[RunStatus, Count] | None, around: Surroundings) -> Text:
    if around.workers or counts is None or not counts[RunStatus.PENDING].value:
        return ()
    return ("No worker is live, and runs are pending. Start one: ", Name(work_command()))


# Run ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    text: Text


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step of the run; `gap` is how many are left out before it."""

    number: int
    key: str
    label: str
    state: str
    tries: int
    took: Text
    problem: str
    current: bool
    gap: int = 0


@dataclass(frozen=True, slots=True)
class ErrorShown:
    type: str
    message: str
    step: str | None
    entries: tuple[str | Frame | Folded, ...]


@dataclass(frozen=True, slots=True)
class RunPage:
    id: str
    workflow: str
    state: str
    finished: bool
    why: Why
    facts: tuple[Fact, ...]
    steps: tuple[StepRow, ...]
    step_count: int
    #: What is left out after the last step shown.
    gap: int
    steps_summary: str
    input: Shown | None
    output: Shown | None
    error: ErrorShown | None


def run_page(
    run: Run,
    steps: Sequence[Step],
    step_count: int,
    around: Surroundings,
    *,
    input: Head | None,
    output: Head | None,
    cause: RunError | None = None,
) -> RunPage:
    """`cause` is the whole error of the step that failed the run."""
    open_steps = [step for step in steps if not step.finished]
    failed = failed_step(run, steps)
    rows = tuple(_step_rows(steps, failed))
    return RunPage(
        id=run.id,
        workflow=run.workflow,
        state=state(run, open_steps),
        finished=run.finished,
        why=why(run, open_steps, around, failed=failed),
        facts=tuple(_facts(run, steps, step_count, around)),
        steps=rows,
        step_count=step_count,
        gap=step_count - rows[-1].number if rows else 0,
        steps_summary=_summary(steps, step_count),
        input=None if input is None else show_value(input),
        output=None if output is None else show_value(output),
        error=None if run.error is None else _error(cause or run.error, failed),
    )


def failed_step(run: Run, steps: Sequence[Step]) -> Step | None:
    """The step whose failure failed the run; null where it failed by itself."""
    if run.status is not RunStatus.FAILED or run.error is None:
        return None
    for step in reversed(steps):
        if step.status == "failed" and (step.key == run.error.step or _same(step.error, run.error)):
            return step
    return None


def _same(one: RunError | None, other: RunError) -> bool:
    # One of them was cut off.
    return one is not None and one.type == other.type and one.message[:200] == other.message[:200]


def _step_rows(steps: Sequence[Step], failed: Step | None) -> Iterable[StepRow]:
    last = 0
    for step in steps:
        number = step.number or step.position
        yield StepRow(
            number=number,
            key=step.key,
            label=step.label,
            state=step.status,
            tries=step.attempts,
            took=_step_took(step),
            problem="" if step.error is None else _one_line(step.error),
            current=not step.finished or step is failed,
            gap=number - last - 1,
        )
        last = number


def _step_took(step: Step) -> Text:
    if step.took is not None:
        return (phrases.duration(step.took),)
    return () if step.started_at is None or step.finished else (Instant(step.started_at, "for"),)


def _one_line(error: RunError) -> str:
    message = phrases.cut(redact_error(error).message, 200)
    return f"{error.short_type}: {message}" if message else error.short_type


def _summary(steps: Sequence[Step], step_count: int) -> str:
    if not steps:
        return ""
    if len(steps) < step_count:
        return phrases.several(step_count, "call")
    counted: dict[str, int] = {}
    for step in steps:
        counted[step.status] = counted.get(step.status, 0) + 1
    return ", ".join(f"{phrases.number(value)} {status}" for status, value in counted.items())


def _error(error: RunError, failed: Step | None) -> ErrorShown:
    shown = redact_error(error)
    entries = () if error.traceback is None else read_traceback(error.traceback)
    step = error.step if failed is None else failed.key
    return ErrorShown(type=shown.type, message=shown.message, step=step, entries=entries)


def _facts(run: Run, steps: Sequence[Step], step_count: int, around: Surroundings) -> Iterable[Fact]:
    yield Fact("Created", (Instant(run.created_at), ", ", Instant(run.created_at, "ago")))
    if run.started_at is not None:
        yield Fact("Started", (Instant(run.started_at),))
    if run.finished_at is not None:
        yield Fact("Finished", (Instant(run.finished_at), ", ", Instant(run.finished_at, "ago")))

    took = _took(run)
    if took:
        yield Fact("Took" if run.finished else "Running time", (*took, *_busy(steps, step_count)))

    yield Fact("Queue", (Name(run.queue),))
    yield Fact("Version", (str(run.version), *_runners(run, around)))
    if run.attempts or run.losses:
        lost = f", {phrases.several(run.losses, 'worker')} lost" if run.losses else ""
        yield Fact("Attempts used", (f"{run.attempts} of {run.max_attempts}{lost}",))
    if not run.finished:
        yield Fact("Lease", _lease(run, around))
    if run.workspace:
        yield Fact("Workspace", (Name(run.workspace),))
    if run.key is not None:
        yield Fact("Key", (Name(run.key),))


def _busy(steps: Sequence[Step], step_count: int) -> Text:
    """For how long steps executed, where that is known."""
    worked = [step for step in steps if step.kind == "step"]
    if len(steps) < step_count or any(step.status == "running" for step in worked):
        return ()
    busy = sum((step.took or timedelta() for step in worked), timedelta())
    return (f" ({phrases.duration(busy)} busy)",) if busy else ()


def _runners(run: Run, around: Surroundings) -> Text:
    if run.finished:
        return ()
    able = sum(worker.can_run(run) for worker in around.workers)
    return (f" · {phrases.several(able, 'live worker')}" if able else " · no live worker",)


def _lease(run: Run, around: Surroundings) -> Text:
    if run.worker is None:
        return (f"none while {run.status}",)
    worker = around.names.get(run.worker)
    return ("held by ", Name(worker_name(worker))) if worker is not None else ("of a worker that is gone",)
