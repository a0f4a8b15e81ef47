"""A run's page: why it stands as it stands, on the page and on the terminal; its steps, values and history."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import By
from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import step_row
from tests.running import Clock

HOUR_MS = 3_600_000
EVIL = "</script><img src=x onerror=alert(1)>"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.step(retry=Retry(attempts=8))
    def fetch() -> None:
        """Is known by how often it is tried."""

    @workflows.workflow(version=2, min_version=2)
    def onboarding(user_id: int) -> bool:
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def page_of(client: FlaskClient, run_id: str, query: str = "") -> str:
    response = client.get(f"/workflows/run/{run_id}{query}")
    assert response.status_code == 200
    return text_of(response)


def shown(app: Flask, *args: str) -> str:
    """What a command prints, blanks made single."""
    result = app.test_cli_runner().invoke(args=["workflows", *args])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


# Sentences ---------------------------------------------------------------------------------


def working(rows: Rows, *ranges: tuple[int, int], **values: Any) -> str:
    """A live worker for versions of `onboarding`."""
    offers = [["onboarding", low, high] for low, high in ranges or ((2, 2),)]
    return rows.worker(**{"workflows": json.dumps(offers), **values})


def its_turn(rows: Rows) -> str:
    working(rows)
    for _ in range(2):
        rows.run("pending", version=2, ago=30)
    return rows.run("pending", version=2, ago=12)


def no_worker(rows: Rows) -> str:
    return rows.run("pending", version=2, ago=12)


def no_worker_for_its_queue(rows: Rows) -> str:
    working(rows, queues='["mail"]')
    return rows.run("pending", version=2, ago=12, queue="bulk")


def newer_code(rows: Rows) -> str:
    working(rows)
    return rows.run("pending", version=3, ago=12)


def older_code(rows: Rows) -> str:
    working(rows)
    return rows.run("pending", version=1, ago=12)


def nobodys_code(rows: Rows) -> str:
    working(rows)
    return rows.run("pending", workflow="old_import", ago=12)


def running(rows: Rows) -> str:
    run_id = rows.run("running", version=2, worker=working(rows), due_at=NOW_MS + 20_000)
    rows.step(run_id, "post_entries", 4, "running", started_at=NOW_MS - 9_000)
    return run_id


def silent_worker(rows: Rows) -> str:
    working(rows)
    gone = rows.worker("web-2:4411", host="web-2", pid=4411, seen_ago=48)
    run_id = rows.run("running", version=2, worker=gone, due_at=NOW_MS + 12_000)
    rows.step(run_id, "post_entries", 4, "running", started_at=NOW_MS - 60_000)
    return run_id


def lost_worker(rows: Rows) -> str:
    working(rows)
    gone = rows.worker("web-2:4411", host="web-2", pid=4411, seen_ago=94)
    run_id = rows.run("running", version=2, worker=gone, due_at=NOW_MS - 64_000)
    rows.step(run_id, "post_entries", 4, "running", started_at=NOW_MS - 120_000)
    return run_id


def sleeping(rows: Rows) -> str:
    run_id = rows.run("sleeping", due_at=NOW_MS + 15 * HOUR_MS)
    rows.step(run_id, "$sleep", 1, "sleeping", kind="sleep", due_at=NOW_MS + 15 * HOUR_MS)
    return run_id


def overdue(rows: Rows) -> str:
    return rows.run("sleeping", version=2, due_at=NOW_MS - 180_000)


def due_now(rows: Rows) -> str:
    working(rows)
    return rows.run("sleeping", version=2, due_at=NOW_MS)


def waiting(rows: Rows) -> str:
    run_id = rows.run("waiting", due_at=NOW_MS + 2 * HOUR_MS)
    waits = {"events": [{"name": "refund.approved", "match": {"order": "order-8812", "token": "t"}}]}
    rows.step(run_id, "$wait:refund.approved", 1, "waiting", kind="wait", input=json.dumps(waits))
    rows.event("refund.approved", ago=0)
    rows.event("refund.approved", ago=0)
    rows.event("refund.approved", ago=0, workspace="another")
    rows.event("refund.approved", ago=3_600)
    rows.event("other")
    return run_id


def waiting_for_a_message(rows: Rows) -> str:
    run_id = rows.run("waiting", due_at=None)
    rows.step(run_id, "$receive:approve", 1, "waiting", kind="receive", input='{"message": "approve"}')
    rows.event("approve", ago=0, run_id=run_id, matched_at=None)
    return run_id


def retrying(rows: Rows) -> str:
    run_id = rows.run("sleeping", due_at=NOW_MS + 40_000)
    rows.step(run_id, "load", 1)
    rows.step(run_id, "fetch", 2, "retrying", attempts=2, error=error_json("ConnectionError", "refused"))
    return run_id


def failed(rows: Rows) -> str:
    for _ in range(2):
        rows.run("failed", cause="c1", error=error_json())
    rows.run("failed", cause="c2", error=error_json())
    run_id = rows.run("failed", cause="c1", error=error_json(step="render_pdf"))
    rows.step(run_id, "load", 1)
    rows.step(run_id, "render_pdf", 2, "failed", attempts=5, error=error_json(step="render_pdf"))
    return run_id


def changed_code(rows: Rows) -> str:
    message = "step 2 was recorded as 'reserve', the code now calls 'charge'"
    return rows.run("failed", error=error_json("NonDeterminismError", message, kind="nondeterminism"))


def lost_each_time(rows: Rows) -> str:
    return rows.run("failed", error=error_json("WorkerLost", "worker lost at step 'charge'", kind="lost"))


def dropped_version(rows: Rows) -> str:
    return rows.run("failed", error=error_json("SetupError", "no live worker resumes it", kind="version"))


def cancelling(rows: Rows) -> str:
    run_id = rows.run("running", worker=working(rows), due_at=NOW_MS + 20_000, cancel_requested_at=NOW_MS - 8_000)
    rows.step(run_id, "post_entries", 1, "running")
    rows.insert(models.audit, [audit_row(run_id, action="cancel", actor="ana", reason="wrong customer")])
    return run_id


def completed(rows: Rows) -> str:
    return rows.run("completed", ago=60)


def cancelled(rows: Rows) -> str:
    run_id = rows.run("cancelled", started_at=None, cancel_requested_at=NOW_MS)
    rows.insert(models.audit, [audit_row(run_id, action="cancel", actor="ana")])
    return run_id


_numbers = itertools.count(1)


def audit_row(run_id: str, **values: Any) -> dict[str, Any]:
    row = {
        "id": f"audit-{next(_numbers)}",
        "at": NOW_MS - 8_000,
        "actor": "",
        "action": "cancel",
        "run_id": run_id,
        "workspace": "",
        "target": "onboarding",
        "before": "running",
        "after": "cancelling",
        "reason": "",
        "request_id": None,
        "address": None,
        "operation": None,
    }
    return {**row, **values}


#: How a run stands, the line in lists, and the sentences of its page.
SENTENCES: list[tuple[Callable[[Rows], str], str, list[str]]] = [
    (
        its_turn,
        "next in default, due 12 s ago",
        ["Pending for 12 s; 2 are ahead of it in default.", "1 live worker can take it, as soon as a thread is free."],
    ),
    (no_worker, "no live worker", ["No worker is live. Start one: flask workflows work. Due 12 s ago."]),
    (
        no_worker_for_its_queue,
        "no live worker serves queue bulk",
        ["No live worker serves queue bulk. Start one: flask workflows work --queue bulk."],
    ),
    (
        newer_code,
        "no live worker runs version 3",
        [
            "Waits for a worker with version 3 of onboarding. Live workers run version 2. "
            "It was started by newer code, which no worker has yet."
        ],
    ),
    (
        older_code,
        "no live worker runs version 1",
        [
            "Waits for a worker with version 1 of onboarding.",
            "It was started by older code, which this app's no longer takes over: it fails 5 min after it was due",
        ],
    ),
    (nobodys_code, "no live worker knows old_import", ["No workflow named old_import is in this app's code."]),
    (running, "post_entries, on web-1:4711", ["Step 1, post_entries, runs for 9 s on web-1:4711."]),
    (
        silent_worker,
        "post_entries, on a process that is no live worker",
        [
            "Its worker, web-2:4411, was last seen 48 s ago. Unless it comes back, any live worker takes the run over "
            "in 12 s. Step 1, post_entries, then starts again, attempt 2 of 3."
        ],
    ),
    (
        lost_worker,
        "post_entries, lease ran out 1 min ago",
        [
            "Its worker, web-2:4411, does not answer; the lease ran out 1 min ago. Any live worker takes it over at its "
            "next look. Step 1, post_entries, then starts again, attempt 2 of 3."
        ],
    ),
    (sleeping, "wakes Tue 1 Dec 03:00", ["Sleeps until Tue 1 Dec 03:00, in 15 h."]),
    (overdue, "no live worker, due 3 min ago", ["It should have woken 3 min ago. No worker is live."]),
    (due_now, "wakes now", ["It wakes now: a worker takes it at its next look."]),
    (
        waiting,
        "event refund.approved",
        [
            'Waiting for event refund.approved with order = "order-8812" and token (hidden: matches “token”). '
            "Since 12:00:00. At most until 14:00:00, in 2 h. 2 of that name came since, with other values."
        ],
    ),
    (
        waiting_for_a_message,
        "message approve",
        [
            "Waiting for message approve. Since 12:00:00. It waits for good. "
            "1 of that name came that no worker has looked at yet."
        ],
    ),
    (
        retrying,
        "fetch, try 3 of 8 in 40 s. ConnectionError",
        ["Step 2, fetch, failed 2 of 8 times, with ConnectionError. Next try in 40 s. ConnectionError: refused"],
    ),
    (
        failed,
        "KeyError: 'vat_id'",
        ["Failed at step 2, render_pdf: KeyError: 'vat_id' It was tried 5 times. 2 other runs failed the same way."],
    ),
    (
        changed_code,
        "NonDeterminismError: step 2 was recorded as 'reserve'",
        [
            "Failed: the code no longer makes the calls that were recorded. step 2 was recorded as 'reserve', the code "
            "now calls 'charge'. Once the code makes them again, a retry goes on from there."
        ],
    ),
    (
        lost_each_time,
        "WorkerLost: worker lost at step 'charge'",
        ["Failed: its worker was lost at each attempt. worker lost at step 'charge'"],
    ),
    (
        dropped_version,
        "SetupError: no live worker resumes it",
        ["Failed: no code takes up version 1 any more. no live worker resumes it"],
    ),
    (
        cancelling,
        "stops at the next step, asked 8 s ago",
        [
            "Cancelling was asked for by ana 8 s ago; the run stops at its next step. "
            "Step 1, post_entries, finishes first."
        ],
    ),
    (completed, "2 s", ["Done in 2 s. Kept until 30 Dec 11:59 (30 days)."]),
    (cancelled, "cancelled", ["Cancelled by ana before it began, 58 s ago. Kept until"]),
]
IDS = [make.__name__ for make, _, _ in SENTENCES]


@pytest.mark.parametrize(("make", "line", "sentences"), SENTENCES, ids=IDS)
def test_b159_page_list_and_terminal_name_the_cause(
    app: Flask, client: FlaskClient, rows: Rows, make: Callable[[Rows], str], line: str, sentences: list[str]
) -> None:
    run_id = make(rows)

    page, show = page_of(client, run_id), shown(app, "show", run_id)
    for sentence in sentences:
        assert sentence in page
        assert sentence in show
    assert "in 0 s" not in page + show

    listed = client.get("/workflows/runs").text
    row = re.search(rf'<tr role="row" id="run-{run_id}".*?</tr>', listed, re.DOTALL)
    assert row is not None
    words = re.sub(r"<[^>]+>", "", row[0]).replace("&#39;", "'")
    assert line in " ".join(words.split())
    (told,) = [told for told in shown_lines(app) if run_id in told]
    # There times stand in full, and who waits for nothing but time or is done is told by them.
    assert line in told or make in (sleeping, cancelled)


def shown_lines(app: Flask) -> list[str]:
    result = app.test_cli_runner().invoke(args=["workflows", "list"])
    assert result.exit_code == 0
    return [str(line) for line in result.output.splitlines()]


def test_failures_of_the_same_cause_are_one_link_away(client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows)

    response = client.get(f"/workflows/run/{run_id}")
    (link,) = [link for link in links(response) if "cause" in link]
    listed = client.get(link)

    assert listed.status_code == 200
    assert len(re.findall(r'<tr role="row" id="run-', listed.text)) == 3


def test_b110_failures_elsewhere_are_not_counted(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: ["ours"])
    for workspace in ("ours", "theirs", "theirs"):
        rows.run("failed", cause="c1", error=error_json(), workspace=workspace)
    run_id = rows.run("failed", cause="c1", error=error_json(), workspace="ours")

    assert "1 other run failed the same way." in page_of(client, run_id)


def test_why_not_lists_every_other_action_with_its_reason(client: FlaskClient, rows: Rows) -> None:
    text = page_of(client, sleeping(rows))

    assert "Why can\N{RIGHT SINGLE QUOTATION MARK}t I retry or release lease?" in text
    assert "Retry Only a failed or cancelled run can be retried; this one is sleeping." in text
    assert "Release lease No worker holds it: it is sleeping." in text
    assert (
        "Why can\N{RIGHT SINGLE QUOTATION MARK}t I wake now, move timer, release lease, send message, pause or cancel?"
        in page_of(client, failed(rows))
    )


def test_action_that_helps_most_stands_beside_the_explanation(client: FlaskClient, rows: Rows) -> None:
    def beside(run_id: str) -> list[str]:
        page = client.get(f"/workflows/run/{run_id}").text
        box = page.partition('<section class="fw-why')[2].partition("</section>")[0]
        return re.findall(r'<a class="fw-button fw-go" href="([^"]*)"', box)

    assert beside(no_worker(rows)) == ["/workflows/workers"]
    failed_id, asleep, lost, done = failed(rows), sleeping(rows), lost_worker(rows), rows.run(workflow="onboarding")
    assert beside(failed_id) == [f"/workflows/run/{failed_id}/retry"]
    assert beside(asleep) == [f"/workflows/run/{asleep}/wake"]
    assert beside(waiting(rows)) == ["/workflows/events/new?name=refund.approved"]
    assert beside(lost) == [f"/workflows/run/{lost}/release"]
    assert beside(done) == [f"/workflows/runs/new?like={done}"]
    assert beside(rows.run(workflow="gone")) == []


# What it shows besides ---------------------------------------------------------------------


def published(run_id: str, key: str, value: Any) -> dict[str, Any]:
    return {"run_id": run_id, "key": key, "value": json.dumps(value), "updated_at": NOW_MS - 5_000}


def everything(rows: Rows) -> str:
    """A run that has one of each."""
    run_id = rows.run("waiting", due_at=None, input='{"order": "in-payload"}')
    rows.step(run_id, "load", 1, input='["step-payload"]', output='"out-payload"')
    child = rows.run(id="child-of-it")
    rows.step(run_id, "$start:child", 2, kind="start", output=json.dumps({"id": child, "created": True}))
    seq = rows.event("paid", ago=0, payload='{"amount": "event-payload", "card": "4111"}')
    rows.event("note", ago=0, run_id=run_id, payload='"message-payload"', matched_at=None)
    rows.step(run_id, "$wait:paid", 3, kind="wait", event_seq=seq)
    waits = {"events": [{"name": "more", "match": {"id": "match-payload"}}]}
    rows.step(run_id, "$wait:more", 4, "waiting", kind="wait", input=json.dumps(waits))
    rows.step(run_id, "caught", 5, "failed", error=error_json("E", "error-payload", traceback="trace-payload"))
    state = [published(run_id, "$progress", {"done": 30, "total": 100, "note": "note-payload"})]
    rows.insert(models.state, [*state, published(run_id, "basket", {"sum": "state-payload", "token": "t"})])
    rows.insert(models.audit, [audit_row(run_id, action="start", actor="ben", reason="audit-reason")])
    return run_id


def test_page_shows_events_messages_state_children_and_history(client: FlaskClient, rows: Rows) -> None:
    run_id = everything(rows)

    response = client.get(f"/workflows/run/{run_id}")
    text = text_of(response)

    assert "note message 12:00:00 not taken yet &quot;message-payload".replace("&quot;", '"') in text
    assert "paid event 12:00:00 by wait paid, 12:00:01 " in text
    assert '"amount": "event-payload", "card": hidden: matches “card”' in text
    assert "It says it is at 30 of 100: note-payload (5 s ago)" in text
    assert ("progress", {"id": "fw-progress", "max": "100", "value": "30"}) in Tags(response.text).found
    assert 'basket { "sum": "state-payload", "token": hidden: matches “token” } 5 s ago' in text
    assert "/workflows/run/child-of-it" in links(response)
    assert "11:59:52 ben start: running to cancelling audit-reason" in text
    assert "Started by ben" in text
    assert client.get("/workflows/run/child-of-it").status_code == 200


def test_payloads_need_their_own_permission(client: FlaskClient, rows: Rows, workflows: Workflows, app: Flask) -> None:
    workflows.authorize(lambda action, run=None: action != "view_payload")
    run_id = everything(rows)
    failed_id = rows.run("failed", error=error_json("app.Bad", "error-payload", traceback="trace-payload"))
    paths = [f"/workflows/run/{run_id}", f"/workflows/run/{failed_id}", "/workflows/runs"]
    paths += [f"/workflows/run/{run_id}/step/{number}" for number in range(1, 6)]

    with statements_of(app) as seen:
        pages = [client.get(path) for path in paths]

    for page in pages:
        assert page.status_code == 200
        assert "payload" not in page.text
    text = text_of(pages[0])
    assert "Input and output You are not allowed to see them." in text
    assert "You are not allowed to see what they carry." in text
    assert "You are not allowed to see the values." in text
    assert "Waiting for event more with a certain id." in text
    assert "Failed: Bad" in text_of(pages[1])
    assert "Error app.Bad You are not allowed to see what it says." in text_of(pages[1])
    assert not [
        sql for sql in seen if re.search(r"(runs|steps)\.(input|output)\b", sql) and "SUBSTR" not in sql.upper()
    ]
    for name in ("input.json", "output.json", "step/1/input.json"):
        assert client.get(f"/workflows/run/{run_id}/{name}").status_code == 403


def test_history_needs_its_own_permission(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: action != "view_audit")

    for make in (everything, cancelling):
        text = page_of(client, make(rows))
        assert "ana" not in text
        assert "ben" not in text
        assert "History" not in text


@contextmanager
def statements_of(app: Flask) -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    engine = apps.runtime_of(app).engine
    sa.event.listen(engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize("make", [everything, failed, running, silent_worker, its_turn], ids=lambda make: make.__name__)
def test_page_asks_little_of_the_database(
    app: Flask, client: FlaskClient, rows: Rows, make: Callable[[Rows], str]
) -> None:
    run_id = make(rows)
    client.get(f"/workflows/run/{run_id}")

    with statements_of(app) as seen:
        page_of(client, run_id)
    with statements_of(app) as few:
        client.get(f"/workflows/run/{run_id}/step/1")

    selects = [sql for sql in seen if sql.lstrip().upper().startswith(("SELECT", "WITH"))]
    assert len(selects) <= 16
    assert len([sql for sql in few if sql.lstrip().upper().startswith(("SELECT", "WITH"))]) <= 10


def test_number_of_statements_does_not_grow_with_the_run(app: Flask, client: FlaskClient, rows: Rows) -> None:
    small, large = rows.run("failed", error=error_json("E", "m" * 2_000)), long_run(rows, 2_000)

    counts = []
    for run_id in (small, large):
        rows.step(run_id, "last", 100_000, "failed", error=error_json("E", "m" * 2_000))
        with statements_of(app) as seen:
            page_of(client, run_id)
        counts.append(len(seen))

    assert counts[0] == counts[1]


# Steps -------------------------------------------------------------------------------------


def long_run(rows: Rows, count: int, **values: Any) -> str:
    run_id = rows.run("failed", error=error_json("E", "m" * 2_000, traceback="T" * 20_000), **values)
    statuses = dict.fromkeys(range(60, count, 7), "failed")
    made = [
        step_row(
            run_id,
            f"send_invoice#{number}",
            number,
            statuses.get(number, "completed"),
            error=error_json("requests.exceptions.ConnectionError", "<" * 500) if number in statuses else None,
        )
        for number in range(1, count + 1)
    ]
    rows.insert(models.steps, made)
    return run_id


def test_long_run_stays_a_small_page(client: FlaskClient, rows: Rows) -> None:
    large = json.dumps({"a": ['"' * 100] * 50_000})
    run_id = long_run(rows, 2_000, input=large, output=large)
    query = "?status=failed&workflow=onboarding&queue=default&time=24h"

    response = client.get(f"/workflows/run/{run_id}{query}")

    numbers = [int(number) for number in re.findall(r'id="step-(\d+)"', response.text)]
    assert numbers[:50] == [*range(1, 51)]
    assert numbers[-50:] == [*range(1_951, 2_001)]
    assert numbers[50:-50] == [*range(60, 60 + 7 * 15, 7)]
    assert "Show steps 51 to 59 60" in text_of(response)
    assert "Show steps 159 to 358 1,792 steps left out" in text_of(response)
    assert len(response.data) < 60_000


def test_unfinished_steps_of_a_long_run_go_before_failed_ones(client: FlaskClient, rows: Rows) -> None:
    run_id = long_run(rows, 1_000)
    rows.step(run_id, "now", 700, "running")

    assert re.search(
        r'id="step-700" class="fw-current" aria-current="true"', client.get(f"/workflows/run/{run_id}").text
    )


def test_steps_are_filtered_by_name_and_state(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker="w", due_at=NOW_MS + 20_000)
    made = [step_row(run_id, f"a_b#{n}" if n % 2 else f"aXb#{n}", n) for n in range(1, 501)]
    rows.insert(models.steps, made)
    rows.step(run_id, "A_B%last", 501, "running")

    def numbers(query: str) -> list[int]:
        response = client.get(f"/workflows/run/{run_id}{query}")
        assert response.status_code == 200
        return [int(number) for number in re.findall(r'id="step-(\d+)"', response.text)]

    assert numbers("?step=a_b") == [*range(1, 400, 2)]
    assert numbers("?step=a_b&steps=401") == [*range(401, 501, 2), 501]
    assert numbers("?step=%25") == [501]
    assert numbers("?step=a_b&step_state=running") == [501]
    assert numbers("?step_state=failed") == []
    assert len(numbers("?step_state=nonsense")) == 100
    assert numbers("?step=%00") == numbers("?step=+") == numbers("")
    page = client.get(f"/workflows/run/{run_id}?step=a_b&status=running")
    text = text_of(page)
    assert "Show those after step 399" in text
    assert "Show all steps" in text
    (after,) = [link for link in links(page) if "steps=400" in link]
    assert "status=running" in after
    assert "step=a_b" in after
    assert "No step matches." in page_of(client, run_id, "?step=nothing")
    assert polled(client, page).status_code == 204


def test_waits_are_shown_at_full_length_where_that_is_asked_for(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run()
    for number, (begin, end) in enumerate([(0, 1_000), (1_000, 9_000_000), (9_000_000, 9_001_000)], start=1):
        kind = "sleep" if number == 2 else "step"
        rows.step(run_id, f"s{number}", number, kind=kind, started_at=NOW_MS + begin, finished_at=NOW_MS + end)

    page = client.get(f"/workflows/run/{run_id}")
    (link,) = [link for link in links(page) if "waits=full" in link]
    whole = client.get(link)

    assert "fw-bar-cut" in page.text
    assert "fw-bar-cut" not in whole.text
    assert "Shorten waits" in text_of(whole)


def test_step_has_a_page_of_its_own(client: FlaskClient, rows: Rows) -> None:
    earlier = [
        {"started_at": NOW_MS - 60_000, "finished_at": NOW_MS - 58_000, "error": {"type": "E", "message": "first"}},
        {"started_at": NOW_MS - 30_000, "finished_at": NOW_MS - 29_000, "error": {"type": "E", "message": "second"}},
    ]
    run_id = rows.run("failed", error=error_json())
    rows.step(run_id, "load", 1)
    rows.step(
        run_id,
        "fetch",
        2,
        "failed",
        attempts=3,
        input='{"url": "x", "token": "hunter2"}',
        output=None,
        error=error_json("E", "third", traceback='File "a.py", line 3, in f\n    g()\n'),
        earlier=json.dumps(earlier),
    )
    rows.step(run_id, "clean_up", 3)

    link = f"/workflows/run/{run_id}/step/2"
    assert link in links(client.get(f"/workflows/run/{run_id}"))
    response = client.get(link)
    text = text_of(response)

    assert "<title>Failed · step 2, fetch · onboarding" in response.text
    assert "Step 2 of 3 fetch Failed" in text
    assert "Step before Step after" in text
    assert "Tries 3 of 8" in text
    assert 'Input { "url": "x", "token": hidden: matches “token” }' in text
    assert "Output It has none." in text
    assert "Attempt 3 Failed began 12:00:00, took 1 s E: third a.py:3 in f g()" in text
    assert "Attempt 2 Failed began 11:59:30, took 1 s E: second" in text
    assert "Attempt 1 Failed began 11:59:00, took 2 s E: first" in text
    assert "hunter2" not in response.text


def test_step_that_waits_for_its_next_try_shows_the_last_one_once(client: FlaskClient, rows: Rows) -> None:
    attempt = {"started_at": NOW_MS - 9_000, "finished_at": NOW_MS - 8_000, "error": {"type": "E", "message": "once"}}
    run_id = rows.run("sleeping", due_at=NOW_MS + 40_000)
    rows.step(run_id, "fetch", 1, "retrying", error=error_json("E", "once"), earlier=json.dumps([attempt]))

    text = text_of(client.get(f"/workflows/run/{run_id}/step/1"))

    assert text.count("once") == 1
    assert "Attempt 1 Failed" in text


@pytest.mark.parametrize("number", ["0", "2", "999999999999999999999999", "-1", "x"])
def test_step_there_is_none_of_is_a_404(client: FlaskClient, rows: Rows, number: str) -> None:
    run_id = rows.run()
    rows.step(run_id, "a", 1)

    assert client.get(f"/workflows/run/{run_id}/step/{number}").status_code == 404
    assert client.get(f"/workflows/run/{run_id}/step/{number}/input.json").status_code == 404


def test_b110_step_and_values_of_a_run_outside_the_scope_are_not_there(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.scope(lambda: "ours")
    run_id = rows.run(workspace="theirs")
    rows.step(run_id, "a", 1)

    for path in ("", "/step/1", "/input.json", "/output.json", "/step/1/output.json"):
        assert client.get(f"/workflows/run/{run_id}{path}").status_code == 404


def test_long_step_stays_a_small_page(client: FlaskClient, rows: Rows) -> None:
    attempt = {"started_at": NOW_MS, "finished_at": NOW_MS, "error": {"type": "E", "message": "m" * 900}}
    error = error_json(
        "E", "<" * 5_000, traceback="\n".join(f'File "a.py", line {n}, in f\n  g()' for n in range(5_000))
    )
    run_id = rows.run()
    large = json.dumps({"a": "<" * 5_000_000})
    rows.step(
        run_id,
        "a",
        1,
        "failed",
        input=large,
        output=large,
        error=error,
        attempts=200,
        earlier=json.dumps([attempt] * 199),
    )

    response = client.get(f"/workflows/run/{run_id}/step/1")

    assert "189 earlier attempts left out." in text_of(response)
    assert len(response.data) < 60_000


# Whole values ------------------------------------------------------------------------------


def test_whole_values_are_files_without_secrets(client: FlaskClient, rows: Rows) -> None:
    """B111"""
    value = {"rows": [{"n": n, "password": "hunter2"} for n in range(20_000)]}
    run_id = rows.run(input=json.dumps(value), output="null")
    rows.step(run_id, "a", 1, output='{"token": "hunter2", "b": 1.50}')

    response = client.get(f"/workflows/run/{run_id}/input.json")
    found = json.loads(response.data)
    assert response.headers["Content-Disposition"] == f'attachment; filename="{run_id}-input.json"'
    assert response.mimetype == "application/json"
    assert len(found["rows"]) == 20_000
    assert found["rows"][7] == {"n": 7, "password": "hidden: matches password"}
    assert b"hunter2" not in response.data
    assert client.get(f"/workflows/run/{run_id}/output.json").data == b"null\n"
    step = client.get(f"/workflows/run/{run_id}/step/1/output.json")
    assert step.data == b'{\n  "token": "hidden: matches token",\n  "b": 1.50\n}\n'
    assert f'filename="{run_id}-step-1-output.json"' in step.headers["Content-Disposition"]
    assert client.get(f"/workflows/run/{run_id}/step/1/input.json").status_code == 404
    assert client.get(f"/workflows/run/{run_id}/error.json").status_code == 404


def test_value_that_is_too_large_is_not_sent(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.dashboard.views.step.DOWNLOAD_LIMIT", 1_000)
    run_id = rows.run(input=json.dumps("x" * 2_000))

    response = client.get(f"/workflows/run/{run_id}/input.json")

    assert response.status_code == 413
    assert "The input takes 2 kB; at most 1 kB are sent." in text_of(response)


@pytest.mark.parametrize("run_id", ["a/b", 'a"b', "ü 😀", "../../etc/passwd"])
def test_name_of_the_file_holds_nothing_odd(client: FlaskClient, rows: Rows, run_id: str) -> None:
    rows.run(id=run_id)
    (link,) = [link for link in links(client.get("/workflows/runs")) if "/run/" in link]

    response = client.get(f"{link}/input.json")

    assert response.status_code == 200
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+-input\.json"', response.headers["Content-Disposition"])


# Markup, real runs -------------------------------------------------------------------------


def test_b109_markup_in_stored_texts_is_shown_as_text(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    worker = rows.worker(EVIL, host=EVIL, seen_ago=300)
    evil = json.dumps({EVIL: EVIL})
    run_id = rows.run(
        "waiting", workflow=EVIL, queue=EVIL, key=EVIL, workspace=EVIL, due_at=None, input=evil, output=evil
    )
    waits = {"events": [{"name": EVIL, "match": {EVIL: EVIL}}]}
    rows.step(run_id, f"$wait:{EVIL}", 1, "waiting", kind="wait", input=json.dumps(waits))
    rows.step(run_id, f"$start:{EVIL}", 2, kind="start", output=json.dumps({"id": EVIL}))
    rows.step(run_id, EVIL, 3, "failed", input=evil, output=evil, error=error_json(EVIL, EVIL, traceback=EVIL))
    rows.event(EVIL, run_id=run_id, payload=evil)
    progress = published(run_id, "$progress", {"done": 1, "total": None, "note": EVIL})
    rows.insert(models.state, [progress, published(run_id, EVIL, {EVIL: EVIL})])
    rows.insert(models.audit, [audit_row(run_id, actor=EVIL, reason=EVIL, before=EVIL, after="x", target=EVIL)])
    lost = rows.run("running", workflow=EVIL, worker=worker, due_at=NOW_MS - 60_000)
    rows.step(lost, EVIL, 1, "running")

    paths = [f"/workflows/run/{run_id}", f"/workflows/run/{lost}", f"/workflows/run/{run_id}?step={EVIL}"]
    paths += [f"/workflows/run/{run_id}/step/{number}" for number in (1, 2, 3)]
    paths += [f"/workflows/run/{run_id}/{action}" for action in ("cancel", "send", "retry", "release")]
    paths += [f"/workflows/run/{lost}/release"]
    for path in paths:
        response = client.get(path)
        assert response.status_code in (200, 409)
        assert EVIL not in response.text
        assert EVIL in text_of(response)
        for tag, attributes in Tags(response.text).found:
            assert tag != "img"
            assert tag != "script" or attributes.get("src")
            assert not [name for name in attributes if name.startswith("on")]


def test_page_follows_a_real_run(database_url: str, make_app: apps.MakeApp) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
    workflows.clock = clock = Clock()
    workflows.event("paid")

    @workflows.workflow
    def child() -> None:
        """Ends."""

    @workflows.workflow
    def order(ctx: WorkflowContext, order_id: int) -> str:
        ctx.progress(1, 3, "began")
        ctx.set("basket", {"sum": 7})
        child.start()
        paid = ctx.wait_for("paid", match={"order_id": order_id})
        assert paid is not None
        approved = ctx.receive("approve")
        assert approved is not None
        return str(approved.payload)

    app = make_app(database_url, workflows=workflows)
    client = app.test_client()
    runtime = apps.runtime_of(app)
    with app.app_context():
        run_id, _ = service.start(runtime, "order", {"order_id": 7}, by=By("ana", reason="by hand"))
        workflows.tick()
        workflows.deliver("paid", {"order_id": 8})
        workflows.tick()

    page = client.get(f"/workflows/run/{run_id}")
    text = text_of(page)
    assert "Waiting for event paid with order_id = 7." in text
    assert "1 of that name came since, with other values." in text
    assert "It says it is at 1 of 3: began" in text
    assert "Started by ana" in text
    child_link, *_ = [link for link in links(page) if "/run/" in link and run_id not in link]
    assert client.get(child_link).status_code == 200

    clock.move(seconds=5)
    with app.app_context():
        workflows.deliver("paid", {"order_id": 7})
        workflows.tick()
        service.send(runtime, run_id, "approve", '"yes"', by=By("ben"))
        workflows.tick()

    text = text_of(polled(client, page))
    assert 'Output "yes"' in text
    assert 'approve message 12:00:05 by receive approve, 12:00:05 "yes"' in text
    assert 'paid event 12:00:05 by wait paid, 12:00:05 { "order_id": 7 }' in text
    assert "ben send message approve" in text


@pytest.mark.parametrize("zone", ["", "Pacific/Kiritimati", "America/New_York"])
def test_run_that_sleeps_until_the_end_of_the_calendar_has_its_pages(
    client: FlaskClient, rows: Rows, zone: str
) -> None:
    last = 253_402_300_799_000
    sleeping = rows.run("sleeping", due_at=last)
    rows.step(sleeping, "$sleep", 1, "sleeping", kind="sleep", due_at=last)
    finished = rows.run("completed", finished_at=last)
    client.set_cookie("workflows_view", f"zone={zone}")

    for path in (f"run/{sleeping}", f"run/{sleeping}/move", f"run/{finished}", "runs", "waits", ""):
        assert client.get(f"/workflows/{path}").status_code == 200
