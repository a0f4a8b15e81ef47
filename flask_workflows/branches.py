"""Functions of a run that are executed side by side: `ctx.parallel` and `ctx.map`.

The call is recorded when it starts, and each function is a *branch*: a thread, an app context and a session of its own,
and its own order of calls, whose keys begin with the position of the parallel call and the function's number (`2.0/`).
So the record is the same whatever finished first, and each branch is guarded by itself.

A branch that sleeps, waits or is to be tried again gives its thread back at once; its suspension is stored then, as
others may go on for long. While others do, it is taken up again here when its time has come. When none can go on, the
run is suspended until the first of them can. A branch that fails lets the others come to their ends, then the parallel
call raises its error.

Results of branches that end together are written together.
"""

from __future__ import annotations

import contextvars
import json
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any
from typing import TYPE_CHECKING

from .apps import QuietContext
from .errors import UncommittedBodyWrites
from .execution import Branch
from .interrupts import Interrupt
from .interrupts import Suspended
from .store import Change
from .store import StepWrite

if TYPE_CHECKING:
    from .context import WorkflowContext

#: Threads of one parallel call, unless it says otherwise; and the most it may say.
THREADS = 8
MOST_THREADS = 64

#: How often is looked whether an event ended a branch's wait, while others go on.
_LOOK_SECONDS = 1.0
#: Calls written in one statement.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a branch was left: by a value, an error, or an interrupt."""

    value: Any = None
    error: BaseException | None = None
    left: Interrupt | None = None
    #: When it can go on, in ms of the database's clock; null where only an event or somebody else knows.
    due_at: int | None = None
    #: A finished call that is not written yet.
    held: StepWrite | None = None


def run_parallel(
    context: WorkflowContext,
    functions: Sequence[Callable[[], Any]],
    threads: int,
    places: Sequence[str],
    *,
    single: bool = False,
) -> list[Any]:
    """Run the functions side by side; answer what they return, in their order.

    `single` says that each makes one call and nothing else, so that one whose call is recorded needs no thread.
    """
    call = context.next_call("$parallel", json.dumps({"branches": len(functions)}))
    running = StepWrite(call.key, call.position, "parallel", "running", json.dumps({"branches": len(functions)}))
    finished = call.stored is not None and call.stored.status == "completed"
    if call.stored is None:
        context.may_start()
        if functions:
            context.record(running)
    group = _Group(context, call.position, functions, places, single)
    values = error = None
    try:
        values = group.run(min(threads, max(len(functions), 1)))
    except Interrupt:
        raise
    except BaseException as failed:
        error = failed
    if not finished and context.execution.divergence is None:
        status = "completed" if error is None else "failed"
        context.end_parallel(running._replace(status=status, output="null"), call.stored)
    if error is not None:
        raise error
    return values or []


class _Group:
    """The branches of one parallel call."""

    def __init__(
        self,
        context: WorkflowContext,
        position: int,
        functions: Sequence[Callable[[], Any]],
        places: Sequence[str],
        single: bool,
    ) -> None:
        self._context = context
        self._execution = context.execution
        self._parent = context.branch
        self._runtime = context.runtime
        self._functions = functions
        self._places = places
        self._single = single
        self._prefix = f"{self._parent.path}{position}."
        self._ended: dict[int, Ended] = {}
        self._looked = self._execution.store.ticks()

    def run(self, threads: int) -> list[Any]:
        waiting = deque(range(len(self._functions)))
        for number in list(waiting) if self._single else ():
            if self._is_recorded(number):
                waiting.remove(number)
                self._ended[number] = self._on_this_thread(number)
        if waiting:
            with ThreadPoolExecutor(threads, thread_name_prefix="workflows-branch") as pool:
                self._go_on(pool, threads, waiting)
        return self._result()

    def _go_on(self, pool: ThreadPoolExecutor, threads: int, waiting: deque[int]) -> None:
        """Run branches until none can go on."""
        running: dict[Future[Ended], int] = {}
        while True:
            while waiting and len(running) < threads and self._execution.ours():
                number = waiting.popleft()
                if self._ended.pop(number, None) is not None:
                    self._execution.read_anew(self._path(number))
                running[pool.submit(self._run, number)] = number
            if not running:
                return
            done, _ = wait(running, timeout=self._pause(), return_when=FIRST_COMPLETED)
            self._write(future.result() for future in done)
            for future in done:
                self._ended[running.pop(future)] = future.result()
            if running or waiting:
                waiting.extend(number for number in self._can_go_on() if number not in waiting)

    def _path(self, number: int) -> str:
        return f"{self._prefix}{number}/"

    def _write(self, ended: Iterable[Ended]) -> None:
        """Write what ended branches left behind."""
        writes = [one.held for one in ended if one.held is not None]
        for start in range(0, len(writes), _BATCH):
            self._execution.record_all(writes[start : start + _BATCH])

    # Suspended branches while others go on ---------------------------------------------------

    def _suspended(self) -> dict[int, Suspended]:
        return {number: one.left for number, one in self._ended.items() if isinstance(one.left, Suspended)}

    def _pause(self) -> float | None:
        """Seconds until a suspended branch can go on, or is to be looked at."""
        suspended = self._suspended()
        if not suspended:
            return None
        now = self._execution.now_ms()
        dues = [due - now for number in suspended if (due := self._ended[number].due_at) is not None]
        return max(min([_LOOK_SECONDS * 1000, *dues]), 1) / 1000

    def _can_go_on(self) -> list[int]:
        """The suspended branches that are due, or whose event came."""
        suspended, now = self._suspended(), self._execution.now_ms()
        found = [number for number in suspended if (due := self._ended[number].due_at) is not None and due <= now]
        ticks = self._execution.store.ticks()
        if ticks - self._looked >= _LOOK_SECONDS * 1000:
            self._looked = ticks
            by_key = {key: number for number, left in suspended.items() for key in left.waiting}
            if by_key:
                ended = self._execution.store.ended_calls(self._context.run_id, list(by_key))
                found.extend(by_key[key] for key in ended)
        return sorted(set(found))

    # One branch ------------------------------------------------------------------------------

    def _is_recorded(self, number: int) -> bool:
        stored = self._execution.record_of(self._path(number))
        return len(stored) == 1 and stored[0].status == "completed"

    def _on_this_thread(self, number: int) -> Ended:
        return contextvars.copy_context().run(self._execute, number)

    def _run(self, number: int) -> Ended:
        """On a thread of the branch's own."""

        def execute() -> Ended:
            with QuietContext(self._runtime.app):
                try:
                    return self._execute(number)
                finally:
                    self._runtime.sessions.remove()

        return contextvars.Context().run(execute)

    def _execute(self, number: int) -> Ended:
        branch = self._execution.branch(self._path(number))
        try:
            with self._context.on(branch):
                value, error = self._call(number, branch)
            left = branch.interrupt
            if left is not None:
                return Ended(left=left, due_at=self._due_at(left), held=branch.take_held())
            return Ended(value, error, held=branch.take_held())
        finally:
            self._execution.end_branch(branch)

    def _call(self, number: int, branch: Branch) -> tuple[Any, BaseException | None]:
        try:
            value = self._functions[number]()
            if branch.interrupt is None:
                branch.history.ended(self._places[number])
                if self._runtime.sessions.holds_writes():
                    raise UncommittedBodyWrites(
                        f"the function at {self._places[number]} wrote through db.session and returned without a "
                        "commit: put the write into a step"
                    )
        except BaseException as error:
            return None, error
        return value, None

    def _due_at(self, left: Interrupt) -> int | None:
        if not isinstance(left, Suspended):
            return None
        change = left.change
        return self._execution.now_ms() + change.due_in if change.due_in is not None else change.due_at

    # All of them -----------------------------------------------------------------------------

    def _result(self) -> list[Any]:
        execution = self._execution
        if execution.interrupt is not None:
            raise execution.interrupt
        if execution.divergence is not None:
            raise execution.divergence
        stopped = [one.left for one in self._ended.values() if one.left is not None]
        others = [left for left in stopped if not isinstance(left, Suspended)]
        if others:
            self._parent.leave(others[0])
        if stopped:
            self._suspend()
        failed = sorted(number for number, one in self._ended.items() if one.error is not None)
        if failed:
            raise self._error(failed)
        return [self._ended[number].value for number in range(len(self._functions))]

    def _suspend(self) -> None:
        """Let the run wait for the first branch that can go on."""
        suspended = self._suspended()
        waits = any(left.change.status == "waiting" for left in suspended.values())
        dues = [due for number in suspended if (due := self._ended[number].due_at) is not None]
        change = Change("waiting" if waits else "sleeping", due_at=min(dues, default=None))
        waiting = tuple(key for left in suspended.values() for key in left.waiting)
        self._context.suspend(change, None, (), waiting)

    def _error(self, failed: Sequence[int]) -> BaseException:
        """The error of the first function that failed, in the order they were written."""
        error = self._ended[failed[0]].error
        assert error is not None
        for number in failed[1:11]:
            other = self._ended[number].error
            error.add_note(f"function {number} of the parallel call failed too: {type(other).__name__}: {other}"[:500])
        if len(failed) > 11:
            error.add_note(f"and {len(failed) - 11} more")
        return error
