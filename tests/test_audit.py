"""Who did what: each action and its row in the audit are one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from flask_workflows import By
from flask_workflows import Handle
from flask_workflows import KeyTaken
from flask_workflows import models
from flask_workflows import RunChanged
from flask_workflows import RunFinished
from flask_workflows import RunNotFailed
from flask_workflows import RunNotLost
from flask_workflows import RunNotSleeping
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidCursor
from flask_workflows.names import id_at
from flask_workflows.runs import AuditEntry
from flask_workflows.runs import AuditPage
from flask_workflows.runtime import current_runtime
from flask_workflows.runtime import Runtime
from flask_workflows.store import reading as read
from flask_workflows.store import Scope
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from tests import apps
from tests.rows import Rows
from tests.rows import tables
from tests.running import at_once
from tests.running import Clock
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

ANA = By("ana", reason="she asked", request_id="r-1", address="192.0.2.7", operation="op-1")

declared = Workflows()
declared.event("paid")


@declared.workflow
def behaving(ctx: WorkflowContext, how: str = "ends") -> str:
    if how == "sleeps":
        ctx.sleep(3600)
    elif how == "waits":
        ctx.wait_for("paid")
    elif how == "raises":
        raise ValueError("wrong")
    return "ended"


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, workflows=declared)

    declared.clock = None


@pytest.fixture
def runtime(app: Flask) -> Runtime:
    return apps.runtime_of(app)


def audit(app: Flask, **filters: Any) -> tuple[AuditEntry, ...]:
    return page(app, **filters).entries


def page(app: Flask, **filters: Any) -> AuditPage:
    with read.reading(apps.runtime_of(app).engine) as connection:
        return read.list_audit(connection, **filters)


def take_up(runtime: Runtime) -> None:
    """Claim what is due, as a worker does that then says nothing more."""
    runtime.store.claim(Scope.of(runtime.registry.ranges()), "another worker", 10)


# Every action ------------------------------------------------------------------------------


def asleep() -> Handle[str]:
    handle = behaving.using(workspace="acme").spawn("sleeps")
    declared.tick()
    return handle


def failed() -> Handle[str]:
    handle = behaving.using(workspace="acme").spawn("raises")
    assert isinstance(declared.clock, Clock)
    run_out(declared, declared.clock)
    return handle


def held() -> Handle[str]:
    handle = behaving.using(workspace="acme").spawn()
    take_up(current_runtime())
    return handle


Act = Callable[[str, int | None, By | None], object]


def move(run_id: str, epoch: int | None, by: By | None) -> object:
    assert declared.clock is not None
    return declared.wake(run_id, epoch=epoch, at=declared.clock.now() + timedelta(days=1), by=by)


#: How the run is made that each is done to, and its status before and after.
ACTIONS: dict[str, tuple[Callable[[], Handle[str]], Act, str, str]] = {
    "cancel": (asleep, lambda run_id, epoch, by: declared.cancel(run_id, epoch=epoch, by=by), "sleeping", "cancelled"),
    "retry": (failed, lambda run_id, epoch, by: declared.retry(run_id, epoch=epoch, by=by), "failed", "pending"),
    "wake": (asleep, lambda run_id, epoch, by: declared.wake(run_id, epoch=epoch, by=by), "sleeping", "sleeping"),
    "move": (asleep, move, "2040-01-01T13:00:00.000+00:00", "2040-01-02T12:00:00.000+00:00"),
    "release": (held, lambda run_id, epoch, by: declared.release(run_id, epoch=epoch, by=by), "running", "running"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_leaves_a_row_that_says_who_did_what_and_why(app: Flask, clock: Clock, action: str) -> None:
    make, act, before, after = ACTIONS[action]
    handle = make()

    act(handle.id, None, ANA)

    (entry,) = audit(app)
    assert entry == AuditEntry(
        id=entry.id,
        at=clock.now(),
        actor="ana",
        action=action,
        run_id=handle.id,
        workspace="acme",
        target="behaving",
        before=before,
        after=after,
        reason="she asked",
        request_id="r-1",
        address="192.0.2.7",
        operation="op-1",
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_nobody_named_leaves_no_row(app: Flask, action: str) -> None:
    make, act, _, _ = ACTIONS[action]

    act(make().id, None, None)

    assert audit(app) == ()


@pytest.mark.parametrize("action", ACTIONS)
def test_of_many_who_act_on_what_they_saw_one_does_and_one_row_says_so(app: Flask, action: str) -> None:
    make, act, _, _ = ACTIONS[action]
    handle = make()
    epoch = handle.run().epoch

    def press(name: str) -> str:
        try:
            act(handle.id, epoch, By(name))
        except (RunChanged, RunFinished, RunNotFailed, RunNotSleeping) as error:
            return type(error).__name__
        return name

    answers = at_once(app, *[lambda name=f"operator {n}": press(name) for n in range(6)])

    (entry,) = audit(app)
    assert [answer for answer in answers if answer.startswith("operator")] == [entry.actor]
    assert handle.run().epoch == epoch + 1


def test_of_two_opposite_buttons_pressed_at_once_one_wins(app: Flask) -> None:
    handle = asleep()
    epoch = handle.run().epoch

    def press(act: Callable[..., object], name: str) -> str:
        try:
            act(handle.id, epoch=epoch, by=By(name))
        except (RunChanged, RunFinished):
            return "told"
        return name

    answers = at_once(app, lambda: press(declared.cancel, "ana"), lambda: press(declared.wake, "ben"))

    (entry,) = audit(app)
    assert sorted(answers) == sorted([entry.actor, "told"])
    assert handle.status() is (RunStatus.CANCELLED if entry.actor == "ana" else RunStatus.SLEEPING)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_refused_action_leaves_no_row(app: Flask, action: str) -> None:
    _, act, _, _ = ACTIONS[action]
    handle = behaving.spawn()
    declared.tick()

    with pytest.raises((RunFinished, RunNotFailed, RunNotLost)):
        act(handle.id, None, ANA)

    assert audit(app) == ()


def test_a_retry_refused_for_its_key_leaves_no_row(app: Flask) -> None:
    old = behaving.using(key="k").spawn("raises")
    assert isinstance(declared.clock, Clock)
    run_out(declared, declared.clock)
    behaving.using(key="k", delay=60).spawn()

    with pytest.raises(KeyTaken):
        declared.retry(old.id, by=ANA)

    assert audit(app) == ()


def test_a_run_cancelled_while_it_is_executed_is_cancelling_and_asking_again_does_nothing(app: Flask) -> None:
    handle = held()

    for name in ("ana", "ben"):
        assert declared.cancel(handle.id, by=By(name)).cancelling

    (entry,) = audit(app)
    assert (entry.actor, entry.before, entry.after) == ("ana", "running", "cancelling")


def test_cancelling_a_workspace_leaves_a_row_for_each_run(app: Flask) -> None:
    handles = [behaving.using(workspace="acme", delay=60).spawn() for _ in range(3)]
    behaving.using(workspace="other", delay=60).spawn()

    declared.cancel_workspace("acme", by=ANA)

    assert {entry.run_id for entry in audit(app)} == {handle.id for handle in handles}


@pytest.mark.parametrize("action", ACTIONS)
def test_whatever_the_process_dies_of_the_row_is_there_where_the_action_was_done(app: Flask, action: str) -> None:
    make, act, _, _ = ACTIONS[action]

    for crash in every_crash(declared):
        # A tick would go on with the run of the round before.
        clock, declared.clock = declared.clock, Clock()
        handle = make()
        declared.clock = FixedClock(declared.clock.now())
        epoch = handle.run().epoch
        with crash:
            act(handle.id, epoch, ANA)
        entries = audit(app, run_id=handle.id)

        done = handle.run().epoch > epoch
        assert done == (crash.when == "after" or not crash.happened)
        assert len(entries) == done
        if not handle.run().finished:
            declared.cancel(handle.id)
        declared.clock = clock


def test_what_is_written_can_be_stored_whatever_was_typed(app: Flask) -> None:
    handle = asleep()

    declared.cancel(
        handle.id, by=By("a\0na" * 200, reason="\ud800why\n" * 2_000, request_id="x" * 500, address="y" * 500)
    )

    (entry,) = audit(app)
    assert (len(entry.actor), len(entry.reason)) == (255, 2_000)
    assert entry.actor.startswith("a\ufffdna")
    assert entry.reason.startswith("\ufffdwhy\n")
    assert (entry.request_id, entry.address) == ("x" * 100, "y" * 100)


# Starting, events, messages ----------------------------------------------------------------


def test_a_start_and_its_row_are_one_and_an_existing_run_leaves_none(app: Flask, runtime: Runtime) -> None:
    first = service.start(runtime, "behaving", {"how": "sleeps"}, key="k", workspace="acme", delay=60, by=ANA)
    again = service.start(runtime, "behaving", {"how": "sleeps"}, key="k", workspace="acme", by=ANA)

    (entry,) = audit(app)
    assert first == (entry.run_id, True)
    assert again == (entry.run_id, False)
    assert (entry.action, entry.target, entry.workspace) == ("start", "behaving", "acme")
    assert (entry.before, entry.after) == (None, "sleeping")


def test_a_delivery_leaves_a_row_once(app: Flask, runtime: Runtime) -> None:
    first = service.deliver(runtime, "paid", {"order": 8}, workspace="acme", delivery_id="d", by=ANA)
    again = service.deliver(runtime, "paid", {"order": 8}, workspace="acme", delivery_id="d", by=By("ben"))

    (entry,) = audit(app)
    assert (first[1], again) == (True, (first[0], False))
    assert (entry.actor, entry.action, entry.target, entry.workspace) == ("ana", "deliver", "paid", "acme")
    assert (entry.run_id, entry.before, entry.after) == (None, None, None)


def test_a_message_leaves_a_row_once(app: Flask, runtime: Runtime) -> None:
    handle = asleep()
    answers = [
        service.send(runtime, handle.id, "note", '{"text": "hi"}', delivery_id="d", by=By(name))
        for name in ("ana", "ben")
    ]

    (entry,) = audit(app)
    assert answers == [True, False]
    assert (entry.actor, entry.action, entry.run_id) == ("ana", "send", handle.id)
    assert (entry.target, entry.workspace) == ("note", "acme")


# Listing -----------------------------------------------------------------------------------


def audit_row(number: int, **values: Any) -> dict[str, Any]:
    row = {
        "id": f"{id_at(1_000_000 + number)[:24]}{number:012x}",
        "at": 1_000_000 + number,
        "actor": "ana",
        "action": "cancel",
        "run_id": "run-1",
        "workspace": "",
        "target": "behaving",
        "before": "sleeping",
        "after": "cancelled",
        "reason": f"{number}",
        "request_id": None,
        "address": None,
        "operation": None,
    }
    return {**row, **values}


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        yield rows


def listed(rows: Rows, **filters: Any) -> AuditPage:
    with read.reading(rows.engine) as connection:
        return read.list_audit(connection, **filters)


def numbers(page: AuditPage) -> list[int]:
    return [int(entry.reason) for entry in page.entries]


def insert(rows: Rows, *values: dict[str, Any]) -> None:
    rows.insert(models.audit, list(values))


def test_pages_lead_to_the_oldest_entry_and_back(rows: Rows) -> None:
    insert(rows, *(audit_row(number) for number in range(25)))

    first = listed(rows, limit=10)
    second = listed(rows, limit=10, cursor=first.older)
    third = listed(rows, limit=10, cursor=second.older)
    back = listed(rows, limit=10, cursor=third.newer)
    front = listed(rows, limit=10, cursor=back.newer)

    assert numbers(first) == list(range(24, 14, -1))
    assert numbers(second) == list(range(14, 4, -1))
    assert numbers(third) == [4, 3, 2, 1, 0]
    assert third.older is None
    assert numbers(back) == numbers(second)
    assert (numbers(front), front.newer) == (numbers(first), None)
    with pytest.raises(InvalidCursor):
        listed(rows, cursor="nonsense")


def test_entries_are_narrowed_by_run_actor_action_and_workspace(rows: Rows) -> None:
    insert(
        rows,
        audit_row(1, run_id="run-2"),
        audit_row(2, actor="ben"),
        audit_row(3, action="retry"),
        audit_row(4, workspace="acme"),
        audit_row(5, run_id=None),
    )

    assert numbers(listed(rows, run_id="run-2")) == [1]
    assert numbers(listed(rows, actor="ben")) == [2]
    assert numbers(listed(rows, action="retry")) == [3]
    assert numbers(listed(rows, workspaces=("acme", "other"))) == [4]
    assert numbers(listed(rows, workspaces=("",))) == [5, 3, 2, 1]
    assert numbers(listed(rows, workspaces=())) == []
    assert numbers(listed(rows, actor="a\0")) == []


def test_looking_for_what_no_index_knows_is_cut_short_and_said(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.store.reading.audit.SCAN", 10)
    insert(rows, *(audit_row(number, actor="ben" if number in (2, 17) else "ana") for number in range(20)))

    first = listed(rows, actor="ben", limit=5)
    second = listed(rows, actor="ben", limit=5, cursor=first.older)
    back = listed(rows, actor="ben", limit=5, cursor=second.newer)

    assert (numbers(first), first.searched) == ([17], 10)
    assert (numbers(second), second.searched, second.older) == ([2], 10, second.older)
    assert numbers(listed(rows, actor="ben", limit=5, cursor=second.older)) == []
    assert (numbers(back), back.searched) == ([], 10)
    assert numbers(listed(rows, actor="ben", limit=5, cursor=back.newer)) == [17]


# Pruning -----------------------------------------------------------------------------------


def test_old_entries_are_pruned_whatever_becomes_of_the_runs(
    database_url: str, make_app: apps.MakeApp, clock: Clock
) -> None:
    workflows = Workflows()
    workflows.clock = clock
    app = make_app(database_url, workflows=workflows, WORKFLOWS_PRUNE_AFTER_DAYS=0, WORKFLOWS_AUDIT_AFTER_DAYS=10)
    runtime = apps.runtime_of(app)
    with app.app_context():
        for _ in range(3):
            runtime.actions.account(ANA, "look")
        clock.move(days=9)
        runtime.actions.account(ANA, "look", target="young")
        clock.move(days=2)

        workflows.prune(dry_run=True)
        kept = audit(app)
        gone = workflows.prune()
        left = audit(app)

    assert (len(kept), gone) == (4, 0)
    assert [entry.target for entry in left] == ["young"]


def test_nothing_of_the_audit_is_pruned_where_it_is_to_be_kept(
    database_url: str, make_app: apps.MakeApp, clock: Clock
) -> None:
    workflows = Workflows()
    workflows.clock = clock
    app = make_app(database_url, workflows=workflows, WORKFLOWS_AUDIT_AFTER_DAYS=0)
    with app.app_context():
        apps.runtime_of(app).actions.account(ANA, "look")
        clock.move(days=36_000)
        workflows.prune(timedelta())

        assert len(audit(app)) == 1


# On the command line -----------------------------------------------------------------------


def test_commands_say_who_ran_them_and_why(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ana")
    runner = app.test_cli_runner()

    def run(*args: str) -> str:
        result = runner.invoke(args=["workflows", *args, "--reason", "she asked"])
        assert result.exit_code == 0, result.output
        return result.stdout.split()[0]

    run_id = run("start", "behaving", "--input", '{"how": "sleeps"}')
    declared.tick()
    run("emit", "paid")
    run("wake", run_id, "--at", "2041-01-01T00:00+01:00")
    run("wake", run_id)
    run("cancel", run_id)
    run("retry", run_id)
    take_up(apps.runtime_of(app))
    run("release", run_id)

    entries = audit(app)
    assert [entry.action for entry in reversed(entries)] == [
        "start",
        "deliver",
        "move",
        "wake",
        "cancel",
        "retry",
        "release",
    ]
    assert {entry.actor for entry in entries} == {f"cli:ana@{socket.gethostname()}"}
    assert {entry.reason for entry in entries} == {"she asked"}
    assert {entry.run_id for entry in entries} == {run_id, None}


@pytest.mark.parametrize("time", ["tomorrow", "2041-01-01T00:00"])
def test_a_time_that_is_none_or_has_no_zone_is_wrong_usage(app: Flask, time: str) -> None:
    result = app.test_cli_runner().invoke(args=["workflows", "wake", asleep().id, "--at", time])

    assert result.exit_code == 2
    assert repr(time) in result.stderr
    assert audit(app) == ()


def test_releasing_what_is_not_lost_is_a_conflict(app: Flask) -> None:
    result = app.test_cli_runner().invoke(args=["workflows", "release", asleep().id])

    assert result.exit_code == 4
    assert "no worker holds it" in result.stderr
