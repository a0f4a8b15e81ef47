"""The thread that keeps what is executed here ours.

It renews leases, whatever the executing threads are busy with, writes results held too long, and shows steps that run
long. It lives as long as there is something to keep; a worker has one, and so has a `tick`.
"""

from __future__ import annotations

import logging
import time
from threading import Event
from threading import Lock
from threading import Thread
from typing import TYPE_CHECKING

from .execution import HOLD_MS

if TYPE_CHECKING:
    from .execution import Execution
    from .store import Store

logger = logging.getLogger("flask_workflows")

_TEND_SECONDS = HOLD_MS / 2 / 1000


class LeaseKeeper:
    """Keeps the executions given to it; leases are renewed at a third of their length."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live: dict[str, Execution] = {}
        self._lock = Lock()
        self._work = Event()
        self._ending = False
        self._thread = Thread(target=self._run, name="workflows-leases", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the thread; leases run out by themselves."""
        self._ending = True
        self._work.set()

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
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending:
            self._work.wait()
            try:
                self._round()
            except Exception as error:
                # Whatever it is, the next round tries again: without this thread every lease would end.
                self._store.complain("leases could not be renewed, trying again", error)
                time.sleep(0.2)
            time.sleep(_TEND_SECONDS)

    def _round(self) -> None:
        executions = self.live()
        if not executions:
            self._work.clear()
            if self._live:
                self._work.set()
            return
        self._renew([execution for execution in executions if execution.due_for_renewal(self._store.lease_ms / 3)])
        for execution in executions:
            execution.tend()

    def _renew(self, executions: list[Execution]) -> None:
        if not executions:
            return
        by_id = {execution.run.id: execution for execution in executions}
        held = sorted((execution.run.id, execution.run.epoch) for execution in executions)
        renewed, lost = self._store.renew(held)
        for lease in renewed:
            by_id[lease.id].heard(lease.cancel_requested_at is not None)
        for run_id in lost:
            if by_id[run_id].ours():
                logger.warning("the lease of run %s was lost: it is executed elsewhere, or was ended", run_id)
                by_id[run_id].lose()
