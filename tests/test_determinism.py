"""Code that changed between two executions of a run (R15)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from flask_workflows import Handle
from flask_workflows import NonDeterminismError
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests import apps
from tests.running import Clock
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

declared = Workflows()
effects: list[str] = []


@declared.step
def a(number: int) -> str:
    effects.append(f"a{number}")
    return f"a{number}"


@declared.step
def b(number: int, unit: str = "g") -> str:
    effects.append(f"b{number}")
    return f"b{number}"


@declared.step
def c() -> str:
    effects.append("c")
    return "c"


@declared.step
def d() -> str:
    effects.append("d")
    return "d"


def original(ctx: WorkflowContext) -> list[str]:
    made = [a(1), b(2), a(3)]
    ctx.sleep(60)
    return [*made, d()]


#: What stands in for a deployment: the body as it is now.
code: list[Callable[[WorkflowContext], list[str]]] = []


def changing(ctx: WorkflowContext) -> list[str]:
    return code[-1](ctx)


strictly = declared.workflow(name="strictly")(changing)
loosely = declared.workflow(name="loosely", strict=False)(changing)


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    code[:] = [original]

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def line_of(marker: str) -> str:
    """`file:line` of the line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]

    return f"{__file__}:{found}"


def asleep(workflow: Any, clock: Clock) -> Handle[list[str]]:
    """A run that sleeps behind its first three steps, and will be due at the next tick."""
    handle: Handle[list[str]] = workflow.spawn()
    declared.tick()
    assert handle.status() is RunStatus.SLEEPING
    effects.clear()
    clock.move(seconds=60)

    return handle


# What changed ------------------------------------------------------------------------------


def inserted(ctx: WorkflowContext) -> list[str]:
    made = [a(1)]
    made.append(c())  # inserted
    made += [b(2), a(3)]
    ctx.sleep(60)
    return [*made, d()]


def deleted(ctx: WorkflowContext) -> list[str]:
    made = [a(1)]
    made.append(a(3))  # deleted
    ctx.sleep(60)
    return [*made, d()]


def swapped(ctx: WorkflowContext) -> list[str]:
    made = [b(2)]  # swapped
    made += [a(1), a(3)]
    ctx.sleep(60)
    return [*made, d()]


def renamed(ctx: WorkflowContext) -> list[str]:
    made = [a(1)]
    made.append(ctx.step("b-renamed", b.function, 2))  # renamed
    made.append(a(3))
    ctx.sleep(60)
    return [*made, d()]


def changed(ctx: WorkflowContext) -> list[str]:
    made = [a(1)]
    made.append(b(5))  # changed
    made.append(a(3))
    ctx.sleep(60)
    return [*made, d()]


def retyped(ctx: WorkflowContext) -> list[str]:
    made = [a(1)]
    made.append(b(2, unit="kg"))  # retyped
    made.append(a(3))
    ctx.sleep(60)
    return [*made, d()]


def slept_longer(ctx: WorkflowContext) -> list[str]:
    made = [a(1), b(2), a(3)]
    ctx.sleep(61)  # slept longer
    return [*made, d()]


def slept_not_at_all(ctx: WorkflowContext) -> list[str]:
    made = [a(1), b(2), a(3)]
    return [*made, d()]  # slept not at all


def returned_early(ctx: WorkflowContext) -> list[str]:
    return [a(1), b(2)]


def caught(ctx: WorkflowContext) -> list[str]:
    try:
        c()  # caught
    except Exception:
        return ["caught"]
    return []


def caught_last(ctx: WorkflowContext) -> list[str]:
    made = [a(1), b(2), a(3)]
    with suppress(Exception):
        made.append(d())  # caught last
    with suppress(Exception):
        made.append(c())
    return made


def caught_and_raised(ctx: WorkflowContext) -> list[str]:
    try:
        return [c()]  # caught and raised
    except Exception as error:
        raise RuntimeError("something of the body's own") from error


def caught_and_went_on(ctx: WorkflowContext) -> list[str]:
    for call in (c, d, c):
        try:
            call()  # caught and went on
        except BaseException:
            continue
    return ["went on"]


CHANGES: list[tuple[Callable[[WorkflowContext], list[str]], str]] = [
    (inserted, "call 2 was 'b' and is now 'c'"),
    (deleted, "call 2 was 'b' and is now 'a#2'"),
    (swapped, "call 1 was 'a' and is now 'b'"),
    (renamed, "call 2 was 'b' and is now 'b-renamed'"),
    (changed, 'call 2, \'b\', had the input {"number":2} and has now {"number":5}'),
    (retyped, 'call 2, \'b\', had the input {"number":2} and has now {"number":2,"unit":"kg"}'),
    (slept_longer, 'call 4, \'$sleep\', had the input {"ms": 60000} and has now {"ms": 61000}'),
    (slept_not_at_all, "call 4 was '$sleep' and is now 'd'"),
    (returned_early, "returned before call 3, which was 'a#2'"),
    (caught, "call 1 was 'a' and is now 'c'"),
    (caught_last, "call 4 was '$sleep' and is now 'd'"),
    (caught_and_raised, "call 1 was 'a' and is now 'c'"),
    (caught_and_went_on, "call 1 was 'a' and is now 'c'"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_b162_changed_code_is_told_which_call_differs_and_where(
    clock: Clock, change: Callable[[WorkflowContext], list[str]], message: str
) -> None:
    handle = asleep(strictly, clock)

    code.append(change)
    declared.tick()

    run = handle.run()
    place = strictly.place if change is returned_early else line_of(change.__name__.replace("_", " "))
    assert effects == []
    assert run.error is not None
    assert run.error.type.endswith(NonDeterminismError.__name__)
    assert message in run.error.message
    assert f"at {place}" in run.error.message
    assert (run.status, run.attempts, run.error.kind) == (RunStatus.SLEEPING, 1, "nondeterminism")


# What becomes of the run -------------------------------------------------------------------


def test_a_divergence_goes_through_the_attempts_of_the_run_and_then_fails_it(clock: Clock) -> None:
    handle = asleep(strictly, clock)

    code.append(inserted)
    executions = run_out(declared, clock)

    run = handle.run()
    assert executions == 3
    assert effects == []
    assert (run.status, run.attempts) == (RunStatus.FAILED, 3)
    assert [step.key for step in declared.details(handle.id).steps] == ["a", "b", "a#2", "$sleep"]


def test_code_mended_before_the_attempts_are_used_up_goes_on(clock: Clock) -> None:
    handle = asleep(strictly, clock)

    code.append(swapped)
    declared.tick()
    code.append(original)
    run_out(declared, clock)

    assert handle.output() == ["a1", "b2", "a3", "d"]
    assert effects == ["d"]


def test_after_the_code_is_mended_a_retry_resumes_from_the_stored_steps(clock: Clock) -> None:
    handle = asleep(strictly, clock)
    code.append(returned_early)
    run_out(declared, clock)

    code.append(original)
    declared.retry(handle.id)
    run_out(declared, clock)

    assert handle.output() == ["a1", "b2", "a3", "d"]
    assert effects == ["d"]


def test_b51_code_changed_behind_what_is_recorded_is_no_divergence(clock: Clock) -> None:
    def changed_later(ctx: WorkflowContext) -> list[str]:
        made = [a(number=1), b(2), a(3)]
        ctx.sleep(timedelta(minutes=1))
        return [*made, c(), b(9), a(4)]

    handle = asleep(strictly, clock)

    code.append(changed_later)
    declared.tick()

    assert handle.output() == ["a1", "b2", "a3", "c", "b9", "a4"]
    assert effects == ["c", "b9", "a4"]


def test_the_order_of_a_set_or_of_names_in_an_input_is_no_divergence(workflows: Workflows, clock: Clock) -> None:
    executed: list[int] = []

    @workflows.step(name="count-them")
    def count(names: set[str], prices: dict[str, int]) -> int:
        return len(names) + len(prices)

    @workflows.workflow(name="counting")
    def counting(ctx: WorkflowContext) -> int:
        executed.append(1)
        prices = {"x": 1, "y": 2} if len(executed) == 1 else {"y": 2, "x": 1}
        # Many enough that two sets of them are not iterated in one order by chance.
        names = [f"name {number}" for number in range(50)]
        counted = count(set(names if len(executed) == 1 else reversed(names)), prices=prices)
        ctx.sleep(60)
        return counted

    handle = counting.spawn()
    run_out(workflows, clock)

    assert handle.output() == 52


def test_a_decision_by_chance_is_found_out(workflows: Workflows, clock: Clock) -> None:
    chances = iter([True, False, True])

    @workflows.workflow(name="by-chance")
    def by_chance(ctx: WorkflowContext) -> list[str]:
        made = [a(1)] if next(chances) else []
        ctx.sleep(60)
        return made

    handle = by_chance.spawn()
    workflows.tick()
    clock.move(seconds=60)
    workflows.tick()
    error = handle.run().error
    run_out(workflows, clock)

    assert error is not None
    assert "call 1 was 'a' and is now '$sleep'" in error.message
    assert handle.output() == ["a1"]


# By key alone ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "output", "executed"),
    [
        (inserted, ["a1", "c", "b2", "a3", "d"], ["c", "d"]),
        (deleted, ["a1", "a3", "d"], ["d"]),
        (swapped, ["b2", "a1", "a3", "d"], ["d"]),
        (renamed, ["a1", "b2", "a3", "d"], ["b2", "d"]),
        (changed, ["a1", "b2", "a3", "d"], ["d"]),
        (slept_longer, ["a1", "b2", "a3", "d"], ["d"]),
        (slept_not_at_all, ["a1", "b2", "a3", "d"], ["d"]),
        (returned_early, ["a1", "b2"], []),
    ],
)
def test_without_strict_calls_are_found_by_key_in_any_order(
    clock: Clock, change: Callable[[WorkflowContext], list[str]], output: list[str], executed: list[str]
) -> None:
    handle = asleep(loosely, clock)

    code.append(change)
    declared.tick()

    assert handle.output() == output
    assert effects == executed
    positions = [step.position for step in declared.details(handle.id).steps]
    assert positions == sorted(set(positions))
