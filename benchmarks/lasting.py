"""What must not grow with what is stored and with what was executed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks import s7
from benchmarks.app import db
from benchmarks.app import nap
from benchmarks.app import one_step
from benchmarks.app import workflows
from benchmarks.databases import Database
from benchmarks.figures import Figure
from benchmarks.figures import Target
from benchmarks.scenarios import Bench
from benchmarks.scenarios import CONCURRENCY
from benchmarks.scenarios import ONE
from benchmarks.subject import Subject
from benchmarks.subject import Worker
from flask_workflows import RunQuery
from flask_workflows import RunStatus
from flask_workflows.runtime import current_runtime
from flask_workflows.store import Scope

#: Due runs for the claims of one repetition, and how many each takes.
CLAIMS = 100
BATCH = 8

_DIGITS = "substr(CAST(1000000000000 + value AS text), 2)"


def claims(bench: Bench) -> Iterator[Figure]:
    """S11: how long a claim takes on a new database, and on one with years of runs and a crowd that is due later."""
    finished, future = bench.effort.finished, bench.effort.finished // 2
    crowd = f"{finished:,} finished and {future:,} future runs"
    with bench.database() as empty, bench.database() as crowded:
        subjects = {"no other runs": Subject(empty), crowd: Subject(crowded)}
        _fill(subjects[crowd], finished, future)
        measured: dict[str, list[float]] = {what: [] for what in subjects}
        for repetition in range(bench.effort.repetitions + 1):
            for what, subject in list(subjects.items())[:: 1 if repetition % 2 else -1]:
                took = _p95_of_claims(subject)
                # The first ones open connections and fill caches.
                if repetition:
                    measured[what].append(took)

    for what, samples in measured.items():
        yield bench.figure("S11", f"claim of {BATCH} due runs, p95, {what}", "ms", samples)
    before, after = measured.values()
    grown = [100 * (late / early - 1) for early, late in zip(before, after, strict=True)]
    yield bench.figure("S11", f"claim grown by {crowd}", "%", grown, aim=Target(20, at_most=True))


def _fill(subject: Subject, finished: int, future: int, **changes: str) -> None:
    with Worker(subject, 1), subject.app.app_context():
        done, asleep = one_step.spawn(1).id, nap.spawn(days=3_000).id
        subject.wait_until(lambda: subject.rows(_SETTLED)[0][0] == 2, "the first runs")
    subject.copy(done, finished, f"'01900000-0000-7000-8000-' || {_DIGITS}", **changes)
    subject.copy(asleep, future, f"'01900000-0000-7000-9000-' || {_DIGITS}", due_at="due_at + value")
    subject.tidy()


_SETTLED = "SELECT count(*) FROM workflow_runs WHERE status IN ('completed', 'sleeping')"


def _p95_of_claims(subject: Subject) -> float:
    """Milliseconds; the runs claimed are deleted again."""
    with subject.app.app_context():
        one_step.using(workspace="due").start_many([ONE] * (CLAIMS * BATCH))
        db.session.commit()
        subject.tidy()
        runtime = current_runtime()
        scope = Scope.of(runtime.registry.ranges())
        took = []
        for _ in range(CLAIMS):
            began = time.perf_counter()
            batch = runtime.store.claim(scope, "nobody", BATCH)
            took.append(1_000 * (time.perf_counter() - began))
            if len(batch) != BATCH:
                raise RuntimeError(f"a claim took {len(batch)} runs")
    subject.change("DELETE FROM workflow_runs WHERE workspace = 'due'")

    return statistics.quantiles(took, n=20)[-1]


def memory(bench: Bench) -> Iterator[Figure]:
    """S12: what a worker holds after many runs, beyond what it held after a tenth of them."""
    total = bench.effort.finished // 10
    with bench.database() as database:
        grown = _grown(database, total)

    what = f"worker's memory, grown from the {total // 10:,}th to the {total:,}th run"
    yield bench.figure("S12", what, "MB", [grown], aim=Target(5, at_most=True))


def _grown(database: Database, total: int) -> float:
    subject = Subject(database)
    with Worker(subject, CONCURRENCY) as worker:
        tenth = total // 10
        subject.drain(one_step, tenth, ONE)
        before = worker.resident_mb
        for _ in range(9):
            subject.drain(one_step, tenth, ONE)

        return worker.resident_mb - before


def newest_failed(bench: Bench) -> Iterator[Figure]:
    """S8: the newest 50 failed runs of one workflow, of which one in a hundred failed."""
    total = bench.effort.finished
    with bench.database() as database:
        subject = Subject(database)
        _fill(subject, total, 0, status="CASE WHEN value % 100 = 0 THEN 'failed' ELSE 'completed' END")
        query = RunQuery(workflow=one_step.name, status=RunStatus.FAILED, limit=50)
        samples = []
        with subject.app.app_context():
            for _ in range(10 * bench.effort.repetitions + 1):
                began = time.perf_counter()
                page = workflows.page(query)
                samples.append(1_000 * (time.perf_counter() - began))
                if len(page.runs) != 50:
                    raise RuntimeError(f"the page has {len(page.runs)} runs")

    what = f"newest 50 failed of one workflow among {total:,} runs"
    yield bench.figure("S8", what, "ms", samples[1:], aim=Target(5, at_most=True))


def wake_ups(bench: Bench) -> Iterator[Figure]:
    """S7: from an event to the run that waited for it, alone and beside many open waits of its name."""
    waits = bench.effort.sleepers
    url = None if bench.server is None or not bench.on_postgresql else bench.server.url("postgres")
    alone, beside = s7.measure(url, waits=waits, rounds=bench.effort.starts * bench.effort.fewer)
    ratio = statistics.median(beside) / statistics.median(alone)
    what = f"event to run, beside {waits:,} waits"
    yield bench.figure("S7", "event to run, alone", "ms", alone, aim=Target(5, at_most=True))
    yield bench.figure("S7", what, "ms", beside)
    yield bench.figure("S7", f"{what}, against alone", "times", [ratio], aim=Target(1.2, at_most=True))
