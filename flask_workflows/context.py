"""What a running workflow may do.

The context of the body that runs now is found through a context variable, as `flask.request` is. Each call it makes
is looked up in the run's history first; only a call without a record does something.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import socket
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from datetime import timedelta
from functools import partial
from threading import current_thread
from threading import get_ident
from threading import main_thread
from typing import Any
from typing import get_type_hints
from typing import NoReturn
from typing import overload
from typing import ParamSpec
from typing import TYPE_CHECKING
from typing import TypeVar

from flask import has_app_context
from werkzeug.local import LocalProxy

from . import children
from . import failures
from . import phrases
from . import waiting
from .children import Finished
from .durations import from_ms
from .durations import instant_ms
from .durations import to_ms
from .errors import InvalidName
from .errors import MisplacedCall
from .errors import NotRegistered
from .errors import RunFinished
from .errors import StepFailed
from .errors import StepTimeout
from .errors import TransactionalRefused
from .errors import UncommittedBodyWrites
from .errors import ValueRefused
from .errors import WorkflowsError
from .events import Event
from .events import EventMatch
from .events import EventTypes
from .events import Happened
from .execution import Branch
from .execution import Execution
from .execution import Limit
from .history import Call
from .history import caller
from .interrupts import Cancelling
from .interrupts import Interrupt
from .interrupts import Suspended
from .interrupts import TimedOut
from .names import check_label
from .names import check_step_name
from .names import path_of
from .runs import PROGRESS
from .store import Change
from .store import NewEvent
from .store import NewRun
from .store import StepWrite
from .store import StoredStep
from .store import WaitWrite
from .values import value_codec

if TYPE_CHECKING:
    from .definition import Step
    from .retry import Retry
    from .runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: A step whose transaction lost against a rival is run again at once, at most this often.
CONFLICT_RETRIES = 20

_current: ContextVar[WorkflowContext] = ContextVar("flask_workflows_context")

#: The branch of it that this thread runs.
_running_branch: ContextVar[Branch] = ContextVar("flask_workflows_branch")

#: The context of the run executed here, falsy outside one.
current_run: WorkflowContext = LocalProxy(
    _current, unbound_message="no workflow runs here: current_run is for workflows and steps"
)  # type: ignore[assignment]


def outside_steps() -> WorkflowContext | None:
    """The current context, null outside a run and inside a step."""
    running = _current.get(None)
    return None if running is None or running._branch.step is not None else running


#: The branches whose code is executed in this process now.
_executing: set[Branch] = set()


def refuse_stray_thread(what: str) -> None:
    """Refuse a step on a thread that a run's body seems to have started: the run would know nothing of it.

    Threads do not say who started them. So it is refused where some run's body is executed in this process, outside
    its steps, and the thread has neither a run nor an app context of its own.
    """
    if not _executing or WorkflowContext.is_active() or has_app_context() or current_thread() is main_thread():
        return
    if any(branch.step is None for branch in tuple(_executing)):
        raise MisplacedCall(
            f"{what} was called at {caller()} on a thread that no run owns, so that its result would not be stored: "
            "let ctx.parallel() or ctx.map() run functions side by side, not a pool of your own"
        )


def current_labels() -> tuple[str | None, str | None]:
    """Run id and step key of what runs here, for log records."""
    running = _current.get(None)
    return (None, None) if running is None else (running.run_id, running._branch.step)


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is named `ctx` or annotated `WorkflowContext`."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    first = parameters[0]
    if first.name == "ctx" or first.annotation is WorkflowContext:
        return True
    if isinstance(first.annotation, str) and "WorkflowContext" in first.annotation:
        try:
            return get_type_hints(function).get(first.name) is WorkflowContext
        except Exception:
            return first.annotation.rpartition(".")[2] == "WorkflowContext"
    return False


class WorkflowContext:
    """The run that is executed, for its body and its steps."""

    def __init__(self, runtime: Runtime, execution: Execution, strict: bool = True) -> None:
        self._runtime = runtime
        self._execution = execution
        self._run = execution.run
        self._looked = float("-inf")

    @staticmethod
    def current() -> WorkflowContext | None:
        """The context of the run executed here, null outside one."""
        return _current.get(None)

    @staticmethod
    def is_active() -> bool:
        """Whether a run is executed here."""
        return _current.get(None) is not None

    @property
    def _branch(self) -> Branch:
        """The branch whose code runs on this thread; the body's, where no other is known."""
        here = _running_branch.get(None)
        return here if here is not None and here.execution is self._execution else self._execution.body

    # Facts ---------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def version(self) -> int:
        """The version the run was started on, which may be older than the code."""
        return self._run.version

    @property
    def workspace(self) -> str | None:
        return self._run.workspace or None

    @property
    def key(self) -> str | None:
        return self._run.key

    @property
    def attempt(self) -> int:
        """Which attempt of the run this is, from 1."""
        return self._run.attempts + 1

    @property
    def started_at(self) -> datetime:
        """When the run was started, which is before anybody took it up."""
        return from_ms(self._run.created_at)

    @property
    def idempotency_key(self) -> str:
        """`"<run id>:<step key>"`, the same at every attempt of the step it is read in."""
        step = self._branch.step
        if step is None:
            raise MisplacedCall("idempotency_key belongs to a step: read it inside one")
        return f"{self._run.id}:{step}"

    # Calls ---------------------------------------------------------------------------------

    def step(
        self,
        name: str,
        function: Callable[..., R],
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        **kwargs: Any,
    ) -> R:
        """Run a function as a step without declaring it; `retry` and `timeout` are as in `Workflows.step`."""
        from .definition import Step

        if self._branch.step is not None:
            return function(*args, **kwargs)
        step = Step(function, name=name, retry=retry, timeout=timeout)
        return self.call_step(step, args, kwargs)  # type: ignore[no-any-return]

    def sleep(self, duration: timedelta | float) -> None:
        """Let the run sleep, for a timedelta or seconds; no thread is held."""
        milliseconds = to_ms(duration, what="the duration of a sleep")
        self._sleep(json.dumps({"ms": milliseconds}), due_in=milliseconds)

    def sleep_until(self, instant: datetime) -> None:
        """Let the run sleep until an aware datetime; one that is past is no sleep at all."""
        milliseconds = instant_ms(instant, what="the instant of a sleep")
        self._sleep(json.dumps({"until": milliseconds}), due_at=milliseconds)

    def now(self) -> datetime:
        """The present instant, by the database's clock, read once: a replay sees the same."""
        call = self._call("$now")
        if call.stored is not None:
            return from_ms(int(call.stored.output or 0))
        self.may_start()
        now = self._execution.now_ms()
        self._hold(StepWrite(call.key, call.position, "now", "completed", output=str(now)), self._ticks())
        return from_ms(now)

    def check_cancelled(self) -> None:
        """End the run here if it is to be cancelled, or the step if it timed out; meant for long steps.

        Asks the database once a second.
        """
        execution = self._execution
        interrupt = self._branch.interrupt
        if interrupt is None and self._branch.over_time:
            raise TimedOut
        if not execution.cancel_requested and interrupt is None and self._ticks() - self._looked >= 1_000:
            execution.look()
            self._looked = self._ticks()
        if self._branch.interrupt is not None:
            raise self._branch.interrupt
        if execution.cancel_requested:
            execution.stop(Cancelling())

    @overload
    def wait_for(
        self,
        event: type[T],
        match: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
        since: datetime | None = None,
    ) -> T | None: ...

    @overload
    def wait_for(
        self,
        event: str,
        match: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
        since: datetime | None = None,
    ) -> Any: ...

    def wait_for(
        self,
        event: Any,
        match: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
        since: datetime | None = None,
    ) -> Any:
        """Wait for an event, by its class or name; null when the `timeout`, a timedelta or seconds, is over first.

        `match` compares fields of the payload, dotted paths, with values. Events count that were committed after the
        wait was stored; with `since` also stored ones that were emitted from that instant on, such as
        `ctx.started_at`. An event with a declared class comes back as an object of it, others as `Event`.
        """
        happened = waiting.wait_any(self, [EventMatch(event, match, since)], timeout)
        return None if happened is None else happened.event

    def wait_any(
        self, events: Sequence[str | type | EventMatch], timeout: timedelta | float | None = None
    ) -> Happened | None:
        """Wait for the first of several events; null when the time is over first."""
        return waiting.wait_any(self, events, timeout)

    def receive(self, name: str, timeout: timedelta | float | None = None) -> Event | None:
        """Take the oldest message of that name sent to this run with `handle.send`; null on a time-out."""
        message: Event | None = waiting.receive(self, name, timeout)
        return message

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Publish how far the run is, for `handle.progress()`. The last call counts."""
        self._publish(PROGRESS, {"done": done, "total": total, "note": note})

    def set(self, key: str, value: Any) -> None:
        """Publish a value of the run, plain JSON, for `handle.get(key)` while the run goes on. The last call counts.

        In a body it is written again at each execution, once the recorded calls before it are replayed.
        """
        if check_label(key, "key").startswith("$"):
            raise InvalidName(f"the key {key!r} begins with '$', which is for the package's own: leave it out")
        self._publish(key, value)

    def _publish(self, key: str, value: Any) -> None:
        branch = self._branch
        if branch.interrupt is not None:
            raise branch.interrupt
        if branch.over_time:
            raise TimedOut
        limit = self._runtime.config.max_payload_bytes
        text = value_codec(noun="value").dump(value, where=f"set({key!r})", max_bytes=limit)
        if branch.step is None:
            if branch.history.replaying:
                return
            self._refuse_body_writes()
        events = self._runtime.events
        # A step that wrote holds SQLite's only write lock: the value is then published with what it wrote.
        connection = self._runtime.sessions.holding_lock()
        branch.write(lambda run_id, epoch: events.save_state(run_id, epoch, key, text, connection))

    def patched(self, name: str) -> bool:
        """Whether this run takes the code of a patch: true for runs that come here anew, false for those under way.

        For calls that are put in, or taken out, under runs that are older than the change:
        `if ctx.patched("tips"): send_tips()`. The answer is recorded, and is the same at each execution of the run. A
        run recorded past this place before the patch was deployed goes on without it.
        """
        known = self._branch.patched
        if check_step_name(name, f"at {caller()}", "patch") not in known:
            known[name] = self._takes_patch(f"$patch:{name}")
        return known[name]

    def _takes_patch(self, name: str) -> bool:
        history = self._branch.history
        if history.replaying and not history.comes(name):
            return False
        call = self._call(name)
        if call.stored is None:
            self._hold(StepWrite(call.key, call.position, "patch", "completed", output="true"), self._ticks())
        return True

    def on_failure(self, step: Step[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Push a step that undoes what was done, for the case that the run fails or is cancelled.

        The pushed steps are then executed in reverse, recorded and retried as all steps are; the run ends after that,
        failed or cancelled. One that fails for good lets the others go on. When the run completes none is executed.
        Only a declared step can be pushed: it is found by its name when the time has come.
        """
        from .definition import Step as Declared

        if not isinstance(step, Declared) or self._runtime.registry.step(step.name) is None:
            raise TypeError(f"ctx.on_failure() takes a step declared with @workflows.step, not {step!r}")
        limit = self._runtime.config.max_payload_bytes
        input = step.codec.dump_call(args, kwargs, where=step.where, max_bytes=limit)
        call = self._call(f"$undo:{step.name}", input)
        if call.stored is None:
            self.may_start()
            self._execution.pushed = True
            self._hold(StepWrite(call.key, call.position, "undo", "pushed", input, attempts=0), self._ticks())

    # Side by side ----------------------------------------------------------------------------

    def parallel(self, *functions: Callable[..., Any], max_workers: int | None = None) -> list[Any]:
        """Run functions side by side, each on a thread of its own; answer what they return, in their order.

        A function takes nothing, or `ctx`. What it calls is recorded apart from the others: steps, sleeps, waits and
        retries work in it, and a replay answers the same whatever finished first. When one fails the others come to
        their ends, then the error of the first that failed is raised. At most `max_workers` run at once, 8 if not given.
        """
        from .branches import run_parallel
        from .definition import place_of

        for function in functions:
            if not callable(function):
                raise TypeError(f"ctx.parallel() takes functions, not {function!r}: write lambda: … around a call")
        calls = [partial(function, self) if takes_context(function) else function for function in functions]
        return run_parallel(self, calls, _threads(max_workers), [place_of(function) for function in functions])

    def map(self, function: Callable[[T], R], items: Iterable[T], *, max_workers: int | None = None) -> list[R]:
        """Call a step, or another function, for each item, several side by side; answer the results in their order.

        As `parallel` otherwise. The items must be the same on every execution, as they are if a step returned them; a
        set is refused, as its order is not.
        """
        from .branches import run_parallel
        from .definition import place_of
        from .definition import Step

        if not callable(function):
            raise TypeError(f"ctx.map() takes a function and items, not {function!r}")
        if isinstance(items, set | frozenset):
            raise TypeError("ctx.map() takes items in an order, which a set has not: write sorted(…) around it")
        calls = [partial(function, item) for item in items]
        place = place_of(function)
        single = isinstance(function, Step)
        return run_parallel(self, calls, _threads(max_workers), [place] * len(calls), single=single)

    # For the package -------------------------------------------------------------------------

    @property
    def events(self) -> EventTypes:
        return self._runtime.workflows.events

    def next_call(self, name: str, input: str) -> Call:
        """Take the body's next call."""
        return self._call(name, input)

    def may_start(self) -> None:
        """Refuse to go on where the run is not ours, or the body wrote."""
        # First the body's own writes: on SQLite they hold the lock that writing the last result would wait for.
        self._refuse_body_writes()
        self._branch.may_start()

    def suspend(
        self, change: Change, write: StepWrite | None, waits: Sequence[WaitWrite] = (), waiting: Sequence[str] = ()
    ) -> NoReturn:
        """Let the run, or this branch of it, wait; `write` records a new call, so the count of attempts starts again."""
        execution = self._execution
        execution.progressed = execution.progressed or write is not None
        self._branch.suspend(Suspended(change._replace(attempts=execution.attempts), write, waits, waiting))

    def now_ms(self) -> int:
        return self._execution.now_ms()

    @property
    def runtime(self) -> Runtime:
        return self._runtime

    @property
    def execution(self) -> Execution:
        return self._execution

    @property
    def branch(self) -> Branch:
        return self._branch

    @contextmanager
    def on(self, branch: Branch) -> Iterator[None]:
        """Let what this thread calls be the branch's."""
        run, here = _current.set(self), _running_branch.set(branch)
        _executing.add(branch)
        try:
            yield
        finally:
            _executing.discard(branch)
            _running_branch.reset(here)
            _current.reset(run)

    def record(self, write: StepWrite) -> None:
        """Write a call now."""
        self._branch.record(write, self._ticks())

    def end_parallel(self, write: StepWrite, stored: StoredStep | None) -> None:
        """Record, with whatever comes next, that a parallel call has ended; it began when it was first recorded.

        That is no step forward: the calls in its branches are.
        """
        since = 0 if stored is None else max(0, self.now_ms() - (stored.started_at or 0))
        self._branch.hold(write, self._ticks() - since, progress=False)

    def expire(self, key: str) -> str:
        """Record that a wait timed out, or find the event that came first."""
        events = self._runtime.events
        branch = self._branch
        branch.may_start()
        asked = self._ticks()
        output, _ = branch.write(lambda run_id, epoch: events.expire(run_id, epoch, key))
        branch.stored(asked)
        return output

    def start_run(self, new_run: NewRun) -> tuple[str, bool]:
        """Record the start of another run, with the run itself; answer its id, and whether it is a new one."""
        store = self._runtime.store
        new_run = new_run._replace(parent_id=self.run_id)

        def effect(connection: Any) -> str:
            holder = store.insert(connection, [new_run]).get(new_run.id, new_run.id)
            return json.dumps({"id": holder, "created": holder == new_run.id})

        output = json.loads(self._effect(f"$start:{new_run.workflow}", "start", new_run.input, effect))
        return output["id"], output["created"]

    def await_run(self, run_id: str, timeout: timedelta | float | None) -> Finished:
        """How another run ended, waited for durably. Raises `WaitTimeout`."""
        return children.await_run(self, run_id, timeout)

    def recorded(self, error: BaseException) -> BaseException:
        """An error that stems from the record: left uncaught it fails the run at once."""
        return self._recorded(error, failures.describe(error, "step", frames=False))

    def finish(self, call: Call, write: StepWrite) -> None:
        """Hold a call that is done."""
        self._hold(write, self._ticks())

    def emit_event(self, event: NewEvent) -> bool:
        """Record an event's emission, with the event itself; answer whether it is a new one."""
        events = self._runtime.events
        name = "send" if event.run_id is not None else "emit"
        input = event.payload
        if event.run_id is not None:
            input = json.dumps({"to": event.run_id, "payload": event.payload})

        def effect(connection: Any) -> str:
            if event.run_id is not None and events.is_finished(connection, event.run_id) is not False:
                return json.dumps({"seq": None})
            seq, created = events.insert(connection, event)
            return json.dumps({"seq": seq, "created": created})

        done = json.loads(self._effect(f"${name}:{event.name}", name, input, effect))
        if done["seq"] is None:
            raise RunFinished(f"run {event.run_id} has finished, or is unknown: nobody would read the message")
        return bool(done["created"])

    def _effect(self, name: str, kind: str, input: str, effect: Callable[[Any], str]) -> str:
        """The recorded output of the body's next call, or what `effect` does now, in the transaction that records it."""
        call = self._call(name, input)
        if call.stored is not None:
            return call.stored.output or "null"
        self.may_start()

        def write(output: str) -> StepWrite:
            return StepWrite(call.key, call.position, kind, "completed", input, output, finished_ago=0)

        output = self._branch.record_effect(call.key, effect, write)
        self._runtime.announce()
        return output

    # Sleeping ------------------------------------------------------------------------------

    def _sleep(self, input: str, *, due_in: int | None = None, due_at: int | None = None) -> None:
        execution = self._execution
        call = self._call("$sleep", input)
        stored = call.stored
        if stored is None:
            self.may_start()
            write = StepWrite(call.key, call.position, "sleep", "sleeping", input, due_at=due_at, due_in=due_in)
            if due_in == 0 or (due_at is not None and due_at <= execution.now_ms()):
                self._hold(write._replace(status="completed"), self._ticks())
                return
            self._suspend("sleeping", write, due_at=due_at, due_in=due_in)
        if stored.status == "completed":
            return
        self._wait_for_due(stored)
        slept = max(0, execution.now_ms() - (stored.started_at or 0))
        self._hold(_completed(stored), self._ticks() - slept)

    def _wait_for_due(self, stored: StoredStep) -> None:
        """Suspend again if the run was woken before this call is due."""
        if stored.due_at is not None and stored.due_at > self._execution.now_ms():
            self._suspend("sleeping", None, due_at=stored.due_at)

    def _suspend(
        self, status: str, write: StepWrite | None, *, due_at: int | None = None, due_in: int | None = None
    ) -> NoReturn:
        self.suspend(Change(status, due_at=due_at, due_in=due_in), write)

    # Steps ---------------------------------------------------------------------------------

    def call_step(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer the recorded result of the body's next call, or run it."""
        limit = self._runtime.config.max_payload_bytes
        self._refuse_foreign_thread(f"step {step.name!r}")
        input = step.codec.dump_call(args, kwargs, where=step.where, max_bytes=limit)
        call = self._branch.call(step.name, input)
        stored = call.stored
        if stored is not None:
            if stored.status == "completed":
                return step.codec.result.load(stored.output or "null", where=step.where)
            if stored.status == "failed":
                raise self._error_of(step, call.key, stored)
            if stored.status == "retrying":
                self._wait_for_due(stored)
        self.may_start()
        self._runtime.sessions.remove()
        return self._attempt(step, call, input, args, kwargs)

    def undo(self, stored: StoredStep) -> None:
        """Execute a step that was pushed with `on_failure`. Raises what it ends with, which is recorded then."""
        step = self._runtime.registry.step(undone_by(stored.key))
        call, input = Call(stored.key, stored.position, stored), stored.input or "{}"
        if stored.status == "retrying":
            self._wait_for_due(stored)
        self.may_start()
        self._runtime.sessions.remove()
        try:
            if step is None:
                raise NotRegistered(f"no step {undone_by(stored.key)!r} is registered here to undo it with")
            args, kwargs = step.codec.load_call(input, where=step.where)
        except WorkflowsError as error:
            # The code as it is now cannot do it: its outcome is stored like that of any other.
            running = StepWrite(call.key, call.position, "undo", "running", input, attempts=stored.attempts + 1)
            self._end_failed(running, failures.describe(error, "step", step=call.key, frames=False), self._ticks())
            raise
        self._attempt(step, call, input, args, kwargs, kind="undo")

    def undo_lost(self, stored: StoredStep, described: dict[str, Any]) -> None:
        """Record that a step which undoes took its worker with it each time."""
        running = StepWrite(stored.key, stored.position, "undo", "running", stored.input, attempts=stored.attempts)
        self._end_failed(running, described, self._ticks())

    def _attempt(
        self,
        step: Step[Any, Any],
        call: Call,
        input: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        kind: str = "step",
    ) -> Any:
        """Run the step until it is stored; what is run again here lost its transaction and uses no attempt."""
        branch = self._branch
        attempt, earlier = _attempts_before(call.stored)
        running = StepWrite(
            call.key, call.position, kind, "running", input, attempts=attempt + 1, earlier=_dump_earlier(earlier)
        )
        limit = self._limit(step, running, earlier)
        for repetition in range(CONFLICT_RETRIES + 1):
            started = self._ticks()
            output: str | None = None
            try:
                branch.begin_step(running, started, limit)
                output = self._execute(step, call.key, args, kwargs)
                self._store(step, running._replace(status="completed", output=output), started)
                return step.codec.result.load(output, where=step.where)
            except TimedOut:
                self._end_late(step, call.key)
            except Interrupt:
                raise
            except BaseException as error:
                if branch.interrupt is not None:
                    raise branch.interrupt from None
                if repetition < CONFLICT_RETRIES and self._lost_race(step, error):
                    self._pause(repetition)
                    continue
                if output is not None and self._stored_after_all(call.key):
                    return step.codec.result.load(output, where=step.where)
                self._fail(step, running, error, started, earlier)
            finally:
                branch.leave_step()
                self._runtime.sessions.remove()
        raise AssertionError("unreachable")

    def _execute(self, step: Step[Any, Any], key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Call the function; answer its result as stored."""
        runtime = self._runtime
        if step.transactional:
            if runtime.config.store == "memory" or runtime.apart:
                raise TransactionalRefused(
                    f"step {step.name!r} is transactional, but the runs are not in the database of db.session "
                    '(WORKFLOWS_STORE="memory" or sqlite://): use a database file or server'
                )
            runtime.sessions.guard()
        function = runtime.app.ensure_sync(step.function) if step.is_async else step.function
        branch = self._branch
        branch.step = key
        try:
            value = function(*args, **kwargs)
        finally:
            branch.step = None
            if not branch.in_time():
                # Whatever it came to, and if it swallowed what check_cancelled() raised.
                raise TimedOut
        return step.codec.result.dump(value, where=step.where, max_bytes=runtime.config.max_payload_bytes)

    def _store(self, step: Step[Any, Any], write: StepWrite, started: float) -> None:
        """Commit the session's writes with the record, or hold the record where there are none."""
        if not self._runtime.sessions.may_commit(transactional=step.transactional):
            self._hold(write, started)
            return
        sessions = self._runtime.sessions
        self._branch.record_with(
            lambda record: sessions.commit_step(record, transactional=step.transactional), write, started
        )

    def _lost_race(self, step: Step[Any, Any], error: BaseException) -> bool:
        """Whether a rival's transaction won over the step's own, which left nothing behind."""
        cause = getattr(error, "orig", None)
        ours = step.transactional or self._branch.committing
        return cause is not None and ours and self._runtime.store.dialect.is_conflict(cause)

    def _pause(self, repetition: int) -> None:
        self._runtime.store.giving_up.wait(min(0.01 * 2**repetition, 1.0) * random.uniform(0.5, 1.5))

    def _stored_after_all(self, key: str) -> bool:
        """Whether a commit that ended in an error did happen: an error may come behind the reply, or instead of it."""
        branch = self._branch
        if not branch.committing:
            return False
        with self._execution.guarding():
            found = self._runtime.store.find_step(self.run_id, key)
        if found is None or found[0] != "completed":
            return False
        asked = self._ticks()
        self._execution.look()
        if branch.interrupt is not None:
            raise branch.interrupt
        branch.stored(asked)
        return True

    def _fail(
        self,
        step: Step[Any, Any],
        running: StepWrite,
        error: BaseException,
        started: float,
        earlier: list[dict[str, Any]],
    ) -> NoReturn:
        """Record the failed attempt; let the run sleep before the next, or raise what the step ends with."""
        self._runtime.sessions.remove()
        described, delay = self._judge(step, running, error)
        if delay is not None:
            write = self._retrying(running, described, self._ticks() - started, earlier)
            self._suspend("sleeping", write._replace(due_in=delay), due_in=delay)
        self._end_failed(running, described, started)
        if described["kind"] == "business":
            raise self._recorded(failures.rebuild(described, step.raises) or error, described) from error
        self._runtime.step_failed(self._run, running.key, described)
        failed = failures.step_failed(running.key, running.attempts, described)
        raise self._recorded(failed, described) from error

    def _judge(
        self, step: Step[Any, Any], running: StepWrite, error: BaseException
    ) -> tuple[dict[str, Any], int | None]:
        """The error of an attempt as it is stored, and in how many ms the next one follows; null where none does."""
        business = bool(step.raises) and isinstance(error, step.raises)
        described = failures.business(error, step=running.key) if business else None
        if described is not None:
            return described, None
        refused = isinstance(error, ValueRefused | TransactionalRefused | MisplacedCall)
        described = failures.describe(error, "value" if refused else "step", step=running.key)
        final = refused or business
        return described, None if final else self._runtime.retry_of(step).delay_ms(error, running.attempts)

    def _retrying(
        self, running: StepWrite, described: dict[str, Any], elapsed: float, earlier: list[dict[str, Any]]
    ) -> StepWrite:
        """What is stored of an attempt that another follows."""
        finished_at = self._execution.now_ms()
        attempt = {"started_at": finished_at - int(elapsed), "finished_at": finished_at, "error": described}
        return running._replace(
            status="retrying",
            error=failures.dumps(described),
            earlier=_dump_earlier([*earlier, attempt]),
            started_ago=int(elapsed),
        )

    def _limit(self, step: Step[Any, Any], running: StepWrite, earlier: list[dict[str, Any]]) -> Limit | None:
        """How long this attempt may take, and what is stored of it when it takes longer."""
        if step.timeout_ms is None:
            return None
        thread, limit_ms = get_ident(), step.timeout_ms

        def failed(elapsed: float, goes_on: bool) -> StepWrite:
            error = StepTimeout(_late_message(limit_ms, goes_on=goes_on))
            described, delay = self._judge(step, running, error)
            if goes_on:
                failures.describe_stack(described, thread)
            if delay is not None:
                write = self._retrying(running, described, elapsed, earlier)
                return write._replace(due_at=self._execution.now_ms() + delay)
            error_text = failures.dumps(described)
            return running._replace(status="failed", error=error_text, started_ago=int(elapsed), finished_ago=0)

        return Limit(limit_ms, failed)

    def _end_late(self, step: Step[Any, Any], key: str) -> NoReturn:
        """Leave a step that timed out as what is stored of it says, which is what a replay does too."""
        branch = self._branch
        # Before anything is written: on SQLite it may hold the lock that this would wait for.
        self._runtime.sessions.remove()
        late, new = branch.end_late()
        if branch.interrupt is not None:
            raise branch.interrupt
        described: dict[str, Any] = json.loads(late.error or "{}")
        if new:
            self._execution.warn_late(late)
        if late.status == "retrying":
            self._suspend("sleeping", None, due_at=late.due_at)
        if described["kind"] != "business":
            self._runtime.step_failed(self._run, key, described)
        raise self._error_of(step, key, late)

    def _end_failed(self, running: StepWrite, described: dict[str, Any], started: float) -> None:
        self._branch.record(running._replace(status="failed", error=failures.dumps(described)), started)

    def _error_of(self, step: Step[Any, Any], key: str, stored: StoredStep | StepWrite) -> BaseException:
        """The error a recorded failure ended with, the same as when it happened."""
        described: dict[str, Any] = json.loads(stored.error or "{}")
        if described.get("kind") == "business":
            rebuilt = failures.rebuild(described, step.raises)
            if rebuilt is not None:
                return self._recorded(rebuilt, described)
        return self._recorded(failures.step_failed(key, stored.attempts, described), described)

    def _recorded(self, error: BaseException, described: dict[str, Any]) -> BaseException:
        self._execution.recorded_errors.append((error, described))
        return error

    # Where a call is made ---------------------------------------------------------------------

    def _call(self, name: str, input: str | None = None) -> Call:
        """Take the next call of the body."""
        what = f"{_METHODS.get(name.partition(':')[0], name.lstrip('$'))}()"
        step = self._branch.step
        if step is not None:
            raise MisplacedCall(f"{what} was called inside the step {step!r}: call it in the workflow's body")
        self._refuse_foreign_thread(what)
        return self._branch.call(_shortened(name), input)

    def _refuse_foreign_thread(self, what: str) -> None:
        if get_ident() != self._branch.thread:
            raise self._execution.diverge(
                MisplacedCall(
                    f"{what} was called at {caller()} on a thread the run does not own: the order of its calls would "
                    "differ from one execution to the next; call it in the workflow's own thread, or let "
                    "ctx.parallel() or ctx.map() run the functions side by side"
                )
            )

    def _refuse_body_writes(self) -> None:
        if self._runtime.sessions.holds_writes():
            self._runtime.sessions.remove()
            raise UncommittedBodyWrites(
                f"the body of {self._run.workflow!r} wrote through db.session before the call at {caller()}; a body "
                "runs again at every wake-up, so put the write into a step"
            )

    def _hold(self, write: StepWrite, started: float) -> None:
        self._branch.hold(write, started)

    def _ticks(self) -> float:
        return self._execution.store.ticks()


#: What a call's key begins with, and what its caller wrote.
_METHODS = {
    "$emit": "emit",
    "$now": "ctx.now",
    "$parallel": "ctx.parallel",
    "$patch": "ctx.patched",
    "$receive": "ctx.receive",
    "$result": "handle.result",
    "$send": "handle.send",
    "$sleep": "ctx.sleep",
    "$start": "start",
    "$undo": "ctx.on_failure",
    "$wait": "ctx.wait_for",
}


def undone_by(key: str) -> str:
    """The name of the step that a pushed call executes."""
    return key[len(path_of(key)) :].removeprefix("$undo:").partition("#")[0]


def _threads(max_workers: int | None) -> int:
    from .branches import MOST_THREADS
    from .branches import THREADS

    if max_workers is None:
        return THREADS
    if isinstance(max_workers, bool) or not isinstance(max_workers, int) or not 1 <= max_workers <= MOST_THREADS:
        raise ValueError(f"max_workers={max_workers!r}: write a whole number from 1 to {MOST_THREADS}")
    return max_workers


def _shortened(name: str) -> str:
    """A call's name with room for its number and its branch; names of events and messages may be 255 long."""
    if len(name) <= 120:
        return name
    return f"{name[:103]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _late_message(limit_ms: int, *, goes_on: bool) -> str:
    """What is said of a call that took longer than it may."""
    took = f"took longer than its time-out of {phrases.duration(timedelta(milliseconds=limit_ms))}"
    if not goes_on:
        return f"{took}; what it came to is discarded"
    process = f"{socket.gethostname()}:{os.getpid()}"
    return f"{took}; the run waits for its call, in {process!r}, to return, and discards what it comes to"


def _completed(stored: StoredStep) -> StepWrite:
    return StepWrite(
        stored.key,
        stored.position,
        stored.kind,
        "completed",
        stored.input,
        stored.output,
        attempts=stored.attempts,
        due_at=stored.due_at,
    )


def _attempts_before(stored: StoredStep | None) -> tuple[int, list[dict[str, Any]]]:
    """Attempts that ended in an error, and their log; one that was running when its worker died is none."""
    if stored is None:
        return 0, []
    earlier = json.loads(stored.earlier) if stored.earlier else []
    return (stored.attempts - 1 if stored.status == "running" else stored.attempts), earlier


def _dump_earlier(earlier: list[dict[str, Any]]) -> str | None:
    return json.dumps(earlier, ensure_ascii=False, separators=(",", ":")) if earlier else None


__all__ = ["StepFailed", "WorkflowContext", "current_run"]
