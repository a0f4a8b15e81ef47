"""The year itself, day by day."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta
from datetime import UTC

from flask import Flask

from benchmarks.databases import Database
from benchmarks.year import app as app_module
from benchmarks.year.app import create_app
from benchmarks.year.app import db
from benchmarks.year.app import kind_of
from benchmarks.year.app import workflows
from benchmarks.year.growth import Day
from benchmarks.year.growth import PostgreSQLSizes
from benchmarks.year.growth import Sizes
from benchmarks.year.growth import SQLiteSizes
from benchmarks.year.written import DAY_MS
from benchmarks.year.written import Written
from flask_workflows.runtime import Runtime
from flask_workflows.service import prune
from flask_workflows.testing import FixedClock
from flask_workflows.worker import KEEP_WORKERS_MS

#: How often a day what is due is executed: every four hours.
SLOTS = 6
SLOT = timedelta(days=1) / SLOTS
#: At 04:00, after `WORKFLOWS_PRUNE_AT`.
PRUNE_SLOT = 1
NOON = 3
#: What a worker with time on its hands asks for at once.
CLAIMED = 32
IDLE_CLAIMS = 20
#: A year in 73 points.
LOOK_DAYS = 5
#: So many of a day's runs are started and executed by the engine: each week all workflows, as often as in the mix.
EXECUTED = 14
#: Their numbers begin here, so that they are not those of written ones.
FIRST_EXECUTED = 10_000_000


class Year:
    """An app with so many runs a day, some of which are executed and the rest is written."""

    def __init__(self, database: Database, runs_per_day: int) -> None:
        self.app: Flask = create_app(database.url)
        self.clock = FixedClock(datetime(2027, 1, 1, tzinfo=UTC))
        workflows.clock = self.clock
        self.runtime: Runtime = self.app.extensions["workflows"]
        #: So many a slot; the children of batches, 3 of 100 runs, come on top.
        self._written_per_slot = max(1, round((runs_per_day * 0.97 - EXECUTED) / SLOTS))
        self._number = 0
        self._due: list[float] = []
        self._idle: list[float] = []
        self._last_executed = range(FIRST_EXECUTED, FIRST_EXECUTED)
        with self.app.app_context():
            sizes = PostgreSQLSizes if database.kind == "postgresql" else SQLiteSizes
            self.sizes: Sizes = sizes(db.engine)

    def days(self, count: int) -> Iterator[Day]:
        """Live through so many days; tell of every fifth, and of the last."""
        with self.app.app_context():
            writing = self._begin()
            for number in range(1, count + 1):
                pruned, seconds = self._day(writing)
                if number % LOOK_DAYS == 0 or number == count:
                    tables, free = self.sizes.look()
                    yield Day(number, tables, free, pruned, seconds, self._due, self._idle)
                    self._due, self._idle = [], []

    def close(self) -> None:
        workflows.clock = None
        self.runtime.close()
        with self.app.app_context():
            db.engine.dispose()

    def _begin(self) -> Written:
        """Execute one run that fails, for the errors of those that are written."""
        app_module.dunning.start(0)
        db.session.commit()
        self.runtime.drain()
        with db.engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT s.error, r.error, r.cause FROM workflow_runs r JOIN workflow_steps s ON s.run_id = r.id "
                "WHERE r.status = 'failed' AND s.status = 'failed'"
            ).one()
        return Written(self.runtime.store, tuple(found))

    def _day(self, writing: Written) -> tuple[int, float]:
        """How many runs were pruned, and in how many seconds."""
        pruned, seconds = 0, 0.0
        self._work()
        for slot in range(SLOTS):
            numbers = self._next(self._written_per_slot)
            writing.start(numbers[0], numbers[-1])
            self._claim(writing, measured=slot == NOON)
            writing.execute()
            self._count(writing)
            if slot == NOON:
                self._execute()
            self.runtime.drain()
            if slot == PRUNE_SLOT:
                pruned, seconds = _timed(lambda: prune(self.runtime))
                seconds /= 1000
            self._settle_statistics()
            if slot in (PRUNE_SLOT, SLOTS - 1):
                self.sizes.vacuum()
            self.clock.advance(SLOT)
        return pruned, seconds

    def _work(self) -> None:
        """Two workers begin each day, and those of the day before end; none says goodbye."""
        for name in ("web-1", "web-2"):
            self.runtime.store.save_worker(
                id=f"{name}:{self._number}", name=name, host=name, pid=47, queues=None, workflows="[]", concurrency=8
            )
        self.runtime.store.forget_workers(KEEP_WORKERS_MS)

    def _claim(self, writing: Written, *, measured: bool) -> None:
        """Claim all that is due; `measured` in batches as workers do, and in vain when nothing is left."""
        if not measured:
            writing.claim(100_000)
            return
        while True:
            claimed, ms = _timed(lambda: writing.claim(CLAIMED))
            if claimed < CLAIMED:
                break
            self._due.append(ms)
        for _ in range(IDLE_CLAIMS):
            self._idle.append(_timed(lambda: writing.claim(CLAIMED))[1])

    def _execute(self) -> None:
        """Start the mix of workflows for the engine, and give the approvals that were started a day ago."""
        for number in self._last_executed:
            if kind_of(number) == "approval" and number % 2 == 0:
                workflows.emit("approved", {"number": number})
        last = self._last_executed.stop
        self._last_executed = range(last, last + EXECUTED)
        for number in self._last_executed:
            getattr(app_module, kind_of(number)).start(number)
        db.session.commit()

    def _count(self, writing: Written) -> None:
        now = self.runtime.store.now()
        quarter = now // 900_000 * 900_000
        quarters = [quarter + 900_000 * i for i in range(DAY_MS // 900_000 // SLOTS)]
        writing.count(quarters, self._written_per_slot // len(quarters))

    def _settle_statistics(self) -> None:
        """PostgreSQL's own, of rows that changed, which it would otherwise hear of a while later."""
        if self.runtime.store.dialect.name == "postgresql":
            self.runtime.store.once(lambda c: c.execute("SELECT pg_stat_force_next_flush()"))

    def _next(self, count: int) -> range:
        first = self._number + 1
        self._number += count
        return range(first, self._number + 1)


def _timed(act: Callable[[], int]) -> tuple[int, float]:
    """What it answers, and how many ms it took."""
    began = time.perf_counter()
    answer = act()
    return answer, (time.perf_counter() - began) * 1000
