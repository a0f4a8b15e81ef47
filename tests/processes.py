"""Worker processes for tests to kill, stop and signal, and what to look at when they are gone.

They are forked from a process that has imported everything, so that a hundred of them are cheap.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import sqlalchemy as sa
from flask import Flask

from flask_workflows.logs import configure_worker_logging
from flask_workflows.worker import Worker
from tests.apps import runtime_of
from tests.busy_app import make_busy_app
from tests.busy_app import workflows
from tests.dbapi import watched_options

T = TypeVar("T")

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.busy_app", "pytest", "psycopg", "sqlalchemy.dialects.postgresql.psycopg"])


class Entry(NamedTuple):
    """A line of the journal."""

    pid: int
    thread: int
    run: str
    words: str


def read_journal(directory: Path) -> list[Entry]:
    path = directory / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    split = (line.split(" ", 3) for line in lines)

    return [Entry(int(pid), int(thread), run, words) for pid, thread, run, words in split]


class Process:
    """A process of our own that writes what it logs to a file."""

    def __init__(self, target: Callable[..., None], *args: object, log: Path) -> None:
        self.log_path = log
        self._process: BaseProcess = _forks.Process(target=_logging_to, args=(str(log), target, *args), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None

        return pid

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def serves(self) -> bool:
        """Whether the worker has begun."""
        return " serves " in self.log

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, as a crash of the machine would."""
        self.send(signal.SIGKILL)
        self._process.join(10)

    def wait(self, seconds: float = 10) -> int:
        """Its exit code. Fails if it does not end in time."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"process {self.pid} still runs after {seconds} s:\n{self.log[-3000:]}"

        return code

    def terminate(self, seconds: float = 10) -> int:
        """Ask it to stop; its exit code."""
        self.send(signal.SIGTERM)

        return self.wait(seconds)


class Fleet:
    """The worker processes of a test, on one database and one directory. None outlives the test."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.processes: list[Process] = []

    def start(self, *, name: str | None = None, concurrency: int | None = None, **config: object) -> Process:
        """Start a worker; `config` holds keys of the app's configuration."""
        arguments = (self.url, str(self.directory), name, concurrency, config)

        return self.run(_work, *arguments)

    def run(self, target: Callable[..., None], *args: object) -> Process:
        log = self.directory / f"log-{len(self.processes)}"
        process = Process(target, *args, log=log)
        self.processes.append(process)

        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()

    # What they did -----------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """Make the file that steps wait for."""
        (self.directory / name).touch()

    def journal(self) -> list[Entry]:
        return read_journal(self.directory)

    def logs(self) -> str:
        return "".join(process.log for process in self.processes)


@contextmanager
def working(app: Flask, *, code: int = 0, **options: Any) -> Iterator[Worker]:
    """A worker on a thread, which has ended with that code when the block is left."""
    codes: list[int] = []
    with app.app_context():
        worker = runtime_of(app).workflows.worker(**options)
    thread = threading.Thread(target=lambda: codes.append(worker.run()), name="runs-a-worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)

    assert codes == [code]


def eventually(condition: Callable[[], T], *, within: float = 15, every: float = 0.02) -> T:
    """Wait until the condition gives something true, and answer it.

    `within` is what a quiet machine needs; up to five times that is waited, as this tells late from never, not fast
    from slow.
    """
    within = max(within, min(5 * within, 120))
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not so within {within} s"
        time.sleep(every)


@cache
def _outside(url: str) -> sa.Engine:
    return sa.create_engine(url, poolclass=sa.NullPool)


def outsider(app: Flask) -> sa.Engine:
    """An engine that shares nothing with the app but its database."""
    return _outside(app.config["SQLALCHEMY_DATABASE_URI"])


def rows(app: Flask, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
    """What a query says."""
    with outsider(app).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement), parameters)]


def execute(app: Flask, statement: str, **parameters: object) -> None:
    """Do it to the database, behind everybody's back."""
    with outsider(app).begin() as connection:
        connection.execute(sa.text(statement), parameters)


def unfinished(app: Flask) -> list[str]:
    """The runs that have not come to their end."""
    return [run for (run,) in rows(app, "SELECT id FROM workflow_runs WHERE finished_at IS NULL")]


def snapshot(app: Flask) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that is stored of runs."""
    ordered = {"workflow_runs": "id", "workflow_steps": "run_id, position", "effects": "id"}

    return {table: rows(app, f"SELECT * FROM {table} ORDER BY {order}") for table, order in ordered.items()}


def waiting(seconds: float, every: float = 0.05) -> Iterator[None]:
    """Go round for so long, for things that are to stay as they are."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(every)


def _logging_to(path: str, target: Callable[..., None], *args: object) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    target(*args)


def _work(url: str, directory: str, name: str | None, concurrency: int | None, config: dict[str, object]) -> None:
    app = make_busy_app(url, directory, **config)
    configure_worker_logging(app)
    with app.app_context():
        worker = workflows.worker(name=name, concurrency=concurrency)
        code = worker.run()
    sys.stderr.flush()
    os._exit(code)


def count_exchanges(url: str, directory: str) -> None:
    """A worker that writes a line to the file `exchanges` for each question it asks the database."""
    lines = os.open(Path(directory) / "exchanges", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def watch(asked: str) -> None:
        # Not what only listens.
        if "data_version" not in asked and "notifies" not in asked:
            os.write(lines, f"{' '.join(asked.split())[:100]}\n".encode())

    _work(url, directory, None, None, {"SQLALCHEMY_ENGINE_OPTIONS": watched_options(url, watch)})
