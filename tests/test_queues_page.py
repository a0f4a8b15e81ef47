from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.errors import ReadTimeout
from flask_workflows.runs import Count
from flask_workflows.store import reading as read
from flask_workflows.store.reading.queues import QueueCounts
from flask_workflows.store.reading.queues import Queues
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import text_of
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.plans import statements
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import tables

EVIL = "<img src=x onerror=alert(1)>"


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


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def counted(rows: Rows, workspaces: tuple[str, ...] | None = None, **options: int) -> Queues:
    with read.reading(rows.engine) as connection:
        return read.count_queues(connection, NOW, workspaces, **options)


def by_name(found: Queues) -> dict[str, QueueCounts]:
    return {queue.name: queue for queue in found.queues}


def fill(rows: Rows, **values: object) -> None:
    """Three due, one of them an overdue sleeper, two held, one asleep, two that wait; and one that is done."""
    rows.run("pending", due_at=NOW_MS - 30_000, **values)
    rows.run("pending", due_at=NOW_MS - 10_000, **values)
    rows.run("sleeping", due_at=NOW_MS - 20_000, **values)
    rows.run("pending", due_at=NOW_MS + 20_000, worker="w", **values)
    rows.run("running", due_at=NOW_MS - 90_000, worker="w", **values)
    rows.run("sleeping", due_at=NOW_MS + 20_000, **values)
    rows.run("waiting", due_at=NOW_MS + 20_000, **values)
    rows.run("waiting", due_at=None, **values)
    rows.run("completed", **values)


@pytest.mark.parametrize("workspaces", [None, ("",), ("", "north")], ids=str)
def test_queues_say_what_they_hold(rows: Rows, workspaces: tuple[str, ...] | None) -> None:
    fill(rows)
    rows.run("running", queue="mail", worker="w")

    found = counted(rows, workspaces)

    assert not found.cut
    default, mail = found.queues
    assert (default.name, mail.name) == ("default", "mail")
    assert (default.due, default.running, default.sleeping, default.waiting) == (Count(3), Count(2), Count(1), Count(2))
    assert default.oldest is not None
    assert (NOW - default.oldest).total_seconds() == 30
    assert (mail.due, mail.oldest, mail.running) == (Count(0), None, Count(1))


def test_long_backlog_hides_no_other_queue(rows: Rows) -> None:
    # Older than all that is in the way, so the newest do not show it.
    rows.run("pending", queue="mail", workflow="mailing", ago=9_000, due_at=NOW_MS - 5_000)
    rows.insert(
        models.runs, [run_row("pending", queue="bulk", workflow="imports", due_at=NOW_MS - n) for n in range(300)]
    )

    found = counted(rows, scan=100, share=50)

    queues = by_name(found)
    assert found.cut
    assert queues["bulk"].due == Count(50, capped=True)
    assert queues["mail"].due == Count(1)
    assert queues["mail"].oldest is not None


def test_counts_within_workspaces_say_when_they_are_cut(rows: Rows) -> None:
    rows.insert(models.runs, [run_row("pending", workspace="north", due_at=NOW_MS - n) for n in range(120)])

    found = counted(rows, ("north",), scan=100)

    assert found.cut
    assert by_name(found)["default"].due == Count(100, capped=True)


def test_page_shows_queues_and_leads_to_their_runs(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    fill(rows)
    rows.run("pending", queue="mail", due_at=NOW_MS - 90_000)
    rows.worker("web-1:1", queues='["default", "spare"]')

    response = client.get("/workflows/queues")

    text = text_of(response)
    assert response.status_code == 200
    assert "default 3 pending 30 s 2 running 1 sleeping 2 waiting 1 " in text
    assert (
        "mail No live worker serves it. Start one: flask workflows work --queue mail 1 pending 1 min 0 0 0 none" in text
    )
    assert "spare 0 0 0 0 1" in text
    assert "/workflows/runs?queue=mail&status=pending" in links(response)
    assert "/workflows/runs?queue=default" in links(response)
    assert polled(client, response).status_code == 204
    rows.run("pending", due_at=NOW_MS)
    assert polled(client, response).status_code == 200


def test_default_queue_needs_no_name_in_the_command(app: Flask, rows: Rows) -> None:
    rows.run("pending", due_at=NOW_MS - 5_000)

    assert "Start one: flask workflows work 1 pending" in text_of(app.test_client().get("/workflows/queues"))


def test_bar_leads_there_when_there_are_several(app: Flask, workflows: Workflows) -> None:
    client = app.test_client()
    assert "/workflows/queues" not in links(client.get("/workflows/runs"))

    @workflows.workflow(queue="mail")
    def mailing() -> None:
        """Sends."""

    assert "/workflows/queues" in links(client.get("/workflows/runs"))
    assert "mail 0 0 0 0 none" in text_of(client.get("/workflows/queues"))


def test_nothing_in_use_is_told(database_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(database_url, workflows=Workflows(authorize=lambda action, run=None: True))

    assert "No queue is in use." in text_of(app.test_client().get("/workflows/queues"))


def test_slow_count_says_so(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "count_queues", slow)

    assert "Took over 2 s." in text_of(app.test_client().get("/workflows/queues"))


def test_b110_queues_of_other_workspaces_are_not_there(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: ["north"])
    rows.run("pending", workspace="north", due_at=NOW_MS - 5_000)
    fill(rows, workspace="south")
    fill(rows)
    rows.run("pending", workspace="south", queue="secret-launch", due_at=NOW_MS - 5_000)

    text = text_of(app.test_client().get("/workflows/queues"))

    assert "1 pending 5 s 0 0 0 none" in text
    assert "secret-launch" not in text


@pytest.mark.parametrize("workspaces", [(), ("",), ("north", "south"), tuple("abcdefghijklmno") * 5], ids=len)
def test_b110_scopes_of_any_size_hold_what_they_name(rows: Rows, workspaces: tuple[str, ...]) -> None:
    made = ("", "north", "south", "a")
    for workspace in made:
        fill(rows, workspace=workspace)

    inside = len([workspace for workspace in made if workspace in workspaces])
    queues = by_name(counted(rows, workspaces))

    assert {name: queue.due for name, queue in queues.items()} == ({"default": Count(3 * inside)} if inside else {})


def test_b109_names_are_text(app: Flask, rows: Rows) -> None:
    rows.run("pending", queue=EVIL, due_at=NOW_MS - 5_000)

    response = app.test_client().get("/workflows/queues")

    assert "<img" not in response.text
    assert "&lt;img src=x" in response.text


# Plans -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(shared_url: str) -> Iterator[Rows]:
    """Many that are done, a backlog, and some that sleep."""
    with tables(shared_url) as rows:
        statuses = {0: "pending", 1: "sleeping", 2: "waiting", 3: "running"}
        rows.insert(
            models.runs,
            [
                run_row(
                    statuses.get(n % 40, "completed"),
                    workflow=f"workflow-{n % 7}",
                    queue=("default", "mail")[n % 2],
                    workspace=("", "north", "south")[n % 3],
                    due_at=NOW_MS if n % 40 in statuses else None,
                )
                for n in range(12_000)
            ],
        )
        analyze(rows)
        yield rows
        models.metadata.drop_all(rows.engine)


@pytest.mark.parametrize("scan", [10_000, 100])
@pytest.mark.parametrize("workspaces", [None, ("north",), ("", "north"), tuple(map(str, range(60)))], ids=str)
def test_every_count_is_served_by_an_index(large: Rows, workspaces: tuple[str, ...] | None, scan: int) -> None:
    def look(connection: sa.Connection) -> object:
        return read.count_queues(connection, NOW, workspaces, scan=scan, share=50)

    assert_served(plans(large, look))
    assert not any(word in sql for sql, _ in statements(large, look) for word in (".input", ".output"))
