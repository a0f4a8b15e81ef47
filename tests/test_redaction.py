from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from flask_workflows import Retry
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.hooks import Hook
from flask_workflows.payloads import Hidden
from flask_workflows.payloads import show_member
from flask_workflows.payloads import show_value
from flask_workflows.payloads import write_redacted
from flask_workflows.records import shown
from flask_workflows.redaction import hides
from flask_workflows.redaction import redact_error
from flask_workflows.redaction import redact_text
from flask_workflows.runs import Head
from flask_workflows.runs import RunError
from tests.apps import database_of
from tests.apps import MakeApp
from tests.apps import workflows_of
from tests.rows import rows_of


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWD",
        "db_password_2",
        "userPassword",
        "client_secret",
        "accessToken",
        "api_key",
        "apiKey",
        "api-key",
        "X-API-KEY",
        "auth",
        "authorization",
        "authHeader",
        "cookies",
        "session_id",
        "private_key",
        "credentials",
        "card_number",
        "creditCard",
        "cvv",
        "iban",
        "userSSN",
        "otp_code",
        "passWord",
        "PassWord",
        "pass_phrase",
        "DB_PASS",
        "pwd",
        "passcode",
        "accessKey",
        "signing_key",
        "oauth",
        "totp",
        "creditcard",
        "HTTPAuth",
    ],
)
def test_telling_key_is_hidden(key: str) -> None:
    """B111"""
    assert hides(key)


@pytest.mark.parametrize(
    "key", ["author", "authors", "discard", "dashboard", "classname", "hotpot", "keyboard", "email", "user_id", ""]
)
def test_harmless_key_is_shown(key: str) -> None:
    assert hides(key) is None


def test_hidden_key_names_the_word() -> None:
    assert hides("stripeToken") == "token"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://app:hunter2@db/shop", "hunter2"),
        ("could not connect to https://u:p%40ss@example.com/x", "p%40ss"),
        ("header eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w", "eyJzdWIi"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKC"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut", "MIIEcut"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("sent Bearer abcdefghijkl there", "abcdefghijkl"),
        ("Cookie: sid=abc123; theme=dark456", "dark456"),
        ("login failed with password=hunter2, giving up", "hunter2"),
        ("{'user': 'a', 'api_key': 'sk-123'}", "sk-123"),
        ('{"user": "a", "token": "a b c"}', "a b c"),
        ('"{\\"token\\": \\"tok-1\\"}"', "tok-1"),
        ('{"password": "a\\"hunter2"}', "hunter2"),
        (json.dumps(json.dumps({"password": 'a"hunter2'})), "hunter2"),
        (json.dumps(json.dumps(json.dumps({"password": "hunter2"}))), "hunter2"),
        ("{'password': b'hunter2'}", "hunter2"),
        ("{'password': 'a\\'hunter2'}", "hunter2"),
        ("password   =   hunter2", "hunter2"),
        ("no route to postgresql://app:hunter2/x@db/shop", "hunter2"),
        ("could not connect to postgresql://app:hunter2", "hunter2"),
        ("https://example.com/?access_token=t0k3n&page=2", "t0k3n"),
    ],
)
def test_secret_in_a_text_is_hidden(text: str, secret: str) -> None:
    """B111"""
    redacted = redact_text(text)

    assert secret not in redacted
    assert "[hidden" in redacted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the card was declined",
        "author: Jane",
        "password: None",
        "https://example.com/a?b=c",
        "division by zero",
        "session expired",
        "no answer from http://localhost:8080",
        "no answer from http://localhost:8080.",
        "compass: north, bypass=3",
    ],
)
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


def test_only_the_secret_goes() -> None:
    assert redact_text("to postgresql://app:pw@db/shop, password='x' y") == (
        "to postgresql://app:[hidden]@db/shop, password='[hidden]' y"
    )


def test_redacting_twice_changes_nothing() -> None:
    once = redact_text("Cookie: a=b\ntoken=abc password='x' postgresql://u:p@h/d Bearer abcdefghijk")

    assert redact_text(once) == once


def test_message_and_traceback_of_an_error_are_redacted() -> None:
    error = redact_error(RunError("E", "token=abc", 'x = "postgresql://u:pw@h"'))

    assert "abc" not in error.message
    assert error.traceback is not None
    assert ":pw@" not in error.traceback


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "token",
        "pass",
        "auth",
        "a://",
        "a://b:c",
        "eyJ",
        "-----BEGIN A-----",
        'token="',
        "bearer ",
        "card:",
        "_",
        ".",
    ],
)
def test_long_text_takes_no_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))

    began = time.process_time()
    redact_text(text)

    assert time.process_time() - began < 2


def test_secret_whose_end_was_cut_off_is_hidden() -> None:
    """B111"""
    for text in ('{"a": 1, "password": "hunter2', "{'token': 'hunter2 hunter3", '{\\"secret\\": \\"hunter2'):
        assert "hunter" not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"credentials": {"user": "a", "value": "hunter2"}, "b": 1}',
        '{"token": ["x", "hunter2"], "b": 1}',
        "{'auth': ('app', 'hunter2'), 'b': 1}",
        "session=[hunter2, hunter2]; b",
        '{"secret": {"a": "} hunter2"}, "b": 1}',
        '{"secret": {"a": "\\" } hunter2"}, "b": 1}',
        '{"secret": {\n  "a": [\n    "hunter2"\n  ]\n}, "b": 1}',
        '"{\\"secret\\": {\\"a\\": \\"hunter2\\"}}"',
        '{"secret": {"a": "hunter2',
        '{"secret": [[[["hunter2"',
    ],
)
def test_b111_everything_under_a_telling_key_is_hidden(text: str) -> None:
    redacted = redact_text(text)

    assert "hunter2" not in redacted
    assert "[hidden]" in redacted
    assert redact_text(redacted) == redacted
    if text.endswith('"b": 1}'):
        assert redacted.endswith('"b": 1}')


def test_code_that_goes_on_below_hides_no_traceback() -> None:
    text = 'File "a.py", line 1, in f\n    auth = {\nFile "b.py", line 2, in g\n    call(token=[\nKeyError: 1'

    assert redact_text(text) == text


@pytest.mark.parametrize("piece", ["token={", "token={'", 'token={"\\"', "token=[(", "token=[] ", "auth={\n"])
def test_long_text_of_brackets_takes_no_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))

    began = time.process_time()
    redact_text(text)

    assert time.process_time() - began < 2


# What the app hides -------------------------------------------------------------------------


@pytest.fixture
def hiding(make_app: MakeApp, sqlite_url: str) -> Callable[[Hook], Flask]:
    """Make an app that hides by a function of its own."""

    def make(redact: Hook) -> Flask:
        return make_app(sqlite_url, workflows=Workflows(authorize=lambda action, run=None: True, redact=redact))

    return make


VALUE = {"user": {"id": 8, "born": "1990-01-01"}, "lines": [{"sku": "a"}, {"sku": "b"}], "odd key": 1.5, "": None}


def test_app_is_asked_for_every_value_by_its_path(hiding: Callable[[Hook], Flask]) -> None:
    asked: dict[str, object] = {}

    def redact(path: str, value: object) -> bool:
        asked[path] = value
        return False

    stored = json.dumps(VALUE)
    with hiding(redact).app_context():
        laid_out = show_value(Head(stored, len(stored)))
        seen = dict(asked)
        asked.clear()
        plain = shown(VALUE)

    assert json.loads("".join(map(str, laid_out.parts))) == plain == VALUE
    assert seen == asked
    assert asked == {
        "$": VALUE,
        "$.user": VALUE["user"],
        "$.user.id": 8,
        "$.user.born": "1990-01-01",
        "$.lines": VALUE["lines"],
        "$.lines[0]": {"sku": "a"},
        "$.lines[0].sku": "a",
        "$.lines[1]": {"sku": "b"},
        "$.lines[1].sku": "b",
        "$['odd key']": 1.5,
        "$['']": None,
    }


def test_what_the_app_hides_is_hidden_everywhere(hiding: Callable[[Hook], Flask]) -> None:
    app = hiding(lambda path, value: path in ("$.user.born", "$.lines") or value == 1.5)
    stored = json.dumps(VALUE)

    with app.app_context():
        laid_out = "".join(map(str, show_value(Head(stored, len(stored))).parts))
        written = "".join(write_redacted(stored))
        plain = shown(VALUE)

    assert '"born": hidden by the app' in laid_out
    assert plain == {
        "user": {"id": 8, "born": "[hidden by the app]"},
        "lines": "[hidden by the app]",
        "odd key": "[hidden by the app]",
        "": None,
    }
    assert json.loads(written)["lines"] == "hidden by the app"
    for text in (laid_out, written, json.dumps(plain)):
        assert "1990" not in text
        assert "sku" not in text


def test_value_under_a_name_is_judged_by_it(hiding: Callable[[Hook], Flask]) -> None:
    asked = []

    def redact(path: str, value: object) -> bool:
        asked.append(path)
        return path == "$.born"

    with hiding(redact).app_context():
        found = [
            show_member(name, Head(text, len(text))).parts
            for name, text in (("born", '"1990"'), ("api_token", '"x"'), ("token", "null"), ("a b", "1"))
        ]
        show_member("user.id", Head("1", 1), path="$.user.id")

    assert found == [("", Hidden(), ""), ("", Hidden("token")), ("null",), ("1",)]
    assert asked == ["$.born", "$.token", "$['a b']", "$.user.id"]


def test_app_is_remembered_when_its_context_is_gone(hiding: Callable[[Hook], Flask]) -> None:
    with hiding(lambda path, value: path == "$.a").app_context():
        pieces = write_redacted('{"a": "hunter2"}')

    assert "hunter2" not in "".join(pieces)


class Fails:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __call__(self, path: str, value: object) -> object:
        if path == "$.a":
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        return False


@pytest.mark.parametrize("answer", [KeyError("hunter2"), RecursionError("hunter2"), None, 1, "no", object()])
def test_function_that_fails_hides_and_is_logged_once(
    hiding: Callable[[Hook], Flask], caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    stored = '{"a": "hunter2", "b": 1}'

    with hiding(Fails(answer)).app_context():
        values = [show_value(Head(stored, len(stored))) for _ in range(3)]

    assert values[0].parts == ('{\n  "a": ', Hidden(), ',\n  "b": 1\n}')
    assert len([record for record in caplog.records if record.message.startswith("redact() failed")]) == 1
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("stored", ["{", "nope", '{"a": "hunter2', "[" * 50_000])
def test_what_the_app_cannot_judge_is_hidden(hiding: Callable[[Hook], Flask], stored: str) -> None:
    with hiding(lambda path, value: False).app_context():
        value = show_value(Head(stored, len(stored)))
        written = "".join(write_redacted(stored))

    assert value.parts == (Hidden(),)
    assert written == '"hidden by the app"\n'


def test_app_judges_the_beginning_of_a_huge_value(hiding: Callable[[Hook], Flask]) -> None:
    stored = json.dumps({"basket": {"number": "hunter2"}, "rest": ["y" * 100] * 10_000})

    with hiding(lambda path, value: path == "$.basket").app_context():
        value = show_value(Head(stored[:500_000], len(stored)))

    assert "hunter2" not in "".join(map(str, value.parts))
    assert Hidden() in value.parts


def test_deep_value_takes_the_app_no_time(hiding: Callable[[Hook], Flask]) -> None:
    stored = '{"a":' * 150 + json.dumps(["x" * 10] * 30_000) + "}" * 150

    with hiding(lambda path, value: False).app_context():
        began = time.process_time()
        show_value(Head(stored, len(stored)))

    assert time.process_time() - began < 5


# Everywhere --------------------------------------------------------------------------------


SECRETS = {
    "password": "hunter-password",
    "headers": {"Authorization": "Bearer hunter-header", "X-Api-Key": "hunter-key"},
    "session": {"id": {"value": "hunter-nested"}},
    "note": "see https://u:hunter-url@example.com",
    "born": "hunter-by-the-app",
}


def make_secretive() -> Workflows:
    workflows = Workflows(
        authorize=lambda action, run=None: True,
        actor=lambda: "ana",
        redact=lambda path, value: path.endswith(".born") or value == "hunter-value",
    )

    @workflows.step(retry=Retry(attempts=1))
    def connect(settings: dict[str, Any]) -> None:
        raise ConnectionError(
            f"postgresql://app:hunter-database@db/shop refused, headers={settings['headers']}, token=hunter-token"
        )

    @workflows.step
    def look_up(settings: dict[str, Any]) -> dict[str, Any]:
        return {"born": settings["born"], "token": "hunter-output", "list": ["hunter-value"]}

    @workflows.workflow
    def secretive(ctx: WorkflowContext, settings: dict[str, Any]) -> None:
        ctx.set("api_token", "hunter-published")
        ctx.set("settings", settings)
        ctx.progress(1, 2, "password=hunter-progress")
        ctx.receive("letter")
        look_up(settings)
        connect(settings)

    workflows.event("paid")

    @workflows.workflow
    def waiter(ctx: WorkflowContext) -> None:
        ctx.wait_for("paid", match={"password": "hunter-match", "born": "hunter-by-the-app"})

    return workflows


def addresses(app: Flask, run_id: str) -> Iterator[str]:
    """Every page and JSON route that can be looked at, about this run where it is about one."""
    adapter = app.url_map.bind("localhost")
    known = {"run_id": run_id, "name": "secretive", "number": 1, "key": "connect", "part": "output"}
    for rule in app.url_map.iter_rules():
        if (
            "GET" in (rule.methods or ())
            and rule.endpoint.startswith("flask_workflows.")
            and "asset" not in rule.endpoint
        ):
            values = {name: known.get(name, "input" if name != "id" else run_id) for name in rule.arguments}
            yield adapter.build(rule.endpoint, values)


def test_b111_no_secret_leaves_the_database(
    make_app: MakeApp, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(database_url, workflows=make_secretive())
    with caplog.at_level(logging.INFO), app.app_context():
        handle = workflows_of(app).registry.latest("secretive").spawn(SECRETS)
        run_id = handle.id
        handle.send("letter", SECRETS)
        database_of(app).session.commit()
        workflows_of(app).deliver("paid", SECRETS)
        workflows_of(app).registry.latest("waiter").spawn()
        workflows_of(app).tick()
        assert workflows_of(app).get(run_id).status == "failed"
    client, runner = app.test_client(), app.test_cli_runner()

    answers = {}
    for address in addresses(app, run_id):
        answers[address] = client.get(address).text
    for command in (["list"], ["show", run_id], ["list", "--json"], ["show", run_id, "--json"]):
        result = runner.invoke(args=["workflows", *command])
        assert result.exit_code == 0
        answers[" ".join(command)] = result.output

    for where, text in answers.items():
        assert "hunter" not in text, where
    assert "hunter" not in caplog.text
    assert "ConnectionError" in caplog.text
    page = answers[f"/workflows/run/{run_id}"]
    assert "hidden by the app" in page
    assert "hidden: matches “password”" in page


def test_b111_what_is_hidden_is_not_found_either(make_app: MakeApp, sqlite_url: str) -> None:
    def redact(path: str, value: object) -> bool:
        if path == "$.fails":
            raise KeyError
        return path in ("$.born", "$['odd key']")

    workflows = Workflows(authorize=lambda action, run=None: True, redact=redact)
    app = make_app(sqlite_url, workflows=workflows)
    values = {"born": "1990", "odd key": "1990", "fails": "1990", "token": "1990", "shown": "1990"}
    rows_of(app).run(input=json.dumps(values))
    client = app.test_client()

    def finds(search: str) -> bool:
        response = client.get("/workflows/runs", query_string={"q": search})
        # What stands under a telling key is refused, and the list shown as it was.
        return response.status_code == 200 and '<tr role="row" id="run-' in response.text

    assert finds('input.shown:"1990"')
    for name in ("born", "fails", "token"):
        assert not finds(f'input.{name}:"1990"')
        assert not finds(f'-input.{name}:"1990"')
        assert not finds(f'-input.{name}:"1991"')
