"""What is measured. Each scenario has a database of its own, in which the limit stands beside the engine's tables.

Engine and limit take turns, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import app
from benchmarks.app import db
from benchmarks.databases import Database
from benchmarks.databases import fresh_database
from benchmarks.figures import Figure
from benchmarks.figures import Target
from benchmarks.limits import make_limit
from benchmarks.limits import wake_latencies
from benchmarks.rates import rate
from benchmarks.subject import Subject
from benchmarks.subject import Worker
from flask_workflows.definition import Workflow
from flask_workflows.names import new_id
from tests.databases import PostgresServer

#: Of a figure that was measured in a worker with as many threads as the targets are given for.
CONCURRENCY = 8

ONE = {"number": 1}


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repetitions: int = 8
    #: Of figures without a target.
    fewer: int = 3
    #: That one measurement is meant to last: short, so that engine and limit meet the same weather.
    seconds: float = 0.9
    #: Runs started one by one in a repetition of S4.
    starts: int = 80
    sleepers: int = 100_000
    #: Twice as long as a worker's longest habit, so that it matters little when counting begins.
    idle_seconds: float = 60.0
    #: Runs that have finished long ago; half as many are due later.
    finished: int = 1_000_000


QUICK = Effort(repetitions=2, fewer=1, seconds=0.6, starts=40, sleepers=10_000, idle_seconds=5.0, finished=20_000)


@dataclass(frozen=True)
class Bench:
    """What a scenario is to be run on."""

    kind: str
    server: PostgresServer | None
    effort: Effort

    @contextmanager
    def database(self) -> Iterator[Database]:
        with fresh_database(self.kind, self.server) as database:
            yield database

    @property
    def on_postgresql(self) -> bool:
        return self.kind == "postgresql"

    def figure(self, scenario: str, what: str, unit: str, samples: Sequence[float], **others: Any) -> Figure:
        return Figure(scenario, self.kind, what, unit, samples, **others)


# S1 ----------------------------------------------------------------------------------------


def enqueue(bench: Bench) -> Iterator[Figure]:
    """S1: how many runs a second are started, with no worker to share the machine with."""
    seconds = bench.effort.seconds
    with bench.database() as database:
        subject = Subject(database)
        limit = make_limit(database, seconds)
        measured: dict[str, list[float]] = {}
        limits = {clients: [limit.enqueue(clients)] for clients in (1, 4)}
        for _ in range(bench.effort.fewer):
            for clients in limits:
                for verb, start in (("start and commit", start_and_commit), ("spawn", spawn)):
                    what = f"{verb}, threads: {clients}"
                    measured.setdefault(what, []).append(starts_per_second(seconds, subject, clients, start))
                limits[clients].append(limit.enqueue(clients))
            measured.setdefault("start_many, 1,000 a commit", []).append(
                1_000 * starts_per_second(seconds, subject, 1, _start_many)
            )
            subject.tidy()

    for what, samples in measured.items():
        clients = 4 if what.endswith("4") else 1
        target = Target(10_000) if what.startswith("start_many") else None
        yield bench.figure("S1", what, "runs/s", samples, limits=_beside(limits[clients]), wanted=target, aim=target)


def start_and_commit() -> None:
    app.one_step.start(1)
    db.session.commit()


def spawn() -> None:
    app.one_step.spawn(1)


def _start_many() -> None:
    app.one_step.start_many([{"number": number} for number in range(1_000)])
    db.session.commit()


def starts_per_second(seconds: float, subject: Subject, clients: int, start: Callable[[], None]) -> float:
    def act() -> None:
        # As in a web request: a context, and with it a session, for each.
        with subject.app.app_context():
            start()

    @contextmanager
    def opened() -> Iterator[Callable[[], None]]:
        act()
        yield act

    return rate(clients, seconds, opened)


# S2, S3 ------------------------------------------------------------------------------------


def drain_one_step(bench: Bench) -> Iterator[Figure]:
    """S2: how many runs of one step a worker executes in a second."""
    for concurrency in (1, CONCURRENCY, 32):
        what = f"drain of 1-step runs, concurrency {concurrency}"
        targets: Mapping[str, Target] = {}
        if concurrency == CONCURRENCY and bench.on_postgresql:
            targets = {"wanted": Target(25, share=True), "aim": Target(37, share=True)}
        elif concurrency == CONCURRENCY:
            targets = {"wanted": Target(600), "aim": Target(1_000)}
        samples, limits = _drains(bench, concurrency, app.one_step, ONE, steps=1, often=bool(targets))
        yield bench.figure("S2", what, "runs/s", samples, limits=limits, **targets)


def drain_ten_steps(bench: Bench) -> Iterator[Figure]:
    """S3: how many steps a second a worker executes and stores, in runs of ten."""
    what = f"drain of 10-step runs, concurrency {CONCURRENCY}"
    samples, limits = _drains(bench, CONCURRENCY, app.many_steps, {"count": 10}, steps=10, often=True)
    targets = {"wanted": Target(25, share=True), "aim": Target(38, share=True)} if bench.on_postgresql else {}
    yield bench.figure("S3", what, "steps/s", samples, limits=limits, **targets)


def _drains(
    bench: Bench, concurrency: int, workflow: Workflow[Any, Any], input: Mapping[str, Any], *, steps: int, often: bool
) -> tuple[list[float], list[float]]:
    """Rates of the engine and of the limit, in steps a second."""
    samples, limits = [], []
    with bench.database() as database:
        subject = Subject(database)
        limit = make_limit(database, bench.effort.seconds)
        with Worker(subject, concurrency):
            speed = _warm_up(subject, workflow, input)
            limit.drain(concurrency, steps)
            limits.append(steps * limit.drain(concurrency, steps))
            for _ in range(bench.effort.repetitions if often else bench.effort.fewer):
                number = max(50, int(speed * bench.effort.seconds))
                speed = subject.drain(workflow, number, input)
                samples.append(steps * speed)
                limits.append(steps * limit.drain(concurrency, steps))

    return samples, _beside(limits)


def _beside(limits: Sequence[float]) -> list[float]:
    """For each sample the mean of the limits measured just before and just after it."""
    return [statistics.fmean(pair) for pair in itertools.pairwise(limits)]


def _warm_up(subject: Subject, workflow: Workflow[Any, Any], input: Mapping[str, Any]) -> float:
    """Let every thread of a worker run everything several times; answer the speed it came to."""
    subject.drain(workflow, 100, input)
    return subject.drain(workflow, 300, input)


# S4 ----------------------------------------------------------------------------------------


def start_latency(bench: Bench) -> Iterator[Figure]:
    """S4: how long after the call of `commit()` an idle worker in another process begins the run's step."""
    p50: tuple[list[float], list[float]] = ([], [])
    p99: tuple[list[float], list[float]] = ([], [])
    with bench.database() as database:
        subject = Subject(database)
        limit = make_limit(database, bench.effort.seconds)
        with Worker(subject, CONCURRENCY):
            _warm_up(subject, app.probe, {})
            for repetition in range(bench.effort.fewer):
                pauses = uneven_pauses(bench.effort.starts, seed=repetition)
                latencies = [latencies_of(subject, pauses, label=f"probe-{repetition}")]
                if bench.on_postgresql:
                    latencies.append(wake_latencies(database, pauses))
                for place, values in enumerate(latencies):
                    percentiles = statistics.quantiles(values, n=100)
                    p50[place].append(percentiles[49])
                    p99[place].append(percentiles[98])
        del limit

    for name, (samples, floors), wanted, aim in (("p50", p50, 5, 3), ("p99", p99, None, 10)):
        yield bench.figure(
            "S4",
            f"commit to step, {name}",
            "ms",
            samples,
            limits=floors,
            wanted=None if wanted is None else Target(wanted, at_most=True),
            aim=Target(aim, at_most=True),
        )


def uneven_pauses(number: int, seed: int) -> list[float]:
    """Long enough that the worker is idle again, uneven so that they keep no step with any polling."""
    dice = random.Random(seed)
    return [dice.uniform(0.03, 0.06) for _ in range(number)]


def latencies_of(subject: Subject, pauses: Sequence[float], label: str, *, spawned: bool = False) -> list[float]:
    """Milliseconds to the step from the call of `commit()` or, with `spawned`, from that of `spawn()`."""
    committed = []
    probe = app.probe.using(workspace=label)
    for pause in pauses:
        time.sleep(pause)
        with subject.app.app_context():
            if spawned:
                committed.append(time.monotonic_ns())
                probe.spawn()
                continue
            probe.start()
            committed.append(time.monotonic_ns())
            db.session.commit()
    statement = "SELECT output FROM workflow_runs WHERE workspace = :label AND output IS NOT NULL ORDER BY id"
    subject.wait_until(lambda: len(subject.rows(statement, label=label)) == len(pauses), "the probes")
    started = [int(row[0]) for row in subject.rows(statement, label=label)]

    return [(after - before) / 1e6 for before, after in zip(committed, started, strict=True)]


# S5 ----------------------------------------------------------------------------------------


def replay(bench: Bench) -> Iterator[Figure]:
    """S5: how long an execution takes that finds all its steps recorded, from its claim to its end."""
    with bench.database() as database:
        subject = Subject(database)
        with Worker(subject, CONCURRENCY):
            for steps in (1_000, 10_000):
                template = record(subject, steps)
                replay_copy(subject, template)
                samples, floors = [], []
                for _ in range(bench.effort.repetitions):
                    floors.append(_read_history(subject, template))
                    samples.append(replay_copy(subject, template))
                subject.change("DELETE FROM workflow_runs")
                targets = {"wanted": Target(500, at_most=True), "aim": Target(150, at_most=True)}
                what = f"replay of {steps:,} steps"
                yield bench.figure("S5", what, "ms", samples, limits=floors, **(targets if steps == 10_000 else {}))


def record(subject: Subject, steps: int) -> str:
    """Execute a run of so many steps; answer its id."""
    subject.drain(app.many_steps, 1, {"count": steps})
    template = str(subject.rows("SELECT id FROM workflow_runs WHERE finished_at IS NOT NULL")[-1][0])
    subject.tidy()

    return template


def replay_copy(subject: Subject, template: str) -> float:
    """Execute a copy of a run whose every step is recorded; answer the milliseconds by the database's clock."""
    id = new_id()
    unfinished = dict.fromkeys(("output", "started_at", "finished_at"), "NULL")
    subject.copy(template, 1, f"'{id}'", **unfinished, status="'pending'", epoch="1", due_at="created_at")
    statement = "SELECT status, started_at, finished_at FROM workflow_runs WHERE id = :id"
    subject.wait_until(lambda: subject.rows(statement, id=id)[0][2] is not None, "a replay")
    status, began, ended = subject.rows(statement, id=id)[0]
    if status != "completed":
        raise RuntimeError(f"the replay is {status}")
    subject.change("DELETE FROM workflow_steps WHERE run_id = :id", id=id)

    return float(ended - began)


def _read_history(subject: Subject, run_id: str) -> float:
    """Milliseconds to read what a run recorded and to decode it: the least a replay can do."""
    began = time.perf_counter()
    for input, output in subject.rows("SELECT input, output FROM workflow_steps WHERE run_id = :id", id=run_id):
        json.loads(input)
        json.loads(output)

    return (time.perf_counter() - began) * 1_000


# S6 ----------------------------------------------------------------------------------------


def sleepers(bench: Bench) -> Iterator[Figure]:
    """S6: what sleeping runs cost a worker that is busy, and one that is idle."""
    crowd = f"{bench.effort.sleepers:,} sleepers"
    with bench.database() as empty, bench.database() as crowded:
        subjects = {"no sleepers": Subject(empty), crowd: Subject(crowded)}
        add_sleepers(subjects[crowd], bench.effort.sleepers)
        yield from _idle(bench, subjects)
        rates = _drain_in_turn(bench, list(subjects.values()))

    for what, samples in zip(subjects, rates, strict=True):
        yield bench.figure("S6", f"S2 at concurrency {CONCURRENCY}, {what}", "runs/s", samples)
    losses = [100 * (1 - after / before) for before, after in zip(*rates, strict=True)]
    yield bench.figure(
        "S6", f"loss with {crowd}", "%", losses, wanted=Target(10, at_most=True), aim=Target(5, at_most=True)
    )


def add_sleepers(subject: Subject, number: int) -> None:
    """Let one run fall asleep, and copy it: its row and the row of its sleep."""
    with Worker(subject, 1), subject.app.app_context():
        template = app.nap.spawn(days=30).id
        subject.wait_until(lambda: bool(subject.rows(_ASLEEP)), "a run to fall asleep")
    digits = "substr(CAST(1000000000000 + value AS text), 2)"
    subject.copy(template, number - 1, f"'01900000-0000-7000-8000-' || {digits}", due_at="due_at + value")
    subject.tidy()


_ASLEEP = "SELECT 1 FROM workflow_runs WHERE status = 'sleeping'"


def _drain_in_turn(bench: Bench, subjects: Sequence[Subject]) -> list[list[float]]:
    rates: list[list[float]] = [[] for _ in subjects]
    with ExitStack() as stack:
        for subject in subjects:
            stack.enter_context(Worker(subject, CONCURRENCY))
        speed = min(_warm_up(subject, app.one_step, ONE) for subject in subjects)
        for repetition in range(bench.effort.repetitions):
            # Turned about each time, so that neither always comes second.
            order = list(zip(subjects, rates, strict=True))
            for subject, samples in order if repetition % 2 else reversed(order):
                samples.append(subject.drain(app.one_step, int(speed * bench.effort.seconds), ONE))

    return rates


def _idle(bench: Bench, subjects: Mapping[str, Subject]) -> Iterator[Figure]:
    """Memory, queries and processor time of workers with nothing to do."""
    with tempfile.TemporaryDirectory(prefix="flask-workflows-bench-") as directory, ExitStack() as stack:
        counters = [Path(directory) / str(number) for number in range(len(subjects))]
        workers = []
        for counter, subject in zip(counters, subjects.values(), strict=True):
            workers.append(stack.enter_context(Worker(subject, CONCURRENCY, FLASK_BENCHMARKS_COUNTER=str(counter))))
            subject.drain(app.one_step, 50, ONE)
        time.sleep(2)
        before = [int(counter.read_text()) for counter in counters]
        busy = [worker.cpu_seconds for worker in workers]
        time.sleep(bench.effort.idle_seconds)
        counted = [int(counter.read_text()) - earlier for counter, earlier in zip(counters, before, strict=True)]
        busy = [worker.cpu_seconds - earlier for worker, earlier in zip(workers, busy, strict=True)]
        memory = [worker.resident_mb for worker in workers]

    wanted = Target(1.2, at_most=True)
    for what, queries, seconds, resident in zip(subjects, counted, busy, memory, strict=True):
        yield bench.figure(
            "S6", f"idle worker, {what}", "queries/s", [queries / bench.effort.idle_seconds], wanted=wanted
        )
        share = 100 * seconds / bench.effort.idle_seconds
        yield bench.figure("S6", f"idle worker, {what}", "% of a CPU", [share], aim=Target(0.5, at_most=True))
        yield bench.figure("S6", f"idle worker, {what}", "MB", [resident])


# S9, S10 -----------------------------------------------------------------------------------


def fan_out(bench: Bench) -> Iterator[Figure]:
    """S9: how many steps a second are executed and stored side by side in one run."""
    samples, limits = _drains_of(bench, app.fan_out, count=1_000)
    yield bench.figure("S9", "fan-out of 1,000 steps in one run", "steps/s", samples, limits=limits)


def family(bench: Bench) -> Iterator[Figure]:
    """S10: how many children a second are started by a parent, executed, and awaited by it one after another."""
    samples, limits = _drains_of(bench, app.family, count=100)
    yield bench.figure("S10", "parent that awaits 100 children", "runs/s", samples, limits=limits)


def _drains_of(bench: Bench, workflow: Workflow[Any, Any], *, count: int) -> tuple[list[float], list[float]]:
    """Rates of one run with `count` steps or children of its own, and of the limit's runs of one step."""
    samples, limits = [], []
    with bench.database() as database:
        subject = Subject(database)
        limit = make_limit(database, bench.effort.seconds)
        with Worker(subject, CONCURRENCY):
            _warm_up(subject, app.one_step, ONE)
            limits.append(limit.drain(CONCURRENCY, 1))
            for _ in range(bench.effort.fewer):
                samples.append(count * subject.drain(workflow, 1, {"count": count}))
                limits.append(limit.drain(CONCURRENCY, 1))

    return samples, _beside(limits)
