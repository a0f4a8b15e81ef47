"""Starts runs, and does to them what people and other systems do, until told to stop."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import psycopg
import sqlalchemy as sa
from flask import Flask

from chaos import app as load
from chaos.app import db
from chaos.app import Order
from chaos.app import workflows
from chaos.ledger import POISON_ATTEMPTS
from flask_workflows import By
from flask_workflows import KeyBusy
from flask_workflows import RunFinished
from flask_workflows import RunNotFailed
from flask_workflows import RunNotFound
from flask_workflows.definition import Workflow

#: What is asked for, and how often of a hundred times.
_WEIGHTS = {
    "ordered": 30,
    "awaiting": 15,
    "told": 12,
    "parent": 10,
    "spread": 8,
    "failing": 4,
    "undone": 4,
    "cancel": 10,
    "retry": 7,
}
_STARTED: Mapping[str, Workflow[Any, Any]] = {
    workflow.name: workflow
    for workflow in (
        load.ordered,
        load.awaiting,
        load.told,
        load.parent,
        load.spread,
        load.failing,
        load.undone,
        load.poisonous,
    )
}
#: More unfinished runs than that are not added to.
MOST_UNFINISHED = 150
#: A run that kills its worker is started so often, in seconds.
POISON_EVERY = 40.0
BY = By("chaos")


class Load:
    """One thread that is the app: it starts, cancels, retries, sends and emits at random."""

    def __init__(self, app: Flask, seed: int, rate: float) -> None:
        self._app = app
        self._chance = random.Random(seed)
        self._rate = rate
        self._number = 0
        #: Orders whose commit was heard of.
        self.committed: set[int] = set()
        #: What the app did, and how often the database refused or did not answer.
        self.done: Counter[str] = Counter()
        #: What no app should see.
        self.errors: list[BaseException] = []
        #: Numbers of runs that wait for something still to be sent, and when that is.
        self._owed: list[tuple[float, Callable[[], None]]] = []
        self._starting = threading.Event()
        self._starting.set()
        self._stopping = threading.Event()
        #: Whether runs that kill their workers are started.
        self.poisoning = False
        self._poison_at = 0.0
        self._thread = threading.Thread(target=self._run, name="chaos-load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Start nothing more; what is owed to runs is still sent."""
        self._starting.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def _run(self) -> None:
        while not self._stopping.wait(self._chance.expovariate(self._rate)):
            self._pay()
            if not self._starting.is_set():
                continue
            if self.poisoning and time.monotonic() > self._poison_at:
                self._poison_at = time.monotonic() + POISON_EVERY
                self._attempt("poisonous")
            (what,) = self._chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
            self._attempt(what)

    def _pay(self) -> None:
        """Send what is due; what the database did not take is sent again later."""
        now = time.monotonic()
        due = [one for one in self._owed if one[0] <= now]
        for one in due:
            if self._guarded("sent", one[1]):
                self._owed.remove(one)

    def _attempt(self, what: str) -> None:
        if what in _STARTED:
            self._guarded("started", lambda: self._start(what))
        else:
            self._guarded(what, self._cancel if what == "cancel" else self._retry)

    def _guarded(self, what: str, action: Callable[[], None]) -> bool:
        """Do it in a context of its own, as a request would; whether the database took it."""
        with self._app.app_context():
            try:
                action()
            except Exception as error:
                db.session.rollback()
                if not is_refusal(error):
                    error.add_note(f"while the app: {what}")
                    self.errors.append(error)
                self.done["not answered, or refused"] += 1
                return False
        self.done[what] += 1
        return True

    # What the app does ---------------------------------------------------------------------

    def _start(self, name: str) -> None:
        busy = db.session.scalar(sa.text("SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL"))
        if busy > MOST_UNFINISHED:
            return
        self._number += 1
        number = self._number
        handle = _STARTED[name].start(number)
        db.session.add(Order(number=number, run=handle.id, workflow=name))
        if name == "poisonous":
            limited = sa.text("UPDATE workflow_runs SET max_attempts = :most WHERE id = :run")
            db.session.execute(limited, {"most": POISON_ATTEMPTS, "run": handle.id})
        # Whether or not the commit is heard of: if it happened, the run waits for these.
        self._owe(name, number, handle.id)
        db.session.commit()
        self.committed.add(number)

    def _owe(self, name: str, number: int, run: str) -> None:
        at = time.monotonic() + self._chance.uniform(0.0, 1.5)
        payload = {"number": number, "amount": number}
        if name == "told":
            self._owed.append((at, lambda: self._send(run, payload)))
        elif name == "awaiting" and self._chance.random() < 0.5:
            self._owed.append((at, lambda: self._emit(payload)))
        elif name == "awaiting":
            self._owed.append((at, lambda: self._deliver(payload)))

    def _send(self, run: str, payload: dict[str, int]) -> None:
        try:
            workflows.handle(run).send("note", payload)
        except (RunFinished, RunNotFound):
            return
        db.session.commit()

    def _emit(self, payload: dict[str, int]) -> None:
        workflows.emit("paid", payload)
        db.session.commit()

    def _deliver(self, payload: dict[str, int]) -> None:
        workflows.deliver("paid", payload, delivery_id=f"paid-{payload['number']}")

    def _cancel(self) -> None:
        run = self._pick("finished_at IS NULL AND parent_id IS NULL AND workflow NOT IN ('poisonous')")
        if run is not None:
            try:
                workflows.cancel(run, by=BY)
            except RunFinished:
                return

    def _retry(self) -> None:
        run = self._pick("status IN ('failed', 'cancelled') AND workflow IN ('failing', 'ordered', 'spread')")
        if run is not None:
            db.session.execute(sa.update(Order).where(Order.run == run).values(repaired=True))
            db.session.commit()
            try:
                workflows.retry(run, by=BY)
            except RunNotFailed:
                return

    def _pick(self, condition: str) -> str | None:
        """One of the newest such runs."""
        listed = sa.text(
            f"SELECT id FROM workflow_runs WHERE {condition} AND workflow NOT LIKE 'probe-%' ORDER BY id DESC LIMIT 20"
        )
        runs = list(db.session.scalars(listed))
        db.session.rollback()
        return self._chance.choice(runs) if runs else None


def is_refusal(error: BaseException) -> bool:
    """Whether an app has to expect it of a database that restarts, is full, locked, or loses connections."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, psycopg.errors.DeadlockDetected):
        return False
    if isinstance(error, psycopg.InternalError) and error.sqlstate is None:
        # The driver's own word for a connection that ended with an answer.
        return True
    refusals = (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        sqlite3.OperationalError,
        sa.exc.PendingRollbackError,
        KeyBusy,
    )
    return isinstance(error, refusals)
