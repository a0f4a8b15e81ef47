"""Rows as the engine leaves them, written without it: for tests of what is read and shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from datetime import UTC
from typing import Any

import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows.matching import fields_of
from flask_workflows.matching import hash_of
from flask_workflows.names import id_at
from tests import apps

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)

UNFINISHED = ("pending", "running", "sleeping", "waiting")

_numbers = itertools.count(1)


def run_id(created_at: int, number: int) -> str:
    """An id of that instant; among those of one instant, higher numbers are newer."""
    return f"{id_at(created_at)[:24]}{number:012x}"


def run_row(status: str = "completed", *, ago: float = 60, **values: Any) -> dict[str, Any]:
    """A run created so many seconds before NOW."""
    created_at = NOW_MS - int(ago * 1000)
    finished = status not in UNFINISHED
    key = values.get("key")
    row = {
        "id": run_id(created_at, next(_numbers)),
        "workflow": "onboarding",
        "version": 1,
        "queue": "default",
        "workspace": "",
        "key": key,
        "live_key": None if finished else key,
        "status": status,
        "input": '{"user_id": 8}',
        "output": "true" if status == "completed" else None,
        "error": None,
        "epoch": 1,
        "worker": None,
        "due_at": None if finished else created_at,
        "attempts": 0,
        "max_attempts": 3,
        "losses": 0,
        "cancel_requested_at": None,
        "created_at": created_at,
        "started_at": None if status == "pending" else created_at,
        "updated_at": created_at,
        "finished_at": created_at + 2_000 if finished else None,
    }
    return {**row, **values}


def step_row(run: str, key: str, position: int, status: str = "completed", **values: Any) -> dict[str, Any]:
    """A call of a run, begun at NOW and, if finished, done in a second."""
    row = {
        "run_id": run,
        "key": key,
        "position": position,
        "kind": "step",
        "status": status,
        "input": None,
        "output": "null",
        "error": None,
        "attempts": 1,
        "earlier": None,
        "started_at": NOW_MS,
        "finished_at": NOW_MS + 1_000 if status in ("completed", "failed") else None,
        "due_at": None,
    }
    return {**row, **values}


def worker_row(name: str = "web-1:4711", *, seen_ago: float = 1, **values: Any) -> dict[str, Any]:
    """A worker for every queue that runs version 1 of `onboarding`."""
    row = {
        "id": f"worker-{next(_numbers)}",
        "name": name,
        "host": "web-1",
        "pid": 4711,
        "queues": None,
        "workflows": json.dumps([["onboarding", 1, 1]]),
        "concurrency": 4,
        "started_at": NOW_MS - 3_600_000,
        "seen_at": NOW_MS - int(seen_ago * 1000),
        "stopped_at": None,
    }
    return {**row, **values}


def wait_row(run: str, name: str, match: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """A run's wait for an event, at the call `$wait:<name>`; what it compares is in that call's input too."""
    row = {
        "run_id": run,
        "key": f"$wait:{name}",
        "number": 0,
        "name": name,
        "workspace": "",
        "fields": fields_of(match),
        "values_hash": hash_of(match),
        "snapshot": None,
        "after_seq": 0,
        "since": None,
        "checked": 1,
    }
    return {**row, **values}


def event_row(name: str = "paid", *, ago: float = 60, **values: Any) -> dict[str, Any]:
    """An event emitted so many seconds before NOW, which was looked at and woke nobody."""
    row = {
        "name": name,
        "workspace": "",
        "run_id": None,
        "payload": '{"order": 7}',
        "delivery_id": None,
        "xact": None,
        "emitted_at": NOW_MS - int(ago * 1000),
        "matched_at": NOW_MS - int(ago * 1000) + 20,
        "woke": 0,
    }
    return {**row, **values}


def error_json(type: str = "KeyError", message: str = "'vat_id'", **values: Any) -> str:
    described = {"kind": "step", "type": type, "message": message, "traceback": None, "step": None}
    return json.dumps({**described, **values})


class Rows:
    """Writes rows to a database and says their ids."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def run(self, status: str = "completed", **values: Any) -> str:
        row = run_row(status, **values)
        self.insert(models.runs, [row])
        return str(row["id"])

    def step(self, run: str, key: str, position: int, status: str = "completed", **values: Any) -> None:
        self.insert(models.steps, [step_row(run, key, position, status, **values)])

    def worker(self, name: str = "web-1:4711", **values: Any) -> str:
        row = worker_row(name, **values)
        self.insert(models.workers, [row])
        return str(row["id"])

    def waiting(self, name: str, match: dict[str, Any] | None = None, *, workspace: str = "", **values: Any) -> str:
        """A run that waits for an event of that name; answer its id."""
        run = self.run("waiting", workspace=workspace, **{"due_at": None, **values})
        described = {"name": name, **({"match": match} if match else {})}
        input = json.dumps({"events": [described], "timeout_ms": None})
        self.step(run, f"$wait:{name}", 1, "waiting", kind="wait", input=input)
        self.insert(models.waits, [wait_row(run, name, match, workspace=workspace)])
        return run

    def event(self, name: str = "paid", **values: Any) -> int:
        """An event; answer its number."""
        with self.engine.begin() as connection:
            done = connection.execute(models.events.insert().returning(models.events.c.seq), event_row(name, **values))
            return int(done.scalar_one())

    def insert(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        with self.engine.begin() as connection:
            connection.execute(table.insert(), rows)

    def change(self, run: str, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(models.runs.update().where(models.runs.c.id == run).values(values))


@contextmanager
def tables(url: str) -> Iterator[Rows]:
    """Our tables alone, without an app."""
    engine = sa.create_engine(url)
    models.metadata.create_all(engine)
    try:
        yield Rows(engine)
    finally:
        engine.dispose()


def rows_of(app: Flask) -> Rows:
    """Writes to the app's database."""
    return Rows(apps.runtime_of(app).engine)
