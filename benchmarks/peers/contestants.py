"""What is measured, ours and others', behind one interface."""

from __future__ import annotations

import time
from abc import ABC
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import ExitStack
from pathlib import Path

from benchmarks import app
from benchmarks import scenarios
from benchmarks.databases import Database
from benchmarks.peers.environments import Peer
from benchmarks.peers.processes import moving
from benchmarks.peers.processes import standing_still
from benchmarks.peers.processes import SubjectProcess
from benchmarks.subject import Subject
from benchmarks.subject import Worker

OURS = "Flask-Workflows"

#: Seconds for what a worker is late with after it stood still.
SETTLING = 0.2

SLEEPERS_AT_ONCE = 2_000


class Contestant(ABC):
    """One engine on a database of its own."""

    name: str

    @abstractmethod
    @contextmanager
    def worker(self, mode: str) -> Iterator[int]:
        """Have a worker, made for `throughput` or for `latency`; gives its process id."""

    @abstractmethod
    def enqueue(self, threads: int, seconds: float) -> float:
        """Runs started a second, each in a transaction of its own, with no worker."""

    @abstractmethod
    def drain(self, steps: int, number: int) -> float:
        """Runs of so many steps that the worker executes a second, from the first claim to the last completion."""

    @abstractmethod
    def add_sleepers(self, number: int) -> None:
        """Have so many runs that wait for a time next month."""

    @abstractmethod
    def latencies(self, pauses: Sequence[float]) -> list[float]:
        """Milliseconds from each start to the run's step, after each of these pauses."""

    @abstractmethod
    def record(self, steps: int) -> None:
        """Make ready for replays of so many steps."""

    @abstractmethod
    def replay(self, steps: int) -> float:
        """Milliseconds of an execution that finds all its steps recorded."""


class Ours(Contestant):
    name = OURS

    def __init__(self, database: Database) -> None:
        self._subject = Subject(database)
        self._probes = 0
        self._template = ""

    @contextmanager
    def worker(self, mode: str) -> Iterator[int]:
        # The same for both.
        with Worker(self._subject, scenarios.CONCURRENCY) as worker:
            yield worker.pid

    def enqueue(self, threads: int, seconds: float) -> float:
        return self.starts(threads, seconds, scenarios.spawn)

    def starts(self, threads: int, seconds: float, start: Callable[[], None]) -> float:
        self._subject.tidy()
        return scenarios.starts_per_second(seconds, self._subject, threads, start)

    def drain(self, steps: int, number: int) -> float:
        if steps == 1:
            return self._subject.drain(app.one_step, number, scenarios.ONE)
        return self._subject.drain(app.many_steps, number, {"count": steps})

    def add_sleepers(self, number: int) -> None:
        if number:
            scenarios.add_sleepers(self._subject, number)

    def latencies(self, pauses: Sequence[float]) -> list[float]:
        self._probes += 1
        # A call that inserts and commits, as theirs.
        return scenarios.latencies_of(self._subject, pauses, label=f"probe-{self._probes}", spawned=True)

    def record(self, steps: int) -> None:
        self._template = scenarios.record(self._subject, steps)

    def replay(self, steps: int) -> float:
        return scenarios.replay_copy(self._subject, self._template)


class Other(Contestant):
    """A peer, by its subject's processes."""

    def __init__(self, peer: Peer, python: Path, database: Database, stack: ExitStack) -> None:
        self.peer = peer
        self.name = peer.name
        self._python = python
        self._database = database
        # As each of them takes it: without the name of a driver.
        self._url = database.url if database.kind == "sqlite" else database.conninfo
        with self._process("setup") as setting_up:
            setting_up.finish()
        self._client = stack.enter_context(self._process("client"))
        self.versions: dict[str, str] = self._client.read("ready")

    @contextmanager
    def worker(self, mode: str) -> Iterator[int]:
        with self._process("worker", str(scenarios.CONCURRENCY), mode) as self._worker:
            self._worker.read("ready")
            yield self._worker.pid

    def enqueue(self, threads: int, seconds: float) -> float:
        self._database.tidy()
        return float(self._client.ask("enqueue", threads=threads, seconds=seconds))

    def drain(self, steps: int, number: int) -> float:
        self._database.tidy()
        # They start runs one by one, which the worker is not to share the machine with.
        with standing_still([self._worker.pid]):
            self._client.ask("prepare", steps=steps, number=number)
        return number / float(self._client.ask("wait"))

    def add_sleepers(self, number: int) -> None:
        # Little by little, since an answer is waited for a limited time.
        for first in range(0, number, SLEEPERS_AT_ONCE):
            self._client.ask("sleep", number=min(SLEEPERS_AT_ONCE, number - first))

    def latencies(self, pauses: Sequence[float]) -> list[float]:
        committed = self._client.ask("probe", pauses=list(pauses))
        messages = [self._worker.read_line() for _ in pauses]
        began = {message["began"]: message["at"] for message in messages}

        return [(began[number] - before) / 1e6 for number, before in enumerate(committed)]

    def record(self, steps: int) -> None:
        self._client.ask("record", steps=steps)

    def replay(self, steps: int) -> float:
        return 1_000 * float(self._client.ask("replay", steps=steps))

    def _process(self, role: str, *options: str) -> SubjectProcess:
        return SubjectProcess(self._python, self.peer.subject, role, self._url, *options)


@contextmanager
def workers(contestants: Sequence[Contestant], mode: str) -> Iterator[dict[str, int]]:
    """Have a worker of each; gives their process ids by name, all standing still."""
    with ExitStack() as stack:
        pids = {contestant.name: stack.enter_context(contestant.worker(mode)) for contestant in contestants}
        stack.enter_context(standing_still(list(pids.values())))
        yield pids


@contextmanager
def turn(pid: int) -> Iterator[None]:
    """The time in which one worker is measured and the others stand still."""
    with moving(pid):
        time.sleep(SETTLING)
        yield
