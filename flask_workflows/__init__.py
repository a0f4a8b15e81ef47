"""Durable workflows on your Flask app's own database."""

from .audit import By
from .context import current_run
from .context import WorkflowContext
from .errors import DeadlineExceeded
from .errors import InlineNeedsCommit
from .errors import KeyBusy
from .errors import KeyTaken
from .errors import NonDeterminismError
from .errors import NotCommitted
from .errors import NotRegistered
from .errors import RunCancelled
from .errors import RunChanged
from .errors import RunCompensated
from .errors import RunFailed
from .errors import RunFinished
from .errors import RunNotFailed
from .errors import RunNotFound
from .errors import RunNotLost
from .errors import RunNotPaused
from .errors import RunNotSleeping
from .errors import SessionBusy
from .errors import StepFailed
from .errors import StepNotFound
from .errors import StepTimeout
from .errors import TransactionalRefused
from .errors import UncommittedBodyWrites
from .errors import UnregisteredEvent
from .errors import ValueRefused
from .errors import WaitTimeout
from .errors import WorkflowsError
from .events import Event
from .events import EventMatch
from .events import Happened
from .extension import Workflows
from .handle import Handle
from .logs import RunFilter
from .retry import Retry
from .revisions import add_version_location
from .runs import EmittedEvent
from .runs import Page
from .runs import Run
from .runs import RunDetails
from .runs import RunQuery
from .runs import RunStatus
from .signals import run_cancelled
from .signals import run_completed
from .signals import run_failed
from .signals import step_failed

__all__ = [
    "By",
    "DeadlineExceeded",
    "EmittedEvent",
    "Event",
    "EventMatch",
    "Handle",
    "Happened",
    "InlineNeedsCommit",
    "KeyBusy",
    "KeyTaken",
    "NonDeterminismError",
    "NotCommitted",
    "NotRegistered",
    "Page",
    "Retry",
    "Run",
    "RunCancelled",
    "RunChanged",
    "RunCompensated",
    "RunDetails",
    "RunFailed",
    "RunFilter",
    "RunFinished",
    "RunNotFailed",
    "RunNotFound",
    "RunNotLost",
    "RunNotPaused",
    "RunNotSleeping",
    "RunQuery",
    "RunStatus",
    "SessionBusy",
    "StepFailed",
    "StepNotFound",
    "StepTimeout",
    "TransactionalRefused",
    "UncommittedBodyWrites",
    "UnregisteredEvent",
    "ValueRefused",
    "WaitTimeout",
    "WorkflowContext",
    "Workflows",
    "WorkflowsError",
    "add_version_location",
    "current_run",
    "run_cancelled",
    "run_completed",
    "run_failed",
    "step_failed",
]
