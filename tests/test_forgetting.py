"""Going on from an earlier call: `retry` from a step, and forks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskCliRunner

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.errors import RunNotFailed
from flask_workflows.errors import StepNotFound
from flask_workflows.forgetting import failed_last
from flask_workflows.forgetting import from_call
from flask_workflows.names import new_id
from flask_workflows.runs import RunQuery
from flask_workflows.store import StoredStep
from flask_workflows.testing import assert_replays
from tests import apps
from tests.running import at_once
from tests.running import Clock
from tests.running import run_out

declared = Workflows()
effects: list[str] = []
faults: set[str] = set()


@declared.step(retry=Retry(attempts=1))
def note(what: str) -> str:
    effects.append(what)
    if what in faults:
        raise ValueError(f"no {what}")
    return f"{what} {effects.count(what)}"


@declared.workflow
def three(ctx: WorkflowContext) -> list[str]:
    return [note("a"), note("b"), note("c")]


@declared.workflow
def branched(ctx: WorkflowContext) -> list[list[str]]:
    def two(name: str) -> list[str]:
        return [note(f"{name}1"), note(f"{name}2")]

    found = ctx.parallel(lambda: two("x"), lambda: two("y"))
    return [*found, [note("end")]]


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    faults.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def step(key: str, position: int, status: str = "completed") -> StoredStep:
    return StoredStep(key, position, "step", status, None, None, None, 1, None, None, None, None)


NESTED = [
    step("a", 1),
    step("$parallel", 2, "failed"),
    step("2.0/b", 1),
    step("2.0/$parallel", 2, "failed"),
    step("2.0/2.0/c", 1, "failed"),
    step("2.0/2.1/d", 1),
    step("2.0/2.1/e", 2),
    step("2.1/f", 1, "failed"),
]


def test_failures_at_the_end_are_forgotten_with_the_parallel_calls_around_them() -> None:
    assert failed_last(NESTED) == ["$parallel", "2.0/$parallel", "2.0/2.0/c", "2.1/f"]


def test_failures_that_the_body_caught_stay() -> None:
    assert failed_last([*NESTED, step("g", 3)]) == []
    assert failed_last([*NESTED, step("2.0/h", 3), step("i", 3, "failed")]) == ["i"]
    assert failed_last([*NESTED, step("2.0/h", 3)]) == ["$parallel", "2.1/f"]


@pytest.mark.parametrize(
    ("key", "forgotten"),
    [
        ("a", ["a", "$parallel", "2.0/b", "2.0/$parallel", "2.0/2.0/c", "2.0/2.1/d", "2.0/2.1/e", "2.1/f", "z"]),
        ("$parallel", ["$parallel", "2.0/b", "2.0/$parallel", "2.0/2.0/c", "2.0/2.1/d", "2.0/2.1/e", "2.1/f", "z"]),
        ("2.0/b", ["2.0/b", "2.0/$parallel", "2.0/2.0/c", "2.0/2.1/d", "2.0/2.1/e", "z"]),
        ("2.0/2.1/e", ["2.0/2.1/e", "z"]),
        ("2.1/f", ["2.1/f", "z"]),
        ("z", ["z"]),
        ("nothing", []),
    ],
)
def test_calls_from_one_on(key: str, forgotten: list[str]) -> None:
    assert from_call([*NESTED, step("z", 3)], key) == forgotten


# Retry from a step -------------------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_retry_from_a_step_does_it_and_the_later_ones_anew(workflows: Workflows, clock: Clock) -> None:
    faults.add("c")
    handle = three.spawn()
    run_out(workflows, clock)
    faults.clear()
    workflows.retry(handle.id, from_step="note#2", by=By("ana"))
    run_out(workflows, clock)

    assert handle.output() == ["a 1", "b 2", "c 2"]
    assert effects == ["a", "b", "c", "b", "c"]
    assert_replays(workflows, handle)


@pytest.mark.usefixtures("app_context")
def test_retry_from_a_step_of_a_branch_keeps_the_other_branches(workflows: Workflows, clock: Clock) -> None:
    faults.add("end")
    handle = branched.spawn()
    run_out(workflows, clock)
    faults.clear()
    workflows.retry(handle.id, from_step="1.0/note#2")
    run_out(workflows, clock)

    assert handle.output() == [["x1 1", "x2 2"], ["y1 1", "y2 1"], ["end 2"]]
    assert_replays(workflows, handle)


@pytest.mark.usefixtures("app_context")
def test_failure_that_the_body_caught_stays_as_it_was(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="catching")
    def catching(ctx: WorkflowContext) -> str:
        try:
            ctx.parallel(lambda: note("caught"), lambda: note("fine"))
        except StepFailed:
            return note("then")
        return "no fault"

    faults.update({"caught", "then"})
    handle = catching.spawn()
    run_out(workflows, clock)
    faults.clear()
    handle.retry()
    run_out(workflows, clock)

    assert handle.output() == "then 2"
    assert effects.count("caught") == 1


@pytest.mark.usefixtures("app_context")
def test_unknown_step_and_unfit_runs_are_refused(workflows: Workflows, clock: Clock) -> None:
    done = three.spawn()
    faults.add("c")
    failed = three.spawn()
    run_out(workflows, clock)

    with pytest.raises(StepNotFound, match="has no recorded call 'd'"):
        workflows.retry(failed.id, from_step="d")
    with pytest.raises(StepNotFound):
        workflows.fork(failed.id, "d")
    faults.clear()
    complete = three.spawn()
    run_out(workflows, clock)
    with pytest.raises(RunNotFailed):
        workflows.retry(complete.id, from_step="a")
    assert done.status() is RunStatus.FAILED


# Forks -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_fork_takes_over_what_came_before_and_leaves_the_other_alone(workflows: Workflows, clock: Clock) -> None:
    handle = three.using(key="k").spawn()
    run_out(workflows, clock)
    before = workflows.details(handle.id)
    fork = workflows.fork(handle.id, "note#2", by=By("ana"))
    run_out(workflows, clock)

    assert fork.output() == ["a 1", "b 2", "c 2"]
    assert effects == ["a", "b", "c", "b", "c"]
    run = fork.run()
    assert (run.forked_from, run.key, run.version, run.parent_id) == (handle.id, None, 1, None)
    assert workflows.details(handle.id) == before
    assert_replays(workflows, fork)


@pytest.mark.usefixtures("app_context")
def test_fork_from_the_first_step_does_all_anew(workflows: Workflows, clock: Clock) -> None:
    handle = three.spawn()
    run_out(workflows, clock)
    fork = workflows.fork(handle.id, "note")
    run_out(workflows, clock)

    assert fork.output() == ["a 2", "b 2", "c 2"]


@pytest.mark.usefixtures("app_context")
def test_fork_asked_for_twice_at_once_with_one_id_is_one(app: Flask, workflows: Workflows) -> None:
    handle = three.spawn()
    workflows.tick()
    runtime, new = apps.runtime_of(app), new_id()
    found = at_once(app, *[lambda: _fork(runtime, handle.id, new)] * 3)

    assert {answer for answer in found if answer} == {new}
    assert len(workflows.runs(RunQuery(workflow="three"))) == 2


def _fork(runtime: object, run_id: str, new: str) -> str:
    return service.fork(runtime, run_id, "note#2", By("ana"), new=new)  # type: ignore[arg-type]


@pytest.mark.usefixtures("clock")
def test_command_line_retries_from_a_step_and_forks(app: Flask, workflows: Workflows) -> None:
    with app.app_context():
        faults.add("c")
        handle = three.spawn()
        workflows.tick()
        faults.clear()
    runner = FlaskCliRunner(app)
    unknown = runner.invoke(args=["workflows", "retry", handle.id, "--from", "d"])
    forked = runner.invoke(args=["workflows", "fork", handle.id, "--from", "note#3", "--reason", "again"])
    retried = runner.invoke(args=["workflows", "retry", handle.id, "--from", "note"])

    assert (unknown.exit_code, forked.exit_code, retried.exit_code) == (3, 0, 0)
    with app.app_context():
        workflows.tick()
        (fork,) = [run for run in workflows.runs() if run.forked_from]
        retried_output, forked_output = handle.output() or [], workflows.handle(fork.id).output() or []
        assert retried_output[:2] == ["a 2", "b 2"]
        assert forked_output[:2] == ["a 1", "b 1"]
        assert {retried_output[2], forked_output[2]} == {"c 2", "c 3"}
    assert "forked_from" in models.runs.c
