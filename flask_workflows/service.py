"""What a person may ask of runs, from Python, the command line or a page: each checked, each its own transaction.

Where an `epoch` is given, the action is done only if the run is still as it was seen then. Where `by` says who acts,
the action leaves a row in the audit, in its transaction; one that did nothing leaves none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from typing import Any

from . import signals
from .audit import By
from .definition import as_text
from .definition import StartOptions
from .definition import Workflow
from .durations import instant_ms
from .durations import to_ms
from .errors import KeyTaken
from .errors import NotRegistered
from .errors import RunChanged
from .errors import RunCompensated
from .errors import RunFinished
from .errors import RunNotFailed
from .errors import RunNotFound
from .errors import RunNotLost
from .errors import RunNotPaused
from .errors import RunNotSleeping
from .errors import StepNotFound
from .forgetting import failed_last
from .forgetting import from_call
from .names import check_label
from .names import id_at
from .names import new_id
from .runs import EmittedEvent
from .runs import Page
from .runs import Run
from .runs import RunDetails
from .runs import RunQuery
from .runs import RunStatus
from .runs import WouldWake
from .runtime import Runtime
from .store import NewEvent
from .store import NewRun
from .store import StoredStep
from .store.actions import Finished
from .store.actions import Moved
from .store.reading import find_worker
from .store.reading import list_events
from .store.reading import list_runs
from .store.reading import read_details
from .store.reading import read_run
from .store.reading import reading
from .store.reading import waits_for
from .store.reading import WORKER_SILENCE
from .values import loads
from .values import value_codec

PRUNE_BATCH = 500
#: Of an event's delivery id that is stored as it is.
DELIVERY_ID_BYTES = 600
#: How long each quarter of an hour has statistics of its own.
KEEP_STATS = timedelta(days=35)
#: Recorded calls that a fork takes over.
KEPT = ("completed", "failed", "pushed")
UNFINISHED = tuple(status for status in RunStatus if not status.finished)


def get(runtime: Runtime, run_id: str) -> Run:
    """The run. Raises `RunNotFound`."""
    with reading(runtime.engine) as connection:
        run = read_run(connection, run_id)
    if run is None:
        raise _unknown(run_id)
    return run


def details(runtime: Runtime, run_id: str) -> RunDetails:
    """The run with its recorded calls. Raises `RunNotFound`."""
    with reading(runtime.engine) as connection:
        found = read_details(connection, run_id)
    if found is None:
        raise _unknown(run_id)
    return found


def page(runtime: Runtime, query: RunQuery) -> Page:
    """Runs, newest first, without their payloads."""
    with reading(runtime.engine) as connection:
        return list_runs(connection, query)


def emitted(runtime: Runtime, name: str | None, limit: int) -> tuple[EmittedEvent, ...]:
    """The newest events, of one name or of all."""
    with reading(runtime.engine) as connection:
        return list_events(connection, name, limit=limit)


# Runs --------------------------------------------------------------------------------------


def cancel(
    runtime: Runtime, run_id: str, epoch: int | None = None, by: By | None = None, *, children: bool = True
) -> Run:
    """End a run; one that is executed now ends before its next step. Raises `RunFinished` if it has ended already.

    Its unfinished `children`, and theirs, are ended with it, in the same transaction.
    """
    run = get(runtime, run_id)
    if run.finished:
        raise RunFinished(
            f"run {run_id} is {run.status} since {run.finished_at:%Y-%m-%d %H:%M:%S} UTC: nothing was done"
        )
    if run.undoing:
        raise RunFinished(f"run {run_id} has ended, and what it did is being undone: nothing was done")
    runtime.sessions.refuse_if_busy("cancel()")
    done, ended = runtime.actions.cancel(run_id, epoch, by, children=children)
    if not done:
        after = get(runtime, run_id)
        if after.finished:
            raise RunFinished(f"run {run_id} became {after.status} just now: nothing was done")
        raise _changed(run_id)
    after = get(runtime, run_id)
    for child, workflow in ended:
        signals.send_cancelled(runtime.app, child, workflow)
    if after.status is RunStatus.CANCELLED:
        signals.send_cancelled(runtime.app, run_id, run.workflow)
    # Whoever waits for one of them goes on.
    runtime.announce()
    return after


def cancel_workspace(runtime: Runtime, workspace: str, by: By | None = None) -> int:
    """Cancel every unfinished run of a workspace, as when it is deleted; answer how many."""
    cancelled = 0
    while found := _cancel_those(runtime, workspace, by):
        # Runs move on while others are cancelled: until none is left in any state.
        cancelled += found
    return cancelled


def _cancel_those(runtime: Runtime, workspace: str, by: By | None) -> int:
    cancelled = 0
    for status in UNFINISHED:
        cursor: str | None = None
        while True:
            found = page(runtime, RunQuery(workspace=workspace, status=status, limit=100, cursor=cursor))
            for run in found.runs:
                if run.cancelling:
                    continue
                with suppress(RunFinished, RunNotFound):
                    cancel(runtime, run.id, by=by)
                    cancelled += 1
            cursor = found.older
            if cursor is None:
                break
    return cancelled


def retry(
    runtime: Runtime, run_id: str, epoch: int | None = None, by: By | None = None, *, from_step: str | None = None
) -> Run:
    """Make a failed or cancelled run due again, with fresh attempts for the calls that failed last.

    With `from_step`, the key of a recorded call, that one and all that came after it are forgotten and made anew;
    what was recorded before stays. Raises `RunNotFailed` in any other state, `RunCompensated` where it was undone,
    `KeyTaken` where a newer run holds its key, and `StepNotFound`.
    """
    run = get(runtime, run_id)
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise RunNotFailed(f"run {run_id} is {run.status}: only a failed or cancelled run can be retried")
    if run.undone:
        raise _compensated(run_id)
    if epoch is not None and epoch != run.epoch:
        raise _changed(run_id)
    runtime.sessions.refuse_if_busy("retry()")
    stored = runtime.store.histories([run_id])[run_id]
    forget = failed_last(stored) if from_step is None else _from_call(run_id, stored, from_step)
    try:
        done = runtime.actions.retry(run_id, run.epoch, forget, by, from_step=from_step)
    except Exception as error:
        if not runtime.store.dialect.is_duplicate(error):
            raise
        raise KeyTaken(
            f"run {run_id} cannot be retried: a newer unfinished run of {run.workflow!r} has its key {run.key!r}; "
            "cancel that one first, or leave this one as it is"
        ) from None
    if not done:
        raise _changed(run_id)
    runtime.announce()
    return get(runtime, run_id)


def fork(
    runtime: Runtime,
    run_id: str,
    from_step: str,
    by: By | None = None,
    *,
    epoch: int | None = None,
    new: str | None = None,
) -> str:
    """Start a new run that takes over what another recorded before a call, and goes on from there; answer its id.

    The other stays as it is. The new run has its workflow, version, input, queue and workspace, but no key, and the
    workflow's own time-out. With `new`, an id made by `new_id`, it is done once however often it is asked for. Raises
    `RunNotFound`, `StepNotFound`, `RunCompensated` where the other is, or was, undone, and `NotRegistered` for the
    package's own workflows.
    """
    run = get(runtime, run_id)
    if new is not None and _exists(runtime, new, run.workflow):
        return new
    if runtime.registry.is_own(run.workflow):
        raise NotRegistered(f"{run.workflow!r} is a workflow of the package's own: it is not started by hand")
    if run.undone:
        raise _compensated(run_id)
    if epoch is not None and epoch != run.epoch:
        raise _changed(run_id)
    stored = runtime.store.histories([run_id])[run_id]
    forgotten = set(_from_call(run_id, stored, from_step))
    # What is not over in the other run is done by that one.
    kept = [step.key for step in stored if step.key not in forgotten and step.status in KEPT]
    new = new or new_id(runtime.workflows.clock_ms())
    runtime.sessions.refuse_if_busy("fork()")
    workflow = runtime.registry.resume(run.workflow, run.version)
    made = NewRun(
        id=new,
        workflow=run.workflow,
        version=run.version,
        queue=run.queue,
        workspace=run.workspace,
        key=None,
        input=str(run.input_json),
        max_attempts=run.max_attempts,
        delay_ms=None,
        deadline_ms=None if workflow is None else workflow.timeout_ms,
    )
    try:
        runtime.actions.fork(made, run_id, run.epoch, kept, from_step, by)
    except Moved:
        raise _changed(run_id) from None
    except Exception as error:
        # Asked for twice at the same moment.
        if not runtime.store.dialect.is_duplicate(error) or not _exists(runtime, new, run.workflow):
            raise
        return new
    runtime.started([new])
    return new


def _from_call(run_id: str, stored: Sequence[StoredStep], key: str) -> list[str]:
    found = from_call(stored, key)
    if not found:
        raise StepNotFound(f"run {run_id} has no recorded call {key!r}: look at its steps for their keys")
    return found


def wake(
    runtime: Runtime, run_id: str, epoch: int | None = None, at: datetime | None = None, by: By | None = None
) -> Run:
    """End a run's sleep, or its wait for a retry, now, or let it end `at` another instant.

    Raises `RunNotSleeping` in any other state. An instant that is past means now.
    """
    until = None if at is None else instant_ms(at, what="at")
    run = get(runtime, run_id)
    if run.finished:
        raise RunFinished(f"run {run_id} is {run.status}: there is nothing to wake")
    if run.status is not RunStatus.SLEEPING:
        raise RunNotSleeping(f"run {run_id} is {run.status}: only a sleeping run can be woken")
    runtime.sessions.refuse_if_busy("wake()")
    actions = runtime.actions
    done = actions.wake(run_id, epoch, by) if until is None else actions.move(run_id, epoch, until, by)
    if not done:
        raise _changed(run_id)
    runtime.announce()
    return get(runtime, run_id)


def pause(runtime: Runtime, run_id: str, epoch: int | None = None, by: By | None = None) -> Run:
    """Let nothing new of a run be executed until it is resumed; one that is executed now stops before its next step.

    What it waits for still ends its wait, but it goes on only then; its deadline is looked at then, too. A paused run
    stays as it is. Raises `RunFinished` where it has ended, or is to end.
    """
    run = get(runtime, run_id)
    if run.paused and epoch in (None, run.epoch):
        return run
    _refuse_ending(run, "paused")
    runtime.sessions.refuse_if_busy("pause()")
    if not runtime.actions.pause(run_id, epoch, by):
        after = get(runtime, run_id)
        if after.paused and epoch in (None, after.epoch):
            return after
        _refuse_ending(after, "paused")
        raise _changed(run_id)
    return get(runtime, run_id)


def resume(runtime: Runtime, run_id: str, epoch: int | None = None, by: By | None = None) -> Run:
    """Let a paused run go on. Raises `RunNotPaused` of any other."""
    run = get(runtime, run_id)
    if not run.paused:
        raise RunNotPaused(f"run {run_id} is {run.status}, and not paused: there is nothing to resume")
    runtime.sessions.refuse_if_busy("resume()")
    if not runtime.actions.resume(run_id, epoch, by):
        after = get(runtime, run_id)
        if not after.paused:
            raise RunNotPaused(f"run {run_id} was resumed, or ended, just now: it is {after.status}")
        raise _changed(run_id)
    runtime.announce()
    return get(runtime, run_id)


def _refuse_ending(run: Run, what: str) -> None:
    if run.finished:
        raise RunFinished(f"run {run.id} is {run.status}: it cannot be {what}")
    if run.cancelling and not run.undoing:
        raise RunFinished(f"run {run.id} is being cancelled: it cannot be {what}")


def lost_after(runtime: Runtime) -> timedelta:
    """A worker that was not seen for this long is lost: its lease, or three of its heartbeats where that is longer."""
    return max(timedelta(seconds=runtime.config.lock_timeout_secs), WORKER_SILENCE)


def release(runtime: Runtime, run_id: str, epoch: int | None = None, by: By | None = None) -> Run:
    """Let another worker take a run over at once, where the one that holds it is lost: stopped, unknown, or silent.

    Raises `RunNotLost` of any other run. Should the worker be alive after all, it writes nothing more to the run.
    """
    run = get(runtime, run_id)
    if run.finished or run.worker is None:
        raise RunNotLost(f"run {run_id} is {run.status}: no worker holds it, so there is nothing to release")
    runtime.sessions.refuse_if_busy("release()")
    if not runtime.actions.release(run_id, epoch, to_ms(lost_after(runtime), what="the silence"), by):
        after = get(runtime, run_id)
        if (epoch is not None and after.epoch != epoch) or after.worker != run.worker:
            raise _changed(run_id)
        raise _not_lost(runtime, after)
    runtime.announce()
    return get(runtime, run_id)


def _not_lost(runtime: Runtime, run: Run) -> RunNotLost:
    with reading(runtime.engine) as connection:
        worker = find_worker(connection, run.worker or "")
    name, seen = ("a worker", "") if worker is None else (worker.name, f", seen {worker.seen_at:%H:%M:%S} UTC")
    return RunNotLost(
        f"run {run.id} is held by {name}{seen}: it is lost when it was not seen for "
        f"{lost_after(runtime).total_seconds():g} s; cancel the run if it is to end"
    )


# Starting ----------------------------------------------------------------------------------


def new_run(
    runtime: Runtime,
    workflow: Workflow[Any, Any],
    options: StartOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> NewRun:
    """The row of a run to start. Raises `TypeError` and `ValueRefused` where the workflow takes no such arguments."""
    config = runtime.config
    return NewRun(
        id=new_id(runtime.workflows.clock_ms()),
        workflow=workflow.name,
        version=workflow.version,
        queue=workflow.queue or config.queue,
        workspace=options.workspace,
        key=options.key,
        input=workflow.codec.dump_call(args, kwargs, where=workflow.where, max_bytes=config.max_payload_bytes),
        max_attempts=config.max_attempts,
        delay_ms=options.delay_ms,
        deadline_at=options.deadline_at,
        deadline_ms=min((ms for ms in (options.deadline_ms, workflow.timeout_ms) if ms is not None), default=None),
    )


def spawn(runtime: Runtime, workflow: Workflow[Any, Any], run: NewRun, by: By | None = None) -> str:
    """Start a run, committed at once; answer its id, or that of the unfinished run which holds its key."""
    runtime.sessions.refuse_if_busy("spawn()")
    holder = runtime.actions.start(run, by).get(run.id, run.id)
    runtime.started([run.id] if holder == run.id else [])
    runtime.recorded(run, holder, workflow)
    return holder


def start(
    runtime: Runtime,
    workflow: str,
    input: Mapping[str, Any],
    *,
    key: str | None = None,
    workspace: str | int | None = None,
    delay: timedelta | float | None = None,
    deadline: timedelta | float | datetime | None = None,
    run_id: str | None = None,
    by: By | None = None,
    own: bool = False,
) -> tuple[str, bool]:
    """Start a run with JSON values by parameter name, as they are stored; answer its id, and whether it is new.

    Where an unfinished run has the key, that is the one. With a `run_id`, made by `new_id`, the start is done once
    however often it is asked for: where that run is there already, it is the one, unless it is of another workflow:
    then `KeyTaken` is raised. `own` lets the workflow be one of the
    package's own, whose input says what it may do. Raises `NotRegistered`, `UndecodableValue` where the input does not
    fit the workflow, and `ValueRefused` where it is too large.
    """
    known = runtime.registry.latest(workflow)
    if runtime.registry.is_own(workflow) and not own:
        raise NotRegistered(f"{workflow!r} is a workflow of the package's own: it is not started by hand")
    options = known.using(key=key, workspace=workspace, delay=delay, deadline=deadline).options
    text = value_codec(noun="input").dump(input, where=known.where, max_bytes=runtime.config.max_payload_bytes)
    args, kwargs = known.codec.load_call(text, where=known.where, stored=False)
    run = new_run(runtime, known, options, args, kwargs)
    if run_id is None:
        holder = spawn(runtime, known, run, by)
        return holder, holder == run.id
    if _exists(runtime, run_id, known.name):
        return run_id, False
    try:
        holder = spawn(runtime, known, run._replace(id=run_id), by)
    except Exception as error:
        # Asked for twice at the same moment.
        if not runtime.store.dialect.is_duplicate(error) or not _exists(runtime, run_id, known.name):
            raise
        return run_id, False
    return holder, holder == run_id


def _exists(runtime: Runtime, run_id: str, workflow: str) -> bool:
    """Whether there is this run. Raises `KeyTaken` where it is one of another workflow."""
    with reading(runtime.engine) as connection:
        run = read_run(connection, run_id, payloads=False)
    if run is not None and run.workflow != workflow:
        raise KeyTaken(f"the run {run_id} is one of {run.workflow!r}: start one of {workflow!r} under an id of its own")
    return run is not None


# Events and messages -----------------------------------------------------------------------


def new_event(
    runtime: Runtime,
    event: Any,
    payload: Any,
    workspace: str | int | None,
    delivery_id: str | None = None,
    *,
    plain: bool = False,
) -> NewEvent:
    """The row of an event; a `plain` payload is JSON values as typed. Raises `UnregisteredEvent`, `ValueRefused`."""
    kind, value = runtime.workflows.events.of(event, payload)
    dump = kind.dump_plain if plain else kind.dump
    return NewEvent(
        kind.name,
        _workspace(workspace),
        dump(value, runtime.config.max_payload_bytes),
        delivery_id=None if delivery_id is None else _stored_id(check_label(delivery_id, "delivery_id")),
    )


def _stored_id(delivery_id: str) -> str:
    """The id itself, or a hash where an index entry with two names of the longest would be more than PostgreSQL takes."""
    written = delivery_id.encode()
    return delivery_id if len(written) <= DELIVERY_ID_BYTES else f"sha256:{hashlib.sha256(written).hexdigest()}"


def new_message(runtime: Runtime, run_id: str, name: str, payload: Any, delivery_id: str | None = None) -> NewEvent:
    """The row of a message to a run."""
    limit = runtime.config.max_payload_bytes
    text = value_codec(noun="payload").dump(payload, where=f"message {name!r}", max_bytes=limit)
    if delivery_id is not None:
        # One id may be used for messages to several runs, and for an event of the same name.
        told = f"{run_id}/{check_label(delivery_id, 'delivery_id')}"
        delivery_id = f"message:{hashlib.sha256(told.encode()).hexdigest()}"
    return NewEvent(check_label(name, "message name"), "", text, run_id, delivery_id)


def deliver(
    runtime: Runtime,
    name: str,
    payload: Any,
    *,
    workspace: str | int | None = None,
    delivery_id: str | None = None,
    by: By | None = None,
) -> tuple[int, bool]:
    """Emit an event with a payload of plain JSON values; answer its number, and whether it is new.

    A repeated `delivery_id` is the same event. Raises `UnregisteredEvent`, `ValueRefused`.
    """
    return deliver_event(runtime, new_event(runtime, name, payload, workspace, delivery_id, plain=True), by)


def deliver_event(runtime: Runtime, event: NewEvent, by: By | None = None) -> tuple[int, bool]:
    """As `deliver`, of an event that was made."""
    runtime.sessions.refuse_if_busy("deliver()")
    seq, created = runtime.actions.deliver(event, by)
    runtime.announce()
    return seq, created


def send(
    runtime: Runtime, run_id: str, name: str, payload_json: str, *, delivery_id: str | None = None, by: By | None = None
) -> bool:
    """Send a message to a run; true if it is new, as one with the same `delivery_id` to the same run is not.

    Raises `RunFinished` where nobody would read it, `RunNotFound`, and `UndecodableValue` for what is no JSON.
    """
    message = new_message(runtime, run_id, name, loads(payload_json), delivery_id)
    runtime.sessions.refuse_if_busy("send()")
    try:
        created = runtime.actions.send(run_id, message, by)
    except Finished as finished:
        if not finished.known:
            raise _unknown(run_id) from None
        raise RunFinished(f"run {run_id} has finished: nobody would read the message") from None
    runtime.announce()
    return created


def would_wake(
    runtime: Runtime,
    name: str,
    payload: Any,
    *,
    workspace: str | int | None = None,
    workspaces: tuple[str, ...] | None = None,
) -> WouldWake:
    """Which runs an event with this payload of plain JSON values would wake now; it is not emitted.

    Only runs of `workspaces` are looked at, of all where that is null. Raises as `deliver` does.
    """
    event = new_event(runtime, name, payload, workspace, plain=True)
    with reading(runtime.engine) as connection:
        return waits_for(connection, event.name, loads(event.payload), event.workspace, workspaces)


def _workspace(workspace: str | int | None) -> str:
    return "" if workspace is None else check_label(as_text(workspace), "workspace")


# Pruning -----------------------------------------------------------------------------------


def prune(runtime: Runtime, older_than: timedelta | None = None, *, dry_run: bool = False) -> int:
    """Delete runs that finished longer ago than `older_than`, with their steps; answer how many.

    In short transactions, so that nothing waits for it; broken off, it goes on where it is called next. `older_than`
    defaults to `WORKFLOWS_PRUNE_AFTER_DAYS`; where that is 0 no run is deleted. Entries of the audit go by
    `WORKFLOWS_AUDIT_AFTER_DAYS`, whatever `older_than` is, and statistics older than 35 days are added up.
    """
    if older_than is None and runtime.config.prune_after_days:
        older_than = timedelta(days=runtime.config.prune_after_days)
    now = runtime.store.now()
    cutoff = None if older_than is None else now - to_ms(older_than, what="older_than")
    if dry_run:
        return 0 if cutoff is None else runtime.store.count_prunable(_id_before(cutoff), cutoff)
    runtime.sessions.refuse_if_busy("prune()")
    deleted = 0 if cutoff is None else _prune_runs(runtime, cutoff)
    if runtime.config.audit_after_days:
        _prune_audit(runtime, now - to_ms(timedelta(days=runtime.config.audit_after_days), what="the age"))
    while runtime.store.roll_up(now - to_ms(KEEP_STATS, what="the age")):
        pass
    return deleted


def _prune_runs(runtime: Runtime, cutoff: int) -> int:
    deleted, last = 0, ""
    while True:
        following, gone = runtime.store.prune_page(last, _id_before(cutoff), cutoff, PRUNE_BATCH)
        deleted += gone
        if following is None:
            break
        last = following
    number: int | None = 0
    while number is not None:
        number = runtime.events.prune_page(number, cutoff, PRUNE_BATCH)
    if runtime.events.tell_gone():
        runtime.announce()
    return deleted


def _prune_audit(runtime: Runtime, cutoff: int) -> None:
    while runtime.actions.prune(_id_before(cutoff), cutoff, PRUNE_BATCH) == PRUNE_BATCH:
        pass


def _id_before(cutoff: int) -> str:
    """A bound for the ids of what is older than an instant: ids begin with when they were made.

    A run cannot have finished before it was created, and the clocks that make ids may differ by a little.
    """
    return id_at(max(0, cutoff) + 3_600_000)


def _unknown(run_id: str) -> RunNotFound:
    # Anybody may have typed it, and messages are logged.
    named = run_id if run_id.isprintable() and len(run_id) <= 100 else f"{run_id[:100]!r}"
    return RunNotFound(f"there is no run {named}: it was never committed, or was pruned")


def _compensated(run_id: str) -> RunCompensated:
    return RunCompensated(
        f"run {run_id} was undone when it ended: what its steps had done is there no more; start a new run instead"
    )


def _changed(run_id: str) -> RunChanged:
    return RunChanged(f"run {run_id} changed since you looked at it: nothing was done; look again")
