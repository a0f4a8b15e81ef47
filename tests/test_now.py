from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.dashboard import chart
from flask_workflows.dashboard.verdict import Verdict
from flask_workflows.dashboard.verdict import verdict
from flask_workflows.dashboard.visit import Kept
from flask_workflows.errors import ReadTimeout
from flask_workflows.explain import PATIENCE
from flask_workflows.explain import plain
from flask_workflows.explain import Surroundings
from flask_workflows.explain import Text
from flask_workflows.runs import Count
from flask_workflows.runs import Due
from flask_workflows.runs import DueGroup
from flask_workflows.runs import RunningQueue
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.runs import Worker
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.plans import plans
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables
from tests.running import Clock

EVIL = "<img src=x onerror=alert(1)>"
MINUTE = 60_000


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer may take long enough to be kept, and the next look would not see what changed."""
    monkeypatch.setattr(Kept, "slow_after", float("inf"))


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


# The rules ---------------------------------------------------------------------------------


def a_worker(**values: Any) -> Worker:
    worker = Worker("w", "web-1:1", "web-1", 1, None, (("onboarding", 1, 2),), 4, NOW, NOW, None)
    return replace(worker, **values)


def due(status: RunStatus = RunStatus.PENDING, ago: float = 3, **values: Any) -> DueGroup:
    group = DueGroup(status, "default", "onboarding", 1, 1, NOW - timedelta(seconds=ago))
    return replace(group, **values)


def judge(
    *groups: DueGroup,
    running: tuple[RunningQueue, ...] = (),
    failures: dict[datetime, int] | None = None,
    workers: tuple[Worker, ...] = (a_worker(),),
    known: dict[str, list[tuple[int, int]]] | None = None,
) -> list[str]:
    """The sentences of a verdict."""
    around = Surroundings(now=NOW, workers=workers, known={"onboarding": [(1, 2)]} if known is None else known)
    return sentences(verdict(Due(groups), running, failures, around))


def sentences(said: Verdict) -> list[str]:
    return [words(text) for text in (said.headline, *said.others)]


def words(text: Text) -> str:
    return plain(text, now=NOW)


def running(ago: float, **values: Any) -> RunningQueue:
    return replace(RunningQueue("default", 14, NOW - timedelta(seconds=ago)), **values)


def test_all_is_good_where_no_rule_finds_anything() -> None:
    assert judge() == ["All good. Nothing is due."]
    assert judge(workers=()) == ["All good. Nothing is due, and no worker is live."]
    assert judge(running=(running(1),)) == ["All good. 14 running, none pending."]
    assert judge(due(), running=(running(1),)) == ["All good. 14 running, oldest pending for 3 s."]


def test_without_a_worker_the_command_is_said() -> None:
    assert judge(due(count=30), due(queue="bulk", count=3, ago=60), workers=()) == [
        "No worker is live; 33 runs wait, the oldest for 1 min. Start one: flask workflows work"
    ]


def test_queue_nobody_serves_is_named_in_the_command() -> None:
    mail = a_worker(queues=("mail",))

    assert judge(due(queue="a b"), due(queue="mail"), workers=(mail,)) == [
        "No live worker serves queue a b; 1 run waits, the oldest for 3 s. "
        "Start one: flask workflows work --queue 'a b'"
    ]


def test_version_and_workflow_nobody_runs_are_named() -> None:
    other = a_worker(workflows=(("other", 1, 1),))

    assert judge(due(version=3, count=33)) == [
        "No live worker runs version 3 of onboarding; 33 runs wait, the oldest for 3 s. Start one whose code has it."
    ]
    assert judge(due(version=2), workers=(a_worker(workflows=(("onboarding", 1, 1),)),)) == [
        "No live worker runs version 2 of onboarding; 1 run waits, the oldest for 3 s. "
        "This app's code has it: restart the workers."
    ]
    assert judge(due(), workers=(other,)) == [
        "No live worker knows onboarding; 1 run waits, the oldest for 3 s. This app's code has it: restart the workers."
    ]


def test_workflow_without_code_comes_after_what_a_worker_would_help() -> None:
    found = judge(due(workflow="gone", ago=900), due(queue="bulk"), workers=(a_worker(queues=("default",)),))

    assert [sentence.partition(";")[0] for sentence in found] == [
        "No live worker serves queue bulk",
        "No workflow named gone is in this app's code",
    ]


def test_workflow_a_worker_knows_is_no_orphan() -> None:
    assert judge(due(), known={}) == ["All good. 0 running, oldest pending for 3 s."]


@pytest.mark.parametrize(("ago", "stalled"), [(300, False), (301, True)])
def test_queue_is_stalled_when_nothing_moved_for_five_minutes(ago: int, stalled: bool) -> None:
    found = judge(running=(running(ago, queue="payments", count=5), running(1)))

    stalls = "Queue payments is stalled: 5 running, no step began or ended for 5 min."
    assert found == ([stalls] if stalled else ["All good. 19 running, none pending."])


@pytest.mark.parametrize(("ago", "backlog"), [(60, False), (61, True)])
def test_queue_has_a_backlog_when_its_oldest_waits_for_a_minute(ago: int, backlog: bool) -> None:
    found = judge(due(ago=ago, count=239), due(workflow="onboarding", version=2), running=(running(1),))

    assert found == (
        ["Queue default has a backlog: 240 runs due, the oldest for 1 min; 4 threads serve it."]
        if backlog
        else ["All good. 14 running, oldest pending for 1 min."]
    )


@pytest.mark.parametrize("status", [RunStatus.SLEEPING, RunStatus.WAITING])
def test_timers_are_overdue_after_what_a_poll_takes(status: RunStatus) -> None:
    assert judge(due(status, ago=10)) == ["All good. Nothing is due."]
    assert judge(due(status, ago=180, count=4), due(status, ago=20)) == [
        "5 timers or time-outs are overdue, the oldest since 11:57:00, 3 min ago."
    ]


def test_overdue_timer_nobody_can_take_is_said_once() -> None:
    (only,) = judge(due(RunStatus.SLEEPING, ago=180), workers=())

    assert only.startswith("No worker is live")


def by_hour(*counts: int) -> dict[datetime, int]:
    """The last hour first."""
    return {NOW - timedelta(hours=n): count for n, count in enumerate(counts)}


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((13, 4, 4, 9, 0), "13 runs failed in the last hour; 4 is usual."),
        ((12, 4, 4, 9, 0), None),
        ((5, 0, 0, 0, 0), "5 runs failed in the last hour; 0 is usual."),
        ((4, 0, 0, 0, 0), None),
    ],
)
def test_failures_are_too_many_above_three_times_the_usual(counts: tuple[int, ...], said: str | None) -> None:
    assert judge(failures=by_hour(*counts)) == ([said] if said else ["All good. Nothing is due."])


def test_several_findings_are_all_said_the_gravest_first() -> None:
    found = judge(
        due(queue="bulk"),
        due(ago=90),
        due(RunStatus.SLEEPING, ago=90),
        running=(running(900),),
        failures=by_hour(9, 0, 0),
        workers=(a_worker(queues=("default",)),),
    )

    assert [re.split(r"[;:,]", sentence)[0] for sentence in found] == [
        "No live worker serves queue bulk",
        "Queue default is stalled",
        "1 timer or time-out is overdue",
        "Queue default has a backlog",
        "9 runs failed in the last hour",
    ]


def test_what_took_too_long_is_no_good_news() -> None:
    said = verdict(None, (), None, Surroundings(now=NOW))

    assert not said.good
    assert "over 2 s" in words(said.headline)


def test_cut_count_is_not_told_as_exact() -> None:
    said = verdict(Due((due(count=10_000),), cut=True), (), None, Surroundings(now=NOW))

    assert "; 10k+ runs wait" in words(said.headline)


# The chart ---------------------------------------------------------------------------------


def drawn(completed: dict[int, int], failed: dict[int, int], slots: int = 4) -> chart.Chart:
    edges = [NOW + timedelta(minutes=15 * n) for n in range(slots + 1)]
    return chart.draw(
        edges, {edges[n]: count for n, count in completed.items()}, {edges[n]: count for n, count in failed.items()}
    )


def test_chart_draws_both_to_one_scale_within_its_frame() -> None:
    made = drawn({0: 60, 1: 30}, {1: 30, 3: 10})

    heights = [(slot.above.height if slot.above else 0, slot.below.height if slot.below else 0) for slot in made.slots]
    assert heights[0][0] == pytest.approx(2 * heights[1][0], abs=0.2)
    assert heights[1][0] == pytest.approx(heights[1][1], abs=0.2)
    assert heights[2] == (0, 0)
    assert (made.completed, made.failed) == (90, 40)
    for slot in made.slots:
        for bar in filter(None, (slot.above, slot.below)):
            assert bar.y >= -0.1
            assert bar.y + bar.height <= chart.HEIGHT + 0.1
            assert bar.x + bar.width <= chart.WIDTH


@pytest.mark.parametrize(("completed", "failed"), [({0: 1_000_000}, {1: 1}), ({0: 1}, {1: 1_000_000})])
def test_one_bar_beside_a_million_is_seen(completed: dict[int, int], failed: dict[int, int]) -> None:
    made = drawn(completed, failed)

    (above,) = [slot.above for slot in made.slots if slot.above]
    (below,) = [slot.below for slot in made.slots if slot.below]
    assert min(above.height, below.height) >= chart.THINNEST
    assert above.y >= 0
    assert below.y + below.height <= chart.HEIGHT


def test_chart_of_nothing_has_no_bars() -> None:
    assert all(slot.empty and slot.above is None and slot.below is None for slot in drawn({}, {}).slots)


# The page ----------------------------------------------------------------------------------


def strip(client: FlaskClient) -> dict[str, str]:
    """The numbers of the strip by their words."""
    found = re.search(r'(?s)<ul class="fw-strip".*?</ul>', client.get("/workflows/").text)
    assert found is not None
    tiles = re.findall(r"(?s)<b>(.*?)</b>.*?</svg>(\w+)</span>", found[0])
    return {state: number for number, state in tiles}


def test_page_of_an_empty_database_says_so(client: FlaskClient) -> None:
    text = text_of(client.get("/workflows/"))

    assert "All good. Nothing is due, and no worker is live." in text
    assert "Nothing needs attention." in text
    assert "No run ended in the last 24 hours." in text
    assert "No timer is to come." in text
    assert "No worker is live. Start one: flask workflows work" in text


def test_strip_counts_unfinished_runs_and_those_of_the_last_day(client: FlaskClient, rows: Rows) -> None:
    day = 86_400
    for status, number in {"pending": 3, "running": 2, "waiting": 1}.items():
        for _ in range(number):
            rows.run(status, ago=2 * day)
    rows.run("sleeping")
    rows.run("sleeping", attempts=1, error=error_json())
    rows.step(rows.run("sleeping"), "charge", 1, "retrying")
    for status, number in {"failed": 4, "completed": 5, "cancelled": 6}.items():
        for _ in range(number):
            rows.run(status, ago=day - 60)
        rows.run(status, ago=day + 60)

    assert strip(client) == {
        "Pending": "3",
        "Running": "2",
        "Sleeping": "3",
        "Waiting": "1",
        "Retrying": "2",
        "Failed": "4",
        "Completed": "5",
        "Cancelled": "6",
    }


def test_strip_leads_to_the_lists(client: FlaskClient) -> None:
    response = client.get("/workflows/")

    addresses = {attributes.get("href") for tag, attributes in Tags(response.text).found if tag == "a"}
    assert {"/workflows/runs?status=pending", "/workflows/runs?status=failed&time=24h"} <= addresses
    for address in filter(None, addresses):
        if address.startswith("/workflows"):
            assert client.get(address).status_code == 200


def attention_of(client: FlaskClient) -> list[str]:
    found = re.search(r'(?s)aria-labelledby="fw-attention".*?</section>', client.get("/workflows/").text)
    assert found is not None
    cells = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"(?s)<tr role=\"row\"[ >].*?</tr>", found[0])]
    return [" ".join(row.split()).replace(" ,", ",") for row in cells[1:]]


def test_what_needs_attention_is_listed_with_a_way_to_help(client: FlaskClient, rows: Rows) -> None:
    live = rows.worker(queues='["default"]')
    lost = rows.run("running", worker="gone", due_at=NOW_MS + 20_000)
    expired = rows.run("running", worker=live, due_at=NOW_MS - 11_000)
    fine = rows.run("running", worker=live, due_at=NOW_MS + 20_000)
    overdue = rows.run("sleeping", due_at=NOW_MS - 11_000)
    polling = rows.run("sleeping", due_at=NOW_MS - 9_000)
    ending = rows.run("waiting", due_at=NOW_MS + 59 * MINUTE)
    later = rows.run("waiting", due_at=NOW_MS + 61 * MINUTE)
    timer = rows.run("sleeping", due_at=NOW_MS + MINUTE)
    rows.run("pending", queue="bulk")
    rows.run("pending", version=9)
    rows.run("waiting", workflow="dropped", due_at=None)
    used_up = rows.run("failed", error=error_json(kind="body", type="OSError", message="disk full"))
    wanted = rows.run("failed", error=error_json(kind="value"))
    old = rows.run("failed", error=error_json(kind="body"), ago=90_000)

    response = client.get("/workflows/")
    listed = attention_of(client)

    assert [re.split(r" (?:No live|No workflow|onboarding)", row)[0] for row in listed] == [
        "No worker Any workflow",
        "No worker",
        "Not in the code dropped",
        "Lost worker",
        "Lost worker",
        "Overdue",
        "Wait ends soon",
        "Failed",
    ]
    assert "flask workflows work --queue bulk" in listed[0]
    assert "No live worker runs version 9" in listed[1]
    assert "1 unfinished run." in listed[2]
    assert "OSError: disk full" in listed[-1]
    for run_id in (lost, expired, overdue, ending, used_up):
        assert f'id="at-{run_id}"' in response.text
    for run_id in (fine, polling, later, timer, wanted, old):
        assert f'id="at-{run_id}"' not in response.text
    assert "/workflows/runs?workflow=dropped" in response.text
    assert "/workflows/runs?queue=bulk" in response.text


def test_attention_has_twenty_rows_at_most_and_says_that_there_is_more(client: FlaskClient, rows: Rows) -> None:
    rows.worker(queues='["default"]')
    made = [run_row("running", worker="gone", due_at=NOW_MS + 20_000) for _ in range(30)]
    made += [run_row("sleeping", due_at=NOW_MS - MINUTE) for _ in range(30)]
    made += [run_row("waiting", due_at=NOW_MS + MINUTE) for _ in range(30)]
    made += [run_row("pending", queue=f"queue-{n}") for n in range(30)]
    made += [run_row("waiting", workflow=f"gone-{n}", due_at=NOW_MS + 10**8) for n in range(30)]
    made += [run_row("failed", error=error_json(kind="body")) for _ in range(30)]
    rows.insert(models.runs, made)
    rows.run("waiting", due_at=None, paused_at=NOW_MS)

    listed = attention_of(client)

    assert len(listed) == 20
    assert len({row.split()[0] for row in listed}) == 7
    assert "There is more; the first of each kind are shown." in text_of(client.get("/workflows/"))


def test_action_leads_to_the_page_that_asks_only_for_those_who_may(
    database_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    workflows.hooks = replace(workflows.hooks, authorize=lambda action, run=None: action in allowed)
    allowed = ["view"]
    app = make_app(database_url, workflows=workflows)
    run_id = rows_of(app).run("failed", error=error_json(kind="body"))
    asks = f"{app.blueprints['flask_workflows'].name}.ask_retry" in app.view_functions

    shown = app.test_client().get("/workflows/").text
    allowed.append("retry")
    offered = app.test_client().get("/workflows/").text

    assert f"/workflows/run/{run_id}/retry" not in shown
    assert (f"/workflows/run/{run_id}/retry" in offered) is asks


def count_ended(rows: Rows, ago: float, outcome: str, count: int, workflow: str = "onboarding") -> None:
    """Runs that ended within the quarter of an hour that began so many minutes before NOW, as workers count them."""
    at = NOW_MS - int(ago * MINUTE)
    row = {"at": at, "workflow": workflow, "outcome": outcome, "count": count, "busy_ms": 5}
    rows.insert(models.stats, [row])


def titles_of(response: TestResponse) -> list[str]:
    """What is said of each quarter of an hour that has bars."""
    return re.findall(r"<title>([^<]* to [^<]*)</title>", response.text)


def test_chart_shows_what_workers_counted_by_the_quarter_of_an_hour(client: FlaskClient, rows: Rows) -> None:
    count_ended(rows, 0, "completed", 4)
    count_ended(rows, 15, "completed", 3)
    count_ended(rows, 15, "completed", 2_000, workflow="other")
    count_ended(rows, 15, "failed", 1)
    count_ended(rows, 15, "cancelled", 50)
    count_ended(rows, 30, "lost", 50)
    count_ended(rows, 23.75 * 60, "failed", 6)
    count_ended(rows, 24 * 60, "completed", 50)
    rows.insert(models.stats, [{"at": 0, "workflow": "w", "outcome": "completed", "count": 9, "busy_ms": 0}])

    response = client.get("/workflows/")

    assert "2,007 completed, 7 failed" in text_of(response)
    assert titles_of(response) == [
        "Sun 29 Nov 12:15 to Sun 29 Nov 12:30: 0 completed, 6 failed",
        "11:45:00 to 12:00:00: 2,003 completed, 1 failed",
        "12:00:00 to 12:15:00: 4 completed, 0 failed",
    ]
    bars = [attributes for tag, attributes in Tags(response.text).found if tag == "rect"]
    assert len(bars) == 4
    assert "11:45:00 2,003 1" in text_of(response)
    assert "newest 10,000" not in text_of(response)


def test_failures_of_the_last_hour_are_compared_with_other_hours(client: FlaskClient, rows: Rows) -> None:
    for hour in range(24):
        for quarter in range(4):
            count_ended(rows, 60 * hour + 15 * quarter, "failed", 8 if hour == 0 else 2)

    assert "32 runs failed in the last hour; 8 is usual." in text_of(client.get("/workflows/"))


def test_b110_chart_of_a_workspace_is_of_its_own_runs(client: FlaskClient, rows: Rows, scoped: list[Any]) -> None:
    count_ended(rows, 0, "completed", 4_711)
    for ended, status in [
        (NOW_MS - 1, "completed"),
        (NOW_MS - 14 * MINUTE, "completed"),
        (NOW_MS - 16 * MINUTE, "failed"),
        (NOW_MS - 23 * 60 * MINUTE, "failed"),
        (NOW_MS - 25 * 60 * MINUTE, "completed"),
    ]:
        for workspace in ("mine", "theirs"):
            # What took long counts when it ended.
            rows.run(status, ago=400_000, finished_at=ended, workspace=workspace)
    scoped[0] = "mine"

    response = client.get("/workflows/")

    assert "2 completed, 2 failed" in text_of(response)
    assert titles_of(response) == [
        "Sun 29 Nov 13:00 to Sun 29 Nov 13:15: 0 completed, 1 failed",
        "11:30:00 to 11:45:00: 0 completed, 1 failed",
        "11:45:00 to 12:00:00: 2 completed, 0 failed",
    ]


def test_next_timers_are_the_five_that_come_first(client: FlaskClient, rows: Rows) -> None:
    made = [rows.run("sleeping", due_at=NOW_MS + n * MINUTE, workflow=f"w-{n}") for n in (9, 3, 5, 1, 7, 11)]
    rows.run("waiting", due_at=NOW_MS + MINUTE)
    rows.run("sleeping", due_at=NOW_MS - MINUTE)

    found = re.search(r'(?s)aria-labelledby="fw-timers".*?</section>', client.get("/workflows/").text)

    assert found is not None
    assert re.findall(r"/run/([0-9a-f-]+)", found[0]) == [made[n] for n in (3, 1, 2, 4, 0)]


def test_live_workers_are_named_with_their_queues(client: FlaskClient, rows: Rows) -> None:
    for n in range(12):
        rows.worker(f"web-{n:02}", queues=json.dumps(["mail", "bulk"]))
    rows.worker("silent", seen_ago=60)

    text = text_of(client.get("/workflows/"))

    assert "Live workers 12 workers, 48 threads" in text
    assert "web-00 (web-1:4711) mail, bulk; up for 1 h" in text
    assert "web-09" in text
    assert "web-10" not in text
    assert "and 2 more" in text
    assert "silent" not in text


def test_stalled_queue_is_found_though_its_leases_are_renewed(client: FlaskClient, rows: Rows) -> None:
    worker = rows.worker()
    stuck = rows.run("running", worker=worker, due_at=NOW_MS + 20_000, updated_at=NOW_MS - 1_000)
    rows.step(stuck, "charge", 1, "running", started_at=NOW_MS - 12 * MINUTE)

    assert "Queue default is stalled: 1 running, no step began or ended for 12 min." in text_of(
        client.get("/workflows/")
    )

    moving = rows.run("running", worker=worker, due_at=NOW_MS + 20_000, updated_at=NOW_MS - 1_000)
    rows.step(moving, "charge", 1, "completed")

    assert "All good. 2 running, none pending." in text_of(client.get("/workflows/"))


def test_unchanged_page_is_answered_with_nothing(client: FlaskClient, rows: Rows) -> None:
    rows.worker()
    run_id = rows.run("pending")
    first = client.get("/workflows/")
    assert 'data-live="15"' in first.text

    assert polled(client, first).status_code == 204

    rows.change(run_id, status="completed", due_at=None, finished_at=NOW_MS)
    changed = polled(client, first)
    assert changed.status_code == 200
    assert "<html" not in changed.text
    assert 'id="fw-now"' in changed.text
    assert polled(client, changed).status_code == 204


def test_page_can_be_watched_or_not(client: FlaskClient) -> None:
    assert "data-live=" not in client.get("/workflows/?live=0").text


def test_user_data_is_text_on_the_page(client: FlaskClient, rows: Rows) -> None:
    rows.worker(EVIL, queues=json.dumps([EVIL]), host=EVIL)
    rows.run("pending", workflow=EVIL)
    rows.run("pending", queue=EVIL + "2")
    rows.step(rows.run("sleeping", due_at=NOW_MS - MINUTE, workflow="onboarding"), EVIL, 1, "retrying")
    rows.run("failed", error=error_json(kind="step", type=EVIL, message=EVIL, step=EVIL))
    rows.run("sleeping", due_at=NOW_MS + MINUTE, workflow=EVIL)

    response = client.get("/workflows/")

    assert "<img" not in response.text
    assert response.text.count("&lt;img") > 5


def test_secrets_of_errors_are_hidden_and_no_payload_is_read(app: Flask, client: FlaskClient, rows: Rows) -> None:
    rows.run("failed", input='{"code": "input-4711"}', error=error_json(kind="body", message="password=hunter2"))
    statements: list[str] = []
    engine = apps.runtime_of(app).engine
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    text = client.get("/workflows/").text

    assert "hunter2" not in text
    assert "input-4711" not in text
    assert statements
    for statement in statements:
        assert "input" not in statement
        assert "output" not in statement


def test_slow_part_says_so_and_spoils_no_other(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker("alive")

    def slow(*_: Any, **__: Any) -> Any:
        raise ReadTimeout("reading took more than 2 s")

    for name in ("read_due", "count_live", "ended_by_quarter", "list_coming", "read_signs"):
        monkeypatch.setattr(read, name, slow)

    response = client.get("/workflows/")

    text = text_of(response)
    assert response.status_code == 200
    assert "Nobody knows: the database took over 2 s to say what is due." in text
    assert "Not everything could be looked at." in text
    assert text.count("Took over 2 s") >= 7
    assert "alive" in text


# Tenants -----------------------------------------------------------------------------------


@pytest.fixture
def scoped(workflows: Workflows) -> list[Any]:
    """What the app answers for the visitor's workspaces: the first element."""
    answer: list[Any] = [None]
    workflows.hooks = replace(workflows.hooks, scope=lambda: answer[0])
    return answer


def fill_workspace(rows: Rows, workspace: str, times: int = 1) -> list[str]:
    made = []
    for _ in range(times):
        made += [
            rows.run("pending", queue=f"queue-{workspace}", workspace=workspace),
            rows.run("running", worker="gone", due_at=NOW_MS - MINUTE, workspace=workspace),
            rows.run("sleeping", due_at=NOW_MS - MINUTE, workspace=workspace),
            rows.run("sleeping", due_at=NOW_MS + MINUTE, workspace=workspace),
            rows.run("waiting", due_at=NOW_MS + MINUTE, workspace=workspace, workflow=f"of-{workspace}"),
            rows.run("failed", error=error_json(kind="body", message=f"in {workspace}"), workspace=workspace),
            rows.run("completed", workspace=workspace),
        ]
    return made


@pytest.mark.parametrize("mine", ["mine", ""])
def test_b110_page_shows_and_counts_only_what_the_visitor_may_see(
    client: FlaskClient, rows: Rows, scoped: list[Any], mine: str
) -> None:
    own = fill_workspace(rows, mine)
    foreign = fill_workspace(rows, "theirs", times=3)
    scoped[0] = mine

    response = client.get("/workflows/")

    assert "theirs" not in response.text
    for run_id in foreign:
        assert run_id not in response.text
    # All but the pending one, which stands for others of its queue, the waiting one without code, the completed one.
    assert {run_id for run_id in own if run_id in response.text} == {own[n] for n in (1, 2, 3, 4, 5)}
    assert set(strip(client).values()) == {"0", "1", "2"}
    assert "1 completed, 1 failed" in text_of(response)
    assert "No worker is live; 3 runs wait" in text_of(response)


def test_b110_visitor_of_no_workspace_sees_nothing(client: FlaskClient, rows: Rows, scoped: list[Any]) -> None:
    fill_workspace(rows, "theirs")
    fill_workspace(rows, "")
    scoped[0] = ()

    text = text_of(client.get("/workflows/"))

    assert set(strip(client).values()) == {"0"}
    assert "All good. Nothing is due" in text
    assert "No run ended" in text
    assert "No worker is live, and runs are due" not in text


def test_b110_many_workspaces_are_seen_together(client: FlaskClient, rows: Rows, scoped: list[Any]) -> None:
    names = [f"w{n:03}" for n in range(60)]
    for name in (*names, "theirs"):
        rows.run("pending", workspace=name)
        rows.run("completed", workspace=name)
    scoped[0] = names

    numbers = strip(client)

    assert numbers["Pending"] == "60"
    assert numbers["Completed"] == "60"


# Over every page ---------------------------------------------------------------------------


def notices(client: FlaskClient, path: str = "/workflows/runs") -> list[str]:
    found = re.findall(r'(?s)<aside class="fw-notice".*?</aside>', client.get(path).text)
    return [html.unescape(re.sub(r"<[^>]+>", "", notice)) for notice in found]


def test_notice_says_that_no_worker_is_live(client: FlaskClient, rows: Rows) -> None:
    rows.run("sleeping", due_at=NOW_MS + 1)
    assert notices(client) == []

    rows.run("pending", due_at=NOW_MS)
    for path in ("/workflows/", "/workflows/runs"):
        assert notices(client, path) == ["No worker is live, and runs are due. Start one: flask workflows work"]

    rows.worker()
    assert notices(client) == []


def test_notice_of_a_watched_page_comes_and_goes(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("waiting", due_at=NOW_MS + 10**8)
    quiet = client.get("/workflows/runs")
    rows.change(run_id, due_at=NOW_MS)

    raised = polled(client, quiet)
    rows.worker()
    gone = polled(client, raised)

    for response, said in ((raised, True), (gone, False)):
        (swapped,) = re.findall(r'(?s)<div id="fw-notice" hx-swap-oob="true">.*?</div>', response.text)
        assert ("No worker is live" in swapped) is said
    assert polled(client, gone).status_code == 204


def test_one_notice_at_most_the_gravest(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    workflows.hooks = replace(workflows.hooks, authorize=None)
    app.debug = True
    run_id = rows.run("pending")

    assert [notice.partition(",")[0] for notice in notices(client)] == ["No worker is live"]

    rows.change(run_id, due_at=NOW_MS + MINUTE)
    (notice,) = notices(client)
    assert notice.startswith("Open because the app is in debug mode")


@pytest.mark.parametrize(("ahead", "said"), [(100, "1 min ahead of"), (-100, "1 min behind"), (20, None)])
def test_notice_says_that_the_clocks_differ(
    client: FlaskClient, workflows: Workflows, monkeypatch: pytest.MonkeyPatch, ahead: float, said: str | None
) -> None:
    workflows.clock = None
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)

    found = notices(client)

    assert found == (
        [] if said is None else [f"The app's clock is {said} the database's. Set both by the same time server."]
    )


def test_clock_that_was_set_is_compared_with_none(client: FlaskClient) -> None:
    assert notices(client) == []


def test_read_only_is_said_where_nothing_is_graver(
    database_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_DASHBOARD_READ_ONLY=True)

    assert notices(app.test_client()) == ["Read-only: nothing can be changed here."]


def test_environment_is_named_in_words(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_ENV_NAME=f"staging {EVIL}")
    run_id = rows_of(app).run("failed")
    client = app.test_client()

    for path in ("/workflows/", "/workflows/runs", f"/workflows/run/{run_id}", "/workflows/run/none"):
        response = client.get(path)
        assert "<title>staging &lt;img" in response.text
        assert '<span class="fw-env" translate="no" dir="auto">staging &lt;img' in response.text
        assert "<img" not in response.text
    first = client.get("/workflows/")
    rows_of(app).run("pending")
    assert "<title>staging &lt;img" in polled(client, first).text


def test_bar_begins_with_the_page_of_now(client: FlaskClient) -> None:
    response = client.get("/workflows/")

    found = re.search(r'(?s)<nav class="fw-nav".*?</nav>', response.text)
    assert found is not None
    assert re.findall(r"<a href=\"([^\"]*)\"( aria-current=\"page\")? data-go=\"\w\">", found[0])[0] == (
        "/workflows/",
        ' aria-current="page"',
    )


# Real runs ---------------------------------------------------------------------------------


def test_real_runs_appear_as_what_they_are(database_url: str, make_app: apps.MakeApp) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = clock = Clock()

    @workflows.step(retry=Retry(attempts=2))
    def charge() -> None:
        raise RuntimeError("card refused")

    @workflows.workflow
    def sleeper(ctx: WorkflowContext) -> None:
        ctx.sleep(3_600)

    @workflows.workflow
    def payer() -> None:
        charge()

    app = make_app(database_url, workflows=workflows)
    client = app.test_client()
    with app.app_context():
        sleeper.spawn()
        failing = payer.spawn().id
        workflows.tick()

        numbers = strip(client)
        assert (numbers["Sleeping"], numbers["Retrying"]) == ("2", "1")

        clock.move(minutes=2)
        workflows.tick()

    numbers = strip(client)
    assert (numbers["Sleeping"], numbers["Retrying"], numbers["Failed"]) == ("1", "0", "1")
    (failed,) = attention_of(client)
    assert f"{failing[-6:]}" in failed
    assert "card refused" in failed
    assert "0 completed, 1 failed" in text_of(client.get("/workflows/"))
    found = re.search(r'(?s)aria-labelledby="fw-timers".*?</section>', client.get("/workflows/").text)
    assert found is not None
    assert "in 58 min" in found[0]


# Plans -------------------------------------------------------------------------------------

SIZE = 20_000

#: What is asked for, by name, for a visitor who sees all and for one of two workspaces.
QUESTIONS: dict[str, Callable[[sa.Connection, tuple[str, ...] | None], Any]] = {
    "due": lambda c, w: read.read_due(c, NOW, w),
    "running": lambda c, w: read.read_running(c, w),
    "live": lambda c, w: read.count_live(c, w),
    "today": lambda c, w: read.count_runs(c, RunQuery(created_after=NOW - timedelta(days=1), workspace=w)),
    "unknown": lambda c, w: read.count_unknown(c, ["workflow-1"], w),
    "lost": lambda c, w: read.list_lost(c, NOW, PATIENCE, ["worker"], w, limit=5),
    "overdue": lambda c, w: read.list_overdue(c, NOW, PATIENCE, w, limit=5),
    "timers": lambda c, w: read.list_coming(c, NOW, None, RunStatus.SLEEPING, w, limit=5),
    "ending": lambda c, w: read.list_coming(c, NOW, NOW + timedelta(hours=1), RunStatus.WAITING, w, limit=5),
    "failed": lambda c, w: read.list_failed(c, NOW - timedelta(days=1), w, limit=50),
    "ended": lambda c, w: read.ended_by_quarter(c, NOW - timedelta(days=1), (RunStatus.COMPLETED, RunStatus.FAILED), w),
    "signs": lambda c, w: read.read_signs(c, NOW, PATIENCE, w),
    "notice": lambda c, w: read.read_signs(c, NOW, PATIENCE, w, counts=False),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """Mostly completed runs, old sleepers, and some of two workspaces."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('now') / 'runs.sqlite3'}"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.url(name := server.create_database())
    with tables(url) as rows:
        made = [
            run_row(
                "sleeping" if n < 500 else "failed" if n % 50 == 0 else "running" if n % 400 == 1 else "completed",
                ago=(SIZE - n) * 10,
                workflow=f"workflow-{n % 10}",
                workspace="tenant" if n % 100 == 7 else "",
                due_at=NOW_MS + n if n < 500 else NOW_MS - n if n % 400 == 1 else None,
            )
            for n in range(SIZE)
        ]
        rows.insert(models.runs, made)
        rows.insert(models.steps, [step_row(row["id"], "$sleep", 1, "sleeping") for row in made[:500]])
        rows.insert(models.steps, [step_row(row["id"], "charge", 2) for row in made[500:]])
        if rows.engine.dialect.name == "postgresql":
            with rows.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield rows
    if request.param == "postgresql":
        server.drop_database(name)


@pytest.mark.parametrize("workspaces", [None, ("tenant", ""), ("tenant",)], ids=["all", "two", "one"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_b92_every_question_is_served_by_an_index(
    large: Rows, question: str, workspaces: tuple[str, ...] | None
) -> None:
    found = plans(large, lambda connection: QUESTIONS[question](connection, workspaces))

    assert found
    for plan in found:
        assert "Seq Scan on workflow_runs" not in plan
        assert "Seq Scan on workflow_steps" not in plan
        for line in plan.splitlines():
            if line.startswith(("SCAN workflow_runs", "SCAN workflow_steps")):
                # In the order of an index, up to a limit.
                assert "USING" in line, plan


def test_counts_of_the_strip_are_cut_for_tenants_and_exact_for_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables(database_url) as rows:
        rows.insert(models.runs, [run_row("pending", workspace="tenant") for _ in range(10_005)])
        with read.reading(rows.engine) as connection:
            every = read.count_live(connection, None)["pending"]
            own = read.count_live(connection, ("tenant",))["pending"]
            due_now = read.read_due(connection, NOW, None)

    assert every == Count(10_005)
    assert own == Count(10_000, capped=True)
    assert due_now.cut
    assert sum(group.count for group in due_now.groups) == 10_000
