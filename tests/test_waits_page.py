from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.errors import InvalidCursor
from flask_workflows.errors import ReadTimeout
from flask_workflows.runs import Count
from flask_workflows.store import reading as read
from flask_workflows.store.reading.waits import Timers
from flask_workflows.store.reading.waits import WaitGroup
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import text_of
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.plans import statements
from tests.rows import error_json
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


def sleeper(rows: Rows, due_in: float, **values: Any) -> str:
    """A run that sleeps since a minute, and wakes so many seconds after NOW."""
    run = rows.run("sleeping", due_at=NOW_MS + int(due_in * 1000), **values)
    rows.step(run, "$sleep", 3, "sleeping", kind="sleep")
    return run


def timers_of(rows: Rows, workspaces: tuple[str, ...] | None = None, **options: Any) -> Timers:
    with read.reading(rows.engine) as connection:
        return read.list_timers(connection, workspaces, **options)


def ids(timers: Timers) -> list[str]:
    return [run.id for run in timers.runs]


def groups_of(rows: Rows, workspaces: tuple[str, ...] | None = None, **options: Any) -> dict[str, WaitGroup]:
    with read.reading(rows.engine) as connection:
        found = read.list_wait_groups(connection, workspaces, **options)
    return {("message " if group.message else "") + group.name: group for group in found.groups}


# Timers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", [10_000, 200], ids=["few", "many"])
def test_timers_come_in_the_order_they_wake_in(rows: Rows, scan: int) -> None:
    first = [sleeper(rows, n - 100) for n in range(205)]
    rows.run("pending")
    rows.run("waiting", due_at=NOW_MS)
    rows.run("completed")

    timers = timers_of(rows, limit=205, scan=scan)

    assert ids(timers) == [run for run in first if run in ids(timers)]
    assert timers.total == (Count(205) if scan == 10_000 else Count(200, capped=True))
    assert len(timers.runs) >= 190


@pytest.mark.parametrize("scan", [10_000, 200], ids=["few", "many"])
@pytest.mark.parametrize("workspaces", [None, ("north",)], ids=str)
def test_pages_of_timers_hold_each_of_them_once_both_ways(
    rows: Rows, scan: int, workspaces: tuple[str, ...] | None
) -> None:
    # Several that wake at one instant, and others between them.
    made = [sleeper(rows, 10 * (n // 7), workspace="north") for n in range(230)]
    rows.insert(models.runs, [run_row("waiting", due_at=NOW_MS + n * 500, workspace="north") for n in range(230)])
    if workspaces is not None:
        for n in range(40):
            sleeper(rows, 10 * n, workspace="south")
    order = sorted(made, key=lambda run: (made.index(run) // 7, run))

    pages = [timers_of(rows, workspaces, limit=50, scan=scan)]
    while (later := pages[-1].later) is not None:
        pages.append(timers_of(rows, workspaces, limit=50, scan=scan, cursor=str(later)))
    assert [run for page in pages for run in ids(page)] == order

    back = [pages[-1]]
    while (earlier := back[-1].earlier) is not None:
        back.append(timers_of(rows, workspaces, limit=50, scan=scan, cursor=str(earlier)))
    assert ids(back[-1]) == ids(pages[0])
    assert {run for page in back for run in ids(page)} == set(order)


def test_search_among_many_says_how_far_it_went(rows: Rows) -> None:
    rows.insert(models.runs, [run_row("waiting", due_at=NOW_MS + n) for n in range(450)])
    rows.insert(models.runs, [run_row("sleeping", due_at=NOW_MS + 1_000_000 + n) for n in range(200)])

    first = timers_of(rows, scan=200)
    second = timers_of(rows, scan=200, cursor=str(first.later))
    third = timers_of(rows, scan=200, cursor=str(second.later))

    assert (first.runs, first.searched) == ((), 200)
    assert (second.runs, second.searched) == ((), 200)
    assert (len(third.runs), third.searched) == (50, None)
    assert third.runs[0].due_at is not None


@pytest.mark.parametrize("cursor", ["", "after", "after.1", "after.x.y", "after.1.'", "sideways.1.a", "after.1.é"])
def test_invented_cursor_is_refused(app: Flask, rows: Rows, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        timers_of(rows, cursor=cursor)
    if cursor:
        response = app.test_client().get("/workflows/waits", query_string={"cursor": cursor})
        assert response.status_code == 422
        assert "is not a cursor" in text_of(response)


def test_page_shows_overdue_timers_first(app: Flask, rows: Rows) -> None:
    next_week = sleeper(rows, 7 * 86_400)
    retried = rows.run("sleeping", due_at=NOW_MS + 40_000)
    rows.step(retried, "fetch", 2, "retrying", attempts=2, error=error_json("ConnectionError", "refused"))
    overdue = sleeper(rows, -180)
    put_off = rows.run("sleeping", due_at=NOW_MS + 3_600_000, started_at=None)

    response = app.test_client().get("/workflows/waits")

    text = text_of(response)
    assert response.status_code == 200
    places = [response.text.index(f'id="run-{run}"') for run in (overdue, retried, put_off, next_week)]
    assert places == sorted(places)
    assert "4 sleeping, 1 on this page overdue" in text
    assert "Overdue 3 min no live worker, due 3 min ago" in text
    assert "Retrying 12:00:40, in 40 s step 2, fetch, try 3 in 40 s. ConnectionError" in text
    assert "13:00:00, in 1 h start, put off" in text
    assert "7 Dec 12:00, in 7 d step 3, sleep" in text
    assert {f"/workflows/run/{overdue}/wake", f"/workflows/run/{overdue}/move"} <= set(links(response))


def test_page_says_when_nothing_sleeps_or_waits(app: Flask) -> None:
    text = text_of(app.test_client().get("/workflows/waits"))

    assert "No run sleeps." in text
    assert "Nothing is waiting." in text


def test_wake_is_offered_to_those_who_may(app: Flask, rows: Rows, workflows: Workflows) -> None:
    run = sleeper(rows, 60)
    workflows.authorize(lambda action, run=None: action == "view")

    assert f"/workflows/run/{run}/wake" not in links(app.test_client().get("/workflows/waits"))


def test_page_is_answered_204_until_something_changes(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    sleeper(rows, 60)
    rows.waiting("paid", {"order": 7})
    page = client.get("/workflows/waits")

    assert polled(client, page).status_code == 204

    rows.waiting("paid", {"order": 8})
    changed = polled(client, page)
    assert changed.status_code == 200
    assert changed.text.lstrip().startswith("<div")
    assert 'id="fw-waits"' in changed.text


def test_slow_part_leaves_the_rest(app: Flask, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper(rows, 60)

    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_wait_groups", slow)
    text = text_of(app.test_client().get("/workflows/waits"))

    assert "Took over 2 s." in text
    assert "1 sleeping" in text


# Waits by name -----------------------------------------------------------------------------


def test_waits_are_grouped_by_name(rows: Rows) -> None:
    rows.waiting("paid", {"order": 7}, updated_at=NOW_MS - 9_000, due_at=NOW_MS + 5_000)
    rows.waiting("paid", {"order": 8}, updated_at=NOW_MS - 3_000, due_at=NOW_MS + 2_000)
    rows.waiting("paid", {"user.id": 8}, updated_at=NOW_MS - 1_000)
    rows.waiting("shipped", updated_at=NOW_MS - 1_000)
    receiver = rows.run("waiting", due_at=None)
    rows.insert(models.waits, [wait_row(receiver, "paid", fields="@", values_hash=receiver, key="$receive:paid")])

    found = groups_of(rows)

    assert {name: group.runs for name, group in found.items()} == {
        "paid": Count(3),
        "message paid": Count(1),
        "shipped": Count(1),
    }
    oldest, timeout = found["paid"].oldest, found["paid"].next_timeout
    assert oldest is not None
    assert timeout is not None
    assert (NOW - oldest).total_seconds() == 9
    assert (timeout - NOW).total_seconds() == 2
    assert found["shipped"].next_timeout is None


def test_run_that_waits_twice_for_a_name_counts_once(rows: Rows) -> None:
    run = rows.waiting("paid", {"order": 7})
    rows.insert(models.waits, [wait_row(run, "paid", {"invoice": 7}, key="$wait:paid", number=1)])

    assert groups_of(rows)["paid"].runs == Count(1)
    assert groups_of(rows, ("",))["paid"].runs == Count(1)


@pytest.mark.parametrize("workspaces", [None, ("",)], ids=str)
def test_names_have_pages(rows: Rows, workspaces: tuple[str, ...] | None) -> None:
    names = [f"event-{n:02}" for n in range(7)]
    for name in names:
        rows.waiting(name)
    with read.reading(rows.engine) as connection:
        seen: list[str] = []
        after: str | None = None
        while True:
            found = read.list_wait_groups(connection, workspaces, after=after, names=2)
            seen += [group.name for group in found.groups]
            after = found.after
            if after is None:
                break

    assert seen == names


def test_group_leads_to_the_waiting_runs_and_what_they_match(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    old = rows.waiting("order/paid", {"order": 7, "user.name": "Ana"}, updated_at=NOW_MS - 7_200_000)
    rows.waiting("order/paid", updated_at=NOW_MS - 60_000, due_at=NOW_MS + 60_000, workspace="north")
    page = client.get("/workflows/waits")
    (link,) = [link for link in links(page) if "name=" in link]

    opened = client.get(link)

    text = text_of(opened)
    assert opened.status_code == 200
    assert "Waits for event order/paid" in text
    assert 'order is 7, user.name is "Ana" 10:00:00, 2 h ago never' in text
    assert "any north 11:59:00, 1 min ago 12:01:00" in text
    assert f"/workflows/run/{old}" in links(opened)
    assert polled(client, opened).status_code == 204


def test_b111_what_is_compared_is_redacted(app: Flask, rows: Rows) -> None:
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    rows.waiting("paid", {"card.number": 4111, "order": {"access_token": "sesame"}, "url": f"https://u:{jwt}@host/"})

    response = app.test_client().get("/workflows/waits?name=paid")

    text = text_of(response)
    assert "card.number is hidden: matches “card”" in text
    for secret in ("4111", "sesame", jwt):
        assert secret not in response.text


def test_values_are_for_those_who_may_see_payloads(app: Flask, rows: Rows, workflows: Workflows) -> None:
    rows.waiting("paid", {"order": 8812})
    workflows.authorize(lambda action, run=None: action == "view")

    response = app.test_client().get("/workflows/waits?name=paid")

    assert "8812" not in response.text
    assert "order" in text_of(response)
    assert "You may not see payloads, so the values are left out." in text_of(response)


def test_unreadable_call_leaves_only_the_fields(app: Flask, rows: Rows) -> None:
    for input in ("no JSON", "[]", '{"events": 7}', '{"events": []}', None):
        run = rows.run("waiting", due_at=None)
        rows.step(run, "$wait:paid", 1, "waiting", kind="wait", input=input)
        rows.insert(models.waits, [wait_row(run, "paid", {"order": 7})])

    response = app.test_client().get("/workflows/waits?name=paid")

    assert response.status_code == 200
    assert text_of(response).count("onboarding") == 5


@pytest.mark.parametrize("workspaces", [None, ("",)], ids=str)
def test_waits_of_a_name_have_pages(rows: Rows, workspaces: tuple[str, ...] | None) -> None:
    made = [rows.waiting("paid", {"order": n} if n % 3 else None) for n in range(23)]
    rows.waiting("shipped")
    seen: list[str] = []
    after: str | None = None
    with read.reading(rows.engine) as connection:
        while True:
            found = read.list_waits(connection, workspaces, "paid", after=after, limit=5)
            seen += [wait.run_id for wait in found.waits]
            if found.after is None:
                break
            after = str(found.after)
            # The wait the page ended with ends meanwhile.
            with rows.engine.begin() as writing:
                writing.execute(models.waits.delete().where(models.waits.c.run_id == found.waits[-1].run_id))

    assert len(seen) == len(set(seen)) == 23
    assert set(seen) == set(made)


def test_waits_of_several_events_are_paged_by_each(rows: Rows) -> None:
    run = rows.run("waiting", due_at=None)
    events = [{"name": "paid", "match": {"order": n}} for n in range(4)]
    rows.step(run, "$wait", 1, "waiting", kind="wait", input=json.dumps({"events": events}))
    rows.insert(models.waits, [wait_row(run, "paid", {"order": n}, key="$wait", number=n) for n in range(4)])
    seen: list[object] = []
    after: str | None = None
    with read.reading(rows.engine) as connection:
        while True:
            found = read.list_waits(connection, None, "paid", after=after, limit=1)
            seen += [None if wait.match is None else wait.match["order"] for wait in found.waits]
            if found.after is None:
                break
            after = str(found.after)

    assert sorted(map(str, seen)) == ["0", "1", "2", "3"]


def test_messages_waited_for_have_a_page(app: Flask, rows: Rows) -> None:
    for _ in range(3):
        run = rows.run("waiting", due_at=None)
        rows.step(run, "$receive:line", 1, "waiting", kind="receive", input='{"message": "line"}')
        rows.insert(models.waits, [wait_row(run, "line", fields="@", values_hash=run, key="$receive:line")])
    with read.reading(rows.engine) as connection:
        first = read.list_waits(connection, None, "line", message=True, limit=2)
        second = read.list_waits(connection, None, "line", message=True, limit=2, after=str(first.after))
        assert read.list_waits(connection, None, "line").waits == ()

    assert len({wait.run_id for wait in (*first.waits, *second.waits)}) == 3
    assert "Waits for message line" in text_of(app.test_client().get("/workflows/waits?name=line&kind=message"))


@pytest.mark.parametrize("after", ["x", "a.1.$wait:paid", "a.b.c", "é.1.c"])
def test_place_that_never_was_is_refused(app: Flask, rows: Rows, after: str) -> None:
    response = app.test_client().get("/workflows/waits", query_string={"name": "paid", "after": after})

    assert response.status_code == 422


def test_what_no_database_holds_is_not_asked_for(app: Flask) -> None:
    client = app.test_client()

    for query in ({"name": "a\x00b"}, {"names": "\x00"}, {"cursor": "\x00"}, {"name": "x", "after": "a.1.\x00"}):
        assert client.get("/workflows/waits", query_string=query).status_code == 200


# Scope and what may stand in names ---------------------------------------------------------


def test_b110_other_workspaces_are_in_no_list_and_no_count(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: "north")
    ours = [sleeper(rows, 60, workspace="north"), rows.waiting("paid", {"order": 1}, workspace="north")]
    theirs = [
        sleeper(rows, 30, workspace="south"),
        sleeper(rows, 30),
        rows.waiting("paid", {"order": 2}, workspace="south"),
        rows.waiting("secret-launch", workspace="south"),
        rows.waiting("paid", {"order": 3}),
    ]
    client = app.test_client()

    pages = [client.get(f"/workflows/waits{query}") for query in ("", "?name=paid", "?name=secret-launch")]

    assert "1 sleeping" in text_of(pages[0])
    assert "paid event 1 " in text_of(pages[0])
    assert "No run waits for it." in text_of(pages[2])
    for page in pages[:2]:
        assert "secret-launch" not in page.text
    for page in pages:
        assert not any(run in page.text for run in theirs)
    assert ours[0] in pages[0].text
    assert ours[1] in pages[1].text


@pytest.mark.parametrize("workspaces", [(), ("",), ("", "north"), ("north", "south"), tuple("abcdefghijklmno") * 5])
def test_b110_scopes_of_any_size_hold_what_they_name(rows: Rows, workspaces: tuple[str, ...]) -> None:
    made = {workspace: sleeper(rows, 60, workspace=workspace) for workspace in ("", "north", "south", "a")}
    waiting = {workspace: rows.waiting("paid", workspace=workspace) for workspace in made}

    timers = timers_of(rows, workspaces)
    groups = groups_of(rows, workspaces)
    with read.reading(rows.engine) as connection:
        found = read.list_waits(connection, workspaces, "paid")

    inside = {workspace for workspace in made if workspace in workspaces}
    assert set(ids(timers)) == {made[workspace] for workspace in inside}
    assert timers.total == Count(len(inside))
    assert {wait.run_id for wait in found.waits} == {waiting[workspace] for workspace in inside}
    assert sum(group.runs.value for group in groups.values()) == len(inside)


def test_b109_names_and_values_are_text(app: Flask, rows: Rows) -> None:
    run = rows.run("sleeping", workflow=EVIL, due_at=NOW_MS + 60_000)
    rows.step(run, EVIL, 1, "sleeping")
    rows.waiting(EVIL, {EVIL: EVIL}, workspace=EVIL, workflow=EVIL)
    client = app.test_client()
    page = client.get("/workflows/waits")

    for response in (page, client.get("/workflows/waits", query_string={"name": EVIL})):
        assert response.status_code == 200
        assert "<img" not in response.text
        assert "&lt;img src=x" in response.text


# Plans -------------------------------------------------------------------------------------

MANY = 8_000


@pytest.fixture(scope="module")
def large(shared_url: str) -> Iterator[Rows]:
    """Runs that wait for one name, some for another, many sleepers, and as many runs that are done."""
    with tables(shared_url) as rows:
        workspace = ["", "north", "south"]
        waiting = [run_row("waiting", due_at=NOW_MS + n, workspace=workspace[n % 3]) for n in range(MANY)]
        sleeping = [run_row("sleeping", due_at=NOW_MS + n, workspace=workspace[n % 3]) for n in range(MANY)]
        rows.insert(models.runs, [*waiting, *sleeping, *(run_row() for _ in range(MANY))])
        names = ["rare" if n % 4_000 == 2_000 else "paid" for n in range(MANY)]
        rows.insert(
            models.steps,
            [
                step_row(
                    run["id"],
                    f"$wait:{name}",
                    1,
                    "waiting",
                    kind="wait",
                    input=json.dumps({"events": [{"name": name, "match": {"order": n}}]}),
                )
                for n, (run, name) in enumerate(zip(waiting, names, strict=True))
            ],
        )
        rows.insert(
            models.waits,
            [
                wait_row(run["id"], name, {"order": n}, workspace=run["workspace"])
                for n, (run, name) in enumerate(zip(waiting, names, strict=True))
            ],
        )
        analyze(rows)
        yield rows
        models.metadata.drop_all(rows.engine)


@pytest.mark.parametrize(
    "workspaces", [None, ("north",), ("", "north"), tuple(map(str, range(60)))], ids=["all", "one", "two", "many"]
)
def test_every_look_is_served_by_an_index(large: Rows, workspaces: tuple[str, ...] | None) -> None:
    looks: list[Callable[[sa.Connection], object]] = [
        lambda c: read.list_timers(c, workspaces, scan=100),
        lambda c: read.list_timers(c, workspaces, scan=100, cursor=f"after.{NOW_MS + 5_000}.x"),
        lambda c: read.list_timers(c, workspaces, scan=100, cursor=f"before.{NOW_MS + 5_000}.x"),
        lambda c: read.list_wait_groups(c, workspaces, sample=20, scan=100),
        lambda c: read.list_waits(c, workspaces, "paid", scan=100),
        lambda c: read.list_waits(c, workspaces, "rare", scan=100),
    ]
    with read.reading(large.engine) as connection:
        page = read.list_waits(connection, workspaces, "paid")
    if page.after is not None:
        looks.append(lambda c: read.list_waits(c, workspaces, "paid", after=str(page.after), scan=100))

    for look in looks:
        assert_served(plans(large, look))


def test_group_of_many_is_counted_up_to_a_cap(large: Rows) -> None:
    found = groups_of(large, scan=5_000)

    assert found["paid"].runs == Count(5_000, capped=True)
    assert found["paid"].sample == 1_000
    assert found["rare"].runs == Count(2)
    assert found["rare"].sample is None
    assert groups_of(large, ("north",))["paid"].runs == Count(len([n for n in range(MANY) if n % 3 == 1]))
    assert groups_of(large, ("north",), scan=1_000)["paid"].runs.capped


def test_no_list_reads_a_payload(large: Rows) -> None:
    found = [
        *statements(large, lambda c: read.list_timers(c, None)),
        *statements(large, lambda c: read.list_wait_groups(c, None)),
        *statements(large, lambda c: read.list_waits(c, None, "paid", values=False)),
    ]

    assert len(found) > 5
    assert not any(word in statement for statement, _ in found for word in ("input", "output", "payload"))
