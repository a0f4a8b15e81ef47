"""A run as whoever started it holds it: waiting, results, time-outs."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from threading import Event
from threading import Thread
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Handle
from flask_workflows import RunCancelled
from flask_workflows import RunFailed
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import WaitTimeout
from flask_workflows import Workflows
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import UndecodableValue
from flask_workflows.runs import Undecodable
from tests import apps
from tests.running import at_once
from tests.running import Clock
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Proxy
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context")


@dataclass(frozen=True)
class Invoice:
    number: int
    total: Decimal


declared = Workflows()


@declared.workflow
def invoice(number: int) -> Invoice:
    return Invoice(number, Decimal("9.90"))


@declared.workflow
def failing() -> Invoice:
    raise LookupError("no such order")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, workflows=declared)

    declared.clock = None


# Results -----------------------------------------------------------------------------------


def test_a_completed_run_answers_its_typed_result() -> None:
    handle = invoice.spawn(7)
    declared.tick()

    assert handle.wait(timeout=5) is RunStatus.COMPLETED
    assert handle.result(timeout=5) == handle.output() == Invoice(7, Decimal("9.90"))
    assert handle.output_raw() == '{"number":7,"total":"9.90"}'
    assert handle.run().output == {"number": 7, "total": "9.90"}


def test_a_run_that_has_not_finished_has_no_output_yet() -> None:
    handle = invoice.spawn(7)

    assert handle.output() is None
    assert handle.output_raw() is None


def test_a_failed_run_raises_what_it_failed_with(clock: Clock) -> None:
    handle = failing.spawn()
    run_out(declared, clock)

    assert handle.wait(timeout=5) is RunStatus.FAILED
    for ask in (handle.result, handle.output):
        with pytest.raises(RunFailed, match="LookupError: no such order") as failed:
            ask()
        assert (failed.value.run_id, failed.value.error_type, failed.value.message) == (
            *(handle.id, "LookupError", "no such order"),
        )


def test_a_cancelled_run_raises_that_it_was_cancelled() -> None:
    handle = invoice.spawn(7)
    run = handle.cancel()

    assert run.status is RunStatus.CANCELLED
    assert handle.wait(timeout=5) is RunStatus.CANCELLED
    for ask in (handle.result, handle.output):
        with pytest.raises(RunCancelled, match=handle.id):
            ask()


def test_a_run_that_was_retried_answers_its_new_result() -> None:
    handle = invoice.spawn(7)
    handle.cancel()
    handle.retry()
    declared.tick()

    assert handle.result(timeout=5) == Invoice(7, Decimal("9.90"))


def test_a_handle_may_be_had_again_by_the_id_of_the_run() -> None:
    run_id = invoice.spawn(7).id
    declared.tick()

    handle: Handle[Invoice] = declared.handle(run_id)

    assert handle.result(timeout=5) == Invoice(7, Decimal("9.90"))
    assert not handle.created
    assert repr(handle) == f"<run {run_id}>"


@pytest.mark.parametrize("run_id", ["", "x", "a/b", "%00", "\0", "\ud800", "x" * 5_000, "🎈"])
def test_b32_an_id_that_no_run_has_is_not_found(run_id: str) -> None:
    asked: list[Callable[[str], object]] = [
        *(declared.get, declared.details, declared.handle, declared.cancel, declared.retry, declared.wake)
    ]
    for ask in asked:
        with pytest.raises(RunNotFound):
            ask(run_id)


def test_a_stored_result_that_no_longer_decodes_says_so_and_spoils_no_list(db: SQLAlchemy) -> None:
    handles = [invoice.spawn(number) for number in (7, 8, 9)]
    declared.tick()
    broken = {handles[0].id: '{"number":', handles[1].id: '{"number": "seven"}'}
    for run_id, text in broken.items():
        db.session.execute(
            sa.text("UPDATE workflow_runs SET output = :text WHERE id = :id"), {"text": text, "id": run_id}
        )
    db.session.commit()

    for run_id in broken:
        with pytest.raises(UndecodableValue, match=run_id):
            declared.handle(run_id).result(timeout=5)
    assert isinstance(handles[0].run().output, Undecodable)
    assert len(declared.runs()) == 3
    assert handles[2].result(timeout=5) == Invoice(9, Decimal("9.90"))


# Waiting -----------------------------------------------------------------------------------


def test_waiting_ends_when_the_run_does(app: Flask) -> None:
    begun, go_on = Event(), Event()

    @declared.step(name="held-up")
    def held_up() -> str:
        begun.set()
        assert go_on.wait(30)
        return "let go"

    @declared.workflow(name="waited-for")
    def waited_for() -> str:
        return held_up()

    def execute() -> None:
        with app.app_context():
            declared.tick()

    handle = waited_for.spawn()
    thread = Thread(target=execute)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(WaitTimeout):
        handle.wait(timeout=0.05, poll=0.01)
    go_on.set()
    result = handle.result(poll=0.01)
    thread.join()

    assert result == "let go"


def test_a_time_out_is_told_on_time_and_cancels_nothing() -> None:
    handle = invoice.spawn(7)

    for timeout in (0, 0.1):
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=rf"{handle.id} had not finished after {timeout} s") as late:
            handle.wait(timeout=timeout, poll=60)
        assert time.monotonic() - began < 30
        assert isinstance(late.value, TimeoutError)

    declared.tick()
    assert handle.result(timeout=0) == Invoice(7, Decimal("9.90"))


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf"), "5", True])
def test_b67_a_time_out_or_interval_that_is_no_duration_is_refused(number: Any) -> None:
    handle = invoice.spawn(7)

    with pytest.raises(InvalidDuration):
        handle.wait(timeout=number)
    with pytest.raises(InvalidDuration):
        handle.wait(timeout=1, poll=number)


def test_waiting_for_a_run_that_does_not_exist_raises_at_once(db: SQLAlchemy) -> None:
    handle = invoice.start(7)
    db.session.rollback()

    with pytest.raises(RunNotFound, match="never committed"):
        handle.wait()


def test_b84_many_waiters_share_few_connections(make_app: apps.MakeApp, database_url: str) -> None:
    app = make_app(
        database_url,
        workflows=declared,
        SQLALCHEMY_ENGINE_OPTIONS={"pool_size": 2, "max_overflow": 0, "pool_timeout": 5},
    )

    with app.app_context():
        handle = invoice.spawn(7)

        def wait() -> Invoice:
            return handle.result(timeout=30, poll=0.02)

        def execute() -> Invoice:
            declared.tick()
            return wait()

        results = at_once(app, *[wait] * 20, execute)

    assert results == [Invoice(7, Decimal("9.90"))] * 21


# A database that does not answer ----------------------------------------------------------


@contextmanager
def waiters_finish() -> Iterator[None]:
    """Wait for what a time-out left behind, so that it does not outlive the test."""
    yield

    for thread in threading.enumerate():
        if thread.name == "workflows-wait":
            thread.join(timeout=30)
            assert not thread.is_alive()


def assert_times_out(handle: Handle[Any]) -> None:
    for ask in (handle.wait, handle.result):
        began = time.monotonic()
        with pytest.raises(WaitTimeout):
            ask(timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 30


@on_postgresql
def test_a_time_out_is_on_time_though_the_server_stopped_answering(make_app: apps.MakeApp, database_url: str) -> None:
    proxy = Proxy(database_url)
    app = make_app(proxy.url, workflows=declared)

    with app.app_context(), waiters_finish():
        handle = invoice.spawn(7)
        proxy.stall()
        assert_times_out(handle)
        proxy.resume()
        declared.tick()

        assert handle.result(timeout=30) == Invoice(7, Decimal("9.90"))
    apps.dispose_engines(app)
    proxy.close()


@on_postgresql
def test_a_time_out_is_on_time_though_the_table_is_locked(db: SQLAlchemy) -> None:
    handle = invoice.spawn(7)

    with waiters_finish(), db.engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE workflow_runs IN ACCESS EXCLUSIVE MODE"))
        assert_times_out(handle)

    declared.tick()
    assert handle.result(timeout=30) == Invoice(7, Decimal("9.90"))


@on_sqlite
def test_a_time_out_is_on_time_though_the_file_is_locked(app: Flask, db: SQLAlchemy) -> None:
    handle = invoice.spawn(7)
    # Whoever reads by now may go on; the lock shuts out who comes later.
    apps.runtime_of(app).store.close()
    db.engine.dispose()
    rival = sqlite3.connect(db.engine.url.database or "")
    rival.execute("PRAGMA locking_mode = EXCLUSIVE")
    rival.execute("BEGIN EXCLUSIVE")

    with waiters_finish():
        assert_times_out(handle)
        rival.rollback()
        rival.close()

    declared.tick()
    assert handle.result(timeout=30) == Invoice(7, Decimal("9.90"))
