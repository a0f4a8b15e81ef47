"""Hostile texts in every place that takes one: through Python, the pages, the JSON routes and the command line.

Each is refused with an error of ours and the right code, or can be used in every place afterwards. Nothing is answered
with a 500 or a traceback, nothing is executed as markup, and nothing drives a terminal (B32, B79, B109).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import quote
from urllib.parse import unquote_plus
from urllib.parse import urlencode

import pytest
from click.testing import Result
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import Run
from flask_workflows import RunQuery
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.dashboard import api
from flask_workflows.dashboard import csrf
from flask_workflows.dashboard import views
from flask_workflows.dashboard.routes import Route
from flask_workflows.errors import MatchRefused
from flask_workflows.errors import ValueRefused
from flask_workflows.errors import WorkflowsError
from flask_workflows.matching import fields_of
from flask_workflows.runtime import current_runtime
from tests import apps
from tests.answers import API
from tests.answers import problem_of
from tests.hostile import LABELS
from tests.hostile import TEXTS
from tests.hostile import WORST
from tests.pages import Tags
from tests.rows import error_json
from tests.rows import Rows
from tests.rows import rows_of

PREFIX = "/workflows"

#: What no step may be called besides: these have a meaning in the keys of calls.
NO_STEP = {name for name, text in LABELS.items() if "#" in text or "/" in text or text[0] == "$" or len(text) > 100}


def declare() -> Workflows:
    workflows = Workflows(authorize=_everybody, actor=lambda: "ana")

    @workflows.workflow
    def plain(note: str = "") -> str:
        return note

    for number, name in enumerate(LABELS):
        _declare_one(workflows, f"life-{number}", name)
    return workflows


def _everybody(action: str, run: Run | None = None) -> bool:
    return True


def _declare_one(workflows: Workflows, called: str, name: str) -> None:
    """A workflow that uses a text wherever a body can."""
    text = LABELS[name]
    workflows.event(text)

    @workflows.workflow(name=called, queue=text)
    def life(ctx: WorkflowContext, note: str) -> list[Any]:
        ctx.progress(1, 2, text)
        if not text.startswith("$"):
            ctx.set(text, text)
        echoed = ctx.step("echo" if name in NO_STEP else text, str, note)
        event = ctx.wait_for(text, match=match_of(text))
        message = ctx.receive(text)
        assert event is not None
        assert message is not None
        return [echoed, event.payload, message.payload]


def match_of(text: str) -> dict[str, str]:
    """The text as path and value, where it is a path."""
    try:
        fields_of({text: text})
    except MatchRefused:
        return {"value": text}
    return {text: text}


def payload_of(text: str) -> Any:
    """A payload that this match takes."""
    (path,) = match_of(text)
    value: Any = text
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.fixture
def workflows() -> Workflows:
    return declare()


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


# Declaring ---------------------------------------------------------------------------------


def refused_by(call: Callable[[str], object]) -> set[str]:
    """The texts that the call refuses; any other exception than ours comes through."""
    refused = set()
    for name, text in TEXTS.items():
        try:
            call(text)
        except WorkflowsError:
            refused.add(name)
        except Exception as error:
            error.add_note(f"with the text: {name}")
            raise
    return refused


def test_b32_what_is_declared_has_a_name_that_works_or_is_refused() -> None:
    workflows = Workflows()
    no_label = set(TEXTS) - set(LABELS)

    def function() -> None: ...

    assert refused_by(workflows.event) == no_label
    assert (
        refused_by(
            lambda text: workflows.workflow(name=f"w-{text.encode('utf-8', 'ignore').hex()[:90]}", queue=text)(function)
        )
        == no_label
    )
    assert refused_by(lambda text: workflows.step(name=text)(function)) == no_label | NO_STEP
    assert set(TEXTS) - refused_by(lambda text: workflows.workflow(name=text)(function)) == {
        "null",
        "true",
        "number",
        "big number",
    }


# Python ------------------------------------------------------------------------------------


def asked(workflows: Workflows, failed: str) -> dict[str, Callable[[str], object]]:
    """Everything that may be asked with a text, of any run and of a failed one."""
    return {
        "get": workflows.get,
        "details": workflows.details,
        "handle": workflows.handle,
        "cancel": workflows.cancel,
        "retry": workflows.retry,
        "retry from": lambda text: service.retry(current_runtime(), failed, from_step=text),
        "fork": lambda text: workflows.fork(failed, text),
        "pause": workflows.pause,
        "resume": workflows.resume,
        "wake": workflows.wake,
        "release": workflows.release,
        "emitted": workflows.emitted,
        "deliver": workflows.deliver,
        "spawn": lambda text: workflows.spawn(text, {}),
        "cancel_workspace": workflows.cancel_workspace,
        "state": lambda text: workflows.handle(failed).get(text),
        "by workflow": lambda text: workflows.page(RunQuery(workflow=text)),
        "by status": lambda text: workflows.page(RunQuery(status=text)),
        "by workspace": lambda text: workflows.page(RunQuery(workspace=text)),
        "by workspaces": lambda text: workflows.page(RunQuery(workspace=(text, "acme"))),
        "by key": lambda text: workflows.page(RunQuery(key=text)),
        "by queue": lambda text: workflows.page(RunQuery(queue=text)),
        "from a cursor": lambda text: workflows.page(RunQuery(cursor=text)),
        "by a search": lambda text: workflows.page(RunQuery(search=text)),
        "timers": lambda text: workflows.page(RunQuery(search=text, by_due=True)),
    }


def test_b32_whatever_is_asked_is_answered_or_refused_as_ours(app: Flask, workflows: Workflows, rows: Rows) -> None:
    failed = rows.run("failed", workflow="plain", error=error_json())
    with app.app_context():
        for place, call in asked(workflows, failed).items():
            try:
                refused_by(call)
            except Exception as error:
                error.add_note(f"asked for: {place}")
                raise


# A whole life ------------------------------------------------------------------------------


def test_b32_what_a_text_is_taken_for_it_can_be_used_for(app: Flask, workflows: Workflows) -> None:
    """Started with it, woken by it, listed, shown, searched and acted on by it."""
    runtime = apps.runtime_of(app)
    client = app.test_client()
    with app.app_context():
        runs = {
            name: workflows.registry.latest(f"life-{number}").using(key=text, workspace=text).spawn(text).id
            for number, (name, text) in enumerate(LABELS.items())
        }
        workflows.tick()
        for name, run_id in runs.items():
            text = LABELS[name]
            would = service.would_wake(runtime, text, payload_of(text), workspace=text)
            assert would.run_ids == (run_id,), name
            for new in (True, False):
                assert workflows.deliver(text, payload_of(text), workspace=text, delivery_id=text) is new, name
                sent = service.send(runtime, run_id, text, json.dumps(text), delivery_id=text, by=By(text, text))
                assert sent is new, name
            assert workflows.handle(run_id).progress().note == text  # type: ignore[union-attr]
            assert workflows.handle(run_id).get(text) == (None if text[0] == "$" else text), name
        for name, run_id in runs.items():
            check_found(client, run_id, LABELS[name], name)
        workflows.tick()
        for name, run_id in runs.items():
            text = LABELS[name]
            assert workflows.handle(run_id).result(timeout=1) == [text, payload_of(text), text], name
            if name not in NO_STEP:
                forked = workflows.fork(run_id, text)
                assert forked.cancel().status == "cancelled", name
                assert workflows.retry(forked.id, by=By("ana")).status == "pending", name
            unfinished = 0 if name in NO_STEP else 1
            assert workflows.cancel_workspace(text) == unfinished, name


def check_found(client: FlaskClient, run_id: str, text: str, name: str) -> None:
    for field in ("key", "workspace", "queue"):
        found = get_json(client, "/runs", **{field: text})
        assert [run["id"] for run in found["runs"]] == [run_id], (field, name)
    page = client.get(f"{PREFIX}/runs?{urlencode({'key': text})}")
    assert f"/run/{run_id}" in page.text, name
    (entry,) = get_json(client, "/audit", actor=text)["entries"]
    assert entry["reason"] == text, name
    check_links(client, f"{PREFIX}/run/{run_id}", text)


def get_json(client: FlaskClient, path: str, **query: str) -> Any:
    return client.get(f"{API}{path}?{urlencode(query)}").json


def check_links(client: FlaskClient, address: str, text: str) -> None:
    """Every link of the page that has the text in it leads somewhere."""
    page = client.get(address)
    check_page(page, address)
    links = {attributes.get("href") or "" for tag, attributes in Tags(page.text).found if tag == "a"}
    about = sorted(link for link in links if text in unquote_plus(link.partition("?")[2]))
    assert len(text) == 1 or about, address
    for link in about[:4]:
        led = client.get(link.partition("#")[0])
        assert led.status_code == 200, link
        check_page(led, link)


def test_b109_values_with_any_text_are_shown_and_drive_nothing(app: Flask, workflows: Workflows) -> None:
    """A stored value may hold what no name may: all but NUL and half surrogate pairs."""
    client, runner = app.test_client(), app.test_cli_runner()
    with app.app_context():
        for name, text in TEXTS.items():
            if re.search("[\0\ud800-\udfff]", text):
                with pytest.raises(ValueRefused, match=r"\$\.note"):
                    workflows.spawn("plain", {"note": text})
                continue
            run_id = workflows.spawn("plain", {"note": text}).id
            service.send(apps.runtime_of(app), run_id, "note", json.dumps({text: text}), by=By(text, reason=text))
            assert workflows.tick() == 1
            assert workflows.handle(run_id).result(timeout=1) == text, name
            check_page(client.get(f"{PREFIX}/run/{run_id}"), name)
            assert get_json(client, f"/runs/{run_id}")["input"] == {"note": text}, name
            check_terminal(runner.invoke(args=["workflows", "show", run_id]), name)
        check_page(client.get(f"{PREFIX}/audit"), "audit")
        check_page(client.get(f"{PREFIX}/events"), "events")


# Pages -------------------------------------------------------------------------------------


def check_page(response: TestResponse, where: str) -> None:
    """It is no error of ours, leads to us alone, and holds nothing that would be executed."""
    assert response.status_code < 500, (where, response.text[:500])
    assert "X-Brought" not in response.headers, where
    # With the host it is how Werkzeug answers doubled slashes.
    assert re.match(f"(http://localhost)?{PREFIX}/", response.location or f"{PREFIX}/"), (where, response.location)
    if response.mimetype != "text/html":
        return
    for tag, attributes in Tags(response.text).found:
        assert tag not in ("img", "iframe"), where
        assert tag != "script" or "src" in attributes, where
        for name, value in attributes.items():
            assert not name.startswith("on"), where
            assert name not in ("href", "src", "action") or not (value or "").startswith("javascript:"), where


def some_of_the_worst() -> Iterator[list[tuple[str, str]]]:
    """For each place in turn those that every place is tried with, and a fourth of the others: places are many."""
    always = ("nul", "lone surrogate", "attribute", "longest wide")
    others = [item for item in WORST.items() if item[0] not in always]
    for number in count():
        yield [*((name, WORST[name]) for name in always), *others[number % 4 :: 4]]


def escaped(text: str) -> str:
    """In an address. A lone surrogate is what a client would have to make of it: no UTF-8."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def address_of(route: Route, run_id: str, escaped: str = "1") -> str:
    values = {"run_id": run_id, "number": "1"}
    rule = re.sub(r"<any\((\w+)[^>]*>", r"\1", route.rule)
    return PREFIX + re.sub(r"<(?:\w+:)?(\w+)>", lambda found: values.get(found[1], escaped), rule)


#: Of the query strings of each page.
QUERY = {
    "/runs": ("q", "status", "workflow", "key", "queue", "workspace", "time", "limit", "until", "cursor", "live"),
    "/runs/new": ("workflow", "like"),
    "/waits": ("name", "kind", "after", "names", "cursor"),
    "/events": ("name", "state", "workspace", "cursor"),
    "/events/new": ("name", "workspace"),
    "/audit": ("run", "actor", "action", "cursor", "time"),
    "/failures": ("time",),
    "/view": ("next",),
    "/healthz": ("deep",),
    "/run/<path:run_id>": ("steps", "step", "step_state", "waits"),
    "/run/<path:run_id>/fork": ("from_step",),
    "/run/<path:run_id>/retry": ("from_step",),
}


def test_b32_pages_take_any_text_in_their_addresses(app: Flask, rows: Rows) -> None:
    client, run_id = app.test_client(), rows.run("failed", workflow="plain", error=error_json())
    routes = [route for route in (*views.ROUTES, *views.FOR_MACHINES) if not route.writes]
    assert set(QUERY) <= {route.rule for route in routes}
    some = some_of_the_worst()
    for route in routes:
        if "<" in route.rule:
            for name, text in next(some):
                check_page(client.get(address_of(route, escaped(text), escaped(text))), f"{route.rule} {name}")
        for field in QUERY.get(route.rule, ()):
            for name, text in next(some):
                address = f"{address_of(route, run_id)}?{field}={escaped(text)}"
                check_page(client.get(address), f"{route.rule} {field} {name}")


#: What is filled in beside one text, so that the form gets far.
FILLED = {
    "workflow": "plain",
    "input": "{}",
    "payload": "null",
    "epoch": "0",
    "name": LABELS["composed"],
    "action": "cancel",
    "all": "1",
    "do": "deliver",
}
TYPED = (
    *("workflow", "input", "payload", "epoch", "name", "action", "all", "do", "key", "workspace", "delay", "deadline"),
    *("like", "reason", "once", "at", "status", "from_step", "run", "q", "order", "next", "zone", "checked"),
)


def test_b32_forms_take_any_text(app: Flask, rows: Rows) -> None:
    client, run_id = app.test_client(), rows.run("failed", workflow="plain", error=error_json())
    with app.test_request_context():
        token = csrf.token("ana")
    some = some_of_the_worst()
    for route in views.ROUTES:
        if route.writes:
            shown = client.get(address_of(route, run_id))
            fields = {attributes.get("name") for _, attributes in Tags(shown.text).found} & set(TYPED)
            for field in sorted(fields or TYPED, key=str):
                for name, text in next(some):
                    form = {**FILLED, csrf.FIELD: token, field or "": text.encode("utf-8", "surrogatepass")}
                    response = client.post(address_of(route, run_id), data=form)
                    check_page(response, f"{route.rule} {field} {name}")


def test_b32_headers_take_any_text(app: Flask, rows: Rows) -> None:
    """Of those that a server lets through."""
    client, run_id = app.test_client(), rows.run("pending", workflow="plain")
    for name, text in WORST.items():
        if text.isprintable() and text.isascii():
            for header in (
                "Accept",
                "X-Request-ID",
                "Origin",
                "Sec-Fetch-Site",
                "HX-Request",
                "Authorization",
                "Cookie",
            ):
                headers = {header: f"workflows_view={text}" if header == "Cookie" else text}
                check_page(client.get(f"{PREFIX}/run/{run_id}", headers=headers), f"{header} {name}")
                check_json(client.post(f"{API}/runs/{run_id}/pause", json={}, headers=headers), f"{header} {name}")
            for kind in (text, f"application/json; charset={text}"):
                check_json(client.post(f"{API}/runs/{run_id}/pause", data="{}", content_type=kind), f"{kind} {name}")


# JSON --------------------------------------------------------------------------------------


def check_json(response: TestResponse, where: str) -> None:
    """It is good, or refused with a code and words."""
    assert response.status_code < 500, (where, response.text[:500])
    assert response.is_json, where
    if response.status_code >= 400:
        assert problem_of(response)[1], where


def test_b32_json_routes_take_any_text(app: Flask, rows: Rows) -> None:
    client, run_id = app.test_client(), rows.run("failed", workflow="plain", error=error_json())
    for route in api.ROUTES:
        if route.operation is None:
            continue
        rule = API + route.rule
        for name, text in WORST.items():
            where = f"{route.methods[0]} {route.rule} {name}"
            if "<" in rule:
                address = rule.replace("<run_id>", escaped(text))
                check_json(client.open(address, method=route.methods[0], json=None), where)
            address = rule.replace("<run_id>", run_id)
            for query in route.operation.query:
                check_json(client.get(f"{address}?{query.name}={escaped(text)}"), f"{where} {query.name}")
            for field in route.operation.body or ():
                body = {**_required(route), field.name: text}
                response = client.post(address, data=json.dumps(body), content_type="application/json")
                check_json(response, f"{where} {field.name}")


def _required(route: Route) -> dict[str, str]:
    assert route.operation is not None
    return {field.name: FILLED.get(field.name, "send") for field in route.operation.body or () if field.required}


# The command line --------------------------------------------------------------------------


def check_terminal(result: Result, where: str) -> None:
    """It ended with a code of ours, and printed nothing that drives a terminal."""
    assert result.exception is None or isinstance(result.exception, SystemExit), (where, result.exception)
    assert result.exit_code in range(5), where
    assert not re.search("Traceback|No such (option|command)", result.output), where
    driving = [letter for letter in result.output if not letter.isprintable() and letter != "\n"]
    assert driving == [], (where, result.output)


#: Where a text may stand; it comes in for `{}`. A run's id is for `ID`.
COMMANDS = (
    *("list --workflow={}", "list --status={}", "list --workspace={}", "list --queue={}", "list --key={}"),
    *("list --limit={}", "list --cursor={}", "list --json --key={}", "show -- {}", "show --json -- {}"),
    *("start -- {}", "start plain --input={}", "start plain --key={}", "start plain --workspace={}"),
    *("start plain --delay={}", "start plain --deadline={}", "start plain --reason={}", "emit -- {}"),
    *(
        "emit \u00e9 --payload={}",
        "emit \u00e9 --workspace={}",
        "emit \u00e9 --delivery-id={}",
        "emit \u00e9 --reason={}",
    ),
    *("cancel -- {}", "cancel ID --reason={}", "retry -- {}", "retry ID --from={}", "retry ID --reason={}"),
    *("fork ID --from={}", "fork --from=x -- {}", "pause -- {}", "pause ID --reason={}", "resume -- {}"),
    *("wake -- {}", "wake ID --at={}", "release -- {}", "prune --older-than={}", "check --replay --workflow={}"),
    *("work --name={} --concurrency=0", "work --queue={} --concurrency=0"),
)


def test_b143_commands_take_any_text(app: Flask, rows: Rows) -> None:
    runner, run_id = app.test_cli_runner(), rows.run("failed", workflow="plain", error=error_json())
    for command in COMMANDS:
        for name, text in WORST.items():
            # No argument of a process can hold a NUL.
            if "\0" not in text:
                args = [word.replace("ID", run_id).replace("{}", text) for word in command.split(" ")]
                result = runner.invoke(args=["workflows", *args], input="")
                check_terminal(result, f"{command} {name}")
                if "--json" in command and result.exit_code == 0:
                    json.loads(result.stdout)


# Workers -----------------------------------------------------------------------------------


def test_b32_a_worker_has_a_name_that_is_shown_or_is_refused(app: Flask, workflows: Workflows) -> None:
    with app.app_context():
        refused = refused_by(lambda text: workflows.worker(name=text))
        assert refused == refused_by(lambda text: workflows.worker(queues=[text])) == set(TEXTS) - set(LABELS)
    now = time.time_ns() // 1_000_000
    for text in LABELS.values():
        rows_of(app).worker(text, host=text, queues=json.dumps([text]), seen_at=now)
    client = app.test_client()
    check_page(client.get(f"{PREFIX}/workers"), "workers")
    check_page(client.get(f"{PREFIX}/queues"), "queues")
    assert {worker["name"] for worker in get_json(client, "/workers")["workers"]} == set(LABELS.values())
