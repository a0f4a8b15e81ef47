"""The limit: the smallest engine that is still correct, driven as fast as the database goes.

Runs are claimed 32 at a time under a lease and a raised epoch. Each step is one statement, fenced by the epoch; the
last one ends the run. Nothing else is done: no values are bound, encoded or decoded, no context, no log, no history.
On PostgreSQL it is a pgbench script, and Python threads only where pgbench is not to be found.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sqlite3
import subprocess
import tempfile
import threading
import time
from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import closing
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import LiteralString

import psycopg
import sqlalchemy as sa

from benchmarks.databases import Database
from benchmarks.databases import find_pgbench
from benchmarks.rates import rate
from benchmarks.rates import timed

BATCH = 32

_LISTEN: LiteralString = "LISTEN limit_runs"
_NOTIFY: LiteralString = "NOTIFY limit_runs"


class Limit(ABC):
    """The tables of the smallest engine in a database, and how fast they take and give runs."""

    #: How the page calls it.
    name: str

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._rates: dict[tuple[int, int], float] = {}

    @abstractmethod
    def enqueue(self, clients: int) -> float:
        """Insert runs, a commit for each; answer how many a second."""

    def drain(self, clients: int, steps: int) -> float:
        """Execute runs of so many steps; answer how many a second."""
        key = clients, steps
        if key not in self._rates:
            self._rates[key] = self._drain(clients, steps, batches=2)
        batches = max(2, round(self._rates[key] * self._seconds / BATCH / clients))
        self._rates[key] = self._drain(clients, steps, batches)

        return self._rates[key]

    @abstractmethod
    def _drain(self, clients: int, steps: int, batches: int) -> float:
        """Drain exactly as many runs as the clients claim in so many batches each."""


# PostgreSQL --------------------------------------------------------------------------------

_TABLES: LiteralString = """
CREATE TABLE limit_runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch integer NOT NULL DEFAULT 0,
    due_at timestamptz DEFAULT clock_timestamp(),
    input text NOT NULL DEFAULT '{"number": 1}',
    output text
);
CREATE INDEX limit_runs_due ON limit_runs (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE limit_steps (
    run_id bigint NOT NULL, position integer NOT NULL, output text NOT NULL, PRIMARY KEY (run_id, position)
);
"""

_INSERT: LiteralString = "INSERT INTO limit_runs DEFAULT VALUES"

_CLAIM: LiteralString = """
WITH due AS MATERIALIZED (
    SELECT id FROM limit_runs WHERE due_at <= now() ORDER BY due_at LIMIT 32 FOR NO KEY UPDATE SKIP LOCKED
), mine AS (
    UPDATE limit_runs r SET epoch = epoch + 1, due_at = now() + interval '30 s' FROM due WHERE r.id = due.id
    RETURNING r.id
)
"""

_STEP: LiteralString = """
WITH fence AS (SELECT id FROM limit_runs WHERE id = {run} AND epoch = 1 FOR NO KEY UPDATE)
INSERT INTO limit_steps SELECT id, {position}, '1' FROM fence
"""

_LAST_STEP: LiteralString = """
WITH fence AS (UPDATE limit_runs SET due_at = NULL, output = '1' WHERE id = {run} AND epoch = 1 RETURNING id)
INSERT INTO limit_steps SELECT id, {position}, '1' FROM fence
"""


def make_limit(database: Database, seconds: float) -> Limit:
    """The best one there is for the database."""
    if database.kind == "sqlite":
        return SQLiteLimit(database, seconds)
    pgbench = find_pgbench()
    return ThreadLimit(database, seconds) if pgbench is None else PgbenchLimit(database, seconds, pgbench)


class _PostgresLimit(Limit):
    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(database, seconds)
        with closing(database.connect()) as connection:
            connection.execute(_TABLES)

    def _fill(self, number: int) -> None:
        with closing(self._database.connect()) as connection:
            connection.execute("TRUNCATE limit_runs, limit_steps")
            connection.execute("INSERT INTO limit_runs (epoch) SELECT 0 FROM generate_series(1, %s)", (number,))
        self._database.tidy("limit_runs", "limit_steps")


class PgbenchLimit(_PostgresLimit):
    name = "pgbench"

    def __init__(self, database: Database, seconds: float, pgbench: str) -> None:
        super().__init__(database, seconds)
        self._pgbench = pgbench
        self._url = sa.make_url(database.url)

    def enqueue(self, clients: int) -> float:
        return self._run(f"{_INSERT};\n", clients, "--time", str(max(1, int(self._seconds))))

    def _drain(self, clients: int, steps: int, batches: int) -> float:
        self._fill((batches + 1) * clients * BATCH)
        # A script executes one run, so that each statement is prepared once and repeated often; every 32nd claims.
        lines = ["\\if :left = 0", f"{_flat(_CLAIM)} SELECT array_agg(id) AS claimed FROM mine \\gset"]
        lines += [f"\\set left {BATCH}", "\\endif"]
        for position in range(1, steps + 1):
            text = _LAST_STEP if position == steps else _STEP
            lines.append(_flat(text.format(run="(CAST(:claimed AS bigint[]))[:left]", position=position)) + ";")
        lines.append("\\set left :left - 1")

        return self._run("\n".join(lines) + "\n", clients, "--define=left=0", "--transactions", str(batches * BATCH))

    def _run(self, script: str, clients: int, *arguments: str) -> float:
        """Run the script over and over; answer how often it ran in a second."""
        threads = min(clients, os.cpu_count() or 1)
        with tempfile.TemporaryDirectory(prefix="flask-workflows-bench-") as directory:
            file = Path(directory) / "script.sql"
            file.write_text(script)
            command = [self._pgbench, "--no-vacuum", "--protocol=prepared", f"--file={file}", *arguments]
            command += [f"--client={clients}", f"--jobs={threads}", self._database.name]
            done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)

        found = re.search(r"tps = ([\d.]+)", done.stdout)
        if done.returncode != 0 or found is None:
            raise RuntimeError(f"pgbench failed: {done.stderr[-2_000:]}")
        return float(found[1])

    def _environment(self) -> dict[str, str]:
        # Each client runs a statement only a few times, but is to plan it once as the engine does.
        return os.environ | {
            "PGHOST": self._url.host or "",
            "PGPORT": str(self._url.port or 5432),
            "PGUSER": self._url.username or "",
            "PGPASSWORD": str(self._url.password or ""),
            "PGOPTIONS": "-c plan_cache_mode=force_generic_plan",
        }


class ThreadLimit(_PostgresLimit):
    name = "Python threads"

    def enqueue(self, clients: int) -> float:
        return rate(clients, self._seconds, self._inserting)

    @contextmanager
    def _inserting(self) -> Iterator[Callable[[], object]]:
        with closing(self._database.connect()) as connection:
            connection.prepare_threshold = 1
            yield lambda: connection.execute(_INSERT)

    def _drain(self, clients: int, steps: int, batches: int) -> float:
        number = batches * clients * BATCH
        self._fill(number)
        barrier = threading.Barrier(clients + 1)

        def client() -> None:
            with closing(self._database.connect()) as connection:
                connection.prepare_threshold = 1
                barrier.wait()
                while claimed := connection.execute(_CLAIM + "SELECT id FROM mine").fetchall():
                    for (run,) in claimed:
                        _execute_run(connection, run, steps)

        return number / timed(client, clients, barrier)


def _execute_run(connection: psycopg.Connection, run: int, steps: int) -> None:
    for position in range(1, steps + 1):
        text = _LAST_STEP if position == steps else _STEP
        statement = text.format(run="%(run)s", position="%(position)s")
        connection.execute(statement, {"run": run, "position": position})


def _flat(statement: str) -> str:
    return " ".join(statement.split())


# SQLite ------------------------------------------------------------------------------------

_SQLITE_TABLES = """
CREATE TABLE IF NOT EXISTS limit_runs (
    id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL DEFAULT 0, due_at REAL DEFAULT (julianday('now')),
    input TEXT NOT NULL DEFAULT '{"number": 1}', output TEXT
);
CREATE INDEX IF NOT EXISTS limit_runs_due ON limit_runs (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS limit_steps (
    run_id INTEGER NOT NULL, position INTEGER NOT NULL, output TEXT NOT NULL, PRIMARY KEY (run_id, position)
);
"""

_SQLITE_CLAIM = """
UPDATE limit_runs SET epoch = epoch + 1, due_at = julianday('now', '+30 seconds')
WHERE id IN (SELECT id FROM limit_runs WHERE due_at <= julianday('now') ORDER BY due_at LIMIT 32)
RETURNING id
"""


class SQLiteLimit(Limit):
    """One thread drains, however many clients are asked for: SQLite has one writer."""

    name = "raw sqlite3"

    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(database, seconds)
        self._file = database.name.replace("app.sqlite3", "limit.sqlite3")
        self._writing = threading.Lock()
        with closing(self._connect()) as connection:
            connection.executescript(_SQLITE_TABLES)

    def enqueue(self, clients: int) -> float:
        return rate(clients, self._seconds, self._inserting)

    @contextmanager
    def _inserting(self) -> Iterator[Callable[[], object]]:
        with closing(self._connect()) as connection:

            def insert() -> None:
                with self._writing:
                    connection.execute("INSERT INTO limit_runs DEFAULT VALUES")

            yield insert

    def _drain(self, clients: int, steps: int, batches: int) -> float:
        with closing(self._connect()) as connection:
            connection.executescript("DELETE FROM limit_runs; DELETE FROM limit_steps")
            number = batches * clients * BATCH
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO limit_runs (epoch) VALUES (?)", ((0,) for _ in range(number)))
            connection.execute("COMMIT")

            began = time.perf_counter()
            while claimed := connection.execute(_SQLITE_CLAIM).fetchall():
                for (run,) in claimed:
                    _execute_sqlite_run(connection, run, steps)
            return number / (time.perf_counter() - began)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=30)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

        return connection


def _execute_sqlite_run(connection: sqlite3.Connection, run: int, steps: int) -> None:
    for position in range(1, steps + 1):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO limit_steps SELECT id, ?, '1' FROM limit_runs WHERE id = ? AND epoch = 1", (position, run)
        )
        if position == steps:
            connection.execute("UPDATE limit_runs SET due_at = NULL, output = '1' WHERE id = ? AND epoch = 1", (run,))
        connection.execute("COMMIT")


# Waking up ---------------------------------------------------------------------------------


def wake_latencies(database: Database, pauses: Iterable[float]) -> list[float]:
    """Milliseconds from a commit to the claim by a process that does nothing but wait for the notification."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer_notifications, args=(database.conninfo, theirs), daemon=True)
    process.start()
    # Ours alone now: should the process die, receiving fails instead of waiting.
    theirs.close()
    latencies = []
    try:
        assert ours.recv() == "listening"
        with closing(database.connect()) as connection:
            for pause in pauses:
                time.sleep(pause)
                before = time.monotonic_ns()
                connection.execute(_INSERT)
                connection.execute(_NOTIFY)
                latencies.append((ours.recv() - before) / 1e6)
    finally:
        process.terminate()
        process.join()

    return latencies


def _answer_notifications(conninfo: str, pipe: Connection) -> None:
    with (
        closing(psycopg.connect(conninfo, autocommit=True)) as listening,
        closing(psycopg.connect(conninfo, autocommit=True)) as claiming,
    ):
        claiming.prepare_threshold = 1
        listening.execute(_LISTEN)
        pipe.send("listening")
        for _ in listening.notifies():
            if claiming.execute(_CLAIM + "SELECT id FROM mine").fetchall():
                pipe.send(time.monotonic_ns())
