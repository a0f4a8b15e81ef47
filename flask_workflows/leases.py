"""The threads that keep what is executed here ours.

One renews leases, whatever the executing threads are busy with. The other writes results held too long, shows steps
that run long, and stores which timed out: a row that somebody locks may keep it waiting, which must cost no other run
its lease. They live as long as there is something to keep; a worker has a pair, and so has a `tick`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from threading import Lock
from threading import Thread
from typing import TYPE_CHECKING

from .execution import HOLD_MS

if TYPE_CHECKING:
    from .execution import Execution
    from .store import Store

logger = logging.getLogger("flask_workflows")

#: How long a thread may take to end.
STOP_SECONDS = 1.0
_RENEW_SECONDS = HOLD_MS / 1000
_TEND_SECONDS = HOLD_MS / 2 / 1000


class LeaseKeeper:
    """Keeps the executions given to it; leases are renewed at a third of their length.

    `on_stuck` is called when a step has timed out whose call goes on.
    """

    def __init__(self, store: Store, on_stuck: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._on_stuck = on_stuck
        self._live: dict[str, Execution] = {}
        self._lock = Lock()
        self._work = Event()
        self._ending = Event()
        self._threads = [
            Thread(target=self._run, args=(self._renew, _RENEW_SECONDS), name="workflows-leases", daemon=True),
            Thread(target=self._run, args=(self._tend, _TEND_SECONDS), name="workflows-records", daemon=True),
        ]

    def __enter__(self) -> LeaseKeeper:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the threads, if the database lets them; leases run out by themselves."""
        with self._lock:
            self._ending.set()
            self._work.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_SECONDS)

    def add(self, execution: Execution) -> None:
        with self._lock:
            self._live[execution.run.id] = execution
            if not self._work.is_set():
                self._work.set()

    def remove(self, execution: Execution) -> None:
        with self._lock:
            if self._live.get(execution.run.id) is execution:
                del self._live[execution.run.id]

    def live(self) -> list[Execution]:
        with self._lock:
            return list(self._live.values())

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def _run(self, keep: Callable[[list[Execution]], None], pause: float) -> None:
        while not self._ending.is_set():
            self._work.wait()
            try:
                keep(self._live_or_rest())
            except Exception as error:
                # Whatever it is, the next round tries again: without these threads every lease would end.
                self._store.complain("leases and results could not be written, trying again", error)
                self._ending.wait(0.2)
            self._ending.wait(pause)

    def _live_or_rest(self) -> list[Execution]:
        with self._lock:
            if not self._live and not self._ending.is_set():
                self._work.clear()
            return list(self._live.values())

    def _tend(self, executions: list[Execution]) -> None:
        for execution in executions:
            for late in execution.tend():
                self._on_stuck()
                execution.warn_late(late)

    def _renew(self, executions: list[Execution]) -> None:
        executions = [execution for execution in executions if execution.due_for_renewal(self._store.lease_ms / 3)]
        if not executions:
            return
        by_id = {execution.run.id: execution for execution in executions}
        held = sorted((execution.run.id, execution.run.epoch) for execution in executions)
        asked = self._store.ticks()
        renewed, lost = self._store.renew(held)
        for lease in renewed:
            by_id[lease.id].renewed_by(lease, asked)
        for run_id in lost:
            if by_id[run_id].ours():
                logger.warning("the lease of run %s was lost: it is executed elsewhere, or was ended", run_id)
                by_id[run_id].lose()
