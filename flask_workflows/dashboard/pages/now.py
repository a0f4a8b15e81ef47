"""The first page: whether all is well, and what asks for attention."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
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
from ...explain import worker_name
from ...runs import Count
from ...runs import Due
from ...runs import Run
from ...runs import RunStatus
from ...runs import Step
from ...runs import Worker
from ..access import Permission
from ..chart import Chart
from ..verdict import Gap
from ..verdict import gaps
from ..verdict import Verdict

#: The statuses of the strip: unfinished ones exact, finished ones of the last 24 hours.
UNFINISHED = ("pending", "running", "sleeping", "waiting", "retrying")
ENDED = (RunStatus.FAILED, RunStatus.COMPLETED, RunStatus.CANCELLED)

#: How many rows of a kind ask for attention at most; together there are 20 at most.
MOST = {"nobody": 4, "unknown": 2, "lost": 4, "overdue": 3, "ending": 3, "paused": 1, "failed": 3}

#: Whose attempts were used up; other failures are what the code wanted, or cannot go on.
_USED_UP = ("step", "body", "lost")


@dataclass(frozen=True, slots=True)
class Tile:
    """How many there are of a status; null where counting took too long."""

    state: str
    count: Count | None
    #: The query string of the list that shows them.
    args: tuple[tuple[str, str], ...]
    #: Only those created in the last 24 hours.
    lately: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Something that asks for attention, and where to go for it."""

    kind: str
    #: The state it is drawn in.
    state: str
    workflow: str | None
    run_id: str | None
    words: Text
    #: The word on its link, and where that leads.
    action: str
    endpoint: str
    #: The list's query string where it is not one run.
    args: tuple[tuple[str, str], ...] = ()

    @property
    def short_id(self) -> str:
        return "" if self.run_id is None else f"…{self.run_id[-6:]}"


@dataclass(frozen=True, slots=True)
class Timer:
    """A sleeping run."""

    run_id: str
    workflow: str
    wakes_at: datetime

    @property
    def short_id(self) -> str:
        return f"…{self.run_id[-6:]}"


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A live worker."""

    name: str
    serves: Text
    threads: int
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Attention:
    """`more` where there are others of some kind; `missing` where something took too long to read."""

    rows: tuple[Row, ...]
    more: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True)
class NowPage:
    verdict: Verdict
    tiles: tuple[Tile, ...]
    attention: Attention
    #: Null where it took too long to read.
    chart: Chart | None
    #: Whether the chart counts only the newest runs.
    chart_cut: bool
    timers: tuple[Timer, ...] | None
    #: Some of the live ones.
    workers: tuple[WorkerLine, ...]
    more_workers: int
    threads: int


@dataclass(frozen=True, slots=True)
class Troubles:
    """What was found that asks for attention; null where it took too long to read."""

    due: Due | None = None
    unknown: Sequence[tuple[str, Count]] | None = None
    lost: Sequence[Run] | None = None
    overdue: Sequence[Run] | None = None
    ending: Sequence[Run] | None = None
    failed: Sequence[Run] | None = None
    paused: Count | None = None


def tiles(live: Mapping[str, Count] | None, ended: Mapping[RunStatus, Count] | None) -> tuple[Tile, ...]:
    # Retrying ones are stored as sleeping.
    unfinished = [
        Tile(
            status,
            None if live is None else live[status],
            (("status", "sleeping" if status == "retrying" else status),),
            lately=False,
        )
        for status in UNFINISHED
    ]
    others = [
        Tile(status, None if ended is None else ended[status], (("status", status), ("time", "24h")), lately=True)
        for status in ENDED
    ]
    return (*unfinished, *others)


def attention(
    troubles: Troubles,
    open_steps: Mapping[str, Sequence[Step]],
    around: Surroundings,
    may: Callable[[Permission, Run], bool],
) -> Attention:
    """The rows in the order of their weight, a few of each kind.

    `may` says whether the visitor can do something to a run from a page of its own.
    """

    def of_runs(
        kind: str, words: str, runs: Sequence[Run] | None, action: Permission | None = None
    ) -> list[Row] | None:
        if runs is None:
            return None
        return [_of_run(words, run, open_steps, around, action, may) for run in runs[: MOST[kind] + 1]]

    rows: list[Row] = []
    more = False
    parts = {
        "nobody": None if troubles.due is None else _nobody(troubles.due, around),
        "unknown": None if troubles.unknown is None else _unknown(troubles.unknown),
        "lost": of_runs("lost", "Lost worker", troubles.lost, Permission.RELEASE),
        "overdue": of_runs("overdue", "Overdue", troubles.overdue),
        "ending": of_runs("ending", "Wait ends soon", troubles.ending),
        "paused": None if troubles.paused is None else _paused(troubles.paused),
        "failed": of_runs("failed", "Failed", _used_up(troubles.failed), Permission.RETRY),
    }
    for kind, part in parts.items():
        listed = [] if part is None else list(part)
        more = more or len(listed) > MOST[kind]
        rows += listed[: MOST[kind]]
    return Attention(tuple(rows), more, missing=any(part is None for part in parts.values()))


def _nobody(due: Due, around: Surroundings) -> Iterator[Row]:
    for gap in gaps(due, around):
        if not gap.orphan:
            number = phrases.count(gap.count, capped=due.cut)
            words: Text = (
                *gap.what,
                f"; {number} {'run waits' if gap.count == 1 else 'runs wait'}, the oldest for ",
                Instant(gap.oldest, "for"),
                ". ",
                *gap.help,
            )
            yield Row("No worker", "pending", gap.workflow, None, words, "Show the runs", ".runs", _list_of(gap))


def _list_of(gap: Gap) -> tuple[tuple[str, str], ...]:
    if gap.workflow is not None:
        return (("workflow", gap.workflow),)
    return (("status", "pending"),) if gap.queue is None else (("queue", gap.queue),)


def _unknown(unknown: Sequence[tuple[str, Count]]) -> Iterator[Row]:
    for workflow, count in unknown:
        number = phrases.count(count.value, capped=count.capped)
        words: Text = (
            "No workflow named ",
            Name(workflow),
            " is in this app's code or in a live worker's; ",
            f"{number} unfinished {'run' if count.value == 1 else 'runs'}.",
        )
        args = (("workflow", workflow),)
        yield Row("Not in the code", "cancelled", workflow, None, words, "Show the runs", ".runs", args)


def _paused(paused: Count) -> Iterator[Row]:
    if paused.value:
        number = phrases.count(paused.value, capped=paused.capped)
        one, many = "run is paused: it goes on once somebody resumes it.", "runs are paused: they go on once resumed."
        words: Text = (f"{number} {one if number == '1' else many}",)
        yield Row("Paused", "paused", None, None, words, "Show the runs", ".runs", (("q", "is:paused"),))


def _of_run(
    kind: str,
    run: Run,
    open_steps: Mapping[str, Sequence[Step]],
    around: Surroundings,
    action: Permission | None,
    may: Callable[[Permission, Run], bool],
) -> Row:
    steps = open_steps.get(run.id, ())
    label, endpoint = "Open", ".run"
    if action is not None and may(action, run):
        label, endpoint = f"{action.value.capitalize()}…", f".ask_{action.value}"
    return Row(kind, state(run, steps), run.workflow, run.id, now_doing(run, steps, around), label, endpoint)


def _used_up(failed: Sequence[Run] | None) -> Sequence[Run] | None:
    if failed is None:
        return None
    return [run for run in failed if run.error is not None and run.error.kind in _USED_UP]


def timers(coming: Sequence[Run] | None) -> tuple[Timer, ...] | None:
    if coming is None:
        return None
    return tuple(Timer(run.id, run.workflow, run.due_at) for run in coming if run.due_at is not None)


def worker_lines(workers: Sequence[Worker]) -> tuple[WorkerLine, ...]:
    return tuple(
        WorkerLine(worker_name(worker), _queues(worker), worker.concurrency, worker.started_at) for worker in workers
    )


def _queues(worker: Worker) -> Text:
    if worker.queues is None:
        return ("every queue",)
    parts: list[str | Name | Instant] = []
    for queue in worker.queues:
        parts += [", ", Name(queue)]
    return tuple(parts[1:])
