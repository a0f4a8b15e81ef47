"""Starting runs: in whose transaction, under which key, with what (R6-R9)."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from datetime import datetime
from datetime import timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from threading import Barrier as ThreadBarrier
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Handle
from flask_workflows import KeyBusy
from flask_workflows import NotCommitted
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import SessionBusy
from flask_workflows import ValueRefused
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import DefinitionError
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidName
from flask_workflows.errors import SetupError
from tests import apps
from tests.running import at_once
from tests.running import begin_explicitly
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context")

declared = Workflows()


@declared.workflow
def greeting(name: str, mark: str = "!") -> str:
    return f"Hello, {name}{mark}"


@declared.workflow
def parting(name: str) -> str:
    return f"Good-bye, {name}"


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    declared.clock = None

    return make_app(database_url, db=make_orders_db(), workflows=declared)


def exists(handle: Handle[str]) -> bool:
    """Whether other connections see the run."""
    try:
        handle.run()
    except RunNotFound:
        return False

    return True


# Whose transaction -------------------------------------------------------------------------


def test_a_started_run_exists_once_its_session_commits(db: SQLAlchemy) -> None:
    handle = greeting.start("Ann")
    before = exists(handle)

    db.session.commit()

    assert not before
    assert handle.created
    assert handle.status() is RunStatus.PENDING


def test_a_started_run_vanishes_with_a_rollback(db: SQLAlchemy) -> None:
    handle = greeting.start("Ann")

    db.session.rollback()
    db.session.commit()

    assert not exists(handle)


def test_a_run_and_a_row_that_holds_its_id_commit_together(db: SQLAlchemy) -> None:
    handle = greeting.start("Ann")
    db.session.add(Order(note=handle.id))

    db.session.commit()

    assert committed_notes() == [handle.id]
    assert exists(handle)


def test_starting_flushes_nothing(db: SQLAlchemy) -> None:
    order = Order()  # without its note, which must not be null
    db.session.add(order)

    handle = greeting.start("Ann")
    order.note = "given later"
    db.session.commit()

    assert exists(handle)
    assert committed_notes() == ["given later"]


def test_a_run_of_a_released_savepoint_vanishes_with_the_outer_rollback(db: SQLAlchemy) -> None:
    # The savepoint comes first: SQLite's driver opens no transaction around it by itself.
    with db.session.begin_nested():
        handle = greeting.start("Ann")
        db.session.add(Order(note="inner"))

    db.session.rollback()

    assert not exists(handle)
    assert committed_notes() == []


def test_a_run_of_a_released_savepoint_exists_once_the_outer_transaction_commits(db: SQLAlchemy) -> None:
    with db.session.begin_nested(), db.session.begin_nested():
        handle = greeting.start("Ann")
    before = exists(handle)

    db.session.commit()

    assert not before
    assert exists(handle)


def test_a_run_of_a_savepoint_rolled_back_is_not_there_and_not_waited_for(db: SQLAlchemy) -> None:
    kept = greeting.start("Ann")
    nested = db.session.begin_nested()
    lost = greeting.start("Ben")
    nested.rollback()

    with pytest.raises(RunNotFound):
        lost.wait(timeout=5)
    db.session.commit()

    assert exists(kept)
    assert not exists(lost)


def test_a_spawned_run_exists_at_once_whatever_the_session_does(db: SQLAlchemy) -> None:
    db.session.execute(sa.select(Order))

    handle = greeting.spawn("Ann")
    db.session.rollback()

    assert exists(handle)


def test_starting_outside_an_app_context_is_refused_with_what_to_do() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(SetupError, match=r"app\.app_context\(\)"):
        pool.submit(greeting.start, "Ann").result()


# What was started and never committed -------------------------------------------------------


def test_a_context_torn_down_without_a_commit_warns_of_the_runs_lost(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    with app.app_context():
        lost = greeting.start("Ann")

    assert [(record.levelno, lost.id in record.message) for record in caplog.records] == [(logging.WARNING, True)]
    assert "db.session.commit()" in caplog.text


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_context_torn_down_after_commit_or_rollback_does_not_warn(
    app: Flask, db: SQLAlchemy, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    with app.app_context():
        greeting.start("Ann")
        getattr(db.session, ending)()

    assert caplog.records == []


def test_waiting_for_a_run_this_session_has_not_committed_raises_at_once(db: SQLAlchemy) -> None:
    handle = greeting.start("Ann")

    with pytest.raises(NotCommitted, match=r"db\.session\.commit\(\)"):
        handle.wait()
    with pytest.raises(NotCommitted):
        handle.result(timeout=60)

    db.session.commit()
    declared.tick()
    assert handle.result(timeout=5) == "Hello, Ann!"


def test_waiting_for_an_older_run_does_not_blind_the_session_to_the_next(db: SQLAlchemy) -> None:
    older = greeting.spawn("Ann")
    declared.tick()
    db.session.execute(sa.select(Order))
    older.wait(timeout=5)

    younger = greeting.start("Ben")
    db.session.commit()
    declared.tick()

    assert younger.result(timeout=5) == "Hello, Ben!"


# What is stored ----------------------------------------------------------------------------


def test_arguments_that_do_not_fit_the_signature_raise_at_the_call(db: SQLAlchemy) -> None:
    wrong: list[tuple[tuple[str, ...], dict[str, str]]] = [
        ((), {}),
        (("Ann", "?", "!"), {}),
        (("Ann",), {"name": "Ben"}),
        (("Ann",), {"tone": "warm"}),
    ]

    for args, kwargs in wrong:
        with pytest.raises(TypeError):
            greeting.start(*args, **kwargs)
        with pytest.raises(TypeError):
            greeting.spawn(*args, **kwargs)

    db.session.commit()
    assert declared.runs() == ()


def test_arguments_are_stored_by_name_without_the_defaults() -> None:
    positional, named = greeting.spawn("Ann"), greeting.spawn(name="Ann", mark="?")

    assert positional.run().input == {"name": "Ann"}
    assert named.run().input == {"name": "Ann", "mark": "?"}


def test_b68_an_argument_that_cannot_be_stored_raises_at_the_call(db: SQLAlchemy) -> None:
    with pytest.raises(ValueRefused, match=r"'greeting'.*\$\.name.*NUL"):
        greeting.start("A\0nn")

    db.session.add(Order(note="after it"))
    db.session.commit()
    assert committed_notes() == ["after it"]


def test_a_run_may_be_started_by_the_name_of_its_workflow(db: SQLAlchemy) -> None:
    started: Handle[str] = declared.start("greeting", {"name": "Ann"}, key="k", workspace=7)
    db.session.commit()
    spawned = declared.spawn(parting, {"name": "Ben"}, delay=5)

    assert (started.run().input, started.run().key, started.run().workspace) == ({"name": "Ann"}, "k", "7")
    assert spawned.status() is RunStatus.SLEEPING


def test_start_many_inserts_its_runs_in_one_statement(app: Flask, db: SQLAlchemy) -> None:
    db.session.connection()
    statements: list[str] = []
    sa.event.listen(db.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    handles = greeting.start_many({"name": f"guest {number}"} for number in range(300))
    db.session.commit()

    assert len(statements) == 1
    assert len({handle.id for handle in handles}) == 300
    assert [handle.run().input["name"] for handle in handles[:3]] == ["guest 0", "guest 1", "guest 2"]
    assert all(handle.created for handle in handles)


def test_start_many_with_a_wrong_argument_among_many_starts_none(db: SQLAlchemy) -> None:
    with pytest.raises(TypeError):
        greeting.start_many([{"name": "Ann"}, {"nom": "Ben"}])

    db.session.commit()
    assert declared.runs() == ()


def test_start_many_of_nothing_starts_nothing(db: SQLAlchemy) -> None:
    assert greeting.start_many([]) == []
    assert not db.session().in_transaction()


def test_start_many_refuses_a_key(db: SQLAlchemy) -> None:
    with pytest.raises(DefinitionError, match="no key"):
        greeting.using(key="k").start_many([{"name": "Ann"}, {"name": "Ben"}])


def test_options_given_one_after_another_add_up() -> None:
    handle = greeting.using(key="k", workspace="north").using(delay=60).using(key="l").spawn("Ann")

    run = handle.run()
    assert (run.key, run.workspace, run.status) == ("l", "north", RunStatus.SLEEPING)


# Delays ------------------------------------------------------------------------------------


def test_a_delayed_run_sleeps_until_it_is_due(clock: Clock) -> None:
    handles = [greeting.using(delay=delay).spawn("Ann") for delay in (90, 90.0, timedelta(minutes=1, seconds=30))]

    clock.move(seconds=89.999)
    early = declared.tick()
    clock.move(seconds=0.001)
    due = declared.tick()

    assert (early, due) == (0, 3)
    assert {handle.status() for handle in handles} == {RunStatus.COMPLETED}


def test_a_delayed_run_shows_as_sleeping_and_may_be_woken(clock: Clock) -> None:
    handle = greeting.using(delay=timedelta(days=1)).spawn("Ann")
    before = handle.run()

    declared.wake(handle.id)
    declared.tick()

    assert before.status is RunStatus.SLEEPING
    assert before.due_at == clock.now() + timedelta(days=1)
    assert handle.status() is RunStatus.COMPLETED


def test_b67_a_delay_of_nothing_is_none() -> None:
    handles = [greeting.using(delay=delay).spawn("Ann") for delay in (0, 0.0, timedelta())]

    assert {handle.status() for handle in handles} == {RunStatus.PENDING}


def test_b67_tiny_and_long_delays_are_kept(clock: Clock) -> None:
    delays = [timedelta(seconds=0.0001), timedelta(seconds=1e9), timedelta(days=36525)]

    runs = [greeting.using(delay=delay).spawn("Ann").run() for delay in delays]

    late = [run.due_at - clock.now() - delay for run, delay in zip(runs, delays, strict=True) if run.due_at]
    assert len(late) == 3
    assert all(timedelta() <= each <= timedelta(milliseconds=1) for each in late)


@on_sqlite
@pytest.mark.parametrize(
    "delay",
    [
        *[-1, -1e-9, 1e18, -(10**400), float("nan"), float("inf"), True, "10", timedelta.max],
        *[timedelta(days=36526), timedelta(microseconds=-1), datetime(2026, 1, 1)],  # noqa: DTZ001
    ],
)
def test_b67_a_delay_that_is_no_sensible_duration_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidDuration, match="the delay"):
        greeting.using(delay=delay)


# Keys --------------------------------------------------------------------------------------


def test_starting_again_under_a_key_answers_the_unfinished_run(db: SQLAlchemy) -> None:
    first = greeting.using(key="k").start("Ann")
    again_in_the_same_transaction = greeting.using(key="k").start("Ben")
    db.session.commit()
    started = greeting.using(key="k").start("Cid")
    db.session.commit()
    spawned = greeting.using(key="k").spawn("Dora")

    again = [again_in_the_same_transaction, started, spawned]
    assert first.created
    assert [(handle.id, handle.created) for handle in again] == [(first.id, False)] * 3
    assert first.run().input == {"name": "Ann"}


def test_a_key_is_free_again_when_its_run_has_finished() -> None:
    first = greeting.using(key="k").spawn("Ann")
    declared.tick()

    second = greeting.using(key="k").spawn("Ben")

    assert first.status() is RunStatus.COMPLETED
    assert first.run().key == "k"
    assert second.created
    assert second.id != first.id


def test_b30_a_key_belongs_to_one_workflow_in_one_workspace() -> None:
    def numbered() -> None: ...

    started = [
        workflow.using(key=key, workspace=workspace).spawn()
        for workflow in [declared.workflow(name=name)(numbered) for name in ("a-b", "a")]
        for key in ("c", "b-c", ":c", "#c")
        for workspace in (None, "c", "b", 1)
    ]

    assert all(handle.created for handle in started)
    assert len({handle.id for handle in started}) == 2 * 4 * 4


def test_a_number_and_its_text_are_one_workspace() -> None:
    first = greeting.using(key="k", workspace=7).spawn("Ann")

    again = greeting.using(key="k", workspace="7").spawn("Ann")

    assert again.id == first.id


def test_b32_any_readable_text_is_a_key_and_a_workspace() -> None:
    labels = [".", "..", "a/b", "?x", "%00", "a b", "emoji 🎈", "שלום", "a'b\"c", "%s", "{}", "x" * 255]

    handles = [greeting.using(key=label, workspace=label).spawn("Ann") for label in labels]
    again = [greeting.using(key=label, workspace=label).spawn("Ann") for label in labels]

    assert [handle.id for handle in again] == [handle.id for handle in handles]
    assert [(run.key, run.workspace) for run in (handle.run() for handle in handles)] == [(x, x) for x in labels]


@on_sqlite
@pytest.mark.parametrize("label", ["", " ", "\t", "a\0b", "a\nb", "\x7f", "\ud800", "x" * 256, b"k", 1.5, True])
def test_b32_what_is_empty_unreadable_or_no_text_is_refused(label: Any) -> None:
    with pytest.raises(InvalidName, match="the workspace"):
        greeting.using(workspace=label)
    with pytest.raises(InvalidName, match="the key"):
        greeting.using(key=label)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "SERIALIZABLE"])
def test_b26_a_key_already_taken_leaves_the_callers_transaction_whole(
    app: Flask, db: SQLAlchemy, isolation: str
) -> None:
    taken = greeting.using(key="k").spawn("Ann")
    if db.engine.dialect.name == "postgresql":
        db.session.connection(execution_options={"isolation_level": isolation})

    db.session.add(Order(note="before"))
    db.session.flush()
    handle = greeting.using(key="k").start("Ben")
    db.session.add(Order(note="after"))
    db.session.commit()

    assert handle.id == taken.id
    assert not handle.created
    assert committed_notes() == ["after", "before"]


def test_b25_fifty_threads_starting_one_key_make_one_run(app: Flask, db: SQLAlchemy) -> None:
    def start() -> Handle[str]:
        handle = greeting.using(key="k").start("Ann")
        db.session.commit()
        return handle

    handles = at_once(app, *[start] * 50)

    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1
    assert len(declared.runs()) == 1


def test_b25_fifty_threads_spawning_one_key_make_one_run(app: Flask) -> None:
    handles = at_once(app, *[lambda: greeting.using(key="k").spawn("Ann")] * 50)

    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1
    assert len(declared.runs()) == 1


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_b25_the_isolation_the_app_chose_for_its_own_makes_no_difference_to_keys(
    make_app: apps.MakeApp, database_url: str, isolation: str
) -> None:
    app = make_app(database_url, workflows=declared, SQLALCHEMY_ENGINE_OPTIONS={"isolation_level": isolation})
    db = apps.database_of(app)

    with app.app_context():
        handles = at_once(app, *[lambda: greeting.using(key="k").spawn("Ann")] * 20)
        started = greeting.using(key="k").start("Ben")
        db.session.commit()

        assert {handle.id for handle in handles} == {started.id}
        assert len(declared.runs()) == 1


@on_sqlite
def test_b89_a_start_behind_a_stale_snapshot_says_to_roll_back_at_once(db: SQLAlchemy) -> None:
    begin_explicitly(db.engine)
    db.session.execute(sa.select(Order))
    greeting.spawn("Ann")

    with pytest.raises(KeyBusy, match="roll back and try again"):
        greeting.start("Ben")

    db.session.rollback()
    greeting.start("Ben")
    db.session.commit()
    assert len(declared.runs()) == 2


def start_in_process(url: str, barrier: Barrier, started: Queue[list[tuple[str, bool]]]) -> None:
    """Start under ten keys, each at the same moment as the other process."""
    app = apps.make_app(url, db=make_orders_db(), workflows=declared)
    db = apps.database_of(app)
    handles = []
    with app.app_context():
        for number in range(10):
            barrier.wait(timeout=30)
            handles.append(greeting.using(key=f"k{number}").start("Ann"))
            db.session.commit()
    started.put([(handle.id, handle.created) for handle in handles])


def test_b25_two_processes_starting_one_key_make_one_run(app: Flask, database_url: str) -> None:
    spawning = multiprocessing.get_context("spawn")
    barrier, started = spawning.Barrier(2), spawning.Queue()
    processes = [spawning.Process(target=start_in_process, args=(database_url, barrier, started)) for _ in range(2)]

    for process in processes:
        process.start()
    one, other = [started.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=30)

    assert [run_id for run_id, _ in one] == [run_id for run_id, _ in other]
    assert all(mine != theirs for (_, mine), (_, theirs) in zip(one, other, strict=True))


@on_postgresql
def test_two_transactions_that_start_many_keys_in_opposite_order_do_not_deadlock(app: Flask, db: SQLAlchemy) -> None:
    runtime = apps.runtime_of(app)

    def start(numbers: Sequence[int]) -> int:
        with app.app_context():
            holders = runtime.sessions.start(
                [
                    service.new_run(runtime, greeting, greeting.using(key=f"k{number}").options, ("Ann",), {})
                    for number in numbers
                ]
            )
            db.session.commit()
            return len(holders)

    # Both get as far as the key in the middle; then each would hold what the other wants next.
    greeting.using(key="k5").start("Ann")
    with ThreadPoolExecutor(2) as pool:
        starting = [pool.submit(start, numbers) for numbers in (range(10), range(9, -1, -1))]
        for future in starting:
            with pytest.raises(NotDone):
                future.result(timeout=0.3)
        db.session.rollback()
        joined = [future.result(timeout=30) for future in starting]

    assert sorted(joined) == [0, 10]
    assert len(declared.runs()) == 10


# Rivals that have not committed ------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_start_waits_for_an_uncommitted_rival_with_its_key(app: Flask, db: SQLAlchemy, ending: str) -> None:
    def start() -> Handle[str]:
        with app.app_context():
            handle = greeting.using(key="k").start("Ben")
            db.session.commit()
            return handle

    rival = greeting.using(key="k").start("Ann")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start)
        with pytest.raises(NotDone):
            starting.result(timeout=0.3)

        getattr(db.session, ending)()
        handle = starting.result(timeout=30)

    assert handle.created == (ending == "rollback")
    assert (handle.id == rival.id) == (ending == "commit")


def test_a_rival_that_outlasts_the_lock_timeout_raises_key_busy(app: Flask, db: SQLAlchemy) -> None:
    shorten = {"postgresql": "SET LOCAL lock_timeout = '50ms'", "sqlite": "PRAGMA busy_timeout = 50"}

    greeting.using(key="k").start("Ann")
    with app.app_context():
        db.session.execute(sa.text(shorten[db.engine.dialect.name]))
        with pytest.raises(KeyBusy, match="'greeting' with the same key"):
            greeting.using(key="k").start("Ben")

        # PostgreSQL's transaction is usable; SQLite's has no write lock to go on with until the rival is gone.
        if db.engine.dialect.name == "postgresql":
            db.session.add(Order(note="after it"))
            db.session.commit()
            assert committed_notes() == ["after it"]


@on_postgresql
def test_a_deadlock_of_two_starts_raises_key_busy_in_one_and_spares_its_transaction(app: Flask, db: SQLAlchemy) -> None:
    barrier = ThreadBarrier(2)

    def start(first: str, second: str) -> bool:
        greeting.using(key=first).start("Ann")
        barrier.wait(timeout=30)
        try:
            greeting.using(key=second).start("Ann")
            busy = False
        except KeyBusy:
            busy = True
        db.session.add(Order(note=f"begun with {first}"))
        db.session.commit()
        return busy

    busy = at_once(app, lambda: start("k", "l"), lambda: start("l", "k"))

    assert sorted(busy) == [False, True]
    assert committed_notes() == ["begun with k", "begun with l"]
    assert len(declared.runs()) == 2


@on_postgresql
def test_a_spawn_kept_waiting_by_a_rival_past_the_lock_timeout_raises_key_busy(
    make_app: apps.MakeApp, database_url: str, db: SQLAlchemy
) -> None:
    impatient = make_app(
        database_url,
        workflows=declared,
        SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"options": "-c lock_timeout=50ms"}},
    )
    greeting.using(key="k").start("Ann")

    with impatient.app_context(), pytest.raises(KeyBusy, match="'greeting' with the same key"):
        greeting.using(key="k").spawn("Ben")

    db.session.commit()
    assert len(declared.runs()) == 1


@on_postgresql
def test_a_rival_unseen_by_a_strict_snapshot_raises_key_busy_and_spares_the_transaction(db: SQLAlchemy) -> None:
    db.session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    db.session.execute(sa.select(Order))
    greeting.using(key="k").spawn("Ann")

    with pytest.raises(KeyBusy):
        greeting.using(key="k").start("Ben")
    db.session.add(Order(note="after it"))
    db.session.commit()

    assert committed_notes() == ["after it"]


# A session that holds SQLite's write lock --------------------------------------------------


@on_sqlite
def test_a_session_that_has_written_is_told_to_commit_first(db: SQLAlchemy) -> None:
    cancelled, waiting = greeting.spawn("Ann"), greeting.using(delay=60).spawn("Ben")
    declared.cancel(cancelled.id)
    db.session.add(Order(note="written"))
    db.session.flush()

    verbs: list[Callable[[], object]] = [
        lambda: greeting.spawn("Cid"),
        lambda: declared.cancel(waiting.id),
        lambda: declared.wake(waiting.id),
        lambda: declared.retry(cancelled.id),
        lambda: declared.prune(timedelta()),
    ]
    for verb in verbs:
        with pytest.raises(SessionBusy, match=r"commit or roll back first"):
            verb()

    db.session.commit()
    assert exists(greeting.spawn("Cid"))
    assert committed_notes() == ["written"]


@on_postgresql
def test_a_session_that_has_written_hinders_nothing(db: SQLAlchemy) -> None:
    db.session.add(Order(note="written"))
    db.session.flush()
    handle = greeting.using(delay=60).spawn("Ann")

    declared.cancel(handle.id)
    db.session.rollback()

    assert handle.status() is RunStatus.CANCELLED


def test_a_session_that_only_read_is_not_busy(db: SQLAlchemy) -> None:
    db.session.execute(sa.select(Order))

    handle = greeting.spawn("Ann")

    assert exists(handle)


@on_sqlite
def test_a_session_is_busy_once_it_has_written_where_the_app_begins_transactions_itself(db: SQLAlchemy) -> None:
    begin_explicitly(db.engine)
    db.session.execute(sa.select(Order))

    handle = greeting.spawn("Ann")
    db.session.rollback()
    db.session.add(Order(note="written"))
    db.session.flush()

    assert exists(handle)
    with pytest.raises(SessionBusy):
        greeting.spawn("Ben")


# Starting from a body ----------------------------------------------------------------------


def test_a_start_in_a_body_is_recorded_and_not_repeated_by_replays(workflows: Workflows, clock: Clock) -> None:
    seen: list[tuple[str, bool]] = []

    @workflows.workflow(name="parent-of-one")
    def parent(ctx: WorkflowContext) -> list[str]:
        first = greeting.using(key="k", delay=3600).start("Ann")
        second = greeting.using(key="k").spawn("Ben")
        seen.extend((handle.id, handle.created) for handle in (first, second))
        ctx.sleep(60)
        return [first.id, second.id]

    handle = parent.spawn()
    workflows.tick()
    clock.move(seconds=60)
    workflows.tick()

    (child,) = [run for run in workflows.runs() if run.workflow == "greeting"]
    assert handle.output() == [child.id, child.id]
    assert seen == [(child.id, True), (child.id, False)] * 2
    assert [step.key for step in workflows.details(handle.id).steps] == [
        "$start:greeting",
        "$start:greeting#2",
        "$sleep",
    ]


def test_start_many_in_a_body_records_each_start(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="parent-of-many")
    def parent(ctx: WorkflowContext) -> list[str]:
        handles = greeting.start_many([{"name": "Ann"}, {"name": "Ben"}])
        ctx.sleep(60)
        return [handle.id for handle in handles]

    handle = parent.spawn()
    workflows.tick()
    clock.move(seconds=60)
    workflows.tick()

    children = [run.id for run in workflows.runs() if run.workflow == "greeting"]
    assert handle.output() == sorted(children)


def test_a_start_in_a_step_belongs_to_the_steps_own_transaction(
    workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    failures = [ValueError("not yet")]

    @workflows.step(name="order-and-greet")
    def order() -> str:
        db.session.add(Order(note="ordered"))
        handle = greeting.start("Ann")
        if failures:
            raise failures.pop()
        return handle.id

    @workflows.workflow(name="ordering")
    def ordering() -> str:
        return order()

    handle = ordering.spawn()
    workflows.tick()
    after_failure = len(workflows.runs())
    clock.move(seconds=10)
    workflows.tick()

    (child,) = [run for run in workflows.runs() if run.workflow == "greeting"]
    assert after_failure == 1
    assert handle.output() == child.id
    assert committed_notes() == ["ordered"]


def test_a_body_may_wait_for_the_run_it_started(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="patient")
    def patient() -> str:
        return greeting.start("Ann").result(timeout=5)

    handle = patient.spawn()
    for _ in range(3):
        workflows.tick()

    assert handle.output() == greeting("Ann")
