"""Bodies made by chance, with faults made by chance, against what each of their calls must come to (R14-R24)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from flask import Flask

from flask_workflows import Retry
from flask_workflows import RunQuery
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests import apps
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context")

#: What can stand in a body, and what it must answer; `{i}` is its place there.
CALLS = {
    "plain": "plain {i}",
    "write": "written {i}",
    "declined": "declined {i}",
    "dead": "dead after 3",
    "sleep": "slept",
    "swallowed sleep": "slept",
    "now": "True",
    "start": "True",
}


class Declined(Exception):
    pass


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url, db=make_orders_db())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_body_comes_to_the_same_and_does_each_thing_once_whatever_fails_on_the_way(
    app: Flask, workflows: Workflows, clock: Clock, seed: int
) -> None:
    random = Random(seed)
    db = apps.database_of(app)
    #: Errors still to come, by run and place: of steps, and of the bodies before a call.
    unsteady: Counter[tuple[str, int]] = Counter()
    faults: Counter[tuple[str, int]] = Counter()
    effects: Counter[tuple[str, int]] = Counter()

    @workflows.step(retry=Retry(attempts=3, backoff=Retry.constant(5)), raises=Declined)
    def act(run_id: str, place: int, kind: str) -> str:
        if unsteady[run_id, place]:
            unsteady[run_id, place] -= 1
            raise OSError("down for a while")
        if kind == "dead":
            raise OSError("down for good")
        effects[run_id, place] += 1
        if kind == "declined":
            raise Declined(place)
        if kind == "write":
            db.session.add(Order(note=f"{run_id} {place}"))
            return f"written {place}"
        return f"plain {place}"

    @workflows.workflow
    def child(number: int) -> int:
        return number

    @workflows.workflow
    def scripted(ctx: WorkflowContext, script: list[str]) -> list[str]:
        answers = []
        for place, call in enumerate(script):
            if faults[ctx.run_id, place]:
                faults[ctx.run_id, place] -= 1
                raise ValueError("a fault of the body")
            answers.append(make(ctx, place, call))
        return answers

    def make(ctx: WorkflowContext, place: int, call: str) -> str:
        if call == "now":
            return str(ctx.now() >= ctx.started_at)
        if call == "start":
            return str(child.start(place).created)
        try:
            if call == "sleep":
                ctx.sleep(60)
            elif call == "swallowed sleep":
                try:
                    ctx.sleep(5)
                except BaseException:
                    return "swallowed"
            else:
                return act(ctx.run_id, place, call)
        except Declined as error:
            return f"declined {error.args[0]}"
        except StepFailed as error:
            return f"dead after {error.attempts}"
        return "slept"

    scripts = [random.choices([*CALLS], k=random.randint(1, 12)) for _ in range(20)]
    handles = [scripted.spawn(script) for script in scripts]
    for handle, script in zip(handles, scripts, strict=True):
        for place in range(len(script)):
            unsteady[handle.id, place] = random.choice([0, 0, 1, 2])
            faults[handle.id, place] = random.choice([0, 0, 0, 1])
    run_out(workflows, clock)

    once: Counter[tuple[str, int]] = Counter()
    for handle, script in zip(handles, scripts, strict=True):
        assert handle.output() == [CALLS[call].format(i=place) for place, call in enumerate(script)]
        once.update((handle.id, place) for place, call in enumerate(script) if call in ("plain", "write", "declined"))
    assert effects == once
    assert len(committed_notes()) == sum(script.count("write") for script in scripts)
    started = sum(script.count("start") for script in scripts)
    assert sum(run.workflow == "child" for run in workflows.runs(RunQuery(limit=500))) == started
