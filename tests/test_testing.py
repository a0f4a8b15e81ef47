"""The kit with which users test their workflows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from datetime import timezone
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import current_run
from flask_workflows import InlineNeedsCommit
from flask_workflows import NotRegistered
from flask_workflows import Retry
from flask_workflows import RunNotFound
from flask_workflows import RunQuery
from flask_workflows import RunStatus
from flask_workflows import SessionBusy
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidInstant
from flask_workflows.errors import SetupError
from flask_workflows.testing import advance_until_idle
from flask_workflows.testing import assert_replays
from flask_workflows.testing import Crash
from flask_workflows.testing import crash_at
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing import run_until_idle
from flask_workflows.testing import SimulatedCrash
from flask_workflows.testing import WorkflowsFake
from tests import apps

NOON = datetime(2026, 10, 26, 12, tzinfo=UTC)
DAY = timedelta(days=1)

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]


@dataclass(frozen=True)
class Plan:
    name: str
    seats: int = 1


class School:
    """Workflows of a school, and what their steps did."""

    def __init__(self) -> None:
        self.db = SQLAlchemy(metadata=Base.metadata)
        self.workflows = workflows = Workflows()
        self.workflows.clock = self.clock = FixedClock(NOON)
        self.done: list[str] = []
        workflows.event("course.completed")

        @workflows.step
        def mail(user_id: int, template: str) -> None:
            self.done.append(f"{template} to {user_id}")

        @workflows.step(retry=Retry(attempts=3, backoff=Retry.constant(60)))
        def charge(amount: int) -> int:
            self.done.append(f"charge {amount}")
            if amount < 0 and len(self.done) < 3:
                raise ConnectionError("the bank does not answer")
            return amount

        @workflows.step
        def book(run: str) -> None:
            self.done.append("book")
            self.db.session.add(Booking(run=run))

        @workflows.workflow
        def onboarding(ctx: WorkflowContext, user_id: int, plan: Plan | None = None) -> bool:
            mail(user_id, "welcome")
            done = ctx.wait_for("course.completed", match={"user_id": user_id}, timeout=7 * DAY)
            if done is None:
                mail(user_id, "nudge")
            return done is not None

        @workflows.workflow
        def renewal(ctx: WorkflowContext, amount: int) -> int:
            charged = charge(amount)
            book(ctx.run_id)
            ctx.sleep(30 * DAY)
            mail(1, "receipt")
            return charged

        self.mail, self.charge, self.book = mail, charge, book
        self.onboarding, self.renewal = onboarding, renewal

    @property
    def session(self) -> Any:
        return self.db.session

    def bookings(self, run: str) -> int:
        with self.db.engine.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).where(Booking.run == run)) or 0

    def rows(self) -> dict[str, list[Any]]:
        """Everything there is in the tables of the workflows."""
        with self.db.engine.connect() as connection:
            return {
                table: list(map(tuple, connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2"))))
                for table in ("workflow_runs", "workflow_steps", "workflow_events", "workflow_waits", "workflow_state")
            }


MakeSchool = Callable[..., School]


@pytest.fixture
def make_school(database_url: str, make_app: apps.MakeApp) -> Iterator[MakeSchool]:
    """Make schools on one database, and stay in the context of the last one's app."""
    contexts = []

    def make(**config: object) -> School:
        school = School()
        app = make_app(
            database_url, db=school.db, workflows=school.workflows, **{"WORKFLOWS_DASHBOARD": False, **config}
        )
        context = app.app_context()
        context.push()
        contexts.append(context)
        return school

    yield make

    for context in reversed(contexts):
        context.pop()


@pytest.fixture
def school(make_school: MakeSchool) -> School:
    return make_school()


# The clock ---------------------------------------------------------------------------------


def test_clock_stands_still_until_it_is_moved() -> None:
    clock = FixedClock(NOON)

    assert clock.now() == clock.now() == NOON
    clock.advance(DAY)
    clock.advance(1.5)
    assert clock.now() == NOON + timedelta(days=1, seconds=1.5)
    clock.set(NOON.astimezone(timezone(timedelta(hours=2))))
    assert clock.now() == NOON
    assert clock.now().tzinfo is UTC


@pytest.mark.parametrize("by", [-1, float("nan"), float("inf"), timedelta(days=-1), timedelta(days=50_000)])
def test_clock_refuses_to_be_advanced_by_what_is_no_duration(by: float) -> None:
    with pytest.raises(InvalidDuration, match="what a FixedClock advances by"):
        FixedClock(NOON).advance(by)


def test_clock_refuses_a_naive_instant() -> None:
    with pytest.raises(InvalidInstant, match="the instant of a FixedClock must have a time zone"):
        FixedClock(datetime(2026, 10, 26))  # noqa: DTZ001


def test_every_stored_instant_comes_from_the_clock(school: School) -> None:
    run = school.renewal.spawn(20)
    school.clock.advance(60)
    run_until_idle(school.workflows)

    seen = school.workflows.details(run.id)

    later = NOON + timedelta(minutes=1)
    assert (seen.run.created_at, seen.run.started_at, seen.run.updated_at) == (NOON, later, later)
    assert seen.run.due_at == later + 30 * DAY
    assert {step.started_at for step in seen.steps} == {later}


def test_runs_are_found_by_the_clock_that_they_were_started_on(school: School) -> None:
    """Ids hold an instant too, by which lists and prunings skip what is too old or too new."""
    school.clock.set(datetime(1999, 1, 1, tzinfo=UTC))
    run = school.onboarding.spawn(1)
    school.workflows.cancel(run.id)
    school.clock.set(datetime(2055, 1, 1, tzinfo=UTC))
    other = school.onboarding.spawn(2)

    early = school.workflows.runs(RunQuery(created_before=datetime(2000, 1, 1, tzinfo=UTC)))
    late = school.workflows.runs(RunQuery(created_after=datetime(2050, 1, 1, tzinfo=UTC)))

    assert [found.id for found in early] == [run.id]
    assert [found.id for found in late] == [other.id]
    assert school.workflows.prune(DAY) == 1


# Executing ---------------------------------------------------------------------------------


def test_what_is_due_is_executed_to_where_it_waits(school: School) -> None:
    first, second = school.onboarding.spawn(1), school.onboarding.spawn(2)

    assert run_until_idle(school.workflows) == 2
    assert run_until_idle(school.workflows) == 0

    assert first.status() is second.status() is RunStatus.WAITING
    assert school.done == ["welcome to 1", "welcome to 2"]
    assert school.clock.now() == NOON


def test_an_event_resolves_a_wait(school: School) -> None:
    run = school.onboarding.spawn(8)
    run_until_idle(school.workflows)

    school.workflows.emit("course.completed", {"user_id": 7})
    school.workflows.emit("course.completed", {"user_id": 8})
    school.session.commit()

    assert run_until_idle(school.workflows) == 1
    assert run.result() is True


def test_clock_is_moved_to_each_due_instant_in_turn(school: School) -> None:
    instants: list[tuple[str, datetime]] = []

    @school.workflows.workflow
    def napping(ctx: WorkflowContext, name: str, hours: int) -> None:
        for _ in range(2):
            ctx.sleep(timedelta(hours=hours))
            instants.append((name, ctx.now()))

    napping.spawn("owl", 5)
    napping.spawn("cat", 3)

    assert advance_until_idle(school.workflows) == 6

    asleep = [("cat", 3), ("owl", 5), ("cat", 6), ("owl", 10)]
    assert list(dict.fromkeys(instants)) == [(name, NOON + timedelta(hours=hours)) for name, hours in asleep]
    assert school.clock.now() == NOON + timedelta(hours=10)


def test_retries_and_time_outs_are_met_at_their_time(school: School) -> None:
    renewal, onboarding = school.renewal.spawn(-5), school.onboarding.spawn(1)

    advance_until_idle(school.workflows)

    assert renewal.result() == -5
    assert onboarding.result() is False
    assert renewal.run().finished_at == NOON + 30 * DAY + timedelta(minutes=1)
    assert onboarding.run().finished_at == NOON + 7 * DAY


def test_clock_goes_no_further_than_the_limit(school: School) -> None:
    run = school.renewal.spawn(5)

    assert advance_until_idle(school.workflows, limit=29 * DAY) == 1
    assert (run.status(), school.clock.now()) == (RunStatus.SLEEPING, NOON + 29 * DAY)
    assert advance_until_idle(school.workflows, limit=2 * DAY) == 1
    assert (run.result(), school.clock.now()) == (5, NOON + 31 * DAY)


def test_what_waits_for_good_is_left_alone(school: School) -> None:
    @school.workflows.workflow
    def patient(ctx: WorkflowContext) -> None:
        ctx.wait_for("course.completed")

    run = patient.spawn()

    assert advance_until_idle(school.workflows) == 1
    assert (run.status(), school.clock.now()) == (RunStatus.WAITING, NOON)


def test_a_workflow_without_an_end_is_named(school: School, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.testing.driving.MOST_MOVES", 5)

    @school.workflows.workflow
    def daily(ctx: WorkflowContext) -> None:
        while True:
            ctx.sleep(DAY)

    run = daily.spawn()

    with pytest.raises(AssertionError, match=f"after 5 moves of the clock, to 2026-10-31 .* daily .{run.id}, sleeping"):
        advance_until_idle(school.workflows)


def test_moving_needs_a_clock_that_can_be_moved(school: School) -> None:
    school.workflows.clock = None

    with pytest.raises(SetupError, match=r"advance_until_idle\(\) moves the clock: set workflows.clock = FixedClock"):
        advance_until_idle(school.workflows)


def test_no_app_context_is_needed_where_there_is_one_app(database_url: str, make_app: apps.MakeApp) -> None:
    school = School()
    app = make_app(database_url, db=school.db, workflows=school.workflows, WORKFLOWS_DASHBOARD=False)
    with app.app_context():
        run = school.onboarding.spawn(1)

    assert advance_until_idle(school.workflows) == 2
    assert run.result() is False
    assert_replays(school.workflows, run)

    other = make_app(database_url, workflows=school.workflows, WORKFLOWS_DASHBOARD=False)
    with pytest.raises(SetupError, match="initialised on 2 apps"):
        run_until_idle(school.workflows)
    with other.app_context():
        assert run_until_idle(school.workflows) == 0


@on_sqlite
def test_a_commit_that_was_forgotten_is_told_at_once(school: School) -> None:
    school.onboarding.start(1)

    with pytest.raises(SessionBusy, match=r"run_until_idle\(\) .* commit or roll back first"):
        run_until_idle(school.workflows)
    with pytest.raises(SessionBusy, match=r"tick\(\) .* commit or roll back first"):
        school.workflows.tick()


# What is started ---------------------------------------------------------------------------


@pytest.fixture(params=["worker", "inline"])
def faked(request: pytest.FixtureRequest, make_school: MakeSchool) -> School:
    """A school whose workflows are executed by a worker, or inline where nothing prevents it."""
    return make_school(WORKFLOWS_EXECUTION=request.param)


def test_starts_are_recorded_and_nothing_is_executed(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        fake.assert_nothing_started()
        spawned = faked.onboarding.spawn(user_id=7)
        faked.onboarding.start(8, Plan("gold"))
        faked.onboarding.start_many([{"user_id": 9}, {"user_id": 10}])
        faked.workflows.start("onboarding", {"user_id": 11})
        faked.session.commit()
        ticked = faked.workflows.tick()

        assert ticked == 0
        assert faked.done == []
        assert [input["user_id"] for input in fake.started(faked.onboarding)] == [7, 8, 9, 10, 11]
        assert fake.started("onboarding")[1] == {"user_id": 8, "plan": Plan("gold")}
        assert fake.started(faked.renewal) == []
        fake.assert_started(faked.onboarding)
        assert fake.assert_started("onboarding", user_id=7).handle == spawned
        fake.assert_started(faked.onboarding, lambda input: input["user_id"] == 8, plan=Plan("gold"))
        fake.assert_started_times(faked.onboarding, 5)
        fake.assert_started_times(faked.renewal, 0)
        fake.assert_not_started(faked.renewal)

    assert {run.status for run in faked.workflows.runs()} == {RunStatus.PENDING}


def test_arguments_that_were_left_out_have_their_defaults(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        faked.onboarding.spawn(7)

    assert fake.started(faked.onboarding) == [{"user_id": 7, "plan": None}]
    fake.assert_started(faked.onboarding, plan=None)


def test_starts_are_recorded_with_their_options(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        run = faked.onboarding.using(key="onboarding:7", workspace=3, delay=DAY).spawn(7)
        faked.renewal.spawn(20)

    first, second = fake.started_runs()

    assert (first.workflow, first.version, first.key, first.workspace, first.delay) == (
        "onboarding", 1, "onboarding:7", "3", DAY,
    )  # fmt: skip
    assert first.handle == run
    assert (second.workflow, second.key, second.workspace, second.delay) == ("renewal", None, None, None)


def test_reads_show_the_starts_as_runs_that_are_not_executed(faked: School) -> None:
    with WorkflowsFake(faked.workflows):
        pending, sleeping = faked.onboarding.spawn(7), faked.onboarding.using(delay=DAY).spawn(8)

        assert (pending.status(), sleeping.status()) == (RunStatus.PENDING, RunStatus.SLEEPING)
        assert faked.workflows.get(pending.id).input == {"user_id": 7}
        assert {run.id for run in faked.workflows.runs()} == {pending.id, sleeping.id}


def test_keys_are_honoured(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        first = faked.onboarding.using(key="7").spawn(7)
        second = faked.onboarding.using(key="7").start(7)
        faked.session.commit()
        third = faked.onboarding.using(key="7").spawn(7)

        assert first.id == second.id == third.id
        assert (first.created, second.created, third.created) == (True, False, False)
        fake.assert_started_times(faked.onboarding, 1)
        with pytest.raises(AssertionError, match="Not new, an unfinished run has the key:\n  onboarding v1"):
            fake.assert_not_started(faked.onboarding)


def test_what_was_rolled_back_was_not_started(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        faked.onboarding.start(1)
        faked.session.rollback()
        faked.onboarding.start(2)
        faked.session.commit()

    fake.assert_started_times(faked.onboarding, 1)
    fake.assert_started(faked.onboarding, user_id=2)
    with pytest.raises(AssertionError) as failure:
        fake.assert_started(faked.onboarding, user_id=1)

    assert str(failure.value) == (
        "no run of 'onboarding' v1 was started with user_id=1\n"
        "Started:\n  onboarding v1(user_id=2, plan=None)\n"
        "Rolled back:\n  onboarding v1(user_id=1, plan=None)"
    )


def test_what_a_savepoint_took_back_was_not_started(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        faked.onboarding.start(1)
        with faked.session.begin_nested() as savepoint:
            faked.onboarding.start(2)
            savepoint.rollback()
        with faked.session.begin_nested():
            faked.onboarding.start(3)
        faked.session.commit()

    assert [input["user_id"] for input in fake.started(faked.onboarding)] == [1, 3]
    assert len(faked.workflows.runs()) == 2


def test_what_is_not_committed_is_not_started_yet(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        faked.onboarding.start(1)

        fake.assert_nothing_started()
        with pytest.raises(AssertionError) as failure:
            fake.assert_started(faked.onboarding)
        faked.session.commit()
        fake.assert_started(faked.onboarding)

    assert str(failure.value) == (
        "no run of 'onboarding' v1 was started\n"
        "Not committed yet, db.session.commit() is missing:\n  onboarding v1(user_id=1, plan=None)"
    )


def test_a_request_that_does_not_commit_starts_nothing(
    database_url: str, make_app: apps.MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    school = School()
    app = make_app(database_url, db=school.db, workflows=school.workflows, WORKFLOWS_DASHBOARD=False)

    @app.post("/sign-up/<int:user_id>")
    def sign_up(user_id: int) -> str:
        school.onboarding.start(user_id)
        if user_id < 10:
            school.session.commit()
        return "welcome"

    with WorkflowsFake(school.workflows) as fake:
        app.test_client().post("/sign-up/8")
        app.test_client().post("/sign-up/11")

    assert [input["user_id"] for input in fake.started(school.onboarding)] == [8]
    with pytest.raises(AssertionError, match=r"Rolled back:\n  onboarding v1\(user_id=11"):
        fake.assert_started(school.onboarding, user_id=11)
    assert "the session ended without a commit" in caplog.text


def test_failures_list_what_was_started_instead(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        with pytest.raises(AssertionError) as nothing:
            fake.assert_started(faked.renewal)
        faked.onboarding.using(key="7", workspace="w", delay=60).spawn(7)
        failures = []
        for check in (
            lambda: fake.assert_started(faked.onboarding, lambda input: False, user_id=8),
            lambda: fake.assert_started_times(faked.onboarding, 2),
            lambda: fake.assert_not_started("onboarding"),
            lambda: fake.assert_nothing_started(),
        ):
            with pytest.raises(AssertionError) as failure:
                check()
            failures.append(str(failure.value).partition("\n"))

    assert str(nothing.value) == "no run of 'renewal' v1 was started\nNothing was started."
    assert [first for first, _, _ in failures] == [
        "no run of 'onboarding' v1 was started with user_id=8, an input that the predicate accepts",
        "1 runs of 'onboarding' v1 were started, not 2",
        "1 runs of 'onboarding' were started, not none",
        "runs were started",
    ]
    assert {rest for _, _, rest in failures} == {
        "Started:\n  onboarding v1(user_id=7, plan=None) with key 7, workspace w, delay 0:01:00"
    }


def test_versions_are_told_apart_unless_a_name_is_given(faked: School) -> None:
    @faked.workflows.workflow(name="onboarding", version=2)
    def onboarding_v2(ctx: WorkflowContext, user_id: int) -> None: ...

    with WorkflowsFake(faked.workflows) as fake:
        faked.workflows.spawn("onboarding", {"user_id": 7})

    fake.assert_started(onboarding_v2, user_id=7)
    fake.assert_started("onboarding", user_id=7)
    fake.assert_not_started(faked.onboarding)


def test_cancelled_runs_are_told(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        kept, cancelled = faked.onboarding.spawn(1), faked.onboarding.spawn(2)
        cancelled.cancel()

        fake.assert_cancelled(cancelled)
        fake.assert_cancelled(cancelled.id)
        with pytest.raises(AssertionError, match=f"run {kept.id} of 'onboarding' is pending, not cancelled"):
            fake.assert_cancelled(kept)
        with pytest.raises(RunNotFound):
            fake.assert_cancelled("nonsense")


def test_runs_are_executed_once_the_fake_is_left(faked: School) -> None:
    with WorkflowsFake(faked.workflows):
        run = faked.onboarding.spawn(7)
        with pytest.raises(SetupError, match="leave it first"):
            run_until_idle(faked.workflows)

    assert run_until_idle(faked.workflows) == 1
    assert run.status() is RunStatus.WAITING


def test_what_is_refused_without_the_fake_is_refused_with_it(faked: School) -> None:
    with WorkflowsFake(faked.workflows) as fake:
        with pytest.raises(TypeError, match="user_id"):
            faked.onboarding.spawn()  # type: ignore[call-arg]
        with pytest.raises(NotRegistered):
            faked.workflows.spawn("nonsense")
        with pytest.raises(SetupError, match="a WorkflowsFake already"), WorkflowsFake(faked.workflows):
            pass

        faked.onboarding.spawn(7)
        fake.assert_started_times(faked.onboarding, 1)


@contextmanager
def joined_engine(db: SQLAlchemy, connection: sa.Connection) -> Iterator[None]:
    db.session.remove()
    db.session.configure(join_transaction_mode="create_savepoint")
    engines: Any = db.engines
    engines[None], real = connection, engines[None]
    try:
        yield
    finally:
        engines[None] = real


@contextmanager
def joined_session(db: SQLAlchemy, connection: sa.Connection) -> Iterator[None]:
    real: Any = db.session
    factory: Any = sa_orm.sessionmaker(connection, join_transaction_mode="create_savepoint")
    db.session = sa_orm.scoped_session(factory, real.registry.scopefunc)
    try:
        yield
    finally:
        db.session.remove()
        db.session = real


@pytest.mark.parametrize("used_before", [False, True], ids=["fresh", "used before"])
@pytest.mark.parametrize("join", [joined_engine, joined_session])
def test_starts_count_inside_a_transaction_that_the_test_rolls_back(
    make_school: MakeSchool, join: Callable[..., AbstractContextManager[None]], used_before: bool
) -> None:
    """The fixtures that roll back every test: `db.session` is joined to a transaction of theirs."""
    school = make_school(WORKFLOWS_EXECUTION="inline")
    if used_before:
        school.onboarding.start(6)
        school.session.rollback()

    with school.db.engine.connect() as connection, connection.begin() as outer, join(school.db, connection):
        with pytest.raises(InlineNeedsCommit):
            school.onboarding.start(7)
        school.session.rollback()
        with WorkflowsFake(school.workflows) as fake:
            school.onboarding.start(7)
            school.session.commit()
            school.onboarding.start(8)
            school.session.rollback()
        school.session.remove()
        outer.rollback()

    assert [input["user_id"] for input in fake.started(school.onboarding)] == [7]
    assert len(school.workflows.runs()) == 0


def test_fake_works_where_runs_are_kept_in_the_process(make_app: apps.MakeApp) -> None:
    school = School()
    app = make_app("sqlite://", db=school.db, workflows=school.workflows, WORKFLOWS_DASHBOARD=False)
    with app.app_context(), WorkflowsFake(school.workflows) as fake:
        school.onboarding.using(key="7").start(7)
        school.onboarding.using(key="7").start(7)
        school.session.commit()
        school.onboarding.start(8)
        with school.session.begin_nested() as savepoint:
            school.onboarding.start(9)
            school.workflows.emit("course.completed")
            savepoint.rollback()
        school.session.commit()

        assert [input["user_id"] for input in fake.started(school.onboarding)] == [7, 8]
        assert len(school.workflows.runs()) == 2
    with app.app_context():
        assert run_until_idle(school.workflows) == 2
        with app.extensions["workflows"].engine.connect() as connection:
            assert connection.scalar(sa.text("SELECT count(*) FROM workflow_events")) == 0
    app.extensions["workflows"].close()


# Crashes -----------------------------------------------------------------------------------


def test_crash_before_a_write_leaves_nothing_of_it(school: School) -> None:
    run = school.renewal.spawn(20)

    with crash_at(school.workflows, 2) as crash:
        run_until_idle(school.workflows)

    # The claim was the first; the second was to be the record of the step.
    assert crash.happened
    assert school.done == ["charge 20"]
    assert school.workflows.details(run.id).steps == ()
    assert (run.status(), school.clock.now()) == (RunStatus.RUNNING, NOON + timedelta(seconds=30))

    advance_until_idle(school.workflows)
    assert run.result() == 20
    assert school.done == ["charge 20", "charge 20", "book", "receipt to 1"]


def test_crash_after_a_write_keeps_it(school: School) -> None:
    run = school.renewal.spawn(20)

    with crash_at(school.workflows, 2, when="after"):
        run_until_idle(school.workflows)

    assert [step.key for step in school.workflows.details(run.id).steps] == ["charge"]
    advance_until_idle(school.workflows)
    assert school.done == ["charge 20", "book", "receipt to 1"]


def test_runs_come_through_a_crash_at_every_write(school: School) -> None:
    """The step in flight is repeated where its record was not stored; what it wrote through the session never is."""
    rounds: list[tuple[int, str, list[str]]] = []

    for crash in every_crash(school.workflows):
        school.done.clear()
        run = school.renewal.spawn(20)
        with crash:
            advance_until_idle(school.workflows)
        advance_until_idle(school.workflows)

        assert run.result() == 20
        assert school.bookings(run.id) == 1
        rounds.append((crash.number, crash.when, school.done.copy()))

    once = ["charge 20", "book", "receipt to 1"]
    repeated = {
        (2, "before"): ["charge 20", *once],
        # Its commit was that of the record too.
        (3, "before"): ["charge 20", "book", "book", "receipt to 1"],
        (7, "before"): [*once, "receipt to 1"],
    }
    # The last write counts what ended, once the run has.
    places = [(number, when) for number in range(1, 9) for when in ("before", "after")]
    assert [(number, when) for number, when, _ in rounds] == [*places, (9, "before")]
    assert {(number, when): done for number, when, done in rounds if done != once} == repeated


def test_a_crash_that_is_not_reached_changes_nothing(school: School) -> None:
    run = school.renewal.spawn(20)

    with crash_at(school.workflows, 100) as crash:
        run_until_idle(school.workflows)

    assert not crash.happened
    assert run.status() is RunStatus.SLEEPING
    assert school.clock.now() == NOON


def test_starts_and_events_are_crashed_in_too(school: School) -> None:
    started: list[tuple[str, int]] = []

    for crash in every_crash(school.workflows):
        before = len(school.workflows.runs())
        with crash:
            school.onboarding.spawn(1)
            school.workflows.deliver("course.completed", {"user_id": 1})
        started.append((f"{crash.when} {crash.number}", len(school.workflows.runs()) - before))

    assert started == [("before 1", 0), ("after 1", 1), ("before 2", 1), ("after 2", 1), ("before 3", 1)]


def test_a_crash_inside_an_inline_execution_is_one_of_the_process(make_school: MakeSchool) -> None:
    school = make_school(WORKFLOWS_EXECUTION="inline")

    with crash_at(school.workflows, 2) as crash:
        run = school.renewal.start(20)
        school.session.commit()

    assert crash.happened
    assert run.status() is RunStatus.RUNNING
    assert not school.session.registry.has()
    assert run_until_idle(school.workflows) == 1
    assert school.bookings(run.id) == 1


def test_the_dead_do_nothing_more_whatever_they_catch(school: School) -> None:
    swallowed: list[type[BaseException]] = []

    @school.workflows.workflow
    def stubborn(ctx: WorkflowContext) -> str:
        try:
            school.charge(1)
            school.onboarding.using(key="once").spawn(5)
            school.book(ctx.run_id)
        except BaseException as error:
            swallowed.append(type(error))
            school.mail(1, "sorry")
        return "returned"

    for crash in every_crash(school.workflows):
        school.done.clear()
        run = stubborn.spawn()
        with crash:
            run_until_idle(school.workflows)
        assert "sorry to 1" not in school.done
        assert "mail" not in [step.key for step in school.workflows.details(run.id).steps]

        run_until_idle(school.workflows)
        assert run.result() == "returned"
        assert school.bookings(run.id) == 1

    assert SimulatedCrash in swallowed


def test_other_threads_of_the_dead_get_nothing_either(school: School) -> None:
    run = school.renewal.spawn(20)
    errors = []

    def look() -> None:
        try:
            run.progress()
        except Exception as error:
            errors.append(type(error).__name__)

    crash = Crash(school.workflows, 1)
    with crash:
        with pytest.raises(SimulatedCrash):
            run_until_idle(school.workflows)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        with pytest.raises(SimulatedCrash, match="dead since the crash before write 1"):
            school.workflows.tick()
        crash.recover()
        assert run_until_idle(school.workflows) == 1

    assert errors == ["AfterDeath"]
    assert school.clock.now() == NOON + timedelta(seconds=30)


def test_other_errors_leave_the_block_of_a_crash(school: School) -> None:
    with pytest.raises(ZeroDivisionError), crash_at(school.workflows, 1):
        raise ZeroDivisionError

    school.onboarding.spawn(1)
    assert run_until_idle(school.workflows) == 1


def test_crashes_that_make_no_sense_are_refused(school: School) -> None:
    with pytest.raises(ValueError, match="write a number from 1"):
        crash_at(school.workflows, 0)
    with pytest.raises(ValueError, match='"before" or "after"'):
        crash_at(school.workflows, 1, when="during")  # type: ignore[arg-type]
    first, second = crash_at(school.workflows, 1), crash_at(school.workflows, 2)
    with first, pytest.raises(SetupError, match="one process dies once"), second:
        pass
    with pytest.raises(SetupError, match="one process dies once"), first:
        pass
    with pytest.raises(SetupError, match="a block `with crash:`"):
        list(every_crash(school.workflows))
    crashes = every_crash(school.workflows)
    with next(crashes):
        pass
    with pytest.raises(AssertionError, match="made no write"):
        next(crashes)
    school.workflows.clock = None
    with pytest.raises(SetupError, match="a crash moves the clock"), crash_at(school.workflows, 1):
        pass


def test_a_scenario_that_grows_from_round_to_round_is_given_up(school: School, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.testing.crashes.MOST_WRITES", 4)
    crashes = every_crash(school.workflows)

    for _ in range(8):
        with next(crashes):
            for _ in range(10):
                school.onboarding.spawn(1)

    with pytest.raises(AssertionError, match="more than 4 writes: does each round leave runs to the next"):
        next(crashes)


# Replays -----------------------------------------------------------------------------------


def test_runs_replay_at_every_stage_and_nothing_is_done_for_it(school: School) -> None:
    run = school.renewal.spawn(-5)
    stages = []
    while not run.run().finished:
        stages.append((run.status(), len(school.workflows.details(run.id).steps)))
        before = (school.rows(), school.done.copy())
        assert_replays(school.workflows, run)
        assert_replays(school.workflows, run.id)
        assert (school.rows(), school.done) == before
        run_until_idle(school.workflows)
        due_at = run.run().due_at
        if due_at is not None:
            school.clock.set(due_at)
    before = (school.rows(), school.done.copy())
    assert_replays(school.workflows, run)

    assert (school.rows(), school.done) == before
    # Not begun, to be charged again, asleep; at each its call is due as well.
    assert stages == [(RunStatus.PENDING, 0), (RunStatus.SLEEPING, 1), (RunStatus.SLEEPING, 1), (RunStatus.SLEEPING, 3)]


def test_every_kind_of_call_replays(school: School) -> None:
    @school.workflows.workflow
    def everything(ctx: WorkflowContext) -> list[str]:
        ctx.set("stage", "begun")
        started = ctx.now()
        child = school.onboarding.spawn(5)
        school.workflows.emit("course.completed", {"user_id": 6})
        done = ctx.wait_for("course.completed", match={"user_id": 7}, timeout=DAY)
        ctx.check_cancelled()
        try:
            ctx.step("refuse", refuse, retry=Retry(attempts=1))
        except StepFailed as error:
            failure = error.message
        message = ctx.receive("answer")
        ctx.sleep_until(started + 2 * DAY)
        ctx.progress(1, 1)
        return [child.id, str(done), failure, message.payload if message else "", ctx.now().isoformat()]

    def refuse() -> None:
        raise ValueError("no")

    run = everything.spawn()
    run_until_idle(school.workflows)
    assert_replays(school.workflows, run)
    advance_until_idle(school.workflows)
    assert_replays(school.workflows, run)
    run.send("answer", "yes")
    school.session.commit()
    advance_until_idle(school.workflows)

    before = school.rows()
    assert_replays(school.workflows, run)
    assert school.rows() == before
    assert run.result()[1:4] == ["None", "no", "yes"]


@pytest.fixture
def replay(school: School, make_school: MakeSchool) -> Callable[[Any, Any, str], str]:
    """Execute a body, replay it as another one, and answer how that fails."""

    def replay(old: Any, new: Any, state: str) -> str:
        run = school.workflows.workflow(name="changed")(old).spawn()
        (advance_until_idle if state == "completed" else run_until_idle)(school.workflows)
        assert run.status() == state
        today = make_school()
        today.workflows.workflow(name="changed")(new)
        with pytest.raises(AssertionError) as failure:
            assert_replays(today.workflows, run)
        assert today.done == []
        message = str(failure.value)
        assert message.startswith(f"run {run.id} of 'changed' v1 does not replay: ")
        return message.partition("replay: ")[2]

    return replay


def napping(ctx: WorkflowContext) -> int:
    first = ctx.step("first", int, 1)
    ctx.sleep(DAY)
    return first + ctx.step("second", int, 2)


Replay = Callable[[Any, Any, str], str]


@pytest.mark.parametrize("state", ["sleeping", "completed"])
def test_another_call_is_named_with_both_sides_and_its_line(replay: Replay, state: str) -> None:
    def changed(ctx: WorkflowContext) -> int:
        ctx.step("zeroth", int, 1)
        return 3

    message = replay(napping, changed, state)

    place = f'{__file__}:{changed.__code__.co_firstlineno + 1} (ctx.step("zeroth", int, 1))'
    assert message.startswith(f"call 1 was 'first' and is now 'zeroth', at {place}")


def test_another_input_is_named_with_both_sides_and_its_line(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        first = ctx.step("first", int, 1)
        ctx.sleep(2 * DAY)
        return first

    message = replay(napping, changed, "sleeping")

    assert message.startswith('call 2, \'$sleep\', had the input {"ms": 86400000} and has now {"ms": 172800000}, at ')
    assert f"{__file__}:{changed.__code__.co_firstlineno + 2} (ctx.sleep(2 * DAY))" in message


def test_calls_that_are_gone_are_named(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        return ctx.step("first", int, 1)

    assert "returned before call 2, which was '$sleep'" in replay(napping, changed, "sleeping")
    assert "returned before call 2, which was '$sleep'" in replay(napping, changed, "completed")


def test_a_call_more_in_a_run_that_completed_is_named(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        total = napping(ctx)
        ctx.step("third", int, 3)
        return total

    message = replay(napping, changed, "completed")

    place = f'{__file__}:{changed.__code__.co_firstlineno + 2} (ctx.step("third", int, 3))'
    assert message == f"it had completed, and is to call 'third', at {place} now"


def test_a_call_more_is_named_though_the_body_swallows_everything(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        total = napping(ctx)
        try:
            ctx.step("third", int, 3)
        except BaseException:
            return total
        return total

    def other(ctx: WorkflowContext) -> int:
        try:
            return ctx.step("zeroth", int, 1)
        except Exception:
            return 3

    assert replay(napping, changed, "completed").startswith("it had completed, and is to call 'third'")
    assert replay(napping, other, "completed").startswith("call 1 was 'first' and is now 'zeroth'")


def test_another_output_is_named(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        return napping(ctx) + 1

    assert replay(napping, changed, "completed") == "it had returned 3, and returns 4 now"


def test_an_error_of_the_body_is_named_with_its_line(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        ctx.step("first", int, 1)
        return {"a": 1}["b"]

    place = f'at {__file__}:{changed.__code__.co_firstlineno + 2} (return {{"a": 1}}["b"])'
    assert replay(napping, changed, "sleeping") == (
        f"the code raises KeyError: 'b', {place}, before call 2, which was '$sleep'"
    )

    def later(ctx: WorkflowContext) -> int:
        napping(ctx)
        raise KeyError("b")

    assert replay(napping, later, "completed").endswith("; it had completed")


def test_writes_of_the_body_are_named(replay: Replay) -> None:
    def changed(ctx: WorkflowContext) -> int:
        total = napping(ctx)
        current_run._runtime.db.session.add(Booking(run=ctx.run_id))
        return total

    assert replay(napping, changed, "completed") == ("the body wrote through db.session: put the write into a step")


def test_code_that_is_not_there_is_named(school: School, make_school: MakeSchool) -> None:
    run = school.workflows.workflow(name="gone")(napping).spawn()
    today = make_school()

    with pytest.raises(AssertionError, match=f"run {run.id} of 'gone' v1 does not replay: no code for it"):
        assert_replays(today.workflows, run)
    with pytest.raises(RunNotFound):
        assert_replays(today.workflows, "nonsense")


def test_a_failed_run_replays_to_its_failure_or_beyond_it(school: School, make_school: MakeSchool) -> None:
    @school.workflows.workflow(name="fragile")
    def fragile(ctx: WorkflowContext) -> int:
        ctx.step("first", int, 1)
        raise ValueError("broken")

    run = fragile.spawn()
    advance_until_idle(school.workflows)
    assert run.status() is RunStatus.FAILED
    assert_replays(school.workflows, run)

    mended = make_school()

    @mended.workflows.workflow(name="fragile")
    def whole(ctx: WorkflowContext) -> int:
        ctx.step("first", int, 1)
        return ctx.step("second", int, 2)

    assert_replays(mended.workflows, run)


def test_order_does_not_matter_where_the_workflow_says_so(school: School, make_school: MakeSchool) -> None:
    run = school.workflows.workflow(name="loose", strict=False)(napping).spawn()
    run_until_idle(school.workflows)
    today = make_school()

    @today.workflows.workflow(name="loose", strict=False)
    def loose(ctx: WorkflowContext) -> int:
        ctx.step("zeroth", int, 1)
        return napping(ctx)

    assert_replays(today.workflows, run)


def test_first_difference_is_found_in_a_hundred_histories(school: School, make_school: MakeSchool) -> None:
    """B162: against changed code, each names the first call that differs, both sides, and file:line."""

    @school.workflows.workflow(name="long")
    def long(ctx: WorkflowContext, number: int) -> int:
        for step in range(5):
            ctx.step(f"step-{step}", int, step)
        return number

    runs = long.start_many([{"number": number} for number in range(100)])
    school.session.commit()
    assert run_until_idle(school.workflows) == 100
    today = make_school()

    def changed(ctx: WorkflowContext, number: int) -> int:
        for step in range(5):
            name = "renamed" if step == number % 5 and number >= 50 else f"step-{step}"
            ctx.step(name, int, step)
        return number

    today.workflows.workflow(name="long")(changed)
    line = changed.__code__.co_firstlineno + 3
    for number, run in enumerate(runs):
        if number < 50:
            assert_replays(today.workflows, run)
            continue
        with pytest.raises(AssertionError) as failure:
            assert_replays(today.workflows, run)
        expected = (
            f"call {number % 5 + 1} was 'step-{number % 5}' and is now 'renamed', at {__file__}:{line} (ctx.step("
        )
        assert expected in str(failure.value)


# Users' suites -----------------------------------------------------------------------------

CONFTEST = """
import os
import threading

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_workflows import Workflows

workflows = Workflows()
workflows.event("course.completed")


@workflows.workflow
def onboarding(ctx, user_id):
    ctx.step("welcome", int, user_id)
    return ctx.wait_for("course.completed", timeout=60) is not None


@pytest.fixture
def app(tmp_path):
    threads = threading.active_count()
    app = Flask("suite")
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get("SUITE_URL") or f"sqlite:///{tmp_path}/suite.sqlite3"
    app.config["WORKFLOWS_DASHBOARD"] = False
    db = SQLAlchemy(app)
    workflows.init_app(app)
    with app.app_context():
        db.create_all()
        yield app
        db.session.remove()
        db.drop_all()
        app.extensions["workflows"].close()
        db.engine.dispose()
    assert threading.active_count() == threads
"""

SUITE = """
import pytest
from flask_workflows.testing import advance_until_idle, run_until_idle

from conftest import onboarding, workflows


@pytest.mark.parametrize("number", range(%d))
def test_nudged(app, workflows_clock, number):
    before = workflows_clock.now()
    run = onboarding.spawn(number)
    assert run_until_idle(workflows) == 1
    assert advance_until_idle(workflows) == 1
    assert run.result() is False
    assert (workflows_clock.now() - before).total_seconds() == 60


def test_started(workflows_fake):
    onboarding.spawn(8)
    workflows_fake.assert_started(onboarding, user_id=8)
    assert workflows.tick() == 0


def test_left_as_it_was(app):
    assert (workflows.clock, workflows.recorder) == (None, None)
"""


@pytest.fixture
def run_suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run what `pytester` has in a pytest of its own, with our plugin alone; warnings are errors there too."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess("-p", "_flask_workflows_pytest", "-W", "error", *args)

    return run


def test_fixtures_work_with_the_app_of_the_suite(
    pytester: pytest.Pytester,
    run_suite: Callable[..., pytest.RunResult],
    monkeypatch: pytest.MonkeyPatch,
    database_url: str,
) -> None:
    monkeypatch.setenv("SUITE_URL", database_url)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE % 2)

    run_suite().assert_outcomes(passed=4)


def test_fixtures_say_what_they_are_for(pytester: pytest.Pytester, run_suite: Callable[..., pytest.RunResult]) -> None:
    result = run_suite("--fixtures")

    result.stdout.fnmatch_lines(["workflows_clock -- *", "*stands still until the test moves it*"])
    result.stdout.fnmatch_lines(["workflows_fake -- *", "*lets nothing be executed*"])


def test_suites_that_do_not_use_the_plugin_load_nothing_for_it(
    pytester: pytest.Pytester, run_suite: Callable[..., pytest.RunResult]
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_loaded():
            assert not {"flask_workflows", "flask", "sqlalchemy", "werkzeug"} & set(sys.modules)
        """
    )

    run_suite().assert_outcomes(passed=1)


def test_suites_side_by_side_do_not_disturb_one_another(
    pytester: pytest.Pytester, run_suite: Callable[..., pytest.RunResult]
) -> None:
    """B161: as under xdist, several processes, each with files of SQLite of its own."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE % 8)

    def run(number: int) -> pytest.RunResult:
        return run_suite(f"--basetemp={pytester.path / f'temp{number}'}", "-p", "no:cacheprovider")

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(run, range(4)):
            result.assert_outcomes(passed=10)


def test_threads_side_by_side_do_not_disturb_one_another(tmp_path: Path) -> None:
    """B161: fifty repeats on files of SQLite of their own, four at a time, and no thread left at the end."""
    threads = set(threading.enumerate())

    def repeat(number: int) -> object:
        school = School()
        app = apps.make_app(
            f"sqlite:///{tmp_path}/{number}.sqlite3",
            db=school.db,
            workflows=school.workflows,
            WORKFLOWS_DASHBOARD=False,
            WORKFLOWS_EXECUTION="inline" if number % 2 else "worker",
        )
        with app.app_context():
            run = school.renewal.start(number)
            school.session.commit()
            advance_until_idle(school.workflows)
            assert_replays(school.workflows, run)
            result = run.result()
        apps.dispose_engines(app)
        return result

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(repeat, range(50)))

    assert results == list(range(50))
    assert set(threading.enumerate()) == threads


def test_no_thread_outlives_a_tick(school: School) -> None:
    """B161"""
    threads = set(threading.enumerate())
    school.renewal.spawn(1)

    school.workflows.tick()

    assert set(threading.enumerate()) == threads
