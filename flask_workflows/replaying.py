"""Whether today's code still fits what a run did with yesterday's.

The body is called with the recorded results. No step is executed, nothing is written, and where the record ends the
body is left: what differs before that is what would stop the run.
"""

from __future__ import annotations

import contextvars
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from typing import NoReturn
from typing import TYPE_CHECKING
from typing import TypeVar

from .context import _current
from .context import WorkflowContext
from .durations import instant_ms
from .errors import NonDeterminismError
from .errors import UndecodableValue
from .errors import ValueRefused
from .execution import Branch
from .execution import Execution
from .failures import message_of
from .history import Call
from .history import caller
from .interrupts import Interrupt
from .runs import Run
from .runs import RunStatus
from .runtime import Runtime
from .store import ClaimedRun
from .store import StoredStep
from .values import same_json

if TYPE_CHECKING:
    from .definition import Workflow

T = TypeVar("T")

_PACKAGE = str(Path(__file__).resolve().parent)


class Diverged(Exception):
    """What the code does now is not what the run recorded; the text says where, recorded and now."""


def replay(runtime: Runtime, run: Run) -> None:
    """Raise `Diverged` where the code makes other calls than the run recorded, or returns something else."""
    stored = runtime.store.histories([run.id])[run.id]
    contextvars.Context().run(_replay, runtime, run, stored)


class _Reached(Interrupt):
    """The body came to a call that is not finished, or not made yet."""


class _Replay(Execution):
    """An execution that does nothing but look into its history."""

    def called(self, branch: Branch, call: Call) -> None:
        # A parallel call goes on in its branches; what was pushed is no more than recorded.
        if call.stored is not None and call.stored.kind in ("parallel", "undo"):
            return
        if call.stored is None or call.stored.status not in ("completed", "failed"):
            branch.leave(_Reached(f"{call.key!r}, at {caller()}"))

    def look(self) -> None:
        """The run is only looked at."""

    def write(self, operation: Callable[[str, int], T]) -> T | None:  # type: ignore[override]
        """Publishes nothing."""
        return None


def _replay(runtime: Runtime, run: Run, stored: list[StoredStep]) -> None:
    workflow = runtime.registry.resume(run.workflow, run.version)
    if workflow is None:
        _fail(run, "no code for it is registered here: import the module that declares it")
    try:
        args, kwargs = workflow.codec.load_call(str(run.input_json), where=workflow.where)
    except UndecodableValue as error:
        _fail(run, str(error))
    execution = _Replay(runtime.store, _claimed(runtime, run), stored, strict=workflow.strict)
    with runtime.app.app_context():
        context = WorkflowContext(runtime, execution)
        token = _current.set(context)
        try:
            value = workflow.function(*((context,) if workflow.takes_context else ()), *args, **kwargs)
            wrote = runtime.sessions.holds_writes()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            _left(run, execution, error)
        else:
            _stopped(run, execution)
            _returned(run, execution, workflow, value)
            if wrote:
                _fail(run, "the body wrote through db.session: put the write into a step")
        finally:
            _current.reset(token)
            runtime.sessions.remove()


def _stopped(run: Run, execution: _Replay) -> bool:
    """Whether the body came to the end of the record; it may have swallowed what stopped it there."""
    if execution.divergence is not None:
        _fail(run, str(execution.divergence))
    if execution.interrupt is not None and run.status is RunStatus.COMPLETED:
        _fail(run, f"it had completed, and is to call {execution.interrupt} now")
    return execution.interrupt is not None


def _left(run: Run, execution: _Replay, error: BaseException) -> None:
    if _stopped(run, execution):
        return
    raised = f"the code raises {type(error).__name__}: {message_of(error)}, at {_place_of(error)}"
    missed = execution.history.upcoming
    if missed is not None:
        _fail(run, f"{raised}, before call {missed.position}, which was {missed.key!r}", error)
    if run.status is RunStatus.COMPLETED:
        _fail(run, f"{raised}; it had completed", error)


def _returned(run: Run, execution: _Replay, workflow: Workflow[Any, Any], value: Any) -> None:
    if execution.interrupt is not None:
        return
    try:
        execution.history.ended(workflow.place)
        output = workflow.codec.result.dump(value, where=workflow.where)
    except (NonDeterminismError, ValueRefused) as error:
        _fail(run, str(error))
    if run.status is RunStatus.COMPLETED and not same_json(str(run.output_json), output):
        _fail(run, f"it had returned {run.output_json}, and returns {output} now")


def _fail(run: Run, what: str, cause: BaseException | None = None) -> NoReturn:
    raise Diverged(f"run {run.id} of {run.workflow!r} v{run.version} does not replay: {what}") from cause


def _place_of(error: BaseException) -> str:
    """`file:line` of the innermost frame outside this package."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if not frame.filename.startswith(_PACKAGE)), frames[-1])
    return f"{place.filename}:{place.lineno}" + (f" ({place.line})" if place.line else "")


def _claimed(runtime: Runtime, run: Run) -> ClaimedRun:
    created = _ms(run.created_at)
    return ClaimedRun(
        id=run.id,
        workflow=run.workflow,
        version=run.version,
        queue=run.queue,
        workspace=run.workspace,
        key=run.key,
        input=str(run.input_json),
        status=str(run.status),
        epoch=run.epoch,
        attempts=run.attempts,
        max_attempts=run.max_attempts,
        losses=run.losses,
        created_at=created,
        started_at=_ms(run.started_at) if run.started_at is not None else created,
        cancel_requested_at=None,
        paused_at=None,
        deadline_at=None,
        undoing=None,
        now=_ms(run.updated_at),
        taken_over=False,
        ticks=runtime.store.ticks(),
    )


def _ms(instant: datetime) -> int:
    return instant_ms(instant, what="an instant of the run")
