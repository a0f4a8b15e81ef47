"""One step of a run: its attempts, its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ... import phrases
from ...explain import Instant
from ...explain import Surroundings
from ...explain import Text
from ...payloads import show_value
from ...payloads import Shown
from ...runs import Attempt
from ...runs import Run
from ...runs import Step
from ...runs import StepDetails
from .actions import Offer
from .run import ErrorShown
from .run import Fact
from .run import show_error

#: Attempts before the last that are shown.
MOST = 10
#: Of a value so much is shown, as there may be two beside the errors.
VALUE = 14_000
#: Of the last attempt's error, and of those before it, in bytes and lines.
LAST = (8_000, 60)
EARLIER = (1_000, 8)


@dataclass(frozen=True, slots=True)
class AttemptShown:
    number: int
    state: str
    began: Text
    took: Text
    error: ErrorShown | None


@dataclass(frozen=True, slots=True)
class StepPage:
    run_id: str
    workflow: str
    number: int
    count: int
    key: str
    label: str
    state: str
    facts: tuple[Fact, ...]
    attempts: tuple[AttemptShown, ...]
    #: Attempts that are left out.
    left_out: int
    #: Whether the visitor may see what went in and came out.
    payloads: bool
    input: Shown | None
    output: Shown | None
    #: The run that the call started.
    started: str | None
    #: What the run can go on from here by.
    actions: tuple[Offer, ...]


def step_page(
    run: Run, details: StepDetails, around: Surroundings, *, started: str | None, actions: tuple[Offer, ...]
) -> StepPage:
    step = details.step
    return StepPage(
        run_id=run.id,
        workflow=run.workflow,
        number=step.number or step.position,
        count=details.step_count,
        key=step.key,
        label=step.label,
        state=step.status,
        facts=tuple(_facts(step, around)),
        attempts=tuple(_attempts(step, around)),
        left_out=max(len(step.earlier) - MOST, 0),
        payloads=around.payloads,
        input=None if details.input is None else show_value(details.input, VALUE),
        output=None if details.output is None else show_value(details.output, VALUE),
        started=started,
        actions=actions,
    )


def _facts(step: Step, around: Surroundings) -> Iterator[Fact]:
    if step.started_at is not None:
        yield Fact("Started", (Instant(step.started_at),))
    if step.finished_at is not None:
        yield Fact("Finished", (Instant(step.finished_at),))
    if step.took is not None:
        yield Fact("Took", (phrases.duration(step.took),))
    if step.due_at is not None and not step.finished:
        yield Fact("Due", (Instant(step.due_at), ", ", Instant(step.due_at, "in")))
    yield Fact("Kind", (step.kind,))
    if step.kind == "step":
        tries = around.tries.get(step.key.rpartition("/")[2].partition("#")[0])
        yield Fact("Tries", (f"{step.attempts} of {max(tries, step.attempts)}" if tries else f"{step.attempts}",))


def _attempts(step: Step, around: Surroundings) -> Iterator[AttemptShown]:
    """Attempts of a step, the last one first; calls of the engine's own have none to tell."""
    if step.kind != "step":
        return
    limit = LAST
    earlier = list(step.earlier)
    # While it waits for its next try, the attempt that failed last is among the earlier ones.
    if step.status != "retrying" or not earlier:
        last = Attempt(step.started_at, step.finished_at, step.error)
        yield _attempt(max(step.attempts, 1), last, step.status, around, limit)
        limit = EARLIER
    for number in range(len(earlier), max(len(earlier) - MOST, 0), -1):
        yield _attempt(number, earlier[number - 1], "failed", around, limit)
        limit = EARLIER


def _attempt(number: int, attempt: Attempt, state: str, around: Surroundings, limit: tuple[int, int]) -> AttemptShown:
    took: Text = ()
    if attempt.started_at is not None and attempt.finished_at is not None:
        took = (phrases.duration(attempt.finished_at - attempt.started_at),)
    return AttemptShown(
        number=number,
        state=state,
        began=() if attempt.started_at is None else (Instant(attempt.started_at),),
        took=took,
        error=None if attempt.error is None else show_error(attempt.error, None, around, *limit),
    )
