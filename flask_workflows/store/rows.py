"""What travels between the engine and the store."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple


class NewRun(NamedTuple):
    """A run to insert; `delay_ms` is null for one that is due at once."""

    id: str
    workflow: str
    version: int
    queue: str
    workspace: str
    key: str | None
    input: str
    max_attempts: int
    delay_ms: int | None
    #: The run whose body starts it.
    parent_id: str | None = None
    #: When it fails unless it has finished: at an instant, or so many ms after its start; the earlier of both.
    deadline_at: int | None = None
    deadline_ms: int | None = None


class ClaimedRun(NamedTuple):
    """A run this worker holds under `epoch`, as it was when claimed; instants are the database's, in ms."""

    id: str
    workflow: str
    version: int
    queue: str
    workspace: str
    key: str | None
    input: str
    status: str
    epoch: int
    attempts: int
    max_attempts: int
    losses: int
    created_at: int
    started_at: int
    cancel_requested_at: int | None
    paused_at: int | None
    deadline_at: int | None
    #: JSON of how it is to end once it is undone; null in every other run.
    undoing: str | None
    now: int
    #: Whether a worker held it whose lease was over.
    taken_over: bool
    #: What `Store.ticks` said when it was claimed.
    ticks: float

    @property
    def fresh(self) -> bool:
        """Nobody held it before, so it has no history."""
        return self.epoch == 1

    @property
    def last_chance(self) -> bool:
        """It took its worker with it before and may do so once more."""
        return self.losses > 0 and self.attempts == self.max_attempts - 1


class StoredStep(NamedTuple):
    """A recorded call."""

    key: str
    position: int
    kind: str
    status: str
    input: str | None
    output: str | None
    error: str | None
    attempts: int
    earlier: str | None
    started_at: int | None
    finished_at: int | None
    due_at: int | None


class StepWrite(NamedTuple):
    """A call to record. Ages are in ms before the moment of writing; dues absolute or in ms from then."""

    key: str
    position: int
    kind: str
    status: str
    input: str | None = None
    output: str | None = None
    error: str | None = None
    attempts: int = 1
    earlier: str | None = None
    started_ago: int | None = 0
    finished_ago: int | None = None
    due_at: int | None = None
    due_in: int | None = None


class NewEvent(NamedTuple):
    """An event to insert; a message where `run_id` says whose."""

    name: str
    workspace: str
    payload: str
    run_id: str | None = None
    delivery_id: str | None = None


class WaitWrite(NamedTuple):
    """One of the events a call waits for; `key` is the call's."""

    key: str
    number: int
    name: str
    workspace: str
    fields: str
    values_hash: str
    since: int | None


class Change(NamedTuple):
    """What becomes of a run when its execution ends."""

    status: str
    output: str | None = None
    error: str | None = None
    cause: str | None = None
    attempts: int = 0
    losses: int = 0
    due_at: int | None = None
    due_in: int | None = None
    finished: bool = False
    #: How the run is to end once it is undone, as JSON.
    undoing: str | None = None


class Ended(NamedTuple):
    """So many runs of a workflow ended in one way."""

    workflow: str
    outcome: str
    number: int
    busy_ms: int


class Fenced(NamedTuple):
    """The reply to a fenced write that held."""

    cancel_requested_at: int | None
    paused_at: int | None
    isolation: str | None = None


class Seen(NamedTuple):
    """A run as it is now, for who executes it."""

    epoch: int
    status: str
    cancel_requested_at: int | None
    finished_at: int | None
    paused_at: int | None


class Lease(NamedTuple):
    """The reply to a renewal."""

    id: str
    epoch: int
    cancel_requested_at: int | None
    paused_at: int | None


Row = tuple[Any, ...]
