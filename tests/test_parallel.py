"""Functions of a run that are executed side by side (R14, R20)."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.testing import assert_replays
from tests import apps
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import on_sqlite
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

effects: list[str] = []
together = threading.Barrier(3)
gate = threading.Event()

declared = Workflows()
declared.event("paid")


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step
def meet(what: str) -> str:
    together.wait(timeout=30)
    return what


@declared.step
def double(number: int) -> int:
    effects.append(str(number))
    return 2 * number


@declared.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
def second_time_lucky(what: str) -> str:
    effects.append(what)
    if effects.count(what) == 1:
        raise OSError("down")
    return what


@declared.step(retry=Retry(attempts=1))
def broken(what: str) -> str:
    effects.append(what)
    raise ValueError(f"no {what}")


@declared.step(transactional=True)
def order(what: str) -> int:
    db: SQLAlchemy = apps.database_of(_app())
    made = Order(note=what)
    db.session.add(made)
    db.session.flush()
    return made.id


@declared.step
def wait_at_gate() -> str:
    assert gate.wait(timeout=30)
    return "through"


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    gate.clear()
    together.reset()

    yield make_app(database_url, db=make_orders_db(), workflows=declared)

    declared.clock = None


def _fragile() -> str:
    effects.append("fragile")
    if effects.count("fragile") < 4:
        raise OSError("down")
    return "mended"


def _app() -> Flask:
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
    return app


def keys(workflows: Workflows, run_id: str) -> list[str]:
    return sorted(step.key for step in workflows.details(run_id).steps)


def test_branches_run_at_the_same_time_and_answer_in_the_order_written(workflows: Workflows) -> None:
    @workflows.workflow(name="three")
    def three(ctx: WorkflowContext) -> list[str]:
        return ctx.parallel(lambda: meet("a"), lambda: meet("b"), lambda: meet("c"))

    handle = three.spawn()
    workflows.tick()

    assert handle.output() == ["a", "b", "c"]
    assert keys(workflows, handle.id) == ["$parallel", "1.0/meet", "1.1/meet", "1.2/meet"]
    assert_replays(workflows, handle)


def test_map_answers_in_the_order_of_the_items(workflows: Workflows) -> None:
    @workflows.workflow(name="doubled")
    def doubled(ctx: WorkflowContext, count: int) -> list[int]:
        return ctx.map(double, range(count), max_workers=8)

    handle = doubled.spawn(count=200)
    workflows.tick()

    assert handle.output() == [2 * number for number in range(200)]
    assert sorted(map(int, effects)) == list(range(200))
    assert_replays(workflows, handle)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_are_as_good_as_many(workflows: Workflows, count: int) -> None:
    @workflows.workflow(name="few")
    def few(ctx: WorkflowContext, count: int) -> list[Any]:
        mapped = ctx.map(double, range(count))
        note("between")
        return [mapped, ctx.parallel(*[partial(note, str(number)) for number in range(count)])]

    handle = few.spawn(count=count)
    workflows.tick()

    assert handle.output() == [[2 * n for n in range(count)], [str(n) for n in range(count)]]
    assert_replays(workflows, handle)


def test_branches_nest(workflows: Workflows) -> None:
    @workflows.workflow(name="nested")
    def nested(ctx: WorkflowContext) -> list[Any]:
        def inner(name: str) -> list[str]:
            before = note(f"{name} before")
            return [before, *ctx.map(note, [f"{name}{n}" for n in range(2)])]

        return ctx.parallel(lambda: inner("a"), lambda: inner("b"))

    handle = nested.spawn()
    workflows.tick()

    assert handle.output() == [["a before", "a0", "a1"], ["b before", "b0", "b1"]]
    assert "1.1/2.0/note" in keys(workflows, handle.id)
    assert_replays(workflows, handle)


def test_functions_may_take_the_context_and_find_the_run(workflows: Workflows) -> None:
    @workflows.workflow(name="known")
    def known(ctx: WorkflowContext) -> list[str]:
        def one(ctx: WorkflowContext) -> str:
            return ctx.run_id

        return ctx.parallel(one, lambda: current_run.run_id)

    handle = known.spawn()
    workflows.tick()

    assert handle.output() == [handle.id, handle.id]


def test_branches_sleep_wait_and_try_again(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="mixed")
    def mixed(ctx: WorkflowContext) -> list[Any]:
        def sleeping() -> str:
            note("going to sleep")
            ctx.sleep(30)
            return note("awake")

        def waiting() -> Any:
            event = ctx.wait_for("paid", timeout=3_600)
            return None if event is None else event.payload["amount"]

        return ctx.parallel(sleeping, waiting, lambda: second_time_lucky("lucky"), lambda: note("done"))

    handle = mixed.spawn()
    workflows.tick()
    first = handle.run()
    clock.move(seconds=31)
    workflows.tick()
    slept = list(effects)
    clock.move(seconds=31)
    workflows.tick()
    workflows.deliver("paid", {"amount": 7})
    workflows.tick()

    assert first.status is RunStatus.WAITING
    assert slept.count("awake") == 1
    assert handle.output() == ["awake", 7, "lucky", "done"]
    assert sorted(effects) == ["awake", "done", "going to sleep", "lucky", "lucky"]
    assert_replays(workflows, handle)


def test_time_out_in_a_branch_is_kept(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="timed")
    def timed(ctx: WorkflowContext) -> list[Any]:
        return ctx.parallel(lambda: ctx.wait_for("paid", timeout=60), lambda: ctx.wait_for("paid", timeout=120))

    handle = timed.spawn()
    executions = run_out(workflows, clock)

    assert handle.output() == [None, None]
    assert executions == 3
    assert_replays(workflows, handle)


def test_event_that_comes_while_another_branch_works_is_received(workflows: Workflows) -> None:
    @workflows.workflow(name="received")
    def received(ctx: WorkflowContext) -> list[Any]:
        def waiting() -> Any:
            return ctx.wait_for("paid").payload

        return ctx.parallel(waiting, wait_at_gate)

    handle = received.spawn()
    app = _app()

    def work() -> None:
        with app.app_context():
            workflows.tick()

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 30
    while not _waits(app) and time.monotonic() < deadline:
        time.sleep(0.01)
    workflows.deliver("paid", {"amount": 7})
    gate.set()
    thread.join()
    workflows.tick()

    assert handle.output() == [{"amount": 7}, "through"]


def test_branch_that_goes_on_beside_another_runs_nothing_again_that_branches_of_its_own_stored(
    workflows: Workflows, clock: Clock
) -> None:
    woken = threading.Event()

    def meanwhile() -> bool:
        for _ in range(3_000):
            clock.move(milliseconds=1)
            if woken.wait(0.01):
                return True
        return False

    @workflows.workflow(name="inner-goes-on")
    def inner_goes_on(ctx: WorkflowContext) -> list[Any]:
        def sleeping() -> str:
            note("before")
            ctx.sleep(0.01)
            woken.set()
            return note("after")

        return ctx.parallel(
            lambda: ctx.parallel(sleeping, lambda: note("beside")), lambda: ctx.step("meanwhile", meanwhile)
        )

    handle = inner_goes_on.spawn()
    workflows.tick()

    assert handle.output() == [["after", "beside"], True]
    assert sorted(effects) == ["after", "before", "beside"]
    assert_replays(workflows, handle)


def _waits(app: Flask) -> int:
    engine = app.extensions["workflows"].engine
    with engine.connect() as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM workflow_waits")) or 0)


def test_failing_branch_lets_the_others_be_stored_then_raises(workflows: Workflows) -> None:
    @workflows.workflow(name="failing")
    def failing(ctx: WorkflowContext) -> list[str]:
        return ctx.parallel(lambda: note("a"), lambda: broken("b"), lambda: note("c"), lambda: broken("d"))

    handle = failing.spawn()
    workflows.tick()

    with pytest.raises(RunFailed, match="no b"):
        handle.output()
    assert sorted(effects) == ["a", "b", "c", "d"]
    stored = {step.key: step.status for step in workflows.details(handle.id).steps}
    assert stored == {
        "$parallel": "failed",
        "1.0/note": "completed",
        "1.1/broken": "failed",
        "1.2/note": "completed",
        "1.3/broken": "failed",
    }


def test_error_of_a_branch_can_be_caught_and_is_the_same_on_replay(workflows: Workflows) -> None:
    @workflows.workflow(name="caught")
    def caught(ctx: WorkflowContext) -> str:
        try:
            ctx.parallel(lambda: note("a"), lambda: broken("b"))
        except StepFailed as error:
            ctx.sleep(0)
            return f"{error.step}: {error.message}"
        return "no error"

    handle = caught.spawn()
    workflows.tick()

    assert handle.output() == "1.1/broken: no b"
    assert_replays(workflows, handle)


def test_retry_goes_on_with_what_the_branches_stored(workflows: Workflows) -> None:
    @workflows.workflow(name="mended")
    def mended(ctx: WorkflowContext) -> list[str]:
        return ctx.parallel(lambda: note("a"), lambda: ctx.step("fragile", _fragile), lambda: note("c"))

    handle = mended.spawn()
    run_out(workflows, declared.clock)  # type: ignore[arg-type]
    handle.retry()
    workflows.tick()

    assert handle.output() == ["a", "mended", "c"]
    assert sorted(effects) == ["a", "c", *["fragile"] * 4]


def test_each_branch_has_a_session_of_its_own(workflows: Workflows) -> None:
    @workflows.workflow(name="ordered")
    def ordered(ctx: WorkflowContext) -> list[int]:
        return ctx.map(order, [f"order {n}" for n in range(20)], max_workers=4)

    handle = ordered.spawn()
    workflows.tick()

    assert len(set(handle.output() or [])) == 20
    assert committed_notes() == sorted(f"order {n}" for n in range(20))


@pytest.mark.parametrize("inherit", [False, True])
def test_step_on_a_thread_the_run_does_not_know_is_refused(workflows: Workflows, inherit: bool) -> None:
    @workflows.workflow(name="threaded")
    def threaded(ctx: WorkflowContext) -> list[str]:
        call: Callable[..., str] = note
        if inherit:
            inherited = contextvars.copy_context()
            call = lambda what: inherited.copy().run(note, what)  # noqa: E731
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(call, ["a", "b"]))

    handle = threaded.spawn()
    run_out(workflows, declared.clock)  # type: ignore[arg-type]

    with pytest.raises(RunFailed, match=r"ctx\.parallel"):
        handle.output()
    assert effects == []


def test_step_on_a_foreign_thread_is_a_plain_call_where_no_run_is_executed(workflows: Workflows) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(note, ["a"])) == ["a"]


@on_sqlite
@pytest.mark.parametrize("wrong", [0, -1, 65, True, 1.5, "4"])
def test_number_of_threads_is_checked(workflows: Workflows, wrong: Any) -> None:
    @workflows.workflow(name="wrong")
    def checked(ctx: WorkflowContext) -> str:
        try:
            ctx.map(double, [1], max_workers=wrong)
        except ValueError as error:
            return str(error)
        return "taken"

    handle = checked.spawn()
    workflows.tick()

    assert handle.output() == f"max_workers={wrong!r}: write a whole number from 1 to 64"


def test_code_changed_in_a_branch_is_named(workflows: Workflows, clock: Clock) -> None:
    names = ["first", "second"]

    @workflows.workflow(name="changing")
    def changing(ctx: WorkflowContext) -> None:
        def branch() -> None:
            note(names[0])
            ctx.sleep(60)

        ctx.parallel(branch, lambda: note("other"))

    handle = changing.spawn()
    workflows.tick()
    names[0] = "changed"
    run_out(workflows, clock)

    with pytest.raises(RunFailed, match=r"call 1, '1\.0/note', had the input .*first.* and has now .*changed"):
        handle.output()


def test_number_of_branches_belongs_to_the_record(workflows: Workflows, clock: Clock) -> None:
    items = [1, 2, 3]

    @workflows.workflow(name="growing")
    def growing(ctx: WorkflowContext) -> list[int]:
        done = ctx.map(double, items)
        ctx.sleep(60)
        return done

    handle = growing.spawn()
    workflows.tick()
    items.append(4)
    run_out(workflows, clock)

    with pytest.raises(RunFailed, match=r"'\$parallel', had the input"):
        handle.output()


@on_sqlite
@pytest.mark.parametrize("items", [{1, 2}, frozenset({1, 2})])
def test_b41_set_has_no_order_to_map_in(workflows: Workflows, items: Any) -> None:
    @workflows.workflow(name="disordered")
    def disordered(ctx: WorkflowContext) -> str:
        try:
            ctx.map(double, items)
        except TypeError as error:
            return str(error)
        return "taken"

    handle = disordered.spawn()
    workflows.tick()

    assert handle.output() == "ctx.map() takes items in an order, which a set has not: write sorted(…) around it"


@on_sqlite
def test_b41_keys_and_errors_do_not_depend_on_hashes(tmp_path: Any) -> None:
    program = """
import sys
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_workflows import Retry
from flask_workflows import Workflows
app = Flask("hashes")
app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{sys.argv[1]}"
db = SQLAlchemy(app)
workflows = Workflows(app, db, authorize=lambda action, run=None: True)

@workflows.step
def measure(name: str) -> str:
    return name

@workflows.workflow
def hashes(ctx):
    ctx.map(measure, sorted({"a", "b", "c", "d"}))
    ctx.parallel(*[lambda name=name: [measure(name), measure(name)] for name in sorted({"x", "y", "z"})])
    ctx.parallel(*[lambda name=name: fail(name) for name in {"one": 1, "two": 2, "three": 3}])

@workflows.step(retry=Retry(attempts=1))
def fail(name: str) -> None:
    raise ValueError(f"no {name}")

with app.app_context():
    db.create_all()
    handle = hashes.spawn()
    workflows.tick()
    print(sorted((step.key, str(step.output_json)) for step in workflows.details(handle.id).steps))
    print(handle.run().error.message)
"""
    found = set()
    for seed in range(6):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / f"{seed}.sqlite3")],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)

    assert len(found) == 1
    assert "1.3/measure" in (said := found.pop())
    assert said.endswith("no one\n")
