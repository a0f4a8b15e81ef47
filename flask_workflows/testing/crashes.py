"""The death of the process at a chosen write of the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from threading import get_ident
from types import TracebackType
from typing import Literal
from typing import TYPE_CHECKING

from ..errors import SetupError
from .clock import app_of
from .clock import clock_of

if TYPE_CHECKING:
    from ..extension import Workflows
    from ..store import Store

logger = logging.getLogger("flask_workflows")

When = Literal["before", "after"]

#: `every_crash` gives up after so many writes.
MOST_WRITES = 1_000


class SimulatedCrash(BaseException):
    """The process dies here, as far as the database can tell."""


class AfterDeath(Exception):
    """Another thread of the process that is dead wanted something of the database."""


class Crash:
    """One death, at the n-th transaction in which the engine writes, just before its commit or just after it.

    A context manager: what its block does is what the process does. At that write `SimulatedCrash` is raised, and from
    then on the engine neither reads nor writes on behalf of the dead, whatever a `finally` tries. The crash ends with
    the block. Then, as after a real one, `db.session` is empty, nothing the engine had in memory is left, and the leases
    have lapsed: the `FixedClock` is moved by `WORKFLOWS_LOCK_TIMEOUT_SECS`, so the next tick takes the runs over.

    Counted are claims, records of steps together with what these wrote through `db.session`, sleeps, waits, matched
    events, outcomes and the statistics at the end of a tick, and what `spawn`, `deliver`, `cancel` and the like write; not the commits of the app itself.
    Only what the test's own thread does is counted.
    """

    def __init__(self, workflows: Workflows, number: int, when: When = "before") -> None:
        if number < 1 or when not in ("before", "after"):
            raise ValueError(f'crash at write {number}, {when!r}: write a number from 1, and "before" or "after"')
        self._workflows = workflows
        self.number = number
        self.when = when
        #: Whether the write was reached.
        self.happened = False
        self.entered = False
        self._writes = 0
        self._store: Store | None = None
        self._thread = 0
        self._lease_ms = 0

    def __repr__(self) -> str:
        return f"<crash {self.when} write {self.number}>"

    def __enter__(self) -> Crash:
        clock_of(self._workflows, "a crash")
        with app_of(self._workflows) as runtime:
            store = runtime.store
        if self.entered or store.watcher is not None:
            raise SetupError("one process dies once: leave the crash it is in, and make another for the next")
        self._thread = get_ident()
        self._lease_ms = store.lease_ms
        self._store = store
        self.entered = True
        store.watcher = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        self.recover()
        return isinstance(error, SimulatedCrash)

    def recover(self) -> None:
        """Be another process, after the leases have lapsed. Done when the block is left; a second call does nothing."""
        store, self._store = self._store, None
        if store is None:
            return
        store.watcher = None
        if self.happened:
            with app_of(self._workflows) as runtime:
                runtime.sessions.remove()
                runtime.forget()
            clock_of(self._workflows, "a crash").advance(self._lease_ms / 1000)

    # The store's side ------------------------------------------------------------------------

    def entering(self) -> None:
        if not self.happened:
            return
        if get_ident() != self._thread:
            raise AfterDeath("the process of this thread is dead")
        raise SimulatedCrash(f"dead since the crash {self.when} write {self.number}")

    def committing(self) -> None:
        self.entering()
        if get_ident() == self._thread:
            self._writes += 1
            self._die("before")

    def committed(self) -> None:
        if get_ident() == self._thread:
            self._die("after")

    def _die(self, when: When) -> None:
        if self._writes == self.number and self.when == when:
            self.happened = True
            logger.warning("simulated crash %s write %d", self.when, self.number)
            raise SimulatedCrash(f"crash {self.when} write {self.number}")


def crash_at(workflows: Workflows, n: int, *, when: When = "before") -> Crash:
    """Let the process die at the engine's n-th write, counted from 1: `with crash_at(workflows, 3): …`."""
    return Crash(workflows, n, when)


def every_crash(workflows: Workflows) -> Iterator[Crash]:
    """A crash for every write of a scenario, before and after it, until the scenario is through without one.

        for crash in every_crash(workflows):
            run = renewal.spawn(account_id=3)
            with crash:
                run_until_idle(workflows)
            run_until_idle(workflows)
            assert run.result() == "charged"

    Each round begins anew: with a run of its own, and with nothing left over from the round before that this one
    would go on with. Raises `AssertionError` where nothing was written at all, or where there is no end to it.
    """
    sides: tuple[When, When] = ("before", "after")
    for number in count(1):
        for when in sides:
            crash = Crash(workflows, number, when)
            yield crash
            if not crash.entered:
                raise SetupError("the body of `for crash in every_crash(…)` needs a block `with crash:` to crash in")
            if not crash.happened and number == 1:
                raise AssertionError("the scenario made no write in which to crash")
            if not crash.happened:
                return
        if number == MOST_WRITES:
            raise AssertionError(
                f"the scenario makes more than {MOST_WRITES} writes: does each round leave runs to the next?"
            )
