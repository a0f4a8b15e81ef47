from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.errors import InvalidCursor
from flask_workflows.errors import ReadTimeout
from flask_workflows.store import reading as read
from flask_workflows.store.reading.events import EventPage
from flask_workflows.store.reading.events import EventPlace
from flask_workflows.store.reading.events import EventQuery
from flask_workflows.store.reading.events import EventState
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import text_of
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.plans import statements
from tests.rows import event_row
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables
from tests.rows import wait_row

EVIL = "<img src=x onerror=alert(1)>"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()
    workflows.event("paid")
    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def page_of(rows: Rows, query: EventQuery | None = None, **options: int) -> EventPage:
    with read.reading(rows.engine) as connection:
        return read.list_inbox(connection, query or EventQuery(), **options)


def inbox(query: EventQuery, **options: int) -> Callable[[sa.Connection], EventPage]:
    return lambda connection: read.list_inbox(connection, query, **options)


def ids(page: EventPage) -> list[int]:
    return [event.id for event in page.events]


def paged(rows: Rows, query: EventQuery, **options: int) -> list[int]:
    """The events of all pages, there and back again."""
    pages = [page_of(rows, query, **options)]
    while (older := pages[-1].older) is not None:
        pages.append(
            page_of(rows, EventQuery(query.name, query.state, query.workspaces, query.limit, older), **options)
        )
    there = [event for page in pages for event in ids(page)]
    back = [pages[-1]]
    while (newer := back[-1].newer) is not None:
        back.append(page_of(rows, EventQuery(query.name, query.state, query.workspaces, query.limit, newer), **options))
    assert ids(back[-1])[: len(ids(pages[0]))] == ids(pages[0])
    assert {event for page in back for event in ids(page)} == set(there)
    return there


QUERIES = [
    EventQuery(limit=7),
    EventQuery(name="paid", limit=7),
    EventQuery(state=EventState.NEW, limit=7),
    EventQuery(state=EventState.MATCHED, limit=7),
    EventQuery(state=EventState.UNMATCHED, limit=7),
    EventQuery(name="paid", state=EventState.NEW, limit=7),
    EventQuery(name="paid", state=EventState.UNMATCHED, limit=7),
    EventQuery(workspaces=("north",), limit=7),
    EventQuery(workspaces=("", "south"), name="shipped", limit=7),
    EventQuery(workspaces=()),
]


@pytest.mark.parametrize("scan", [10_000, 9], ids=["all", "bounded"])
@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_pages_of_events_hold_each_of_them_once_both_ways(rows: Rows, query: EventQuery, scan: int) -> None:
    run = rows.run("waiting", workspace="south")
    made: dict[int, dict[str, object]] = {}
    for n in range(60):
        values: dict[str, object] = {
            "workspace": ("", "north", "south")[n % 3],
            "woke": n % 4 // 3,
            # Two of one instant, and clocks that go back a little.
            "ago": 600 - 10 * (n // 2) + (5 if n % 7 == 0 else 0),
        }
        if n % 5 == 0:
            values |= {"matched_at": None, "woke": 0}
        if n % 11 == 0:
            values |= {"run_id": run, "workspace": ""}
        name = "paid" if n % 2 else "shipped"
        made[rows.event(name, **values)] = {"name": name, **values}

    def wanted(event: dict[str, object]) -> bool:
        message = event.get("run_id") is not None
        state = (
            EventState.MATCHED
            if event["woke"]
            else EventState.NEW
            if event.get("matched_at", 1) is None
            else EventState.UNMATCHED
        )
        workspace = "south" if message else event["workspace"]
        return (
            (query.name is None or (event["name"] == query.name and not message))
            and (query.state is None or state is query.state)
            and (query.workspaces is None or workspace in query.workspaces)
        )

    found = paged(rows, query, scan=scan)

    assert len(found) == len(set(found))
    assert set(found) == {event for event, values in made.items() if wanted(values)}
    if query.name is None:
        assert found == sorted(found, reverse=True)


def test_search_that_finds_little_says_how_far_it_went(rows: Rows) -> None:
    rows.event("paid", woke=1)
    for _ in range(25):
        rows.event("paid")

    first = page_of(rows, EventQuery(state=EventState.MATCHED), scan=10)
    assert (first.events, first.searched) == ((), 10)
    second = page_of(rows, EventQuery(state=EventState.MATCHED, place=first.older), scan=10)
    assert (second.events, second.searched) == ((), 10)
    third = page_of(rows, EventQuery(state=EventState.MATCHED, place=second.older), scan=10)
    assert (len(third.events), third.searched) == (1, None)


@pytest.mark.parametrize("cursor", ["x", "older", "older.1", "older.1.x", "older.1.-1", "newer.é.1", "older.1.'"])
def test_invented_cursor_is_refused(app: Flask, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        EventPlace.read(cursor)

    response = app.test_client().get("/workflows/events", query_string={"cursor": cursor})

    assert response.status_code == 422


@pytest.mark.parametrize("query", ["state=nope", "name=%00", "workspace=a%00b"])
def test_what_there_is_not_is_refused(app: Flask, query: str) -> None:
    assert app.test_client().get(f"/workflows/events?{query}").status_code == 422


def test_inbox_shows_newest_first_and_whom_they_woke(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    run = rows.run("completed")
    rows.worker()
    rows.event("paid", ago=300, woke=3, workspace="north", delivery_id="evt_1")
    rows.event("paid", ago=200, woke=1)
    rows.event("paid", ago=100)
    message = rows.event("line", ago=90, run_id=run)
    rows.event("shipped", ago=80)
    rows.event("paid", ago=2, matched_at=None)
    rows.waiting("paid", {"order": 8})

    response = client.get("/workflows/events")

    text = text_of(response)
    assert response.status_code == 200
    told = [
        "11:59:58, 2 s ago paid not looked at yet",
        "11:58:40, 1 min ago shipped nobody",
        f"11:58:30, 1 min ago line message to run …{run[-6:]} not received yet",
        "11:58:20, 1 min ago paid nobody. Runs wait for other values",
        "11:56:40, 3 min ago paid 1 run",
        "11:55:00, 5 min ago paid 3 runs north evt_1",
    ]
    assert [text.index(words) for words in told] == sorted(text.index(words) for words in told)
    assert "/workflows/waits?name=paid" in links(response)
    assert "/workflows/waits?name=shipped" not in links(response)
    assert f"/workflows/run/{run}" in links(response)
    assert f"/workflows/event/{message}" in links(response)
    assert polled(client, response).status_code == 204
    rows.event("paid", ago=1)
    assert polled(client, response).status_code == 200


def test_filters_are_kept(app: Flask, rows: Rows) -> None:
    for n in range(60):
        rows.event("paid" if n % 2 else "shipped", workspace="north", matched_at=None if n == 59 else NOW_MS)
    client = app.test_client()

    response = client.get("/workflows/events?name=shipped&workspace=north&state=unmatched")

    assert response.text.count('<tr role="row" id="event-') == 30
    assert "paid" not in text_of(response)
    assert 'value="shipped"' in response.text
    assert "No events match." in text_of(client.get("/workflows/events?name=paid&state=matched"))
    first = client.get("/workflows/events?workspace=north")
    (older,) = [link for link in links(first) if "cursor=older" in link]
    assert "workspace=north" in older
    assert client.get(older).text.count('<tr role="row" id="event-') == 10


def test_late_new_events_without_a_worker_are_noticed(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    rows.event("paid", ago=5, matched_at=None)
    assert "No worker is live" not in text_of(client.get("/workflows/events"))

    rows.event("paid", ago=60, matched_at=None)
    text = text_of(client.get("/workflows/events"))
    assert "No worker is live, so new events wake nobody. Start one: flask workflows work" in text

    rows.worker()
    assert "No worker is live" not in text_of(client.get("/workflows/events"))


def test_empty_inbox_says_how_to_fill_it(app: Flask) -> None:
    assert 'No events yet. Emit one from code: workflows.emit("paid", {…})' in text_of(
        app.test_client().get("/workflows/events")
    )


def test_slow_list_says_so(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_inbox", slow)

    assert "Took over 2 s." in text_of(app.test_client().get("/workflows/events"))


# One event ---------------------------------------------------------------------------------


def test_event_shows_its_payload_and_what_became_of_it(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    event = rows.event("paid", ago=120, woke=2, delivery_id="evt_1", workspace="north", payload='{"order": 8812}')

    response = client.get(f"/workflows/event/{event}")

    text = text_of(response)
    assert response.status_code == 200
    assert "It woke 2 runs." in text
    assert '"order": 8812' in text
    assert "Delivery id evt_1" in text
    assert "Matched 11:58:00, 20 ms later" in text
    assert "data-live" not in response.text.replace("data-live-note", "")


def test_new_event_is_looked_at_again(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    event = rows.event("paid", matched_at=None)
    page = client.get(f"/workflows/event/{event}")
    assert "No worker has looked at it yet. No worker is live. Start one: flask workflows work." in text_of(page)
    assert polled(client, page).status_code == 204

    with rows.engine.begin() as connection:
        connection.execute(models.events.update().values(matched_at=NOW_MS, woke=1))

    looked = polled(client, page)
    assert looked.status_code == 200
    assert "It woke 1 run." in text_of(looked)
    assert "hx-get" not in looked.text


def test_unmatched_event_leads_to_those_who_wait_for_other_values(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    event = rows.event("paid")
    assert "A wrong key is the usual fault" not in text_of(client.get(f"/workflows/event/{event}"))
    rows.waiting("paid", {"order": 8})

    response = client.get(f"/workflows/event/{event}")

    assert "It woke nobody." in text_of(response)
    assert "A wrong key is the usual fault: runs wait for this name with other values." in text_of(response)
    assert "/workflows/waits?name=paid" in links(response)


def test_message_leads_to_its_run_and_says_where_it_was_received(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    run = rows.run("completed")
    event = rows.event("line", run_id=run, woke=0)
    response = client.get(f"/workflows/event/{event}")
    assert "Its run has not received it yet." in text_of(response)
    assert f"/workflows/run/{run}" in links(response)

    rows.step(run, "$receive:line", 1, kind="receive", event_seq=event)

    assert "Its run received it in $receive:line." in text_of(client.get(f"/workflows/event/{event}"))


@pytest.mark.parametrize("event", ["0", "7", "x", "-1", "٣", "9" * 18, "9" * 30, "9" * 6_000, "1.5", "new%00"])
def test_unknown_event_is_not_found(app: Flask, event: str) -> None:
    response = app.test_client().get(f"/workflows/event/{event}")

    assert response.status_code == 404


def test_unreadable_payload_spoils_nothing(app: Flask, rows: Rows) -> None:
    client = app.test_client()

    for payload in ("no JSON", '"' + "x" * 600_000, "[" * 5_000, ""):
        event = rows.event("paid", payload=payload)
        assert client.get(f"/workflows/event/{event}").status_code == 200


def test_payload_is_for_those_who_may_see_it(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: action == "view")
    event = rows.event("paid", payload='{"order": 8812}')

    response = app.test_client().get(f"/workflows/event/{event}")

    assert "You may not see payloads." in text_of(response)
    assert "8812" not in response.text


def test_b111_secrets_are_hidden(app: Flask, rows: Rows) -> None:
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    payload = json.dumps({"card": {"number": "4111111111111111"}, "url": f"https://a:{jwt}@b/"})
    event = rows.event("paid", payload=payload, delivery_id=f"token={jwt}")
    client = app.test_client()

    for response in (client.get(f"/workflows/event/{event}"), client.get("/workflows/events")):
        assert response.status_code == 200
        assert "4111111111111111" not in response.text
        assert jwt not in response.text


# Scope and what may stand in names ---------------------------------------------------------


def test_b110_events_of_other_workspaces_are_in_no_list(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: "north")
    client = app.test_client()
    inside, outside = rows.run("waiting", workspace="north"), rows.run("waiting", workspace="south")
    ours = [rows.event("paid", workspace="north"), rows.event("line", run_id=inside)]
    theirs = [
        rows.event("paid", workspace="south"),
        rows.event("paid"),
        rows.event("line", run_id=outside),
        # A message says nothing of a workspace itself: that of its run counts.
        rows.event("line", run_id=outside, workspace="north"),
    ]
    rows.waiting("paid", {"order": 1}, workspace="south")

    lists = [client.get(f"/workflows/events{query}") for query in ("", "?name=paid", "?workspace=south", "?state=new")]

    shown = [event for event in (*ours, *theirs) if any(f'id="event-{event}"' in page.text for page in lists)]
    assert shown == ours
    assert "No events match." in text_of(lists[2])
    for page in lists:
        assert "Runs wait for other values" not in page.text
        assert outside not in page.text
    assert [client.get(f"/workflows/event/{event}").status_code for event in ours] == [200, 200]
    for event in theirs:
        found = client.get(f"/workflows/event/{event}")
        unknown = client.get("/workflows/event/123456789")
        assert found.status_code == 404
        assert text_of(found).replace(f"event {event}:", "") == text_of(unknown).replace("event 123456789:", "")


def test_b110_event_of_no_workspace_does_not_count_runs_of_others(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: ["", "north"])
    event = rows.event("paid", woke=17)
    client = app.test_client()

    for response in (client.get("/workflows/events"), client.get(f"/workflows/event/{event}")):
        assert response.status_code == 200
        assert "17 runs" not in text_of(response)
        assert "some" in text_of(response)


def test_message_to_a_run_that_is_not_for_the_visitor_is_not_found(
    app: Flask, rows: Rows, workflows: Workflows
) -> None:
    run = rows.run("waiting", workflow="salaries")
    event = rows.event("line", run_id=run)

    @workflows.authorize
    def may(action: str, run: Run | None = None) -> bool:
        return run is None or run.workflow != "salaries"

    response = app.test_client().get(f"/workflows/event/{event}")

    assert response.status_code == 404
    assert run not in response.text


def test_payload_of_a_message_is_asked_for_with_its_run(app: Flask, rows: Rows, workflows: Workflows) -> None:
    run = rows.run("waiting", workflow="salaries")
    event = rows.event("line", run_id=run, payload='{"amount": 8812}')

    @workflows.authorize
    def may(action: str, run: Run | None = None) -> bool:
        return run is None or action != "view_payload"

    response = app.test_client().get(f"/workflows/event/{event}")

    assert response.status_code == 200
    assert "8812" not in response.text
    assert "You may not see payloads." in text_of(response)


def test_half_of_a_surrogate_pair_spoils_no_page(app: Flask, rows: Rows) -> None:
    event = rows.event("paid", payload='{"a": "\\ud800"}')

    response = app.test_client().get(f"/workflows/event/{event}")

    assert response.status_code == 200
    assert "\\ud800" in response.text


def test_b109_names_payloads_and_ids_are_text(app: Flask, rows: Rows) -> None:
    payload = json.dumps({EVIL: f"</script>{EVIL}"})
    event = rows.event(EVIL, workspace=EVIL, delivery_id=EVIL, payload=payload)
    rows.waiting(EVIL, {"a": 1})
    client = app.test_client()

    for response in (
        client.get("/workflows/events"),
        client.get("/workflows/events", query_string={"name": EVIL, "workspace": EVIL}),
        client.get(f"/workflows/event/{event}"),
    ):
        assert response.status_code == 200
        assert "<img" not in response.text
        assert "&lt;img src=x" in response.text


# Plans -------------------------------------------------------------------------------------

MANY = 8_000


@pytest.fixture(scope="module")
def large(shared_url: str) -> Iterator[Rows]:
    """Many events of a name, a few of another, messages, and a few that are new."""
    with tables(shared_url) as rows:
        made = [run_row("waiting", workspace=("", "north")[n % 2]) for n in range(1_000)]
        rows.insert(models.runs, made)
        rows.insert(models.waits, [wait_row(run["id"], "paid", {"order": 1}) for run in made])
        rows.insert(
            models.events,
            [
                event_row(
                    "rare" if n % 4_000 == 2_000 else "paid",
                    ago=MANY - n,
                    matched_at=None if n > MANY - 20 else NOW_MS,
                    run_id=made[n % 1_000]["id"] if n % 10 == 0 else None,
                )
                for n in range(MANY)
            ],
        )
        rows.insert(models.steps, [step_row(run["id"], "$wait", 1, event_seq=n) for n, run in enumerate(made)])
        analyze(rows)
        yield rows
        models.metadata.drop_all(rows.engine)


@pytest.mark.parametrize("workspaces", [None, ("north",)], ids=str)
@pytest.mark.parametrize("name", [None, "paid", "rare"])
@pytest.mark.parametrize("state", [None, *EventState])
def test_every_list_is_served_by_an_index(
    large: Rows, workspaces: tuple[str, ...] | None, name: str | None, state: EventState | None
) -> None:
    places = [None, EventPlace(False, NOW_MS - 4_000_000, 4_000), EventPlace(True, NOW_MS - 4_000_000, 4_000)]
    for place in places:
        query = EventQuery(name, state, workspaces, 20, place)

        found = plans(large, inbox(query, scan=100))
        assert_served(found, in_order=("workflow_events",))


def test_everything_about_one_event_is_served_by_an_index(large: Rows) -> None:
    looks: list[Callable[[sa.Connection], object]] = [
        lambda c: read.read_event(c, 4_000, head=1_000),
        lambda c: read.received_at(c, "some-run", 4_000),
        lambda c: read.waited_names(c, {"paid", "rare"}, None),
        lambda c: read.waited_names(c, {"paid", "rare"}, ("north",)),
    ]

    for look in looks:
        assert_served(plans(large, look))


def test_no_list_reads_a_payload(large: Rows) -> None:
    for query in QUERIES:
        found = statements(large, inbox(query))

        assert found
        assert not any("payload" in statement for statement, _ in found)
