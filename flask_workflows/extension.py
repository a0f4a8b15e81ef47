"""The extension: declare workflows and steps, start runs, look after them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import datetime
from datetime import timedelta
from typing import Any
from typing import Concatenate
from typing import overload
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

from flask import appcontext_pushed
from flask import Blueprint
from flask import Flask

from . import models
from . import operations
from . import service
from .audit import By
from .cli import workflows_group
from .config import WorkflowsConfig
from .context import outside_steps
from .context import WorkflowContext
from .definition import as_text
from .definition import StartOptions
from .definition import Step
from .definition import Workflow
from .durations import instant_ms
from .errors import DefinitionError
from .errors import SetupError
from .events import EventTypes
from .handle import Handle
from .hooks import Hook
from .hooks import Hooks
from .names import check_label
from .registry import Registry
from .retry import Retry
from .runs import EmittedEvent
from .runs import Page
from .runs import Run
from .runs import RunDetails
from .runs import RunQuery
from .runtime import current_runtime
from .runtime import EXTENSION
from .runtime import prepare_engine
from .runtime import Recorder
from .runtime import Runtime
from .store import NewRun
from .worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Clock(Protocol):
    """Something that tells the time, for tests: `workflows.clock = clock`."""

    def now(self) -> datetime:
        """The present instant, aware."""
        ...


class Workflows:
    """Durable workflows on a Flask app's own database.

    `Workflows(app)` or `Workflows(app, db)` sets the app up at once; `Workflows()` and `init_app(app)` later, for any
    number of apps. The functions `authorize`, `scope`, `actor` and `redact` say who may see and do what on the pages,
    see `Hooks`; without `authorize` they are closed.
    """

    def __init__(
        self,
        app: Flask | None = None,
        db: Any = None,
        *,
        authorize: Hook | None = None,
        scope: Hook | None = None,
        actor: Hook | None = None,
        redact: Hook | None = None,
    ) -> None:
        self.registry = Registry()
        self.registry.add_own(operations.declare(self))
        self.events = EventTypes()
        #: Null: the database's clock. Set in tests; every stored instant then comes from it.
        self.clock: Clock | None = None
        #: Null save in tests, see `flask_workflows.testing.WorkflowsFake`.
        self.recorder: Recorder | None = None
        self.hooks = Hooks(authorize, scope, actor, redact)
        self._tick_ms: int | None = None
        self._runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()
        if app is not None:
            self.init_app(app, db)

    def init_app(
        self,
        app: Flask,
        db: Any = None,
        *,
        authorize: Hook | None = None,
        scope: Hook | None = None,
        actor: Hook | None = None,
        redact: Hook | None = None,
    ) -> None:
        """Register tables, pages and commands on an app. Raises `SetupError` when that was done before.

        The functions are as those of the class, for this app alone.
        """
        if EXTENSION in app.extensions:
            raise SetupError(
                "Flask-Workflows is initialised on this app already: call Workflows(app) or init_app(app), once"
            )
        config = WorkflowsConfig.from_app_config(app.config)
        runtime = Runtime(app, self, config, db, Hooks(authorize, scope, actor, redact))
        if not self._mirror_tables(runtime):
            # Flask-SQLAlchemy comes later: `flask db migrate` and create_all() push a context before they look.
            appcontext_pushed.connect(self._mirror_later, app)
        app.extensions[EXTENSION] = runtime
        self._runtimes.add(runtime)
        app.cli.add_command(workflows_group)
        if config.dashboard or config.api:
            self._add_pages(app, config)

    def _add_pages(self, app: Flask, config: WorkflowsConfig) -> None:
        from .dashboard.blueprint import create_blueprint

        app.register_blueprint(create_blueprint(config))

    def blueprint(
        self,
        name: str = "flask_workflows",
        *,
        url_prefix: str = "/workflows",
        host: str | None = None,
        subdomain: str | None = None,
        dashboard: bool = True,
        api: bool = True,
    ) -> Blueprint:
        """The pages and the JSON routes, for an app that registers them itself.

        With `WORKFLOWS_DASHBOARD` and `WORKFLOWS_API` false `init_app` registers nothing; then they may stand in a
        blueprint of the app's, on a subdomain, on a host of their own (where the app has `host_matching`), or in
        several places, each under a `name` of its own.

            app.register_blueprint(workflows.blueprint(url_prefix="/ops/workflows"))
        """
        from .dashboard.blueprint import create_blueprint

        config = WorkflowsConfig(url_prefix=url_prefix, dashboard=dashboard, api=api)
        config.validate()
        return create_blueprint(config, name=name, host=host, subdomain=subdomain)

    def _mirror_later(self, app: Flask) -> None:
        # First, since looking at the engine pushes a context.
        appcontext_pushed.disconnect(self._mirror_later, app)
        if not self._mirror_tables(app.extensions[EXTENSION]):
            appcontext_pushed.connect(self._mirror_later, app)

    def _mirror_tables(self, runtime: Runtime) -> bool:
        """Make the tables known to the app's metadata, so that create_all() and autogenerate see them.

        False while there is no database yet.
        """
        db = runtime._db if runtime._db is not None else runtime.app.extensions.get("sqlalchemy")
        if runtime.config.store == "memory":
            return True
        if db is None or "sqlalchemy" not in runtime.app.extensions:
            return False
        if db.metadata.schema is not None:
            raise SetupError(
                f"db.metadata has the schema {db.metadata.schema!r}, but the tables of Flask-Workflows stand in the "
                "default one: set the schema by search_path in the database URL instead"
            )
        for table in models.metadata.sorted_tables:
            if table.key not in db.metadata.tables:
                table.to_metadata(db.metadata)
        with runtime.app.app_context():
            prepare_engine(db.engine)
        return True

    def authorize(self, function: Hook) -> Hook:
        """Decorator for the function that opens the pages; as the `authorize` argument."""
        self.hooks.authorize = function
        return function

    def scope(self, function: Hook) -> Hook:
        """Decorator for the function that says which workspaces a visitor may see; as the `scope` argument."""
        self.hooks.scope = function
        return function

    def actor(self, function: Hook) -> Hook:
        """Decorator for the function that says who a visitor is; as the `actor` argument."""
        self.hooks.actor = function
        return function

    def redact(self, function: Hook) -> Hook:
        """Decorator for the function that says what else to hide; as the `redact` argument."""
        self.hooks.redact = function
        return function

    # Declaring -----------------------------------------------------------------------------

    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        raises: type[Exception] | tuple[type[Exception], ...] = (),
        transactional: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[P, R]], Step[P, R]]: ...

    def step(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        raises: type[Exception] | tuple[type[Exception], ...] = (),
        transactional: bool = False,
        timeout: timedelta | float | None = None,
    ) -> Any:
        """Declare a step. Inside a run its result is stored; called outside one it is a plain function.

        `retry` says when it is tried again; `raises` names business errors, which are not retried and come back as
        they are; `transactional` makes sure that what it writes through `db.session` commits together with its
        record, or not at all. An attempt that takes longer than `timeout`, a timedelta or seconds, fails with
        `StepTimeout`; its call cannot be ended, so the next attempt waits for it, and what it comes to is discarded.
        """

        def declare(function: Callable[..., Any]) -> Step[Any, Any]:
            step: Step[Any, Any] = Step(
                function, name=name, retry=retry, raises=raises, transactional=transactional, timeout=timeout
            )
            self.registry.add_step(step)
            return step

        return declare if function is None else declare(function)

    @overload
    def workflow(self, function: Callable[Concatenate[WorkflowContext, P], R], /) -> Workflow[P, R]: ...

    @overload
    def workflow(self, function: Callable[P, R], /) -> Workflow[P, R]: ...

    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        version: int = 1,
        min_version: int | None = None,
        queue: str | None = None,
        strict: bool = True,
        timeout: timedelta | float | None = None,
    ) -> _Declare: ...

    def workflow(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a workflow: a plain function whose first parameter may be the context.

        Runs are started on `version` and resumed on it, or on code whose `min_version` is not above theirs. `queue`
        is served by the workers that name it. `strict=False` matches recorded calls by key, not by order. A run that
        has not finished when the `timeout`, a timedelta or seconds from its start, is over fails with
        `DeadlineExceeded`.
        """

        def declare(function: Callable[..., Any]) -> Workflow[Any, Any]:
            workflow: Workflow[Any, Any] = Workflow(self, function, **{**_WORKFLOW, **options})
            self.registry.add_workflow(workflow)
            return workflow

        return declare if function is None else declare(function)

    def event(self, name: str) -> Callable[[type[T]], type[T]]:
        """Declare an event. As a decorator on a class (dataclass, TypedDict, pydantic model) that is its payload's
        type; called alone, `workflows.event("name")`, its payload is plain JSON.
        """
        self.events.declare(name, None)

        def declare(cls: type[T]) -> type[T]:
            self.events.declare(name, cls)
            return cls

        return declare

    # Events --------------------------------------------------------------------------------

    def emit(self, event: Any, payload: Any = None, *, workspace: str | int | None = None) -> None:
        """Emit an event in `db.session`'s transaction: it counts once, and only if, that commits.

        By name and payload, or an object of a declared class alone. With a `workspace` only its runs are woken.
        In a workflow's body it is a recorded call. Raises `UnregisteredEvent`.
        """
        runtime = current_runtime()
        new = service.new_event(runtime, event, payload, workspace)
        running = outside_steps()
        if running is not None:
            running.emit_event(new)
        else:
            runtime.sessions.emit(new)

    def deliver(
        self, event: Any, payload: Any = None, *, delivery_id: str | None = None, workspace: str | int | None = None
    ) -> bool:
        """As `emit`, committed at once: for webhooks. A repeated `delivery_id` is the same event; true if it is new."""
        runtime = current_runtime()
        new = service.new_event(runtime, event, payload, workspace, delivery_id)
        running = outside_steps()
        return running.emit_event(new) if running is not None else service.deliver_event(runtime, new)[1]

    # Starting ------------------------------------------------------------------------------

    def start(
        self,
        workflow: str | Workflow[Any, R],
        /,
        input: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        workspace: str | int | None = None,
        delay: timedelta | float | None = None,
        deadline: timedelta | float | datetime | None = None,
    ) -> Handle[R]:
        """Start a run of a workflow, by name or as declared, in `db.session`'s transaction.

        Raises `NotRegistered` for an unknown name.
        """
        known: Workflow[Any, Any] = self.registry.latest(workflow) if isinstance(workflow, str) else workflow
        options = known.using(key=key, workspace=workspace, delay=delay, deadline=deadline).options
        return self._start_call(known, options, (), dict(input or {}))

    def spawn(
        self,
        workflow: str | Workflow[Any, R],
        /,
        input: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        workspace: str | int | None = None,
        delay: timedelta | float | None = None,
        deadline: timedelta | float | datetime | None = None,
    ) -> Handle[R]:
        """As `start`, in a transaction of its own, committed at once."""
        known: Workflow[Any, Any] = self.registry.latest(workflow) if isinstance(workflow, str) else workflow
        options = known.using(key=key, workspace=workspace, delay=delay, deadline=deadline).options
        return self._spawn_call(known, options, (), dict(input or {}))

    def _start_call(
        self, workflow: Workflow[Any, R], options: StartOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Handle[R]:
        runtime = current_runtime()
        new_run = service.new_run(runtime, workflow, options, args, kwargs)
        running = outside_steps()
        if running is not None:
            run_id, created = running.start_run(new_run)
            return Handle(run_id, created, runtime, workflow.codec.result)
        return self._handle(runtime, workflow, new_run, runtime.sessions.start([new_run]))

    def _spawn_call(
        self, workflow: Workflow[Any, R], options: StartOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Handle[R]:
        if outside_steps() is not None:
            return self._start_call(workflow, options, args, kwargs)
        runtime = current_runtime()
        new_run = service.new_run(runtime, workflow, options, args, kwargs)
        holder = service.spawn(runtime, workflow, new_run)
        return Handle(holder, holder == new_run.id, runtime, workflow.codec.result)

    def _start_many(
        self, workflow: Workflow[Any, R], options: StartOptions, inputs: Iterable[Mapping[str, Any]]
    ) -> list[Handle[R]]:
        runtime = current_runtime()
        running = outside_steps()
        if running is not None:
            return [self._start_call(workflow, options, (), dict(input)) for input in inputs]
        new_runs = [service.new_run(runtime, workflow, options, (), dict(input)) for input in inputs]
        holders = runtime.sessions.start(new_runs) if new_runs else {}
        return [self._handle(runtime, workflow, new_run, holders) for new_run in new_runs]

    def _handle(
        self, runtime: Runtime, workflow: Workflow[Any, R], new_run: NewRun, holders: Mapping[str, str]
    ) -> Handle[R]:
        holder = holders.get(new_run.id, new_run.id)
        runtime.recorded(new_run, holder, workflow)
        return Handle(holder, holder == new_run.id, runtime, workflow.codec.result)

    # Looking after runs ------------------------------------------------------------------------

    def handle(self, run_id: str) -> Handle[Any]:
        """A handle on a run known by its id."""
        runtime = current_runtime()
        run = service.get(runtime, run_id)
        workflow = self.registry.resume(run.workflow, run.version)
        return Handle(run_id, False, runtime, None if workflow is None else workflow.codec.result)

    def get(self, run_id: str) -> Run:
        """The run. Raises `RunNotFound`."""
        return service.get(current_runtime(), run_id)

    def details(self, run_id: str) -> RunDetails:
        """The run with its recorded calls. Raises `RunNotFound`."""
        return service.details(current_runtime(), run_id)

    def runs(self, query: RunQuery | None = None) -> Sequence[Run]:
        """The newest runs that match, without their payloads."""
        return self.page(query).runs

    def page(self, query: RunQuery | None = None) -> Page:
        """As `runs`, with the cursors of the pages before and after."""
        return service.page(current_runtime(), query if query is not None else RunQuery())

    def emitted(self, name: str | None = None, *, limit: int = 50) -> Sequence[EmittedEvent]:
        """The newest events and messages, matched or not, of one name or of all; they stay until they are pruned."""
        return service.emitted(current_runtime(), name, limit)

    def cancel(
        self, run_id: str, *, epoch: int | None = None, cancel_children: bool = True, by: By | None = None
    ) -> Run:
        """End a run, at once or before its next step. Raises `RunFinished`, `RunNotFound`, `RunChanged`.

        The unfinished runs it started, and those they started, are cancelled with it, unless told otherwise.

        With `by` the action leaves a row in the audit, as the next three do.
        """
        return service.cancel(current_runtime(), run_id, epoch, by, children=cancel_children)

    def retry(
        self, run_id: str, *, from_step: str | None = None, epoch: int | None = None, by: By | None = None
    ) -> Run:
        """Run a failed or cancelled run again from where it stopped. Raises `RunNotFailed`, `KeyTaken` and others.

        With `from_step`, the key of a recorded call, that call and all later ones are forgotten and made anew.
        """
        return service.retry(current_runtime(), run_id, epoch, by, from_step=from_step)

    def fork(self, run_id: str, from_step: str, *, by: By | None = None) -> Handle[Any]:
        """Start a new run that takes over what a run recorded before a call, and goes on from there.

        The other run stays as it is. Raises `RunNotFound` and `StepNotFound`.
        """
        return self.handle(service.fork(current_runtime(), run_id, from_step, by))

    def pause(self, run_id: str, *, epoch: int | None = None, by: By | None = None) -> Run:
        """Let nothing new of a run be executed until it is resumed; a step under way may still be stored.

        Events, messages and timers come as ever, and count once it is resumed; so does its deadline. Pausing a paused
        run changes nothing. Raises `RunFinished`, `RunNotFound`, `RunChanged`.
        """
        return service.pause(current_runtime(), run_id, epoch, by)

    def resume(self, run_id: str, *, epoch: int | None = None, by: By | None = None) -> Run:
        """Let a paused run go on. Raises `RunNotPaused`, `RunNotFound`, `RunChanged`."""
        return service.resume(current_runtime(), run_id, epoch, by)

    def wake(self, run_id: str, *, epoch: int | None = None, at: datetime | None = None, by: By | None = None) -> Run:
        """End a run's sleep now, or `at` another instant.

        Raises `RunNotSleeping`, `RunFinished`, `RunNotFound`, `RunChanged`.
        """
        return service.wake(current_runtime(), run_id, epoch, at, by)

    def release(self, run_id: str, *, epoch: int | None = None, by: By | None = None) -> Run:
        """Let another worker take a run over now, where the one that holds it is lost.

        Raises `RunNotLost`, `RunNotFound`, `RunChanged`.
        """
        return service.release(current_runtime(), run_id, epoch, by)

    def cancel_workspace(self, workspace: str | int, *, by: By | None = None) -> int:
        """Cancel every unfinished run of a workspace; answer how many."""
        return service.cancel_workspace(current_runtime(), check_label(as_text(workspace), "workspace"), by)

    def prune(self, older_than: timedelta | None = None, *, dry_run: bool = False) -> int:
        """Delete runs that finished longer ago; answer how many went, or would go."""
        return service.prune(current_runtime(), older_than, dry_run=dry_run)

    # Executing -----------------------------------------------------------------------------

    def tick(self, now: datetime | None = None) -> int:
        """Execute on this thread what is due, now or at the given instant; answer the number of executions."""
        runtime = current_runtime()
        runtime.sessions.refuse_if_busy("tick()")
        with self._at(now):
            return runtime.drain()

    def worker(self, *, concurrency: int | None = None, queues: Sequence[str] = (), name: str | None = None) -> Worker:
        """A worker for the current app; call its `run`."""
        if isinstance(queues, str):
            raise DefinitionError(f"queues={queues!r} is one text: write a list of names")
        runtime = current_runtime()
        runtime.import_modules()
        return Worker(runtime, concurrency=concurrency, queues=queues, name=name)

    def clock_ms(self) -> int | None:
        """The instant every statement is to use, in Unix ms; null where the database's clock is."""
        if self._tick_ms is not None:
            return self._tick_ms
        return None if self.clock is None else instant_ms(self.clock.now(), what="the clock's now()")

    @contextmanager
    def _at(self, now: datetime | None) -> Iterator[None]:
        before = self._tick_ms
        self._tick_ms = before if now is None else instant_ms(now, what="tick(now=…)")
        try:
            yield
        finally:
            self._tick_ms = before


_WORKFLOW = {"name": None, "version": 1, "min_version": None, "queue": None, "strict": True, "timeout": None}


class _Declare(Protocol):
    """`@workflow(…)`: takes the function, with the context as its first parameter or without."""

    @overload
    def __call__(self, function: Callable[Concatenate[WorkflowContext, P], R], /) -> Workflow[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...
