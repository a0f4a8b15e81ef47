"""One claimed run while it is executed: its history, and the fenced writes to it.

An execution has a branch for its body, and one more for each function that `ctx.parallel` runs beside others. A branch
has calls in an order of its own, and the thread that makes them; the execution has what they share: the lease, and
what stopped them all.

A step's result is *held* in memory until the branch's next call or its end, so that a fast step costs one transaction
and the last one shares it with the run's completion. The lease thread writes what is held for longer than `HOLD_MS`,
marks steps that run long as running, stores that one timed out, and tells the execution when the run is lost or to be
cancelled; so these few fields are guarded by a lock, which the branch's thread takes only around its own writes. Each branch has its own: on
SQLite one branch may wait for the write lock that a step's session holds in another, which then needs its own lock to
commit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from threading import get_ident
from threading import Lock
from typing import Any
from typing import NamedTuple
from typing import NoReturn
from typing import TypeVar

from .history import Call
from .history import History
from .interrupts import Broken
from .interrupts import Cancelling
from .interrupts import Interrupt
from .interrupts import LeaseLost
from .interrupts import OutOfTime
from .interrupts import Pausing
from .interrupts import Suspended
from .names import path_of
from .store import Busy
from .store import CancelAsked
from .store import Change
from .store import ClaimedRun
from .store import Fenced
from .store import Lease
from .store import LeaseGone
from .store import Seen
from .store import StepWrite
from .store import Store
from .store import StoredStep
from .store import WaitWrite

T = TypeVar("T")

logger = logging.getLogger("flask_workflows")

#: A result is held no longer than this.
HOLD_MS = 50
#: A step that runs longer than this is shown as running.
SHOW_RUNNING_MS = 1_000
#: Before a step starts, the run is looked at again if it was not heard of for this long.
STALE_MS = 1_000


class Held(NamedTuple):
    write: StepWrite
    started: float
    finished: float


class Limit(NamedTuple):
    """How long a step may take."""

    ms: int
    #: What is stored of a call that took longer: so many ms, and whether it goes on.
    failed: Callable[[float, bool], StepWrite]


class InFlight(NamedTuple):
    """A step that runs now."""

    write: StepWrite
    started: float
    shown: bool
    limit: Limit | None = None
    #: What is stored of it, once it took too long; its call goes on.
    late: StepWrite | None = None

    def is_over(self, now: float) -> bool:
        return self.limit is not None and now - self.started >= self.limit.ms


class Branch:
    """Calls of a run in one order, made by one thread.

    `path` begins their keys: nothing for the body, `2.0/` for the first function of the parallel call at position 2.
    """

    def __init__(self, execution: Execution, path: str, stored: Sequence[StoredStep], *, strict: bool) -> None:
        self.execution = execution
        self.path = path
        self.history = History(list(stored), strict=strict, path=path)
        self.thread = get_ident()
        #: The key of the step that runs now.
        self.step: str | None = None
        #: Whether a step's transaction is being committed, so that an error may come from the commit.
        self.committing = False
        #: What `ctx.patched` answered, by name: kept no longer than the history that it was answered from.
        self.patched: dict[str, bool] = {}
        #: What ended this branch alone, kept in case user code swallows it.
        self.left: Interrupt | None = None
        self._store = execution.store
        self._lock = Lock()
        self._held: Held | None = None
        self._in_flight: InFlight | None = None

    @property
    def interrupt(self) -> Interrupt | None:
        """What ended the branch, or the whole execution."""
        return self.left or self.execution.interrupt

    def call(self, name: str, input: str | None = None) -> Call:
        """Take the next call. Raises what stopped the branch, if something did."""
        if self.interrupt is not None:
            raise self.interrupt
        if self.execution.divergence is not None:
            raise self.execution.divergence
        try:
            call = self.history.next(name, input)
        except Exception as error:
            self.execution.diverge(error)
            raise
        self.execution.called(self, call)
        return call

    def may_start(self) -> None:
        """Write what is held and make sure the run is still ours, before something new happens.

        Raises `LeaseLost`, or `Cancelling`, `Pausing` or `OutOfTime` where nothing new may happen.
        """
        execution = self.execution
        if self._held is not None:
            self.flush()
        if execution.interrupt is None and execution.is_stale():
            execution.look()
        if self.interrupt is not None:
            raise self.interrupt
        stop = execution.asked_to_stop()
        if stop is not None:
            execution.stop(stop)

    def hold(self, write: StepWrite, started: float, *, progress: bool = True) -> None:
        """Keep a finished call until the next one; it is written at the latest `HOLD_MS` from now.

        Without `progress` it is no step forward, for the count of attempts.
        """
        if self._held is not None:
            self.flush()
            if self.interrupt is not None:
                raise self.interrupt
        with self._lock:
            self._in_flight = None
            self._held = Held(write, started, self._store.ticks())
            self.execution.progressed = self.execution.progressed or progress

    def flush(self) -> None:
        """Write what is held."""
        with self._writing():
            self._flush()

    def record(self, write: StepWrite, started: float) -> None:
        """Write a call now."""
        with self._writing():
            self._in_flight = None
            self._held = Held(write, started, self._store.ticks())
            self.execution.progressed = True
            self._flush()

    def record_with(
        self, commit: Callable[[Callable[[Any], str | None]], None], write: StepWrite, started: float
    ) -> None:
        """Write a call inside the user's transaction, which `commit` ends; it is given the function that writes.

        What that function returns is the transaction's isolation level. A `LeaseGone` inside rolls back and ends
        the execution.
        """

        execution, store = self.execution, self._store
        asked = store.ticks()

        def inside(connection: Any) -> str | None:
            timed = self._timed(Held(write, started, store.ticks()))
            ours = (execution.run.id, execution.run.epoch)
            if connection is None:
                fenced = store.record(*ours, [timed], touch=not execution.touched)
            else:
                fenced = store.record_in(connection, *ours, timed, touch=not execution.touched)
            execution.hear(fenced)
            return fenced.isolation

        with self._lock:
            self.committing = True
            try:
                commit(inside)
            except LeaseGone:
                execution.stop(LeaseLost())
            self.stored(asked)

    def stored(self, asked: float) -> None:
        """A call was stored by a transaction that is not this class's own, and that began then."""
        self.committing = False
        self._in_flight = None
        self.execution.touched = self.execution.progressed = True
        self.execution.was_heard(asked)

    def record_effect(self, key: str, effect: Callable[[Any], str], write: Callable[[str], StepWrite]) -> str:
        """Do something in the database and record the call, in one transaction; answer what `effect` did."""
        asked = self._store.ticks()
        with self._writing():
            try:
                done = self._store.record_effect(self.execution.run, key, effect, write)
            except CancelAsked:
                self.execution.cancel_requested = True
                self.execution.stop(Cancelling())
            self.stored(asked)
            return done

    def write(self, operation: Callable[[str, int], T]) -> T:
        """A fenced write of the store's events, given the run and its epoch."""
        with self._writing():
            return self.execution.write(operation)

    def begin_step(self, write: StepWrite, started: float, limit: Limit | None = None) -> None:
        """Note a step that starts now.

        One of a run that lost a worker before is shown as running at once, and so is one that may have timed out
        before: what is stored of it would say that its last call goes on.
        """
        with self._writing():
            self.committing = False
            self._in_flight = InFlight(write, started, shown=False, limit=limit)
            if self.execution.run.losses or (limit is not None and write.attempts > 1):
                self._show()

    @property
    def stuck(self) -> bool:
        """Whether the call under way has timed out, and goes on."""
        flying = self._in_flight
        return flying is not None and flying.late is not None

    @property
    def over_time(self) -> bool:
        """Whether the call under way takes longer than it may."""
        flying = self._in_flight
        return flying is not None and flying.is_over(self._store.ticks())

    def in_time(self) -> bool:
        """Whether a step's call, which has returned, took no longer than it may: this is where that is decided."""
        if self._in_flight is None or self._in_flight.limit is None:
            return True
        with self._lock:
            if self.stuck or self.over_time:
                return False
            self._in_flight = self._in_flight._replace(limit=None)
            return True

    def end_late(self) -> tuple[StepWrite, bool]:
        """End a call that took too long; answer what is stored of it, and whether it was not before."""
        with self._writing():
            new = self._expire(goes_on=False)
            flying, self._in_flight = self._in_flight, None
            assert flying is not None
            assert flying.late is not None
            return flying.late, new

    def leave_step(self) -> None:
        with self._lock:
            self._in_flight = None

    def suspend(self, suspended: Suspended) -> NoReturn:
        """Leave the body, or this branch of it.

        The body's suspension is stored with the run's new state, once it has unwound. A branch's is stored now, as
        others may go on for long.
        """
        execution = self.execution
        if self is execution.body:
            execution.stop(suspended)
        if suspended.write is not None or suspended.waits:
            with self._writing():
                self._flush()
                execution.store.suspend_branch(
                    execution.run.id, execution.run.epoch, suspended.write, suspended.waits, touch=not execution.touched
                )
                execution.touched = execution.touched or suspended.write is not None
            suspended.waiting = suspended.waiting or tuple({wait.key for wait in suspended.waits})
        self.leave(suspended)

    def leave(self, interrupt: Interrupt) -> NoReturn:
        """End this branch alone; with the body's, the execution."""
        if self is self.execution.body:
            self.execution.stop(interrupt)
        if self.left is None:
            self.left = interrupt
        raise self.left

    def take_held(self) -> StepWrite | None:
        """What is held, to be written by the caller."""
        with self._lock:
            held, self._held = self._held, None
            return None if held is None else self._timed(held)

    @contextmanager
    def ending(self) -> Iterator[list[StepWrite]]:
        """Hold the lock while the run's new state is stored, with what is held."""
        with self._lock:
            writes = [self._timed(self._held)] if self._held is not None else []
            yield writes
            if self.execution.settled:
                self._held = None

    # The lease thread's side -----------------------------------------------------------------

    def tend(self) -> StepWrite | None:
        """Write what was held too long, show a step that runs long, and store that one timed out, which is answered.

        Skipped while the branch itself writes, and where SQLite has another writer: it may be this very step's
        session, which would wait for our lock.
        """
        now = self._store.ticks()
        held, flying = self._held, self._in_flight
        late = held is not None and now - held.finished >= HOLD_MS
        long = flying is not None and not flying.shown and now - flying.started >= SHOW_RUNNING_MS
        over = flying is not None and flying.late is None and flying.is_over(now)
        if not (late or long or over) or not self._lock.acquire(blocking=False):
            return None
        try:
            if late:
                self._flush(patient=False)
            # Looked at again: by now it may be another step.
            if over and self.over_time and self._expire(goes_on=True, patient=False):
                return self._in_flight.late if self._in_flight is not None else None
            if long:
                self._show(patient=False)
        except Busy:
            pass
        except LeaseGone:
            self.execution.lose()
        finally:
            self._lock.release()
        return None

    # Under the lock --------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock, and turn what goes wrong in the store into what leaves the body: it is no error of its own."""
        with self._lock, self.execution.guarding():
            yield

    def _flush(self, *, patient: bool = True) -> None:
        if self._held is None or self.execution.interrupt is not None:
            return
        self._put(self._timed(self._held), patient=patient)
        self._held = None

    def _expire(self, *, goes_on: bool, patient: bool = True) -> bool:
        """Store that the step in flight took too long; false where it is known. Of a run that is lost nothing is."""
        flying = self._in_flight
        if flying is None or flying.limit is None or flying.late is not None:
            return False
        late = flying.limit.failed(self._store.ticks() - flying.started, goes_on)
        if not isinstance(self.execution.interrupt, LeaseLost | Broken):
            self._put(late, patient=patient)
            self.execution.progressed = True
        # Shown too, or what is stored would be overwritten.
        self._in_flight = flying._replace(shown=True, late=late)
        return True

    def _put(self, write: StepWrite, *, patient: bool) -> None:
        execution = self.execution
        asked, touch = self._store.ticks(), not execution.touched
        fenced = self._store.record(execution.run.id, execution.run.epoch, [write], touch=touch, patient=patient)
        execution.touched = True
        # From before the question: the process may have been stopped since the answer.
        execution.was_heard(asked)
        execution.hear(fenced)

    def _show(self, *, patient: bool = True) -> None:
        flying, execution = self._in_flight, self.execution
        if flying is None or execution.interrupt is not None:
            return
        write = flying.write._replace(started_ago=int(self._store.ticks() - flying.started))
        self._store.record(execution.run.id, execution.run.epoch, [write], touch=False, patient=patient)
        self._in_flight = flying._replace(shown=True)

    def _timed(self, held: Held) -> StepWrite:
        now = self._store.ticks()
        return held.write._replace(started_ago=int(now - held.started), finished_ago=int(now - held.finished))


class Execution:
    """The run under the epoch it was claimed with."""

    def __init__(self, store: Store, run: ClaimedRun, stored: list[StoredStep], *, strict: bool) -> None:
        self.store = store
        self.run = run
        self.strict = strict
        self.began = store.ticks()
        #: What ended the execution, kept in case user code swallows it.
        self.interrupt: Interrupt | None = None
        #: An error the engine raised into the body that settles the run even if it was caught.
        self.divergence: Exception | None = None
        #: Errors that come from recorded failures, with those: left uncaught they fail the run at once.
        self.recorded_errors: list[tuple[BaseException, dict[str, Any]]] = []
        self.cancel_requested = run.cancel_requested_at is not None
        self.pause_requested = run.paused_at is not None
        #: Whether the outcome is stored, so that nothing is left to renew.
        self.settled = False
        #: Whether this execution stored a call, which makes the count of attempts start again.
        self.progressed = False
        self.renewed = run.ticks
        #: Whether the run is known to be shown as running, with no fault counted.
        self.touched = run.status == "running" and run.attempts == 0 and run.losses == 0
        self._heard = run.ticks
        #: Whether the run is being undone, so that its cancelling stops nothing any more.
        self.undoing = run.undoing is not None
        #: Whether something was pushed with `on_failure` in this execution.
        self.pushed = False
        self._by_path = _by_path(stored)
        self.body = Branch(self, "", self._by_path.get("", ()), strict=strict)
        #: Those that may hold something.
        self.branches: tuple[Branch, ...] = (self.body,)
        self._branching = Lock()

    @property
    def attempts(self) -> int:
        """Attempts of the run used up before this execution, or before the last call it stored."""
        return 0 if self.progressed else self.run.attempts

    @property
    def history(self) -> History:
        """The body's calls."""
        return self.body.history

    @property
    def waited(self) -> bool:
        """Whether the run was waiting for something when it was claimed."""
        return any(step.status == "waiting" for steps in self._by_path.values() for step in steps)

    @property
    def must_undo(self) -> bool:
        """Whether something was pushed with `on_failure` that is not undone."""
        return self.pushed or any(step.status == "pushed" for step in self.undo_calls())

    def undo_calls(self) -> list[StoredStep]:
        """What was pushed with `on_failure`, last first."""
        steps = [step for steps in self._by_path.values() for step in steps if step.kind == "undo"]
        return sorted(steps, key=lambda step: (step.started_at or 0, step.position, step.key), reverse=True)

    def unfinished(self) -> str | None:
        """The key of the call that was under way, or of the last one recorded."""
        steps = [step for steps in self._by_path.values() for step in steps]
        under_way = [step for step in steps if step.status in ("running", "retrying") and step.kind != "parallel"]
        chosen = under_way or steps
        return chosen[-1].key if chosen else None

    def now_ms(self) -> int:
        """The database's clock, as it goes on from the claim."""
        return int(self.run.now + self.store.ticks() - self.run.ticks)

    # Branches --------------------------------------------------------------------------------

    def branch(self, path: str) -> Branch:
        """A branch to be run by the calling thread, on its record as it is known."""
        branch = Branch(self, path, self.record_of(path), strict=self.strict)
        with self._branching:
            self.branches = (*self.branches, branch)
        return branch

    def record_of(self, path: str) -> Sequence[StoredStep]:
        """The recorded calls of a branch: as the run was claimed, or as they were read anew."""
        return self._by_path.get(path, ())

    def read_anew(self, path: str) -> None:
        """Read what a branch has recorded by now, and those it started: it is to go on from there."""
        with self.guarding():
            stored = self.store.branch_history(self.run.id, path)
        self._by_path.update(_by_path(stored))

    def end_branch(self, branch: Branch) -> None:
        with self._branching:
            self.branches = tuple(one for one in self.branches if one is not branch)

    def record_all(self, writes: Sequence[StepWrite]) -> None:
        """Write calls of several branches together."""
        asked = self.store.ticks()
        with self.guarding():
            if isinstance(self.interrupt, LeaseLost | Broken):
                return
            fenced = self.store.record(self.run.id, self.run.epoch, writes, touch=not self.touched)
            self.touched = True
            self._heard = asked
            self.hear(fenced)

    def write(self, operation: Callable[[str, int], T]) -> T:
        """Do a fenced write, given the run and its epoch."""
        return operation(self.run.id, self.run.epoch)

    # What stops it ---------------------------------------------------------------------------

    def called(self, branch: Branch, call: Call) -> None:
        """A branch has come to a call. Replays that only look stop here."""

    def diverge(self, error: Exception) -> Exception:
        """Let this error settle the run, even where user code catches it; answer the first such error."""
        self.divergence = self.divergence or error
        return self.divergence

    def stop(self, interrupt: Interrupt) -> NoReturn:
        """End the execution, with all its branches."""
        if self.interrupt is None:
            self.interrupt = interrupt
        raise self.interrupt

    def hear(self, said: Fenced | Lease | Seen) -> None:
        """The database said what is asked of the run."""
        self.cancel_requested = self.cancel_requested or said.cancel_requested_at is not None
        # Unlike cancelling, that may be taken back.
        self.pause_requested = said.paused_at is not None

    def asked_to_stop(self) -> Interrupt | None:
        """Why nothing new may happen to the run; null where it may."""
        if self.cancel_requested and not self.undoing:
            return Cancelling()
        if self.pause_requested:
            return Pausing()
        return OutOfTime() if self.is_out_of_time() else None

    def is_out_of_time(self) -> bool:
        """Whether the run's deadline has passed; what is being undone has none."""
        deadline = self.run.deadline_at
        return deadline is not None and not self.undoing and self.now_ms() >= deadline

    def is_stale(self) -> bool:
        return self.store.ticks() - self._heard > STALE_MS

    def was_heard(self, asked: float) -> None:
        """The database answered something that was asked then, and the run was ours."""
        self._heard = asked

    def look(self) -> None:
        """Read whether the run is still ours and wanted."""
        asked = self.store.ticks()
        with self.guarding():
            seen = self.store.look(self.run.id)
        if seen is None or seen.epoch != self.run.epoch:
            self.stop(LeaseLost())
        else:
            self._heard = asked
            self.hear(seen)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Turn what goes wrong in the store into what leaves the body: it is no error of its own."""
        try:
            yield
        except LeaseGone:
            self.stop(LeaseLost())
        except Interrupt:
            raise
        except Exception as error:
            self.stop(Broken(error))
        except BaseException as error:
            # A Ctrl-C in the middle of it: whether it was written is not known, so nothing more may happen.
            self.interrupt = self.interrupt or Broken(error)
            raise

    # The engine's side ---------------------------------------------------------------------

    def settle(
        self,
        change: Change,
        write: StepWrite | None = None,
        waits: Sequence[WaitWrite] = (),
        waiting: Sequence[str] = (),
    ) -> bool:
        """End the execution: what is held, `write`, `waits` and the run's new state in one transaction.

        `waiting` are the recorded calls it goes on to wait for, which may have ended meanwhile. False when the run is
        to be cancelled instead; raises `LeaseGone` when it is somebody else's.
        """
        with self.body.ending() as writes:
            if write is not None:
                writes.append(write)
            self.settled = self.store.settle(
                self.run.id,
                self.run.epoch,
                change,
                writes,
                waits,
                waited=change.finished and self.waited,
                waiting=waiting,
            )
            return self.settled

    # The lease thread's side -----------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        """Whether a call under way has timed out."""
        return any(branch.stuck for branch in self.branches)

    def tend(self) -> list[StepWrite]:
        """Write what was held too long, show steps that run long; answer those that just timed out."""
        return [late for branch in self.branches if (late := branch.tend()) is not None]

    def warn_late(self, late: StepWrite) -> None:
        """Log that a step timed out."""
        message = json.loads(late.error or "{}").get("message")
        logger.warning("step %s of run %s %s", late.key, self.run.id, message, extra={"run_id": self.run.id})

    def due_for_renewal(self, after_ms: float) -> bool:
        """Whether the lease is old enough to renew, or the execution lasts long enough to show as running."""
        if self.settled or isinstance(self.interrupt, LeaseLost | Broken):
            return False
        now = self.store.ticks()
        unseen = self.run.status == "pending" and not self.touched
        return now - self.renewed >= after_ms or (unseen and now - self.began >= HOLD_MS)

    def ours(self) -> bool:
        """Whether nothing ended the execution yet."""
        return self.interrupt is None and not self.settled

    def renewed_by(self, lease: Lease, asked: float) -> None:
        """The lease was renewed, which also shows the run as running. It counts from when that was asked for."""
        self.touched = self.touched or (self.run.attempts == 0 and self.run.losses == 0)
        self.renewed = self._heard = asked
        self.hear(lease)

    def lose(self) -> None:
        """The run is somebody else's."""
        if self.interrupt is None:
            self.interrupt = LeaseLost()


def _by_path(stored: Sequence[StoredStep]) -> dict[str, list[StoredStep]]:
    """The recorded calls of each branch, in their order."""
    found: dict[str, list[StoredStep]] = {}
    for step in sorted(stored, key=lambda step: step.position):
        found.setdefault(path_of(step.key), []).append(step)
    return found
