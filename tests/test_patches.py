"""Code that changes under running runs: patches, and the check before a deploy (R15)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskCliRunner

from flask_workflows import models
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.testing import assert_replays
from tests import apps
from tests.running import Clock
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

effects: list[str] = []
declared = Workflows()
#: What the workflow `changing` does now.
body: list[Callable[[WorkflowContext], Any]] = []


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step
def other(what: str) -> str:
    effects.append(f"other {what}")
    return what


@declared.workflow
def changing(ctx: WorkflowContext) -> Any:
    return body[-1](ctx)


@declared.workflow
def unlike() -> None:
    """Has no runs."""


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    body.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def before(ctx: WorkflowContext) -> str:
    note("first")
    ctx.sleep(60)
    note("second")
    return "done"


# Patches -----------------------------------------------------------------------------------


def patched(ctx: WorkflowContext) -> str:
    if ctx.patched("tips"):
        note("tips")
    note("first")
    ctx.sleep(60)
    if ctx.patched("tips"):
        note("more tips")
    note("second")
    return "done"


def test_patch_is_taken_by_new_runs_and_left_out_by_those_under_way(workflows: Workflows, clock: Clock) -> None:
    body.append(before)
    old = changing.spawn()
    workflows.tick()
    body.append(patched)
    new = changing.spawn()
    run_out(workflows, clock)

    assert (old.output(), new.output()) == ("done", "done")
    assert effects == ["first", "tips", "first", "second", "more tips", "second"]
    for handle in (old, new):
        assert_replays(workflows, handle)


def test_run_that_has_not_come_there_takes_the_patch(workflows: Workflows, clock: Clock) -> None:
    def later(ctx: WorkflowContext) -> str:
        note("first")
        ctx.sleep(60)
        if ctx.patched("late"):
            note("late")
        note("second")
        return "done"

    body.append(before)
    handle = changing.spawn()
    workflows.tick()
    body.append(later)
    run_out(workflows, clock)

    assert handle.output() == "done"
    assert effects == ["first", "late", "second"]
    assert_replays(workflows, handle)


def test_patch_in_a_branch(workflows: Workflows, clock: Clock) -> None:
    def parallel(ctx: WorkflowContext) -> list[str]:
        def one(name: str) -> str:
            ctx.sleep(60)
            return note(f"{name} patched") if ctx.patched("inside") else note(name)

        return ctx.map(one, ["a", "b"])

    body.append(parallel)
    handle = changing.spawn()
    run_out(workflows, clock)

    assert handle.output() == ["a patched", "b patched"]
    assert_replays(workflows, handle)


def test_branch_that_goes_on_beside_another_finds_the_patch_in_its_record(workflows: Workflows, clock: Clock) -> None:
    woken = Event()

    def meanwhile() -> bool:
        for _ in range(3_000):
            clock.move(milliseconds=1)
            if woken.wait(0.01):
                return True
        return False

    def parallel(ctx: WorkflowContext) -> Any:
        def one() -> str:
            if ctx.patched("tips"):
                note("tips")
            ctx.sleep(0.01)
            woken.set()
            return note("more tips") if ctx.patched("tips") else note("second")

        return ctx.parallel(one, lambda: ctx.step("meanwhile", meanwhile))

    body.append(parallel)
    handle = changing.spawn()
    workflows.tick()

    assert handle.output() == ["more tips", True]
    assert effects == ["tips", "more tips"]
    assert_replays(workflows, handle)


@pytest.mark.parametrize("name", ["", "a/b", "a#b", "$a", "x" * 101])
def test_name_of_a_patch_is_checked(workflows: Workflows, clock: Clock, name: str) -> None:
    def wrong(ctx: WorkflowContext) -> str:
        try:
            ctx.patched(name)
        except ValueError as error:
            return str(error)
        return "taken"

    body.append(wrong)
    handle = changing.spawn()
    run_out(workflows, clock)

    assert "is no name for the patch" in (handle.output() or "")


# The check before a deploy -----------------------------------------------------------------


def inserted(ctx: WorkflowContext) -> str:
    note("first")
    other("new")
    ctx.sleep(60)
    return note("second")


def deleted(ctx: WorkflowContext) -> str:
    ctx.sleep(60)
    return note("second")


def swapped(ctx: WorkflowContext) -> str:
    ctx.sleep(60)
    note("first")
    return note("second")


def renamed(ctx: WorkflowContext) -> str:
    other("first")
    ctx.sleep(60)
    return note("second")


def argument(ctx: WorkflowContext) -> str:
    note("changed")
    ctx.sleep(60)
    return note("second")


CHANGES: dict[str, tuple[Callable[[WorkflowContext], Any], str]] = {
    "inserted": (inserted, "call 2 was '$sleep' and is now 'other'"),
    "deleted": (deleted, "call 1 was 'note' and is now '$sleep'"),
    "swapped": (swapped, "call 1 was 'note' and is now '$sleep'"),
    "renamed": (renamed, "call 1 was 'note' and is now 'other'"),
    "argument": (argument, "call 1, 'note', had the input"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_named_by_the_check_and_by_the_worker_and_put_back_it_goes_on(
    app: Flask, workflows: Workflows, clock: Clock, change: str
) -> None:
    after, words = CHANGES[change]
    body.append(before)
    handle = changing.spawn()
    workflows.tick()
    runner = FlaskCliRunner(app)
    fine = runner.invoke(args=["workflows", "check", "--replay"])
    body.append(after)
    rows = stored(app)
    found = runner.invoke(args=["workflows", "check", "--replay"])

    assert fine.exit_code == 0
    assert "1 run replayed, 0 diverged" in fine.output
    assert found.exit_code == 1
    assert words in found.output
    assert handle.id in found.output
    assert "test_patches.py:" in found.output
    assert stored(app) == rows
    assert effects == ["first"]

    run_out(workflows, clock)
    failed = handle.run()
    assert failed.status is RunStatus.FAILED
    assert failed.error is not None
    assert words in failed.error.message
    assert "test_patches.py:" in failed.error.message

    body.append(before)
    handle.retry()
    run_out(workflows, clock)
    assert handle.output() == "done"
    assert effects == ["first", "second"]


def test_check_looks_at_one_workflow(app: Flask, workflows: Workflows) -> None:
    body.append(before)
    changing.spawn()
    workflows.tick()
    body.append(deleted)
    runner = FlaskCliRunner(app)

    other_workflow = runner.invoke(args=["workflows", "check", "--replay", "--workflow", "unlike"])
    unknown = runner.invoke(args=["workflows", "check", "--replay", "--workflow", "unknown"])
    this = runner.invoke(args=["workflows", "check", "--replay", "--workflow", "changing"])

    assert (other_workflow.exit_code, this.exit_code) == (0, 1)
    assert "0 runs replayed" in other_workflow.output
    assert unknown.exit_code == 3
    assert "no workflow named 'unknown' is registered here" in unknown.output
    assert runner.invoke(args=["workflows", "check", "--workflow", "changing"]).exit_code == 2


def stored(app: Flask) -> list[Any]:
    """Every run and call."""
    with apps.runtime_of(app).engine.connect() as connection:
        tables = (models.runs, models.steps, models.waits, models.events)
        return [connection.execute(sa.select(table).order_by(*table.primary_key)).all() for table in tables]
