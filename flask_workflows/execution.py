"""One claimed run while it is executed: its history, and the fenced writes to it.

A step's result is *held* in memory until the next call or the end of the body, so that a fast step costs one
transaction and the last one shares it with the run's completion. The lease thread writes what is held for longer
than `HOLD_MS`, marks steps that run long as running, and tells the execution when the run is lost or to be cancelled;
so these few fields are guarded by a lock, which the executing thread takes only around its own writes.
"""

from __future__ import annotations

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
from .interrupts import Suspended
from .store import Busy
from .store import Change
from .store import ClaimedRun
from .store import LeaseGone
from .store import StepWrite
from .store import Store
from .store import StoredStep
from .store import WaitWrite

T = TypeVar("T")

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


class InFlight(NamedTuple):
    """A step that runs now."""

    write: StepWrite
    started: float
    shown: bool


class Execution:
    """The run under the epoch it was claimed with. Only the thread that made it may call its body-side methods."""

    def __init__(self, store: Store, run: ClaimedRun, stored: list[StoredStep], *, strict: bool) -> None:
        self.store = store
        self.run = run
        self.history = History(stored, strict=strict)
        self.thread = get_ident()
        self.began = store.ticks()
        #: What ended the body, kept in case user code swallows it.
        self.interrupt: Interrupt | None = None
        #: An error the engine raised into the body that settles the run even if it was caught.
        self.divergence: Exception | None = None
        #: Errors that come from recorded failures, with those: left uncaught they fail the run at once.
        self.recorded_errors: list[tuple[BaseException, dict[str, Any]]] = []
        self.cancel_requested = run.cancel_requested_at is not None
        #: Whether the outcome is stored, so that nothing is left to renew.
        self.settled = False
        #: Whether this execution stored a call, which makes the count of attempts start again.
        self.progressed = False
        self.renewed = run.ticks
        #: Whether a step's transaction is being committed, so that an error may come from the commit.
        self.committing = False
        self._touched = run.status == "running" and run.attempts == 0 and run.losses == 0
        self._heard = run.ticks
        self._lock = Lock()
        self._held: Held | None = None
        self._in_flight: InFlight | None = None

    @property
    def attempts(self) -> int:
        """Attempts of the run used up before this execution, or before the last call it stored."""
        return 0 if self.progressed else self.run.attempts

    def now_ms(self) -> int:
        """The database's clock, as it goes on from the claim."""
        return int(self.run.now + self.store.ticks() - self.run.ticks)

    # The body's side -----------------------------------------------------------------------

    def call(self, name: str, input: str | None = None) -> Call:
        """Take the next call of the body. Raises what stopped it, if something did."""
        if self.interrupt is not None:
            raise self.interrupt
        if self.divergence is not None:
            raise self.divergence
        try:
            return self.history.next(name, input)
        except Exception as error:
            self.diverge(error)
            raise

    def diverge(self, error: Exception) -> Exception:
        """Let this error settle the run, even where user code catches it; answer the first such error."""
        self.divergence = self.divergence or error
        return self.divergence

    def may_start(self) -> None:
        """Write what is held and make sure the run is still ours, before something new happens.

        Raises `LeaseLost`, or `Cancelling` when the run is to be cancelled.
        """
        if self._held is not None:
            self.flush()
        if self.interrupt is None and self.store.ticks() - self._heard > STALE_MS:
            self.look()
        if self.interrupt is not None:
            raise self.interrupt
        if self.cancel_requested:
            self.stop(Cancelling())

    def look(self) -> None:
        """Read whether the run is still ours and wanted."""
        asked = self.store.ticks()
        with self._writing():
            seen = self.store.look(self.run.id)
        if seen is None or seen[0] != self.run.epoch:
            self.stop(LeaseLost())
        else:
            self._heard = asked
            self.cancel_requested = self.cancel_requested or seen[2] is not None

    def hold(self, write: StepWrite, started: float) -> None:
        """Keep a finished call until the next one; it is written at the latest `HOLD_MS` from now."""
        with self._lock:
            self._in_flight = None
            self._held = Held(write, started, self.store.ticks())
            self.progressed = True

    def flush(self) -> None:
        """Write what is held."""
        with self._writing():
            self._flush()

    def record(self, write: StepWrite, started: float) -> None:
        """Write a call now."""
        with self._writing():
            self._in_flight = None
            self._held = Held(write, started, self.store.ticks())
            self.progressed = True
            self._flush()

    def record_with(
        self, commit: Callable[[Callable[[Any], str | None]], None], write: StepWrite, started: float
    ) -> None:
        """Write a call inside the user's transaction, which `commit` ends; it is given the function that writes.

        What that function returns is the transaction's isolation level. A `LeaseGone` inside rolls back and ends
        the execution.
        """

        asked = self.store.ticks()

        def inside(connection: Any) -> str | None:
            timed = self._timed(Held(write, started, self.store.ticks()))
            ours = (self.run.id, self.run.epoch)
            if connection is None:
                fenced = self.store.record(*ours, [timed], touch=not self._touched)
            else:
                fenced = self.store.record_in(connection, *ours, timed, touch=not self._touched)
            self.cancel_requested = self.cancel_requested or fenced.cancel_requested_at is not None
            return fenced.isolation

        with self._lock:
            self.committing = True
            try:
                commit(inside)
            except LeaseGone:
                self.stop(LeaseLost())
            self.stored(asked)

    def stored(self, asked: float) -> None:
        """A call was stored by a transaction that is not this class's own, and that began then."""
        self.committing = False
        self._in_flight = None
        self._touched = self.progressed = True
        self._heard = asked

    def record_effect(self, key: str, effect: Callable[[Any], str], write: Callable[[str], StepWrite]) -> str:
        """Do something in the database and record the call, in one transaction; answer what `effect` did."""
        asked = self.store.ticks()
        with self._writing():
            done = self.store.record_effect(self.run, key, effect, write)
            self.stored(asked)
            return done

    def write(self, operation: Callable[[str, int], T]) -> T:
        """A fenced write of the store's events, given the run and its epoch."""
        with self._writing():
            return operation(self.run.id, self.run.epoch)

    def begin_step(self, write: StepWrite, started: float) -> None:
        """Note a step that starts now; one of a run that lost a worker before is shown as running at once."""
        with self._writing():
            self.committing = False
            self._in_flight = InFlight(write, started, shown=False)
            if self.run.losses:
                self._show()

    def leave_step(self) -> None:
        with self._lock:
            self._in_flight = None

    def suspend(self, change: Change, write: StepWrite | None, waits: Sequence[WaitWrite] = ()) -> NoReturn:
        """Leave the body; the engine stores `change`, `write` and `waits` once it has unwound."""
        self.stop(Suspended(change, write, waits))

    def stop(self, interrupt: Interrupt) -> NoReturn:
        if self.interrupt is None:
            self.interrupt = interrupt
        raise self.interrupt

    # The engine's side ---------------------------------------------------------------------

    def settle(self, change: Change, write: StepWrite | None = None, waits: Sequence[WaitWrite] = ()) -> bool:
        """End the execution: what is held, `write`, `waits` and the run's new state in one transaction.

        False when the run is to be cancelled instead; raises `LeaseGone` when it is somebody else's.
        """
        with self._lock:
            writes = [self._timed(self._held)] if self._held is not None else []
            if write is not None:
                writes.append(write)
            waited = change.finished and self.history.waited
            settled = self.settled = self.store.settle(
                self.run.id, self.run.epoch, change, writes, waits, waited=waited
            )
            if settled:
                self._held = None
            return settled

    # The lease thread's side -----------------------------------------------------------------

    def tend(self) -> None:
        """Write what was held too long, and show a step that runs long; skipped while the execution itself writes.

        And where SQLite has another writer: it may be this very step's session, which would wait for our lock.
        """
        now = self.store.ticks()
        held, flying = self._held, self._in_flight
        late = held is not None and now - held.finished >= HOLD_MS
        long = flying is not None and not flying.shown and now - flying.started >= SHOW_RUNNING_MS
        if not (late or long) or not self._lock.acquire(blocking=False):
            return
        try:
            if late:
                self._flush(patient=False)
            if long:
                self._show(patient=False)
        except Busy:
            pass
        except LeaseGone:
            self.lose()
        finally:
            self._lock.release()

    def due_for_renewal(self, after_ms: float) -> bool:
        """Whether the lease is old enough to renew, or the execution lasts long enough to show as running."""
        if self.settled or isinstance(self.interrupt, LeaseLost | Broken):
            return False
        now = self.store.ticks()
        unseen = self.run.status == "pending" and not self._touched
        return now - self.renewed >= after_ms or (unseen and now - self.began >= HOLD_MS)

    def ours(self) -> bool:
        """Whether nothing ended the execution yet."""
        return self.interrupt is None and not self.settled

    def heard(self, cancel_requested: bool, asked: float) -> None:
        """The lease was renewed, which also shows the run as running. It counts from when that was asked for."""
        self._touched = self._touched or (self.run.attempts == 0 and self.run.losses == 0)
        self.renewed = self._heard = asked
        self.cancel_requested = self.cancel_requested or cancel_requested

    def lose(self) -> None:
        """The run is somebody else's."""
        if self.interrupt is None:
            self.interrupt = LeaseLost()

    # Under the lock --------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock, and turn what goes wrong in the store into what leaves the body: it is no error of its own."""
        with self._lock:
            try:
                yield
            except LeaseGone:
                self.stop(LeaseLost())
            except Exception as error:
                self.stop(Broken(error))
            except BaseException as error:
                # A Ctrl-C in the middle of it: whether it was written is not known, so nothing more may happen.
                self.interrupt = self.interrupt or Broken(error)
                raise

    def _flush(self, *, patient: bool = True) -> None:
        held = self._held
        if held is None or self.interrupt is not None:
            return
        asked = self.store.ticks()
        write, touch = self._timed(held), not self._touched
        fenced = self.store.record(self.run.id, self.run.epoch, [write], touch=touch, patient=patient)
        self._held = None
        self._touched = True
        # From before the question: the process may have been stopped since the answer.
        self._heard = asked
        self.cancel_requested = self.cancel_requested or fenced.cancel_requested_at is not None

    def _show(self, *, patient: bool = True) -> None:
        flying = self._in_flight
        if flying is None or self.interrupt is not None:
            return
        write = flying.write._replace(started_ago=int(self.store.ticks() - flying.started))
        self.store.record(self.run.id, self.run.epoch, [write], touch=False, patient=patient)
        self._in_flight = flying._replace(shown=True)

    def _timed(self, held: Held) -> StepWrite:
        now = self.store.ticks()
        return held.write._replace(started_ago=int(now - held.started), finished_ago=int(now - held.finished))
