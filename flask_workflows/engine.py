"""Runs one claimed run to its next outcome.

    claimed ──> the body, called from the top ──┬─> completed          it returned
                                                ├─> sleeping, waiting  a call suspended it
                                                ├─> sleeping           it raised, attempts are left
                                                ├─> failed             it raised, none is left; or a recorded
                                                │                      failure was left uncaught
                                                ├─> cancelled          somebody asked for it
                                                └─> nothing written    the lease is somebody else's

Each outcome is one fenced transaction, with the last recorded call in it. No SQL, no threads, no request here.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from typing import NamedTuple
from typing import TYPE_CHECKING

from . import failures
from . import signals
from . import undo
from .apps import QuietContext
from .cause import cause_of
from .context import WorkflowContext
from .durations import from_ms
from .errors import DeadlineExceeded
from .errors import NonDeterminismError
from .errors import NotRegistered
from .errors import UncommittedBodyWrites
from .errors import UndecodableValue
from .errors import ValueRefused
from .errors import WorkflowsError
from .execution import Execution
from .interrupts import Broken
from .interrupts import Cancelling
from .interrupts import Interrupt
from .interrupts import OutOfTime
from .interrupts import Pausing
from .interrupts import Suspended
from .redaction import redact_text
from .runs import FINISHED
from .store import Change
from .store import ClaimedRun
from .store import LeaseGone
from .store import StepWrite
from .store import StoredStep
from .store import WaitWrite

if TYPE_CHECKING:
    from .definition import Workflow
    from .runtime import Runtime

logger = logging.getLogger("flask_workflows")


class Outcome(NamedTuple):
    """What to store; `change` is null when nothing may be."""

    change: Change | None
    write: StepWrite | None = None
    described: dict[str, Any] | None = None
    waits: Sequence[WaitWrite] = ()
    waiting: Sequence[str] = ()


NOTHING = Outcome(None)


class Engine:
    """Executes claimed runs of one app. Has no state of its own, so any number of threads may share it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def begin(self, run: ClaimedRun, stored: Sequence[StoredStep]) -> Execution:
        """The execution of a run just claimed, on the thread that will call `execute`."""
        workflow = self._runtime.registry.resume(run.workflow, run.version)
        return Execution(self._runtime.store, run, list(stored), strict=workflow is None or workflow.strict)

    def execute(self, execution: Execution, worker: str) -> str | None:
        """Execute to the next outcome and store it; answer the run's new status, null when nothing was stored.

        Never raises for what user code did; a fresh context keeps its context variables from other runs.
        """
        return contextvars.Context().run(self._execute, execution, worker)

    def _execute(self, execution: Execution, worker: str) -> str | None:
        with QuietContext(self._runtime.app):
            outcome = self._outcome(execution) if not execution.undoing else self._undo(execution)
            if outcome.change is not None:
                outcome = outcome._replace(change=undo.first(execution, outcome.change, outcome.described))
            self._runtime.sessions.remove()
            status = self._settle(execution, outcome)
            if status is not None:
                if status in FINISHED:
                    busy_ms = execution.store.ticks() - execution.began
                    self._runtime.tally.ended(execution.run.workflow, status, busy_ms)
                # The run is settled, whatever a log handler of the app does about it.
                with suppress(Exception):
                    self._tell(execution, outcome, status, worker)
            return status

    # What became of it -----------------------------------------------------------------------

    def _outcome(self, execution: Execution) -> Outcome:
        run = execution.run
        if execution.cancel_requested:
            return Outcome(Change("cancelled", finished=True))
        if execution.pause_requested:
            return _paused(execution)
        if execution.is_out_of_time():
            return _out_of_time(execution)
        if run.losses and run.attempts >= run.max_attempts:
            return _failed(run, _lost(execution), attempts=run.attempts)
        workflow = self._runtime.registry.resume(run.workflow, run.version)
        if workflow is None:
            error = NotRegistered(f"no code for {run.workflow!r} version {run.version} is registered here")
            return _failed(run, failures.describe(error, "code", frames=False))
        try:
            args, kwargs = workflow.codec.load_call(run.input, where=workflow.where)
        except UndecodableValue as error:
            return _failed(run, failures.describe(error, "code", frames=False))
        return self._call(execution, workflow, args, kwargs)

    def _undo(self, execution: Execution) -> Outcome:
        """Execute what was pushed for the case that the run fails or is cancelled."""
        run = execution.run
        if execution.pause_requested:
            return _paused(execution)
        lost = _lost(execution) if run.losses and run.attempts >= run.max_attempts else None
        ended = undo.undo(WorkflowContext(self._runtime, execution), execution, lost)
        if isinstance(ended, Change):
            return Outcome(ended, described=None if ended.error is None else json.loads(ended.error))
        if isinstance(ended, Suspended):
            return Outcome(ended.change._replace(undoing=run.undoing, error=_error_in(run.undoing)), ended.write)
        return self._stopped(execution)

    def _call(
        self, execution: Execution, workflow: Workflow[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        context = WorkflowContext(self._runtime, execution)
        try:
            with context.on(execution.body):
                value = workflow.function(*((context,) if workflow.takes_context else ()), *args, **kwargs)
        except BaseException as error:
            return self._left(execution, error)
        return self._returned(execution, workflow, value)

    def _returned(self, execution: Execution, workflow: Workflow[Any, Any], value: Any) -> Outcome:
        """The body came to its end; if it was stopped before, that still holds."""
        if execution.interrupt is not None:
            _warn_swallowed(execution)
            return self._interrupted(execution, execution.interrupt)
        if execution.divergence is not None:
            return self._raised(execution, execution.divergence)
        try:
            execution.history.ended(workflow.place)
            if self._runtime.sessions.holds_writes():
                raise UncommittedBodyWrites(
                    f"the body of {workflow.name!r} wrote through db.session and returned without a commit: "
                    "put the write into a step"
                )
            limit = self._runtime.config.max_payload_bytes
            output = workflow.codec.result.dump(value, where=workflow.where, max_bytes=limit)
        except ValueRefused as error:
            return _failed(execution.run, failures.describe(error, "value"), attempts=execution.attempts + 1)
        except WorkflowsError as error:
            return self._raised(execution, error)
        return Outcome(Change("completed", output=output, attempts=execution.attempts, finished=True))

    def _left(self, execution: Execution, error: BaseException) -> Outcome:
        """The body was left by an exception: one of ours, one that hides ours, or one of its own."""
        if execution.interrupt is not None:
            if not isinstance(error, Interrupt):
                _warn_swallowed(execution)
            return self._interrupted(execution, execution.interrupt)
        return self._raised(execution, execution.divergence or error)

    def _interrupted(self, execution: Execution, interrupt: Interrupt) -> Outcome:
        if isinstance(interrupt, Suspended):
            return Outcome(interrupt.change, interrupt.write, waits=interrupt.waits, waiting=interrupt.waiting)
        if isinstance(interrupt, Cancelling):
            return Outcome(Change("cancelled", finished=True))
        if isinstance(interrupt, OutOfTime):
            return _out_of_time(execution)
        return self._stopped(execution)

    def _stopped(self, execution: Execution) -> Outcome:
        """Whatever the run was at, somebody asked for it to be paused, or it is not ours."""
        if isinstance(execution.interrupt, Pausing):
            return _paused(execution)
        if isinstance(execution.interrupt, Broken):
            self._runtime.store.complain("left to its lease", execution.interrupt.error, run_id=execution.run.id)
        return NOTHING

    def _raised(self, execution: Execution, error: BaseException) -> Outcome:
        """An error of the body's own: another attempt if one is left, unless it stems from a recorded failure."""
        run, used = execution.run, execution.attempts + 1
        origin = next((origin for recorded, origin in execution.recorded_errors if recorded is error), None)
        final = origin is not None
        kind = "nondeterminism" if isinstance(error, NonDeterminismError) else "step" if final else "body"
        described = failures.describe(error, kind, step=getattr(error, "step", None) if final else None)
        if final or used >= run.max_attempts:
            return _failed(run, described, attempts=used, origin=origin)
        delay = used * self._runtime.config.retry_backoff_secs * 1000
        losses = 0 if execution.progressed else run.losses
        change = Change("sleeping", error=failures.dumps(described), attempts=used, losses=losses, due_in=delay)
        return Outcome(change, described=described)

    # Storing it ------------------------------------------------------------------------------

    def _settle(self, execution: Execution, outcome: Outcome) -> str | None:
        if outcome.change is None:
            return None
        try:
            if execution.settle(outcome.change, outcome.write, outcome.waits, outcome.waiting):
                return outcome.change.status
            # Somebody asked for it to be cancelled while it went on: that is its outcome, not what it came to.
            cancelled = undo.first(execution, Change("cancelled", finished=True, attempts=execution.attempts), None)
            return cancelled.status if execution.settle(cancelled) else None
        except LeaseGone:
            logger.info("run %s was taken over before its outcome could be stored", execution.run.id)
        except Exception as error:
            self._runtime.store.complain("left to its lease", error, run_id=execution.run.id)
        return None

    def _tell(self, execution: Execution, outcome: Outcome, status: str, worker: str) -> None:
        """One log line, and the signal, once the outcome is committed."""
        run = execution.run
        duration = (execution.store.ticks() - execution.began) / 1000
        trouble = _trouble(outcome)
        level = logging.INFO if trouble is None else logging.ERROR if status == "failed" else logging.WARNING
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "run settled worker_id=%s run_id=%s workflow=%s attempt=%d max_attempts=%d status=%s duration=%.3f%s",
                worker,
                run.id,
                run.workflow,
                run.attempts + 1,
                run.max_attempts,
                status,
                duration,
                "" if trouble is None else f" error={_in_short(trouble)}",
                extra={"run_id": run.id},
            )
        signals.send_run(self._runtime.app, status, run, outcome.described if status == "failed" else None)


def _error_in(undoing: str | None) -> str | None:
    error: str | None = json.loads(undoing or "{}").get("error")
    return error


def _trouble(outcome: Outcome) -> dict[str, Any] | None:
    """The error the execution ended with, be it one that is tried again."""
    if outcome.described is None and outcome.write is not None and outcome.write.status == "retrying":
        described: dict[str, Any] = json.loads(outcome.write.error or "{}")
        return described
    return outcome.described


def _in_short(described: dict[str, Any]) -> str:
    """Class, step and the message's first line, secrets hidden."""
    message = str(described.get("message") or "").strip().partition("\n")[0][:200]
    step = described.get("step")
    return f"{described.get('type')}{f' at step {step!r}' if step else ''}: {redact_text(message)}"


def _failed(
    run: ClaimedRun, described: dict[str, Any], *, attempts: int | None = None, origin: dict[str, Any] | None = None
) -> Outcome:
    """`origin` is the step's error that is behind this one: the same whether it was raised just now or by a replay."""
    change = Change(
        "failed",
        error=failures.dumps(described),
        cause=cause_of(run.workflow, origin or described),
        attempts=run.attempts + 1 if attempts is None else attempts,
        losses=run.losses,
        finished=True,
    )
    return Outcome(change, described=described)


def _paused(execution: Execution) -> Outcome:
    """It is due at once, which is to say when it is resumed."""
    run = execution.run
    losses = 0 if execution.progressed else run.losses
    error = _error_in(run.undoing)
    change = Change("pending", error=error, attempts=execution.attempts, losses=losses, due_in=0, undoing=run.undoing)
    return Outcome(change)


def _out_of_time(execution: Execution) -> Outcome:
    run = execution.run
    error = DeadlineExceeded(
        f"the run had not finished at its deadline, {from_ms(run.deadline_at or 0):%Y-%m-%d %H:%M:%S} UTC"
    )
    return _failed(run, failures.describe(error, "deadline", frames=False), attempts=execution.attempts)


def _lost(execution: Execution) -> dict[str, Any]:
    """What to say of a run that took its worker with it at each attempt."""
    step = execution.unfinished()
    where = f"at step {step!r}" if step is not None else "before its first step"
    message = (
        f"worker lost {where}: {execution.run.losses} executions ended with the loss of their worker "
        "(killed, out of memory, or crashed in native code); mend the cause, then retry the run"
    )
    return {"kind": "lost", "type": "WorkerLost", "message": message, "traceback": None, "step": step}


def _warn_swallowed(execution: Execution) -> None:
    if isinstance(execution.interrupt, Suspended | Cancelling | Pausing | OutOfTime):
        logger.warning(
            "run %s of %s: its code caught the %s that ends an execution; the run is %s all the same, but let "
            "BaseException pass (use `except Exception`, no `return` in finally)",
            execution.run.id,
            execution.run.workflow,
            type(execution.interrupt).__name__,
            _become_of(execution.interrupt),
        )


def _become_of(interrupt: Suspended | Cancelling | Pausing | OutOfTime) -> str:
    if isinstance(interrupt, Suspended):
        return interrupt.change.status
    return {Cancelling: "cancelled", Pausing: "paused", OutOfTime: "failed"}[type(interrupt)]
