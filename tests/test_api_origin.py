"""Whether a request that changes something was meant: with cookies, with bearer tokens, beside Flask-WTF."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from flask import Blueprint
from flask import current_app
from flask import Flask
from flask import request
from flask import session
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]
from sqlalchemy.orm import DeclarativeBase

from flask_workflows import Workflows
from flask_workflows.config import WorkflowsConfig
from flask_workflows.dashboard.blueprint import create_blueprint
from tests import apps
from tests.answers import API
from tests.answers import get
from tests.answers import post
from tests.answers import problem_of
from tests.rows import NOW
from tests.rows import rows_of

BEARER = {"Authorization": "Bearer abc"}


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: session.get("user", ""))
    workflows.clock = FixedClock()
    return workflows


@pytest.fixture
def app(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return with_sign_in(make_app(sqlite_url, workflows=workflows))


def with_sign_in(app: Flask) -> Flask:
    @app.get("/sign-in/<user>")
    def sign_in(user: str) -> str:
        session["user"] = user
        return "signed in"

    @app.post("/own")
    def own() -> str:
        return "done"

    return app


def signed_in(app: Flask, user: str = "ana") -> FlaskClient:
    client = app.test_client()
    assert client.get(f"/sign-in/{user}").status_code == 200
    return client


def token_of(client: FlaskClient, api: str = API) -> dict[str, str]:
    given = client.get(f"{api}/token").json
    assert given is not None
    return {given["header"]: given["token"]}


def test_caller_without_cookies_needs_no_token(app: Flask) -> None:
    run_id = rows_of(app).run("waiting")

    assert post(app.test_client(), f"/runs/{run_id}/cancel")["status"] == "cancelled"


def test_cookies_need_a_token(app: Flask) -> None:
    run_id = rows_of(app).run("waiting")
    client = signed_in(app)

    without = client.post(f"{API}/runs/{run_id}/cancel", json={})
    wrong = client.post(f"{API}/runs/{run_id}/cancel", json={}, headers={"X-Workflows-Token": "abc"})
    anothers = client.post(f"{API}/runs/{run_id}/cancel", json={}, headers=token_of(signed_in(app, "bob")))

    for refused in (without, wrong, anothers):
        assert problem_of(refused) == (400, "forged")
    assert get(client, f"/runs/{run_id}")["status"] == "waiting"
    assert post(client, f"/runs/{run_id}/cancel", headers=token_of(client))["status"] == "cancelled"


def test_bearer_token_is_proof_enough(app: Flask) -> None:
    run_id = rows_of(app).run("waiting")

    assert post(signed_in(app), f"/runs/{run_id}/cancel", headers=BEARER)["status"] == "cancelled"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
def test_another_site_is_refused_whatever_it_brings(app: Flask, headers: dict[str, str]) -> None:
    run_id = rows_of(app).run("waiting")
    client = signed_in(app)

    response = client.post(f"{API}/runs/{run_id}/cancel", json={}, headers={**headers, **token_of(client)})

    assert problem_of(response) == (400, "forged")


def test_form_of_another_site_is_no_json(app: Flask) -> None:
    """A browser sends forms without asking first, but not as JSON; the network may be all that lets a visitor in."""
    run_id = rows_of(app).run("waiting")
    client = app.test_client()

    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        response = client.post(f"{API}/runs/{run_id}/cancel", data='{"epoch":1}', content_type=content_type)
        assert problem_of(response) == (415, "unsupported_media_type")
    assert get(client, f"/runs/{run_id}")["status"] == "waiting"


# Flask-WTF ---------------------------------------------------------------------------------


def protected_before(url: str, workflows: Workflows) -> Flask:
    app = _bare(url)
    CSRFProtect(app)
    workflows.init_app(app)
    return app


def protected_after(url: str, workflows: Workflows) -> Flask:
    app = _bare(url)
    workflows.init_app(app)
    CSRFProtect(app)
    return app


def protected_late(url: str, workflows: Workflows) -> Flask:
    protect = CSRFProtect()
    app = _bare(url)
    workflows.init_app(app)
    with_sign_in(app)
    protect.init_app(app)
    return app


def nested(url: str, workflows: Workflows) -> Flask:
    app = _bare(url)
    app.config.update(WORKFLOWS_DASHBOARD=False, WORKFLOWS_API=False)
    workflows.init_app(app)
    parent = Blueprint("v1", __name__)
    parent.register_blueprint(create_blueprint(WorkflowsConfig()))
    outermost = Blueprint("outermost", __name__)
    outermost.register_blueprint(parent)
    CSRFProtect(app)
    app.register_blueprint(outermost)
    return app


def _bare(url: str) -> Flask:
    class Base(DeclarativeBase):
        pass

    app = Flask("tests")
    app.config.update(SECRET_KEY="tests", SQLALCHEMY_DATABASE_URI=url, TESTING=True)
    SQLAlchemy(app, model_class=Base)
    return app


@pytest.fixture(params=[protected_before, protected_after, protected_late, nested])
def protected(request: pytest.FixtureRequest, sqlite_url: str, workflows: Workflows) -> Iterator[Flask]:
    make: Callable[[str, Workflows], Flask] = request.param
    app = make(sqlite_url, workflows)
    if "sign_in" not in app.view_functions:
        with_sign_in(app)
    with app.app_context():
        apps.database_of(app).create_all()

    yield app

    apps.dispose_engines(app)


def test_b105_json_routes_work_beside_csrf_protect(protected: Flask) -> None:
    first, second, third = (rows_of(protected).run("waiting") for _ in range(3))
    client = signed_in(protected)

    for path in (f"/runs/{first}/cancel", "/nothing", f"/runs/{first}"):
        refused = client.post(API + path, json={})
        assert refused.content_type == "application/json", path
    assert problem_of(client.post(f"{API}/runs/{first}/cancel", json={})) == (400, "forged")
    assert problem_of(client.post(f"{API}/nothing", json={})) == (404, "not_found")
    assert problem_of(client.post(f"{API}/runs/{first}", json={})) == (405, "method_not_allowed")

    assert post(client, f"/runs/{first}/cancel", headers=token_of(client))["status"] == "cancelled"
    assert post(client, f"/runs/{second}/cancel", headers=BEARER)["status"] == "cancelled"
    assert post(protected.test_client(), f"/runs/{third}/cancel")["status"] == "cancelled"


def test_b105_forms_of_the_pages_work_beside_csrf_protect(protected: Flask) -> None:
    run_id = rows_of(protected).run("waiting")
    client = signed_in(protected)
    (token,) = token_of(client).values()
    fields = {"epoch": "1", "status": "waiting", "workflows_token": token}

    forged = client.post(f"/workflows/run/{run_id}/cancel", data={**fields, "workflows_token": ""})
    done = client.post(f"/workflows/run/{run_id}/cancel", data=fields)

    assert forged.status_code == 400
    assert done.status_code == 303
    assert get(client, f"/runs/{run_id}")["status"] == "cancelled"


def test_b105_views_of_the_app_stay_protected(protected: Flask) -> None:
    client = signed_in(protected)
    assert client.get(f"{API}/runs").status_code == 200

    assert client.post("/own").status_code == 400


def test_example_of_the_documentation_lets_the_right_ones_in(
    sqlite_url: str, make_app: apps.MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parent.parent / "docs" / "http.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    workflows = Workflows()
    ana = SimpleNamespace(is_authenticated=True, workspaces=["acme"])
    names: dict[str, object] = {"workflows": workflows, "hmac": hmac, "request": request, "current_app": current_app}
    names["current_user"] = SimpleNamespace(is_authenticated=False)
    exec(example, names)
    app = make_app(sqlite_url, workflows=workflows, OPS_TOKEN="s3cret")
    client, run_id, other = app.test_client(), rows_of(app).run("waiting", workspace="acme"), rows_of(app).run()

    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer a=b"},
        {"Authorization": "Basic czNjcmV0Og=="},
    ):
        assert problem_of(client.get(f"{API}/runs", headers=headers)) == (403, "forbidden")
    ops = {"Authorization": "Bearer s3cret"}
    shown = client.get(f"{API}/runs", headers=ops).json
    assert shown is not None
    assert len(shown["runs"]) == 2
    names["current_user"] = ana
    assert problem_of(client.post(f"{API}/runs/{run_id}/retry", json={})) == (403, "forbidden")
    assert problem_of(client.post(f"{API}/runs/{other}/cancel", json={})) == (404, "workflow_run_not_found")
    assert client.post(f"{API}/runs/{run_id}/cancel", json={}).status_code == 200
