"""Failures of one cause have one hash, others another."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from flask_workflows import Retry
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.cause import cause_of
from flask_workflows.cause import innermost
from flask_workflows.cause import normalised
from flask_workflows.runs import Count
from flask_workflows.store import reading as read
from tests import apps
from tests.rows import rows_of
from tests.running import Clock
from tests.running import run_out

# The pure function ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 8 is gone", "order 1234567 is gone"),
        ("'vat_id'", "'name'"),
        ('no "a \\" b" here', 'no "c" here'),
        ("no `x` here", "no `y z` here"),
        ("run 0192f3c4-7b1e-7d2a-8c3b-0123456789ab", "run FFFFFFFF-7b1e-7d2a-8c3b-0123456789ab"),
        ("<Order object at 0x7f3a2b1c>", "<Order object at 0x7f00deadbeef>"),
        ("commit 9fceb02d0ae598e9", "commit aaaaaaaa1"),
        ("no customer cus_N3xK9dQ2", "no customer cus_9dQPx7Z"),
        ("ana@example.org bounced", "b.c+d@mail.example.com bounced"),
        ("took 1.5 s of 30", "took 29.75 s of 30"),
        ("line one\n  line two", "line one line two"),
        ("can't read 'a'", "can't read 'b'"),
        ("x" * 2_000 + "1", "x" * 2_000 + "2"),
    ],
)
def test_messages_that_differ_in_what_they_quote_and_count_are_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert cause_of("w", {"message": one}) == cause_of("w", {"message": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 8 is gone", "order 8 is here"),
        ("connection refused", "connection reset"),
        ("can't read, isn't there", "can't write, isn't there"),
        ("unexpected character", "unexpected whitespace"),
    ],
)
def test_messages_that_say_something_else_are_not_one(one: str, other: str) -> None:
    assert cause_of("w", {"message": one}) != cause_of("w", {"message": other})


@pytest.mark.parametrize("text", ["'" * 2_000, "'a" * 1_000, "\\'" * 700, "a@" * 1_000, "f" * 2_000, "\ud800\0", ""])
def test_no_message_is_too_odd(text: str) -> None:
    assert len(cause_of("w", {"message": text})) == 32


def test_what_is_compared_is_told_apart_wherever_it_stands() -> None:
    described = {"step": "charge", "type": "OSError", "message": "down", "traceback": None}
    causes = {
        cause_of("renewal", described),
        cause_of("onboarding", described),
        cause_of("renewal", {**described, "step": "ship"}),
        cause_of("renewal", {**described, "type": "down", "message": "OSError"}),
        cause_of("renewal", {**described, "message": "charge"}),
        cause_of("renewal", {}),
    }

    assert len(causes) == 6
    assert cause_of("renewal", {**described, "step": "charge#17"}) == cause_of("renewal", described)


TRACEBACK = """Traceback (most recent call last):
  File "/srv/{release}/flask_workflows/engine.py", line 1, in _call
    value = workflow.function()
  File "/srv/{release}/shop/billing.py", line {line}, in {function}
    requests.get(url)
  File "/usr/lib/python3/site-packages/requests/api.py", line {line}, in get
    raise OSError("down")
OSError: down
"""


def test_the_innermost_function_of_the_app_counts_not_its_line_nor_the_release() -> None:
    text = TRACEBACK.format(release="a", line=17, function="charge")

    assert innermost(text) == "shop/billing.py:charge"
    assert innermost(TRACEBACK.format(release="b", line=99, function="charge")) == innermost(text)
    assert innermost(TRACEBACK.format(release="a", line=17, function="refund")) != innermost(text)
    assert innermost("") == ""


# In runs -------------------------------------------------------------------------------------

declared = Workflows()
trouble: dict[str, Any] = {}


class Declined(Exception):
    pass


def fail(order: int) -> None:
    if trouble.get("lines"):
        # The same function, failing further down.
        raise trouble["class"](f"order {order} is gone")
    raise trouble["class"](f"order {order} is gone")


@declared.step(retry=Retry(attempts=1), raises=Declined)
def charge(order: int) -> None:
    fail(order)


@declared.workflow
def renewal(ctx: WorkflowContext, order: int, how: str = "step") -> None:
    if how == "body":
        fail(order)
    try:
        charge(order)
    except (StepFailed, Declined):
        if how == "late":
            # The run is replayed to here, where there is the record of the failure alone.
            ctx.sleep(60)
        raise


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Any:
    trouble.clear()
    trouble["class"] = OSError

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def failed(clock: Clock, order: int, how: str = "step", workspace: str | None = None) -> str:
    handle = renewal.using(workspace=workspace).spawn(order, how)
    run_out(declared, clock)
    cause = handle.run().cause
    assert cause is not None
    return cause


@pytest.mark.parametrize("business", [False, True], ids=["failure", "business error"])
def test_runs_that_fail_alike_share_a_cause_also_those_that_fail_on_a_replay(
    app: Flask, app_context: None, clock: Clock, business: bool
) -> None:
    if business:
        trouble["class"] = Declined
    one, other, late = failed(clock, 8), failed(clock, 1234), failed(clock, 9, "late")
    trouble["lines"] = True
    moved = failed(clock, 8)
    trouble["class"] = ConnectionError

    assert one == other == late == moved
    assert len({one, failed(clock, 8), failed(clock, 8, "body")}) == 3


def test_a_run_has_a_cause_while_it_is_failed(app: Flask, app_context: None, clock: Clock) -> None:
    handle = renewal.spawn(8, "body")
    declared.tick()
    trying = handle.run()
    run_out(declared, clock)
    failed = handle.run()
    retried = declared.retry(handle.id)

    assert (trying.cause, retried.cause) == (None, None)
    assert trying.error is not None
    assert failed.cause is not None
    assert [run.cause for run in declared.runs()] == [None]


def test_a_run_whose_workers_are_lost_has_a_cause_too(app: Flask, app_context: None, clock: Clock) -> None:
    rows_of(app).run("running", workflow="renewal", attempts=3, losses=3, worker="w", due_at=0, input='{"order": 8}')
    rows_of(app).run("running", workflow="renewal", attempts=3, losses=4, worker="w", due_at=0, input='{"order": 9}')

    declared.tick()

    one, other = declared.runs()
    assert one.error is not None
    assert (one.error.type, one.cause) == ("WorkerLost", other.cause)
    assert one.cause is not None


def test_runs_of_a_cause_are_counted_within_a_scope(
    app: Flask, app_context: None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = failed(clock, 1)
    for workspace in ("acme", "acme", "other"):
        failed(clock, 2, workspace=workspace)

    def counted(workspaces: tuple[str, ...] | None, cap: int = 1_001) -> Count:
        with read.reading(apps.runtime_of(app).engine) as connection:
            return read.count_cause(connection, cause, workspaces, cap)

    assert counted(None) == Count(4)
    assert counted(None, cap=4) == Count(3, capped=True)
    assert counted(("acme",)) == Count(2)
    assert counted(("acme", "")) == Count(3)
    assert counted(()) == Count(0)
    assert counted(("acme",), cap=2) == Count(1, capped=True)
    monkeypatch.setattr("flask_workflows.store.reading.causes._LOOKED", 2)
    assert counted(("acme",)) == Count(1, capped=True)
