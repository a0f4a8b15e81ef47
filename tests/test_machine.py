"""Everything that can happen to runs, in any order: a state machine that hypothesis drives.

Runs follow scripts of what a body may do. The rules start them, execute them, let the process die at any transaction,
let another worker take a run over in the middle of its execution, and do what people do. After each rule what must
always hold is looked for in the tables; at the end every run is driven to its end.

`MACHINE_SEED` repeats a failure, `MACHINE_EXAMPLES` and `MACHINE_STEPS` say how many sequences there are, and how long
they may be. All three are told in pytest's summary.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from datetime import UTC
from threading import get_ident
from threading import Thread
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from hypothesis import HealthCheck
from hypothesis import Phase
from hypothesis import seed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from hypothesis.stateful import rule
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import run_state_machine_as_test

from flask_workflows import models
from flask_workflows import Run
from flask_workflows.errors import KeyTaken
from flask_workflows.errors import RunCompensated
from flask_workflows.errors import RunFinished
from flask_workflows.errors import RunNotFailed
from flask_workflows.errors import RunNotLost
from flask_workflows.errors import RunNotPaused
from flask_workflows.errors import RunNotSleeping
from flask_workflows.forgetting import from_call
from flask_workflows.runs import LIVE
from flask_workflows.testing import advance_until_idle
from flask_workflows.testing import Crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing.crashes import When
from tests import apps
from tests import scripted
from tests.apps import runtime_of
from tests.scripted import Key
from tests.scripted import Script
from tests.scripted import workflows

SEED = int(os.environ.get("MACHINE_SEED", random.randrange(2**32)))
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "40"))
STEPS = int(os.environ.get("MACHINE_STEPS", "25"))

LEASE = 30
NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)

# What runs are to do ---------------------------------------------------------------------------

SECONDS = st.sampled_from([0, 60, 3_600])
#: Of a wait; null waits for ever.
PATIENCE = st.sampled_from([None, 60, 3_600])

LEAVES: st.SearchStrategy[list[Any]] = st.one_of(
    st.just(["plain"]),
    st.just(["writing"]),
    st.builds(lambda times: ["failing", times], st.sampled_from([1, 2, 3, 4])),
    st.builds(lambda times: ["caught", times], st.sampled_from([1, 3])),
    st.just(["cancelling"]),
    st.builds(lambda times: ["raising", times], st.sampled_from([1, 3])),
    st.builds(lambda seconds: ["sleep", seconds], SECONDS),
    st.builds(lambda seconds: ["wait", seconds], PATIENCE),
    st.builds(lambda seconds: ["receive", seconds], PATIENCE),
    st.just(["emit"]),
    st.just(["publish"]),
    st.builds(lambda times: ["undo", times], st.sampled_from([0, 1, 2])),
)


def _around(acts: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    scripts = st.lists(acts, max_size=3)
    return st.one_of(
        st.builds(lambda script, awaited: ["child", script, awaited], scripts, st.booleans()),
        st.builds(lambda scripts: ["parallel", scripts], st.lists(scripts, max_size=3)),
    )


SCRIPTS = st.lists(st.recursive(LEAVES, _around, max_leaves=5), min_size=2, max_size=5)
ANY = st.integers(0, 11)

#: What is done by others in the middle of an execution.
MEANWHILE = (*["take over"] * 4, "cancel", "release", "emit", "send", "wake", "retry", "pause", "resume")


class Interference:
    """Does something when the thread that made it is about to begin its n-th transaction."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self._left = number
        self._act = act
        self._thread = get_ident()

    def entering(self) -> None:
        if get_ident() == self._thread and self._left:
            self._left -= 1
            if not self._left:
                self._act()

    def committing(self) -> None:
        pass

    def committed(self) -> None:
        pass


class Machine(RuleBasedStateMachine):
    """Runs of one app, and what is known of them without looking into the engine."""

    #: How many sequences there were, and how many rules in them.
    sequences = 0
    turns = 0

    def __init__(self, app: Flask) -> None:
        super().__init__()
        type(self).sequences += 1
        self.app = app
        self.context = app.app_context()
        self.context.push()
        self.engine = runtime_of(app).engine
        self.clock = workflows.clock = FixedClock(NOON)
        scripted.forget()
        scripted.watchers.append(self.called)
        #: Calls that a fork took over, whose functions did not run for it.
        self.taken: set[Key] = set()
        #: How often each call may have been made, as it was forgotten by a retry.
        self.rounds: Counter[Key] = Counter()
        #: How many rows each had written by then.
        self.wrote: Counter[tuple[Any, ...]] = Counter()
        #: How often each was in flight when a process died.
        self.again: Counter[Key] = Counter()
        #: The results of completed calls, and how runs ended: neither changes.
        self.completed: dict[Key, Any] = {}
        self.ended: dict[str, tuple[Any, ...]] = {}
        #: Steps begun by executions whose run was somebody else's already.
        self.stale: Counter[tuple[str, int, str]] = Counter()

    # Rules ---------------------------------------------------------------------------------

    @rule(
        script=SCRIPTS,
        key=st.sampled_from([None, None, "k"]),
        delay=st.sampled_from([None, None, 60]),
        deadline=st.sampled_from([None, None, 3_000]),
    )
    def start(self, script: Script, key: str | None, delay: int | None, deadline: int | None) -> None:
        self.count()
        scripted.scripted.using(key=key, delay=delay, deadline=deadline).spawn(script)

    @rule()
    def tick(self) -> None:
        self.count()
        workflows.tick()
        self.nothing_is_left_to_do()

    @rule(script=SCRIPTS, number=st.integers(1, 12), when=st.sampled_from(["before", "after"]))
    def kill(self, script: Script, number: int, when: When) -> None:
        self.count()
        scripted.scripted.spawn(script)
        with Crash(workflows, number, when):
            workflows.tick()
        self.unrecorded_may_run_again()

    @rule(script=SCRIPTS, number=st.integers(1, 8), which=ANY, act=st.sampled_from(MEANWHILE))
    def tick_while(self, script: Script, number: int, which: int, act: str) -> None:
        self.count()
        scripted.scripted.spawn(script)
        store = runtime_of(self.app).store
        store.watcher = Interference(number, lambda: self.meanwhile(which, act))
        try:
            workflows.tick()
        finally:
            store.watcher = None
        # What another worker took over is repeated where it was in flight.
        self.unrecorded_may_run_again()

    def meanwhile(self, which: int, act: str) -> None:
        if act == "take over":
            self.unrecorded_may_run_again()
            self.clock.advance(LEASE + 1)
            self.elsewhere(workflows.tick)
            # What is found now must be found when the first has come to its end.
            self.it_holds()
        else:
            self.elsewhere(lambda: getattr(self, f"do_{act}")(which))

    def elsewhere(self, call: Callable[[], object]) -> None:
        """On another thread, as another process would."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with self.app.app_context():
                    call()
            except BaseException as error:
                errors.append(error)

        thread = Thread(target=run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "a deadlock"
        if errors:
            raise AssertionError("beside an execution") from errors[0]

    @rule(seconds=st.sampled_from([1, 59, 60, 3_600, 100_000]))
    def jump(self, seconds: int) -> None:
        self.count()
        self.clock.advance(seconds)

    @rule()
    def emit(self) -> None:
        self.count()
        self.do_emit(0)

    @rule(which=ANY, act=st.sampled_from(["cancel", "send", "wake", "retry", "release", "pause", "resume"]))
    def act(self, which: int, act: str) -> None:
        self.count()
        getattr(self, f"do_{act}")(which)

    @rule(which=ANY)
    def cancel_alone(self, which: int) -> None:
        self.count()
        self.do_cancel(which, children=False)

    @rule(which=ANY, step=st.integers(0, 20))
    def retry_from(self, which: int, step: int) -> None:
        self.count()
        run, keys = self.run_and_steps(which, "failed", "cancelled")
        if run is None or not keys:
            return
        key = keys[step % len(keys)]
        forgotten = from_call(workflows.details(run.id).steps, key)
        self.do_retry(which, from_step=key, forgotten=forgotten)

    @rule(which=ANY, step=st.integers(0, 20))
    def fork(self, which: int, step: int) -> None:
        self.count()
        run, keys = self.run_and_steps(which)
        if run is None or not keys:
            return
        try:
            handle = workflows.fork(run.id, keys[step % len(keys)])
        except RunCompensated:
            assert run.undone
            return
        for taken in workflows.details(handle.id).steps:
            self.taken.add((handle.id, taken.key))
            scripted.returned[(handle.id, taken.key)] = scripted.returned[(run.id, taken.key)]

    @rule(days=st.sampled_from([0, 40]))
    def prune(self, days: int) -> None:
        self.count()
        self.clock.advance(days * 86_400)
        workflows.prune(older_than=86_400)  # type: ignore[arg-type]
        left = set(self.ids())
        self.completed = {call: output for call, output in self.completed.items() if call[0] in left}
        self.ended = {run: ended for run, ended in self.ended.items() if run in left}

    # What people do, at any moment -----------------------------------------------------------

    def do_emit(self, which: int) -> None:
        workflows.deliver("go")

    def do_send(self, which: int) -> None:
        run = self.find(which, *LIVE)
        if run is not None:
            with suppress(RunFinished):
                workflows.handle(run.id).send("letter")
                self.app.extensions["sqlalchemy"].session.commit()

    def do_cancel(self, which: int, children: bool = True) -> None:
        run = self.find(which, *LIVE)
        if run is None:
            return
        try:
            after = workflows.cancel(run.id, cancel_children=children)
        except RunFinished:
            assert run.finished or run.undoing
            return
        assert not run.finished
        assert after.status == "cancelled" or after.cancelling
        if children:
            runs = models.runs.c
            spared = (runs.finished_at.is_(None), runs.cancel_requested_at.is_(None), runs.undoing.is_(None))
            assert not self.rows(sa.select(runs.id).where(runs.parent_id == run.id, *spared))

    def do_retry(self, which: int, from_step: str | None = None, forgotten: list[str] | None = None) -> None:
        run = self.find(which, "failed", "cancelled")
        if run is None:
            return
        try:
            workflows.retry(run.id, from_step=from_step)
        except RunCompensated:
            assert run.undone
            return
        except RunNotFailed:
            assert run.status not in ("failed", "cancelled")
            return
        except KeyTaken:
            assert run.key is not None
            return
        assert run.status in ("failed", "cancelled")
        assert not run.undone
        self.ended.pop(run.id, None)
        written = self.written()
        for key in forgotten or ():
            call = (run.id, key)
            self.completed.pop(call, None)
            self.taken.discard(call)
            self.rounds[call] = scripted.returned[call]
            self.again[call] = 0
            self.wrote[call] = written[call]

    def do_wake(self, which: int) -> None:
        run = self.find(which, "sleeping")
        if run is not None:
            try:
                workflows.wake(run.id)
            except RunFinished:
                assert run.finished
            except RunNotSleeping:
                assert run.status != "sleeping"

    def do_pause(self, which: int) -> None:
        run = self.find(which, *LIVE)
        if run is not None:
            try:
                assert workflows.pause(run.id).paused
            except RunFinished:
                assert run.finished or run.cancelling

    def do_resume(self, which: int) -> None:
        paused = self.paused()
        run = workflows.get(paused[which % len(paused)]) if paused else self.find(which)
        if run is not None:
            try:
                assert not workflows.resume(run.id).paused
            except RunNotPaused:
                assert not run.paused

    def do_release(self, which: int) -> None:
        run = self.find(which, "running")
        if run is not None:
            try:
                workflows.release(run.id)
            except RunNotLost:
                assert run.worker is None
            else:
                self.unrecorded_may_run_again()

    # What is known ---------------------------------------------------------------------------

    def count(self) -> None:
        type(self).turns += 1

    def rows(self, statement: Any) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    def written(self) -> Counter[tuple[Any, ...]]:
        """How many rows each call wrote."""
        return Counter(self.rows(sa.select(scripted.Written.run, scripted.Written.step)))

    def ids(self, *statuses: str) -> list[str]:
        """Runs in one of these states, or all, in the order of their starts."""
        runs = models.runs.c
        every = sa.select(runs.id).order_by(runs.id)
        return [run for (run,) in self.rows(every.where(runs.status.in_(statuses)) if statuses else every)]

    def paused(self) -> list[str]:
        runs = models.runs.c
        return [run for (run,) in self.rows(sa.select(runs.id).where(runs.paused_at.is_not(None)).order_by(runs.id))]

    def find(self, which: int, *fit: str) -> Run | None:
        """A run, children among them, mostly in one of the states that fit; null where there is none."""
        among = (which % 4 and fit and self.ids(*fit)) or self.ids()
        return workflows.get(among[which % len(among)]) if among else None

    def run_and_steps(self, which: int, *fit: str) -> tuple[Run | None, list[str]]:
        run = self.find(which, *fit)
        return run, [] if run is None else [step.key for step in workflows.details(run.id).steps]

    def called(self, run: str, step: str, epoch: int) -> None:
        """A step's function is called. An execution whose run is somebody else's comes to no second one in a branch."""
        with self.engine.connect() as connection:
            now = connection.scalar(sa.select(models.runs.c.epoch).where(models.runs.c.id == run))
        if now != epoch:
            branch = step.rpartition("/")[0]
            self.stale[(run, epoch, branch)] += 1
            assert self.stale[(run, epoch, branch)] == 1, f"{step} of {run} is begun under epoch {epoch}, it is {now}"

    def unrecorded_may_run_again(self) -> None:
        """What was in flight when a process died, or lost its run, may be done again."""
        steps = models.steps.c
        recorded = set(self.rows(sa.select(steps.run_id, steps.key).where(steps.status == "completed")))
        for call, times in scripted.returned.items():
            if call not in recorded:
                self.again[call] = times - self.rounds[call]

    # What always holds -----------------------------------------------------------------------

    @invariant()
    def it_holds(self) -> None:
        self.ends_are_ends()
        self.calls_are_made_once()
        self.rows_of_steps_are_written_once()
        self.no_row_is_an_orphan()

    def ends_are_ends(self) -> None:
        found = self.rows(sa.select(models.runs))
        names = models.runs.c.keys()
        for row in (dict(zip(names, row, strict=True)) for row in found):
            run = row["id"]
            if row["finished_at"] is None:
                assert run not in self.ended, f"{run} had ended as {self.ended[run]}, and is {row['status']}"
                due = row["due_at"] if row["paused_at"] is None or row["worker"] else row["paused_due_at"]
                assert due is not None or row["status"] == "waiting", f"nobody will look at {row}"
                continue
            end = (row["status"], row["output"], row["error"], row["finished_at"])
            assert self.ended.setdefault(run, end) == end
            assert row["status"] in ("completed", "failed", "cancelled")
            for name in ("due_at", "worker", "live_key", "paused_at", "paused_due_at"):
                assert row[name] is None, f"{name} of {row}"

    def calls_are_made_once(self) -> None:
        steps = models.steps.c
        found = self.rows(sa.select(steps.run_id, steps.key, steps.kind, steps.status, steps.output))
        for run, key, kind, status, output in found:
            if kind not in ("step", "undo") or status != "completed":
                continue
            call = (run, key)
            assert self.completed.setdefault(call, output) == output, f"{call} had completed with another result"
            if call not in self.taken:
                times = scripted.returned[call] - self.rounds[call]
                assert 1 <= times <= 1 + self.again[call], f"{call} was made {times} times"
        recorded = {(run, key) for run, key, _, status, _ in found if status == "completed"}
        gone = {call for call in self.completed if call not in recorded}
        assert not gone, f"records are lost: {gone}"

    def rows_of_steps_are_written_once(self) -> None:
        written = self.written()
        there = set(self.ids())
        for call, times in written.items():
            if call[0] in there:
                assert times == self.wrote[call] + (call in self.completed), f"{call} wrote {times} rows"

    def no_row_is_an_orphan(self) -> None:
        runs, steps, waits = models.runs, models.steps, models.waits
        every, live = sa.select(runs.c.id), sa.select(runs.c.id).where(runs.c.finished_at.is_(None))
        for table in (steps, models.state):
            assert not self.rows(sa.select(table.c.run_id).where(table.c.run_id.not_in(every)))
        messages = sa.select(models.events.c.run_id).where(models.events.c.run_id.is_not(None))
        assert not self.rows(messages.where(models.events.c.run_id.not_in(every)))
        assert not self.rows(sa.select(waits.c.run_id, waits.c.key).where(waits.c.run_id.not_in(live)))
        open_calls = sa.select(steps.c.run_id, steps.c.key).where(steps.c.status == "waiting")
        pairs = sa.tuple_(waits.c.run_id, waits.c.key)
        assert not self.rows(sa.select(waits.c.run_id, waits.c.key).where(pairs.not_in(open_calls)))
        idle = runs.c.due_at.is_(None) & runs.c.paused_due_at.is_(None) & (runs.c.status == "waiting")
        assert not self.rows(sa.select(runs.c.id).where(idle & runs.c.id.not_in(sa.select(waits.c.run_id))))

    # After a tick that nothing disturbed -----------------------------------------------------

    def nothing_is_left_to_do(self) -> None:
        """No wake-up was lost: not of a timer, a message, an event, or the end of another run."""
        runs, steps, waits, events = models.runs.c, models.steps.c, models.waits.c, models.events.c
        now = int(self.clock.now().timestamp() * 1000)
        assert not self.rows(sa.select(runs.id, runs.status).where(runs.due_at <= now, runs.finished_at.is_(None)))
        assert not self.rows(sa.select(events.seq).where(events.matched_at.is_(None)))
        ended = sa.select(runs.id).where(runs.finished_at.is_not(None))
        there = sa.select(runs.id)
        over = (waits.name == "$finished") & (waits.values_hash.in_(ended) | waits.values_hash.not_in(there))
        assert not self.rows(sa.select(waits.run_id).where(over))
        received = sa.select(steps.event_seq).where(steps.run_id == events.run_id, steps.event_seq.is_not(None))
        letters = sa.select(events.run_id).where(events.name == "letter", events.seq.not_in(received))
        assert not self.rows(sa.select(waits.run_id).where(waits.name == "letter", waits.run_id.in_(letters)))

    def teardown(self) -> None:
        try:
            self.every_run_ends()
        finally:
            workflows.clock = None
            with self.engine.begin() as connection:
                for table in reversed(models.metadata.sorted_tables):
                    connection.execute(table.delete())
                connection.execute(sa.delete(scripted.Written))
            self.context.pop()

    def every_run_ends(self) -> None:
        """Far in the future only runs are left that wait for ever, and what they wait for ends them."""
        runs = models.runs.c
        aside = {run for run in self.paused() if workflows.get(run).worker is None}
        before = Counter({call: times for call, times in scripted.returned.items() if call[0] in aside})
        advance_until_idle(workflows)
        assert before == Counter({call: times for call, times in scripted.returned.items() if call[0] in aside})
        for run in self.paused():
            workflows.resume(run)
        for _ in range(50):
            advance_until_idle(workflows)
            self.nothing_is_left_to_do()
            left = self.ids(*LIVE)
            assert not self.rows(sa.select(runs.id).where(runs.due_at.is_not(None)))
            if not left:
                break
            workflows.deliver("go")
            for run in left:
                workflows.handle(run).send("letter")
            self.app.extensions["sqlalchemy"].session.commit()
        assert not left
        self.it_holds()
        undo = self.rows(sa.select(models.steps.c.run_id).where(models.steps.c.status == "pushed"))
        assert all(workflows.get(run).status == "completed" for (run,) in undo)


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url, db=SQLAlchemy(metadata=scripted.Base.metadata), workflows=workflows)


def test_whatever_happens_in_whatever_order_runs_end_once_and_well(
    app: Flask, database_url: str, record_property: Callable[[str, object], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "flask_workflows")

    class Counted(Machine):
        pass

    def machine() -> Counted:
        return Counted(app)

    limits = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(SEED)(machine), settings=limits)  # type: ignore[arg-type]
    finally:
        kind = database_url.partition(":")[0].partition("+")[0]
        told = f"{kind}: MACHINE_SEED={SEED}, {Counted.sequences} sequences, {Counted.turns} rules"
        record_property("state machine", told)

    assert Counted.sequences >= EXAMPLES / 2
