"""One database under faults, from the first worker to the verdict."""

from __future__ import annotations

import statistics
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from chaos import ledger
from chaos.app import create_app
from chaos.app import create_tables
from chaos.app import PROBES
from chaos.app import SLOTS
from chaos.database import Postgres
from chaos.database import Sqlite
from chaos.faults import Fault
from chaos.faults import faults_for
from chaos.faults import Injector
from chaos.faults import Journal
from chaos.faults import LEASE
from chaos.faults import plan
from chaos.faults import slot_of
from chaos.faults import Stage
from chaos.faults import STARTER
from chaos.ledger import Violation
from chaos.load import Load
from chaos.workers import Slot
from chaos.workers import Supervisor
from flask_workflows import WaitTimeout
from tests.apps import dispose_engines
from tests.processes import eventually
from tests.processes import Fleet

#: Steps that lose their connection fail and are tried again at once, as often as it takes. A worker that hears of
#: nothing polls so seldom that one whose notifications do not come back is found by its latency.
CONFIG: Mapping[str, object] = {
    "WORKFLOWS_LOCK_TIMEOUT_SECS": LEASE,
    "WORKFLOWS_POLL_INTERVAL_MS": 5_000,
    "WORKFLOWS_STEP_ATTEMPTS": 1_000,
    "WORKFLOWS_STEP_BACKOFF_SECS": 0,
    "WORKFLOWS_MAX_ATTEMPTS": 10,
    "WORKFLOWS_RETRY_BACKOFF_SECS": 0,
    "WORKFLOWS_DRAIN_SECS": 2,
    "WORKFLOWS_DASHBOARD": False,
    "WORKFLOWS_API": False,
}
#: Beginning, probes and end of a run, in seconds: the rest is for faults.
OVERHEAD = 14.0
#: Actions of the app a second, while nothing fails.
RATE = 15.0
PROBES_EACH = 7
#: What a probe may take when all faults are over, in the middle: so long, or so many times what it took before.
RECOVERED_SECONDS = 1.0
RECOVERED_TIMES = 5.0
#: How long the last runs get to finish.
END_SECONDS = 90.0
#: The machine is taken to have stood still when a short sleep takes so much longer.
STALL_SECONDS = 1.0
#: What a worker must not say.
_ALARMS = (
    "an execution ended in an error of the engine's own",
    "claiming failed, trying again",
    "the worker's threads died",
    "Exception in thread",
    "could not be logged",
)


@dataclass(frozen=True)
class Report:
    """What happened on one database."""

    database: str
    seed: int
    seconds: float
    faults: Mapping[str, int]
    #: By workflow and status.
    outcomes: Mapping[tuple[str, str], int]
    #: How many rows each kind of evidence has.
    looked_at: Mapping[str, int]
    #: What the app did.
    done: Mapping[str, int]
    #: The median of the probes before and after the faults, in seconds, of each slot.
    before: Sequence[float]
    after: Sequence[float]
    violations: Sequence[Violation]
    #: Faults that could not be injected here, and why.
    left_out: Sequence[str]


class Trial:
    """One database, its workers, its load."""

    def __init__(self, kind: str, seconds: float, seed: int, folder: Path) -> None:
        self.seconds, self.seed, self.folder = seconds, seed, folder
        self.database = Sqlite(folder) if kind == "sqlite" else Postgres(folder, [STARTER, *range(SLOTS)])
        self.journal = Journal()
        self.fleet = Fleet("", folder)
        self.found: list[Violation] = []
        config = {**CONFIG, **self.database.config_for(STARTER)}
        self.app = create_app(self.database.url_for(STARTER), STARTER, **config)

    def close(self) -> None:
        self.fleet.close()
        dispose_engines(self.app)
        self.database.close()

    def run(self) -> Report:
        with self.app.app_context():
            create_tables()
        slots = [self._slot(number) for number in range(SLOTS)]
        supervisor = Supervisor(slots, self._worker_ended)
        with _watching_for_stalls(self.journal):
            eventually(lambda: all(slot.serves() for slot in slots), within=60)
            load = Load(self.app, self.seed, RATE)
            load.start()
            before = self._probe_all()
            load.poisoning = self.seconds > OVERHEAD
            self._inject(slots)
            load.poisoning = False
            eventually(lambda: all(slot.serves() for slot in slots), within=60)
            time.sleep(LEASE + 1)
            after = self._probe_all()
            load.finish()
            self._await_end(load)
            load.stop()
        supervisor.stop()
        self._end(slots)
        self._compare(before, after)
        self._read_logs()
        self.found.extend(Violation("the app sees no other errors", None, _told(error)) for error in load.errors)

        return self._report(load, before, after)

    def _slot(self, number: int) -> Slot:
        config = {**CONFIG, **self.database.config_for(number)}
        return Slot(self.fleet, number, self.database.url_for(number), config)

    def _worker_ended(self, slot: int, code: int) -> None:
        """A process ended unasked: by the run that kills its workers, or by a fault of its own."""
        if code == -9:
            self.journal.note("worker killed by its run (kill -9)", frozenset({slot}), time.monotonic() - 1.0)
        else:
            self.found.append(Violation("workers live on", None, f"worker {slot} ended by itself with code {code}"))

    def _inject(self, slots: Sequence[Slot]) -> None:
        stage = Stage(slots, self.database, self.journal)
        planned = plan(self.seed, max(0.0, self.seconds - OVERHEAD), list(faults_for(self.database)))
        injector = Injector(stage, planned)
        injector.run()
        for error in injector.errors:
            self.found.append(Violation("the harness works", None, _told(error)))

    # Latencies -----------------------------------------------------------------------------

    def _probe_all(self) -> list[float]:
        return [statistics.median(self._probe(slot) for _ in range(PROBES_EACH)) for slot in range(SLOTS)]

    def _probe(self, slot: int) -> float:
        """Seconds from the start of a run, before its commit, to its step on that worker; infinite for never."""
        with self.app.app_context():
            began = time.monotonic()
            try:
                return PROBES[slot].spawn().result(timeout=20, poll=0.02) - began
            except WaitTimeout:
                return float("inf")

    def _compare(self, before: Sequence[float], after: Sequence[float]) -> None:
        for slot, (earlier, later) in enumerate(zip(before, after, strict=True)):
            if later > max(RECOVERED_SECONDS, RECOVERED_TIMES * earlier):
                what = f"worker {slot} begins a run after {later:.3f} s; it was {earlier:.3f} s before the faults"
                self.found.append(Violation("latencies recovered", None, what))

    # The end -------------------------------------------------------------------------------

    def _await_end(self, load: Load) -> None:
        """Wait until every run has finished; the ledger says which have not."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline and (load.owes or self._unfinished()):
            time.sleep(0.1)

    def _unfinished(self) -> int:
        with self._connection() as connection:
            return int(connection.scalar(sa.text("SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL")) or 0)

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.database.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            if isinstance(self.database, Postgres):
                connection.exec_driver_sql("SET statement_timeout = 0")
            yield connection

    def _end(self, slots: Sequence[Slot]) -> None:
        threads = [threading.Thread(target=slot.terminate) for slot in slots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read_logs(self) -> None:
        for process in self.fleet.processes:
            for line in process.log.splitlines():
                if any(alarm in line for alarm in _ALARMS):
                    self.found.append(Violation("workers live on", None, f"{process.log_path.name}: {line}"))

    # The verdict ---------------------------------------------------------------------------

    def _report(self, load: Load, before: Sequence[float], after: Sequence[float]) -> Report:
        ended = [
            Fault(kind, frozenset({slot_of(application)}), at, at) for kind, application, at in self.database.timeouts()
        ]
        self.journal.add(ended)
        faults = self.journal.all()
        with self._connection() as connection:
            record = ledger.Record.read(connection, faults, load.committed)
        found = [*self.found, *ledger.violations(record)]
        self._keep_evidence(record, found)
        own = [run for run in record.runs.values() if not run.workflow.startswith("probe-")]

        return Report(
            database=self.database.kind,
            seed=self.seed,
            seconds=self.seconds,
            faults=Counter(fault.kind for fault in faults),
            outcomes=Counter((run.workflow, run.status) for run in own),
            looked_at={
                "runs": len(record.runs),
                "recorded calls": len(record.steps),
                "executions of steps": len(record.entries),
                "of these repeated, with a fault in flight": ledger.repetitions(record),
                "changes of runs": len(record.changes),
            },
            done=load.done,
            before=before,
            after=after,
            violations=found,
            left_out=_left_out(self.database),
        )

    def _keep_evidence(self, record: ledger.Record, found: Sequence[Violation]) -> None:
        """What there is to each violation, beside the workers' logs."""
        lines = [f"{fault.began:.3f} to {fault.ended:.3f}  {fault.kind}  {_named(fault)}" for fault in record.faults]
        (self.folder / "faults.txt").write_text("\n".join(lines) + "\n")
        if not found:
            return
        parts = []
        for violation in found:
            parts.append(f"== {violation.check}: {violation.what}\n")
            if violation.run is not None:
                parts.append(f"{ledger.evidence(record, violation.run)}\n{self._log_of(violation.run)}\n")
        (self.folder / "violations.txt").write_text("\n".join(parts))

    def _log_of(self, run: str) -> str:
        return "\n".join(
            f"{process.log_path.name}: {line}"
            for process in self.fleet.processes
            for line in process.log.splitlines()
            if run in line
        )


def _named(fault: Fault) -> str:
    return "all" if fault.slots is None else f"slot {', '.join(map(str, sorted(fault.slots)))}"


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()


def _left_out(database: Postgres | Sqlite) -> list[str]:
    if isinstance(database, Postgres) and database.pooler is None:
        return ["pgbouncer: it is not installed (on Debian: apt-get install pgbouncer)"]
    return []


@contextmanager
def _watching_for_stalls(journal: Journal) -> Iterator[None]:
    """Note when the machine itself stood still: then leases end that nobody took."""
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.is_set():
            began = time.monotonic()
            stopping.wait(0.05)
            if time.monotonic() - began > STALL_SECONDS:
                journal.note("the machine stood still (not injected)", None, began)

    thread = threading.Thread(target=watch, name="chaos-stalls", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def try_database(kind: str, seconds: float, seed: int, folder: Path) -> Report:
    """Run it; what is to be looked at afterwards is left in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    trial = Trial(kind, seconds, seed, folder)
    try:
        return trial.run()
    finally:
        trial.close()
