"""Old and new code side by side (R5)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from flask_workflows import Handle
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.durations import from_ms
from flask_workflows.explain import now_doing
from flask_workflows.explain import plain
from flask_workflows.explain import Surroundings
from flask_workflows.store.reading import live_workers
from flask_workflows.store.reading import reading
from tests import apps
from tests.event_app import working
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import eventually
from tests.processes import execute
from tests.processes import rows
from tests.processes import waiting
from tests.running import Clock

QUICK: dict[str, Any] = {"WORKFLOWS_DASHBOARD": False, "WORKFLOWS_POLL_INTERVAL_MS": 20}


class Release:
    """One state of the code: an app, and the workflows declared in it. All releases of a test share a database."""

    def __init__(self, app: Flask, workflows: Workflows) -> None:
        self.app = app
        self.workflows = workflows

    def spawn(self, name: str, count: int = 1) -> list[Handle[Any]]:
        with self.app.app_context():
            return [self.workflows.spawn(name) for _ in range(count)]

    def tick(self) -> int:
        with self.app.app_context():
            return self.workflows.tick()

    def working(self) -> Any:
        return working(self.app, workflows=self.workflows)


Declare = Callable[[Workflows], None]
MakeRelease = Callable[..., Release]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def release(database_url: str, make_app: apps.MakeApp, clock: Clock) -> MakeRelease:
    """Make the app of a release from what it declares."""

    def make(*declare: Declare, standing: bool = True) -> Release:
        workflows = Workflows()
        workflows.event("paid")
        for each in declare:
            each(workflows)
        app = make_app(database_url, workflows=workflows, **QUICK)
        if standing:
            workflows.clock = clock

        return Release(app, workflows)

    return make


def order(version: int, min_version: int | None = None, *, waits: bool = False) -> Declare:
    """A version of the workflow `order`, which returns the version of its code and that of its run."""

    def declare(workflows: Workflows) -> None:
        @workflows.workflow(name="order", version=version, min_version=min_version)
        def order(ctx: WorkflowContext) -> list[int]:
            if waits:
                ctx.wait_for("paid", timeout=timedelta(days=14))
            return [version, ctx.version]

    return declare


def named(name: str) -> Declare:
    def declare(workflows: Workflows) -> None:
        @workflows.workflow(name=name)
        def function() -> str:
            return name

    return declare


def statuses(app: Flask) -> dict[str, int]:
    return dict(rows(app, "SELECT status, count(*) FROM workflow_runs GROUP BY status"))


def losses(app: Flask) -> list[tuple[Any, ...]]:
    """Runs that were put back, lost, or tried again: that were claimed more than once."""
    return rows(app, "SELECT id, epoch, attempts, losses FROM workflow_runs WHERE epoch > 1 OR attempts + losses > 0")


# Which code resumes which run --------------------------------------------------------------


def test_a_run_is_resumed_by_the_version_it_started_on(release: MakeRelease) -> None:
    old = release(order(1))
    (run,) = old.spawn("order")
    both = release(order(1), order(2))

    executed = both.tick()

    with both.app.app_context():
        assert executed == 1
        assert run.output() == [1, 1]


def test_a_run_is_resumed_by_newer_code_that_takes_it(release: MakeRelease) -> None:
    old = release(order(1))
    (run,) = old.spawn("order")
    new = release(order(3, min_version=1))

    new.tick()

    with new.app.app_context():
        assert run.output() == [3, 1]


def test_of_several_newer_ones_the_nearest_resumes_it(release: MakeRelease) -> None:
    old = release(order(2))
    (run,) = old.spawn("order")
    new = release(order(5, min_version=1), order(3, min_version=2), order(4, min_version=4))

    new.tick()

    with new.app.app_context():
        assert run.output() == [3, 2]


@pytest.mark.parametrize(
    "declare", [order(3, min_version=3), order(1), named("another")], ids=["too new", "too old", "another"]
)
def test_a_run_that_this_code_cannot_run_is_not_claimed(release: MakeRelease, declare: Declare) -> None:
    (run,) = release(order(2)).spawn("order")
    other = release(declare)

    executed = other.tick()

    with other.app.app_context():
        assert executed == 0
        assert run.status() is RunStatus.PENDING
        assert losses(other.app) == []


def test_new_runs_start_on_the_newest_version_registered(release: MakeRelease) -> None:
    new = release(order(2), order(10), order(9))
    (run,) = new.spawn("order")

    new.tick()

    with new.app.app_context():
        assert run.output() == [10, 10]


def test_a_waiting_run_goes_on_under_the_newer_code_where_it_was(release: MakeRelease) -> None:
    old = release(order(1, waits=True))
    (run,) = old.spawn("order")
    old.tick()
    new = release(order(2, min_version=1, waits=True))

    with new.app.app_context():
        new.workflows.deliver("paid")
        new.workflows.tick()

        assert run.output() == [2, 1]


# Side by side ------------------------------------------------------------------------------


def test_b53_a_worker_leaves_alone_what_it_does_not_know(
    release: MakeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flask_workflows")
    with_x = release(named("x"), named("y"), standing=False)
    without_x = release(named("y"), standing=False)
    runs = with_x.spawn("x", 100)

    with without_x.working():
        for _ in waiting(0.5):
            assert statuses(with_x.app) == {"pending": 100}
        lines = [record.getMessage() for record in caplog.records]
        with with_x.working():
            eventually(lambda: statuses(with_x.app) == {"completed": 100})

    assert len(runs) == 100
    assert losses(with_x.app) == []
    assert len([line for line in lines if "x v1" in line]) == 1
    assert len(lines) <= 3


def test_b53_the_page_says_that_no_worker_knows_the_workflow(release: MakeRelease) -> None:
    with_x = release(named("x"), standing=False)
    without_x = release(named("y"), standing=False)
    (run,) = with_x.spawn("x")

    with without_x.working():
        eventually(lambda: rows(with_x.app, "SELECT 1 FROM workflow_workers"))
        said = what_is_said(with_x, run)
        with with_x.working():
            eventually(lambda: statuses(with_x.app) == {"completed": 1})

    assert said == "no live worker knows x"


def what_is_said(release: Release, run: Handle[Any]) -> str:
    """What the list of runs says of its state."""
    with release.app.app_context():
        runtime = apps.runtime_of(release.app)
        now = from_ms(runtime.store.now())
        with reading(runtime.engine) as connection:
            around = Surroundings(now=now, workers=live_workers(connection, now))

        return plain(now_doing(run.run(), (), around), now=now)


def test_a_rolling_deploy_loses_fails_and_delays_nothing(release: MakeRelease) -> None:
    """R5. Old and new workers work side by side, runs of both versions are started all the while, and the old stop."""
    old = release(order(1), standing=False)
    new = release(order(2), standing=False)
    started: list[Handle[Any]] = []
    stop = threading.Event()

    def start(which: Release) -> None:
        while not stop.is_set():
            started.extend(which.spawn("order"))

    with ExitStack() as old_workers, new.working():
        old_workers.enter_context(old.working())
        starting = [threading.Thread(target=start, args=(each,)) for each in (old, new)]
        for thread in starting:
            thread.start()
        eventually(lambda: len(started) >= 200, within=60)
        stop.set()
        for thread in starting:
            thread.join(30)
        eventually(lambda: set(statuses(new.app)) == {"completed"})
    late = rows(new.app, "SELECT max(started_at - created_at), count(*) FROM workflow_runs")

    assert late[0][0] < 30_000
    assert late[0][1] == len(started)
    assert losses(new.app) == []
    found = rows(
        new.app, "SELECT version, output, count(*) FROM workflow_runs GROUP BY version, output ORDER BY version"
    )
    assert [(version, json.loads(output)) for version, output, _ in found] == [(1, [1, 1]), (2, [2, 2])]


def test_a_rolling_deploy_with_a_min_version_takes_the_old_runs_along(release: MakeRelease) -> None:
    old = release(order(1, waits=True), standing=False)
    new = release(order(2, min_version=1, waits=True), standing=False)

    with old.working():
        runs = old.spawn("order", 10)
        eventually(lambda: statuses(old.app) == {"waiting": 10})
    with new.working():
        with new.app.app_context():
            new.workflows.deliver("paid")
        eventually(lambda: statuses(new.app) == {"completed": 10})

    with new.app.app_context():
        assert [run.output() for run in runs] == [[2, 1]] * 10


def test_an_event_may_be_matched_by_a_worker_that_cannot_run_what_it_wakes(release: MakeRelease) -> None:
    old = release(order(1, waits=True))
    (run,) = old.spawn("order")
    old.tick()
    new = release(order(2, waits=True))

    with new.app.app_context():
        new.workflows.deliver("paid")
        executed_by_new = new.workflows.tick()
        between = run.status()
    executed_by_old = old.tick()

    with old.app.app_context():
        assert (executed_by_new, executed_by_old) == (0, 1)
        assert between is RunStatus.PENDING
        assert run.output() == [1, 1]


def test_b51_waiting_runs_resume_after_any_edit_that_leaves_their_calls_alone(release: MakeRelease) -> None:
    before = release(order(1, waits=True), named("other"))
    runs = before.spawn("order", 10)
    before.tick()

    def edited(workflows: Workflows) -> None:
        """Another workflow is new, one is gone, and this one has comments, a helper and a parameter more."""

        @workflows.workflow(name="unrelated")
        def unrelated() -> None:
            """New."""

        def helper(version: int) -> list[int]:
            return [version, 1]

        @workflows.workflow(name="order", version=1)
        def order(ctx: WorkflowContext, note: str = "a new parameter with a default") -> list[int]:
            """Comments and lines were added."""
            paid = ctx.wait_for("paid", timeout=timedelta(days=14))
            assert paid is not None
            # After the wait as before it.
            return helper(ctx.version)

    after = release(edited)
    with after.app.app_context():
        after.workflows.deliver("paid")
        after.workflows.tick()

        assert [run.output() for run in runs] == [[1, 1]] * 10


# Nobody can run it -------------------------------------------------------------------------


def test_b127_a_worker_says_at_boot_which_runs_have_no_code_here(
    release: MakeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flask_workflows")
    before = release(order(1, waits=True), named("gone"), named("kept"), standing=False)
    for name, count in (("order", 3), ("gone", 2), ("kept", 1)):
        before.spawn(name, count)
    after = release(order(2), named("kept"), standing=False)

    with after.working():
        eventually(lambda: any("no code is registered" in record.getMessage() for record in caplog.records))

    (warning,) = [record.getMessage() for record in caplog.records if "no code is registered" in record.getMessage()]
    assert "gone v1 (2 runs)" in warning
    assert "order v1 (3 runs)" in warning
    assert "kept" not in warning
    assert "WORKFLOWS_IMPORTS" in warning


def error_of(release: Release, run: Handle[Any]) -> str:
    with release.app.app_context():
        error = run.run().error
        return "" if error is None else error.message


def house_kept(release: Release) -> None:
    """Let a worker of the release keep house once, which is the first it does; then it tries to claim."""
    with release.working():
        eventually(
            lambda: rows(release.app, "SELECT 1 FROM workflow_workers WHERE stopped_at IS NULL AND name <> 'old'")
        )
        for _ in waiting(0.2):
            pass


def test_a_run_older_than_every_min_version_fails_once_it_is_300_seconds_due(
    release: MakeRelease, clock: Clock
) -> None:
    (run,) = release(order(1)).spawn("order")
    new = release(order(3, min_version=2))

    clock.move(seconds=299)
    house_kept(new)
    with new.app.app_context():
        before = run.status()
    clock.move(seconds=1)
    with new.working(), new.app.app_context():
        eventually(lambda: run.status() is RunStatus.FAILED)

    assert before is RunStatus.PENDING
    message = error_of(new, run)
    assert "no live worker resumes 'order' version 1" in message
    assert "the oldest that is resumed is 2" in message
    assert "declare min_version=1" in message
    assert losses(new.app) == []


def test_the_failed_run_resumes_once_the_code_takes_it_and_it_is_retried(release: MakeRelease, clock: Clock) -> None:
    (run,) = release(order(1)).spawn("order")
    new = release(order(3, min_version=2))
    clock.move(seconds=300)
    with new.working(), new.app.app_context():
        eventually(lambda: run.status() is RunStatus.FAILED)
    mended = release(order(4, min_version=1))

    with mended.app.app_context():
        mended.workflows.retry(run.id)
        mended.workflows.tick()

        assert run.output() == [4, 1]


def test_a_run_that_a_live_worker_can_resume_does_not_fail_however_long_it_is_due(
    release: MakeRelease, clock: Clock
) -> None:
    old = release(order(1))
    (run,) = old.spawn("order")
    clock.move(hours=1)
    advertise(old)
    new = release(order(3, min_version=2))

    house_kept(new)

    with new.app.app_context():
        assert run.status() is RunStatus.PENDING
        execute(new.app, "UPDATE workflow_workers SET stopped_at = 1 WHERE name = 'old'")
    house_kept(new)
    with new.app.app_context():
        assert run.status() is RunStatus.FAILED


def test_a_worker_that_was_not_seen_for_long_is_not_live(release: MakeRelease, clock: Clock) -> None:
    old = release(order(1))
    (run,) = old.spawn("order")
    advertise(old)
    clock.move(hours=1)
    new = release(order(3, min_version=2))

    with new.working(), new.app.app_context():
        eventually(lambda: run.status() is RunStatus.FAILED)


def advertise(release: Release) -> None:
    """A worker of the release is alive, as it told last, but does not come to work."""
    with release.app.app_context():
        apps.runtime_of(release.app).store.save_worker(
            id="old-worker",
            name="old",
            host="elsewhere",
            pid=1,
            queues=None,
            workflows=json.dumps(release.workflows.registry.ranges()),
            concurrency=1,
        )


@pytest.mark.parametrize(
    "declared",
    [[order(1)], [order(2), order(5, min_version=5)], [named("another")]],
    ids=["newer than the code", "in a gap", "unknown here"],
)
def test_a_run_that_is_not_older_than_every_min_version_waits_for_its_code(
    release: MakeRelease, clock: Clock, declared: list[Declare]
) -> None:
    (run,) = release(order(4)).spawn("order")
    other = release(*declared)
    clock.move(days=1)

    house_kept(other)

    with other.app.app_context():
        assert run.status() is RunStatus.PENDING


def test_a_waiting_run_of_an_old_version_fails_300_seconds_after_its_event_and_leaves_no_wait(
    release: MakeRelease, clock: Clock
) -> None:
    old = release(order(1, waits=True))
    (by_event, by_time) = old.spawn("order", 2)
    old.tick()
    new = release(order(2, waits=True))
    execute(new.app, "UPDATE workflow_runs SET due_at = NULL WHERE id = :id", id=by_event.id)

    clock.move(days=13)
    house_kept(new)
    with new.app.app_context():
        before = [by_event.status(), by_time.status()]
    clock.move(days=1, seconds=300)
    with new.working(), new.app.app_context():
        eventually(lambda: by_time.status() is RunStatus.FAILED)
        after = by_event.status()
        new.workflows.deliver("paid")
        eventually(lambda: by_event.status() is RunStatus.PENDING)
    clock.move(seconds=300)
    with new.working(), new.app.app_context():
        eventually(lambda: by_event.status() is RunStatus.FAILED)

    assert before == [RunStatus.WAITING, RunStatus.WAITING]
    assert after is RunStatus.WAITING
    assert rows(new.app, "SELECT * FROM workflow_waits") == []
