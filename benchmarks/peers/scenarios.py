"""What is compared. Each engine has a database of its own; they take turns, in an order that moves with the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.contestants import Contestant
from benchmarks.peers.contestants import Other
from benchmarks.peers.contestants import Ours
from benchmarks.peers.contestants import turn
from benchmarks.peers.contestants import workers
from benchmarks.scenarios import CONCURRENCY
from benchmarks.scenarios import spawn
from benchmarks.scenarios import start_and_commit
from benchmarks.scenarios import uneven_pauses

T = TypeVar("T")

STEPS_OF_A_REPLAY = 1_000

#: Runs in a drain, so that the last ones, when threads have nothing left to do, count for little.
FEWEST = 8 * CONCURRENCY


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int = 8
    #: Of figures that take long.
    fewer: int = 5
    #: That one engine's turn is meant to last.
    seconds: float = 1.0
    #: Runs started one by one in a turn of S4.
    starts: int = 80
    #: Runs that each worker executes before it is measured.
    warming: int = 300
    sleepers: int = 100_000


QUICK = Effort(rounds=2, fewer=2, seconds=0.4, starts=20, warming=64, sleepers=1_000)


@dataclass(frozen=True)
class Field:
    """Who is measured, and how much."""

    database: str
    ours: Ours
    others: Sequence[Other]
    effort: Effort

    @property
    def all(self) -> list[Contestant]:
        return [self.ours, *self.others]

    @property
    def with_steps(self) -> list[Contestant]:
        return [self.ours, *(other for other in self.others if other.peer.has_steps)]

    def compare(
        self, scenario: str, what: str, unit: str, measured: Mapping[str, Sequence[float]], ours: str = Ours.name
    ) -> Comparison:
        names = {other.name for other in self.others}
        peers = {name: samples for name, samples in measured.items() if name in names}
        return Comparison(scenario, self.database, what, unit, ours, measured[ours], peers)


def in_turns(rounds: int, entries: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Let each entry measure once a round; who begins moves on by one each time."""
    measured: dict[str, list[T]] = {name: [] for name in entries}
    names = list(entries)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(entries[name]())

    return measured


def enqueue(field: Field) -> Iterator[Comparison]:
    """S1: how many runs a second are started, each in a commit of its own."""
    seconds = field.effort.seconds
    by_start, by_spawn = f"{Ours.name}, start and commit", f"{Ours.name}, spawn"
    for threads in (1, 4):
        entries: dict[str, Callable[[], float]] = {
            by_start: partial(field.ours.starts, threads, seconds, start_and_commit),
            by_spawn: partial(field.ours.starts, threads, seconds, spawn),
        }
        for other in field.others:
            entries[other.name] = partial(other.enqueue, threads, seconds)
        measured = in_turns(field.effort.fewer, entries)
        for ours in (by_start, by_spawn):
            yield field.compare("S1", f"enqueue, threads: {threads}", "runs/s", measured, ours)


def drain_one_step(field: Field) -> Iterator[Comparison]:
    """S2: how many runs of one step a worker executes in a second."""
    measured = _drains(field, field.all, steps=1)
    yield field.compare("S2", f"drain of 1-step runs, concurrency {CONCURRENCY}", "runs/s", measured)


def drain_ten_steps(field: Field) -> Iterator[Comparison]:
    """S3: how many steps a second a worker executes and stores, in runs of ten."""
    measured = _drains(field, field.with_steps, steps=10)
    yield field.compare("S3", f"drain of 10-step runs, concurrency {CONCURRENCY}", "steps/s", measured)


def drain_beside_sleepers(field: Field) -> Iterator[Comparison]:
    """S6: S2 where very many runs sleep."""
    measured = _drains(field, field.all, steps=1, sleepers=field.effort.sleepers)
    yield field.compare("S6", f"S2 beside {field.effort.sleepers:,} sleepers", "runs/s", measured)


def _drains(field: Field, contestants: Sequence[Contestant], steps: int, sleepers: int = 0) -> dict[str, list[float]]:
    """Rates in steps a second."""
    effort = field.effort
    with workers(contestants, "throughput") as pids:
        speeds = {}
        for contestant in contestants:
            with turn(pids[contestant.name]):
                contestant.drain(steps, FEWEST)
                contestant.add_sleepers(sleepers)
                speeds[contestant.name] = contestant.drain(steps, max(FEWEST, effort.warming // steps))

        def measure(contestant: Contestant) -> float:
            number = max(FEWEST, int(speeds[contestant.name] * effort.seconds))
            with turn(pids[contestant.name]):
                speeds[contestant.name] = contestant.drain(steps, number)
            return steps * speeds[contestant.name]

        return in_turns(effort.rounds, {one.name: partial(measure, one) for one in contestants})


def start_latency(field: Field) -> Iterator[Comparison]:
    """S4: how long after a run's start an idle worker begins its step."""
    effort = field.effort
    with workers(field.all, "latency") as pids:
        for contestant in field.all:
            with turn(pids[contestant.name]):
                contestant.latencies(uneven_pauses(effort.starts, seed=0))

        def measure(contestant: Contestant) -> list[float]:
            with turn(pids[contestant.name]):
                values = contestant.latencies(uneven_pauses(effort.starts, seed=len(contestant.name)))
            return statistics.quantiles(values, n=100)

        measured = in_turns(effort.fewer, {one.name: partial(measure, one) for one in field.all})

    for percentile in (50, 99):
        samples = {name: [values[percentile - 1] for values in rounds] for name, rounds in measured.items()}
        yield field.compare("S4", f"start to step, p{percentile}", "ms", samples)


def replay(field: Field) -> Iterator[Comparison]:
    """S5: how long an execution takes that finds all its steps recorded."""
    steps = STEPS_OF_A_REPLAY
    with workers(field.with_steps, "throughput") as pids:
        for contestant in field.with_steps:
            with turn(pids[contestant.name]):
                contestant.record(steps)
                contestant.replay(steps)

        def measure(contestant: Contestant) -> float:
            with turn(pids[contestant.name]):
                return contestant.replay(steps)

        measured = in_turns(field.effort.fewer, {one.name: partial(measure, one) for one in field.with_steps})

    yield field.compare("S5", f"replay of {steps:,} steps", "ms", measured)


Scenario = Callable[[Field], Iterator[Comparison]]

SCENARIOS: Mapping[str, Scenario] = {
    "S1": enqueue,
    "S2": drain_one_step,
    "S3": drain_ten_steps,
    "S4": start_latency,
    "S5": replay,
    "S6": drain_beside_sleepers,
}

#: What is compared on SQLite, where the rest says little.
ON_SQLITE = ("S2", "S3")
