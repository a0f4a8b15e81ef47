"""Where a run is executed: its app context, session and context variables, and whose app it is (R36)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import sqlalchemy as sa
from flask import appcontext_popped
from flask import current_app
from flask import Flask
from flask import g
from flask import has_request_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import scoped_session
from sqlalchemy.orm import sessionmaker

from flask_workflows import run_completed
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import SetupError
from tests import apps
from tests.running import Base
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import on_sqlite
from tests.running import Order
from tests.running import run_out

variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url, db=make_orders_db())


# Fresh contexts ----------------------------------------------------------------------------


def test_each_execution_has_an_app_context_of_its_own(app: Flask, workflows: Workflows, clock: Clock) -> None:
    seen: list[tuple[bool, str | None]] = []

    @workflows.step
    def look() -> None:
        seen.append((current_app._get_current_object() is app, g.get("mark")))  # type: ignore[attr-defined]
        g.mark = "left by a step"

    @workflows.workflow
    def looking(ctx: WorkflowContext) -> None:
        seen.append((current_app._get_current_object() is app, g.get("mark")))  # type: ignore[attr-defined]
        look()
        ctx.sleep(60)

    with app.app_context():
        g.mark = "the caller's"
        looking.spawn()
        looking.spawn()
        run_out(workflows, clock)

        assert g.mark == "the caller's"
    assert seen == [(True, None)] * 6


def test_context_variables_do_not_leak_into_runs_or_between_them(
    app: Flask, workflows: Workflows, clock: Clock
) -> None:
    seen: list[str] = []

    @workflows.step
    def set_it() -> None:
        variable.set("set by a step")

    @workflows.workflow
    def leaking() -> None:
        seen.append(variable.get())
        set_it()
        variable.set("set by a body")

    with app.app_context():
        token = variable.set("the caller's")
        for _ in range(3):
            leaking.spawn()
        workflows.tick()

        assert seen == ["unset"] * 3
        assert variable.get() == "the caller's"
        variable.reset(token)


def test_each_execution_and_each_step_has_a_clean_session(
    app: Flask, workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    sessions: list[object] = []

    def note_session() -> None:
        sessions.append(db.session())
        assert list(db.session) == []
        assert not db.session().in_transaction()
        db.session.scalars(sa.select(Order)).all()

    note_in_step = workflows.step(name="note-in-step")(note_session)

    @workflows.workflow
    def noting(ctx: WorkflowContext) -> None:
        note_session()
        note_in_step()
        note_session()
        note_in_step()

    with app.app_context():
        db.session.add(Order(note="kept"))
        db.session.commit()
        callers = db.session.scalars(sa.select(Order)).all()
        noting.spawn()
        noting.spawn()
        workflows.tick()

        assert len(sessions) == 8
        assert len({id(session) for session in [*sessions, db.session()]}) == 9
        assert list(db.session) == list(callers)


def test_the_session_of_an_execution_is_removed_even_if_the_teardown_of_the_app_does_not(
    app: Flask, workflows: Workflows, db: SQLAlchemy
) -> None:
    app.teardown_appcontext_funcs.clear()

    @workflows.workflow
    def reading(fails: bool) -> int:
        count = len(db.session.scalars(sa.select(Order)).all())
        if fails:
            raise ValueError("with a session open")
        return count

    with app.app_context():
        for fails in (False, True):
            reading.spawn(fails)
        executions = workflows.tick()

        assert executions == 2
        assert apps.connections_in_use(app) == 0
        db.session.remove()


# Code of the app that fails around a run ---------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)])
def test_b121_a_teardown_function_that_fails_harms_no_run(
    app: Flask, workflows: Workflows, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failing: list[bool] = []

    @app.teardown_appcontext
    def fail(_: BaseException | None) -> None:
        if failing:
            raise error

    @workflows.workflow
    def quiet(number: int) -> int:
        return number

    with app.app_context():
        handles = [quiet.spawn(number) for number in range(3)]
        failing.append(True)
        executions = workflows.tick()
        failing.clear()

        assert executions == 3
        assert [handle.output() for handle in handles] == [0, 1, 2]
        assert "a teardown function of the app failed after a run" in caplog.text


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("cannot log")


@contextmanager
def broken_log_handler() -> Iterator[None]:
    logger, handler = logging.getLogger("flask_workflows"), BrokenHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def broken_receiver(sender: Flask, **values: object) -> None:
    raise RuntimeError("broken receiver")


@pytest.mark.parametrize(
    "broken",
    [
        broken_log_handler,
        lambda: run_completed.connected_to(broken_receiver),
        lambda: appcontext_popped.connected_to(broken_receiver),
    ],
    ids=["log handler", "signal", "popped"],
)
def test_b121_receivers_and_log_handlers_that_fail_harm_no_run(
    app: Flask, workflows: Workflows, broken: Callable[[], AbstractContextManager[None]]
) -> None:
    @workflows.workflow
    def quiet(number: int) -> int:
        return number

    with app.app_context():
        handles = [quiet.spawn(number) for number in range(3)]
        with broken():
            executions = workflows.tick()

        assert executions == 3
        assert [handle.output() for handle in handles] == [0, 1, 2]


# In a request ------------------------------------------------------------------------------


def test_a_request_that_forgets_to_commit_warns(
    app: Flask, workflows: Workflows, caplog: pytest.LogCaptureFixture
) -> None:
    @workflows.workflow
    def forgotten() -> None: ...

    @app.get("/")
    def start() -> str:
        return forgotten.start().id

    run_id = app.test_client().get("/").text

    assert f"these runs were never started: {run_id}" in caplog.text


def test_b95_a_view_goes_on_with_its_objects_after_a_run_was_executed_inside_it(
    make_app: apps.MakeApp, database_url: str
) -> None:
    app = make_app(database_url, db=make_orders_db(), WORKFLOWS_EXECUTION="inline")
    workflows, db = apps.workflows_of(app), apps.database_of(app)

    @workflows.step
    def rename(order_id: int) -> bool:
        db.session.get_one(Order, order_id).note = "renamed by the run"
        return has_request_context()

    @workflows.workflow
    def renaming(order_id: int) -> bool:
        return rename(order_id)

    @app.post("/")
    def order() -> dict[str, Any]:
        order = Order(note="as ordered")
        db.session.add(order)
        db.session.flush()
        handle = renaming.start(order.id)
        session = db.session()
        db.session.commit()
        return {
            "note": order.note,
            "attached": order in db.session,
            "same session": session is db.session(),
            "in a request": handle.result(timeout=5),
        }

    answer = app.test_client().post("/").json

    assert answer == {"note": "renamed by the run", "attached": True, "same session": True, "in a request": False}


# Setting up --------------------------------------------------------------------------------


@pytest.fixture
def bare_app(database_url: str) -> Iterator[Flask]:
    app = Flask("bare")
    app.config.from_mapping(SQLALCHEMY_DATABASE_URI=database_url, TESTING=True)

    yield app

    if "sqlalchemy" in app.extensions:
        apps.dispose_engines(app)


def test_b128_the_order_in_which_the_extensions_are_initialised_does_not_matter(bare_app: Flask) -> None:
    db, workflows = make_orders_db(), Workflows()

    @workflows.workflow
    def greeting() -> str:
        return "hello"

    workflows.init_app(bare_app)
    db.init_app(bare_app)
    with bare_app.app_context():
        db.create_all()
        with db.session.begin_nested():
            lost = greeting.start()
        db.session.rollback()
        kept = greeting.start()
        db.session.commit()
        workflows.tick()

        assert [run.id for run in workflows.runs()] == [kept.id]
        assert kept.output() == "hello"
        assert lost.id != kept.id


@pytest.mark.parametrize("early", [True, False])
def test_b128_a_database_handed_over_may_be_initialised_before_or_after(bare_app: Flask, early: bool) -> None:
    db, workflows = make_orders_db(), Workflows()

    @workflows.workflow
    def greeting() -> str:
        return "hello"

    if early:
        db.init_app(bare_app)
    workflows.init_app(bare_app, db)
    if not early:
        db.init_app(bare_app)
    with bare_app.app_context():
        db.create_all()
        handle = greeting.spawn()
        workflows.tick()

        assert handle.output() == "hello"


@on_sqlite
def test_setting_up_twice_or_without_a_database_says_what_to_do(bare_app: Flask, database_url: str) -> None:
    workflows = Workflows(bare_app)

    @workflows.workflow
    def greeting() -> None: ...

    with pytest.raises(SetupError, match="once"):
        workflows.init_app(bare_app)
    with pytest.raises(SetupError, match="once"):
        Workflows(bare_app)
    with bare_app.app_context(), pytest.raises(SetupError, match=r"db\.init_app\(app\)"):
        greeting.spawn()
    with Flask("without").app_context(), pytest.raises(SetupError, match=r"workflows\.init_app\(app\)"):
        greeting.spawn()


def test_several_apps_of_one_factory_share_declarations_and_not_runs(
    make_app: apps.MakeApp, database_url: str, sqlite_url: str
) -> None:
    workflows, db = Workflows(), make_orders_db()

    @workflows.step
    def order() -> str:
        db.session.add(Order(note=current_app.config["SHOP"]))
        return str(current_app.config["SHOP"])

    @workflows.workflow
    def ordering() -> str:
        return order()

    one = make_app(database_url, db=db, workflows=workflows, SHOP="one")
    other = make_app(f"{sqlite_url}-other", db=db, workflows=workflows, SHOP="other")

    with one.app_context():
        handle_of_one = ordering.using(key="k").start()
        with other.app_context():
            handle_of_other = ordering.using(key="k").start()
            db.session.commit()
        db.session.commit()
    with other.app_context():
        executions = workflows.tick()
        notes = committed_notes()
        output = handle_of_other.output()
    with one.app_context():
        before = handle_of_one.status()
        workflows.tick()

        assert handle_of_one.created
        assert handle_of_other.created
        assert (executions, output, notes) == (1, "other", ["other"])
        assert before is RunStatus.PENDING
        assert handle_of_one.output() == "one"
        assert committed_notes() == ["one"]


class PlainDatabase:
    """SQLAlchemy without Flask-SQLAlchemy."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)
        self.session = scoped_session(sessionmaker(self.engine))
        self.metadata = Base.metadata


def test_b95_a_plain_scoped_session_will_do(database_url: str, clock: Clock) -> None:
    app, db, workflows = Flask("plain"), PlainDatabase(database_url), Workflows()
    workflows.init_app(app, db)
    workflows.clock = clock

    @workflows.step
    def order(note: str) -> int:
        db.session.add(Order(note=note))
        db.session.flush()
        return len(db.session.scalars(sa.select(Order)).all())

    @workflows.workflow
    def ordering(ctx: WorkflowContext) -> list[int]:
        first = order("first")
        ctx.sleep(60)
        return [first, order("second")]

    db.metadata.create_all(db.engine)
    with app.app_context():
        handle = ordering.start()
        db.session.commit()
        run_out(workflows, clock)

        assert handle.output() == [1, 2]
    db.session.remove()
    db.engine.dispose()
    apps.runtime_of(app).close()
