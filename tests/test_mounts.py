"""The pages wherever an app puts them: no link, form, file, redirect or cookie leaves their place."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import quote
from urllib.parse import unquote
from urllib.parse import urlsplit

import pytest
from flask import Blueprint
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import Client
from werkzeug.test import TestResponse
from werkzeug.wrappers import Response

from flask_workflows import Workflows
from flask_workflows.dashboard import views
from flask_workflows.errors import ConfigError
from tests import apps
from tests.crawling import crawl
from tests.everything import make_workflows
from tests.everything import populate
from tests.everything import StandingClock
from tests.pages import links
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import rows_of

BY_ITSELF: dict[str, object] = {"WORKFLOWS_DASHBOARD": False, "WORKFLOWS_API": False}


@dataclass
class Mount:
    """A site as its visitors see it: what stands under `prefix` is the dashboard."""

    app: Flask
    prefix: str
    wsgi: Any = None
    host: str = "localhost"
    headers: Mapping[str, str] = field(default_factory=dict)
    #: What a proxy takes off the path before the app sees it.
    stripped: str = ""
    #: What the server, not the app, knows as its beginning.
    script_name: str = ""
    #: As a browser keeps them: by name, with the path they are for.
    cookies: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = Client(self.wsgi or self.app, use_cookies=False)

    def get(self, address: str) -> TestResponse:
        return self.open(address)

    def post(self, address: str, data: Mapping[str, str]) -> TestResponse:
        return self.open(address, method="POST", data=data)

    def open(self, address: str, **options: Any) -> TestResponse:
        sent = "; ".join(f"{name}={value}" for name, (value, at) in self.cookies.items() if address.startswith(at))
        headers = {**self.headers, **({"Cookie": sent} if sent else {})}
        base = f"http://{self.host}{self.script_name}"
        response = self.client.open(self.inner(address), base_url=base, headers=headers, **options)
        for header in response.headers.getlist("Set-Cookie"):
            for name, morsel in SimpleCookie(header).items():
                self.cookies[name] = (morsel.value, morsel["path"])
        return response

    def inner(self, address: str) -> str:
        """The path of the address as the server gives it to us."""
        return address.removeprefix(self.stripped).removeprefix(self.script_name) or "/"

    def is_inside(self, address: str) -> bool:
        return address.startswith(quote(self.prefix))


Make = Callable[..., Flask]


def at(prefix: str) -> Callable[[Make], Mount]:
    def mount(make: Make) -> Mount:
        return Mount(make(WORKFLOWS_URL_PREFIX=prefix), prefix if prefix == "/" else f"{prefix}/")

    return mount


def under_a_dispatcher(make: Make) -> Mount:
    app = make()
    wsgi = DispatcherMiddleware(Response("elsewhere", 418), {"/mounted": app})
    return Mount(app, "/mounted/workflows/", wsgi)


def with_an_application_root(make: Make) -> Mount:
    return Mount(make(APPLICATION_ROOT="/app"), "/app/workflows/", script_name="/app")


def behind_a_proxy(make: Make) -> Mount:
    app = make()
    app.wsgi_app = ProxyFix(app.wsgi_app, x_prefix=1, x_host=1)  # type: ignore[method-assign]
    headers = {"X-Forwarded-Prefix": "/proxied", "X-Forwarded-Host": "ops.example"}
    return Mount(app, "/proxied/workflows/", headers=headers, stripped="/proxied")


def in_another_blueprint(make: Make) -> Mount:
    app = make(**BY_ITSELF)
    inner = Blueprint("inner", __name__, url_prefix="/v2")
    inner.register_blueprint(apps.workflows_of(app).blueprint(url_prefix="/ops"))
    outer = Blueprint("outer", __name__, url_prefix="/site")
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    return Mount(app, "/site/v2/ops/")


def on_a_subdomain(make: Make) -> Mount:
    app = make(**BY_ITSELF, SERVER_NAME="example.test", subdomain_matching=True)
    app.register_blueprint(apps.workflows_of(app).blueprint(subdomain="ops", url_prefix="/"))
    return Mount(app, "/", host="ops.example.test")


def on_a_host_of_its_own(make: Make) -> Mount:
    app = make(**BY_ITSELF, host_matching=True)
    app.register_blueprint(apps.workflows_of(app).blueprint(host="ops.example.test"))
    return Mount(app, "/workflows/", host="ops.example.test")


def beside_another(make: Make) -> Mount:
    """Of two in one app, the second."""
    app = make()
    app.register_blueprint(apps.workflows_of(app).blueprint("second", url_prefix="/second"))
    return Mount(app, "/second/")


MOUNTS: dict[str, Callable[[Make], Mount]] = {
    "root": at("/"),
    "prefix": at("/workflows"),
    "deeper": at("/a/b"),
    "not ASCII": at("/Ünï code"),
    "dispatcher": under_a_dispatcher,
    "application root": with_an_application_root,
    "proxy": behind_a_proxy,
    "blueprint": in_another_blueprint,
    "subdomain": on_a_subdomain,
    "host": on_a_host_of_its_own,
    "two": beside_another,
}


@pytest.fixture
def make(sqlite_url: str) -> Iterator[Make]:
    """Make an app with something of everything; its first page is its own."""
    made: list[Flask] = []

    def make(*, subdomain_matching: bool = False, host_matching: bool = False, **config: object) -> Flask:
        app = Flask(
            "tests",
            subdomain_matching=subdomain_matching,
            host_matching=host_matching,
            static_host="example.test" if host_matching else None,
        )
        app.config.update(SECRET_KEY="tests", SQLALCHEMY_DATABASE_URI=sqlite_url, TESTING=True, **config)
        db: SQLAlchemy = apps.make_db()
        db.init_app(app)
        workflows = make_workflows()
        workflows.clock = StandingClock()
        workflows.init_app(app)
        if config.get("WORKFLOWS_URL_PREFIX") != "/":
            app.add_url_rule(
                "/", view_func=lambda: "home", endpoint="home", host="example.test" if host_matching else None
            )
        with app.app_context():
            db.create_all()
        made.append(app)
        return app

    yield make

    for app in made:
        apps.dispose_engines(app)


@pytest.fixture(params=MOUNTS)
def mount(request: pytest.FixtureRequest, make: Make) -> Mount:
    mount = MOUNTS[request.param](make)
    return mount


def test_nothing_leaves_the_prefix(mount: Mount) -> None:
    """B141"""
    runs = populate(mount.app, apps.workflows_of(mount.app))
    root = quote(mount.prefix)
    found = crawl(mount.get, [f"{root}{path}" for path in ("", "ops", *(f"run/{run}" for run in runs.values()))])

    assert {address: response.status for address, response in found.items() if response.status_code != 200} == {}
    # The way back to the app.
    home = root.removesuffix("workflows/") if mount.host == "localhost" and "workflows" in root else "/"
    assert {address for address in found if not mount.is_inside(address)} <= {home}
    for address, response in found.items():
        if response.mimetype == "text/html" and mount.is_inside(address):
            inside = {link for link in links(response) if mount.is_inside(link) and not link.startswith("//")}
            assert set(links(response)) - inside <= {home}, address

    seen = {endpoint_of(mount, address) for address in found}
    assert {route.endpoint for route in views.ROUTES if not route.writes} - seen == set()


def test_action_comes_back_to_where_it_was_done(mount: Mount) -> None:
    """B141: a form's address, the redirect behind it, and the line that is shown once."""
    run_id = rows_of(mount.app).run("pending")
    page = mount.get(f"{quote(mount.prefix)}run/{run_id}/cancel")
    address, fields = form_of(page)
    assert mount.is_inside(address)

    done = mount.post(address, fields)

    assert done.status_code == 303
    assert done.location is not None
    assert mount.is_inside(done.location)
    assert cookie_paths(done) == {quote(mount.prefix)}
    shown = mount.get(done.location)
    assert "The run is cancelled." in text_of(shown)
    assert cookie_paths(shown) == {quote(mount.prefix)}
    assert "The run is cancelled." not in text_of(mount.get(done.location))


def test_view_is_chosen_for_this_place_alone(mount: Mount) -> None:
    page = mount.get(f"{quote(mount.prefix)}runs?limit=25")
    (menu,) = re.findall(r'(?s)<details class="fw-menu".*?</details>', page.text)
    (action,) = [attributes["action"] for tag, attributes in Tags(menu).found if tag == "form"]
    (back,) = [attributes["value"] for _, attributes in Tags(menu).found if attributes.get("name") == "next"]
    assert action is not None
    assert back is not None
    assert mount.is_inside(action)

    done = mount.post(action, {"next": back, "theme": "dark"})

    assert done.location == back == f"{quote(mount.prefix)}runs?limit=25"
    assert cookie_paths(done) == {quote(mount.prefix)}
    assert 'data-theme="dark"' in mount.get(done.location).text


def endpoint_of(mount: Mount, address: str) -> str:
    """The endpoint that a GET of the address reaches, without the blueprint's name."""
    subdomain = "ops" if mount.app.subdomain_matching else None
    adapter = mount.app.url_map.bind(mount.host, subdomain=subdomain)
    path = urlsplit(mount.inner(address)).path.removeprefix("/mounted")
    try:
        endpoint, _ = adapter.match(unquote(path), method="GET")
    except HTTPException:
        return ""
    return str(endpoint).rpartition(".")[2]


def form_of(page: TestResponse) -> tuple[str, dict[str, str]]:
    """Where the form in the page's main part is sent to, and what it holds."""
    tags = Tags(page.text.partition("<main")[2]).found
    (address,) = [attributes["action"] for tag, attributes in tags if tag == "form"]
    assert address is not None
    named = [attributes for tag, attributes in tags if tag == "input" and "name" in attributes]
    return address, {attributes["name"] or "": attributes.get("value") or "" for attributes in named}


def cookie_paths(response: TestResponse) -> set[str]:
    """For which paths the response sets cookies."""
    parsed = [SimpleCookie(header) for header in response.headers.getlist("Set-Cookie")]
    return {morsel["path"] for cookie in parsed for morsel in cookie.values()}


# Single places -------------------------------------------------------------------------------


def test_dashboard_that_is_the_whole_site_leads_back_to_nothing(make: Make) -> None:
    app = make(WORKFLOWS_URL_PREFIX="/")

    assert "Back to" not in text_of(app.test_client().get("/runs"))


def test_app_without_a_first_page_is_not_led_back_to(sqlite_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(sqlite_url)
    assert "Back to" not in text_of(app.test_client().get("/workflows/runs"))


def test_app_with_a_first_page_is_led_back_to(make: Make) -> None:
    page = make().test_client().get("/workflows/runs")

    assert "Back to tests" in text_of(page)
    assert "/" in links(page)


def test_pages_of_a_host_are_on_no_other(make: Make) -> None:
    mount = on_a_host_of_its_own(make)

    assert mount.client.get("/workflows/runs", base_url="http://example.test").status_code == 404


def test_json_routes_go_with_the_pages(mount: Mount) -> None:
    answer = mount.get(f"{quote(mount.prefix)}api/runs")

    assert answer.status_code == 200
    assert answer.mimetype == "application/json"


def test_either_may_be_left_out(make: Make) -> None:
    app = make(**BY_ITSELF)
    workflows = apps.workflows_of(app)
    app.register_blueprint(workflows.blueprint("pages", url_prefix="/pages", api=False))
    app.register_blueprint(workflows.blueprint("json", url_prefix="/json", dashboard=False))
    client = app.test_client()

    assert client.get("/pages/runs").status_code == 200
    assert client.get("/pages/api/runs").status_code == 404
    assert client.get("/json/runs").status_code == 404
    assert client.get("/json/api/runs").status_code == 200
    assert client.get("/workflows/runs").status_code == 404


@pytest.mark.parametrize("prefix", ["workflows", "", " "])
def test_prefix_that_is_none_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="url_prefix"):
        Workflows().blueprint(url_prefix=prefix)
