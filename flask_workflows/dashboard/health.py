"""Whether the app can work with its database, for probes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..explain import PATIENCE
from ..store import reading as read

if TYPE_CHECKING:
    from .visit import Visit

logger = logging.getLogger("flask_workflows")

#: For so many seconds tables that were right are taken to be so: anybody may ask, and looking reads the catalogue.
_TRUSTED = 10.0


class Health:
    """Looks, and logs what is wrong when that changes. Who asks is told yes or no and nothing else."""

    def __init__(self) -> None:
        self._tables_right_until = 0.0
        self._said: str | None = None

    def is_good(self, visit: Visit, *, deep: bool) -> bool:
        """Whether the database answers and has the right tables; `deep`, also whether somebody works on what is due."""
        try:
            problem = self._problem(visit, deep)
        except Exception as error:
            # Without its message: drivers put addresses in there.
            problem = f"the database does not answer ({type(error).__name__})"
        if problem != self._said:
            self._said = problem
            if problem is not None:
                logger.warning("health check: %s", problem)
        return problem is None

    def _problem(self, visit: Visit, deep: bool) -> str | None:
        idle: list[str] = []
        with visit.reading() as connection:
            now = visit.now(connection)
            if deep:
                workers = read.live_workers(connection, now)
                due = read.due_queues(connection, now - PATIENCE)
                idle = [queue for queue in due if not any(worker.serves(queue) for worker in workers)]
        if time.monotonic() >= self._tables_right_until:
            problem = visit.schema_problem()
            if problem is not None:
                return problem
            self._tables_right_until = time.monotonic() + _TRUSTED
        return f"runs are due and no live worker serves their queue: {', '.join(idle)}" if idle else None
