"""What is done to the workers and their database, when, and how it is done."""

from __future__ import annotations

import random
import resource
import sqlite3
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

from chaos.app import SLOTS
from chaos.database import Postgres
from chaos.database import Sqlite
from chaos.proxy import Loss
from chaos.workers import Slot
from tests.databases import StopMode

#: What a worker loses its runs after, in seconds.
LEASE = 4
#: One fault begins so long after the other.
GAP = (0.3, 1.1)
#: How long something is waited for that is to be hit in flight.
PATIENCE = 2.0
#: A process may write no further than this into any file: less than SQLite's log nearly always has.
FULL_AT = 64 * 1024

#: Who starts the runs, beside the workers.
STARTER = -1


class Fault(NamedTuple):
    """What happened, to which workers (null: to all), from when until when on the machine's monotonic clock."""

    kind: str
    slots: frozenset[int] | None
    began: float
    ended: float

    def touches(self, slot: int, began: float, ended: float) -> bool:
        """Whether it was in flight for this worker at any time between two instants."""
        return (self.slots is None or slot in self.slots) and self.began <= ended and self.ended >= began


class Journal:
    """The faults that happened, as they are noted by any thread."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def note(self, kind: str, slots: frozenset[int] | None, began: float) -> None:
        with self._lock:
            self._faults.append(Fault(kind, slots, began, time.monotonic()))

    def add(self, faults: Sequence[Fault]) -> None:
        with self._lock:
            self._faults.extend(faults)

    def all(self) -> list[Fault]:
        with self._lock:
            return sorted(self._faults, key=lambda fault: fault.began)


class Planned(NamedTuple):
    """A fault to come: seconds after the beginning, what, to which slot, for how long."""

    at: float
    kind: str
    slot: int
    seconds: float


def plan(seed: int, seconds: float, kinds: Sequence[str]) -> list[Planned]:
    """The schedule: the same for the same arguments. No kind comes again before every other has come."""
    chance = random.Random(seed)
    return list(_deal(chance, seconds, kinds))


def _deal(chance: random.Random, seconds: float, kinds: Sequence[str]) -> Iterator[Planned]:
    at = 0.0
    while True:
        for kind in chance.sample(kinds, len(kinds)):
            at += chance.uniform(*GAP)
            slot, length = chance.randrange(SLOTS), chance.uniform(0.3, 1.5)
            if at >= seconds:
                return
            yield Planned(at, kind, slot, length)


@dataclass(frozen=True)
class Stage:
    """What faults are done to."""

    slots: Sequence[Slot]
    database: Postgres | Sqlite
    journal: Journal


Inject = Callable[[Stage, Planned], None]


# To workers --------------------------------------------------------------------------------


def kill(stage: Stage, planned: Planned) -> None:
    began = time.monotonic()
    stage.slots[planned.slot].kill()
    stage.journal.note(planned.kind, frozenset({planned.slot}), began)


def freeze(stage: Stage, planned: Planned, seconds: float) -> None:
    """Stop a process, and let it go on. On SQLite it may hold the one write lock, so this meets everybody."""
    began = time.monotonic()
    slot = stage.slots[planned.slot]
    pid = slot.freeze()
    time.sleep(seconds)
    slot.thaw(pid)
    slots = frozenset({planned.slot}) if isinstance(stage.database, Postgres) else None
    stage.journal.note(planned.kind, slots, began)


def freeze_shortly(stage: Stage, planned: Planned) -> None:
    freeze(stage, planned, planned.seconds)


def freeze_past_lease(stage: Stage, planned: Planned) -> None:
    freeze(stage, planned, LEASE + planned.seconds)


def terminate(stage: Stage, planned: Planned) -> None:
    began = time.monotonic()
    stage.slots[planned.slot].terminate()
    stage.journal.note(planned.kind, frozenset({planned.slot}), began)


def shift_ahead(stage: Stage, planned: Planned) -> None:
    stage.slots[planned.slot].shift = 600.0
    terminate(stage, planned)


def shift_back(stage: Stage, planned: Planned) -> None:
    stage.slots[planned.slot].shift = -600.0
    terminate(stage, planned)


# To PostgreSQL -----------------------------------------------------------------------------


def _postgres(stage: Stage) -> Postgres:
    assert isinstance(stage.database, Postgres)
    return stage.database


def restart(stage: Stage, planned: Planned, mode: StopMode) -> None:
    began = time.monotonic()
    _postgres(stage).restart(mode)
    stage.journal.note(planned.kind, None, began)


def restart_fast(stage: Stage, planned: Planned) -> None:
    restart(stage, planned, "fast")


def restart_immediate(stage: Stage, planned: Planned) -> None:
    restart(stage, planned, "immediate")


_BACKENDS = """
SELECT application_name, pg_terminate_backend(pid) FROM (
    SELECT pid, application_name FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'slot%%' AND {which}
    ORDER BY md5(pid::text || %(seed)s::text) LIMIT %(limit)s
) AS chosen
"""


def terminate_backends(stage: Stage, planned: Planned, which: str, limit: int) -> None:
    began = time.monotonic()
    # The server may be away just now: then there is nothing to end.
    with suppress(psycopg.OperationalError), closing(_postgres(stage).connect()) as connection:
        parameters = {"seed": planned.at, "limit": limit}
        ended = connection.execute(_BACKENDS.format(which=which).encode(), parameters).fetchall()
        if ended:
            stage.journal.note(planned.kind, frozenset(slot_of(name) for name, _ in ended), began)


def end_connections(stage: Stage, planned: Planned) -> None:
    terminate_backends(stage, planned, "query NOT LIKE 'LISTEN%%'", 4)


def end_listeners(stage: Stage, planned: Planned) -> None:
    terminate_backends(stage, planned, "query LIKE 'LISTEN%%'", 1)


def lose_reply(stage: Stage, planned: Planned, loss: Loss) -> None:
    """To one of the workers or, each fourth time or so, to whoever starts the runs."""
    slot = STARTER if planned.seconds < 0.6 else planned.slot
    began = time.monotonic()
    if _postgres(stage).proxy(slot).lose(loss, PATIENCE) is not None:
        stage.journal.note(planned.kind, frozenset({slot}), began)


def lose_commit(stage: Stage, planned: Planned) -> None:
    lose_reply(stage, planned, Loss("commit"))


def lose_statement(stage: Stage, planned: Planned) -> None:
    lose_reply(stage, planned, Loss("statement"))


def cut_commit(stage: Stage, planned: Planned) -> None:
    lose_reply(stage, planned, Loss("commit", "cut"))


def end_with_commit(stage: Stage, planned: Planned) -> None:
    lose_reply(stage, planned, Loss("commit", "ended"))


def lock_table(stage: Stage, planned: Planned) -> None:
    """Make every statement on runs wait for longer than the server allows."""
    began = time.monotonic()
    with suppress(psycopg.OperationalError), closing(_postgres(stage).connect()) as connection:
        with connection.transaction():
            connection.execute("LOCK TABLE workflow_runs IN ACCESS EXCLUSIVE MODE")
            time.sleep(1.0 + planned.seconds / 2)
        stage.journal.note(planned.kind, None, began)


def kill_pooler(stage: Stage, planned: Planned) -> None:
    database = _postgres(stage)
    assert database.pooler is not None
    began = time.monotonic()
    database.pooler.restart()
    stage.journal.note(planned.kind, frozenset({database.POOLED}), began)


def slot_of(application_name: str) -> int:
    """Whose connection it is, by the name that `database` gives it."""
    number = application_name.removeprefix("slot").strip()
    return int(number) if number.lstrip("-").isdigit() else STARTER


# To SQLite ---------------------------------------------------------------------------------


def fill_disk(stage: Stage, planned: Planned) -> None:
    """Let a process write no further into its files for a while: each write that would, fails."""
    began = time.monotonic()
    with stage.slots[planned.slot].limited(resource.RLIMIT_FSIZE, FULL_AT):
        time.sleep(planned.seconds)
    stage.journal.note(planned.kind, frozenset({planned.slot}), began)


def lock_database(stage: Stage, planned: Planned) -> None:
    """Hold the one write lock."""
    assert isinstance(stage.database, Sqlite)
    began = time.monotonic()
    connecting = closing(sqlite3.connect(stage.database.path, isolation_level=None, timeout=10))
    # It may take longer than that to be given the lock, with four processes in line.
    with connecting as connection, suppress(sqlite3.OperationalError):
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(1.0 + planned.seconds)
        connection.execute("ROLLBACK")
        stage.journal.note(planned.kind, None, began)


WORKER_FAULTS: dict[str, Inject] = {
    "worker killed (kill -9)": kill,
    "worker frozen (SIGSTOP, SIGCONT)": freeze_shortly,
    "worker frozen past its lease": freeze_past_lease,
    "worker restarted (SIGTERM)": terminate,
    "worker's clock 10 min ahead": shift_ahead,
    "worker's clock 10 min behind": shift_back,
}
POSTGRES_FAULTS: dict[str, Inject] = {
    "PostgreSQL restarted, fast": restart_fast,
    "PostgreSQL restarted, immediate": restart_immediate,
    "connections terminated": end_connections,
    "listener's connection terminated": end_listeners,
    "reply to COMMIT lost": lose_commit,
    "reply to a statement lost": lose_statement,
    "connection cut during COMMIT": cut_commit,
    "connection ended with the reply to COMMIT": end_with_commit,
    "table of runs locked for 1 to 2 s": lock_table,
}
POOLER_FAULTS: dict[str, Inject] = {"pgbouncer killed (kill -9)": kill_pooler}
SQLITE_FAULTS: dict[str, Inject] = {"disk full for a worker": fill_disk, "database locked for 1 to 2 s": lock_database}


def faults_for(database: Postgres | Sqlite) -> dict[str, Inject]:
    """What can be done on this database."""
    if isinstance(database, Sqlite):
        return WORKER_FAULTS | SQLITE_FAULTS
    return WORKER_FAULTS | POSTGRES_FAULTS | (POOLER_FAULTS if database.pooler is not None else {})


class Injector:
    """Does what is planned, each fault on a thread of its own, so that they overlap."""

    def __init__(self, stage: Stage, planned: Sequence[Planned]) -> None:
        self._stage = stage
        self._planned = planned
        self._faults = faults_for(stage.database)
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Inject all, and return when the last is over."""
        began = time.monotonic()
        threads = []
        for one in self._planned:
            time.sleep(max(0.0, began + one.at - time.monotonic()))
            thread = threading.Thread(target=self._inject, args=(one,), name=f"chaos: {one.kind}", daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def _inject(self, planned: Planned) -> None:
        try:
            self._faults[planned.kind](self._stage, planned)
        except Exception as error:
            error.add_note(f"while injecting {planned}")
            self.errors.append(error)
