"""S7: how long an event takes to wake its run, alone and beside many open waits of the same name.

    python -m benchmarks.s7 [--url postgresql+psycopg://…] [--waits 100000] [--rounds 300]

Two databases of one server, or two SQLite files, each with a worker on a thread of this process; the rounds alternate
between them, so that whatever else the machine does falls on both. A round starts a run, waits until it waits, then
delivers the one event that matches: measured is from the commit of the event to the line after the wait.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.runtime import Runtime

#: `:numbers` of it, each for a run of its own.
FILL = (
    """INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, attempts, max_attempts,
           losses, created_at, started_at, updated_at)
       SELECT {id}, 'awaiting', 1, 'default', '', 'waiting', '{{"order":0}}', 1, 0, 3, 0, 1, 1, 1 FROM ({numbers}) AS c""",
    """INSERT INTO workflow_steps (run_id, "key", position, kind, status, attempts, started_at)
       SELECT {id}, '$wait:paid', 1, 'wait', 'waiting', 1, 1 FROM ({numbers}) AS c""",
    """INSERT INTO workflow_waits (run_id, "key", number, name, workspace, fields, values_hash, snapshot, after_seq,
           checked)
       SELECT {id}, '$wait:paid', 0, 'paid', '', '["order"]', {hash}, {snapshot}, 0, 1 FROM ({numbers}) AS c""",
)


class Subject:
    """An app on a database of its own."""

    def __init__(self, url: str) -> None:
        self.workflows = Workflows()
        self.workflows.event("paid")
        self.awake: dict[int, float] = {}
        self.reached = threading.Event()
        self.app = Flask("s7")
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, WORKFLOWS_DASHBOARD=False)
        self.db = SQLAlchemy(self.app)
        self.workflows.init_app(self.app)

        @self.workflows.workflow
        def awaiting(ctx: WorkflowContext, order: int) -> None:
            ctx.wait_for("paid", match={"order": order})
            self.awake[order] = time.perf_counter()
            self.reached.set()

        self._awaiting = awaiting
        with self.app.app_context():
            self.db.create_all()

    def fill(self, waits: int) -> None:
        """As many runs that wait for other orders."""
        with self.app.app_context(), self.db.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                numbers = f"SELECT generate_series(1, {waits}) AS n"
                words = {"hash": "encode(sha256(CAST('w' || n AS bytea)), 'hex')", "snapshot": "'1:1:'"}
            else:
                counted = f"SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {waits}"
                numbers = f"WITH RECURSIVE c (n) AS ({counted}) SELECT n FROM c"
                words = {"hash": "lower(hex(randomblob(32)))", "snapshot": "NULL"}
            id = "'0198' || substr('0000000000000000' || CAST(n AS varchar(20)), -12)"
            if connection.dialect.name == "postgresql":
                id = "'0198' || lpad(CAST(n AS text), 12, '0')"
            for statement in FILL:
                connection.exec_driver_sql(statement.format(id=id, numbers=numbers, **words))

    def analyze(self) -> None:
        with self.app.app_context():
            engine = self.db.engine.execution_options(isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql("ANALYZE")

    def round(self, order: int) -> float:
        """Milliseconds from the event to the run."""
        with self.app.app_context():
            run = self._awaiting.spawn(order)
            while not self._waits(run.id):
                time.sleep(0.002)
            self.reached.clear()
            self.workflows.deliver("paid", {"order": order})
            delivered = time.perf_counter()
            assert self.reached.wait(30), "the run was not woken"
        return (self.awake.pop(order) - delivered) * 1000

    def _waits(self, run_id: str) -> bool:
        with self.db.engine.connect() as connection:
            query = sa.text("SELECT 1 FROM workflow_waits WHERE run_id = :run_id AND checked = 1")
            return connection.execute(query, {"run_id": run_id}).first() is not None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with self.app.app_context():
            worker = self.workflows.worker(concurrency=2)

        def work() -> None:
            with self.app.app_context():
                worker.run()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join()

    def close(self) -> None:
        runtime: Runtime = self.app.extensions["workflows"]
        runtime.close()
        with self.app.app_context():
            self.db.engine.dispose()


@contextlib.contextmanager
def databases(url: str | None, count: int) -> Iterator[list[str]]:
    """So many empty databases, on a PostgreSQL server or as files."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="s7-") as directory:
            yield [f"sqlite:///{Path(directory) / str(number)}.sqlite3" for number in range(count)]
        return
    server = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    names = [f"flask_workflows_s7_{secrets.token_hex(4)}" for _ in range(count)]
    with server.connect() as connection:
        for name in names:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield [sa.make_url(url).set(database=name).render_as_string(hide_password=False) for name in names]
    finally:
        with server.connect() as connection:
            for name in names:
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def measure(url: str | None, *, waits: int, rounds: int, analyze: bool = True) -> tuple[list[float], list[float]]:
    """The wake-ups alone and beside so many waits, in ms."""
    with databases(url, 2) as urls:
        alone, beside = subjects = [Subject(each) for each in urls]
        try:
            with alone.working(), beside.working():
                for subject in subjects:
                    subject.round(0)
                # The worker made its plans when the tables were empty, as after a deploy.
                beside.fill(waits)
                if analyze:
                    for subject in subjects:
                        subject.analyze()
                found: tuple[list[float], list[float]] = ([], [])
                for number in range(1, rounds + 1):
                    for index in (0, 1) if number % 2 else (1, 0):
                        found[index].append(subjects[index].round(number))
        finally:
            for subject in subjects:
                subject.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a PostgreSQL server; SQLite without it")
    parser.add_argument("--waits", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--no-analyze", action="store_true", help="as right after a burst of starts")
    options = parser.parse_args()
    alone, beside = measure(options.url, waits=options.waits, rounds=options.rounds, analyze=not options.no_analyze)
    for name, found in (("alone", alone), (f"beside {options.waits:,} waits", beside)):
        p99 = statistics.quantiles(found, n=100)[98]
        print(f"{name:24} p50 {statistics.median(found):6.2f} ms   p99 {p99:6.2f} ms   n {len(found)}")
    print(f"ratio of the medians     {statistics.median(beside) / statistics.median(alone):6.2f}")


if __name__ == "__main__":
    main()
