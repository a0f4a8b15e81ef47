"""An app with something of everything: runs in every state, made by the engine and written as rows.

Its time stands still at `NOW`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from datetime import timedelta
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.dashboard import views
from flask_workflows.operations import BULK
from flask_workflows.operations import input_of
from flask_workflows.operations import Order
from tests import apps
from tests.crawling import crawl
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row

PREFIX = "/workflows"

#: How many addresses of one endpoint are looked at.
MOST = 5


class StandingClock:
    def now(self) -> datetime:
        return NOW


class CardDeclined(Exception):
    """As a payment service says it."""


def make_workflows() -> Workflows:
    """Workflows that end, and wait, in every way there is."""
    workflows = Workflows(authorize=_everybody, actor=lambda: "ana")
    workflows.event("course.completed")

    @workflows.step
    def load(user_id: int) -> str:
        return f"user {user_id}"

    @workflows.step(retry=Retry(attempts=5, backoff=Retry.constant(60)))
    def fetch() -> None:
        raise ConnectionError("the service did not answer")

    @workflows.step(raises=(CardDeclined,))
    def charge() -> None:
        raise CardDeclined("no funds on the card")

    @workflows.workflow
    def onboarding(ctx: WorkflowContext, user_id: int, note: str = "") -> bool:
        """Welcomes a new learner, then nudges them if they finish no course within a week."""
        load(user_id)
        done = ctx.wait_for("course.completed", match={"user_id": user_id}, timeout=timedelta(days=7))
        return done is not None

    @workflows.workflow
    def reminder(ctx: WorkflowContext, user_id: int) -> str:
        """Sleeps a day."""
        load(user_id)
        ctx.sleep(86_400)
        return load(user_id)

    @workflows.workflow(queue="imports")
    def nightly_import() -> None:
        fetch()

    @workflows.workflow(version=2)
    def renewal(user_id: int) -> None:
        """Charges a learner."""
        load(user_id)
        charge()

    @workflows.workflow
    def approval(ctx: WorkflowContext, user_id: int) -> bool:
        """Waits for a message, and tells meanwhile where it is."""
        ctx.progress(2, 5, "asked twice")
        ctx.set("invoice", {"number": 7})
        return ctx.receive("decision") is not None

    @workflows.workflow
    def quick(user_id: int) -> dict[str, object]:
        return {"user_id": user_id, "card": {"number": "4111"}, "courses": ["a", "b"]}

    return workflows


def _everybody(action: str, run: Run | None = None) -> bool:
    return True


def populate(app: Flask, workflows: Workflows) -> dict[str, str]:
    """Give the app its runs; answers ids by what they show."""
    declared = {workflow.name: workflow for workflow in workflows.registry.workflows()}
    found: dict[str, str] = {}
    with app.app_context():
        for name, values in (
            ("onboarding", {"user_id": 7}),
            ("reminder", {"user_id": 8}),
            ("nightly_import", {}),
            ("renewal", {"user_id": 9}),
            ("approval", {"user_id": 10}),
            ("quick", {"user_id": 10}),
        ):
            found[name] = declared[name].spawn(**values).id
        workflows.tick()
        workflows.deliver("course.completed", {"user_id": 99})
        workflows.tick()
    found.update(_rows(rows_of(app)))
    with app.app_context():
        _act(app, found)
    return found


def _act(app: Flask, found: Mapping[str, str]) -> None:
    """What an operator did, for the audit and the operations."""
    runtime, ana = apps.runtime_of(app), By("ana", reason="The customer asked for it.")
    service.cancel(runtime, found["gone"], by=ana)
    service.send(runtime, found["approval"], "note", '{"text": "Look again."}', delivery_id="note-1", by=ana)
    order = Order("cancel", ana, runs=(found["pending"], found["orphan"]))
    service.start(runtime, BULK, input_of(order, 2), by=ana, own=True)


def _rows(rows: Rows) -> dict[str, str]:
    worker = rows.worker()
    lost = rows.worker("web-2:9", id="worker-lost", seen_ago=300)
    running = rows.run("running", ago=30, worker=worker, due_at=NOW_MS + 20_000, workspace="acme", key="order-17")
    rows.step(running, "load", 1)
    rows.step(running, "charge", 2, "running")
    late = rows.run("running", ago=300, worker=lost, due_at=NOW_MS - 90_000, losses=1)
    rows.step(late, "load", 1, "running", started_at=NOW_MS - 200_000)
    failed = rows.run("failed", ago=90, error=error_of_a_render(), attempts=3)
    rows.step(failed, "load", 1)
    rows.step(failed, "render", 2, "failed", attempts=5, error=error_of_a_render(), earlier=_earlier())
    cancelling = rows.run("running", worker=worker, due_at=NOW_MS + 9_000, cancel_requested_at=NOW_MS - 8_000)
    parent = rows.run("waiting", ago=60, due_at=None)
    child = rows.run("running", ago=50, worker=worker, due_at=NOW_MS + 20_000, parent_id=parent)
    rows.step(parent, "load", 1)
    rows.step(parent, "$undo:unload", 2, "pushed", kind="undo")
    rows.step(parent, "$start:onboarding", 3, kind="start", output=json.dumps({"id": child}))
    rows.step(parent, "$parallel", 4, "running", kind="parallel")
    rows.step(parent, "4.0/$result", 1, "waiting", kind="result")
    rows.step(parent, "4.1/$parallel", 1, kind="parallel")
    rows.step(parent, "4.1/1.0/load", 1)
    rows.run("completed", ago=40, forked_from=parent)
    paused = rows.run("sleeping", ago=45, due_at=None, paused_at=NOW_MS - 9_000, deadline_at=NOW_MS + 9_000_000)
    long = rows.run(ago=5_000, output=json.dumps({"rows": list(range(9_000))}))
    rows.insert(models.steps, [step_row(long, f"fetch#{number}", number) for number in range(1, 301)])
    found = {
        "parent": parent,
        "paused": paused,
        "running": running,
        "lost": late,
        "failed": failed,
        "cancelling": cancelling,
        "long": long,
    }
    found["gone"] = rows.run("pending", ago=720)
    found["cancelled"] = rows.run("cancelled", ago=700)
    found["pending"] = rows.run("pending", ago=10)
    found["orphan"] = rows.run("pending", ago=20, workflow="old-import", version=4)
    found["garbled"] = rows.run("failed", ago=800, input="{", output="[", error="{")
    rows.insert(models.runs, [run_row(ago=1_000 + number) for number in range(12)])
    rows.insert(models.runs, [run_row("failed", ago=9_000 + number, error=error_of_a_render()) for number in range(4)])
    return found


def error_of_a_render() -> str:
    """A failure with frames of a library and of the app."""
    lines = ["Traceback (most recent call last):"]
    lines += [
        f'  File "/usr/lib/python3/site-packages/pdf/core.py", line {n}, in draw\n    draw()' for n in (10, 20, 30)
    ]
    lines += [
        '  File "/srv/shop/invoices.py", line 41, in render',
        "    return totals[order.vat_id]",
        "KeyError: 'vat_id'",
    ]
    return error_json("KeyError", "'vat_id'", step="render", traceback="\n".join(lines))


def _earlier() -> str:
    start = NOW_MS - 60_000
    return json.dumps([[start + n * 10_000, start + n * 10_000 + 400, json.loads(error_json())] for n in range(4)])


# Addresses -----------------------------------------------------------------------------------


def find_addresses(app: Flask, runs: Mapping[str, str]) -> dict[str, list[str]]:
    """By endpoint, addresses that differ in what they show: first those of the runs, then what pages link to."""
    starts = [f"{PREFIX}/run/{run}" for run in runs.values()]
    own = set(starts)
    starts += [f"{PREFIX}/runs?limit=25"]
    starts += [f"{PREFIX}{route.rule}" for route in views.ROUTES if not route.writes and "<" not in route.rule]

    adapter = app.url_map.bind("localhost")
    found: dict[str, list[str]] = {}
    for address in crawl(app.test_client().get, starts):
        addresses = found.setdefault(endpoint_of(adapter, address), [])
        if len(addresses) < MOST or address in own:
            addresses.append(address)
    return found


def endpoint_of(adapter: MapAdapter, address: str) -> str:
    """The endpoint, without the blueprint's name, that a GET of the address reaches; empty for one of the app's."""
    try:
        endpoint, _ = adapter.match(urlsplit(address).path, method="GET")
    except HTTPException:
        return ""
    blueprint, _, name = str(endpoint).rpartition(".")
    return name if blueprint else ""
