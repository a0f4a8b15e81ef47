"""What the service refuses, as errors of the JSON routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import InvalidDuration
from ...errors import InvalidInstant
from ...errors import InvalidName
from ...errors import KeyBusy
from ...errors import KeyTaken
from ...errors import NotRegistered
from ...errors import RunChanged
from ...errors import RunCompensated
from ...errors import RunFinished
from ...errors import RunNotFailed
from ...errors import RunNotFound
from ...errors import RunNotLost
from ...errors import RunNotPaused
from ...errors import RunNotSleeping
from ...errors import SessionBusy
from ...errors import StepNotFound
from ...errors import UndecodableValue
from ...errors import UnregisteredEvent
from ...errors import ValueRefused
from ...errors import ValueTooLarge
from ...errors import WorkflowsError
from ...runtime import current_runtime
from .inputs import Problem

#: The status and the code of each; what is more special comes first.
CODES: tuple[tuple[type[WorkflowsError], int, str], ...] = (
    (RunNotFound, 404, "workflow_run_not_found"),
    (StepNotFound, 404, "workflow_step_not_found"),
    (RunFinished, 409, "workflow_run_finished"),
    (RunCompensated, 409, "workflow_run_compensated"),
    (RunNotFailed, 409, "workflow_run_not_failed"),
    (RunNotSleeping, 409, "workflow_run_not_sleeping"),
    (RunNotPaused, 409, "workflow_run_not_paused"),
    (RunNotLost, 409, "workflow_run_not_lost"),
    (RunChanged, 409, "workflow_run_changed"),
    (KeyTaken, 409, "key_taken"),
    (KeyBusy, 409, "key_busy"),
    (NotRegistered, 404, "workflow_not_registered"),
    (UnregisteredEvent, 404, "unregistered_event"),
    (ValueTooLarge, 422, "value_too_large"),
    (ValueRefused, 422, "invalid_value"),
    (UndecodableValue, 422, "invalid_value"),
    (InvalidName, 400, "invalid_name"),
    (InvalidDuration, 400, "invalid_delay"),
    (InvalidInstant, 400, "invalid_at"),
    (SessionBusy, 503, "busy"),
)


@contextmanager
def told() -> Iterator[None]:
    """Raise what the service raises as a `Problem`."""
    try:
        yield
    except WorkflowsError as error:
        for cls, status, code in CODES:
            if isinstance(error, cls):
                raise Problem(code, _sentence(str(error)), status, path=_path(error)) from None
        raise
    except Exception as error:
        store = current_runtime().store
        if not store.dialect.is_transient(error):
            raise
        # It may have been done, and the answer be lost.
        store.complain("an action over HTTP failed", error)
        raise Problem(
            "unreachable", "The database did not answer. Look whether it was done, then try again.", 503
        ) from None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


def _path(error: BaseException | None) -> str | None:
    """Where in the value the fault is, as far as somebody on the way here knew."""
    while error is not None:
        path: str | None = getattr(error, "path", None)
        if path is not None:
            return path
        error = error.__cause__
    return None
