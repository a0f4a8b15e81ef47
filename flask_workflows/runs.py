"""Runs, their steps and the workers, as a person or a caller reads them.

Values are frozen copies of rows. Stored JSON is decoded when it is looked at and not before, so that a value no code
can read any more spoils nothing but its own place (R13).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import timedelta
from enum import StrEnum
from typing import Any

from .errors import InvalidCursor
from .errors import InvalidInstant
from .errors import InvalidName
from .names import path_of


class RunStatus(StrEnum):
    """Where a run stands. The last three are final, but for `retry`."""

    PENDING = "pending"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in FINISHED

    @classmethod
    def read(cls, text: str) -> RunStatus:
        """The status stored as `text`.

        A status this version does not know, written by a newer one, is shown as it stands: it is no error (R13).
        """
        try:
            return cls(text)
        except ValueError:
            unknown = str.__new__(cls, text)
            unknown._name_ = unknown._value_ = text
            return unknown


#: The key under which a run publishes how far it is.
PROGRESS = "$progress"

LIVE = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING, RunStatus.WAITING)
FINISHED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a stored value that is not JSON any code here can read."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"<undecodable: {self.reason}>"


class NotLoaded:
    """Stands for a value that was not read from the database, as lists do not read any."""

    def __repr__(self) -> str:
        return "<not loaded>"


NOT_LOADED = NotLoaded()


def decode(text: str | None) -> Any:
    """Decode stored JSON text, or return `Undecodable`."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        return Undecodable(str(text), _first_line(error) or type(error).__name__)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


@dataclass(frozen=True, slots=True)
class RunError:
    """What went wrong, of a run, a step or one attempt.

    `kind` says where it came from, such as "step", "business", "body", "lost" or "nondeterminism"; `step` is the key
    of the step it came from, if from one.
    """

    type: str
    message: str
    traceback: str | None = None
    step: str | None = None
    kind: str | None = None

    @property
    def short_type(self) -> str:
        """The class name without its module."""
        return self.type.rpartition(".")[2] or self.type

    @classmethod
    def read(cls, text: str) -> RunError:
        """Read a stored error; of one that was cut off, as lists do, what stands before the cut."""
        value = decode(text)
        if isinstance(value, Undecodable):
            value = {name: _cut_string(text, name) for name in ("type", "message", "step", "kind")}
            if value["type"] is None:
                return cls(type="unreadable", message="the stored error cannot be read")

        return cls.of(value)

    @classmethod
    def of(cls, value: object) -> RunError:
        """The error that a decoded JSON value describes; any value will do."""
        if not isinstance(value, dict):
            return cls(type="unreadable", message="the stored error cannot be read")

        return cls(
            type=_text(value.get("type")) or "Error",
            message=_text(value.get("message")) or "",
            traceback=_text(value.get("traceback")),
            step=_text(value.get("step")),
            kind=_text(value.get("kind")),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _cut_string(text: str, name: str) -> str | None:
    """The string under `name` in JSON text that may end anywhere."""
    found = re.search(rf'"{name}"\s*:\s*"((?:[^"\\]|\\.)*)', text)
    if found is None:
        return None
    # The cut may have left half an escape at the end.
    inner = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?$", "", found[1])
    value = decode(f'"{inner}"')
    return None if isinstance(value, Undecodable) else str(value)


def step_label(key: str) -> str:
    """A step's key as people say it; where it is in a branch, which one comes first."""
    path = path_of(key)
    name = key[len(path) :]
    if name.startswith("$"):
        name = name[1:].replace(":", " ", 1).replace("#", " #")
    return f"{path.rstrip('/')} {name}" if path else name


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a step before its last one."""

    started_at: datetime | None
    finished_at: datetime | None
    error: RunError | None


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded call of a run: a step, or one of the engine's own, whose key starts with `$`."""

    run_id: str
    key: str
    position: int
    kind: str
    status: str
    attempts: int
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    error: RunError | None
    earlier: tuple[Attempt, ...] = ()
    #: Its place in the whole run, from 1; null where the run's other steps were not looked at.
    number: int | None = None
    input_json: str | NotLoaded | None = field(default=NOT_LOADED, repr=False)
    output_json: str | NotLoaded | None = field(default=NOT_LOADED, repr=False)

    @property
    def input(self) -> Any:
        return _value(self.input_json)

    @property
    def output(self) -> Any:
        return _value(self.output_json)

    @property
    def label(self) -> str:
        """The key as people say it: `$wait:paid#2` is "wait paid #2"."""
        return step_label(self.key)

    @property
    def finished(self) -> bool:
        return self.status in ("completed", "failed", "pushed")

    @property
    def took(self) -> timedelta | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


def _value(stored: str | NotLoaded | None) -> Any:
    return stored if isinstance(stored, NotLoaded) else decode(stored)


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a workflow, from its start to its end. Instants are in UTC."""

    id: str
    workflow: str
    version: int
    queue: str
    workspace: str
    key: str | None
    status: RunStatus
    epoch: int
    worker: str | None
    due_at: datetime | None
    attempts: int
    max_attempts: int
    losses: int
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    #: In lists without its traceback.
    error: RunError | None
    #: The same for failures of one kind, see `cause.py`; null unless it failed.
    cause: str | None = None
    #: The run whose body started it.
    parent_id: str | None = None
    #: The run whose first calls it took over.
    forked_from: str | None = None
    #: Whether it is, or was, undone: it pushed something with `on_failure`, and failed or was cancelled.
    undone: bool = False
    #: Since when nothing new of it is executed; null unless it is paused.
    paused_at: datetime | None = None
    #: The `due_at` it goes on with once it is resumed.
    paused_due_at: datetime | None = None
    #: When it fails unless it has finished.
    deadline_at: datetime | None = None
    input_json: str | NotLoaded | None = field(default=NOT_LOADED, repr=False)
    output_json: str | NotLoaded | None = field(default=NOT_LOADED, repr=False)

    @property
    def input(self) -> Any:
        """The arguments by name."""
        return _value(self.input_json)

    @property
    def output(self) -> Any:
        """What the run returned, as plain JSON values."""
        return _value(self.output_json)

    @property
    def finished(self) -> bool:
        return self.status.finished

    @property
    def cancelling(self) -> bool:
        """Cancelling was asked for, and its worker has not stopped it yet."""
        return self.cancel_requested_at is not None and not self.finished

    @property
    def paused(self) -> bool:
        """Nothing new of it is executed; where a worker holds it, the step under way may still be stored."""
        return self.paused_at is not None

    @property
    def undoing(self) -> bool:
        """What it did is being undone; then it ends."""
        return self.undone and not self.finished

    @property
    def took(self) -> timedelta | None:
        """From the first execution to the end."""
        if self.finished_at is None:
            return None
        return self.finished_at - (self.started_at or self.created_at)


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run and its recorded calls, in order."""

    run: Run
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process, as it advertises itself."""

    id: str
    name: str
    host: str
    pid: int
    #: The queues it serves; null means all.
    queues: tuple[str, ...] | None
    #: (workflow, lowest version, highest version) of what it can run.
    workflows: tuple[tuple[str, int, int], ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def versions(self, workflow: str) -> tuple[tuple[int, int], ...]:
        """The ranges of versions it can run of a workflow."""
        return tuple((low, high) for name, low, high in self.workflows if name == workflow)

    def can_run(self, run: Run) -> bool:
        """Whether it would claim the run."""
        return self.serves(run.queue) and in_ranges(run.version, self.versions(run.workflow))


def in_ranges(version: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(low <= version <= high for low, high in ranges)


@dataclass(frozen=True, slots=True)
class DueGroup:
    """Unfinished runs of one kind that somebody should look at now."""

    status: RunStatus
    queue: str
    workflow: str
    version: int
    count: int
    #: When the first of them fell due.
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """What is due; `cut` where only the runs due longest were looked at."""

    groups: tuple[DueGroup, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class RunningQueue:
    """The running runs of a queue, and when one of them last began or ended something."""

    queue: str
    count: int
    moved_at: datetime


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed runs of one cause; where none was stored, of one workflow, class and step."""

    cause: str | None
    #: Of them all the one created last.
    newest: Run
    count: int
    first: datetime
    last: datetime
    versions: tuple[int, ...]
    #: How many failed in each hour that was asked for, by its number from the epoch.
    by_hour: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failures:
    """What failed, by cause, the cause of the last failure first.

    `looked_at` is capped where only the newest failed runs were, `more` says how many causes are not listed.
    """

    groups: tuple[FailureGroup, ...]
    looked_at: Count
    more: int = 0


@dataclass(frozen=True, slots=True)
class Signs:
    """What stands over every page: whether somebody works, and how much asks for attention."""

    works: bool
    is_due: bool
    #: Timers and waits that should have ended.
    overdue: Count
    #: Causes of the failures of the last 24 hours.
    failures: Count


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list, newest first; with `by_due` those due first, for timers.

    `created_after` is inclusive, `created_before` is not. `search` is what the list's search box takes. `cursor` is
    one that a `Page` gave.
    """

    workflow: str | None = None
    status: RunStatus | None = None
    #: One, or several of which any will do.
    workspace: str | tuple[str, ...] | None = None
    key: str | None = None
    queue: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None
    search: str = ""
    by_due: bool = False

    def __post_init__(self) -> None:
        if self.status is not None:
            # A plain "failed" will do.
            object.__setattr__(self, "status", _status(self.status))
        if self.workspace is not None and not isinstance(self.workspace, str):
            object.__setattr__(self, "workspace", tuple(sorted(set(self.workspace))))
        if self.limit < 1:
            raise ValueError(f"limit={self.limit}: a page holds one run or more")
        for name in ("created_after", "created_before"):
            instant = getattr(self, name)
            if instant is not None and instant.tzinfo is None:
                raise InvalidInstant(f"{name}={instant!r} is naive: write datetime(…, tzinfo=UTC)")


def _status(value: str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise InvalidName(f"status={value!r} is none: write one of {', '.join(RunStatus)}") from None


@dataclass(frozen=True, slots=True)
class Page:
    """Some runs, newest first, and the cursors of the pages beside it; null where there is none."""

    runs: tuple[Run, ...]
    older: str | None = None
    newer: str | None = None
    #: How many runs were looked at when looking was cut short; `older` goes on from there.
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a list: what comes after one run, or before it. Newest first, these are older and newer ones."""

    newer: bool
    id: str
    #: Its `due_at`, where the list is in the order of that.
    due: int | None = None

    def __str__(self) -> str:
        place = self.id if self.due is None else f"{self.due}.{self.id}"
        return f"{'newer' if self.newer else 'older'}.{place}"

    @classmethod
    def at(cls, newer: bool, run_id: str, due: int | None = None) -> Cursor:
        """As the plain one, but the run itself comes too: for the way back from a page with nothing on it."""
        to_higher_ids = newer is (due is None)
        return cls(newer, run_id[:-1] + ("" if to_higher_ids and len(run_id) > 1 else "z"), due)

    @classmethod
    def read(cls, text: str) -> Cursor:
        found = re.fullmatch(r"(older|newer)\.(?:(-?[0-9]{1,18})\.)?([0-9A-Za-z_-]{1,36})", text, re.ASCII)
        if found is None:
            raise InvalidCursor(f"{text[:50]!r} is not a cursor; take `older` or `newer` of a page as it is")
        direction, due, run_id = found.groups()
        return cls(direction == "newer", run_id, None if due is None else int(due))


@dataclass(frozen=True, slots=True)
class EmittedEvent:
    """An event, or a message to one run, as it is stored until it is pruned."""

    id: int
    name: str
    workspace: str
    #: Whose it is, where it is a message.
    run_id: str | None
    emitted_at: datetime
    #: When a worker looked for the waits it ends; null while it is new.
    matched_at: datetime | None
    #: How many waits it ended.
    woke: int
    payload_json: str = field(repr=False)

    @property
    def payload(self) -> Any:
        """Plain JSON values."""
        return decode(self.payload_json)

    @property
    def unmatched(self) -> bool:
        """Looked at, and no wait ended with it."""
        return self.matched_at is not None and self.woke == 0


@dataclass(frozen=True, slots=True)
class Share:
    """How many runs of a list are of one workflow, version and status."""

    workflow: str
    version: int
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are; `capped` when there are at least that many, and counting stopped."""

    value: int
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Unfinished:
    """How many unfinished runs there are of each (workflow, version); `capped` when not all were looked at."""

    counts: Mapping[tuple[str, int], int]
    capped: bool = False

    def of(self, workflow: str, version: int | None = None) -> Count:
        """Those of a version, or of all."""
        if version is not None:
            return Count(self.counts.get((workflow, version), 0), self.capped)
        return Count(sum(count for (name, _), count in self.counts.items() if name == workflow), self.capped)

    def versions(self, workflow: str) -> tuple[int, ...]:
        """The versions that have any."""
        return tuple(sorted(version for name, version in self.counts if name == workflow))


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a stored value, which may be all of it."""

    text: str
    #: Of the whole value, in characters.
    length: int

    @property
    def whole(self) -> bool:
        return len(self.text) >= self.length


@dataclass(frozen=True, slots=True)
class WouldWake:
    """Which runs an event would wake now, by the open waits it would end."""

    #: The first of them.
    run_ids: tuple[str, ...]
    count: Count
    #: Other open waits for that name, whose values differ.
    others: Count


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something a person did: an action is "cancel", "retry", "wake", "move", "release", "start", "send", "deliver"…"""

    id: str
    at: datetime
    #: Empty where nobody knows.
    actor: str
    action: str
    #: The run it was done to, where it was one; it may be pruned by now.
    run_id: str | None
    #: Empty for what belongs to none.
    workspace: str
    #: The workflow, event, message or other thing, by name.
    target: str
    #: The run's status before and after, "cancelling" among them; of a timer that was moved, its instants.
    before: str | None
    after: str | None
    reason: str
    request_id: str | None
    address: str | None
    #: The run that did it for the actor, one of many.
    operation: str | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some entries, newest first, and the cursors of the pages beside it; null where there is none."""

    entries: tuple[AuditEntry, ...]
    older: str | None = None
    newer: str | None = None
    #: How many entries were looked at when looking was cut short; `older` goes on from there.
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class Awaited:
    """An event, or a message, that a call waits for, with the fields it compares and the values they must have."""

    name: str
    match: tuple[tuple[str, Any], ...] = ()
    #: Events emitted from then on count too.
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """An event or message that a run received, or a message that it has not taken yet."""

    id: int
    name: str
    is_message: bool
    emitted_at: datetime
    #: The key of the call that took it; null if none did.
    step: str | None
    received_at: datetime | None
    #: Null where it was not read.
    payload: Head | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Published:
    """A value that a run published with `ctx.set`, or its progress."""

    key: str
    updated_at: datetime
    value: Head = field(repr=False)


@dataclass(frozen=True, slots=True)
class StepDetails:
    """One step of a run; its values are null where there are none, or were not read."""

    step: Step
    #: How many steps the run has.
    step_count: int
    input: Head | None = field(default=None, repr=False)
    output: Head | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """No more of a recorded call than what it was and how it stands."""

    number: int
    key: str
    status: str
    #: In its branch.
    position: int = 0
    kind: str = "step"

    @property
    def label(self) -> str:
        return step_label(self.key)


@dataclass(frozen=True, slots=True)
class Relative:
    """No more of a run that came of another, or that another came of, than what it is and how it stands."""

    id: str
    workflow: str
    status: RunStatus


@dataclass(frozen=True, slots=True)
class RunStats:
    """How many runs of a workflow ended in one way; one that was retried counts each time it ended."""

    #: When the quarter of an hour began; null for all time.
    at: datetime | None
    workflow: str
    #: "completed", "failed", "cancelled", or "lost": taken over from a lost worker.
    outcome: str
    count: int
    #: How long the executions took that ended so, together; what a run did before it slept or waited is in none.
    busy: timedelta
