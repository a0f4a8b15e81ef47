"""Waiting, in a run, for the end of another: mostly of a child it started.

The run waited for is marked as *watched*, in a transaction of its own; unless it has finished by then, its end will be
told by an event, in the transaction that ends it. Then the wait is stored, for that event and with all that came
before: so whether the other run ends before the mark, between mark and wait, or after, its end is seen.

What is recorded is how it ended, with its result or error: the record outlives the other run's rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from typing import TYPE_CHECKING

from .durations import to_ms
from .errors import WaitTimeout
from .matching import ENDS
from .matching import FINISHED
from .store import Change
from .store import StepWrite
from .store import WaitWrite
from .store.events import GONE

if TYPE_CHECKING:
    from .context import WorkflowContext


@dataclass(frozen=True, slots=True)
class Finished:
    """How a run ended; `status` is "gone" where there is none, or none any more."""

    status: str
    #: JSON text of what it returned.
    output: str | None
    error: dict[str, Any] | None


def await_run(context: WorkflowContext, run_id: str, timeout: timedelta | float | None) -> Finished:
    """How the run ended. Suspends until it has. Raises `WaitTimeout`, as a recorded error."""
    due_in = None if timeout is None else to_ms(timeout, what="the time-out")
    input = json.dumps({"run": run_id, "timeout_ms": due_in})
    call = context.next_call("$result", input)
    waits = [WaitWrite(call.key, 0, FINISHED, context.workspace or "", ENDS, run_id, None)]
    output = None if call.stored is None else call.stored.output
    if call.stored is None:
        context.may_start()
        known, ended = context.runtime.store.watch(run_id)
        write = StepWrite(call.key, call.position, "result", "waiting", input, due_in=due_in)
        if known and ended is None:
            context.suspend(Change("waiting", due_in=due_in), write, waits)
        output = f'{{"payload":{ended or GONE}}}'
        context.finish(call, write._replace(status="completed", output=output, due_in=None))
    elif call.stored.status != "completed":
        due_at = call.stored.due_at
        if due_at is None or due_at > context.now_ms():
            # Woken too early, or retried after a cancellation, which took the wait away.
            context.suspend(Change("waiting", due_at=due_at), None, waits)
        output = context.expire(call.key)
    return _read(context, run_id, json.loads(output or "null"))


def _read(context: WorkflowContext, run_id: str, found: dict[str, Any] | None) -> Finished:
    if found is None:
        raise context.recorded(WaitTimeout(f"run {run_id} had not finished in time; it goes on"))
    ended = found["payload"]
    output = ended.get("output")
    return Finished(ended["status"], None if output is None else json.dumps(output), ended.get("error"))
