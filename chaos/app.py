"""The load: an app whose workflows use what there is, and write down each execution of a step.

What its steps compute follows from a run's number alone, so that `EXPECTED` can say what each run has to come to.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import sqlalchemy as sa
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.definition import Workflow
from flask_workflows.logs import configure_worker_logging

#: How many workers there are. Each has a queue of its own beside the common one, for probes.
SLOTS = 3
#: How long a run waits for what is certainly sent: when this is over, a wake-up was lost.
PATIENCE = timedelta(seconds=40)


class Base(DeclarativeBase):
    pass


class Order(Base):
    """A run the app asked for; written in the transaction that starts it."""

    __tablename__ = "chaos_orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    workflow: Mapped[str]
    #: Set before a failed run is retried: from then on its step works.
    repaired: Mapped[bool] = mapped_column(default=False)


class Entry(Base):
    """One execution of a step. Nothing keeps a second one out: that is what the ledger looks for."""

    __tablename__ = "chaos_entries"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(index=True)
    #: The step's key in the run's record.
    key: Mapped[str]
    #: Whether it commits with the step's record.
    transactional: Mapped[bool]
    #: Whether the step went on to raise an error of the app's.
    raised: Mapped[bool]
    #: Which worker executed it.
    slot: Mapped[int]
    #: Seconds of the machine's monotonic clock.
    at: Mapped[float]


class Change(Base):
    """How an UPDATE changed the row of a run; written by a trigger."""

    __tablename__ = "chaos_changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column(index=True)
    #: The call whose completed record was changed or deleted; null for the run's own row.
    key: Mapped[str | None]
    status_before: Mapped[str]
    status: Mapped[str]
    epoch_before: Mapped[int]
    epoch: Mapped[int]
    worker_before: Mapped[str | None]
    worker: Mapped[str | None]
    finished_before: Mapped[bool]
    finished: Mapped[bool]
    attempts: Mapped[int]
    max_attempts: Mapped[int]


db = SQLAlchemy(model_class=Base)
workflows = Workflows(authorize=lambda action, run=None: False)
workflows.event("paid")


def create_app(url: str, slot: int = -1, **config: object) -> Flask:
    """The app in one process: of the worker `slot`, or of whoever starts the runs."""
    app = Flask("chaos")
    app.config.from_mapping(SECRET_KEY="chaos", SQLALCHEMY_DATABASE_URI=url, CHAOS_SLOT=slot)
    app.config.from_mapping(config)
    db.init_app(app)
    workflows.init_app(app, db)

    return app


def work(url: str, slot: int, shift: float, config: dict[str, object]) -> None:
    """Be the worker `slot`, whose clock is `shift` seconds off, until told to stop."""
    shift_clock(shift)
    app = create_app(url, slot, **config)
    configure_worker_logging(app)
    with app.app_context():
        code = workflows.worker(name=f"slot-{slot}", queues=["default", f"slot-{slot}"]).run()
    os._exit(code)


def shift_clock(seconds: float) -> None:
    """Let `time.time()`, and with it log records, tell another time in this process."""
    if seconds:
        true, true_ns = time.time, time.time_ns
        time.time = lambda: true() + seconds
        time.time_ns = lambda: true_ns() + int(seconds * 1_000_000_000)


# Steps -------------------------------------------------------------------------------------


def enter(*, transactional: bool = False, raised: bool = False) -> None:
    run, _, key = current_run.idempotency_key.partition(":")
    slot = current_app.config["CHAOS_SLOT"]
    db.session.add(Entry(run=run, key=key, transactional=transactional, raised=raised, slot=slot, at=time.monotonic()))
    if not transactional:
        db.session.commit()


@workflows.step
def plain(number: int) -> int:
    """Do what it does, and go on for a moment, in which a fault leaves it without a record."""
    enter()
    time.sleep(0.05)
    return number + 1


@workflows.step(transactional=True)
def booked(number: int) -> int:
    enter(transactional=True)
    return number * 2


@workflows.step(transactional=True)
def slowly_booked(number: int) -> int:
    """Hold what its write locks, for a fault to come in between."""
    enter(transactional=True)
    db.session.flush()
    time.sleep(0.1)
    return number * 2


@workflows.step(retry=Retry(attempts=3, backoff=Retry.constant(0)))
def declined(number: int) -> int:
    """Raise an error of its own, three times, until the order is repaired."""
    repaired = db.session.scalar(sa.select(Order.repaired).where(Order.run == current_run.run_id))
    enter(raised=not repaired)
    if not repaired:
        raise ValueError("declined")
    return number + 1


@workflows.step(transactional=True)
def given_back(number: int) -> None:
    enter(transactional=True)


@workflows.step(retry=Retry(attempts=1))
def deadly(number: int) -> None:
    """Take the worker along. Tried once: an attempt that is stored begins the count of losses anew."""
    enter(raised=True)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@workflows.step
def instant() -> float:
    return time.monotonic()


# Workflows ---------------------------------------------------------------------------------


@workflows.workflow
def ordered(ctx: WorkflowContext, number: int) -> int:
    total = booked(plain(number))
    ctx.sleep(0.2)
    return slowly_booked(plain(total))


@workflows.workflow
def awaiting(ctx: WorkflowContext, number: int) -> int | None:
    total = booked(number)
    event = ctx.wait_for("paid", match={"number": number}, timeout=PATIENCE, since=ctx.started_at)
    return None if event is None else plain(total + int(event.payload["amount"]))


@workflows.workflow
def told(ctx: WorkflowContext, number: int) -> int | None:
    total = plain(number)
    message = ctx.receive("note", timeout=PATIENCE)
    return None if message is None else booked(total + int(message.payload["amount"]))


@workflows.workflow
def child(number: int) -> int:
    return booked(plain(number))


@workflows.workflow
def parent(ctx: WorkflowContext, number: int) -> int:
    children = [child.start(number), child.start(number + 1)]
    return booked(sum(one.result() for one in children))


@workflows.workflow
def spread(ctx: WorkflowContext, number: int) -> int:
    return plain(sum(ctx.map(booked, [number, number + 1, number + 2], max_workers=2)))


@workflows.workflow
def failing(number: int) -> int:
    return booked(declined(number))


@workflows.workflow
def undone(ctx: WorkflowContext, number: int) -> int:
    ctx.on_failure(given_back, booked(number))
    return declined(number)


@workflows.workflow
def poisonous(number: int) -> None:
    deadly(plain(number))


def _probe(slot: int) -> Workflow[[], float]:
    """Tells when the worker came to it."""

    @workflows.workflow(name=f"probe-{slot}", queue=f"slot-{slot}")
    def probe() -> float:
        return instant()

    return probe


PROBES = [_probe(slot) for slot in range(SLOTS)]

#: What a run that completes has to return, by its number.
EXPECTED: dict[str, Callable[[int], int]] = {
    "ordered": lambda number: 2 * (2 * (number + 1) + 1),
    "awaiting": lambda number: 2 * number + number + 1,
    "told": lambda number: 2 * (number + 1 + number),
    "child": lambda number: 2 * (number + 1),
    "parent": lambda number: 2 * (2 * (number + 1) + 2 * (number + 2)),
    "spread": lambda number: 2 * (3 * number + 3) + 1,
    "failing": lambda number: 2 * (number + 1),
}

# Triggers ----------------------------------------------------------------------------------

_COLUMNS = """run, key, status_before, status, epoch_before, epoch, worker_before, worker, finished_before, finished,
    attempts, max_attempts"""
_RUN_VALUES = """OLD.id, NULL, OLD.status, NEW.status, OLD.epoch, NEW.epoch, OLD.worker, NEW.worker,
    OLD.finished_at IS NOT NULL, NEW.finished_at IS NOT NULL, NEW.attempts, NEW.max_attempts"""
_DELETED_VALUES = """OLD.id, NULL, OLD.status, 'deleted', OLD.epoch, OLD.epoch, OLD.worker, NULL,
    OLD.finished_at IS NOT NULL, OLD.finished_at IS NOT NULL, OLD.attempts, OLD.max_attempts"""
_STEP_VALUES = "OLD.run_id, OLD.key, OLD.status, {status}, 0, 0, NULL, NULL, {true}, {true}, 0, 0"

_RUN_CHANGED = """OLD.epoch <> NEW.epoch OR OLD.status <> NEW.status
    OR coalesce(OLD.worker, '') <> coalesce(NEW.worker, '')
    OR (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)"""
_STEP_CHANGED = """OLD.status = 'completed'
    AND (NEW.status <> 'completed' OR coalesce(OLD.output, '') <> coalesce(NEW.output, ''))"""

#: (name, event, condition, values)
_TRIGGERS = [
    ("run_changed", "UPDATE ON workflow_runs", _RUN_CHANGED, _RUN_VALUES),
    ("run_deleted", "DELETE ON workflow_runs", "OLD.id IS NOT NULL", _DELETED_VALUES),
    ("step_changed", "UPDATE ON workflow_steps", _STEP_CHANGED, _STEP_VALUES.replace("{status}", "NEW.status")),
    ("step_deleted", "DELETE ON workflow_steps", "OLD.status = 'completed'", _STEP_VALUES.replace("{status}", "'deleted'")),
]  # fmt: skip


def create_tables() -> None:
    """The tables, and the triggers that write down what becomes of runs; for the current app."""
    db.create_all()
    with db.engine.begin() as connection:
        for name, event, condition, values in _TRIGGERS:
            values = values.replace("{true}", "true")
            insert = f"INSERT INTO chaos_changes ({_COLUMNS}) VALUES ({values});"
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql(
                    f"CREATE TRIGGER chaos_{name} AFTER {event} WHEN {condition} BEGIN {insert} END"
                )
                continue
            connection.exec_driver_sql(
                f"CREATE FUNCTION chaos_{name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {insert} RETURN NULL; END $$"
            )
            connection.exec_driver_sql(
                f"CREATE TRIGGER chaos_{name} AFTER {event} FOR EACH ROW WHEN ({condition}) "
                f"EXECUTE FUNCTION chaos_{name}()"
            )
