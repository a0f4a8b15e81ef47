"""Execution without a worker: on the calling thread, for `tick` and for `WORKFLOWS_EXECUTION="inline"`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from .engine import Engine
from .leases import LeaseKeeper
from .names import new_id
from .store import ClaimedRun
from .store import Scope

if TYPE_CHECKING:
    from .runtime import Runtime


def execute_due(runtime: Runtime) -> int:
    """Execute due runs one by one until none is left; answer how many executions there were.

    What they make due meanwhile counts too. Their leases are renewed as in a worker.
    """
    scope = Scope.of(runtime.registry.ranges())
    engine = Engine(runtime)
    worker = new_id()
    executions = 0
    with ExitStack() as stack:
        keeper = None
        while (run := _next(runtime, scope, worker)) is not None:
            keeper = keeper or stack.enter_context(LeaseKeeper(runtime.store))
            _execute(runtime, engine, keeper, run, worker)
            executions += 1
    runtime.tally.flush()
    return executions


def _next(runtime: Runtime, scope: Scope, worker: str) -> ClaimedRun | None:
    """The next due run, once events are matched that make one due."""
    while True:
        claimed = runtime.store.claim(scope, worker, 1, alone=True)
        if claimed:
            runtime.tally.claimed(claimed)
            return claimed[0]
        if not runtime.store.events_wait:
            return None
        runtime.store.events_wait = False
        if not runtime.events.match_all():
            # Somebody else is at it.
            return None


def _execute(runtime: Runtime, engine: Engine, keeper: LeaseKeeper, run: ClaimedRun, worker: str) -> None:
    stored = [] if run.fresh else runtime.store.histories([run.id])[run.id]
    execution = engine.begin(run, stored)
    keeper.add(execution)
    try:
        engine.execute(execution, worker)
    finally:
        keeper.remove(execution)
