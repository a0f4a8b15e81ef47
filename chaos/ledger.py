"""What must hold of everything that was started, whatever was done to the workers: read from the database at the end.

Each check goes through a `Record` and tells what breaks it. None of them asks the package: what it says of its runs is
what is tried.
"""

from __future__ import annotations

import json
from collections import Counter
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from typing import NamedTuple

import sqlalchemy as sa

from chaos.app import EXPECTED
from chaos.faults import Fault

#: The steps that commit what they write with their record.
TRANSACTIONAL = ("booked", "slowly_booked", "given_back")
#: A step executed so long after a fault was over may still be due to it: its worker had claimed it before.
AFTERMATH = 1.0
#: Attempts of the step that fails by itself, and of the run that kills its workers. The first loss of a run that was
#: claimed ahead is not known to be its own.
DECLINED_ATTEMPTS = 3
POISON_ATTEMPTS = 3
POISON_EXECUTIONS = POISON_ATTEMPTS + 1
#: An event that was emitted so long before a wait ran out, in ms, must have ended it.
IN_TIME_MS = 5_000


class Violation(NamedTuple):
    """Something that must not be; `run` is null where it is no run's."""

    check: str
    run: str | None
    what: str


@dataclass(frozen=True)
class Record:
    """All that is stored, and what was done meanwhile."""

    faults: Sequence[Fault]
    #: Orders whose commit was heard of.
    committed: Collection[int]
    runs: Mapping[str, Any]
    orders: Sequence[Any]
    entries: Sequence[Any]
    changes: Sequence[Any]
    #: By run and key.
    steps: Mapping[tuple[str, str], Any]
    #: The actions on each run, in order.
    actions: Mapping[str, Sequence[str]]
    #: When an event or message was stored first, by the number in it.
    emitted: Mapping[int, int]

    @classmethod
    def read(cls, connection: sa.Connection, faults: Sequence[Fault] = (), committed: Collection[int] = ()) -> Record:
        def rows(statement: str) -> Sequence[Any]:
            return connection.execute(sa.text(statement)).fetchall()

        actions: dict[str, list[str]] = defaultdict(list)
        for run, action in rows("SELECT run_id, action FROM workflow_audit WHERE run_id IS NOT NULL ORDER BY at, id"):
            actions[run].append(action)
        emitted: dict[int, int] = {}
        for payload, at in rows("SELECT payload, emitted_at FROM workflow_events WHERE name IN ('paid', 'note')"):
            number = json.loads(payload)["number"]
            emitted[number] = min(at, emitted.get(number, at))
        return cls(
            faults=faults,
            committed=committed,
            runs={run.id: run for run in rows("SELECT * FROM workflow_runs")},
            orders=rows("SELECT * FROM chaos_orders ORDER BY number"),
            entries=rows("SELECT * FROM chaos_entries ORDER BY at, id"),
            changes=rows("SELECT * FROM chaos_changes ORDER BY id"),
            steps={(step.run_id, step.key): step for step in rows("SELECT * FROM workflow_steps")},
            actions=actions,
            emitted=emitted,
        )

    def retries(self, run: str) -> int:
        return self.actions.get(run, ()).count("retry")

    def excused(self, slots: Collection[int], began: float, ended: float) -> bool:
        """Whether a fault was in flight for one of these workers between two instants, or just before."""
        return any(fault.touches(slot, began - AFTERMATH, ended) for slot in slots for fault in self.faults)


def no_run_lost(record: Record) -> Iterator[Violation]:
    """Every order has its run, every run its order or its parent, and all have finished."""
    check = "no run lost"
    ordered = {order.run: order for order in record.orders}
    known = {order.number for order in record.orders}
    for number in sorted(set(record.committed) - known):
        yield Violation(check, None, f"order {number} was committed, and is not there")
    for order in record.orders:
        if order.run not in record.runs:
            yield Violation(check, order.run, f"order {order.number} is there, its run of {order.workflow} is not")
    for run in record.runs.values():
        if run.finished_at is None:
            yield Violation(check, run.id, f"a run of {run.workflow} never finished, it is {run.status}")
        if run.parent_id is None and run.id not in ordered and not run.workflow.startswith("probe-"):
            yield Violation(check, run.id, f"a run of {run.workflow} that no order asked for")
    for change in record.changes:
        if change.key is None and change.status == "deleted":
            yield Violation(check, change.run, "its row was deleted")


def none_settled_twice(record: Record) -> Iterator[Violation]:
    """A run finishes once, and once more for each time it was retried; what is finished stays as it is."""
    check = "none settled twice"
    finishes: Counter[str] = Counter()
    reopened: Counter[str] = Counter()
    for change in record.changes:
        if change.key is not None:
            continue
        if change.finished and change.finished_before:
            yield Violation(
                check, change.run, f"it had finished as {change.status_before}, then it was {change.status}"
            )
        finishes[change.run] += change.finished and not change.finished_before
        reopened[change.run] += change.finished_before and not change.finished
    for run in record.runs.values():
        retries = record.retries(run.id)
        if reopened[run.id] != retries:
            yield Violation(
                check, run.id, f"it went on {reopened[run.id]} times after its end, and was retried {retries}"
            )
        if run.finished_at is not None and finishes[run.id] != 1 + retries:
            yield Violation(check, run.id, f"it finished {finishes[run.id]} times, and was retried {retries}")


def epochs_only_rise(record: Record) -> Iterator[Violation]:
    """No epoch falls, and nobody takes a run from another under the same epoch."""
    check = "epochs only rise"
    for change in record.changes:
        if change.key is not None:
            continue
        if change.epoch < change.epoch_before:
            yield Violation(check, change.run, f"its epoch fell from {change.epoch_before} to {change.epoch}")
        taken = change.worker is not None and change.worker != change.worker_before
        if taken and change.epoch == change.epoch_before:
            yield Violation(
                check, change.run, f"worker {change.worker} took it under the epoch {change.epoch} of another"
            )


def limits_kept(record: Record) -> Iterator[Violation]:
    """No run and no step has more attempts than it may."""
    check = "limits kept"
    for change in record.changes:
        if change.key is None and change.attempts > change.max_attempts:
            yield Violation(check, change.run, f"{change.attempts} attempts of {change.max_attempts}")
    for step in record.steps.values():
        if _name(step.key) == "declined" and step.attempts > DECLINED_ATTEMPTS:
            yield Violation(check, step.run_id, f"step {step.key} has {step.attempts} attempts of {DECLINED_ATTEMPTS}")
    deaths = Counter(entry.run for entry in record.entries if _name(entry.key) == "deadly")
    for run, number in deaths.items():
        if number > POISON_EXECUTIONS:
            yield Violation(check, run, f"it killed {number} workers, and was to kill {POISON_EXECUTIONS} at most")


def stored_steps_stay(record: Record) -> Iterator[Violation]:
    """What is recorded of a completed step never changes."""
    for change in record.changes:
        if change.key is not None:
            yield Violation(
                "stored steps stay", change.run, f"the record of {change.key} was changed to {change.status}"
            )


def transactional_exactly_once(record: Record) -> Iterator[Violation]:
    """A transactional step wrote what it writes once where it is recorded as completed, and never where it is not."""
    check = "transactional steps exactly once"
    written = Counter((entry.run, entry.key) for entry in record.entries if entry.transactional)
    named = {place for place in record.steps if _name(place[1]) in TRANSACTIONAL}
    for place in sorted(named | written.keys()):
        step = record.steps.get(place)
        expected = 1 if step is not None and step.status == "completed" else 0
        if written[place] != expected:
            yield Violation(check, place[0], f"step {place[1]} wrote {written[place]} times, not {expected}")


def repeated_only_in_faults(record: Record) -> Iterator[Violation]:
    """A plain step ran at least once where it is completed, and again only when a fault was in flight."""
    check = "plain steps repeated only in faults"
    executions: dict[tuple[str, str], list[Any]] = defaultdict(list)
    raised: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for entry in record.entries:
        if not entry.transactional:
            (raised if entry.raised else executions)[entry.run, entry.key].append(entry)
    for (run, key), step in record.steps.items():
        if step.status == "completed" and _name(key) in ("plain", "declined") and not executions[run, key]:
            yield Violation(check, run, f"step {key} is completed, and never ran")
    for (run, key), entries in executions.items():
        for one, other in pairwise(entries):
            if not record.excused({one.slot, other.slot}, one.at, other.at):
                yield Violation(check, run, _repeated(key, one, other))
    for (run, key), entries in raised.items():
        allowed = (DECLINED_ATTEMPTS if _name(key) == "declined" else 1) * (1 + record.retries(run))
        slots = {entry.slot for entry in entries}
        if len(entries) > allowed and not record.excused(slots, entries[0].at, entries[-1].at):
            yield Violation(check, run, _repeated(key, entries[0], entries[-1]))


def repetitions(record: Record) -> int:
    """How often a plain step was executed once more."""
    places = Counter((entry.run, entry.key) for entry in record.entries if not entry.transactional and not entry.raised)
    return sum(number - 1 for number in places.values())


def _repeated(key: str, one: Any, other: Any) -> str:
    return (
        f"step {key} ran on worker {one.slot} and, {other.at - one.at:.3f} s later, on worker {other.slot}, "
        "with no fault in between"
    )


def outcomes_right(record: Record) -> Iterator[Violation]:
    """Each run ended as its workflow and what was done to it ask, with the right result."""
    check = "outcomes right"
    numbers = {order.run: order.number for order in record.orders}
    for run in record.runs.values():
        if run.finished_at is None:
            continue
        expected = _expected(record, run)
        if run.status not in expected:
            error = json.loads(run.error or "{}").get("message")
            yield Violation(check, run.id, f"{run.workflow} is {run.status} ({error}), not {' or '.join(expected)}")
        elif run.status == "completed" and run.id in numbers and run.workflow in EXPECTED and run.output != "null":
            right = EXPECTED[run.workflow](numbers[run.id])
            if json.loads(run.output) != right:
                yield Violation(check, run.id, f"{run.workflow} returned {run.output}, not {right}")


def _expected(record: Record, run: Any) -> tuple[str, ...]:
    """The statuses a run may have ended with."""
    last = next((action for action in reversed(record.actions.get(run.id, ())) if action in ("cancel", "retry")), None)
    if run.workflow == "undone":
        return ("failed",) if last is None else ("failed", "cancelled")
    if last == "cancel":
        return ("cancelled",)
    if run.workflow == "poisonous" or (run.workflow == "failing" and last is None):
        return ("failed",)
    return ("completed",)


def no_wake_up_lost(record: Record) -> Iterator[Violation]:
    """No wait ran out though what it waited for was there in time."""
    numbers = {order.run: order.number for order in record.orders}
    for (run, key), step in record.steps.items():
        waits = step.kind in ("wait", "receive") or key.startswith(("$wait", "$receive"))
        if not waits or run not in numbers or step.status != "completed" or record.runs[run].output != "null":
            continue
        at = record.emitted.get(numbers[run])
        if at is not None and step.due_at is not None and at < step.due_at - IN_TIME_MS:
            yield Violation(
                "no wake-up lost", run, f"{key} ran out {step.due_at - at} ms after what it waited for came"
            )


def children_exactly_once(record: Record) -> Iterator[Violation]:
    """A run has one child for each start it recorded."""
    children = Counter(run.parent_id for run in record.runs.values() if run.parent_id is not None)
    starts = Counter(run for (run, key), step in record.steps.items() if key.startswith("$start:"))
    for run in sorted(children.keys() | starts.keys()):
        if children[run] != starts[run]:
            what = f"it has {children[run]} children, and recorded {starts[run]} starts"
            yield Violation("children exactly once", run, what)


CHECKS: tuple[Callable[[Record], Iterator[Violation]], ...] = (
    no_run_lost,
    none_settled_twice,
    epochs_only_rise,
    limits_kept,
    stored_steps_stay,
    transactional_exactly_once,
    repeated_only_in_faults,
    outcomes_right,
    no_wake_up_lost,
    children_exactly_once,
)


def violations(record: Record) -> list[Violation]:
    return [violation for check in CHECKS for violation in check(record)]


def evidence(record: Record, run: str) -> str:
    """All that is stored of a run, one row a line."""
    lines = [f"run      {record.runs.get(run)}"]
    lines += [f"step     {step}" for (of, _), step in record.steps.items() if of == run]
    lines += [f"entry    {entry}" for entry in record.entries if entry.run == run]
    lines += [f"change   {change}" for change in record.changes if change.run == run]
    lines += [f"action   {action}" for action in record.actions.get(run, ())]
    return "\n".join(lines)


def _name(key: str) -> str:
    """The step's name in the key of a call."""
    return key.rpartition("/")[2].removeprefix("$undo:").partition("#")[0]
