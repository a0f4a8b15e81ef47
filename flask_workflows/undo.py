"""Undoing what a run did, once it has failed or is to be cancelled: compensation.

What is to be undone was pushed by the body with `ctx.on_failure`, as recorded calls; so the body is not needed for it.
How the run is to end is stored first, with its error, and the run is due again. Then the pushed steps are executed in
reverse, as steps of the run under its lease: recorded, retried, and taken over by another worker where one dies. At
last the run ends as it was to.

    failed, cancelled ──> undoing ──┬─> sleeping: a step is to be tried again ──> undoing
                                    └─> failed, cancelled: each step completed, or failed for good

A run that fails because its code has changed is not undone: put back, the code lets it go on where it stopped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from .context import WorkflowContext
from .execution import Execution
from .interrupts import Interrupt
from .interrupts import Suspended
from .store import Change

#: Failures of the code as it is deployed, not of what the run does.
_OF_THE_CODE = ("nondeterminism", "code")

#: What is kept of how the run is to end.
_ENDING = ("status", "error", "cause", "attempts")


def first(execution: Execution, change: Change, described: dict[str, Any] | None) -> Change:
    """What becomes of a run that would end now: to be undone first, where there is something to undo."""
    kind = described.get("kind") if described else None
    if execution.undoing or not change.finished or change.status == "completed" or kind in _OF_THE_CODE:
        return change
    if not execution.must_undo:
        return change
    ending = json.dumps({name: getattr(change, name) for name in _ENDING})
    return Change("pending", error=change.error, due_in=0, undoing=ending)


def undo(context: WorkflowContext, execution: Execution, lost: dict[str, Any] | None) -> Change | Suspended | None:
    """Execute what was pushed, last first; answer how the run ends, or what it waits for. Null: it is not ours.

    `lost` describes the loss of the workers that executed the step under way, where no more may be lost to it.
    """
    with context.on(execution.body):
        for stored in execution.undo_calls():
            if stored.status in ("completed", "failed"):
                continue
            try:
                if lost is not None and stored.status == "running":
                    context.undo_lost(stored, lost)
                else:
                    context.undo(stored)
            except Interrupt as left:
                return left if isinstance(left, Suspended) else None
            except BaseException:
                # Recorded as the step's; the others are undone all the same.
                with suppress(Interrupt):
                    context.may_start()
                if execution.interrupt is not None:
                    return None
    ending = json.loads(execution.run.undoing or "{}")
    return Change(**ending, finished=True, undoing=execution.run.undoing)
