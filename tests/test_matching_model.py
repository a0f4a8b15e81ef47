"""Which events end which waits, on both databases, beside a plain model of what is promised (R26)."""

from __future__ import annotations

from typing import Any

from flask import Flask
from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st

from flask_workflows import Event
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests import apps
from tests.running import Clock

#: Few names and few values, so that waits and events often meet, and values that are nearly equal.
NAMES = ("a", "b", "0", "é")
SCALARS = (None, True, False, 0, 1, 1.0, -0.0, 1.5, 2**53, 2.0**53, 2**53 + 1, "", "1", "true", "null", "%", "'")
ROUNDS = 12

scalars = st.sampled_from(SCALARS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
payloads = st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=4) | values
spaces = st.sampled_from((None, "acme", "globex"))
waits = st.tuples(st.none() | st.dictionaries(paths, scalars | values, max_size=2), spaces)


def waits_beside(payload: Any) -> st.SearchStrategy[tuple[dict[str, Any], str | None]]:
    """Waits for what the payload holds, perhaps with something beside it."""
    found = dict(leaves_of(payload))
    if not found:
        return st.tuples(st.just({}), spaces)
    chosen = st.lists(st.sampled_from(sorted(found)), min_size=1, max_size=2)
    return st.tuples(chosen.map(lambda names: {name: found[name] for name in names}), spaces)


def leaves_of(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """What a payload holds, at every dotted path into it."""
    inside: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = [(str(number), item) for number, item in enumerate(value)]
    found = [(path, value)] if path else []
    for name, item in inside:
        found += leaves_of(item, f"{path}.{name}" if path else name)
    return found


# The model ---------------------------------------------------------------------------------

MISSING = object()


def at(payload: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(payload, dict):
            payload = payload.get(name, MISSING)
        elif isinstance(payload, list) and name.isdigit() and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            return MISSING
    return payload


def equal(one: Any, other: Any) -> bool:
    """As JSON: numbers by value, and no boolean is a number."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(equal(one[name], other[name]) for name in one)
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(other, numbers):
        return isinstance(one, bool) == isinstance(other, bool) and one == other
    return type(one) is type(other) and bool(one == other)


def wakes(payload: Any, workspace: str | None, match: dict[str, Any] | None, of: str | None) -> bool:
    """An event without a workspace is for all of them."""
    reaches = workspace is None or workspace == of
    return reaches and all(equal(at(payload, path), wanted) for path, wanted in (match or {}).items())


# Both databases ----------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Any, str | None, list[tuple[dict[str, Any] | None, str | None]]]:
    payload = draw(payloads)
    waiting = draw(st.lists(waits | waits_beside(payload), min_size=3, max_size=8))
    return payload, draw(spaces), waiting


def declare() -> Workflows:
    workflows = Workflows()
    workflows.event("paid")

    @workflows.workflow
    def awaiting(ctx: WorkflowContext, match: dict[str, Any] | None, late: bool) -> Any:
        if late:
            ctx.sleep(60)
        event = ctx.wait_for("paid", match=match, since=ctx.started_at if late else None)
        assert isinstance(event, Event)
        return event.payload

    return workflows


def test_events_end_the_waits_that_the_model_says(database_url: str, make_app: apps.MakeApp) -> None:
    """Those that were stored before the event, and those stored after it that look back; as foretold each time."""
    workflows = declare()
    workflows.clock = clock = Clock()
    app = make_app(database_url, workflows=workflows)
    met: list[bool] = []

    @settings(max_examples=ROUNDS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(scenes())
    def check(scene: tuple[Any, str | None, list[tuple[dict[str, Any] | None, str | None]]]) -> None:
        met.extend(run_scene(app, workflows, clock, *scene))

    with app.app_context():
        check()

    assert met.count(True) > ROUNDS
    assert met.count(False) > ROUNDS


def run_scene(
    app: Flask,
    workflows: Workflows,
    clock: Clock,
    payload: Any,
    workspace: str | None,
    waiting: list[tuple[dict[str, Any] | None, str | None]],
) -> list[bool]:
    """Whether each wait was ended, which must be as the model says; afterwards nothing waits."""
    awaiting = workflows.registry.latest("awaiting")
    early, late = ([awaiting.using(workspace=of).spawn(match, late) for match, of in waiting] for late in (False, True))
    workflows.tick()
    expected = [wakes(payload, workspace, match, of) for match, of in waiting]

    told = service.would_wake(apps.runtime_of(app), "paid", payload, workspace=workspace)
    assert set(told.run_ids) == {run.id for run, ends in zip(early, expected, strict=True) if ends}
    workflows.deliver("paid", payload, workspace=workspace)
    workflows.tick()
    assert {run.status() for run in late} == {RunStatus.SLEEPING}
    clock.move(seconds=60)
    workflows.tick()

    for runs in (early, late):
        for run, ends, wait in zip(runs, expected, waiting, strict=True):
            assert (run.status() is RunStatus.COMPLETED) is ends, (payload, workspace, wait)
            if ends:
                assert equal(run.result(timeout=1), payload)
            else:
                run.cancel()
    # The next scene's runs start after this one's event.
    clock.move(seconds=1)
    return expected
