from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click.testing
import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests.apps import database_of
from tests.apps import MakeApp
from tests.apps import workflows_of
from tests.running import Clock

ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
INSTANT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


class PaymentRefused(Exception):
    pass


def declare() -> Workflows:
    workflows = Workflows()

    @workflows.step
    def send_mail(user_id: int, password: str) -> dict[str, str]:
        return {"to": f"user {user_id}", "token": "abc"}

    @workflows.step(retry=Retry(attempts=1))
    def charge(user_id: int) -> None:
        raise PaymentRefused("no money \x1b[2J left")

    @workflows.workflow(version=2, min_version=1, queue="mail")
    def onboarding(ctx: WorkflowContext, user_id: int, days: int = 7) -> bool:
        """Welcomes a new learner.

        And waits.
        """
        send_mail(user_id, password="hunter2")
        ctx.sleep(timedelta(days=days))
        return True

    @workflows.workflow
    def renewal(user_id: int) -> None:
        """Takes the yearly fee."""
        charge(user_id)

    return workflows


@pytest.fixture
def app(database_url: str, make_app: MakeApp) -> Flask:
    return make_app(database_url, workflows=declare())


@pytest.fixture
def workflows(app: Flask) -> Iterator[Workflows]:
    with app.app_context():
        yield workflows_of(app)


def run(app: Flask, *args: str, exit_code: int = 0, **options: Any) -> click.testing.Result:
    result = app.test_cli_runner().invoke(args=["workflows", *args], **options)

    assert result.exit_code == exit_code, result.output or result.exception
    return result


def lines(app: Flask, *args: str) -> list[str]:
    return run(app, *args).stdout.splitlines()


def listed(app: Flask, *args: str) -> list[str]:
    return [run["id"] for run in json.loads(run_json(app, *args))["runs"]]


def run_json(app: Flask, *args: str) -> str:
    return run(app, "list", "--json", *args).stdout


def spawn(workflows: Workflows, name: str = "onboarding", **options: Any) -> str:
    return workflows.spawn(name, {"user_id": 8}, **options).id


def execute(app: Flask, statement: str, **values: Any) -> None:
    with app.app_context(), database_of(app).engine.begin() as connection:
        connection.execute(sa.text(statement), values)


# Listing


def test_group_documents_its_exit_codes(app: Flask) -> None:
    output = run(app, "--help").output

    assert "Exit codes: 0 done; 1 refused, or an error; 2 wrong usage; 3 no such run" in output


def test_empty_list_prints_nothing(app: Flask) -> None:
    assert run(app, "list").output == ""
    assert json.loads(run_json(app)) == {"runs": [], "older": None}


def test_list_says_of_each_run_what_becomes_of_it(app: Flask, workflows: Workflows) -> None:
    sleeping, failed = spawn(workflows), spawn(workflows, "renewal")
    workflows.tick()
    pending = spawn(workflows)

    first, second, third = lines(app, "list")

    assert re.fullmatch(rf"{pending}  pending    onboarding v2  created {INSTANT}  no live worker", first)
    assert re.fullmatch(
        rf"{failed}  failed     renewal v1  started {INSTANT}  "
        r"error: step charge: .*PaymentRefused: no money .*",
        second,
    )
    assert re.fullmatch(rf"{sleeping}  sleeping   onboarding v2  started {INSTANT}  wakes {INSTANT}", third)
    assert "\x1b" not in second


def test_each_filter_of_the_list_is_applied(app: Flask, workflows: Workflows) -> None:
    wanted = spawn(workflows, key="k", workspace="w")
    other = spawn(workflows, "renewal")
    workflows.cancel(other)

    for option in ("--workflow=onboarding", "--status=pending", "--workspace=w", "--queue=mail", "--key=k"):
        assert listed(app, option) == [wanted]
        assert [line[:36] for line in lines(app, "list", option)] == [wanted]
    for option in ("--workflow=%", "--status=failed", "--workspace=_", "--queue=ma%", "--key='"):
        assert listed(app, option) == []


def test_list_goes_on_where_it_ended(app: Flask, workflows: Workflows) -> None:
    ids = [spawn(workflows) for _ in range(3)][::-1]

    first = run(app, "list", "--limit", "2")
    (cursor,) = re.findall(r"more with --cursor (\S+)", first.stderr)
    second = run(app, "list", "--limit", "2", "--cursor", cursor)

    assert [line[:36] for line in first.stdout.splitlines()] == ids[:2]
    assert [line[:36] for line in second.stdout.splitlines()] == ids[2:]
    assert second.stderr == ""
    assert json.loads(run_json(app, "--limit", "2"))["older"] == cursor


def test_wrong_options_of_the_list_are_refused(app: Flask) -> None:
    assert "is not a cursor" in run(app, "list", "--cursor", "x", exit_code=1).stderr
    assert "'gone' is not one of" in run(app, "list", "--status", "gone", exit_code=2).stderr
    assert "--limit" in run(app, "list", "--limit", "0", exit_code=2).stderr
    assert "control characters" in run(app, "list", "--key", "a\nb", exit_code=2).stderr


def test_registered_workflows_are_listed_with_their_description(app: Flask) -> None:
    text = lines(app, "list", "--registered")
    data = json.loads(run(app, "list", "--registered", "--json").stdout)

    assert text == [
        "onboarding v2 (resumes from v1)  queue mail  Welcomes a new learner.",
        "renewal v1  queue default  Takes the yearly fee.",
    ]
    assert data[0] == {
        "name": "onboarding",
        "version": 2,
        "min_version": 1,
        "queue": "mail",
        "description": "Welcomes a new learner.",
    }


def test_filters_do_not_go_with_registered_workflows(app: Flask) -> None:
    result = run(app, "list", "--registered", "--limit", "5", exit_code=2)

    assert "--limit is for runs, not with --registered" in result.stderr


# Showing


def test_show_prints_the_run_with_its_steps_and_hides_secrets(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows, key="k", workspace="w")
    workflows.tick()

    output = run(app, "show", run_id).stdout

    assert output.startswith(f"{run_id}  sleeping   onboarding v2  started ")
    assert "\n  Sleeps until " in output
    assert "\n  queue mail  workspace w  key k  attempts 0 of 3\n" in output
    assert '\n  input {\n    "user_id": 8\n  }\n' in output
    assert re.search(r"\n    1  completed  send_mail  took \d+ ms\n", output)
    assert '"token": [hidden: token]' in output
    assert re.search(rf"\n    2  sleeping   sleep  wakes {INSTANT}\n", output)


def test_show_prints_the_traceback_without_driving_the_terminal(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows, "renewal")
    workflows.tick()

    output = run(app, "show", run_id).stdout

    assert "\n  Failed at step 1, charge: " in output
    assert re.search(r"\n    1  failed     charge  took \d+ ms  error: PaymentRefused: no money", output)
    assert "\n  Traceback (most recent call last):\n" in output
    assert "\x1b" not in output


def test_show_prints_json(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows)
    workflows.tick()

    shown = json.loads(run(app, "show", run_id, "--json").stdout)

    assert (shown["id"], shown["status"], shown["input"]) == (run_id, "sleeping", {"user_id": 8})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["created_at"])
    assert [step["key"] for step in shown["steps"]] == ["send_mail", "$sleep"]
    assert shown["steps"][0]["input"] == {"user_id": 8, "password": "[hidden: password]"}
    assert shown["steps"][0]["output"] == {"to": "user 8", "token": "[hidden: token]"}


def test_undecodable_row_is_shown_as_such(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows)
    execute(app, "UPDATE workflow_runs SET input = '{', error = '[', status = 'failed'")

    assert len(lines(app, "list")) == 1
    assert "Not readable as JSON" in run(app, "show", run_id).stdout
    assert "undecodable" in json.loads(run(app, "show", run_id, "--json").stdout)["input"]


def test_unknown_run_is_not_found(app: Flask) -> None:
    for command in ("show", "cancel", "retry", "wake"):
        result = run(app, command, "0199a1c2-7d3e-7c41-9a55-2b8e0f9d6a10", exit_code=3)

        assert result.stderr.startswith("Error: there is no run 0199a1c2-")
        assert len(result.stderr.splitlines()) == 1


def test_id_that_cannot_be_one_is_refused(app: Flask) -> None:
    for text in ("", " ", "\udcff", "x" * 256):
        run(app, "show", text, exit_code=2)


# Acting


def test_each_option_of_start_reaches_the_run(app: Flask, workflows: Workflows) -> None:
    options = ("--key", "k", "--workspace", "w", "--delay", "2h")

    run_id = run(app, "start", "onboarding", "--input", '{"user_id": 8, "days": 1}', *options).stdout.strip()

    started = workflows.get(run_id)
    assert started.input == {"user_id": 8, "days": 1}
    assert (started.key, started.workspace, started.status) == ("k", "w", RunStatus.SLEEPING)
    assert started.due_at is not None
    assert started.due_at - started.created_at == timedelta(hours=2)


@pytest.mark.parametrize(
    ("delay", "seconds"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("12h", 43_200), ("7d", 604_800)]
)
def test_delay_is_in_seconds_or_a_unit(app: Flask, workflows: Workflows, delay: str, seconds: float) -> None:
    run_id = run(app, "start", "renewal", "--input", '{"user_id": 8}', "--delay", delay).stdout.strip()

    started = workflows.get(run_id)
    assert started.due_at is not None
    assert started.due_at - started.created_at == timedelta(seconds=seconds)


@pytest.mark.parametrize("delay", ["-1", "soon", "1w", "", "nan", "9" * 40])
def test_other_delays_are_refused(app: Flask, delay: str) -> None:
    result = run(app, "start", "renewal", "--input", '{"user_id": 8}', "--delay", delay, exit_code=2)

    assert "is no duration" in result.stderr


@pytest.mark.parametrize(
    ("option", "length", "words"),
    [
        ("--deadline", "0", "the deadline must not be nothing: write at least a millisecond"),
        ("--deadline", "36526d", "the deadline must not be longer than 100 years"),
        ("--delay", "36526d", "the delay must not be longer than 100 years"),
    ],
)
def test_lengths_that_no_run_may_have_are_wrong_usage(app: Flask, option: str, length: str, words: str) -> None:
    result = run(app, "start", "renewal", "--input", '{"user_id": 8}', option, length, exit_code=2)

    assert words in result.stderr


def test_input_comes_from_a_file_or_standard_input(app: Flask, workflows: Workflows, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text('{"user_id": 1}', encoding="utf-8")

    from_file = run(app, "start", "renewal", "--input", f"@{path}").stdout.strip()
    from_stdin = run(app, "start", "renewal", "--input", "-", input='{"user_id": 2}').stdout.strip()

    assert workflows.get(from_file).input == {"user_id": 1}
    assert workflows.get(from_stdin).input == {"user_id": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ('{"user_id": NaN}', "is not JSON"),
        ("[8]", "JSON array"),
        ("{}", "lacks 'user_id'"),
        ('{"user_id": "8"}', "$.user_id is of type str"),
        ('{"user_id": 8, "user": 9}', "has 'user'"),
        ("@/nowhere/input.json", "cannot be read"),
    ],
)
def test_input_that_does_not_fit_is_wrong_usage(app: Flask, text: str, message: str) -> None:
    result = run(app, "start", "onboarding", "--input", text, exit_code=2)

    assert "Invalid value for '--input'" in result.stderr
    assert "stored" not in result.stderr
    assert message in result.stderr
    assert listed(app) == []


def test_start_with_a_key_in_use_prints_the_run_that_has_it(app: Flask) -> None:
    arguments = ("start", "renewal", "--input", '{"user_id": 8}', "--key", "k")

    first, second = run(app, *arguments), run(app, *arguments)

    assert first.stdout == second.stdout
    assert first.stderr == ""
    assert "already started with the key 'k'" in second.stderr


def test_emit_wakes_the_run_that_waits_for_it(app: Flask, workflows: Workflows) -> None:
    workflows.event("paid")

    @workflows.workflow
    def dunning(ctx: WorkflowContext, user_id: int) -> bool:
        """Waits for money."""
        return ctx.wait_for("paid", match={"user_id": user_id}) is not None

    run_id = run(app, "start", "dunning", "--input", '{"user_id": 8}').output.strip()
    workflows.tick()

    result = run(app, "emit", "paid", "--payload", '{"user_id": 8}', "--delivery-id", "hook-1")
    again = run(app, "emit", "paid", "--payload", '{"user_id": 8}', "--delivery-id", "hook-1")
    workflows.tick()

    assert result.output == "emitted\n"
    assert again.output == "already there with the delivery id 'hook-1'\n"
    assert workflows.get(run_id).output is True


def test_emit_of_an_unknown_event_or_bad_json_says_so(app: Flask) -> None:
    workflows_of(app).event("paid")

    unknown = run(app, "emit", "refunded", exit_code=3)
    broken = run(app, "emit", "paid", "--payload", "{", exit_code=2)

    assert "no event 'refunded' is registered" in unknown.output
    assert "--payload" in broken.output


def test_start_of_what_is_not_registered_names_the_remedy(app: Flask) -> None:
    result = run(app, "start", "onbording", exit_code=3)

    assert "no workflow named 'onbording'" in result.stderr
    assert "WORKFLOWS_IMPORTS" in result.stderr


def test_cancel_ends_the_run_once(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows)

    (line,) = lines(app, "cancel", run_id)
    again = run(app, "cancel", run_id, exit_code=4)

    assert line.startswith(f"{run_id}  cancelled  onboarding v2  ")
    assert workflows.get(run_id).status is RunStatus.CANCELLED
    assert f"run {run_id} is cancelled since " in again.stderr


def test_retry_takes_up_a_failed_run(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows, "renewal")
    refused = run(app, "retry", run_id, exit_code=4)
    workflows.tick()

    (line,) = lines(app, "retry", run_id)

    assert "only a failed or cancelled run can be retried" in refused.stderr
    assert line.startswith(f"{run_id}  pending    renewal v1  ")
    assert workflows.get(run_id).status is RunStatus.PENDING


def test_retry_onto_a_key_in_use_is_a_conflict(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows, "renewal", key="k")
    workflows.tick()
    spawn(workflows, "renewal", key="k")

    result = run(app, "retry", run_id, exit_code=4)

    assert "has its key 'k'" in result.stderr


def test_wake_ends_a_sleep(app: Flask, workflows: Workflows) -> None:
    run_id = spawn(workflows, delay=3600)

    run(app, "wake", run_id)
    again = run(app, "tick").stdout

    assert again == "1 executed\n"
    assert [step.key for step in workflows.details(run_id).steps] == ["send_mail", "$sleep"]


def test_tick_executes_what_is_due(app: Flask, workflows: Workflows) -> None:
    ids = [spawn(workflows), spawn(workflows, "renewal")]

    assert run(app, "tick").stdout == "2 executed\n"
    assert [workflows.get(id).status for id in ids] == ["sleeping", "failed"]
    assert run(app, "tick").stdout == "0 executed\n"


def test_prune_deletes_what_is_older(app: Flask, workflows: Workflows, clock: Clock) -> None:
    _, middle, young = [cancelled(workflows, clock, days_ago) for days_ago in (40, 20, 0)]

    assert run(app, "prune", "--dry-run").stdout == "1 run to delete\n"
    assert run(app, "prune").stdout == "1 run deleted\n"
    assert listed(app) == [young, middle]
    assert run(app, "prune", "--older-than", "10", "--dry-run").stdout == "1 run to delete\n"
    assert run(app, "prune", "--older-than", "10").stdout == "1 run deleted\n"
    assert listed(app) == [young]


def cancelled(workflows: Workflows, clock: Clock, days_ago: int) -> str:
    """A run that was cancelled some days before the clock's time."""
    clock.move(days=-days_ago)
    run_id = spawn(workflows)
    workflows.cancel(run_id)
    clock.move(days=days_ago)

    return run_id


def test_prune_keeps_runs_where_pruning_is_off(database_url: str, make_app: MakeApp) -> None:
    app = make_app(database_url, WORKFLOWS_PRUNE_AFTER_DAYS=0)

    result = run(app, "prune")

    assert "WORKFLOWS_PRUNE_AFTER_DAYS is 0" in result.stderr
    assert run(app, "prune", "--older-than", "3").stdout == "0 runs deleted\n"


# The database and the app's modules


def test_check_names_the_database_and_counts_the_workflows(app: Flask) -> None:
    (line,) = lines(app, "check")

    assert line.startswith("ok: ")
    assert line.endswith(", 2 workflows")


def test_check_names_unfinished_runs_without_code(app: Flask) -> None:
    run(app, "start", "renewal", "--input", '{"user_id": 8}')
    with app.app_context():
        db = database_of(app)
        db.session.execute(sa.text("UPDATE workflow_runs SET version = 7"))
        db.session.commit()

    result = run(app, "check")

    assert "no code here for the unfinished runs of renewal v7 (1 runs)" in result.stderr


@pytest.mark.parametrize("command", [["check"], ["list"], ["tick"], ["prune"], ["start", "renewal"]])
def test_database_without_tables_is_told_what_to_run(app: Flask, command: list[str]) -> None:
    with app.app_context():
        models.metadata.drop_all(database_of(app).engine)
    options = ["--input", '{"user_id": 1}'] if command[0] == "start" else []

    result = run(app, *command, *options, exit_code=1)

    assert "run `flask workflows install` and `flask db upgrade`" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_silent_database_is_one_line(sqlite_url: str, make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(sqlite_url)
    with app.app_context():
        database_of(app).engine.dispose()
    (tmp_path / "app.sqlite3").unlink()
    (tmp_path / "app.sqlite3").mkdir()

    for command in ("check", "list"):
        result = run(app, command, exit_code=1)

        assert "does not answer: unable to open database file" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_install_without_flask_migrate_says_what_to_add(app: Flask) -> None:
    result = run(app, "install", exit_code=1)

    assert "this app does not use Flask-Migrate" in result.stderr
