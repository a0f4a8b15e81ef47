"""What a run is doing and why it does not move, in plain words.

Pure: everything known comes in, nothing is looked up. Texts are made of parts, so that a page can mark up names and
let times tick while a terminal prints them plainly.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo
from datetime import UTC
from typing import Literal

from . import phrases
from .hooks import app_hides
from .redaction import hides
from .redaction import redact_text
from .runs import Awaited
from .runs import Count
from .runs import decode
from .runs import in_ranges
from .runs import Run
from .runs import RunError
from .runs import RunStatus
from .runs import Step
from .runs import Worker

#: Workers poll, so nothing is late within this.
PATIENCE = timedelta(seconds=10)

_TELLING: Mapping[str, tuple[str, ...]] = {
    "running": ("running",),
    "sleeping": ("sleeping", "retrying"),
    "waiting": ("waiting",),
}

#: How `StepFailed` begins its message; what follows is the step's own error.
_STEP_FAILED = re.compile(r"step '.*?' failed after \d+ attempt\(s\): (?:[\w.]+\.)?")

#: As `StepTimeout` says it.
_TIMED_OUT = re.compile(r"took longer than its time-out of ([^;]+);")

Form = Literal["at", "ago", "in", "for"]


@dataclass(frozen=True, slots=True)
class Name:
    """Something the app named: a workflow, a step, a queue, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time: as a time of day, or "3 min ago", "in 15 h", or the age "3 min"."""

    at: datetime
    form: Form = "at"


Part = str | Name | Instant
Text = tuple[Part, ...]


def plain(text: Text, *, now: datetime, zone: tzinfo = UTC) -> str:
    """The text without any mark-up."""
    return "".join(_plain_part(part, now, zone) for part in text)


def _plain_part(part: Part, now: datetime, zone: tzinfo) -> str:
    match part:
        case Name(text):
            return text
        case Instant(at, form):
            return say(at, form, now=now, zone=zone)
        case _:
            return part


def say(at: datetime, form: Form, *, now: datetime, zone: tzinfo) -> str:
    """One instant in one form."""
    match form:
        case "ago":
            return f"{phrases.age(now - at)} ago"
        case "in":
            return f"in {phrases.age(at - now)}" if at > now else "now"
        case "for":
            return phrases.age(now - at)
        case "at":
            return phrases.instant(at, now=now, zone=zone)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known beside the run."""

    now: datetime
    #: The live ones.
    workers: tuple[Worker, ...] = ()
    #: What the code of this process can run: versions, lowest and highest, by workflow. Null when that is not known.
    known: Mapping[str, Sequence[tuple[int, int]]] | None = None
    #: For how long finished runs are kept; 0 for good.
    keep_days: int = 0
    #: How many runs of its queue fell due before it; null when that was not counted.
    ahead: Count | None = None
    #: How often the steps known here are tried, by name.
    tries: Mapping[str, int] = field(default_factory=dict)
    #: Whether what may come from inputs is told: messages of errors, and values that events are matched by.
    payloads: bool = True
    names: Mapping[str, Worker] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", {worker.id: worker for worker in self.workers})


@dataclass(frozen=True, slots=True)
class Beside:
    """What was looked up for one run alone."""

    waited: tuple[Awaited, ...] = ()
    #: How many of those names came since, and were not for it; null when that was not counted.
    passed: Count | None = None
    #: How many came that no worker has looked at yet.
    unseen: Count | None = None
    #: The worker that holds it, where that is not among the live ones.
    holder: Worker | None = None
    #: Who asked for its cancellation; empty where nobody knows.
    cancelled_by: str = ""
    #: Who paused it; empty where nobody knows.
    paused_by: str = ""


_NOTHING = Beside()


@dataclass(frozen=True, slots=True)
class Why:
    """One sentence that says what is going on, what else there is to say, and the action that helps most.

    `action` is the name of an action on a run, or of a page: "workers", "start", "deliver"; empty for none.
    """

    headline: Text
    more: Text = ()
    action: str = ""


def state(run: Run, open_steps: Sequence[Step] = ()) -> str:
    """The status to show: the run's own word, or "paused", "retrying", "cancelling" or "undoing"."""
    if run.paused:
        return "paused"
    if run.undoing:
        return "undoing"
    if run.cancelling:
        return "cancelling"
    if run.status is RunStatus.SLEEPING and _retries(run, main_step(run, open_steps)):
        return "retrying"
    return str(run.status)


def _retries(run: Run, step: Step | None) -> bool:
    if step is not None:
        return step.status == "retrying"
    return _retries_body(run)


def _retries_body(run: Run) -> bool:
    """Whether it sleeps because its body raised: any other sleep is stored without an error."""
    return run.error is not None and run.attempts > 0


def main_step(run: Run, open_steps: Iterable[Step]) -> Step | None:
    """The step that says most about what the run does: of those that fit its status the one due first.

    Others may be open too: a timer that ended is, until its run has come that far again.
    """
    if run.status is RunStatus.SLEEPING and _retries_body(run):
        # Whatever timer is open is not what it sleeps for.
        return None
    telling = _TELLING.get(run.status, ())
    last = datetime.max.replace(tzinfo=UTC)
    steps = list(open_steps)
    fitting = [step for step in steps if step.status in telling]
    if run.status is RunStatus.RUNNING:
        stuck = [step for step in steps if _timed_out(step)]
        # In a branch it may have returned, and only its next attempt not be due.
        fitting = [step for step in stuck if "/" not in step.key] or fitting or stuck
    return min(fitting, key=lambda step: (step.due_at or last, step.position), default=None)


def telling_steps(steps: Sequence[Step]) -> list[Step]:
    """Those that may say what their run does: the unfinished ones, and the last, if the run may still wait for it."""
    return [step for step in steps if not step.finished or (step is steps[-1] and _timed_out(step))]


def _timed_out(step: Step) -> bool:
    """Whether its last attempt took too long. Its call goes on where the run is still running."""
    failed = step.status in ("retrying", "failed")
    return failed and step.error is not None and step.error.type == "flask_workflows.errors.StepTimeout"


# One line, for lists -----------------------------------------------------------------------


def now_doing(run: Run, open_steps: Sequence[Step], around: Surroundings) -> Text:
    """What the run is doing, in a few words."""
    step = main_step(run, open_steps)
    match state(run, open_steps):
        case "paused":
            return _paused_line(run)
        case "undoing":
            return ("undoes what it did, then ends", *_because(run.error))
        case "cancelling":
            return ("stops at the next step, asked ", Instant(run.cancel_requested_at or run.updated_at, "ago"))
        case "retrying":
            return _retry_line(run, step, around)
        case RunStatus.PENDING:
            return _pending_line(run, around)
        case RunStatus.RUNNING:
            return _running_line(run, step, around)
        case RunStatus.SLEEPING:
            return _timed_line("starts " if run.started_at is None and step is None else "wakes ", run, around)
        case RunStatus.WAITING:
            return (*_waited_for(step), *_time_out(run))
        case RunStatus.FAILED:
            return _failure(run.error, around, limit=120)
        case RunStatus.COMPLETED:
            return _ended("done", run)
        case RunStatus.CANCELLED:
            return _ended("cancelled", run)
        case _:
            return ()


def _paused_line(run: Run) -> Text:
    since = Instant(run.paused_at or run.updated_at, "ago")
    if run.worker is not None:
        return ("pauses before its next step, asked ", since)
    return ("paused ", since, ", goes on when it is resumed")


def _ended(word: str, run: Run) -> Text:
    return (word,) if run.finished_at is None else (f"{word} ", Instant(run.finished_at, "ago"))


def _pending_line(run: Run, around: Surroundings) -> Text:
    if run.worker is not None and not _late(run, around):
        return ("taken by ", *on_worker(run, around), ", begins when a thread is free")
    nobody = _nobody(run, around)
    if nobody is not None:
        return nobody
    return ("next in ", Name(run.queue), ", due ", Instant(run.due_at or run.created_at, "ago"))


def _running_line(run: Run, step: Step | None, around: Surroundings) -> Text:
    timed_out = " timed out," if step is not None and _timed_out(step) else ""
    doing: Text = () if step is None else (*numbered(step), f",{timed_out} ")
    if run.due_at is not None and _late(run, around):
        return (*doing, "lease ran out ", Instant(run.due_at, "ago"))
    return (*doing, "on ", *on_worker(run, around))


def _timed_line(verb: str, run: Run, around: Surroundings) -> Text:
    if run.due_at is None:
        return ()
    if _late(run, around):
        return (*(_nobody(run, around) or ("waits for a free worker",)), ", due ", Instant(run.due_at, "ago"))
    if _due(run, around):
        return (f"{verb}now",)
    return (verb, Instant(run.due_at), ", ", Instant(run.due_at, "in"))


def _retry_line(run: Run, step: Step | None, around: Surroundings) -> Text:
    due: Text = () if run.due_at is None else (" ", Instant(run.due_at, "in"))
    if run.due_at is not None and _late(run, around):
        why_not = _nobody(run, around) or ("waits for a free worker",)
        due = (" due ", Instant(run.due_at, "ago"), ", ", *why_not)
    if step is None:
        return (f"attempt {run.attempts + 1} of {run.max_attempts}", *due, *_because(run.error))
    of = _of_tries(step, around)
    return (*numbered(step), f", try {step.attempts + 1}{of}", *due, *_because(step.error))


def _of_tries(step: Step, around: Surroundings) -> str:
    """How many tries a step has, as " of 8", where the code here says so."""
    if step.kind != "step":
        return ""
    tries = around.tries.get(step.key.rpartition("/")[2].partition("#")[0], 0)
    return f" of {tries}" if tries > step.attempts else ""


def _because(error: RunError | None) -> Text:
    return () if error is None else (f". {error.short_type}",)


def numbered(step: Step) -> Text:
    """The step's number and name."""
    return (f"step {step.number or step.position}, ", Name(step.label))


def _waited_for(step: Step | None) -> Text:
    match step:
        case Step(kind="wait") if ":" not in step.key:
            return ("the first of several events",)
        case Step(kind="receive"):
            return ("message ", Name(step.label.removeprefix("receive ")))
        case Step(kind="wait"):
            return ("event ", Name(step.label.removeprefix("wait ")))
        case Step(kind="start"):
            return ("run of ", Name(step.label.removeprefix("start ")))
        case Step(kind="result"):
            return ("the end of another run",)
        case Step():
            return numbered(step)
        case _:
            return ("something outside",)


def _time_out(run: Run) -> Text:
    return () if run.due_at is None else (", at most until ", Instant(run.due_at))


def _failure(error: RunError | None, around: Surroundings, *, limit: int) -> Text:
    if error is None:
        return ("no error was stored",)
    place: Text = () if error.step is None else (Name(error.step), ". ")
    return (*place, _said(error, around, limit=limit))


#: Errors of the engine's own, whose messages hold nothing of the app's.
_ENGINES_OWN = ("lost", "nondeterminism", "version", "deadline")


def _said(error: RunError, around: Surroundings, *, limit: int) -> str:
    """As `said`, or the class alone for those who may not see what came from inputs."""
    if around.payloads or error.kind in _ENGINES_OWN:
        return said(error, limit=limit)
    return error.short_type


def said(error: RunError, *, limit: int) -> str:
    """Class and message of an error on one line, without what looks like a secret."""
    message = phrases.cut(redact_text(error.message[: 10 * limit]), limit)
    if error.short_type == "StepFailed":
        own = _STEP_FAILED.sub("", message, count=1)
        if own != message:
            return own
    return f"{error.short_type}: {message}" if message else error.short_type


# Why nobody runs it ------------------------------------------------------------------------


def _nobody(run: Run, around: Surroundings) -> Text | None:
    """Why no live worker can take the run; null if one can."""
    workers = around.workers
    if not workers:
        return ("no live worker",)
    serving = [worker for worker in workers if worker.serves(run.queue)]
    if not serving:
        return ("no live worker serves queue ", Name(run.queue))
    ranges = [versions for worker in serving for versions in worker.versions(run.workflow)]
    if not ranges:
        return ("no live worker knows ", Name(run.workflow))
    if not in_ranges(run.version, ranges):
        return (f"no live worker runs version {run.version}",)
    return None


def _is_orphan(run: Run, around: Surroundings) -> bool:
    """Whether neither this app's code nor any live worker's has the workflow."""
    if around.known is None or run.workflow in around.known:
        return False
    return not any(worker.versions(run.workflow) for worker in around.workers)


def _due(run: Run, around: Surroundings) -> bool:
    return run.due_at is not None and run.due_at <= around.now


def _late(run: Run, around: Surroundings) -> bool:
    return run.due_at is not None and run.due_at < around.now - PATIENCE


def on_worker(run: Run, around: Surroundings) -> Text:
    """The name of the worker that holds the run."""
    worker = around.names.get(run.worker or "")
    if worker is None:
        return ("a process that is no live worker",) if run.worker is not None else ("no worker",)
    return (Name(worker_name(worker)),)


def worker_name(worker: Worker) -> str:
    """The worker's name and where it runs."""
    place = f"{worker.host}:{worker.pid}"
    return place if worker.name == place else f"{worker.name} ({place})"


# The sentences of the run's own page -------------------------------------------------------


def why(
    run: Run, open_steps: Sequence[Step], around: Surroundings, *, failed: Step | None = None, beside: Beside = _NOTHING
) -> Why:
    """What is going on with the run, and why it does not move.

    `failed` is the step that failed the run, if one did.
    """
    because = _because_of_its_state(run, open_steps, around, failed, beside)
    if run.undone and run.finished:
        undone = ("Its undo steps were executed before it ended, so it cannot be retried.",)
        return replace(because, more=_sentences(because.more, undone), action="start")
    return replace(because, more=_sentences(because.more, _deadline(run, around)))


def _deadline(run: Run, around: Surroundings) -> Text:
    if run.deadline_at is None or run.finished or run.undoing:
        return ()
    if run.deadline_at > around.now:
        return ("It must have finished by ", Instant(run.deadline_at), ", ", Instant(run.deadline_at, "in"), ".")
    following = "once it is resumed" if run.paused else "at the next look"
    return ("Its deadline passed ", Instant(run.deadline_at, "ago"), f": it fails {following}.")


def _because_of_its_state(
    run: Run, open_steps: Sequence[Step], around: Surroundings, failed: Step | None, beside: Beside
) -> Why:
    step = main_step(run, open_steps)
    match state(run, open_steps):
        case "paused":
            return _why_paused(run, step, around, beside)
        case "undoing":
            return _why_undoing(run, step)
        case "cancelling":
            return _why_cancelling(run, step, around, beside)
        case "retrying":
            return _why_retrying(run, step, around)
        case RunStatus.PENDING:
            return _why_pending(run, around)
        case RunStatus.RUNNING:
            return _why_running(run, step, around, beside)
        case RunStatus.SLEEPING:
            return _why_sleeping(run, step, around)
        case RunStatus.WAITING:
            return _why_waiting(run, step, around, beside)
        case RunStatus.FAILED:
            return _why_failed(run, failed, around)
        case RunStatus.CANCELLED:
            return _why_cancelled(run, around, beside)
        case RunStatus.COMPLETED:
            took = "" if run.took is None else f" in {phrases.duration(run.took)}"
            return Why((f"Done{took}.",), _kept(run, around), "start")
        case other:
            return Why(("Its status is ", Name(other), ", which this version of the package does not know."))


def _why_pending(run: Run, around: Surroundings) -> Why:
    if run.worker is not None and not _late(run, around):
        headline: Text = ("Taken by ", *on_worker(run, around), "; it begins when a thread is free there.")
        return Why(headline, _losses(run))
    nobody = _why_nobody(run, around)
    if nobody is not None:
        return nobody

    ahead: Text = ()
    if around.ahead is not None and around.ahead.value:
        number = phrases.count(around.ahead.value, capped=around.ahead.capped)
        ahead = (f"; {number} {'is' if around.ahead.value == 1 else 'are'} ahead of it in ", Name(run.queue))
    headline = ("Pending for ", Instant(run.due_at or run.created_at, "for"), *ahead, ".")
    return Why(headline, _sentences(_able(run, around), _losses(run)))


def _able(run: Run, around: Surroundings) -> Text:
    able = sum(worker.can_run(run) for worker in around.workers)
    return (f"{phrases.several(able, 'live worker')} can take it, as soon as a thread is free.",)


def _why_nobody(run: Run, around: Surroundings) -> Why | None:
    """Why the run waits for a worker there is none of, and what would help; null if there is one."""
    nobody = _nobody(run, around)
    if nobody is None:
        return None
    if _is_orphan(run, around):
        return Why(
            ("No workflow named ", Name(run.workflow), " is in this app's code."),
            ("It waits until a worker has it. If it was renamed or removed, cancel the run.",),
            "cancel",
        )

    due: Text = () if run.due_at is None else ("Due ", Instant(run.due_at, "ago"), ".")
    if not around.workers:
        start: Text = ("Start one: ", Name(work_command()), ".")
        return Why(("No worker is live.",), _sentences(start, due), "workers")

    serving = [worker for worker in around.workers if worker.serves(run.queue)]
    if not serving:
        start = ("Start one: ", Name(work_command(run.queue)), ".")
        return Why(("No live worker serves queue ", Name(run.queue), "."), _sentences(start, due), "workers")

    ranges = [versions for worker in serving for versions in worker.versions(run.workflow)]
    if not ranges:
        start = ("Start one whose ", Name("WORKFLOWS_IMPORTS"), " names the module that declares it.")
        return Why(("No live worker knows the workflow ", Name(run.workflow), "."), _sentences(start, due), "workers")

    here = in_ranges(run.version, (around.known or {}).get(run.workflow, ()))
    restart: Text = ("This app's code has it: restart the workers.",) if here else ()
    return Why(
        (f"Waits for a worker with version {run.version} of ", Name(run.workflow), "."),
        _sentences((f"Live workers run {_versions(ranges)}.",), restart or _age_of_code(run, ranges, around), due),
        "workers",
    )


def _age_of_code(run: Run, ranges: Sequence[tuple[int, int]], around: Surroundings) -> Text:
    """Whether the run's code is newer or older than what the workers have, and what follows."""
    if run.version > max(high for _, high in ranges):
        return ("It was started by newer code, which no worker has yet.",)
    if run.version > min(low for low, _ in ranges):
        return ()
    known = (around.known or {}).get(run.workflow, ())
    if known and run.version < min(low for low, _ in known):
        return (
            "It was started by older code, which this app's no longer takes over: it fails 5 min after it was due, "
            "unless a worker comes that has it.",
        )
    return ("It was started by older code, which no worker has any more.",)


def work_command(queue: str | None = None) -> str:
    """What to type for a worker."""
    if queue is None:
        return "flask workflows work"
    return f"flask workflows work --queue {shlex.quote(queue)}"


def _versions(ranges: Iterable[tuple[int, int]]) -> str:
    listed = sorted(set(ranges))
    texts = [str(low) if low == high else f"{low} to {high}" for low, high in listed]
    single = len(listed) == 1 and listed[0][0] == listed[0][1]
    return f"version{'' if single else 's'} {', '.join(texts)}"


def _why_running(run: Run, step: Step | None, around: Surroundings, beside: Beside) -> Why:
    if _late(run, around) or beside.holder is not None:
        return _why_lost(run, step, around, beside)

    on: Text = ("on ", *on_worker(run, around), ".")
    over: Text = ()
    if run.worker not in around.names and run.due_at is not None and not _due(run, around):
        # Nobody lists the process of a `tick`.
        over = ("Should that be gone, any live worker takes the run over ", Instant(run.due_at, "in"), ".")
    if step is None:
        return Why(("Running ", *on), _sentences(over, _losses(run)))
    if _timed_out(step):
        waits = "the next attempt" if step.status == "retrying" else "the run"
        return Why(_why_stuck(run, step, around, waits=waits), _sentences(over, _losses(run)))
    since: Text = () if step.started_at is None else ("for ", Instant(step.started_at, "for"), " ")
    return Why((*capital(numbered(step)), ", runs ", *since, *on), _sentences(over, _losses(run)))


def _why_stuck(run: Run, step: Step, around: Surroundings, *, waits: str) -> Text:
    """A call goes on that took too long."""
    said = _TIMED_OUT.search(step.error.message if step.error is not None else "")
    after = f" after {said[1]}" if said is not None else ""
    where = on_worker(run, around)
    return (
        *capital(numbered(step)),
        f", timed out{after}; its call goes on in ",
        *where,
        f", and {waits} waits for it.",
    )


def _why_lost(run: Run, step: Step | None, around: Surroundings, beside: Beside) -> Why:
    """Its worker is silent, or its lease ran out."""
    due_at = run.due_at or around.now
    worker = around.names.get(run.worker or "") or beside.holder
    named: Text = () if worker is None else (", ", Name(worker_name(worker)), ",")
    if _due(run, around):
        headline: Text = ("Its worker", *named, " does not answer; the lease ran out ", Instant(due_at, "ago"), ".")
        over: Text = ("Any live worker takes it over at its next look.",)
    else:
        gone: Text = () if worker is None else (" was last seen ", Instant(worker.seen_at, "ago"), ".")
        if worker is not None and worker.stopped_at is not None:
            gone = (" stopped ", Instant(worker.stopped_at, "ago"), ".")
        headline = ("Its worker", *named, *gone)
        over = ("Unless it comes back, any live worker takes the run over ", Instant(due_at, "in"), ".")
    nobody = _nobody(run, around)
    if nobody is not None:
        over = ("Nobody can take it over: ", *nobody, ".")

    left = run.max_attempts - run.attempts - 1
    again: Text = ()
    if left < 1:
        again = ("It fails then: its attempts are used up.",)
    elif step is not None:
        again = (*capital(numbered(step)), f", then starts again, attempt {run.attempts + 2} of {run.max_attempts}.")
    return Why(headline, _sentences(over, again, _losses(run)), "release")


def _why_paused(run: Run, step: Step | None, around: Surroundings, beside: Beside) -> Why:
    who: Text = ("by ", Name(beside.paused_by), " ") if beside.paused_by else ()
    since = Instant(run.paused_at or run.updated_at, "ago")
    if run.worker is not None:
        more = _finishes_first(run, step, around)
        return Why(("Pausing was asked for ", *who, since, "; the run stops before its next step."), more, "resume")
    due = run.due_at or run.paused_due_at
    following: Text = () if due is None else ("Resumed, it goes on ", Instant(due, "in"), ".")
    return Why(("Paused ", *who, since, ": nothing of it is executed until it is resumed."), following, "resume")


def _why_undoing(run: Run, step: Step | None) -> Why:
    how: Text = ("It failed with ", *_raised(run.error), ".") if run.error is not None else ("It is cancelled.",)
    more: Text = () if step is None else (*capital(numbered(step)), ", is at it.")
    return Why((*how, " What it did is being undone; then it ends."), more)


def _finishes_first(run: Run, step: Step | None, around: Surroundings) -> Text:
    if step is None:
        return ()
    if run.status is RunStatus.RUNNING and _timed_out(step):
        return _why_stuck(run, step, around, waits="the run")
    return (*capital(numbered(step)), ", finishes first.")


def _why_cancelling(run: Run, step: Step | None, around: Surroundings, beside: Beside) -> Why:
    asked = Instant(run.cancel_requested_at or run.updated_at, "ago")
    who: Text = ("by ", Name(beside.cancelled_by), " ") if beside.cancelled_by else ()
    more = _finishes_first(run, step, around)
    if _late(run, around):
        more = ("Its worker does not answer; the next one ends the run.",)
    return Why(("Cancelling was asked for ", *who, asked, "; the run stops at its next step."), more)


def _why_retrying(run: Run, step: Step | None, around: Surroundings) -> Why:
    following: Text = () if run.due_at is None else ("Next try ", Instant(run.due_at, "in"), ".")
    action = "wake"
    overdue: Text = ()
    if _late(run, around):
        following = ("The next try is due.",)
        overdue, action = _overdue(run, around), "workers"

    if step is None:
        raised: Text = ("The workflow's body raised ", *_raised(run.error), ".")
        used = f"{run.attempts} of {run.max_attempts} attempts used."
        return Why(_sentences(raised, following), _sentences((used,), overdue, _in_full(run.error, around)), action)
    of = _of_tries(step, around)
    times = f"{step.attempts}{of} times" if of else "once" if step.attempts == 1 else f"{step.attempts} times"
    failed: Text = (*capital(numbered(step)), f", failed {times}, with ", *_raised(step.error), ".")
    return Why(_sentences(failed, following), _sentences(overdue, _in_full(step.error, around)), action)


def _in_full(error: RunError | None, around: Surroundings) -> Text:
    """What an error said, where that may be told."""
    return (said(error, limit=300),) if error is not None and around.payloads else ()


def _raised(error: RunError | None) -> Text:
    return ("an error",) if error is None else (Name(error.short_type),)


def _why_sleeping(run: Run, step: Step | None, around: Surroundings) -> Why:
    if run.due_at is None:
        return Why(("Sleeps, and nothing will wake it.",))
    if _late(run, around):
        return Why(("It should have woken ", Instant(run.due_at, "ago"), "."), _overdue(run, around), "workers")
    if _due(run, around):
        return Why(("It wakes now: a worker takes it at its next look.",))

    verb = "Starts " if run.started_at is None and step is None else "Sleeps until "
    since: Text = ()
    if step is not None and step.started_at is not None:
        since = (*capital(numbered(step)), ", began ", Instant(step.started_at), ".")
    return Why((verb, Instant(run.due_at), ", ", Instant(run.due_at, "in"), "."), since, "wake")


def _overdue(run: Run, around: Surroundings) -> Text:
    nobody = _why_nobody(run, around)
    return _able(run, around) if nobody is None else _sentences(nobody.headline, nobody.more)


def _why_waiting(run: Run, step: Step | None, around: Surroundings, beside: Beside) -> Why:
    since: Text = ()
    if step is not None and step.started_at is not None:
        since = ("Since ", Instant(step.started_at), ".")

    ends: Text = ("It waits for good.",)
    # Nobody but the other run ends a wait for its end.
    action = {"receive": "send", "result": ""}.get("" if step is None else step.kind, "deliver")
    if run.due_at is not None and _late(run, around):
        ends = _sentences(("The wait ended ", Instant(run.due_at, "ago"), "."), _overdue(run, around))
        action = "workers"
    elif run.due_at is not None and _due(run, around):
        ends = ("The wait ends now.",)
    elif run.due_at is not None:
        ends = ("At most until ", Instant(run.due_at), ", ", Instant(run.due_at, "in"), ".")
    awaited = _awaited(step, around, beside) or _waited_for(step)
    return Why(("Waiting for ", *awaited, "."), _sentences(since, ends, _came(beside)), action)


def _awaited(step: Step | None, around: Surroundings, beside: Beside) -> Text:
    """Each event it waits for, with the fields and values that have to match."""
    noun = "message " if step is not None and step.kind == "receive" else "event "
    texts: list[Text] = [(noun, Name(event.name), *_matched_by(event, around)) for event in beside.waited]
    if len(texts) < 2:
        return texts[0] if texts else ()
    joined: Text = ("the first of ",)
    for place, text in enumerate(texts):
        joined = (*joined, *(() if place == 0 else (" or ",) if place == len(texts) - 1 else (", ",)), *text)
    return joined


def _matched_by(event: Awaited, around: Surroundings) -> Text:
    text: Text = ()
    hides_too = app_hides()
    for place, (name, value) in enumerate(event.match):
        between = " with " if place == 0 else " and "
        if not around.payloads:
            text = (*text, between, "a certain ", Name(name))
        elif (word := hides(name)) is not None:
            text = (*text, between, Name(name), f" (hidden: matches “{word}”)")
        elif hides_too is not None and hides_too(f"$.{name}", decode(value)):
            text = (*text, between, Name(name), " (hidden by the app)")
        else:
            text = (
                *text,
                between,
                Name(name),
                " = ",
                Name(phrases.cut(redact_text(json.dumps(value, ensure_ascii=False)), 100)),
            )
    return text


def _came(beside: Beside) -> Text:
    """What came meanwhile and did not end the wait."""
    if beside.passed is None or beside.unseen is None:
        return ()
    name = "of that name" if len(beside.waited) == 1 else "of these names"
    matching = any(event.match for event in beside.waited)
    unseen: Text = ()
    if beside.unseen.value:
        number = phrases.count(beside.unseen.value, capped=beside.unseen.capped)
        unseen = (f"{number} {name} came that no worker has looked at yet.",)
    if not beside.passed.value:
        return unseen or (f"None {name} came since.",)
    if not matching:
        # They came too early, or to others.
        return unseen
    number = phrases.count(beside.passed.value, capped=beside.passed.capped)
    return _sentences((f"{number} {name} came since, with other values.",), unseen)


def _why_failed(run: Run, failed: Step | None, around: Surroundings) -> Why:
    error = run.error
    if error is None:
        return Why(("Failed; no error was stored.",), action="retry")

    words = _said(error, around, limit=300)
    message = redact_text(error.message)
    match error.kind:
        case "lost":
            return Why(("Failed: its worker was lost at each attempt.",), (message,), "retry")
        case "nondeterminism":
            mended = "Once the code makes them again, a retry goes on from there."
            return Why(
                ("Failed: the code no longer makes the calls that were recorded.",),
                (f"{message.rstrip('.')}. {mended}",),
                "retry",
            )
        case "version":
            return Why((f"Failed: no code takes up version {run.version} any more.",), (message,), "retry")
        case "body":
            used = f"{run.attempts} of {run.max_attempts} attempts used."
            return Why((f"Failed: {words}",), (used,), "retry")

    at: Text = ()
    if failed is not None:
        at = (" at ", *numbered(failed))
    elif error.step is not None:
        at = (" at step ", Name(error.step))
    return Why(("Failed", *at, f": {words}"), _tries(failed), "retry")


def _tries(failed: Step | None) -> Text:
    if failed is None:
        return ()
    if failed.error is not None and failed.error.kind == "business":
        return ("The step declares this error, so it was not tried again.",)
    return (f"It was tried {failed.attempts} times.",) if failed.attempts > 1 else ()


def _why_cancelled(run: Run, around: Surroundings, beside: Beside) -> Why:
    who: Text = (" by ", Name(beside.cancelled_by)) if beside.cancelled_by else ()
    if run.finished_at is None:
        return Why(("Cancelled", *who, "."), action="retry")
    before = "" if run.started_at is not None else " before it began"
    headline: Text = ("Cancelled", *who, f"{before}, ", Instant(run.finished_at, "ago"), ".")
    return Why(headline, _kept(run, around), "retry")


def _kept(run: Run, around: Surroundings) -> Text:
    if not around.keep_days or run.finished_at is None:
        return ()
    until = phrases.later(run.finished_at, timedelta(days=around.keep_days))
    return ("Kept until ", Instant(until), f" ({phrases.several(around.keep_days, 'day')}).")


def _losses(run: Run) -> Text:
    if not run.losses:
        return ()
    times = "once" if run.losses == 1 else f"{run.losses} times"
    return (f"It lost its worker {times} since its last new step.",)


def _sentences(*texts: Text) -> Text:
    joined: Text = ()
    for text in texts:
        joined = (*joined, " ", *text) if joined and text else (*joined, *text)
    return joined


def capital(text: Text) -> Text:
    """The text as the beginning of a sentence."""
    first = text[0]
    return (first[:1].upper() + first[1:], *text[1:]) if isinstance(first, str) else text
