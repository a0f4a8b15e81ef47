from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_workflows import models
from flask_workflows.errors import InvalidCursor
from flask_workflows.errors import ReadTimeout
from flask_workflows.runs import Count
from flask_workflows.runs import NOT_LOADED
from flask_workflows.runs import Page
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.runs import Undecodable
from flask_workflows.store import reading as read
from tests.plans import plans
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables

HOSTILE = ["%", "_", "a%b", "'", '"', "';--", "%s", "%(x)s", "{}", ":name", "\\", "ключ", "a b"]


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        yield rows


def ids(page: Page) -> list[str]:
    return [run.id for run in page.runs]


def page_of(rows: Rows, query: RunQuery | None = None, **options: Any) -> Page:
    with read.reading(rows.engine) as connection:
        return read.list_runs(connection, query or RunQuery(), **options)


# Connections -------------------------------------------------------------------------------


def test_statement_over_the_limit_is_broken_off(rows: Rows) -> None:
    endless = sa.text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")

    began = time.monotonic()
    with pytest.raises(ReadTimeout, match=r"more than 0\.2 s"), read.reading(rows.engine, seconds=0.2) as connection:
        connection.execute(endless)

    assert time.monotonic() - began < 30
    with read.reading(rows.engine) as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1


def test_limit_ends_with_the_reading(rows: Rows) -> None:
    slow = sa.text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n"
    )
    with read.reading(rows.engine, seconds=0.001):
        pass

    with read.reading(rows.engine) as connection:
        assert connection.scalar(slow) == 300_000


def test_other_errors_come_through(rows: Rows) -> None:
    with pytest.raises(sa.exc.DBAPIError), read.reading(rows.engine, seconds=1) as connection:
        connection.execute(sa.text("SELECT nothing FROM nowhere"))


def test_database_tells_the_time(rows: Rows) -> None:
    with read.reading(rows.engine) as connection:
        now = read.database_now(connection)

    assert abs(now.timestamp() - time.time()) < 60


# One run -----------------------------------------------------------------------------------


def test_run_is_read_whole(rows: Rows) -> None:
    run_id = rows.run("failed", key="k", workspace="w", error=error_json(traceback="Traceback"), attempts=2)

    with read.reading(rows.engine) as connection:
        run = read.read_run(connection, run_id)

    assert run is not None
    assert (run.id, run.workflow, run.status, run.key, run.workspace) == (run_id, "onboarding", "failed", "k", "w")
    assert run.input == {"user_id": 8}
    assert run.output is None
    assert run.error is not None
    assert run.error.traceback == "Traceback"
    assert run.created_at == NOW - timedelta(seconds=60)
    assert run.took == timedelta(seconds=2)


def test_unknown_run_is_null(rows: Rows) -> None:
    with read.reading(rows.engine) as connection:
        assert read.read_run(connection, "'; DROP TABLE workflow_runs; --") is None
        assert read.read_details(connection, "nope") is None
        assert read.read_heads(connection, "nope", 10) == (None, None)
        assert read.read_steps(connection, "nope") == ((), 0)


def test_payloads_are_left_out_when_told(rows: Rows) -> None:
    run_id = rows.run()

    with read.reading(rows.engine) as connection:
        run = read.read_run(connection, run_id, payloads=False)

    assert run is not None
    assert run.input is NOT_LOADED


def test_heads_say_the_whole_length(rows: Rows) -> None:
    run_id = rows.run(input='"' + "x" * 1000 + '"', output=None)

    with read.reading(rows.engine) as connection:
        head, output = read.read_heads(connection, run_id, 10)

    assert head is not None
    assert (head.text, head.length, head.whole) == ('"xxxxxxxxx', 1002, False)
    assert output is None


def test_broken_rows_break_nothing(rows: Rows) -> None:
    """B76"""
    broken = rows.run("failed", input="{", output="nope", error="{")
    rows.step(broken, "a", 1, input="{", output="}", error="[", earlier="{")
    rows.step(broken, "b", 2, earlier='[1, {"started_at": "x"}, {"error": 7}]')
    rows.run("paused", finished_at=None)
    rows.worker(queues="{", workflows='[["a", 1], ["b", "x", 1], ["ok", 1, 2], 3]')

    with read.reading(rows.engine) as connection:
        details = read.read_details(connection, broken)
        page = read.list_runs(connection, RunQuery())
        workers = read.live_workers(connection, NOW)

    assert details is not None
    assert isinstance(details.run.input, Undecodable)
    assert isinstance(details.run.output, Undecodable)
    assert details.run.error is not None
    assert details.run.error.type == "unreadable"
    assert isinstance(details.steps[0].input, Undecodable)
    assert [len(step.earlier) for step in details.steps] == [0, 2]
    assert {run.status for run in page.runs} == {"failed", "paused"}
    assert workers[0].workflows == (("ok", 1, 2),)


def test_steps_come_in_order_with_their_attempts(rows: Rows) -> None:
    run_id = rows.run("running")
    earlier = [{"started_at": NOW_MS, "finished_at": NOW_MS + 5, "error": {"type": "E", "message": "m"}}]
    rows.step(run_id, "charge", 2, "running", earlier=json.dumps(earlier), attempts=2)
    rows.step(run_id, "load", 1)

    with read.reading(rows.engine) as connection:
        details = read.read_details(connection, run_id)
        steps, total = read.read_steps(connection, run_id)

    assert details is not None
    assert [step.key for step in details.steps] == [step.key for step in steps] == ["load", "charge"]
    assert [step.number for step in steps] == [1, 2]
    assert total == 2
    assert details.steps[0].input is None
    assert steps[0].input is NOT_LOADED
    assert steps[0].took == timedelta(seconds=1)
    assert steps[1].earlier[0].finished_at == NOW + timedelta(milliseconds=5)
    assert steps[1].earlier[0].error is not None
    assert steps[1].earlier[0].error.type == "E"


def test_long_run_shows_both_ends_and_what_matters(rows: Rows) -> None:
    run_id = rows.run("running")
    statuses = {300: "failed", 777: "running"}
    rows.insert(models.steps, [step_row(run_id, f"s#{n}", n, statuses.get(n, "completed")) for n in range(1, 1_001)])

    with read.reading(rows.engine) as connection:
        ends, total = read.read_steps(connection, run_id)
        middle, _ = read.read_steps(connection, run_id, start=201)
        beyond, still = read.read_steps(connection, run_id, start=5_000)

    assert total == still == 1_000
    assert [step.number for step in ends] == [*range(1, 51), 300, 777, *range(951, 1_001)]
    assert [step.number for step in middle] == [*range(201, 401), 777]
    assert [step.number for step in beyond] == [777]


def test_runs_ahead_are_counted_in_the_same_queue(rows: Rows) -> None:
    for ago in (30, 20, 10):
        rows.run("pending", ago=ago, due_at=NOW_MS - ago * 1000)
    rows.run("pending", ago=40, due_at=NOW_MS - 40_000, queue="mail")
    last = rows.run("pending", ago=5, due_at=NOW_MS - 5_000)

    with read.reading(rows.engine) as connection:
        run = read.read_run(connection, last)
        assert run is not None
        assert read.count_ahead(connection, run) == Count(3)
        assert read.count_ahead(connection, run, cap=3) == Count(2, capped=True)


# Lists -------------------------------------------------------------------------------------


def test_newest_run_comes_first_without_payloads(rows: Rows) -> None:
    made = [rows.run(ago=ago, error=error_json("E", "m", traceback="x" * 5_000)) for ago in (30, 10, 20)]

    page = page_of(rows)

    assert ids(page) == [made[1], made[2], made[0]]
    assert (page.older, page.newer, page.searched) == (None, None, None)
    first = page.runs[0]
    assert first.input is first.output is NOT_LOADED
    assert first.error is not None
    assert (first.error.type, first.error.message, first.error.traceback) == ("E", "m", None)


def test_empty_table_gives_an_empty_page(rows: Rows) -> None:
    for status in (None, *RunStatus):
        assert page_of(rows, RunQuery(status=status)) == Page(())
        assert page_of(rows, RunQuery(status=status, queue="q"), scan=100) == Page(())
    with read.reading(rows.engine) as connection:
        assert set(read.count_runs(connection, RunQuery()).values()) == {Count(0)}
        assert read.count_newer(connection, RunQuery(status=RunStatus.COMPLETED), "0") == Count(0)


def test_payloads_come_when_asked_for(rows: Rows) -> None:
    rows.run()

    page = page_of(rows, payloads=True)

    assert (page.runs[0].input, page.runs[0].output) == ({"user_id": 8}, True)


def some_of_all_kinds() -> list[dict[str, Any]]:
    """300 runs, newest first, several of each instant."""
    made = [
        run_row(
            tuple(RunStatus)[n * 5 % 7].value,
            ago=1_000 - n // 3,
            workflow=f"workflow-{n % 4}",
            queue=("default", "mail")[n % 5 == 0],
            workspace=("", "ws-1", "ws-2")[n % 3],
            key=f"key-{n}" if n % 2 else None,
        )
        for n in range(300)
    ]
    return made[::-1]


@pytest.fixture
def many(rows: Rows) -> list[dict[str, Any]]:
    made = some_of_all_kinds()
    rows.insert(models.runs, made)
    return made


Shelf = tuple[Rows, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shelf(shared_url: str) -> Iterator[Shelf]:
    """As `many`, to read only."""
    made = some_of_all_kinds()
    with tables(shared_url) as rows:
        rows.insert(models.runs, made)
        yield rows, made
        models.metadata.drop_all(rows.engine)


FILTERS: list[dict[str, Any]] = [
    {},
    *({"status": status} for status in RunStatus),
    {"workflow": "workflow-2"},
    {"workflow": "workflow-2", "status": RunStatus.COMPLETED},
    {"workflow": "workflow-2", "status": RunStatus.SLEEPING},
    {"queue": "mail"},
    {"queue": "mail", "status": RunStatus.COMPLETED},
    {"queue": "mail", "workflow": "workflow-0"},
    {"workspace": "ws-1"},
    {"workspace": "", "status": RunStatus.FAILED},
    {"workspace": ("ws-1", "ws-2")},
    {"workspace": ("ws-1", "ws-2"), "status": RunStatus.COMPLETED},
    {"workspace": ("ws-2",), "workflow": "workflow-2"},
    {"workspace": ("ws-2",), "workflow": "workflow-2", "status": RunStatus.WAITING},
    {"workspace": ("ws-2", "ws-9"), "queue": "mail"},
    {"workspace": ("", "ws-1")},
    {"workspace": ("",), "status": RunStatus.COMPLETED},
    {"workspace": tuple(f"ws-{n}" for n in range(200))},
    {"workspace": ()},
    {"key": "key-7"},
    {"created_after": NOW - timedelta(seconds=950)},
    {"created_before": NOW - timedelta(seconds=950)},
    {
        "created_after": NOW - timedelta(seconds=980),
        "created_before": NOW - timedelta(seconds=930),
        "workflow": "workflow-1",
    },
    {"workflow": "workflow-9"},
    {"queue": "nope"},
]


def expected(many: list[dict[str, Any]], filters: dict[str, Any]) -> list[str]:
    def matches(row: dict[str, Any]) -> bool:
        for name, value in filters.items():
            match name:
                case "created_after":
                    if row["created_at"] < value.timestamp() * 1000:
                        return False
                case "created_before":
                    if row["created_at"] >= value.timestamp() * 1000:
                        return False
                case _:
                    if row[name] not in (value if isinstance(value, tuple) else (value,)):
                        return False
        return True

    return [row["id"] for row in many if matches(row)]


@pytest.mark.parametrize("scan", [None, 10_000, 40], ids=["unbounded", "bounded", "tight"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_pages_lead_through_all_that_match_and_back(shelf: Shelf, filters: dict[str, Any], scan: int | None) -> None:
    rows, many = shelf
    wanted = expected(many, filters)
    query = RunQuery(**filters, limit=7)

    forward = [page_of(rows, query, scan=scan)]
    while forward[-1].older is not None:
        forward.append(page_of(rows, replace(query, cursor=forward[-1].older), scan=scan))
        assert len(forward) < 400
    backward = [forward[-1]]
    while backward[-1].newer is not None:
        backward.append(page_of(rows, replace(query, cursor=backward[-1].newer), scan=scan))
        assert len(backward) < 400

    assert [run_id for page in forward for run_id in ids(page)] == wanted
    assert forward[0].newer is None
    if scan is None:
        assert all(len(page.runs) == 7 for page in forward[:-1])
    found_back = {run_id for page in backward for run_id in ids(page)}
    assert found_back == set(wanted)
    for page in backward:
        assert ids(page) == sorted(ids(page), reverse=True)


def test_newest_page_reached_from_below_is_a_full_one(shelf: Shelf) -> None:
    rows, many = shelf
    newest = [row["id"] for row in many]
    third = page_of(rows, RunQuery(limit=10, cursor=f"older.{newest[2]}"))

    page = page_of(rows, RunQuery(limit=10, cursor=third.newer))

    assert ids(page) == newest[:10]
    assert page.newer is None


def test_page_says_when_looking_was_cut_short(shelf: Shelf) -> None:
    rows, _ = shelf
    page = page_of(rows, RunQuery(key="key-1"), scan=50)

    assert page.runs == ()
    assert page.searched == 50
    assert page.older is not None


def test_list_can_stand_still_while_runs_are_added(rows: Rows, many: list[dict[str, Any]]) -> None:
    first = ids(page_of(rows, RunQuery(limit=5)))
    added = [rows.run("pending", ago=0), rows.run("failed", ago=0, workflow="workflow-1")]

    page = page_of(rows, RunQuery(limit=5), until=first[0])

    assert ids(page) == first
    assert ids(page_of(rows, RunQuery(limit=5)))[:2] == added[::-1]
    with read.reading(rows.engine) as connection:
        assert read.count_newer(connection, RunQuery(), first[0]) == Count(2)
        assert read.count_newer(connection, RunQuery(status=RunStatus.FAILED), first[0]) == Count(1)
        assert read.count_newer(connection, RunQuery(workflow="workflow-1"), first[0]) == Count(1)
        assert read.count_newer(connection, RunQuery(), many[-1]["id"], cap=10) == Count(9, capped=True)


def test_window_goes_by_the_stored_instant_where_a_clock_was_set(rows: Rows) -> None:
    old = rows.run(id="ffffffff-ffff-7000-8000-000000000001", ago=100)

    query = RunQuery(created_before=NOW)
    assert ids(page_of(rows, query)) == []
    assert ids(page_of(rows, query, real_time=False)) == [old]


@pytest.mark.parametrize("name", ["workflow", "queue", "workspace", "key"])
def test_filters_match_literally(rows: Rows, name: str) -> None:
    """B79"""
    wanted = {text: rows.run("failed", **{name: text}) for text in HOSTILE}

    for text, run_id in wanted.items():
        filters: dict[str, Any] = {name: text}
        query = RunQuery(**filters)
        assert ids(page_of(rows, query)) == [run_id]
        with read.reading(rows.engine) as connection:
            assert read.count_runs(connection, query)[RunStatus.FAILED] == Count(1)


@pytest.mark.parametrize("text", ["older.%", "older.' OR 1=1", "newer", "nonsense"])
def test_invented_cursor_is_refused(shelf: Shelf, text: str) -> None:
    rows, _ = shelf

    with pytest.raises(InvalidCursor):
        page_of(rows, RunQuery(cursor=text))


def test_names_are_those_that_have_runs(shelf: Shelf) -> None:
    rows, _ = shelf
    with read.reading(rows.engine) as connection:
        assert read.workflow_names(connection) == [f"workflow-{n}" for n in range(4)]
        assert read.workflow_names(connection, limit=2) == ["workflow-0", "workflow-1"]


def test_b110_names_are_those_of_the_workspaces(rows: Rows) -> None:
    for workspace, workflow in (("ws-1", "ours"), ("ws-2", "too"), ("ws-3", "theirs"), ("", "nobodys")):
        rows.run(workspace=workspace, workflow=workflow)

    with read.reading(rows.engine) as connection:
        assert read.workflow_names(connection, ("ws-1", "ws-2")) == ["ours", "too"]
        assert read.workflow_names(connection, ("", "ws-1")) == ["nobodys", "ours"]
        assert read.workflow_names(connection, ("ws-4",)) == []
        assert read.workflow_names(connection, ()) == []
        assert read.workspace_names(connection) == ["ws-1", "ws-2", "ws-3"]
        assert read.workspace_names(connection, limit=2) == ["ws-1", "ws-2"]
        assert read.workspace_names(connection, ("", "ws-1", "ws-3", "ws-4")) == ["ws-1", "ws-3"]
        assert read.workspace_names(connection, ("",)) == read.workspace_names(connection, ()) == []


def test_more_workflows_than_probes_are_listed_too(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, many = shelf
    monkeypatch.setattr("flask_workflows.store.reading.plans._MANY_WORKFLOWS", 2)

    page = page_of(rows, RunQuery(status=RunStatus.COMPLETED, limit=100))

    assert ids(page) == expected(many, {"status": "completed"})


# Counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [f for f in FILTERS if "status" not in f], ids=str)
def test_counts_follow_the_other_filters(shelf: Shelf, filters: dict[str, Any]) -> None:
    rows, many = shelf
    with read.reading(rows.engine) as connection:
        counts = read.count_runs(connection, RunQuery(**filters, status=RunStatus.FAILED, cursor="older.0"))

    assert counts == {status: Count(len(expected(many, {**filters, "status": status.value}))) for status in RunStatus}


def test_finished_runs_are_counted_up_to_a_cap_and_others_exactly(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, many = shelf
    monkeypatch.setattr("flask_workflows.store.reading.runs.COUNT_CAP", 11)

    with read.reading(rows.engine) as connection:
        counts = read.count_runs(connection, RunQuery())
        filtered = read.count_runs(connection, RunQuery(queue="mail"))

    for status in RunStatus:
        exact = Count(len(expected(many, {"status": status.value})))
        assert counts[status] == (Count(10, capped=True) if status.finished else exact)
        assert filtered[status].capped
        assert filtered[status].value <= 10


# Open steps and workers --------------------------------------------------------------------


def test_open_steps_of_several_runs_come_at_once(rows: Rows) -> None:
    one, two, none = rows.run("running"), rows.run("sleeping"), rows.run("pending")
    rows.step(one, "done", 1)
    rows.step(one, "failed", 2, "failed")
    rows.step(one, "now", 3, "running")
    rows.step(two, "$sleep", 1, "sleeping", kind="sleep")
    rows.step(two, "again", 2, "retrying", error=error_json())

    with read.reading(rows.engine) as connection:
        found = read.read_open_steps(connection, [one, two, none])
        assert read.read_open_steps(connection, []) == {}

    assert {run: [step.key for step in steps] for run, steps in found.items()} == {
        one: ["now"],
        two: ["$sleep", "again"],
    }
    assert found[two][1].error is not None


def test_live_workers_are_those_seen_lately(rows: Rows) -> None:
    rows.worker("live", seen_ago=29, queues='["mail"]')
    rows.worker("silent", seen_ago=31)
    rows.worker("stopped", seen_ago=1, stopped_at=NOW_MS)

    with read.reading(rows.engine) as connection:
        (worker,) = read.live_workers(connection, NOW)

    assert worker.name == "live"
    assert worker.queues == ("mail",)
    assert worker.versions("onboarding") == ((1, 1),)
    assert worker.serves("mail")
    assert not worker.serves("default")


# Plans -------------------------------------------------------------------------------------

#: Enough for the planners to prefer indexes, few enough to be quick.
SIZE = 20_000


@pytest.fixture(scope="module")
def large(shared_url: str) -> Iterator[Rows]:
    """Mostly completed runs, and old sleepers."""
    with tables(shared_url) as rows:
        _fill(rows)
        yield rows
        models.metadata.drop_all(rows.engine)


def _fill(rows: Rows) -> None:
    made = [
        run_row(
            "sleeping" if n < 500 else "failed" if n % 50 == 0 else "completed",
            ago=(SIZE - n) * 10,
            workflow=f"workflow-{n % 10}",
            workspace=f"ws-{n % 100}" if n % 2 else "",
        )
        for n in range(SIZE)
    ]
    rows.insert(models.runs, made)
    # What each sleeper has done before is what a plan without the index would read too.
    done = [step_row(row["id"], f"load#{n}", n) for row in made[:500] for n in range(1, 31)]
    rows.insert(models.steps, [*done, *(step_row(row["id"], "$sleep", 31, "sleeping") for row in made[:500])])
    if rows.engine.dialect.name == "postgresql":
        with rows.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")


INDEXED = [
    *(filters for filters in FILTERS if not {"queue", "workspace", "key"} & set(filters)),
    {"workspace": "ws-1"},
    {"workspace": ("ws-1", "ws-3", "ws-5")},
    {"workspace": ("ws-1", "ws-3"), "status": RunStatus.COMPLETED},
    {"workspace": ("ws-1", "ws-3"), "workflow": "workflow-1"},
]


@pytest.mark.parametrize("filters", INDEXED, ids=str)
def test_every_list_and_count_is_served_by_an_index(large: Rows, filters: dict[str, Any]) -> None:
    query = RunQuery(**filters)

    found = plans(large, lambda connection: read.list_runs(connection, query))
    found += plans(large, lambda connection: read.count_runs(connection, query))

    assert len(found) >= 2
    for plan in found:
        assert "Seq Scan on workflow_runs" not in plan
        for line in plan.splitlines():
            if line.startswith("SCAN workflow_runs"):
                # In the order of ids, up to the limit.
                assert "USING" in line, plan


def test_old_sleepers_are_found_through_their_index(large: Rows) -> None:
    (plan,) = plans(large, lambda c: read.list_runs(c, RunQuery(status=RunStatus.SLEEPING)))

    assert "workflow_runs_status" in plan


def test_open_steps_are_found_through_their_index(large: Rows) -> None:
    page = page_of(large, RunQuery(status=RunStatus.SLEEPING))

    (plan,) = plans(large, lambda c: read.read_open_steps(c, ids(page)))

    assert "workflow_steps_open" in plan


def test_no_list_reads_a_payload(large: Rows) -> None:
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(large.engine, "before_cursor_execute", note)
    page_of(large, RunQuery(status=RunStatus.FAILED))
    sa.event.remove(large.engine, "before_cursor_execute", note)

    (statement,) = statements
    assert "input" not in statement
    assert "output" not in statement
