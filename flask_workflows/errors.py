"""What can go wrong, one class a cause.

Every class derives from `WorkflowsError`. The messages, written where the error is raised,
say what was wrong and what to write instead.
"""

from __future__ import annotations


class WorkflowsError(Exception):
    """Base of every error this package raises on purpose."""


# Set-up ------------------------------------------------------------------------------------


class SetupError(WorkflowsError):
    """The extension was not set up, or set up twice, or without a database."""


class ConfigError(WorkflowsError, ValueError):
    """A `WORKFLOWS_…` key has a value of the wrong type, or out of range where that is refused."""


class SchemaError(WorkflowsError):
    """The tables are missing, behind, or ahead of this version of the package."""


class DatabaseUnreachable(SchemaError):
    """The tables could not be looked at: the database does not answer."""


# Declarations ------------------------------------------------------------------------------


class DefinitionError(WorkflowsError, ValueError):
    """A workflow or step was declared in a way that cannot work."""


class DuplicateDefinition(DefinitionError):
    """Two different functions were declared under one name."""


class AnnotationRefused(DefinitionError, TypeError):
    """An annotation does not say how to store its values."""


class NotRegistered(WorkflowsError, LookupError):
    """No workflow of that name is registered in this process."""


# Values ------------------------------------------------------------------------------------


class ValueRefused(WorkflowsError, TypeError):
    """A value cannot be stored so that it comes back equal."""

    #: Where in the value, as in `$.user.id`; null where the whole of it is meant.
    path: str | None = None


class ValueTooLarge(ValueRefused):
    """A value is larger than `WORKFLOWS_MAX_PAYLOAD_BYTES`."""


class UndecodableValue(WorkflowsError, ValueError):
    """A stored value does not decode with the code at hand."""

    #: Where in the value, as in `$.user.id`; null where the whole of it is meant.
    path: str | None = None


class InvalidName(WorkflowsError, ValueError):
    """A key, workspace, queue or step name has characters or a length that is refused."""


class InvalidDuration(WorkflowsError, ValueError):
    """A duration is negative, not a number, or too long."""


class InvalidInstant(WorkflowsError, ValueError):
    """An instant is naive, or not a datetime."""


# Starting ----------------------------------------------------------------------------------


class SessionBusy(WorkflowsError):
    """The session already holds SQLite's write lock, so a second transaction would wait for itself."""


class KeyBusy(WorkflowsError):
    """A rival's uncommitted start with the same key ended in a deadlock, time-out or serialization failure."""


class InlineNeedsCommit(WorkflowsError):
    """Inline execution needs a session whose commit is real."""


class TransactionalRefused(WorkflowsError):
    """A transactional step did, or met, what would break its one transaction."""


class UncommittedBodyWrites(WorkflowsError):
    """A workflow's body wrote through `db.session` outside a step."""


# Events ------------------------------------------------------------------------------------


class UnregisteredEvent(WorkflowsError, LookupError):
    """No event of that name is registered in this process."""


class MatchRefused(WorkflowsError, ValueError):
    """A `match` compares something that no payload can hold."""


# Runs --------------------------------------------------------------------------------------


class RunNotFound(WorkflowsError, LookupError):
    """No run has that id."""


class RunFinished(WorkflowsError):
    """The run has finished, so it cannot be cancelled or woken."""


class RunNotFailed(WorkflowsError):
    """Only a failed or cancelled run can be retried."""


class RunCompensated(RunNotFailed):
    """The run was undone when it failed or was cancelled, so there is nothing left to go on from."""


class RunNotSleeping(WorkflowsError):
    """Only a sleeping run can be woken."""


class RunNotPaused(WorkflowsError):
    """Only a paused run can be resumed."""


class RunNotLost(WorkflowsError):
    """Only a run whose worker is lost can be released."""


class StepNotFound(WorkflowsError, LookupError):
    """The run has no recorded call with that key."""


class KeyTaken(WorkflowsError):
    """A newer unfinished run holds the key of the run to be retried."""


class RunChanged(WorkflowsError):
    """The run was changed by somebody else since it was looked at."""


class NotCommitted(WorkflowsError):
    """The run was started in this session and is not committed yet, so nobody can execute it."""


class WaitTimeout(WorkflowsError, TimeoutError):
    """The run had not finished when the time was over. It goes on."""


class RunFailed(WorkflowsError):
    """The run failed; `error_type` and `message` say how."""

    def __init__(self, run_id: str, error_type: str, message: str) -> None:
        super().__init__(f"run {run_id} failed: {error_type}: {message}")
        self.run_id = run_id
        self.error_type = error_type
        self.message = message


class DeadlineExceeded(WorkflowsError):
    """The run had not finished at its deadline. It is what such a run fails with."""


class RunCancelled(WorkflowsError):
    """The run was cancelled, so it has no result."""


# Reading -----------------------------------------------------------------------------------


class InvalidCursor(WorkflowsError, ValueError):
    """A cursor is none that a page of runs gave."""


class InvalidSearch(WorkflowsError, ValueError):
    """A search cannot be read. `at` is the number of the character where, from 1."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"{message} (character {at})")
        self.message = message
        self.at = at


class ReadTimeout(WorkflowsError, TimeoutError):
    """Reading took longer than a page may wait for it."""


# Inside a run ------------------------------------------------------------------------------


class StepFailed(WorkflowsError):
    """A step failed for good: every attempt it had is used up, or its error is not retried."""

    def __init__(self, step: str, attempts: int, message: str, error_type: str) -> None:
        super().__init__(f"step {step!r} failed after {attempts} attempt(s): {error_type}: {message}")
        self.step = step
        self.attempts = attempts
        self.message = message
        self.error_type = error_type


class StepTimeout(WorkflowsError):
    """An attempt of a step took longer than the step's time-out. The call itself goes on until it returns."""


class NonDeterminismError(WorkflowsError):
    """The code calls something else than what the run's history holds."""


class MisplacedCall(WorkflowsError):
    """A `ctx` call was made where it cannot work: inside a step, or on a foreign thread."""
