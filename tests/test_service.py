"""What people start, send and deliver, checked as it is typed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any
from typing import TypedDict

import pytest
from flask import Flask

from flask_workflows import EventMatch
from flask_workflows import NotRegistered
from flask_workflows import RunFinished
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import UnregisteredEvent
from flask_workflows import ValueRefused
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import UndecodableValue
from flask_workflows.errors import ValueTooLarge
from flask_workflows.runs import Count
from flask_workflows.runtime import Runtime
from flask_workflows.testing import WorkflowsFake
from tests import apps
from tests.running import at_once
from tests.running import Clock

pytestmark = pytest.mark.usefixtures("app_context", "clock")

declared = Workflows()
declared.event("plain")


@declared.event("typed")
@dataclass
class Typed:
    at: datetime
    order: int


@declared.event("dict")
class Dict(TypedDict):
    at: datetime


@declared.workflow
def dated(ctx: WorkflowContext, at: datetime, days: int = 7) -> str:
    return f"{at:%Y-%m-%d} {days}"


@declared.workflow
def receiving(ctx: WorkflowContext) -> Any:
    message = ctx.receive("note")
    return None if message is None else message.payload


@declared.workflow
def waiting(ctx: WorkflowContext, name: str, match: dict[str, int] | None = None) -> str:
    return repr(ctx.wait_for(name, match=match))


@declared.workflow
def choosing(ctx: WorkflowContext, order: int) -> None:
    ctx.wait_any([EventMatch("plain", {"order": order}), EventMatch("plain", {"kind": "any"})])


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, workflows=declared, WORKFLOWS_MAX_PAYLOAD_BYTES=1_024)

    declared.clock = None


@pytest.fixture
def runtime(app: Flask) -> Runtime:
    return apps.runtime_of(app)


# Starting ----------------------------------------------------------------------------------


def test_a_run_is_started_with_values_as_they_are_stored(runtime: Runtime) -> None:
    run_id, created = service.start(runtime, "dated", {"at": "2026-12-24T09:00:00+00:00"}, workspace=7)
    declared.tick()

    run = declared.get(run_id)
    assert created
    assert (run.workspace, run.input) == ("7", {"at": "2026-12-24T09:00:00+00:00"})
    assert run.output == "2026-12-24 7"


@pytest.mark.parametrize(
    ("input", "error"),
    [
        ({}, UndecodableValue),
        ({"at": "tomorrow"}, UndecodableValue),
        ({"at": "2026-12-24T09:00:00+00:00", "hours": 1}, UndecodableValue),
        ({"at": "2026-12-24T09:00:00+00:00", "days": "7"}, UndecodableValue),
        ({"at": "2026-12-24T09:00:00+00:00", "days": float("nan")}, ValueRefused),
        ({"at": "x" * 2_000}, ValueTooLarge),
        ([], UndecodableValue),
    ],
)
def test_an_input_that_does_not_fit_starts_nothing(runtime: Runtime, input: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        service.start(runtime, "dated", input)

    assert declared.runs() == ()


def test_what_is_not_registered_is_not_started(runtime: Runtime) -> None:
    with pytest.raises(NotRegistered, match="dateless"):
        service.start(runtime, "dateless", {})


def test_a_start_is_told_to_the_tests_fake(runtime: Runtime) -> None:
    with WorkflowsFake(declared) as fake:
        service.start(runtime, "dated", {"at": "2026-12-24T09:00:00+00:00"})

    fake.assert_started(dated, at=datetime(2026, 12, 24, 9, tzinfo=UTC))


# Messages ----------------------------------------------------------------------------------


def test_a_message_submitted_twice_is_received_once(runtime: Runtime, app: Flask) -> None:
    handle = receiving.spawn()
    declared.tick()

    answers = at_once(app, *[lambda: service.send(runtime, handle.id, "note", '{"text": "hi"}', delivery_id="d")] * 4)
    declared.tick()

    assert sorted(answers) == [False, False, False, True]
    assert handle.output() == {"text": "hi"}
    assert len(declared.emitted("note")) == 1
    # It was received, so what is submitted again is not new, and no error either.
    assert service.send(runtime, handle.id, "note", '{"text": "hi"}', delivery_id="d") is False


def test_one_delivery_id_serves_messages_to_several_runs_and_an_event(runtime: Runtime) -> None:
    handles = [receiving.spawn() for _ in range(2)]

    assert [service.send(runtime, handle.id, "plain", "1", delivery_id="d") for handle in handles] == [True, True]
    assert service.deliver(runtime, "plain", 1, delivery_id="d")[1]
    assert len(declared.emitted("plain")) == 3


def test_a_message_nobody_would_read_is_refused_and_not_kept(runtime: Runtime) -> None:
    handle = dated.spawn(datetime(2026, 1, 1, tzinfo=UTC))
    declared.tick()

    with pytest.raises(RunFinished, match="nobody would read"):
        service.send(runtime, handle.id, "note", "null")
    with pytest.raises(RunNotFound, match="0000"):
        service.send(runtime, "0000", "note", "null")
    with pytest.raises(UndecodableValue):
        service.send(runtime, handle.id, "note", "{")

    assert declared.emitted() == ()


# Events ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["typed", "dict"])
def test_a_typed_event_is_delivered_with_values_as_they_are_stored(runtime: Runtime, name: str) -> None:
    handle = waiting.spawn(name)
    declared.tick()
    payload: dict[str, Any] = {"at": "2026-12-24T09:00:00+00:00"}
    if name == "typed":
        payload["order"] = 8

    service.deliver(runtime, name, payload)
    declared.tick()

    assert "datetime.datetime(2026, 12, 24, 9, 0, tzinfo=datetime.timezone.utc)" in (handle.output() or "")


@pytest.mark.parametrize("payload", [{"at": "tomorrow"}, {}, [], None])
def test_a_payload_that_does_not_fit_is_delivered_to_nobody(runtime: Runtime, payload: Any) -> None:
    with pytest.raises(ValueRefused, match="event 'typed'"):
        service.deliver(runtime, "typed", payload)
    with pytest.raises(UnregisteredEvent):
        service.deliver(runtime, "unknown", payload)

    assert declared.emitted() == ()


# What an event would do --------------------------------------------------------------------


def test_what_an_event_would_wake_is_what_it_wakes(runtime: Runtime, clock: Clock) -> None:
    any_plain = waiting.spawn("plain")
    eight = waiting.spawn("plain", {"order": 8})
    chooser = choosing.spawn(8)
    waiting.spawn("plain", {"order": 9})
    waiting.spawn("typed")
    receiving.spawn()
    cancelled = waiting.spawn("plain", {"order": 8})
    declared.tick()
    cancelled.cancel()

    told = service.would_wake(runtime, "plain", {"order": 8})
    service.deliver(runtime, "plain", {"order": 8})
    declared.tick()

    woken = [handle.id for handle in (any_plain, eight, chooser) if handle.status() is RunStatus.COMPLETED]
    assert (list(told.run_ids), told.count, told.others) == (sorted(woken), Count(3), Count(1))
    assert len(declared.runs()) == 7
    assert len(declared.emitted()) == 1


def test_an_event_of_a_workspace_wakes_its_runs_and_only_what_one_sees_is_told(runtime: Runtime) -> None:
    handles = {name: waiting.using(workspace=name).spawn("plain") for name in ("acme", "other")}
    declared.tick()

    acme = service.would_wake(runtime, "plain", None, workspace="acme")
    seen = service.would_wake(runtime, "plain", None, workspaces=("other",))
    nothing = service.would_wake(runtime, "plain", None, workspaces=())

    assert (acme.run_ids, acme.others) == ((handles["acme"].id,), Count(1))
    assert (seen.run_ids, seen.others) == ((handles["other"].id,), Count(0))
    assert (nothing.run_ids, nothing.count, nothing.others) == ((), Count(0), Count(0))


def test_of_many_runs_the_first_are_named_and_counting_stops(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.store.reading.waking._CAP", 26)
    handles = [waiting.spawn("plain") for _ in range(30)]
    declared.tick()

    told = service.would_wake(runtime, "plain", None)

    assert told.run_ids == tuple(sorted(handle.id for handle in handles)[:20])
    assert told.count == Count(25, capped=True)


def test_a_delay_is_kept(runtime: Runtime, clock: Clock) -> None:
    run_id, _ = service.start(runtime, "receiving", {}, delay=timedelta(hours=1))

    assert declared.get(run_id).due_at == clock.now() + timedelta(hours=1)
