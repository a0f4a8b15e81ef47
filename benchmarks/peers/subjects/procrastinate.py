"""Procrastinate: asynchronous jobs on one event loop, woken by notifications. A job has no steps and no replay."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from procrastinate import App
from procrastinate import PsycopgConnector
from procrastinate import SyncPsycopgConnector

from benchmarks.peers.subjects import lines
from benchmarks.rates import rate

PACKAGES = ("procrastinate",)


async def add_one(number: int) -> int:
    return number + 1


async def probe(number: int) -> None:
    lines.say_began(number)


def app_on(connector: Any) -> App:
    app = App(connector=connector)
    for task in (add_one, probe):
        app.task(name=task.__name__)(task)

    return app


def set_up(url: str) -> None:
    with app_on(SyncPsycopgConnector(conninfo=url)).open() as app:
        app.schema_manager.apply_schema()


def work(url: str, concurrency: int, mode: str) -> None:
    # A notification tells of each job: nothing is to be set for S4.
    threading.Thread(target=end_when_closed, daemon=True).start()
    asyncio.run(run_worker(url, concurrency))


async def run_worker(url: str, concurrency: int) -> None:
    # A connection for each job, one that listens, one to fetch by.
    app = app_on(PsycopgConnector(conninfo=url, min_size=concurrency + 2, max_size=concurrency + 2))
    async with app.open_async():
        worker = asyncio.create_task(app.run_worker_async(concurrency=concurrency, install_signal_handlers=False))
        await asyncio.sleep(1)
        lines.say_ready(*PACKAGES)
        await worker


def end_when_closed() -> None:
    lines.wait_until_closed()
    os._exit(0)


class Client:
    def __init__(self, url: str) -> None:
        self._app = app_on(SyncPsycopgConnector(conninfo=url, min_size=4, max_size=8))
        self._app.open()
        self._connection = psycopg.connect(url, autocommit=True)
        self._batch: list[int] = []

    def _task(self, name: str) -> Any:
        return self._app.tasks[name]

    def enqueue(self, threads: int, seconds: float) -> float:
        task = self._task("add_one")

        @contextmanager
        def opened() -> Iterator[Callable[[], object]]:
            task.defer(number=1)
            yield lambda: task.defer(number=1)

        return rate(threads, seconds, opened)

    def prepare(self, steps: int, number: int) -> None:
        """Defer the jobs of a drain."""
        assert steps == 1
        self._batch = self._task("add_one").batch_defer(*[{"number": 1}] * number)

    def wait(self) -> float:
        """Wait for the drain's end; answer the seconds from the first start to the last success."""
        statement = """
            SELECT count(*) FILTER (WHERE type = 'succeeded'), extract(epoch FROM max(at) - min(at))
            FROM procrastinate_events WHERE job_id = ANY(%s) AND type IN ('started', 'succeeded')
        """
        row: Any = None

        def done() -> bool:
            nonlocal row
            row = self._connection.execute(statement, (self._batch,)).fetchone()
            return bool(row[0] == len(self._batch))

        lines.wait_until(done)
        return float(row[1])

    def sleep(self, number: int) -> None:
        """Defer jobs to next month."""
        self._task("add_one").configure(schedule_in={"seconds": lines.MONTH}).batch_defer(*[{"number": 1}] * number)

    def probe(self, pauses: list[float]) -> list[int]:
        task = self._task("probe")
        return lines.start_one_by_one(lambda number: task.defer(number=number), pauses)
