"""An app whose workflows wait: for events, for messages, for one of several, and for nothing but the time.

It is imported by worker processes too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Event
from flask_workflows import EventMatch
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.worker import Worker
from tests.running import Base
from tests.running import Order

declared = Workflows(authorize=lambda action, run=None: True)

HOUR = timedelta(hours=1)

declared.event("paid")
declared.event("shipped")


@declared.event("completed")
@dataclass(frozen=True)
class Completed:
    user_id: int
    course: str


@declared.step
def remember(what: str) -> str:
    """Its stored input is compared at each replay: a wait that came to something else would be found out."""
    return what


def said(event: Event | None) -> str:
    return "time-out" if event is None else f"event {event.id}"


@declared.workflow
def awaiting(ctx: WorkflowContext, order: int, minutes: float | None = 60) -> str:
    """Wait for an order to be paid; then sleep, so that it is all replayed."""
    event = ctx.wait_for("paid", match={"order": order}, timeout=None if minutes is None else minutes * 60)
    outcome = remember(said(event))
    ctx.sleep(1)
    return outcome


@declared.workflow
def awaiting_only(ctx: WorkflowContext, order: int, minutes: float | None = 60) -> str:
    return said(ctx.wait_for("paid", match={"order": order}, timeout=None if minutes is None else minutes * 60))


@declared.workflow
def awaiting_since(ctx: WorkflowContext, order: int) -> str:
    return said(ctx.wait_for("paid", match={"order": order}, timeout=HOUR, since=ctx.started_at))


@declared.workflow
def awaiting_any(ctx: WorkflowContext, name: str = "paid", minutes: float | None = 60) -> Any:
    """Wait for any event of a name, and return its payload."""
    event = ctx.wait_for(name, timeout=None if minutes is None else minutes * 60)
    return None if event is None else event.payload


@declared.workflow
def awaiting_several(ctx: WorkflowContext, order: int) -> list[Any]:
    paid = EventMatch("paid", {"order": order})
    shipped = EventMatch("shipped", {"order": order})
    happened = ctx.wait_any([paid, shipped, Completed], timeout=HOUR)
    return ["time-out"] if happened is None else [happened.number, said_of(happened.event)]


def said_of(event: Any) -> Any:
    return event.payload if isinstance(event, Event) else event.course


@declared.workflow
def counting(ctx: WorkflowContext, times: int) -> list[Any]:
    """Take so many events of one name, from the start on."""
    events = [ctx.wait_for("paid", timeout=HOUR, since=ctx.started_at) for _ in range(times)]
    return [None if event is None else event.payload["number"] for event in events]


@declared.workflow
def receiving(ctx: WorkflowContext, times: int, name: str = "line") -> list[Any]:
    """Take so many messages of one name."""
    messages = [ctx.receive(name, timeout=HOUR) for _ in range(times)]
    return [None if message is None else message.payload for message in messages]


@declared.workflow
def emitting(ctx: WorkflowContext, order: int) -> str:
    """Emit, and be replayed afterwards."""
    declared.emit("paid", {"order": order})
    remember("emitted")
    ctx.sleep(1)
    return remember("slept")


@declared.workflow
def finished_at_once() -> None:
    """For runs that are over."""


def make_event_app(url: str, **config: object) -> Flask:
    """The app on a database that has its tables."""
    app = Flask("events")
    app.config.from_mapping(SECRET_KEY="events", SQLALCHEMY_DATABASE_URI=url)
    app.config.from_mapping(config)
    SQLAlchemy(metadata=Base.metadata).init_app(app)
    declared.init_app(app)

    return app


def session_of(app: Flask) -> Any:
    return app.extensions["sqlalchemy"].session


def order(note: str) -> Order:
    return Order(note=note)


# Workers -----------------------------------------------------------------------------------


@contextmanager
def working(app: Flask, workers: int = 1, *, concurrency: int = 4, workflows: Workflows = declared) -> Iterator[None]:
    """Let workers work, each on a thread of this process."""
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(_working(app, concurrency, workflows))
        yield


@contextmanager
def _working(app: Flask, concurrency: int, workflows: Workflows) -> Iterator[None]:
    codes: list[int] = []
    with app.app_context():
        worker: Worker = workflows.worker(concurrency=concurrency)

    def work() -> None:
        with app.app_context():
            codes.append(worker.run())

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20)
    assert codes == [0], "the worker did not end in good order"


def work(url: str, config: dict[str, object]) -> None:
    """The main of a worker process."""
    from flask_workflows.logs import configure_worker_logging

    app = make_event_app(url, **config)
    configure_worker_logging(app)
    with app.app_context():
        code = declared.worker(concurrency=4).run()
    sys.stderr.flush()
    os._exit(code)


def in_context(app: Flask, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call in a context of the app, for other threads."""

    def called() -> Any:
        with app.app_context():
            return call()

    return called
