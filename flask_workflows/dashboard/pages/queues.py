"""The queues: what waits in each, what runs, and who serves it."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...explain import Name
from ...explain import Text
from ...explain import work_command
from ...runs import Count
from ...runs import Worker
from ...store.reading.queues import QueueCounts
from ...store.reading.queues import Queues

_NONE = Count(0)


@dataclass(frozen=True, slots=True)
class QueueRow:
    name: str
    due: Count
    #: Since when the first is due; longer where they were not all looked at.
    oldest: datetime | None
    running: Count
    sleeping: Count
    waiting: Count
    #: Live workers that serve it.
    workers: int
    #: What to do where runs are due and nobody serves it.
    help: Text


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """`rows` is null where it took too long to read."""

    rows: tuple[QueueRow, ...] | None
    cut: bool


def queues_page(found: Queues | None, declared: Collection[str], workers: Sequence[Worker], default: str) -> QueuesPage:
    """`declared` are the queues of the app's own workflows."""
    if found is None:
        return QueuesPage(None, False)
    counts = {queue.name: queue for queue in found.queues}
    served = {queue for worker in workers for queue in worker.queues or ()}
    names = sorted({*counts, *declared, *served})
    rows = tuple(_row(name, counts.get(name), workers, default) for name in names)
    return QueuesPage(rows, found.cut)


def _row(name: str, counts: QueueCounts | None, workers: Sequence[Worker], default: str) -> QueueRow:
    serving = sum(worker.serves(name) for worker in workers)
    due = _NONE if counts is None else counts.due
    stuck = due.value > 0 and not serving
    command = work_command(None if name == default else name)
    return QueueRow(
        name=name,
        due=due,
        oldest=None if counts is None else counts.oldest,
        running=_NONE if counts is None else counts.running,
        sleeping=_NONE if counts is None else counts.sleeping,
        waiting=_NONE if counts is None else counts.waiting,
        workers=serving,
        help=("No live worker serves it. Start one: ", Name(command)) if stuck else (),
    )
