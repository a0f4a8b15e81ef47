"""`flask workflows …`: the worker, and what an operator does with runs."""

from __future__ import annotations

import getpass
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa
from click.core import ParameterSource
from flask.cli import AppGroup
from flask.cli import ScriptInfo

from flask_workflows import phrases
from flask_workflows import revisions
from flask_workflows import service
from flask_workflows import terminal
from flask_workflows.audit import By
from flask_workflows.beside import look_beside
from flask_workflows.durations import from_ms
from flask_workflows.durations import read_duration
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidName
from flask_workflows.errors import KeyBusy
from flask_workflows.errors import KeyTaken
from flask_workflows.errors import NotRegistered
from flask_workflows.errors import RunChanged
from flask_workflows.errors import RunFinished
from flask_workflows.errors import RunNotFailed
from flask_workflows.errors import RunNotFound
from flask_workflows.errors import RunNotLost
from flask_workflows.errors import RunNotSleeping
from flask_workflows.errors import SchemaError
from flask_workflows.errors import SetupError
from flask_workflows.errors import StepNotFound
from flask_workflows.errors import UndecodableValue
from flask_workflows.errors import UnregisteredEvent
from flask_workflows.errors import ValueRefused
from flask_workflows.errors import WorkflowsError
from flask_workflows.explain import Surroundings
from flask_workflows.logs import configure_worker_logging
from flask_workflows.names import check_label
from flask_workflows.records import details_record
from flask_workflows.records import record
from flask_workflows.replaying import Diverged
from flask_workflows.replaying import replay
from flask_workflows.runs import LIVE
from flask_workflows.runs import Run
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.runtime import current_runtime
from flask_workflows.runtime import Runtime
from flask_workflows.store.reading import count_ahead
from flask_workflows.store.reading import count_same_cause
from flask_workflows.store.reading import list_audit
from flask_workflows.store.reading import list_runs
from flask_workflows.store.reading import live_workers
from flask_workflows.store.reading import read_open_steps
from flask_workflows.store.reading import reading
from flask_workflows.values import loads

logger = logging.getLogger("flask_workflows")


class _Refused(click.ClickException):
    """An error made on purpose: one line, and the exit code of its kind."""


class _NotFound(_Refused):
    exit_code = 3


class _Conflict(_Refused):
    exit_code = 4


def _refusal(error: WorkflowsError) -> _Refused:
    line = terminal.printable(" ".join(str(error).split()))
    match error:
        case RunNotFound() | StepNotFound() | NotRegistered() | UnregisteredEvent():
            return _NotFound(line)
        case RunFinished() | RunNotFailed() | RunNotSleeping() | RunNotLost():
            return _Conflict(line)
        case RunChanged() | KeyTaken() | KeyBusy():
            return _Conflict(line)
        case _:
            return _Refused(line)


class _Workflows(AppGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WorkflowsError as error:
            raise _refusal(error) from error
        except Exception as error:
            fault = _fault_of_database(ctx, error)
            if fault is None:
                raise
            raise _refusal(fault) from error


def _fault_of_database(ctx: click.Context, error: Exception) -> SchemaError | None:
    """What is wrong with the database, if that explains the error of a driver."""
    with ctx.ensure_object(ScriptInfo).load_app().app_context():
        runtime = current_runtime()
        try:
            driver = runtime.engine.dialect.loaded_dbapi
            if isinstance(error, sa.exc.DBAPIError | driver.Error):
                runtime.check_schema()
        except SchemaError as fault:
            return fault
        except SetupError:
            # Without a database there is no schema to blame.
            return None
    return None


@click.group(cls=_Workflows)
def workflows_group() -> None:
    """Execute workflows and look after their runs.

    Exit codes: 0 done; 1 refused, or an error; 2 wrong usage; 3 no such run or
    workflow; 4 the run's state, or somebody else's action, does not allow it.
    """


workflows_group.name = "workflows"


def _label(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse text that could not be the name of anything, before a database driver stumbles over it."""
    try:
        for text in value if isinstance(value, tuple) else (value,):
            if text is not None:
                check_label(text, "value")
    except InvalidName as error:
        raise click.BadParameter(str(error)) from error
    return value


_run_id = click.argument("run_id", metavar="ID", callback=_label)
_reason = click.option("--reason", default="", help="Why, for the audit.")


def _by(reason: str) -> By:
    """Who acts on the command line, and why."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # In a container the user may have no name.
        user = str(os.getuid())
    return By(f"cli:{user}@{socket.gethostname()}", reason=reason)


# Executing ---------------------------------------------------------------------------------


@workflows_group.command()
@click.option(
    "--concurrency", type=click.IntRange(1, 512), help="Runs executed at once; WORKFLOWS_CONCURRENCY by default."
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    callback=_label,
    help="Serve this queue; may be repeated. All queues by default.",
)
@click.option("--name", callback=_label, help="What the worker is called; host and process by default.")
def work(concurrency: int | None, queues: tuple[str, ...], name: str | None) -> None:
    """Execute runs until SIGTERM or SIGINT.

    Then runs under way may go on for WORKFLOWS_DRAIN_SECS, the rest is handed back,
    and the exit code is 0. A second signal ends at once, with 128 and its number. With 1 it
    ends by itself, where a thread of its own died, or too many are stuck in steps that timed out.
    """
    with _ending_quietly():
        configure_worker_logging(current_runtime().app)
        runtime = _importing_runtime()
        _warn_of_unknown_queues(runtime, queues)
        worker = runtime.workflows.worker(concurrency=concurrency, queues=queues, name=name)
        code = worker.run()
    if worker.abandoned:
        # Threads of the app's code still run, and the interpreter would wait for them.
        logging.shutdown()
        os._exit(code)
    sys.exit(code)


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """Exit with 0 on a signal that comes before the worker handles them itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _warn_of_unknown_queues(runtime: Runtime, queues: tuple[str, ...]) -> None:
    known = {workflow.queue or runtime.config.queue for workflow in runtime.registry.workflows()}
    for queue in queues:
        if queue not in known:
            logger.warning(
                "no registered workflow is in the queue %r (registered: %s)", queue, ", ".join(sorted(known)) or "none"
            )


@workflows_group.command()
def tick() -> None:
    """Execute what is due now, here, and exit."""
    count = _importing_runtime().workflows.tick()
    click.echo(f"{count} executed")


# Looking -----------------------------------------------------------------------------------


@workflows_group.command("list")
@click.option("--workflow", callback=_label, help="Only runs of this workflow.")
@click.option("--status", type=click.Choice([status.value for status in RunStatus]))
@click.option("--workspace", callback=_label, help="Only runs of this workspace.")
@click.option("--queue", callback=_label, help="Only runs in this queue.")
@click.option("--key", callback=_label, help="Only runs started with this key.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@click.option("--cursor", help="Go on where the last list ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--registered", is_flag=True, help="List the app's workflows instead of runs.")
def list_(as_json: bool, registered: bool, **filters: Any) -> None:
    """List runs, the newest first. Times are in UTC."""
    if registered:
        _refuse_filters(filters)
        _list_registered(as_json)
        return

    status = filters.pop("status")
    query = RunQuery(status=status and RunStatus(status), **filters)
    runtime = current_runtime()
    page = runtime.workflows.page(query)
    if as_json:
        _print_json({"runs": [record(run) for run in page.runs], "older": page.older})
        return

    around = _surroundings(runtime)
    with reading(runtime.engine) as connection:
        open_steps = read_open_steps(connection, [run.id for run in page.runs if not run.finished])
    for run in page.runs:
        click.echo(terminal.run_line(run, open_steps.get(run.id, ()), around))
    if page.older is not None:
        click.echo(f"more with --cursor {page.older}", err=True)


def _refuse_filters(filters: dict[str, Any]) -> None:
    context = click.get_current_context()
    for name in filters:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is for runs, not with --registered")


def _list_registered(as_json: bool) -> None:
    runtime = _importing_runtime()
    workflows = runtime.registry.workflows()
    default = runtime.config.queue
    if not as_json:
        for workflow in workflows:
            click.echo(terminal.workflow_line(workflow, default))
        return

    _print_json(
        [
            {
                "name": workflow.name,
                "version": workflow.version,
                "min_version": workflow.min_version,
                "queue": workflow.queue or default,
                "description": workflow.description,
            }
            for workflow in workflows
        ]
    )


@workflows_group.command()
@_run_id
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(run_id: str, as_json: bool) -> None:
    """Show a run with its steps. What looks like a secret is hidden."""
    runtime = current_runtime()
    details = runtime.workflows.details(run_id)
    if as_json:
        _print_json(details_record(details))
        return

    run = details.run
    around = _surroundings(runtime, run)
    open_steps = [step for step in details.steps if not step.finished]
    with reading(runtime.engine) as connection:
        history = list_audit(connection, run_id=run.id).entries
        beside = look_beside(connection, run, open_steps, around, history=history)
        same_cause = count_same_cause(connection, run, None)
    for line in terminal.run_lines(details, around, beside, same_cause):
        click.echo(line)


@workflows_group.command()
@click.option("--replay", "replays", is_flag=True, help="Replay the unfinished runs against the code at hand, too.")
@click.option("--workflow", callback=_label, help="With --replay: only runs of this workflow.")
def check(replays: bool, workflow: str | None) -> None:
    """Check that the modules import, that the tables are there, and that there is code for every unfinished run.

    With --replay, meant to be run with the new code before it is deployed, the body of each unfinished run is called
    with what is recorded. No step is executed and nothing is written. The first call that differs is told for each run,
    as recorded and as made now, and the exit code is 1.
    """
    if workflow is not None and not replays:
        raise click.UsageError("--workflow goes with --replay")
    runtime = _importing_runtime()
    if workflow is not None:
        runtime.registry.latest(workflow)
    runtime.check_schema()
    count = len(runtime.registry.workflows())
    click.echo(f"ok: {runtime.engine.url!s}, {phrases.several(count, 'workflow')}")
    for orphan in runtime.orphans():
        click.echo(f"no code here for the unfinished runs of {orphan}: they wait for a worker that has it", err=True)
    if replays:
        _check_replays(runtime, workflow)


def _check_replays(runtime: Runtime, workflow: str | None) -> None:
    """Tell what diverges; exit with 1 where something does."""
    replayed = diverged = 0
    for run in _unfinished(runtime, workflow):
        if runtime.registry.resume(run.workflow, run.version) is None:
            continue
        replayed += 1
        try:
            replay(runtime, run)
        except Diverged as error:
            diverged += 1
            click.echo(str(error))
    told = f"{phrases.several(replayed, 'run')} replayed, {phrases.number(diverged)} diverged"
    click.echo(told, err=bool(diverged))
    if diverged:
        raise SystemExit(1)


def _unfinished(runtime: Runtime, workflow: str | None) -> Iterator[Run]:
    """The unfinished runs with their inputs, newest first within each status."""
    for status in LIVE:
        cursor: str | None = None
        while True:
            query = RunQuery(workflow=workflow, status=status, limit=100, cursor=cursor)
            with reading(runtime.engine) as connection:
                page = list_runs(connection, query, payloads=True)
            yield from page.runs
            cursor = page.older
            if cursor is None:
                break


# Acting ------------------------------------------------------------------------------------


def _read_input(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """The text itself, a file's after `@`, or what comes in for `-`."""
    try:
        if value == "-":
            return sys.stdin.buffer.read().decode()
        if value.startswith("@"):
            return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot be read: {error}") from error
    return value


def _json(text: str, option: str) -> Any:
    try:
        return loads(text)
    except UndecodableValue as error:
        raise click.BadParameter(f"it is {error}", param_hint=option) from error


def _read_delay(ctx: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    try:
        return read_duration(value)
    except InvalidDuration as error:
        raise click.BadParameter(str(error)) from error


@workflows_group.command()
@click.argument("name")
@click.option(
    "--input",
    "text",
    default="{}",
    callback=_read_input,
    metavar="JSON|@FILE|-",
    help="The arguments by name, as a JSON object; @FILE reads a file, - standard input.",
)
@click.option("--key", callback=_label, help="While an unfinished run has the key, start no other.")
@click.option("--workspace", callback=_label, help="The workspace the run belongs to.")
@click.option("--delay", callback=_read_delay, help="Begin later: in seconds, or 10m, 12h, 7d.")
@click.option(
    "--deadline", callback=_read_delay, help="Fail unless it has finished by then: in seconds, or 10m, 12h, 7d."
)
@_reason
def start(
    name: str,
    text: str,
    key: str | None,
    workspace: str | None,
    delay: timedelta | None,
    deadline: timedelta | None,
    reason: str,
) -> None:
    """Start a run of the workflow NAME and print its id."""
    runtime = _importing_runtime()
    input = _json(text, "'--input'")
    try:
        run_id, created = service.start(
            runtime, name, input, key=key, workspace=workspace, delay=delay, deadline=deadline, by=_by(reason)
        )
    except (UndecodableValue, ValueRefused) as error:
        raise click.BadParameter(str(error), param_hint="'--input'") from error
    except InvalidDuration as error:
        raise click.UsageError(str(error)) from error

    click.echo(run_id)
    if not created:
        click.echo(f"already started with the key {key!r}, and not finished", err=True)


@workflows_group.command()
@click.argument("name")
@click.option(
    "--payload",
    "text",
    default="null",
    callback=_read_input,
    metavar="JSON|@FILE|-",
    help="What the event carries, as JSON; @FILE reads a file, - standard input.",
)
@click.option("--workspace", callback=_label, help="Wake only the runs of this workspace.")
@click.option(
    "--delivery-id", callback=_label, help="Your own id; an event with it that is stored already is the same."
)
@_reason
def emit(name: str, text: str, workspace: str | None, delivery_id: str | None, reason: str) -> None:
    """Emit the event NAME, committed at once."""
    runtime = _importing_runtime()
    payload = _json(text, "'--payload'")
    try:
        _, created = service.deliver(
            runtime, name, payload, workspace=workspace, delivery_id=delivery_id, by=_by(reason)
        )
    except ValueRefused as error:
        raise click.BadParameter(str(error), param_hint="'--payload'") from error
    click.echo("emitted" if created else f"already there with the delivery id {delivery_id!r}")


@workflows_group.command()
@_run_id
@_reason
@click.option("--keep-children", is_flag=True, help="Let the runs it started go on.")
def cancel(run_id: str, keep_children: bool, reason: str) -> None:
    """Cancel a run, at once or before its next step, and the unfinished runs it started."""
    _print_run(service.cancel(current_runtime(), run_id, by=_by(reason), children=not keep_children))


@workflows_group.command()
@_run_id
@_reason
@click.option("--from", "from_step", metavar="STEP", help="Forget this recorded call and all later ones, too.")
def retry(run_id: str, from_step: str | None, reason: str) -> None:
    """Run a failed or cancelled run again from where it stopped."""
    _print_run(service.retry(_importing_runtime(), run_id, by=_by(reason), from_step=from_step))


@workflows_group.command()
@_run_id
@click.option("--from", "from_step", metavar="STEP", required=True, help="The first recorded call it does anew.")
@_reason
def fork(run_id: str, from_step: str, reason: str) -> None:
    """Start a new run that takes over what a run recorded before a call."""
    runtime = _importing_runtime()
    _print_run(service.get(runtime, service.fork(runtime, run_id, from_step, _by(reason))))


@workflows_group.command()
@_run_id
@_reason
def pause(run_id: str, reason: str) -> None:
    """Let nothing new of a run be executed until it is resumed."""
    _print_run(service.pause(current_runtime(), run_id, by=_by(reason)))


@workflows_group.command()
@_run_id
@_reason
def resume(run_id: str, reason: str) -> None:
    """Let a paused run go on."""
    _print_run(service.resume(_importing_runtime(), run_id, by=_by(reason)))


def _read_instant(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time; write 2026-12-24T09:00Z") from None
    if instant.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone; write {value}Z for UTC, or an offset such as +01:00")
    return instant


@workflows_group.command()
@_run_id
@click.option("--at", callback=_read_instant, metavar="TIME", help="Then instead of now, such as 2026-12-24T09:00Z.")
@_reason
def wake(run_id: str, at: datetime | None, reason: str) -> None:
    """End a run's sleep now, or at another time."""
    _print_run(service.wake(_importing_runtime(), run_id, at=at, by=_by(reason)))


@workflows_group.command()
@_run_id
@_reason
def release(run_id: str, reason: str) -> None:
    """Let another worker take over a run whose worker is lost."""
    _print_run(service.release(_importing_runtime(), run_id, by=_by(reason)))


def _print_run(run: Run) -> None:
    click.echo(terminal.run_line(run))


@workflows_group.command()
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(0, 36_500),
    metavar="DAYS",
    help="Age from which runs go; WORKFLOWS_PRUNE_AFTER_DAYS by default.",
)
@click.option("--dry-run", is_flag=True, help="Count them, and delete nothing.")
def prune(days: int | None, dry_run: bool) -> None:
    """Delete finished runs and their steps, and old entries of the audit."""
    runtime = current_runtime()
    older_than = None if days is None else timedelta(days=days)
    count = runtime.workflows.prune(older_than, dry_run=dry_run)
    if days is None and runtime.config.prune_after_days == 0:
        click.echo("WORKFLOWS_PRUNE_AFTER_DAYS is 0, so runs are kept", err=True)
        return

    click.echo(f"{phrases.several(count, 'run')} {'to delete' if dry_run else 'deleted'}")


@workflows_group.command()
@click.option("--directory", help="The migrations folder; Flask-Migrate's by default.")
def install(directory: str | None) -> None:
    """Copy the revisions that make the tables into the app's migrations."""
    paths = revisions.install(directory)
    for path in paths:
        click.echo(f"made {path}")
    click.echo("now run `flask db upgrade`" if paths else "nothing to do")


# Shared ------------------------------------------------------------------------------------


def _importing_runtime() -> Runtime:
    """The runtime with every workflow registered. An error of an app's module comes through whole."""
    runtime = current_runtime()
    runtime.import_modules()
    return runtime


def _surroundings(runtime: Runtime, run: Run | None = None) -> Surroundings:
    """What is known beside the runs."""
    now = from_ms(runtime.store.now())
    known = _known(runtime)
    with reading(runtime.engine) as connection:
        return Surroundings(
            now=now,
            workers=live_workers(connection, now),
            known=known,
            tries=runtime.registry.tries(runtime.config.step_attempts),
            keep_days=runtime.config.prune_after_days,
            ahead=count_ahead(connection, run) if run is not None and run.status is RunStatus.PENDING else None,
        )


def _known(runtime: Runtime) -> Mapping[str, Sequence[tuple[int, int]]] | None:
    """What the code here can execute; null where a module of it cannot be imported, which is no reason to show nothing."""
    try:
        runtime.import_modules()
    except Exception:
        return None
    return runtime.registry.known()


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
