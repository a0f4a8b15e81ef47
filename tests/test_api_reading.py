"""What the JSON routes ask of the database is served by an index, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from flask_workflows import models
from flask_workflows.store import reading as read
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables

EVENTS = 20_000
PLACE = read.EventPlace(False, NOW_MS + EVENTS // 2, EVENTS // 2)


@pytest.fixture
def large(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        rows.insert(models.events, [_event(number) for number in range(EVENTS)])
        runs = [run_row("sleeping", due_at=NOW_MS + number) for number in range(2_000)]
        rows.insert(models.runs, runs)
        rows.insert(models.steps, [step_row(run["id"], f"s{n}", n) for run in runs for n in range(15)])
        rows.insert(models.steps, [step_row("long", f"s{number}", number) for number in range(500)])
        analyze(rows)
        yield rows


def _event(number: int) -> dict[str, Any]:
    return {
        "name": f"event-{number % 20}",
        "workspace": f"workspace-{number % 7}",
        "run_id": "long" if number % 10 == 9 else None,
        "payload": "{}",
        "emitted_at": NOW_MS + number,
        "woke": 0,
    }


Look = Callable[[sa.Connection], object]

LOOKS: dict[str, Look] = {
    "events": lambda c: read.list_inbox(c, read.EventQuery(place=PLACE)),
    "events of a name": lambda c: read.list_inbox(c, read.EventQuery("event-3", place=PLACE)),
    "events of workspaces": lambda c: read.list_inbox(c, read.EventQuery(workspaces=("x",), place=PLACE)),
    "steps": lambda c: read.read_step_page(c, "long", after="s50", limit=100),
    "steps without payloads": lambda c: read.read_step_page(c, "long", limit=100, payloads=False),
    "oldest due": lambda c: read.oldest_due(c, NOW),
}


def test_an_index_serves_every_look(large: Rows) -> None:
    for look in LOOKS.values():
        assert_served(plans(large, look))
