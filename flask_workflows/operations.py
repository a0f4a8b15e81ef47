"""One action on many runs.

It is a workflow of the package's own, `workflows.bulk`: it goes on after a crash, takes the runs in chunks, says how
far it is, and is stopped by cancelling it. Each run is acted on by itself, under the epoch it was read with, so one
that moved on meanwhile is skipped; each leaves its row in the audit, in its own transaction. The runs are frozen when
the operation is ordered: those ticked, or those that match a filter and are not newer than its last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import TYPE_CHECKING

from . import service
from .audit import By
from .context import WorkflowContext
from .definition import Step
from .definition import Workflow
from .errors import KeyTaken
from .errors import RunChanged
from .errors import RunFinished
from .errors import RunNotFailed
from .errors import RunNotFound
from .errors import RunNotSleeping
from .errors import UndecodableValue
from .hooks import app_hides
from .runs import Run
from .runs import RunQuery
from .runtime import current_runtime
from .runtime import Runtime
from .store import reading as read
from .values import codec_for
from .values import ValueCodec

if TYPE_CHECKING:
    from .extension import Workflows

BULK = "workflows.bulk"

#: Runs acted on between two records of how far it is.
CHUNK = 200
#: Runs one operation may act on.
MOST = 50_000
#: Runs looked at, at a time, for a filter that no index knows.
_SCAN = 10_000

ACTIONS: Mapping[str, Callable[..., Run]] = {"cancel": service.cancel, "retry": service.retry, "wake": service.wake}

#: The run is not what the action is for, or not any more.
_SKIPPED = (RunFinished, RunNotFailed, RunNotSleeping, RunChanged, RunNotFound)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done, by whom, and to which runs: those listed, or those that match, up to the newest one."""

    action: str
    by: By
    runs: tuple[str, ...] = ()
    query: RunQuery | None = None
    until: str | None = None
    #: The workspaces that whoever ordered it may see, and so may see it; null for all.
    scope: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came of some of the runs, and where to go on; no cursor: these were the last."""

    done: int
    skipped: int
    refused: int
    cursor: str | None
    #: Why the first one was refused.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of all of them."""

    done: int = 0
    skipped: int = 0
    refused: int = 0
    problem: str | None = None

    @property
    def seen(self) -> int:
        return self.done + self.skipped + self.refused

    def plus(self, chunk: Chunk) -> Tally:
        return Tally(
            self.done + chunk.done,
            self.skipped + chunk.skipped,
            self.refused + chunk.refused,
            self.problem or chunk.problem,
        )


def declare(workflows: Workflows) -> Workflow[Any, Any]:
    """The workflow, for a registry."""
    return Workflow(workflows, bulk, name=BULK, version=1, min_version=None, queue=None, strict=True, timeout=None)


def bulk(ctx: WorkflowContext, order: Order, expected: int) -> Tally:
    """Does one action to many runs, as ordered on the pages."""
    tally, cursor = Tally(), order.query.cursor if order.query is not None else None
    while True:
        chunk = _act(ctx.run_id, order, cursor)
        tally, cursor = tally.plus(chunk), chunk.cursor
        ctx.progress(tally.seen, expected)
        if cursor is None or tally.seen >= MOST:
            return tally


def act(operation: str, order: Order, cursor: str | None) -> Chunk:
    """Act on the next runs. Repeated after a crash, it finds those it was done with changed, and skips them."""
    runtime = current_runtime()
    found, following = _next(runtime, order, cursor)
    by = replace(order.by, operation=operation)
    done = skipped = 0
    problems = []
    for run in found:
        # Not itself, which would leave the others as they are.
        if run.id == operation:
            continue
        try:
            ACTIONS[order.action](runtime, run.id, epoch=run.epoch, by=by)
            done += 1
        except _SKIPPED:
            skipped += 1
        except KeyTaken as error:
            problems.append(str(error))
    return Chunk(done, skipped, len(problems), following, problems[0] if problems else None)


_act = Step(act, name="act")

_ORDERS = ValueCodec(codec_for(Order), noun="order", subject="the order")
_TALLIES = ValueCodec(codec_for(Tally), noun="tally", subject="the tally")


def order_json(order: Order) -> str:
    """The order as text."""
    return _ORDERS.dump(order, where="the order")


def order_from(text: str) -> Order:
    """The order from its text."""
    order: Order = _ORDERS.load(text, where="the order")
    return order


def input_of(order: Order, expected: int) -> dict[str, Any]:
    """The arguments of the workflow, as they are stored."""
    return {"order": json.loads(order_json(order)), "expected": expected}


def order_of(run: Run) -> tuple[Order, int]:
    """What an operation was ordered to do, and to how many runs. Raises `UndecodableValue`."""
    match run.input:
        case {"order": found, "expected": int(expected)}:
            order: Order = _ORDERS.load(json.dumps(found), where=f"run {run.id}")
            return order, expected
    raise UndecodableValue(f"run {run.id}: its input is no order")


def tally_of(run: Run) -> Tally | None:
    """What came of an operation; null while it goes on, and where it was stopped. Raises `UndecodableValue`."""
    if not isinstance(run.output_json, str):
        return None
    tally: Tally = _TALLIES.load(run.output_json, where=f"run {run.id}")
    return tally


def _next(runtime: Runtime, order: Order, cursor: str | None) -> tuple[tuple[Run, ...], str | None]:
    """Runs to act on, and the cursor of those after them."""
    with read.reading(runtime.engine) as connection:
        if order.query is None:
            start = int(cursor or 0)
            ids = order.runs[start : start + CHUNK]
            found = [read.read_run(connection, run_id, payloads=False) for run_id in ids]
            more = start + CHUNK < len(order.runs)
            return tuple(run for run in found if run is not None), str(start + CHUNK) if more else None
        query = replace(order.query, limit=CHUNK, cursor=cursor)
        real_time = runtime.store.clock() is None
        page = read.list_runs(connection, query, scan=_SCAN, until=order.until, real_time=real_time, hidden=app_hides())
        return page.runs, page.older
