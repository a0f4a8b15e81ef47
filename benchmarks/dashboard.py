"""Measures the pages and the JSON list where there are very many runs: `python -m benchmarks.dashboard`.

A database is filled with finished runs and their steps, some thousand live ones, a run of 2,000 steps and one with a
value of 5 MB. Each page is then asked for through Flask's test client, without what the site keeps for a while, and the
plan of each of its statements is looked at. What scans a large table, or takes over 100 ms in the median, is named.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import closing
from contextlib import contextmanager
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field
from statistics import median
from typing import Any

import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from benchmarks.databases import Database
from benchmarks.databases import fresh_database
from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.dashboard.routes import Route
from flask_workflows.dashboard.visit import Kept
from tests import apps
from tests.databases import PostgresServer
from tests.databases import shared_server

TARGET_MS = 100
CHUNK = 50_000
DAYS = 30

WORKFLOWS = 12
WORKSPACES = 200
LIVE = {"sleeping": 3_000, "waiting": 2_000, "pending": 1_000, "running": 20}

#: Small ones may be scanned.
LARGE = ("runs", "steps", "events", "audit", "stats")
_SCANS = re.compile(
    rf"Seq Scan on workflow_(?:{'|'.join(LARGE)})\b|^\W*SCAN workflow_(?:{'|'.join(LARGE)})$", re.MULTILINE
)


# Filling -----------------------------------------------------------------------------------


class Filler:
    """Fills the tables by statements that make many rows at a time."""

    def __init__(self, connection: sa.Connection, runs: int, steps: int) -> None:
        self.connection = connection
        self.runs = runs
        self.steps = steps
        self.now = int(time.time() * 1000)
        self._sqlite = connection.dialect.name == "sqlite"

    def fill(self) -> None:
        for first in range(1, self.runs + 1, CHUNK):
            last = min(first + CHUNK - 1, self.runs)
            self._finished(first, last)
            self.connection.commit()
        number = self.runs
        for status, count in LIVE.items():
            self._live(status, number + 1, number + count)
            number += count
        self._others()
        self._special()
        self.connection.commit()

    def _numbers(self, first: int, last: int) -> str:
        if self._sqlite:
            return (
                f"(WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last}) "
                "SELECT n FROM c) AS numbers"
            )
        return f"generate_series(CAST({first} AS bigint), CAST({last} AS bigint)) AS numbers(n)"

    def _hex(self, number: str) -> str:
        return f"printf('%012x', {number})" if self._sqlite else f"lpad(to_hex(CAST({number} AS bigint)), 12, '0')"

    def _id(self, created: str, number: str = "n") -> str:
        head = self._hex(created)
        return f"substr({head}, 1, 8) || '-' || substr({head}, 9, 4) || '-7000-8000-' || {self._hex(number)}"

    @property
    def _created(self) -> str:
        """When run n was created; the newest a minute ago."""
        each = max(DAYS * 86_400_000 // self.runs, 1)
        return f"({self.now - 60_000} - ({self.runs} - n) * CAST({each} AS bigint))"

    def _insert(self, table: str, columns: Mapping[str, str], source: str) -> None:
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(columns.values())
        statement = f"INSERT INTO workflow_{table} ({names}) SELECT {values} FROM {source}"
        self.connection.exec_driver_sql(statement if self._sqlite else statement.replace("%", "%%"))

    def _run(self, status: str, **columns: str) -> dict[str, str]:
        workflow = f"'workflow-' || CASE WHEN n % 2 = 0 THEN 0 ELSE ((n * 31) % {WORKFLOWS}) END"
        return {
            "id": self._id(self._created),
            "workflow": workflow,
            "version": "1 + n % 3",
            "queue": "CASE n % 5 WHEN 0 THEN 'mail' WHEN 1 THEN 'bulk' ELSE 'default' END",
            "workspace": f"CASE WHEN n % 3 = 0 THEN '' ELSE 'ws-' || ((n * 17) % {WORKSPACES}) END",
            "key": "CASE WHEN n % 3 = 1 THEN 'order-' || n END",
            "status": status,
            "input": """'{"order": {"id": ' || n || ', "note": "' || 'a short note about it ' || '"}}'""",
            "epoch": "1",
            "attempts": "0",
            "max_attempts": "3",
            "losses": "0",
            "created_at": self._created,
            "started_at": f"{self._created} + 50",
            "updated_at": f"{self._created} + 2000",
            **columns,
        }

    def _finished(self, first: int, last: int) -> None:
        place = "(n * 7919) % 1000"
        failed = f"{place} BETWEEN 940 AND 979"
        error = (
            """'{"kind":"step","type":"app.Error' || (n % 20) || '","step":"step-2","message":"no answer from host ' || n """
            """|| '","traceback":"' || 'File app.py, line 1, in work ' || '"}'"""
        )
        self._insert(
            "runs",
            self._run(
                f"CASE WHEN {place} < 940 THEN 'completed' WHEN {failed} THEN 'failed' ELSE 'cancelled' END",
                output=f"CASE WHEN {place} < 940 THEN '{{\"ok\": true}}' END",
                error=f"CASE WHEN {failed} THEN {error} END",
                cause=f"CASE WHEN {failed} THEN 'cause-' || (n % 200) END",
                finished_at=f"{self._created} + 2000",
            ),
            self._numbers(first, last),
        )
        per_chunk = max(CHUNK // max(self.steps, 1) * 10, 1)
        for begin in range(first, last + 1, per_chunk):
            self._steps(self._numbers(begin, min(begin + per_chunk - 1, last)), self.steps)

    def _steps(self, runs: str, count: int, first: int = 1) -> None:
        if not count:
            return
        source = f"{runs} CROSS JOIN (SELECT n AS place FROM {self._numbers(first, first + count - 1)}) AS places"
        source = source.replace("AS numbers CROSS", "AS runs CROSS").replace("AS numbers(n) CROSS", "AS runs(n) CROSS")
        created = self._created.replace("- n)", "- runs.n)")
        columns = {
            "run_id": self._id(created, "runs.n"),
            "key": "'step-' || place",
            "position": "place",
            "kind": "'step'",
            "status": "CASE WHEN place = 2 AND (runs.n * 7919) % 1000 BETWEEN 940 AND 979 THEN 'failed' "
            "ELSE 'completed' END",
            "output": "'true'",
            "attempts": "1",
            "started_at": f"{created} + 100 * place",
            "finished_at": f"{created} + 100 * place + 80",
        }
        self._insert("steps", columns, source)

    def _live(self, status: str, first: int, last: int) -> None:
        due = {
            "pending": "- 5000",
            "running": "+ 86400000",
            "sleeping": "+ (1 + n % 1000) * 60000",
            "waiting": "+ 90000000",
        }
        columns = self._run(f"'{status}'", due_at=f"{self.now} {due[status]}", started_at=f"{self.now} - 60000")
        if status == "pending":
            columns["started_at"] = "NULL"
        if status == "running":
            columns["worker"] = "'worker-' || (n % 3)"
        self._insert("runs", columns, self._numbers(first, last))
        kind = {"sleeping": "sleep", "waiting": "wait", "running": "step"}.get(status)
        if kind is None:
            return
        key = {"sleep": "'$sleep'", "wait": "'$wait:paid'", "step": "'charge'"}[kind]
        step = {
            "run_id": self._id(self._created),
            "key": key,
            "position": "3",
            "kind": f"'{kind}'",
            "status": f"'{status}'",
            "attempts": "1",
            "started_at": f"{self.now} - 60000",
            "due_at": f"{self.now} {due[status]}",
        }
        self._insert("steps", step, self._numbers(first, last))
        if kind == "wait":
            wait = {
                "run_id": self._id(self._created),
                "key": key,
                "number": "0",
                "name": "CASE WHEN n % 10 = 0 THEN 'refunded' ELSE 'paid' END",
                "workspace": f"CASE WHEN n % 3 = 0 THEN '' ELSE 'ws-' || ((n * 17) % {WORKSPACES}) END",
                "fields": """'["order"]'""",
                "values_hash": "'hash-' || n",
                "after_seq": "0",
                "checked": "1",
            }
            self._insert("waits", wait, self._numbers(first, last))

    def _others(self) -> None:
        """Events, statistics, the audit and the workers."""
        events = {
            "name": "CASE WHEN n % 10 = 0 THEN 'refunded' ELSE 'paid' END",
            "workspace": "''",
            "payload": """'{"order": ' || n || '}'""",
            "emitted_at": f"{self.now} - (100000 - n) * 1000",
            "matched_at": f"{self.now} - (100000 - n) * 1000 + 5",
            "woke": "n % 2",
        }
        self._insert("events", events, self._numbers(1, 100_000))
        quarter = 900_000
        begun = self.now // quarter * quarter
        stats = {
            "at": f"{begun} - n / {3 * WORKFLOWS} * CAST({quarter} AS bigint)",
            "workflow": f"'workflow-' || (n % {WORKFLOWS})",
            "outcome": f"CASE n / {WORKFLOWS} % 3 WHEN 0 THEN 'completed' WHEN 1 THEN 'failed' ELSE 'cancelled' END",
            "count": "10",
            "busy_ms": "20000",
        }
        self._insert("stats", stats, self._numbers(0, DAYS * 96 * 3 * WORKFLOWS - 1))
        audit = {
            "id": self._id(f"({self.now} - (20000 - n) * 1000)"),
            "at": f"{self.now} - (20000 - n) * 1000",
            "actor": "'ana'",
            "action": "'cancel'",
            "run_id": self._id(self._created),
            "workspace": "''",
            "target": "'run'",
            "reason": "''",
        }
        self._insert("audit", audit, self._numbers(1, 20_000))
        offers = ", ".join(f'["workflow-{n}", 1, 3]' for n in range(WORKFLOWS))
        workers = {
            "id": "'worker-' || n",
            "name": "'web-' || n || ':47'",
            "host": "'web-' || n",
            "pid": "47",
            "workflows": f"'[{offers}]'",
            "concurrency": "8",
            "started_at": f"{self.now} - 3600000",
            # They stay alive while this is measured.
            "seen_at": f"{self.now} + 86400000",
        }
        self._insert("workers", workers, self._numbers(0, 2))

    def _special(self) -> None:
        """A run of 2,000 steps, and one with large values."""
        runs = models.runs
        long = self.runs + sum(LIVE.values()) + 1
        large = long + 1
        self._insert(
            "runs", self._run("'completed'", finished_at=f"{self._created} + 2000"), self._numbers(long, large)
        )
        self._steps(self._numbers(long, long), 2_000)
        newest = self.connection.scalar(sa.select(sa.func.max(runs.c.id)))
        megabytes = '{"text": "' + "x" * 5_000_000 + '"}'
        self.connection.execute(runs.update().where(runs.c.id == newest).values(input=megabytes, output=megabytes))


def special(connection: sa.Connection) -> Mapping[str, str]:
    """The ids of some runs: of each status, and the two that are large."""
    runs = models.runs
    newest = sa.select(runs.c.id).order_by(runs.c.id.desc())
    large, long = connection.scalars(newest.limit(2))
    found = {"large": large, "long": long}
    for status in ("failed", "cancelled", *LIVE):
        found[status] = connection.scalars(newest.where(runs.c.status == status).limit(1)).one()
    found["completed"] = connection.scalars(newest.where(runs.c.status == "completed").offset(2).limit(1)).one()
    return found


# Asking ------------------------------------------------------------------------------------


def addresses(ids: Mapping[str, str], runs: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Endpoints, each with the query strings to ask for, or with what stands in its path."""
    deep = ids["failed"]
    for query in (
        {},
        {"cursor": f"older.{deep}"},
        *({"status": status} for status in (*LIVE, "failed", "completed", "cancelled")),
        {"workflow": "workflow-0"},
        {"workflow": "workflow-7", "status": "failed"},
        {"workspace": "ws-7"},
        {"workspace": "ws-7", "status": "completed"},
        {"workspace": "ws-7", "workflow": "workflow-7"},
        {"queue": "mail"},
        {"queue": "mail", "status": "completed"},
        {"key": "order-7"},
        {"time": "1h"},
        {"time": "24h"},
        {"time": "24h", "queue": "nowhere"},
        {"q": "workflow:workflow-7 -status:completed"},
        {"q": "workflow-3"},
        {"q": f"order-{runs - runs % 3 - 2}"},
        {"q": ids["failed"][:13]},
        {"q": "worker:web-1"},
        {"q": "step:charge"},
        {"q": "event:paid"},
        {"q": "event:refunded"},
        {"q": "cause:cause-7"},
        {"q": "error:Error7"},
        {"q": "version:2 workspace:ws-7"},
        {"q": f"input.order.id:{runs}"},
        {"q": "input.order.id:1 workflow:workflow-7"},
        {"q": "output.ok:true"},
        {"q": "output.ok:false"},
    ):
        yield "flask_workflows.runs", query
    yield "flask_workflows.api.runs", {}
    yield "flask_workflows.api.runs", {"status": "failed", "limit": "100"}
    for name in ("completed", "failed", "sleeping", "waiting", "pending", "running", "long", "large"):
        yield "flask_workflows.run", {"run_id": ids[name]}
    yield "flask_workflows.run", {"run_id": ids["long"], "steps": "900"}
    yield "flask_workflows.api.run", {"run_id": ids["long"]}


@dataclass
class Watch:
    """What an engine is asked, in its order."""

    engine: sa.Engine
    seen: list[tuple[str, Any]] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            if statement.startswith(("SELECT", "WITH")):
                self.seen.append((statement, parameters))

        self.seen.clear()
        sa.event.listen(self.engine, "before_cursor_execute", note)
        try:
            yield
        finally:
            sa.event.remove(self.engine, "before_cursor_execute", note)

    def scans(self) -> Iterator[str]:
        """The parts of their plans that go through a large table row by row."""
        explain = "EXPLAIN QUERY PLAN " if self.engine.dialect.name == "sqlite" else "EXPLAIN "
        with self.engine.connect() as connection:
            for statement, parameters in self.seen:
                rows = connection.exec_driver_sql(explain + statement, parameters)
                plan = "\n".join(str(row[-1]) for row in rows)
                yield from _SCANS.findall(plan)


@dataclass(frozen=True)
class Measured:
    address: str
    status: int
    milliseconds: float
    best: float
    #: Of this process: on SQLite all of it, and what other programs do to the machine left out.
    cpu: float
    statements: int
    size: int
    gzipped: int
    scans: tuple[str, ...]

    @property
    def problem(self) -> str:
        late = f"over {TARGET_MS} ms" if self.milliseconds > TARGET_MS else ""
        wrong = f"answered {self.status}" if self.status >= 500 else ""
        return "; ".join(filter(None, (late, wrong, *self.scans)))


def measure(client: FlaskClient, watch: Watch, address: str, times: int) -> Measured:
    token = {"Authorization": "Bearer benchmark"}
    with watch.watching():
        response = client.get(address, headers=token)
    scans = tuple(dict.fromkeys(watch.scans()))
    took = []
    cpu = []
    for _ in range(times):
        began, busy = time.perf_counter(), time.process_time()
        response = client.get(address, headers=token)
        took.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - busy) * 1000)
    body = response.get_data()
    return Measured(
        address,
        response.status_code,
        median(took),
        min(took),
        median(cpu),
        len(watch.seen),
        len(body),
        len(gzip.compress(body, 6)),
        scans,
    )


#: The state a run should be in to be asked about.
_FITTING = {
    "ask_cancel": "sleeping",
    "ask_wake": "sleeping",
    "ask_move": "sleeping",
    "ask_send": "waiting",
    "ask_release": "running",
    "value": "completed",
}


def asked(app: Flask, ids: Mapping[str, str], runs: int) -> Iterator[str]:
    """The addresses of all that is there to be asked for."""
    known = {rule.endpoint: rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())}
    with app.test_request_context():
        url_for: Callable[..., str] = app.url_for
        listed = list(addresses(ids, runs))
        for endpoint, values in listed:
            if endpoint in known:
                yield url_for(endpoint, **values)
        there = {endpoint for endpoint, _ in listed}
        for endpoint, rule in sorted(known.items()):
            route = getattr(app.view_functions[endpoint], "route", None)
            name = endpoint.rpartition(".")[2]
            if endpoint in there or not isinstance(route, Route) or re.match("nowhere|wrong_method", name):
                continue
            run_id = ids[_FITTING.get(name, "failed")]
            fillings = {"run_id": run_id, "name": "workflow-0", "number": 2, "part": "output", "event_id": 99_999}
            if rule.arguments <= set(fillings):
                yield url_for(endpoint, **{name: fillings[name] for name in rule.arguments})


# Both --------------------------------------------------------------------------------------


def make_app(url: str) -> Flask:
    workflows = Workflows(authorize=lambda action, run=None: True)

    def body(order: dict[str, int]) -> None:
        """Does nothing; its runs are made without it."""

    for number in range(WORKFLOWS):
        workflows.workflow(name=f"workflow-{number}", version=3)(body)
    workflows.event("paid")
    return apps.make_app(url, workflows=workflows, WORKFLOWS_METRICS_TOKEN="benchmark")


def run(database: Database, runs: int, steps: int, times: int) -> list[Measured]:
    began = time.monotonic()
    app = make_app(database.url)
    engine = apps.runtime_of(app).engine
    with engine.connect() as connection:
        if connection.scalar(sa.select(models.runs.c.id).limit(1)) is None:
            if database.kind == "sqlite":
                for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-400000"):
                    connection.exec_driver_sql(f"PRAGMA {pragma}")
            Filler(connection, runs, steps).fill()
        ids = special(connection)
    engine.dispose()
    if database.kind == "postgresql":
        database.tidy(*(f"workflow_{name}" for name in (*LARGE, "workers")))
    _say(f"{database.kind}: {runs:,} runs of {steps} steps in {time.monotonic() - began:.0f} s")

    # What the site keeps for a while would be measured instead.
    Kept.keep = 0.0
    watch = Watch(engine)
    client = app.test_client()
    measured = []
    for address in asked(app, ids, runs):
        one = measure(client, watch, address, times)
        _say(f"{one.milliseconds:8.1f} ms  {one.address}")
        measured.append(one)
    apps.dispose_engines(app)
    return measured


def report(kind: str, measured: Sequence[Measured]) -> str:
    lines = [f"| {kind} | ms | best | CPU | statements | bytes | gzipped | |", "| --- " + "| ---: " * 6 + "| --- |"]
    for one in measured:
        numbers = f"{one.milliseconds:.1f} | {one.best:.1f} | {one.cpu:.1f} | {one.statements} | {one.size:,} | {one.gzipped:,}"
        lines.append(f"| `{one.address}` | {numbers} | {one.problem} |")
    return "\n".join(lines)


@contextmanager
def _database(kind: str, url: str | None, server: PostgresServer | None) -> Iterator[Database]:
    if url is None:
        with fresh_database(kind, server) as database:
            yield database
        return
    yield Database(kind, url)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dashboard", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both", help="(default: both)")
    parser.add_argument(
        "--url", help="measure this database, which is filled if it has no runs, and is left as it is then"
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="(default: 1,000,000)")
    parser.add_argument("--steps", type=int, default=10, help="of each run (default: 10)")
    parser.add_argument("--times", type=int, default=15, help="how often each page is asked for (default: 15)")
    options = parser.parse_args(argv)
    kinds = ["sqlite", "postgresql"] if options.database == "both" else [options.database]
    if options.url is not None:
        kinds = [sa.make_url(options.url).get_backend_name()]

    missed = False
    for kind in kinds:
        needs_server = kind == "postgresql" and options.url is None
        server = shared_server() if needs_server else None
        with _closing(server), _database(kind, options.url, server) as database:
            measured = run(database, options.runs, options.steps, options.times)
        print(report(kind, measured), flush=True)
        missed = missed or any(one.problem for one in measured)
    return 1 if missed else 0


def _closing(server: PostgresServer | None) -> Any:
    return closing(server) if hasattr(server, "close") else nullcontext()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
