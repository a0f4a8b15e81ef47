"""Absurd: a connection for each thread, which claims as many tasks at a time as there are threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurd_sdk import TaskContext

from benchmarks.peers.subjects import lines
from benchmarks.rates import rate

PACKAGES = ("absurd-sdk", "absurdctl")
QUEUE = "benchmark"
RUNS = f"absurd.r_{QUEUE}"

#: Seconds between two looks at an empty queue: its default, and for S4 as short as pays.
POLLING = {"throughput": 0.25, "latency": 0.005}

_already_failed: set[str] = set()


def many_steps(params: Any, ctx: TaskContext) -> int:
    number = 0
    for _ in range(params["count"]):
        number = ctx.step("add-one", lambda number=number: number + 1)
    return number


def fail_once(params: Any, ctx: TaskContext) -> int:
    """Fail behind the last step the first time, so that the second attempt is a replay."""
    number = many_steps(params, ctx)
    if ctx.task_id not in _already_failed:
        _already_failed.add(ctx.task_id)
        raise RuntimeError("the first attempt fails")
    return number


def nap(params: Any, ctx: TaskContext) -> None:
    ctx.sleep_for("nap", lines.MONTH)


def probe(params: Any, ctx: TaskContext) -> None:
    ctx.step("begin", lambda: lines.say_began(params["number"]))


def client_on(url: str) -> Absurd:
    client = Absurd(url, queue_name=QUEUE)
    for task in (many_steps, fail_once, nap, probe):
        client.register_task(task.__name__)(task)

    return client


def set_up(url: str) -> None:
    """Install the schema by its own command, which carries it, and calls psql."""
    command = [str(Path(sys.executable).parent / "absurdctl"), "init", "--database", url]
    subprocess.run(command, check=True)
    Absurd(url).create_queue(QUEUE)


def work(url: str, threads: int, mode: str) -> None:
    # A probe is one task at a time: a single thread that looks often costs less than several.
    number = 1 if mode == "latency" else threads
    options = {"batch_size": threads, "poll_interval": POLLING[mode]}
    for client in [client_on(url) for _ in range(number)]:
        threading.Thread(target=client.start_worker, kwargs=options, daemon=True).start()
    lines.say_ready(*PACKAGES)
    lines.wait_until_closed()


class Client:
    def __init__(self, url: str) -> None:
        self._url = url
        self._absurd = client_on(url)
        self._connection = psycopg.connect(url, autocommit=True)
        self._batch: list[Any] = []

    def enqueue(self, threads: int, seconds: float) -> float:
        @contextmanager
        def opened() -> Iterator[Callable[[], object]]:
            client = client_on(self._url)
            client.spawn("many_steps", {"count": 1})
            yield lambda: client.spawn("many_steps", {"count": 1})
            client.close()

        return rate(threads, seconds, opened)

    def prepare(self, steps: int, number: int) -> None:
        """Spawn the tasks of a drain."""
        self._batch = [self._spawn("many_steps", count=steps) for _ in range(number)]

    def wait(self) -> float:
        """Wait for the drain's end; answer the seconds from the first claim to the last completion."""
        return self._seconds(self._batch)

    def sleep(self, number: int) -> None:
        """Let tasks fall asleep, for which the worker must have begun them."""
        tasks = [self._spawn("nap") for _ in range(number)]
        statement = f"SELECT 1 FROM {RUNS} WHERE task_id = ANY(%s) AND state <> 'sleeping' LIMIT 1"
        lines.wait_until(lambda: self._connection.execute(statement, (tasks,)).fetchone() is None)

    def probe(self, pauses: list[float]) -> list[int]:
        return lines.start_one_by_one(lambda number: self._spawn("probe", number=number), pauses)

    def record(self, steps: int) -> None:
        """Each replay records its own."""

    def replay(self, steps: int) -> float:
        """Seconds that the second attempt takes of a task that failed behind its last step."""
        return self._seconds([self._spawn("fail_once", count=steps)])

    def _spawn(self, task: str, **params: int) -> Any:
        return self._absurd.spawn(task, params)["task_id"]

    def _seconds(self, tasks: list[Any]) -> float:
        statement = f"""
            SELECT count(*), extract(epoch FROM max(completed_at) - min(started_at)) FROM {RUNS}
            WHERE task_id = ANY(%s) AND state = 'completed'
        """
        row: Any = None

        def done() -> bool:
            nonlocal row
            row = self._connection.execute(statement, (tasks,)).fetchone()
            return bool(row[0] == len(tasks))

        lines.wait_until(done)
        return float(row[1])
