"""DBOS: a queue without limits, so that one claim takes all there is, on a pool of as many threads as asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from dbos import DBOS
from dbos import DBOSClient
from dbos import DBOSConfig

from benchmarks.peers.subjects import lines
from benchmarks.rates import rate

PACKAGES = ("dbos",)
QUEUE = "benchmark"

#: Seconds between two looks at the queue: its default, and for S4 as short as pays.
POLLING = {"throughput": 1.0, "latency": 0.005}


@DBOS.step()
def add_one(number: int) -> int:
    return number + 1


@DBOS.step()
def begin(number: int) -> None:
    lines.say_began(number)


@DBOS.workflow()
def many_steps(count: int) -> int:
    number = 0
    for _ in range(count):
        number = add_one(number)
    return number


@DBOS.workflow()
def probe(number: int) -> None:
    begin(number)


def launch(url: str, threads: int) -> None:
    config: DBOSConfig = {
        "name": "benchmark",
        "system_database_url": url,
        "application_version": "1",
        "max_executor_threads": threads,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()


def set_up(url: str) -> None:
    """Make the tables, which a client does not."""
    launch(url, 1)
    DBOS.destroy()


def work(url: str, threads: int, mode: str) -> None:
    launch(url, threads)
    DBOS.register_queue(QUEUE, polling_interval_sec=POLLING[mode])
    # Its queue threads are started by one that looks for new queues once a second.
    time.sleep(1.5)
    lines.say_ready(*PACKAGES)
    lines.wait_until_closed()


class Client:
    def __init__(self, url: str) -> None:
        self._client = DBOSClient(system_database_url=url, system_database_pool_size=8)
        self._engine = sa.create_engine(url)
        self._on_sqlite = self._engine.dialect.name == "sqlite"
        self._batch: list[str] = []

    def _enqueue(self, workflow: str, *arguments: Any, **options: Any) -> str:
        handle = self._client.enqueue({"queue_name": QUEUE, "workflow_name": workflow, **options}, *arguments)
        return str(handle.get_workflow_id())

    def enqueue(self, threads: int, seconds: float) -> float:
        @contextmanager
        def opened() -> Iterator[Callable[[], object]]:
            self._enqueue("many_steps", 1)
            yield lambda: self._enqueue("many_steps", 1)

        return rate(threads, seconds, opened)

    def prepare(self, steps: int, number: int) -> None:
        """Enqueue the runs of a drain."""
        with ThreadPoolExecutor(4) as pool:
            self._batch = list(pool.map(lambda _: self._enqueue("many_steps", steps), range(number)))

    def wait(self) -> float:
        """Wait for the drain's end; answer the seconds from the first claim to the last completion."""
        return self._seconds(self._batch)

    def sleep(self, number: int) -> None:
        """Enqueue workflows for next month: one that sleeps inside would hold a thread."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self._enqueue("many_steps", 1, delay_seconds=lines.MONTH), range(number)))

    def probe(self, pauses: list[float]) -> list[int]:
        return lines.start_one_by_one(lambda number: self._enqueue("probe", number), pauses)

    def record(self, steps: int) -> None:
        """Execute the run that replays will be forked from."""
        self._batch = [self._enqueue("many_steps", steps)]
        self._seconds(self._batch)

    def replay(self, steps: int) -> float:
        """Seconds that a fork takes which finds all its steps recorded."""
        fork = self._client.fork_workflow(self._batch[0], steps + 1, queue_name=QUEUE)
        return self._seconds([fork.get_workflow_id()])

    def _seconds(self, ids: list[str]) -> float:
        unfinished = "status IN ('ENQUEUED', 'PENDING')"
        # The last one alone first, as that costs a worker little.
        lines.wait_until(lambda: not self._rows("1", f"workflow_status WHERE {unfinished}", ids[-1:]))
        lines.wait_until(lambda: not self._rows("1", f"workflow_status WHERE {unfinished}", ids))
        span = "count(*), min(started_at_epoch_ms), max(completed_at)"
        completed, began, ended = self._rows(span, "workflow_status WHERE status = 'SUCCESS'", ids)[0]
        if completed != len(ids):
            raise RuntimeError(f"of {len(ids)} workflows {completed} succeeded")
        if self._on_sqlite:
            # There these are whole seconds; a step's are not.
            span = "min(started_at_epoch_ms), max(completed_at_epoch_ms)"
            began, ended = self._rows(span, "operation_outputs WHERE true", ids)[0]

        return float(max(ended - began, 1)) / 1_000

    def _rows(self, columns: str, source: str, ids: list[str]) -> list[Any]:
        schema = "" if self._on_sqlite else "dbos."
        statement = sa.text(f"SELECT {columns} FROM {schema}{source} AND workflow_uuid IN :ids")
        with self._engine.connect() as connection:
            return list(connection.execute(statement.bindparams(sa.bindparam("ids", expanding=True)), {"ids": ids}))
