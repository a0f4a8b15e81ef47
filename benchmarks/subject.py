"""The engine under test: an app on a database, and its worker in a process of its own."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Self

import sqlalchemy as sa

from benchmarks.app import create_app
from benchmarks.app import db
from benchmarks.databases import Database
from flask_workflows import models
from flask_workflows.definition import Workflow

ROOT = Path(__file__).resolve().parent.parent

#: Seconds that anything waited for may take.
PATIENCE = 120.0

TABLES = ("workflow_runs", "workflow_steps")

_BUSY = """
SELECT 1 FROM workflow_runs WHERE workflow = :workflow AND status IN ('pending', 'running', 'waiting') LIMIT 1
"""

_DRAINED = """
SELECT count(*), min(started_at), max(finished_at) FROM workflow_runs
WHERE workspace = :label AND status = 'completed'
"""


class Subject:
    """The app on one database, seen from a process that starts runs and executes none."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.app = create_app({"SQLALCHEMY_DATABASE_URI": database.url})
        self._labels = (f"batch-{number}" for number in itertools.count(1))
        with self.app.app_context():
            db.create_all()

    def drain(self, workflow: Workflow[Any, Any], number: int, input: Mapping[str, Any]) -> float:
        """Start runs in one commit; answer how many a second the worker executed, by the database's clock."""
        self.tidy()
        label = next(self._labels)
        with self.app.app_context():
            workflow.using(workspace=label).start_many([input] * number)
            db.session.commit()
        self.wait_until(lambda: not self.rows(_BUSY, workflow=workflow.name), f"{number} runs of {workflow.name}")
        completed, began, ended = self.rows(_DRAINED, label=label)[0]
        if completed != number:
            raise RuntimeError(f"of {number} runs {completed} completed")

        return number / max(int(ended) - int(began), 1) * 1_000

    def tidy(self) -> None:
        self.database.tidy(*TABLES)

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        with self.app.app_context():
            return list(db.session.execute(sa.text(statement), parameters))

    def change(self, statement: str, **parameters: Any) -> None:
        with self.app.app_context():
            db.session.execute(sa.text(statement), parameters)
            db.session.commit()

    def copy(self, template: str, number: int, id: str, **changes: str) -> None:
        """Copy a run with its steps; `id` and `changes` are SQL, in which `value` counts the copies from 1."""
        source = f"""
            CROSS JOIN (
                WITH RECURSIVE counted(value) AS (
                    SELECT 1 UNION ALL SELECT value + 1 FROM counted WHERE value < {int(number)}
                ) SELECT value FROM counted
            ) AS numbers
        """
        steps = ", ".join(f'"{column.name}"' for column in models.steps.columns if column.name != "run_id")
        runs = [column.name for column in models.runs.columns if column.name != "id"]
        names = ", ".join(f'"{name}"' for name in runs)
        values = ", ".join(changes.get(name, f'"{name}"') for name in runs)
        with self.app.app_context():
            for statement in (
                f"INSERT INTO workflow_steps (run_id, {steps}) "
                f"SELECT {id}, {steps} FROM workflow_steps {source} WHERE run_id = :template",
                f"INSERT INTO workflow_runs (id, {names}) "
                f"SELECT {id}, {values} FROM workflow_runs {source} WHERE id = :template",
            ):
                db.session.execute(sa.text(statement), {"template": template})
            db.session.commit()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")
            time.sleep(0.05)


class Worker:
    """`flask workflows work` on a subject's database, while in the context."""

    def __init__(self, subject: Subject, concurrency: int, **environment: str) -> None:
        self._subject = subject
        self._command = [sys.executable, "-m", "flask", "--app", "benchmarks.app", "workflows", "work"]
        self._command += ["--concurrency", str(concurrency)]
        self._environment = os.environ | {"FLASK_SQLALCHEMY_DATABASE_URI": subject.database.url} | environment

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C reaches us alone, and we end it.
            start_new_session=True,
        )
        try:
            self._subject.wait_until(self._is_up, "the start of a worker")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def resident_mb(self) -> float:
        """The memory the process holds, in MB."""
        command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1_024

    @property
    def cpu_seconds(self) -> float:
        """The processor time the process has used, in whichever mode."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise RuntimeError(f"the worker ended with {self._process.returncode}: {self._log.read()[-2_000:]}")
        statement = "SELECT 1 FROM workflow_workers WHERE pid = :pid AND stopped_at IS NULL"
        return bool(self._subject.rows(statement, pid=self._process.pid))
