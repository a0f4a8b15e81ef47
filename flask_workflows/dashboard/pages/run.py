"""One run: why it is as it is, its steps, its values."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ... import phrases
from ...explain import Instant
from ...explain import Name
from ...explain import state
from ...explain import Surroundings
from ...explain import Text
from ...explain import Why
from ...explain import why
from ...explain import worker_name
from ...payloads import Folded
from ...payloads import Frame
from ...payloads import read_traceback
from ...payloads import show_value
from ...payloads import Shown
from ...redaction import redact_error
from ...runs import Head
from ...runs import Run
from ...runs import RunError
from ...runs import RunStatus
from ...runs import Step
from .actions import Offers
from .runs import took as run_took


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
    offers: Offers
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
    offers: Offers,
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
        offers=offers,
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

    took = run_took(run)
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
