from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import TestResponse

from flask_workflows import Workflows
from flask_workflows.dashboard.preferences import CHOICES
from flask_workflows.dashboard.preferences import letters
from flask_workflows.dashboard.preferences import Preferences
from tests import apps
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import rows_of

VIEW = "/workflows/view"


@pytest.fixture
def app(sqlite_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(sqlite_url)


def html_of(page: TestResponse) -> dict[str, str | None]:
    (attributes,) = [attributes for tag, attributes in Tags(page.text).found if tag == "html"]
    return attributes


def cookie_of(response: TestResponse) -> str:
    (header,) = [value for value in response.headers.getlist("Set-Cookie") if value.startswith("workflows_view=")]
    return header


def test_what_was_chosen_holds_on_every_page(client: FlaskClient) -> None:
    client.post(VIEW, data={"theme": "dark", "density": "compact", "zone": "Asia/Tokyo", "keys": "on"})

    page = client.get("/workflows/runs")

    html = html_of(page)
    assert (html["data-theme"], html["data-density"], html["data-zone"]) == ("dark", "compact", "Asia/Tokyo")
    assert "data-keys" in html
    assert "data-zone-follows" not in html
    assert '<meta name="color-scheme" content="dark">' in page.text
    chosen = [attributes["value"] for _, attributes in Tags(page.text).found if "selected" in attributes]
    assert {"dark", "compact"} <= set(chosen)


def test_what_a_form_leaves_out_stays(client: FlaskClient) -> None:
    client.post(VIEW, data={"zone": "Asia/Tokyo", "keys": "on"})
    client.post(VIEW, data={"theme": "dark", "density": "normal"})

    html = html_of(client.get("/workflows/runs"))

    assert (html["data-theme"], html["data-zone"]) == ("dark", "Asia/Tokyo")
    assert "data-keys" in html


def test_chosen_zone_goes_before_the_browsers(client: FlaskClient) -> None:
    client.set_cookie("workflows_view", "browser=Europe%2FParis", path="/workflows/")
    assert html_of(client.get("/workflows/runs"))["data-zone"] == "Europe/Paris"
    assert "data-zone-follows" in html_of(client.get("/workflows/runs"))

    client.post(VIEW, data={"zone": "Asia/Tokyo"})
    assert html_of(client.get("/workflows/runs"))["data-zone"] == "Asia/Tokyo"

    # The browser's is kept beside it, to go back to.
    client.post(VIEW, data={"zone": ""})
    client.get("/workflows/runs")
    assert html_of(client.get("/workflows/runs"))["data-zone"] == "Europe/Paris"


def test_page_that_cannot_be_had_again_is_not_loaded_again(client: FlaskClient) -> None:
    """The script loads a page anew where its times are in another zone than the browser's."""
    answer = client.post(VIEW, data={"theme": "pink"})
    assert "data-zone-follows" not in html_of(answer)

    client.post(VIEW, data={"theme": "dark"})
    said = client.get("/workflows/runs")
    assert "Saved in this browser." in text_of(said)
    assert "data-zone-follows" not in html_of(said)
    assert "data-zone-follows" in html_of(client.get("/workflows/runs"))


def test_cookie_stays_under_the_prefix(client: FlaskClient) -> None:
    cookie = cookie_of(client.post(VIEW, data={"theme": "dark"}))

    assert cookie.startswith("workflows_view=theme=dark;")
    assert "Path=/workflows/;" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    # The script adds the browser's zone.
    assert "HttpOnly" not in cookie


def test_cookie_of_a_secure_site_is_sent_to_no_other(app: Flask) -> None:
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]

    response = app.test_client().post(VIEW, data={"theme": "dark"}, headers={"X-Forwarded-Proto": "https"})

    assert "Secure" in cookie_of(response)


@pytest.mark.parametrize(
    "cookie",
    [
        "theme=pink&density=huge&keys=maybe&zone=Mars",
        "&&==&theme",
        "%",
        "theme=%00&zone=..%2F..%2Fetc%2Fpasswd",
        "a=1&" * 100,
        "\x80\xff",
        "<script>",
    ],
)
def test_garbled_cookie_is_as_none(client: FlaskClient, cookie: str) -> None:
    plain = html_of(client.get("/workflows/runs"))

    found = client.get("/workflows/runs", headers={"Cookie": f"workflows_view={cookie}"})

    assert found.status_code == 200
    for name in ("data-theme", "data-density", "data-zone"):
        assert html_of(found)[name] == plain[name]


@pytest.mark.parametrize(
    "given",
    [{"theme": "pink"}, {"density": "<b>"}, {"zone": "Mars/Phobos"}, {"keys": ""}, {"zone": "../../etc/passwd"}],
)
def test_unknown_choice_is_refused(client: FlaskClient, given: dict[str, str]) -> None:
    response = client.post(VIEW, data=given)

    assert response.status_code == 422
    assert "There is no" in text_of(response)
    assert "Set-Cookie" not in response.headers


def test_visitor_comes_back_to_where_they_were(client: FlaskClient, app: Flask) -> None:
    run_id = rows_of(app).run("failed")
    page = client.get(f"/workflows/run/{run_id}?status=failed&workflow=a%26b")
    (back,) = [attributes["value"] for _, attributes in Tags(page.text).found if attributes.get("name") == "next"]

    response = client.post(VIEW, data={"next": back, "theme": "dark"})

    assert response.status_code == 303
    assert response.location == back == f"/workflows/run/{run_id}?status=failed&workflow=a%26b"
    page = client.get(back)
    assert "Saved in this browser." in text_of(page)


@pytest.mark.parametrize("run_id", ["a%2Fb", "a%3Fb", "a%23b", "%F0%9F%98%80", "a%20b", "%252F"])
def test_way_back_takes_any_id(client: FlaskClient, run_id: str) -> None:
    page = client.get(f"/workflows/run/{run_id}?_external=1&_scheme=javascript&_anchor=x")
    (back,) = [attributes["value"] for _, attributes in Tags(page.text).found if attributes.get("name") == "next"]
    assert back is not None

    again = client.post(VIEW, data={"next": back, "theme": "dark"}, follow_redirects=True)

    assert back.startswith("/workflows/run/")
    assert again.request.path == page.request.path
    assert again.request.args == page.request.args


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "\\\\evil.example",
        "/\t/evil.example",
        "/workflows/\r\nSet-Cookie: a=b",
        "/workflows/../admin",
        "/workflows/%2e%2e/admin",
        "/elsewhere",
        "javascript:alert(1)",
        " /workflows/runs",
        "/workflows",
        "",
    ],
)
@pytest.mark.parametrize("prefix", ["/workflows", "/"])
def test_no_form_leads_elsewhere(sqlite_url: str, make_app: apps.MakeApp, prefix: str, address: str) -> None:
    app = make_app(sqlite_url, WORKFLOWS_URL_PREFIX=prefix)
    root = "/" if prefix == "/" else f"{prefix}/"

    response = app.test_client().post(f"{root}view", data={"next": address})

    assert response.status_code == 303
    ours = prefix == "/" and address in ("/elsewhere", "/workflows")
    assert response.location == (address if ours else root)


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
)
def test_other_sites_choose_nothing(client: FlaskClient, headers: dict[str, str]) -> None:
    response = client.post(VIEW, data={"theme": "dark"}, headers=headers)

    assert response.status_code == 400
    assert "Set-Cookie" not in response.headers


def test_app_without_a_key_can_be_looked_at_in_the_dark(sqlite_url: str, make_app: apps.MakeApp) -> None:
    client = make_app(sqlite_url, SECRET_KEY=None).test_client()

    assert client.post(VIEW, data={"theme": "dark"}).status_code == 303
    assert html_of(client.get("/workflows/runs"))["data-theme"] == "dark"


def test_reader_may_choose(sqlite_url: str, make_app: apps.MakeApp) -> None:
    client = make_app(sqlite_url, WORKFLOWS_DASHBOARD_READ_ONLY=True).test_client()

    assert client.post(VIEW, data={"theme": "dark"}).status_code == 303


def test_whoever_may_see_nothing_has_nothing_to_choose(sqlite_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(sqlite_url, workflows=Workflows(authorize=lambda action, run=None: False))

    page = app.test_client().get("/workflows/runs")

    assert page.status_code == 403
    assert "<form" not in page.text
    assert app.test_client().post(VIEW, data={"theme": "dark"}).status_code == 403


def test_cookie_holds_only_what_is_not_so_anyway() -> None:
    assert str(Preferences()) == ""
    assert str(Preferences().changed({name: next(iter(values)) for name, values in CHOICES.items()})) == ""
    chosen = Preferences(zone="Europe/Paris", browser="Asia/Tokyo", theme="dark", density="compact", keys="on")
    assert parse_qs(str(chosen)) == {
        "zone": ["Europe/Paris"],
        "browser": ["Asia/Tokyo"],
        "theme": ["dark"],
        "density": ["compact"],
        "keys": ["on"],
    }
    assert Preferences.of(str(chosen)) == chosen


def test_no_two_sections_have_one_key() -> None:
    found = letters(["now", "runs", "failures", "waits", "workers", "registry", "audit"])

    assert (found["runs"], found["failures"]) == ("r", "f")
    assert len(set(found.values())) == len(found)
    assert letters(["aa", "a"]) == {"aa": "a", "a": ""}
