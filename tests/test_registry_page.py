"""The registry's pages: what is declared, and what the database has of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from typing import NotRequired
from typing import TypedDict

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import phrases
from flask_workflows import Retry
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.dashboard import declarations
from flask_workflows.dashboard.pages.registry import may_remove
from flask_workflows.dashboard.pages.registry import resumed_by
from flask_workflows.dashboard.visit import Kept
from flask_workflows.errors import ReadTimeout
from flask_workflows.registry import Registry
from flask_workflows.retry import Backoff
from flask_workflows.runs import Unfinished
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row

EVIL = "<img src=x onerror=alert(1)>"


class FixedClock:
    def now(self) -> datetime:
        return NOW


class Refund(TypedDict):
    order: int
    note: NotRequired[str]


@dataclass
class Base:
    order: int


@dataclass
class Paid(Base):
    amount: float = 0.0


class Declined(Exception):
    pass


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow(name="refund-order", version=1)
    def refund_1(ctx: WorkflowContext, order: int) -> bool:
        return True

    @workflows.workflow(name="refund-order", version=3, min_version=2, queue="payments")
    def refund_3(ctx: WorkflowContext, order: int, *, reason: str = "none given", api_key: str = "sk-123") -> bool:
        """Pays an order back.

        Asks a person first where it is a large one.
        """
        return True

    @workflows.workflow
    def nightly() -> None:
        pass

    @workflows.step(retry=Retry(attempts=5, backoff=Retry.exponential(60, max=3600)), raises=Declined)
    def charge(account: int) -> None:
        """Takes the money."""

    @workflows.step(transactional=True, timeout=90)
    def book() -> None: ...

    workflows.event("refund.approved")(Refund)
    workflows.event("order.paid")(Paid)
    workflows.event("nothing.typed")
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


def worker_for(rows: Rows, *ranges: tuple[str, int, int], queues: list[str] | None = None) -> None:
    rows.worker(workflows=json.dumps(ranges), queues=None if queues is None else json.dumps(queues))


def test_registry_lists_what_is_declared(client: FlaskClient, rows: Rows) -> None:
    rows.run("pending", workflow="refund-order", version=3)
    rows.run("waiting", workflow="refund-order", version=1, due_at=None)
    rows.run("completed", workflow="refund-order", version=1)
    worker_for(rows, ("refund-order", 2, 3), queues=["payments"])
    worker_for(rows, ("refund-order", 2, 3), ("nightly", 1, 1), queues=["mail"])

    text = text_of(client.get("/workflows/registry"))

    assert "Workflows 2 declared" in text
    assert "nightly 1 default 0 none" in text
    assert (
        "refund-order Pays an order back. 1, 3 (takes runs from 2) payments 2 1 none tests/test_registry_page.py:"
        in text
    )
    assert "charge Takes the money. 5 attempts, 1 min after the first, doubled each time, at most 1 h" in text
    assert "not again after Declined" in text
    assert (
        "book 3 attempts, 10 s after the first, each time 10 s more; times out after 1 min 30 s transactional" in text
    )
    assert "refund.approved tests.test_registry_page.Refund order: int, note: NotRequired[str]" in text
    assert "order.paid tests.test_registry_page.Paid order: int, amount: float" in text
    assert "nothing.typed plain JSON" in text
    assert "Not in the code" not in text


def ended(rows: Rows, workflow: str, outcome: str, count: int, *, hours_ago: float = 1) -> None:
    at = (NOW_MS - int(hours_ago * 3_600_000)) // 900_000 * 900_000
    row = {"at": at, "workflow": workflow, "outcome": outcome, "count": count, "busy_ms": 1_000 * count}
    rows.insert(models.stats, [row])


def test_what_ended_lately_is_counted(client: FlaskClient, rows: Rows) -> None:
    ended(rows, "refund-order", "completed", 1_234)
    ended(rows, "refund-order", "failed", 12, hours_ago=23)
    ended(rows, "refund-order", "failed", 3, hours_ago=2)
    ended(rows, "refund-order", "cancelled", 2)
    ended(rows, "refund-order", "lost", 7)
    ended(rows, "refund-order", "completed", 999, hours_ago=30)

    words = "1,234 completed, 15 failed, 2 cancelled (1 % failed)"
    assert words in text_of(client.get("/workflows/registry"))
    assert f"Ended in the last 24 hours {words}" in text_of(client.get("/workflows/registry/refund-order"))


def test_b110_what_ended_is_counted_in_own_workspaces(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours"])
    ended(rows, "refund-order", "completed", 1_234)
    rows.run("failed", workflow="refund-order", workspace="ours")
    rows.run("failed", workflow="refund-order", workspace="theirs")
    rows.run("failed", workflow="refund-order", workspace="ours", ago=100_000)
    client = app.test_client()

    listed = client.get("/workflows/registry")
    assert "1,234" not in listed.text
    assert "not known" in text_of(listed)
    page = text_of(client.get("/workflows/registry/refund-order"))
    assert "Ended in the last 24 hours 1 failed (100 % failed)" in page


def test_runs_without_code_are_listed(client: FlaskClient, rows: Rows) -> None:
    rows.run("pending", workflow="old-import", version=2)
    rows.run("sleeping", workflow="old-import", version=4)
    rows.run("completed", workflow="older", version=1)
    worker_for(rows, ("old-import", 1, 4))

    text = text_of(client.get("/workflows/registry"))

    assert "Not in the code Runs of these workflows are stored" in text
    assert "old-import 2, 4 2 1" in text
    assert "older 0 none" in text


def test_workflow_says_everything_about_itself(client: FlaskClient) -> None:
    response = client.get("/workflows/registry/refund-order")

    text = text_of(response)
    assert response.status_code == 200
    assert "Pays an order back. Asks a person first where it is a large one." in text
    assert "Queue payments Returns bool Attempts of the body 3, 5 s more before each" in text
    assert "order int none: it must be given" in text
    assert "reason str 'none given'" in text
    assert "sk-123" not in response.text
    assert "api_key str hidden: matches “api_key”" in text


def test_workflow_says_which_version_may_go(client: FlaskClient, rows: Rows) -> None:
    rows.run("waiting", workflow="refund-order", version=1, due_at=None)
    rows.run("running", workflow="refund-order", version=2)
    rows.run("failed", workflow="refund-order", version=5)
    worker_for(rows, ("refund-order", 2, 3))

    text = text_of(client.get("/workflows/registry/refund-order"))

    assert "5 0 none Not in the code." in text
    assert "3 2 to 3 0 1 No: 1 unfinished run needs it." in text
    assert "2 1 1 Not in the code; its runs go on with version 3." in text
    assert "1 1 1 none No: 1 unfinished run needs it." in text


def test_workflow_without_code_has_a_page(client: FlaskClient, rows: Rows) -> None:
    name = f"a/b {EVIL}"
    rows.run("sleeping", workflow=name, version=2)
    listed = client.get("/workflows/registry")
    (address,) = [
        attributes["href"] or ""
        for _, attributes in Tags(listed.text).found
        if "/registry/a" in (attributes.get("href") or "")
    ]

    response = client.get(address)

    assert response.status_code == 200
    assert "declares no workflow of this name" in text_of(response)
    assert "2 1 none Not in the code: its runs wait for a worker that has it." in text_of(response)
    assert not [tag for tag, _ in Tags(response.text).found if tag == "img"]


@pytest.mark.parametrize("name", ["nope", "a%2Fb", "%00", "%F0%9F%98%80"])
def test_unknown_workflow_is_a_404(client: FlaskClient, name: str) -> None:
    response = client.get(f"/workflows/registry/{name}")

    assert response.status_code == 404
    assert "There is no such workflow" in text_of(response)


def test_modules_only_workers_import_are_named(make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_IMPORTS=["shop.mail.workflows", "tests.rows"])

    text = text_of(app.test_client().get("/workflows/registry"))

    assert "Not imported in this process, so what they declare is missing here: shop.mail.workflows (" in text
    assert "shop.mail.workflows" in text_of(app.test_client().get("/workflows/registry/nope"))


def test_b110_other_workspaces_are_not_counted(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours"])
    rows.run("pending", workflow="refund-order", version=3, workspace="ours")
    rows.run("pending", workflow="refund-order", version=1, workspace="theirs")
    rows.run("pending", workflow="refund-order", version=1, workspace="")
    rows.run("pending", workflow="their-own", workspace="theirs")
    rows.run("completed", workflow="their-old", workspace="theirs")
    rows.run("pending", workflow="our-own", workspace="ours")
    client = app.test_client()

    listed = text_of(client.get("/workflows/registry"))
    page = text_of(client.get("/workflows/registry/refund-order"))

    assert "payments 1 none" in listed
    assert "our-own" in listed
    assert "their-" not in listed
    assert "1 1 0 none Yes: no unfinished run needs it." in page
    for name in ("their-own", "their-old"):
        assert client.get(f"/workflows/registry/{name}").status_code == 404
    assert client.get("/workflows/registry/our-own").status_code == 200


def test_count_that_takes_too_long_says_so(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "count_unfinished", slow)
    monkeypatch.setattr(read, "workflow_names", slow)

    listed = client.get("/workflows/registry")
    page = client.get("/workflows/registry/refund-order")

    assert listed.status_code == page.status_code == 200
    assert "took too long" in text_of(listed)
    assert "Not known: counting took too long." in text_of(page)


def test_registry_is_answered_204_until_something_changes(client: FlaskClient, rows: Rows) -> None:
    for path in ("/workflows/registry", "/workflows/registry/refund-order"):
        page = client.get(path)
        assert polled(client, page).status_code == 204

        rows.run("pending", workflow="refund-order", version=3)
        changed = polled(client, page)
        assert changed.status_code == 200
        assert "<html" not in changed.text


# What is read ------------------------------------------------------------------------------


def test_unfinished_runs_are_counted_by_version(rows: Rows) -> None:
    for status in ("pending", "running", "sleeping", "waiting", "completed", "failed", "cancelled"):
        rows.run(status, workflow="a", version=1)
        rows.run(status, workflow="b", version=2, workspace="ws")

    with rows.engine.connect() as connection:
        everything = read.count_unfinished(connection)
        one = read.count_unfinished(connection, workflow="b")
        scoped = read.count_unfinished(connection, workspaces=("ws", "other"))
        scoped_one = read.count_unfinished(connection, workflow="a", workspaces=("ws",))
        unowned = read.count_unfinished(connection, workspaces=("",))
        nothing = read.count_unfinished(connection, workspaces=())

    assert everything == Unfinished({("a", 1): 4, ("b", 2): 4})
    assert one == scoped == Unfinished({("b", 2): 4})
    assert unowned == Unfinished({("a", 1): 4})
    assert scoped_one == nothing == Unfinished({})


def test_counting_stops_and_says_so(rows: Rows) -> None:
    rows.insert(models.runs, [run_row("sleeping", workflow="a") for _ in range(5)])

    with rows.engine.connect() as connection:
        assert read.count_unfinished(connection, cap=5).capped
        assert not read.count_unfinished(connection, cap=6).capped
        assert read.count_unfinished(connection, workflow="a", workspaces=("ws",), cap=5) == Unfinished({}, capped=True)


@pytest.mark.parametrize(
    "values",
    [{}, {"workflow": "onboarding"}, {"workspaces": ("a", "b")}, {"workflow": "onboarding", "workspaces": ("a",)}],
    ids=["all", "one", "scoped", "one-scoped"],
)
def test_unfinished_runs_are_found_through_an_index(rows: Rows, values: dict[str, Any]) -> None:
    rows.insert(models.runs, [run_row("completed") for _ in range(3_000)])
    rows.insert(models.runs, [run_row("pending", workspace="a") for _ in range(3)])
    with rows.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    statements: list[tuple[str, Any]] = []
    sa.event.listen(rows.engine, "before_cursor_execute", lambda c, cu, s, p, *_: statements.append((s, p)))

    with rows.engine.connect() as connection:
        read.count_unfinished(connection, **values)
        statement, parameters = statements[0]
        explain = "EXPLAIN QUERY PLAN " if rows.engine.dialect.name == "sqlite" else "EXPLAIN "
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(explain + statement, parameters))

    assert "Seq Scan on workflow_runs" not in plan
    assert "SCAN workflow_runs'" not in plan
    assert "workflow_runs_" in plan


def test_versions_of_recent_runs_are_found(rows: Rows) -> None:
    rows.run("failed", workflow="a", version=3, workspace="ws")
    rows.run("pending", workflow="a", version=1)
    rows.run("pending", workflow="b", version=2)

    with rows.engine.connect() as connection:
        assert read.recent_versions(connection, "a") == (1, 3)
        assert read.recent_versions(connection, "a", workspaces=("ws",)) == (3,)
        assert read.recent_versions(connection, "c") == ()


# Pure --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ranges", "counts", "expected"),
    [
        (1, {1: 1}, {}, (True, "Yes, and with it the workflow: no run needs it.")),
        (1, {1: 1}, {1: 2}, (False, "No: 2 unfinished runs need it.")),
        (1, {1: 1, 2: 2}, {}, (True, "Yes: no unfinished run needs it.")),
        (1, {1: 1, 2: 1}, {1: 2}, (True, "Yes: 2 unfinished runs would go on with version 2.")),
        (2, {1: 1, 2: 2}, {}, (False, "No: new runs start on it.")),
        (2, {1: 1, 2: 2}, {2: 1}, (False, "No: 1 unfinished run needs it.")),
        # An older run that nothing else takes.
        (3, {3: 2, 4: 4}, {2: 7}, (False, "No: 7 unfinished runs need it.")),
        (3, {3: 2, 4: 2}, {2: 7, 4: 1}, (True, "Yes: 7 unfinished runs would go on with version 4.")),
    ],
)
def test_version_may_go_when_no_run_needs_it(
    version: int, ranges: dict[int, int], counts: dict[int, int], expected: tuple[bool, str]
) -> None:
    assert may_remove(version, ranges, counts, Unfinished({})) == expected


def test_verdict_is_open_where_not_every_run_was_looked_at() -> None:
    capped = Unfinished({}, capped=True)

    assert may_remove(1, {1: 1, 2: 2}, {}, capped) == (
        None,
        "Not known: there are more unfinished runs than were looked at.",
    )
    assert may_remove(1, {1: 1, 2: 2}, {1: 1}, capped) == (False, "No: at least 1 unfinished run need it.")


def test_runs_are_resumed_as_the_registry_says(workflows: Workflows) -> None:
    registry: Registry = workflows.registry
    ranges = {workflow.version: workflow.min_version for workflow in registry.versions("refund-order")}

    for version in range(1, 6):
        found = registry.resume("refund-order", version)
        assert resumed_by(version, ranges) == (None if found is None else found.version)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Retry(attempts=1), "1 attempt"),
        (Retry(attempts=3, backoff=Retry.constant(5)), "3 attempts, 5 s apart"),
        (Retry(attempts=3, backoff=Retry.constant(0)), "3 attempts, at once"),
        (
            Retry(attempts=2, backoff=Retry.linear(0.5), jitter=0.2),
            "2 attempts, 500 ms after the first, each time 500 ms more, ±20 %",
        ),
        (
            Retry(attempts=1, retry_on=(OSError,), give_up_on=(ValueError,)),
            "1 attempt, only after OSError, not after ValueError",
        ),
    ],
)
def test_policy_reads_in_words(policy: Retry, words: str) -> None:
    assert declarations.retry(policy.filled(3, Backoff("constant", 0))) == words


def test_default_that_cannot_be_written_breaks_nothing(make_app: apps.MakeApp, sqlite_url: str) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    workflows = Workflows(authorize=lambda action, run=None: True)

    @workflows.workflow
    def odd(given: int = Odd(), *rest: int) -> None:  # type: ignore[assignment]
        pass

    client = make_app(sqlite_url, workflows=workflows).test_client()

    text = text_of(client.get("/workflows/registry/odd"))

    assert "given int a Odd" in text
    assert "*rest int nothing" in text


def test_every_route_of_the_registry_asks(make_app: apps.MakeApp, sqlite_url: str) -> None:
    client = make_app(sqlite_url, workflows=Workflows()).test_client()

    for path in ("/workflows/registry", "/workflows/registry/x"):
        assert client.get(path).status_code == 403


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(0, 5, "0 %"), (0, 0, "0 %"), (1, 1_000, "<1 %"), (1, 3, "33 %"), (995, 1_000, "99.5 %"), (5, 5, "100 %")],
)
def test_share_reads_in_words(part: int, whole: int, words: str) -> None:
    assert phrases.share(part, whole) == words
