"""What stands beside a run is found through indexes, counted up to a bound, and kept within workspaces."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flask_workflows import models
from flask_workflows.runs import Count
from flask_workflows.store import reading as read
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.rows import event_row
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        yield rows


def test_events_that_came_since_are_counted_up_to_a_bound(rows: Rows) -> None:
    now = {"ago": 0.0}
    rows.insert(models.events, [event_row("a", **now), event_row("a", **now), event_row("b", **now)])
    rows.insert(models.events, [event_row("a", **now, workspace="ours"), event_row("a", **now, workspace="theirs")])
    rows.insert(models.events, [event_row("a", **now, matched_at=None), event_row("a", ago=1), event_row("c", **now)])
    rows.insert(models.events, [event_row("a", **now, run_id="its-own")])

    with read.reading(rows.engine) as connection:
        assert read.count_events_since(connection, ["a"], "ours", NOW) == (Count(3), Count(1))
        assert read.count_events_since(connection, ["a", "b"], "", NOW) == (Count(3), Count(1))
    rows.insert(models.events, [event_row("many", **now) for _ in range(1_200)])
    with read.reading(rows.engine) as connection:
        assert read.count_events_since(connection, ["many"], "", NOW) == (Count(1_000, capped=True), Count(0))


def test_what_a_wait_is_for_is_read_from_its_call(rows: Rows) -> None:
    """B76"""
    inputs = [
        '{"message": "hello"}',
        '{"events": [{"name": "a", "match": {"x": 1}, "since": 1000}, {"name": "b"}, {"name": 7}, 8]}',
        "{",
        "[]",
        '{"events": {}}',
        None,
    ]
    run_id = rows.run("waiting")
    for number, text in enumerate(inputs, start=1):
        rows.step(run_id, f"$wait:{number}", number, "waiting", kind="wait", input=text)

    with read.reading(rows.engine) as connection:
        steps, _ = read.read_steps(connection, run_id)
        found = [read.read_awaited(connection, step) for step in steps]

    assert [[event.name for event in events] for events in found] == [["hello"], ["a", "b"], [], [], [], []]
    assert found[1][0].match == (("x", 1),)
    assert found[1][0].since is not None


def test_newest_of_many_messages_are_read_with_who_took_them(rows: Rows) -> None:
    run_id = rows.run("waiting")
    sent = [rows.event("hello", run_id=run_id, payload=json.dumps("x" * 100)) for _ in range(120)]
    rows.insert(
        models.steps,
        [
            step_row(run_id, f"$receive:hello#{number}", number, kind="receive", event_seq=seq)
            for number, seq in enumerate(sent[:80], start=1)
        ],
    )

    with read.reading(rows.engine) as connection:
        found = read.read_received(connection, run_id)
        with_payloads = read.read_received(connection, run_id, payload_limit=10)

    assert [received.id for received in found] == sent[:-51:-1]
    assert [received.step for received in found] == [None] * 40 + [f"$receive:hello#{n}" for n in range(80, 70, -1)]
    assert {received.payload for received in found} == {None}
    payload = with_payloads[0].payload
    assert payload is not None
    assert (payload.text, payload.length) == ('"xxxxxxxxx', 102)


def test_same_cause_is_counted_within_workspaces_up_to_a_bound(rows: Rows) -> None:
    made = [run_row("failed", cause="c", workspace="ours" if number % 2 else "theirs") for number in range(10)]
    rows.insert(models.runs, [*made, run_row("failed", cause="d")])

    with read.reading(rows.engine) as connection:
        run = read.read_run(connection, made[1]["id"])
        other = read.read_run(connection, rows.run("failed"))
        assert run is not None
        assert other is not None
        assert read.count_same_cause(connection, run, None) == Count(9)
        assert read.count_same_cause(connection, run, ("ours",)) == Count(4)
        assert read.count_same_cause(connection, run, ()) == Count(0)
        assert read.count_same_cause(connection, other, None) == Count(0)


def test_everything_is_found_through_indexes(rows: Rows) -> None:
    rows.insert(models.events, [event_row("a", ago=n) for n in range(3_000)])
    rows.insert(models.events, [event_row("a", ago=n, run_id=f"run-{n}") for n in range(1_000)])
    rows.insert(models.runs, [run_row("failed", cause=f"c{n % 50}") for n in range(2_000)])
    rows.insert(models.steps, [step_row(f"run-{n // 10}", f"s#{n}", n) for n in range(3_000)])
    state = [{"run_id": f"run-{n}", "key": "k", "value": "1", "updated_at": NOW_MS} for n in range(2_000)]
    rows.insert(models.state, state)
    run_id = rows.run("failed", cause="c1")
    rows.step(run_id, "$wait:a", 1, kind="wait", input='{"events": [{"name": "a"}]}', event_seq=7)
    rows.step(run_id, "$start:b", 2, kind="start", output='{"id": "x"}')
    analyze(rows)
    with read.reading(rows.engine) as connection:
        run = read.read_run(connection, run_id)
        steps, _ = read.read_steps(connection, run_id)
    assert run is not None

    found = plans(
        rows,
        lambda connection: [
            read.read_awaited(connection, steps[0]),
            read.count_events_since(connection, ["a"], "", NOW),
            read.count_messages(connection, run_id, ["a"]),
            read.count_same_cause(connection, run, None),
            read.read_received(connection, run_id, payload_limit=10),
            read.read_published(connection, run_id, value_limit=10),
            read.read_started(connection, run_id, ["$start:b"]),
            read.read_step(connection, run_id, 1, payload_limit=10),
            read.read_calls(connection, run_id, limit=10),
            read.read_value(connection, run_id, "output", step=2, limit=10),
            read.read_steps(connection, run_id, name="a", status="completed"),
            read.find_worker(connection, "w"),
        ],
    )

    assert_served([plan for plan in found if "workflow_workers" not in plan])
