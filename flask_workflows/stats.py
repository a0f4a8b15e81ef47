"""How many runs this process ended, and how: counted in memory, added to `workflow_stats` now and then."""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterable
from threading import Lock

from .store import ClaimedRun
from .store import Store
from .store.rows import Ended


class Tally:
    """Counts for one process, so that no run costs a statement.

    A worker adds them to the table with its heartbeat, every 10 seconds, and at its end; a tick and inline execution
    when nothing more is due. A process that is killed takes what it counted since then with it. Where the database
    fails in the middle of adding, the counts are kept for the next time, and may then have been added twice.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = Lock()
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._pid = os.getpid()

    def ended(self, workflow: str, outcome: str, busy_ms: float = 0) -> None:
        """A run of the workflow was completed, failed or cancelled here, by an execution that took so long."""
        self._add(workflow, outcome, 1, int(busy_ms))

    def claimed(self, batch: Iterable[ClaimedRun]) -> None:
        """Note those of the runs just claimed that were taken over from a lost worker."""
        for run in batch:
            if run.taken_over:
                self._add(run.workflow, "lost", 1, 0)

    def flush(self) -> None:
        """Add what was counted to the table; no statement where that is nothing. Raises for no fault of the database."""
        with self._lock:
            counts, self._counts = self._counts, {}
            if self._pid != os.getpid():
                # What a forked process found in its memory, its parent adds.
                self._pid, counts = os.getpid(), {}
        if not counts:
            return
        rows = [Ended(*key, count, busy_ms) for key, (count, busy_ms) in counts.items()]
        try:
            self._store().count_ended(rows)
        except Exception as error:
            self._store().complain("runs that ended could not be counted, trying again", error)
            for row in rows:
                self._add(*row)

    def _add(self, workflow: str, outcome: str, count: int, busy_ms: int) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._counts = os.getpid(), {}
            counted = self._counts.setdefault((workflow, outcome), [0, 0])
            counted[0] += count
            counted[1] += busy_ms
