"""Execution without a worker: on the calling thread, for `tick` and for `WORKFLOWS_EXECUTION="inline"`."""

from __future__ import annotations

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
    claimed = runtime.store.claim(scope, worker, 1, alone=True)
    if not claimed:
        return 0
    with LeaseKeeper(runtime.store) as keeper:
        while claimed:
            _execute(runtime, engine, keeper, claimed[0], worker)
            executions += 1
            claimed = runtime.store.claim(scope, worker, 1, alone=True)
    return executions


def _execute(runtime: Runtime, engine: Engine, keeper: LeaseKeeper, run: ClaimedRun, worker: str) -> None:
    stored = [] if run.fresh else runtime.store.histories([run.id])[run.id]
    execution = engine.begin(run, stored)
    keeper.add(execution)
    try:
        engine.execute(execution, worker)
    finally:
        keeper.remove(execution)
