"""An app on a fresh database of either kind, and PostgreSQL servers to have it on."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask.testing import FlaskCliRunner
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Workflows
from tests import apps
from tests import busy_app
from tests.databases import PostgresServer
from tests.databases import PostgresUnavailable
from tests.databases import PrivatePostgres
from tests.databases import shared_server
from tests.processes import Fleet
from tests.running import Clock

pytest_plugins = ["pytester"]

Server = TypeVar("Server", bound=PostgresServer)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that all tests share: make databases on it, and leave it running."""
    server = _or_fail(shared_server)

    yield server

    if isinstance(server, PrivatePostgres):
        server.close()


@pytest.fixture
def private_postgres() -> Iterator[PrivatePostgres]:
    """A server for this test alone, which it may stop, crash and start again."""
    server = _or_fail(PrivatePostgres)

    yield server

    server.close()


def _or_fail(start: Callable[[], Server]) -> Server:
    """Start a server; without one, tests fail in one line instead of being skipped."""
    try:
        return start()
    except PostgresUnavailable as error:
        why = str(error)

    pytest.fail(why, pytrace=False)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.sqlite3'}"


@pytest.fixture
def postgresql_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create_database()

    yield postgres_server.url(name)

    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database: the test runs on SQLite and on PostgreSQL."""
    url: str = request.getfixturevalue(f"{request.param}_url")

    return url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database for several tests, which only read it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('shared') / 'runs.sqlite3'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database()

    yield server.url(name)

    server.drop_database(name)


@pytest.fixture
def make_app() -> Iterator[apps.MakeApp]:
    """Make apps with their tables; afterwards no connection of theirs may be in use."""
    made: list[Flask] = []

    def make(url: str, *, db: SQLAlchemy | None = None, workflows: Workflows | None = None, **config: object) -> Flask:
        app = apps.make_app(url, db=db, workflows=workflows, **config)
        made.append(app)

        return app

    yield make

    # The threads of a worker that was told to stop may take a moment to give theirs back.
    deadline = time.monotonic() + 5
    while (in_use := sum(apps.connections_in_use(app) for app in made)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for app in made:
        apps.dispose_engines(app)

    assert in_use == 0, f"{in_use} connections are still checked out of the app's pool"


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url)


@pytest.fixture
def db(app: Flask) -> SQLAlchemy:
    return apps.database_of(app)


@pytest.fixture
def workflows(app: Flask) -> Workflows:
    return apps.workflows_of(app)


@pytest.fixture
def clock(workflows: Workflows) -> Clock:
    """The time of the app's workflows, which only the test moves."""
    workflows.clock = clock = Clock()

    return clock


@pytest.fixture
def app_context(app: Flask) -> Iterator[None]:
    with app.app_context():
        yield


@pytest.fixture
def make_busy(database_url: str, tmp_path: Path, make_app: apps.MakeApp) -> Callable[..., Flask]:
    """Make the app of `tests.busy_app`, as the test itself sees it."""

    def make(**config: object) -> Flask:
        db = SQLAlchemy(metadata=busy_app.Base.metadata)

        return make_app(database_url, db=db, workflows=busy_app.workflows, BUSY_DIRECTORY=str(tmp_path), **config)

    return make


@pytest.fixture
def busy(make_busy: Callable[..., Flask]) -> Flask:
    return make_busy()


@pytest.fixture
def busy_clock() -> Iterator[Clock]:
    """The time of the workflows of `tests.busy_app`, in this process, which only the test moves."""
    busy_app.workflows.clock = clock = Clock()

    yield clock

    busy_app.workflows.clock = None


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers of the app of `tests.busy_app`, each a process."""
    fleet = Fleet(database_url, tmp_path)

    yield fleet

    fleet.close()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def runner(app: Flask) -> FlaskCliRunner:
    return app.test_cli_runner()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test recorded as `state machine` is told of those that passed too: how to repeat it."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    found = [value for report in reports for name, value in report.user_properties if name == "state machine"]
    for told in found:
        terminalreporter.write_line(f"state machine on {told}")
