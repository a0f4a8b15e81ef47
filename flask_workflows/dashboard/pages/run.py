"""One run: why it is as it is, its steps, its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import timedelta

from ... import phrases
from ...explain import Beside
from ...explain import Instant
from ...explain import Name
from ...explain import state
from ...explain import Surroundings
from ...explain import telling_steps
from ...explain import Text
from ...explain import Why
from ...explain import why
from ...explain import worker_name
from ...names import path_of
from ...payloads import Folded
from ...payloads import Frame
from ...payloads import LIMIT
from ...payloads import read_traceback
from ...payloads import show_member
from ...payloads import show_value
from ...payloads import Shown
from ...redaction import redact_error
from ...redaction import redact_text
from ...runs import AuditEntry
from ...runs import AuditPage
from ...runs import Count
from ...runs import decode
from ...runs import Head
from ...runs import PROGRESS
from ...runs import Published
from ...runs import Received
from ...runs import Relative
from ...runs import Run
from ...runs import RunError
from ...runs import RunStatus
from ...runs import Step
from ...runs import step_label
from .actions import Offer
from .actions import Offers
from .runs import took as run_took

#: Of a value that is one of many on the page so much is shown.
SMALL = 2_000
#: Beside many steps less of the values is shown, so that the page stays small.
MANY_STEPS = 60
BESIDE_MANY = 3_000
#: Of a traceback so many lines are shown, the last ones.
LINES = 200
LINES_BESIDE_MANY = 40
_TRACEBACK_LIMIT = 65_536
#: Of the runs it started, and of its forks, so many are listed.
MOST_KIN = 10

#: What is said of a call that undoes, by its status.
_UNDOES = {"pushed": "Stands by to undo", "completed": "Undone", "failed": "Could not be undone"}


_NONE = Count(0)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was read for a run's page. What the visitor may not see was not read, and is null or empty."""

    run: Run
    steps: tuple[Step, ...]
    step_count: int
    around: Surroundings
    beside: Beside
    input: Head | None = None
    output: Head | None = None
    #: The whole error of the step that failed the run.
    cause: RunError | None = None
    #: How many other runs failed the same way.
    same_cause: Count = _NONE
    received: tuple[Received, ...] = ()
    published: tuple[Published, ...] = ()
    #: What people did to it, newest first; null where the visitor may not see that.
    history: AuditPage | None = None
    #: Ids of the runs that its calls started, by the calls' keys.
    started: Mapping[str, str] = field(default_factory=dict)
    #: Those, the run that started it, and the one that it is a fork of; by id, as far as the visitor may see them.
    relatives: Mapping[str, Relative] = field(default_factory=dict)
    #: The newest runs it started, and the newest forks of it; one more than are shown where there are more.
    children: Sequence[Relative] = ()
    forks: Sequence[Relative] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    text: Text


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run to go on to; `state` is empty where no more than its id is known."""

    id: str
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Kin:
    """Runs that stand to this one in one way; `search` finds all of them, where there may be more."""

    label: str
    runs: tuple[RelatedRun, ...]
    more: bool = False
    search: str | None = None


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
    #: The run that the call started.
    started: RelatedRun | None
    #: What else there is to say of it.
    note: Text
    #: In how many branches it is, one in another, and whether it is the first call of its branch.
    depth: int
    begins: bool
    gap: int = 0


@dataclass(frozen=True, slots=True)
class ErrorShown:
    type: str
    message: str
    step: str | None
    entries: tuple[str | Frame | Folded, ...]


@dataclass(frozen=True, slots=True)
class ReceivedRow:
    """An event or message, and which call took it; `payload` is null where the visitor may not see it."""

    name: str
    kind: str
    emitted_at: datetime
    taken: Text
    payload: Shown | None


@dataclass(frozen=True, slots=True)
class PublishedRow:
    key: str
    updated_at: datetime
    value: Shown | None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    at: datetime
    actor: str
    what: Text
    reason: str


@dataclass(frozen=True, slots=True)
class ProgressShown:
    """How far the run says it is; `total` is null where it did not say of how much."""

    words: str
    done: float
    total: float | None
    note: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class RunPage:
    id: str
    workflow: str
    state: str
    finished: bool
    why: Why
    #: The action that stands beside the explanation, and those at the top.
    best: Offer | None
    #: The page that helps most, where no action does: what it is called, and its address.
    link: tuple[str, str] | None
    actions: tuple[Offer, ...]
    refused: tuple[tuple[str, Text], ...]
    same_cause: Count
    cause: str | None
    facts: tuple[Fact, ...]
    steps: tuple[StepRow, ...]
    step_count: int
    #: Whether there are many rows, which are then kept short.
    many: bool
    #: What is left out after the last step shown.
    gap: int
    steps_summary: str
    progress: ProgressShown | None
    #: Whether the visitor may see what went in and came out.
    payloads: bool
    input: Shown | None
    output: Shown | None
    error: ErrorShown | None
    received: tuple[ReceivedRow, ...]
    published: tuple[PublishedRow, ...]
    kin: tuple[Kin, ...]
    #: Null where the visitor may not see it.
    history: tuple[HistoryRow, ...] | None
    older_history: bool


def run_page(looked: Looked, offers: Offers, links: Callable[[str], tuple[str, str] | None]) -> RunPage:
    """`links` says by the name of what helps most where that is."""
    run, steps, around = looked.run, looked.steps, looked.around
    open_steps = telling_steps(steps)
    failed = failed_step(run, steps)
    because = why(run, open_steps, around, failed=failed, beside=looked.beside)
    best = next((action for action in offers.actions if action.name == because.action), None)
    rows = tuple(_step_rows(looked, failed))
    many = len(rows) > MANY_STEPS
    limit = BESIDE_MANY if many else LIMIT
    return RunPage(
        id=run.id,
        workflow=run.workflow,
        state=state(run, open_steps),
        finished=run.finished,
        why=because,
        best=best,
        link=None if best is not None else links(because.action),
        actions=tuple(action for action in offers.actions if action is not best),
        refused=offers.refused,
        same_cause=looked.same_cause,
        cause=run.cause,
        facts=tuple(_facts(looked)),
        steps=rows,
        step_count=looked.step_count,
        many=many,
        gap=looked.step_count - rows[-1].number if rows else 0,
        steps_summary=_summary(steps, looked.step_count),
        progress=_progress(looked.published, around),
        payloads=around.payloads,
        input=None if looked.input is None else show_value(looked.input, limit),
        output=None if looked.output is None else show_value(looked.output, limit),
        error=None if run.error is None else _error(looked.cause or run.error, failed, around, many),
        received=tuple(map(_received, looked.received)),
        published=tuple(_published(looked.published, around)),
        kin=tuple(_kin(looked)),
        history=None if looked.history is None else tuple(map(_done, looked.history.entries)),
        older_history=looked.history is not None and looked.history.older is not None,
    )


def _done(entry: AuditEntry) -> HistoryRow:
    what: Text = (entry.action,)
    if entry.action == "send":
        what = ("send message ", Name(entry.target))
    elif entry.action == "move":
        what = (*what, " timer", *_moved(" from ", entry.before), *_moved(" to ", entry.after))
    elif entry.action == "fork" and entry.after:
        what = ("fork to ", Name(entry.after))
    elif entry.before and entry.after and entry.before != entry.after:
        what = (*what, f": {entry.before} to {entry.after}")
    if entry.operation is not None:
        what = (*what, ", with many others")
    return HistoryRow(entry.at, entry.actor, what, redact_text(entry.reason))


def _moved(word: str, text: str | None) -> Text:
    try:
        return () if text is None else (word, Instant(datetime.fromisoformat(text)))
    except ValueError:
        return ()


def _received(received: Received) -> ReceivedRow:
    taken: Text = ("not taken yet",)
    if received.step is not None:
        taken = ("by ", Name(step_label(received.step)))
        if received.received_at is not None:
            taken = (*taken, ", ", Instant(received.received_at))
    return ReceivedRow(
        name=received.name,
        kind="message" if received.is_message else "event",
        emitted_at=received.emitted_at,
        taken=taken,
        payload=None if received.payload is None else show_value(received.payload, SMALL),
    )


def _published(published: Iterable[Published], around: Surroundings) -> Iterator[PublishedRow]:
    for one in published:
        if one.key != PROGRESS:
            yield PublishedRow(
                one.key, one.updated_at, show_member(one.key, one.value, SMALL) if around.payloads else None
            )


def _progress(published: Iterable[Published], around: Surroundings) -> ProgressShown | None:
    found = next((one for one in published if one.key == PROGRESS), None)
    match None if found is None else (found.updated_at, decode(found.value.text)):
        case (at, {"done": int() | float() as done, "total": total, "note": note}):
            of = total if isinstance(total, int | float) and total > 0 else None
            words = f"{done:g}" if of is None else f"{done:g} of {of:g}"
            shown = redact_text(phrases.cut(str(note), 200)) if note is not None and around.payloads else ""
            return ProgressShown(words, done, of, shown, at)
    return None


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


def _step_rows(looked: Looked, failed: Step | None) -> Iterable[StepRow]:
    last = 0
    seen = {""}
    limit = 200 if len(looked.steps) <= MANY_STEPS else 40
    for step in looked.steps:
        number = step.number or step.position
        path = path_of(step.key)
        started = looked.started.get(step.key)
        yield StepRow(
            number=number,
            key=step.key,
            label=step.label,
            state=step.status,
            tries=step.attempts,
            took=_step_took(step),
            problem="" if step.error is None else _one_line(step.error, looked.around, limit),
            current=not step.finished or step is failed,
            started=None if started is None else _related(started, looked.relatives),
            note=_note(step, looked),
            depth=path.count("/"),
            begins=path not in seen,
            gap=number - last - 1,
        )
        last = number
        seen.add(path)


def _note(step: Step, looked: Looked) -> Text:
    if step.kind == "parallel":
        return _branches(step, looked)
    if step.kind != "undo":
        return ()
    word = _UNDOES.get(step.status, "Undoes it now")
    if step.status == "pushed" and looked.run.finished:
        word = "Was not needed"
    done = _pushed_after(step, looked.steps)
    return (
        (word,)
        if done is None
        else (f"{word}, pushed after {phrases.number(done.number or done.position)} ", Name(done.label))
    )


def _pushed_after(undo: Step, steps: Sequence[Step]) -> Step | None:
    """The step that an undo was pushed after, in its branch; null where it is not among these."""
    path = path_of(undo.key)
    before = [s for s in steps if s.kind == "step" and s.position < undo.position and path_of(s.key) == path]
    return max(before, key=lambda step: step.position, default=None)


def _branches(parallel: Step, looked: Looked) -> Text:
    """How the branches of a parallel call stand, where all calls are here to tell."""
    if len(looked.steps) < looked.step_count or len(looked.steps) != (looked.steps[-1].number or 0):
        return ()
    begins = f"{path_of(parallel.key)}{parallel.position}."
    last = {path_of(step.key): step.status for step in looked.steps}
    standing = [
        status for path, status in last.items() if path.startswith(begins) and path.count("/") == begins.count("/") + 1
    ]
    counted = Counter(standing)
    said = ", ".join(f"{phrases.number(count)} {status}" for status, count in counted.items())
    return (f"{phrases.several(len(standing), 'branch', 'branches')}, last calls: {said}",) if standing else ()


def _related(run_id: str, known: Mapping[str, Relative]) -> RelatedRun:
    found = known.get(run_id)
    return RelatedRun(run_id, "Show the run", "") if found is None else RelatedRun(run_id, found.workflow, found.status)


def _kin(looked: Looked) -> Iterator[Kin]:
    run = looked.run
    if run.parent_id is not None:
        yield Kin("Started by", (_related(run.parent_id, looked.relatives),))
    if run.forked_from is not None:
        yield Kin("Forked from", (_related(run.forked_from, looked.relatives),))
    for label, found, search in (
        ("It started", looked.children, f"parent:{run.id}"),
        ("Its forks", looked.forks, None),
    ):
        if found:
            shown = tuple(RelatedRun(one.id, one.workflow, one.status) for one in found[:MOST_KIN])
            yield Kin(label, shown, len(found) > MOST_KIN, search)


def _step_took(step: Step) -> Text:
    if step.took is not None:
        return (phrases.duration(step.took),)
    return () if step.started_at is None or step.finished else (Instant(step.started_at, "for"),)


def _one_line(error: RunError, around: Surroundings, limit: int) -> str:
    message = phrases.cut(redact_error(error).message, limit) if around.payloads else ""
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


def _error(error: RunError, failed: Step | None, around: Surroundings, many: bool) -> ErrorShown:
    step = error.step if failed is None else failed.key
    if many:
        return show_error(error, step, around, BESIDE_MANY, LINES_BESIDE_MANY)
    return show_error(error, step, around)


def show_error(
    error: RunError, step: str | None, around: Surroundings, limit: int = LIMIT, lines: int = LINES
) -> ErrorShown:
    """An error as far as the visitor may see it; of its traceback the end, up to a size and a number of lines."""
    if not around.payloads:
        return ErrorShown(error.type, "", step, ())
    shown = redact_error(error)
    traceback = redact_text((error.traceback or "")[-_TRACEBACK_LIMIT:])[-limit:]
    entries = read_traceback("\n".join(traceback.splitlines()[-lines:]))
    return ErrorShown(shown.type, phrases.shortened(shown.message, limit // 4), step, entries)


def _facts(looked: Looked) -> Iterable[Fact]:
    run, steps, step_count, around = looked.run, looked.steps, looked.step_count, looked.around
    yield Fact("Created", (Instant(run.created_at), ", ", Instant(run.created_at, "ago")))
    for entry in () if looked.history is None else looked.history.entries:
        if entry.action == "start" and entry.actor:
            yield Fact("Started by", (Name(entry.actor),))
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
        yield Fact("Lease", _lease(looked))
    if run.deadline_at is not None:
        still: Text = () if run.finished else (", ", Instant(run.deadline_at, "in"))
        yield Fact("Deadline", (Instant(run.deadline_at), *still))
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


def _lease(looked: Looked) -> Text:
    run = looked.run
    if run.worker is None:
        return (f"none while {run.status}",)
    live = looked.around.names.get(run.worker)
    if live is not None:
        return ("held by ", Name(worker_name(live)))
    holder = looked.beside.holder
    return (
        ("of a process that is no live worker",) if holder is None else ("of ", Name(worker_name(holder)), ", not live")
    )
