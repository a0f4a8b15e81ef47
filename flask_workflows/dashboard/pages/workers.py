"""The worker processes: what each does, and what becomes of what a lost one held."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from enum import StrEnum

from ... import phrases
from ...explain import Instant
from ...explain import main_step
from ...explain import Name
from ...explain import numbered
from ...explain import Surroundings
from ...explain import Text
from ...explain import work_command
from ...runs import Run
from ...runs import Step
from ...runs import Worker

#: A worker says that it is there every 10 s; so much more may pass before it is late.
BEAT = timedelta(seconds=10)
_MARGIN = timedelta(seconds=5)

#: For how long workers that are gone stay listed.
KEPT = timedelta(hours=24)

#: Runs of one worker that are shown.
RUNS_SHOWN = 20


class WorkerState(StrEnum):
    LIVE = "live"
    #: A beat is missing.
    LATE = "late"
    #: Silent for so long that its runs are somebody else's.
    LOST = "lost"
    STOPPED = "stopped"


def worker_state(worker: Worker, now: datetime, lost_after: timedelta) -> WorkerState:
    if worker.stopped_at is not None:
        return WorkerState.STOPPED
    silence = now - worker.seen_at
    if silence > lost_after:
        return WorkerState.LOST
    return WorkerState.LATE if silence > BEAT + _MARGIN else WorkerState.LIVE


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run that a worker holds."""

    id: str
    workflow: str
    doing: Text
    #: Whether its worker is gone, so that it may be released.
    lost: bool

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    id: str
    name: str
    host: str
    pid: int
    state: WorkerState
    #: The queues it serves; null means all.
    queues: tuple[str, ...] | None
    #: Slots that are in use; null where that is not to be told.
    used: int | None
    slots: int
    runs: tuple[HeldRun, ...]
    more_runs: int
    started_at: datetime
    seen_at: datetime
    next: Text
    #: Each workflow with its versions.
    serves: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WorkersPage:
    workers: tuple[WorkerRow, ...]
    gone: tuple[WorkerRow, ...]
    #: Runs that are held by nobody of the list.
    strays: tuple[HeldRun, ...]
    notice: Text
    #: Whether there are more workers, or more runs, than were looked at.
    more_workers: bool
    more_runs: bool


def workers_page(
    workers: Sequence[Worker],
    held: Sequence[Run],
    open_steps: Mapping[str, Sequence[Step]],
    around: Surroundings,
    *,
    lost_after: timedelta,
    scoped: bool,
    most_workers: int,
    most_runs: int,
) -> WorkersPage:
    """`scoped` is for visitors who may not know of all runs: how busy a worker is, is not told them."""
    busy_told = not scoped and len(held) < most_runs
    by_worker: dict[str, list[Run]] = {}
    for run in held:
        by_worker.setdefault(run.worker or "", []).append(run)
    rows = [
        _row(worker, by_worker.pop(worker.id, []), open_steps, around, lost_after=lost_after, busy_told=busy_told)
        for worker in workers[:most_workers]
    ]
    here = [row for row in rows if not _is_gone(row)]
    strays = [run for runs in by_worker.values() for run in runs]
    return WorkersPage(
        workers=tuple(sorted(here, key=lambda row: (_ORDER[row.state], row.name, row.id))),
        gone=tuple(row for row in rows if _is_gone(row)),
        strays=tuple(_held(run, open_steps.get(run.id, ()), around, lost=True) for run in strays[:RUNS_SHOWN]),
        notice=_notice(rows),
        more_workers=len(workers) > most_workers,
        more_runs=len(held) >= most_runs,
    )


_ORDER = {WorkerState.LOST: 0, WorkerState.STOPPED: 1, WorkerState.LATE: 2, WorkerState.LIVE: 3}


def _is_gone(row: WorkerRow) -> bool:
    return row.state in (WorkerState.LOST, WorkerState.STOPPED) and not row.runs


def _row(
    worker: Worker,
    runs: Sequence[Run],
    open_steps: Mapping[str, Sequence[Step]],
    around: Surroundings,
    *,
    lost_after: timedelta,
    busy_told: bool,
) -> WorkerRow:
    state = worker_state(worker, around.now, lost_after)
    lost = state in (WorkerState.LOST, WorkerState.STOPPED)
    shown = tuple(_held(run, open_steps.get(run.id, ()), around, lost=lost) for run in runs[:RUNS_SHOWN])
    return WorkerRow(
        id=worker.id,
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        state=state,
        queues=worker.queues,
        used=len(runs) if busy_told else None,
        slots=worker.concurrency,
        runs=shown,
        more_runs=len(runs) - len(shown),
        started_at=worker.started_at,
        seen_at=worker.seen_at,
        next=tuple(_next(worker, state, runs, around, lost_after)),
        serves=tuple(_serves(worker)),
    )


def _held(run: Run, open_steps: Sequence[Step], around: Surroundings, *, lost: bool) -> HeldRun:
    step = main_step(run, open_steps)
    doing: Text = ("between steps",) if step is None else numbered(step)
    if step is not None and step.started_at is not None:
        doing = (*doing, ", for ", Instant(step.started_at, "for"))
    if run.due_at is not None and run.due_at < around.now:
        doing = (*doing, "; its lease ran out ", Instant(run.due_at, "ago"))
    return HeldRun(run.id, run.workflow, doing, lost)


def _serves(worker: Worker) -> Iterator[tuple[str, str]]:
    for name in sorted({name for name, _, _ in worker.workflows}):
        ranges = sorted(worker.versions(name))
        yield name, ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)


# What happens next -------------------------------------------------------------------------


def _next(
    worker: Worker, state: WorkerState, runs: Sequence[Run], around: Surroundings, lost_after: timedelta
) -> Iterator[str | Name | Instant]:
    match state:
        case WorkerState.LATE:
            yield from (
                "Unless it is heard of, it counts as lost at ",
                Instant(phrases.later(worker.seen_at, lost_after)),
                ".",
            )
            if runs:
                yield " "
                yield from _taken_over(worker, runs, around)
        case WorkerState.LOST | WorkerState.STOPPED if runs:
            yield from _taken_over(worker, runs, around)
        case WorkerState.LOST | WorkerState.STOPPED:
            yield from ("Listed until ", Instant(phrases.later(worker.seen_at, KEPT)), ".")


def _taken_over(worker: Worker, runs: Sequence[Run], around: Surroundings) -> Text:
    """When other workers take a worker's runs over, and whether there are any that will."""
    others = [other for other in around.workers if other.id != worker.id]
    several, are = (f"Its {len(runs)} runs", "are") if len(runs) > 1 else ("Its run", "is")
    ends = sorted(run.due_at for run in runs if run.due_at is not None)
    able = [run for run in runs if any(other.can_run(run) for other in others)]
    if not able:
        return (f"{several} {'wait' if len(runs) > 1 else 'waits'}: no live worker can take over.",)
    if ends and ends[-1] > around.now:
        when = "at" if ends[0] == ends[-1] else "by"
        return (f"{several} {are} taken over {when} ", Instant(ends[-1]), ".")
    return (f"{several} {are} taken over at the next look of a live worker.",)


def _notice(rows: Iterable[WorkerRow]) -> Text:
    """What to say where no worker is live."""
    listed = list(rows)
    if not listed or any(row.state in (WorkerState.LIVE, WorkerState.LATE) for row in listed):
        return ()
    last = max(listed, key=lambda row: row.seen_at)
    seen: Text = ("The last was seen ", Instant(last.seen_at), " on ", Name(last.host), ". ")
    return ("No worker is live. ", *seen, "Start one: ", Name(work_command()))
