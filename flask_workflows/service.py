"""What a person may ask of runs, from Python, the command line or a page: each checked, each its own transaction.

Where an `epoch` is given, the action is done only if the run is still as it was seen then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from . import signals
from .durations import to_ms
from .errors import KeyTaken
from .errors import RunChanged
from .errors import RunFinished
from .errors import RunNotFailed
from .errors import RunNotFound
from .errors import RunNotSleeping
from .names import id_at
from .runs import EmittedEvent
from .runs import Page
from .runs import Run
from .runs import RunDetails
from .runs import RunQuery
from .runs import RunStatus
from .runtime import Runtime
from .store import StoredStep
from .store.reading import list_events
from .store.reading import list_runs
from .store.reading import read_details
from .store.reading import read_run
from .store.reading import reading

PRUNE_BATCH = 500
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


def cancel(runtime: Runtime, run_id: str, epoch: int | None = None) -> Run:
    """End a run; one that is executed now ends before its next step. Raises `RunFinished` if it has ended already."""
    run = get(runtime, run_id)
    if run.finished:
        raise RunFinished(
            f"run {run_id} is {run.status} since {run.finished_at:%Y-%m-%d %H:%M:%S} UTC: nothing was done"
        )
    runtime.sessions.refuse_if_busy("cancel()")
    if not runtime.store.cancel(run_id, epoch):
        after = get(runtime, run_id)
        if after.finished:
            raise RunFinished(f"run {run_id} became {after.status} just now: nothing was done")
        raise _changed(run_id)
    after = get(runtime, run_id)
    if after.status is RunStatus.CANCELLED:
        signals.send_cancelled(runtime.app, run_id, run.workflow)
    return after


def cancel_workspace(runtime: Runtime, workspace: str) -> int:
    """Cancel every unfinished run of a workspace, as when it is deleted; answer how many."""
    cancelled = 0
    while found := _cancel_those(runtime, workspace):
        # Runs move on while others are cancelled: until none is left in any state.
        cancelled += found
    return cancelled


def _cancel_those(runtime: Runtime, workspace: str) -> int:
    cancelled = 0
    for status in UNFINISHED:
        cursor: str | None = None
        while True:
            found = page(runtime, RunQuery(workspace=workspace, status=status, limit=100, cursor=cursor))
            for run in found.runs:
                if run.cancelling:
                    continue
                with suppress(RunFinished, RunNotFound):
                    cancel(runtime, run.id)
                    cancelled += 1
            cursor = found.older
            if cursor is None:
                break
    return cancelled


def retry(runtime: Runtime, run_id: str, epoch: int | None = None) -> Run:
    """Make a failed or cancelled run due again, with fresh attempts for the calls that failed last.

    Raises `RunNotFailed` in any other state, and `KeyTaken` where a newer run holds its key.
    """
    run = get(runtime, run_id)
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise RunNotFailed(f"run {run_id} is {run.status}: only a failed or cancelled run can be retried")
    if epoch is not None and epoch != run.epoch:
        raise _changed(run_id)
    runtime.sessions.refuse_if_busy("retry()")
    forget = _to_forget(runtime.store.histories([run_id])[run_id])
    try:
        done = runtime.store.retry(run_id, run.epoch, forget)
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


def wake(runtime: Runtime, run_id: str, epoch: int | None = None) -> Run:
    """End a run's sleep, or its wait for a retry, now. Raises `RunNotSleeping` in any other state."""
    run = get(runtime, run_id)
    if run.finished:
        raise RunFinished(f"run {run_id} is {run.status}: there is nothing to wake")
    if run.status is not RunStatus.SLEEPING:
        raise RunNotSleeping(f"run {run_id} is {run.status}: only a sleeping run can be woken")
    runtime.sessions.refuse_if_busy("wake()")
    if not runtime.store.wake(run_id, epoch):
        raise _changed(run_id)
    runtime.announce()
    return get(runtime, run_id)


def prune(runtime: Runtime, older_than: timedelta | None = None, *, dry_run: bool = False) -> int:
    """Delete runs that finished longer ago than `older_than`, with their steps; answer how many.

    In short transactions, so that nothing waits for it; broken off, it goes on where it is called next. `older_than`
    defaults to `WORKFLOWS_PRUNE_AFTER_DAYS`; where that is 0 nothing is deleted.
    """
    if older_than is None:
        if runtime.config.prune_after_days == 0:
            return 0
        older_than = timedelta(days=runtime.config.prune_after_days)
    if not dry_run:
        runtime.sessions.refuse_if_busy("prune()")
    store = runtime.store
    cutoff = store.now() - to_ms(older_than, what="older_than")
    # A run cannot have finished before it was created, and ids sort by creation. Clocks may differ by a little.
    before = id_at(max(0, cutoff) + 3_600_000)
    if dry_run:
        return store.count_prunable(before, cutoff)
    deleted, last = 0, ""
    while True:
        following, gone = store.prune_page(last, before, cutoff, PRUNE_BATCH)
        deleted += gone
        if following is None:
            break
        last = following
    number: int | None = 0
    while number is not None:
        number = runtime.events.prune_page(number, cutoff, PRUNE_BATCH)
    return deleted


def _to_forget(stored: Sequence[StoredStep]) -> list[str]:
    """Failed calls that nothing recorded follows in their branch."""
    last: dict[str, StoredStep] = {}
    for step in stored:
        last[step.key.rpartition("/")[0]] = step
    return [step.key for step in last.values() if step.status == "failed"]


def _unknown(run_id: str) -> RunNotFound:
    return RunNotFound(f"there is no run {run_id}: it was never committed, or was pruned")


def _changed(run_id: str) -> RunChanged:
    return RunChanged(f"run {run_id} changed since you looked at it: nothing was done; look again")
