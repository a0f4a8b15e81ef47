"""What the extension keeps for one app, in `app.extensions["workflows"]`.

The database is looked at when it is first needed, so it does not matter whether Flask-SQLAlchemy or this extension
was initialised first.
"""

from __future__ import annotations

import importlib
import logging
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from typing import Protocol
from typing import TYPE_CHECKING

import sqlalchemy as sa
from flask import current_app
from flask import Flask

from . import models
from . import signals
from .config import WorkflowsConfig
from .errors import SetupError
from .hooks import Hooks
from .registry import Registry
from .retry import Retry
from .schema import check_schema
from .sessions import Sessions
from .stats import Tally
from .store import Actions
from .store import ClaimedRun
from .store import NewRun
from .store import Store
from .store.events import Events
from .store.sqlite import BUSY_TIMEOUT_MS
from .store.sqlite import CHANGES_BEFORE

if TYPE_CHECKING:
    from .definition import Step
    from .definition import Workflow
    from .extension import Workflows
    from .handle import Handle

logger = logging.getLogger("flask_workflows")

EXTENSION = "workflows"


class Recorder(Protocol):
    """What a test's `WorkflowsFake` is told. While there is one nothing is executed here, and no worker is woken."""

    def recorded(self, new_run: NewRun, handle: Handle[Any], workflow: Workflow[Any, Any]) -> None:
        """A run was started, perhaps in a transaction that is still open."""

    def committed(self, run_ids: Sequence[str]) -> None:
        """The starts of these runs were committed."""


class Runtime:
    """One app's configuration, registry, store and sessions."""

    def __init__(self, app: Flask, workflows: Workflows, config: WorkflowsConfig, db: Any, hooks: Hooks) -> None:
        self.app = app
        self.workflows = workflows
        self.config = config
        self._hooks = hooks
        self._db = db
        #: Events of workers in this process, set when something became due.
        self.wakers: set[threading.Event] = set()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.RLock()
        self._draining: set[int] = set()
        #: Made at once, as several threads may count before any other.
        self.tally = Tally(lambda: self.store)

    @property
    def registry(self) -> Registry:
        return self.workflows.registry

    @property
    def hooks(self) -> Hooks:
        """The functions given to this app, else those given to the extension, be it later."""
        return self._hooks.over(self.workflows.hooks)

    @property
    def db(self) -> Any:
        """The app's Flask-SQLAlchemy extension."""
        db = self._db if self._db is not None else self.app.extensions.get("sqlalchemy")
        if db is None:
            raise SetupError(
                "Flask-Workflows found no database: initialise Flask-SQLAlchemy on this app, db.init_app(app), "
                "or hand it over, Workflows(app, db)"
            )
        return db

    @property
    def inline(self) -> bool:
        """Whether what becomes due is executed at once, here."""
        return self.config.execution == "inline" and self.workflows.recorder is None

    @cached_property
    def app_engine(self) -> sa.Engine:
        """The engine of the app's default bind."""
        with self.app.app_context():
            engine = self.db.engine
        if isinstance(engine, sa.Connection):
            # Test suites put a connection in its place, to roll back at the end what every session commits.
            engine = engine.engine
        if not isinstance(engine, sa.Engine):
            raise SetupError(f"db.engine is {engine!r}, not an engine")
        return engine

    @cached_property
    def apart(self) -> bool:
        """Whether runs are kept in this process alone: by configuration, or because the app's SQLite is in memory."""
        return self.config.store == "memory" or _in_memory(self.app_engine)

    @cached_property
    def engine(self) -> sa.Engine:
        """The engine of the database the runs are in."""
        with self._lock:
            return self._private_engine() if self.apart else self.app_engine

    @cached_property
    def store(self) -> Store:
        with self._lock:
            if not self.apart:
                prepare_engine(self.app_engine)
            return Store(self.engine, lease_ms=self.config.lock_timeout_secs * 1000, clock=self.workflows.clock_ms)

    @cached_property
    def events(self) -> Events:
        return Events(self.store)

    @cached_property
    def actions(self) -> Actions:
        return Actions(self.store, self.events)

    @cached_property
    def sessions(self) -> Sessions:
        return Sessions(self.db, self.store, self.events, self.started, apart=self.apart, inline=lambda: self.inline)

    def _private_engine(self) -> sa.Engine:
        self._directory = tempfile.TemporaryDirectory(prefix="flask-workflows-", ignore_cleanup_errors=True)
        engine = sa.create_engine(f"sqlite:///{self._directory.name}/runs.sqlite")
        prepare_engine(engine)
        models.metadata.create_all(engine)
        return engine

    def forget(self) -> None:
        """Be as a process that has just begun, on the same database."""
        self.store.close()
        for made in ("store", "events", "actions", "sessions"):
            self.__dict__.pop(made, None)
        self.tally = Tally(lambda: self.store)

    def close(self) -> None:
        """Close the engine's connections and delete what was kept in the process. The app may still be used."""
        if "store" in self.__dict__:
            self.store.close()
        if self._directory is not None:
            self.engine.dispose()
            self._directory.cleanup()

    def check_schema(self) -> None:
        """Raise `SchemaError` where the tables are missing, behind or ahead."""
        if not self.apart:
            check_schema(self.app_engine)

    def orphans(self) -> list[str]:
        """The workflows and versions of unfinished runs that no code here resumes, each with how many there are."""
        return [
            f"{name} v{version} ({count} runs)"
            for name, version, count in self.store.unfinished()
            if self.registry.resume(name, version) is None
        ]

    def import_modules(self) -> None:
        """Import the modules of `WORKFLOWS_IMPORTS`; their errors come through whole."""
        for module in self.config.imports:
            importlib.import_module(module)

    def retry_of(self, step: Step[Any, Any]) -> Retry:
        """A step's policy, with the configured defaults."""
        return step.retry.filled(self.config.step_attempts, Retry.linear(self.config.step_backoff_secs))

    def recorded(self, new_run: NewRun, holder: str, workflow: Workflow[Any, Any]) -> None:
        """A run was started here, or `holder` has its key: tell the test that wants to know."""
        if self.workflows.recorder is not None:
            from .handle import Handle

            handle: Handle[Any] = Handle(holder, holder == new_run.id, self, workflow.codec.result)
            self.workflows.recorder.recorded(new_run, handle, workflow)

    # What happens once something was committed -------------------------------------------------

    def started(self, run_ids: Sequence[str]) -> None:
        """Runs were committed by this process."""
        if self.workflows.recorder is not None:
            self.workflows.recorder.committed(run_ids)
        self.announce()

    def announce(self) -> None:
        """Something may be due: wake the workers here and elsewhere, or execute it where that is configured."""
        if self.workflows.recorder is not None:
            return
        for waker in tuple(self.wakers):
            waker.set()
        if self.inline:
            self.drain()
        elif self.config.listen and self.store.dialect.listens:
            try:
                self.store.notify()
            except Exception as error:
                # The workers' polling finds it.
                self.store.complain("workers could not be notified", error)

    def drain(self) -> int:
        """Execute on this thread what is due, until nothing is; answer the number of executions.

        Called again from inside one of those executions it does nothing: the outer call goes on.
        """
        from .inline import execute_due

        ident = threading.get_ident()
        if ident in self._draining or self.workflows.recorder is not None:
            return 0
        self._draining.add(ident)
        try:
            return execute_due(self)
        finally:
            self._draining.discard(ident)

    def step_failed(self, run: ClaimedRun, step: str, error: dict[str, Any]) -> None:
        signals.send_step_failed(self.app, run, step, error)


def current_runtime() -> Runtime:
    """The runtime of the current app. Raises `SetupError` outside an app context, or without `init_app`."""
    if not current_app:
        raise SetupError("this needs an app context: call it in a request or a command, or inside app.app_context()")
    runtime = current_app.extensions.get(EXTENSION)
    if not isinstance(runtime, Runtime):
        raise SetupError("Flask-Workflows is not initialised on this app: call workflows.init_app(app)")
    return runtime


def _in_memory(engine: sa.Engine) -> bool:
    if engine.dialect.name != "sqlite":
        return False
    database = engine.url.database or ""
    memory = database in ("", ":memory:") or "mode=memory" in database
    return memory or engine.url.query.get("mode") == "memory"


def prepare_engine(engine: sa.Engine) -> None:
    """On SQLite, make savepoints and waiting behave as everywhere else; done once for an engine."""
    if engine.dialect.name != "sqlite" or sa.event.contains(engine, "savepoint", _begin_before_savepoint):
        return
    sa.event.listen(engine, "savepoint", _begin_before_savepoint)
    sa.event.listen(engine, "begin", _note_changes)
    sa.event.listen(engine, "connect", _set_up_connection)
    # Connections made before now: their next check-out sets the same.
    sa.event.listen(engine, "checkout", _set_up_on_checkout)


def _begin_before_savepoint(connection: sa.Connection, name: str | None) -> None:
    """The driver opens no transaction for SAVEPOINT, so its release would commit, outer rollback or not."""
    raw: Any = connection.connection.dbapi_connection
    if not raw.in_transaction:
        raw.execute("BEGIN IMMEDIATE")


def _note_changes(connection: sa.Connection) -> None:
    raw: Any = connection.connection.dbapi_connection
    connection.info[CHANGES_BEFORE] = raw.total_changes


def _set_up_connection(raw: Any, record: Any) -> None:
    # 5000 is the driver's default, so nobody chose it.
    if raw.execute("PRAGMA busy_timeout").fetchone()[0] in (0, 5_000):
        raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    # The engine's connections would do it too, but wait for whoever is reading by then: perhaps for their own thread.
    with suppress(sqlite3.OperationalError):
        raw.execute("PRAGMA journal_mode = WAL")
    record.info["flask_workflows"] = True


def _set_up_on_checkout(raw: Any, record: Any, proxy: Any) -> None:
    if "flask_workflows" not in record.info:
        _set_up_connection(raw, record)
