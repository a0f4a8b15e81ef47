"""A run, as whoever started it holds it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty
from queue import SimpleQueue
from threading import Thread
from typing import Any
from typing import Generic
from typing import TypeVar

from . import service
from .audit import By
from .children import Finished
from .context import outside_steps
from .context import WorkflowContext
from .durations import to_ms
from .errors import MisplacedCall
from .errors import NotCommitted
from .errors import RunCancelled
from .errors import RunFailed
from .errors import RunNotFound
from .errors import WaitTimeout
from .events import Progress
from .runs import PROGRESS
from .runs import Run
from .runs import RunError
from .runs import RunStatus
from .runtime import Runtime
from .values import loads
from .values import ValueCodec

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handle(Generic[R]):
    """A run: its id, which is valid before the commit, and whether this start made it.

    `created` is false where an older unfinished run held the key.
    """

    id: str
    created: bool
    _runtime: Runtime
    _codec: ValueCodec | None = None

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def run(self) -> Run:
        """The run as it is now. Raises `RunNotFound`."""
        return service.get(self._runtime, self.id)

    def status(self) -> RunStatus:
        """The run's status now."""
        return self.run().status

    def wait(self, timeout: timedelta | float | None = None, poll: float = 0.5) -> RunStatus:
        """Wait until the run has finished; answer its terminal status.

        `timeout` and `poll` are in seconds. Raises `WaitTimeout` when the time is over, also where the database does
        not answer; the run goes on. Raises `NotCommitted` where this session has not committed the start.

        In a workflow's body the wait is recorded: the run that waits is suspended and holds no thread, whatever `poll`.
        There `RunNotFound` says that the run waited for is gone.
        """
        running = outside_steps()
        if running is not None:
            return RunStatus(self._await(running, timeout).status)
        return self._finished(timeout, poll).status

    def result(self, timeout: timedelta | float | None = None, poll: float = 0.5) -> R:
        """Wait as `wait` does and answer what the run returned. Raises `RunFailed` or `RunCancelled`."""
        running = outside_steps()
        if running is not None:
            return self._result_in(running, self._await(running, timeout))
        return self._result_of(self._finished(timeout, poll))

    def output(self) -> R | None:
        """What the run returned; null while it has not finished. Raises `RunFailed` or `RunCancelled`."""
        run = self.run()
        return self._result_of(run) if run.finished else None

    def output_raw(self) -> str | None:
        """The stored JSON text of what the run returned."""
        text = self.run().output_json
        return text if isinstance(text, str) else None

    def send(self, name: str, payload: Any = None) -> None:
        """Send a message to the run, in `db.session`'s transaction; it is kept until `ctx.receive(name)` takes it.

        In a workflow's body it is a recorded call. Raises `RunFinished` where nobody would read it.
        """
        event = service.new_message(self._runtime, self.id, name, payload)
        running = outside_steps()
        if running is not None:
            running.emit_event(event)
        else:
            self._runtime.sessions.emit(event)

    def progress(self) -> Progress | None:
        """What the run said last about how far it is; null if nothing."""
        found = self.get(PROGRESS)
        return None if found is None else Progress(found["done"], found["total"], found["note"])

    def get(self, key: str) -> Any:
        """The value the run published last with `ctx.set(key, …)`; null if none."""
        text = self._runtime.events.read_state(self.id, key)
        return None if text is None else loads(text)

    def cancel(self, *, cancel_children: bool = True, by: By | None = None) -> Run:
        """As `Workflows.cancel`."""
        return service.cancel(self._runtime, self.id, by=by, children=cancel_children)

    def retry(self, *, by: By | None = None) -> Run:
        """As `Workflows.retry`."""
        return service.retry(self._runtime, self.id, by=by)

    def pause(self, *, by: By | None = None) -> Run:
        """As `Workflows.pause`."""
        return service.pause(self._runtime, self.id, by=by)

    def resume(self, *, by: By | None = None) -> Run:
        """As `Workflows.resume`."""
        return service.resume(self._runtime, self.id, by=by)

    def _result_of(self, run: Run) -> R:
        if run.status is RunStatus.CANCELLED:
            raise RunCancelled(f"run {self.id} was cancelled, so it has no result")
        if run.status is RunStatus.FAILED:
            error = run.error
            raise RunFailed(self.id, error.type if error else "unknown", error.message if error else "")
        if self._codec is None or not isinstance(run.output_json, str):
            output: R = run.output
            return output
        loaded: R = self._codec.load(run.output_json, where=f"run {self.id}")
        return loaded

    def _await(self, running: WorkflowContext, timeout: timedelta | float | None) -> Finished:
        """How the run ended, waited for durably by the run that is executed here."""
        if self.id == running.run_id:
            raise MisplacedCall("a run that waits for its own end never ends: return from the body, or raise an error")
        ended = running.await_run(self.id, timeout)
        if ended.status == "gone":
            raise running.recorded(RunNotFound(f"there is no run {self.id}: it was pruned, or deleted by hand"))
        return ended

    def _result_in(self, running: WorkflowContext, ended: Finished) -> R:
        if ended.status == RunStatus.CANCELLED:
            raise running.recorded(RunCancelled(f"run {self.id} was cancelled, so it has no result"))
        if ended.status == RunStatus.FAILED:
            error = RunError.of(ended.error)
            raise running.recorded(RunFailed(self.id, error.type, error.message))
        text = ended.output or "null"
        if self._codec is None:
            output: R = loads(text)
            return output
        loaded: R = self._codec.load(text, where=f"run {self.id}")
        return loaded

    def _finished(self, timeout: timedelta | float | None, poll: float) -> Run:
        if WorkflowContext.is_active():
            raise MisplacedCall(
                "waiting for a run inside a step holds the worker's thread until it ends: wait in the workflow's body, "
                "where it is recorded and holds nothing"
            )
        if self._runtime.sessions.is_pending(self.id):
            raise NotCommitted(
                f"run {self.id} was started in this session, which is not committed: nobody can execute it yet; "
                "call db.session.commit() first"
            )
        limit = None if timeout is None else to_ms(timeout, what="the time-out") / 1000
        pause = max(0.01, to_ms(poll, what="the poll interval") / 1000)
        deadline = float("inf") if limit is None else time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            run = self._look(None if limit is None else max(left, 0.0))
            if run is not None and run.finished:
                return run
            left = deadline - time.monotonic()
            if run is None or left <= 0:
                raise WaitTimeout(f"run {self.id} had not finished after {timeout} s; it goes on")
            time.sleep(min(pause, left))

    def _look(self, seconds: float | None) -> Run | None:
        """The run, or null where the database takes longer than that to answer."""
        if seconds is None:
            return self.run()
        return _within(seconds, self.run)


def _within(seconds: float, call: Callable[[], T]) -> T | None:
    """What `call` answers, if it does in time. It goes on by itself otherwise: no driver can be told to let go."""
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    Thread(target=answer, name="workflows-wait", daemon=True).start()
    try:
        value, error = answers.get(timeout=max(seconds, 0.05))
    except Empty:
        return None
    if error is not None:
        raise error
    return value
