"""The servers that the other tests rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.databases import PostgresServer
from tests.databases import PostgresUnavailable
from tests.databases import PrivatePostgres
from tests.databases import shared_server
from tests.databases import StopMode

ROOT = Path(__file__).resolve().parent.parent


def test_each_database_is_empty_and_its_own(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()

    with postgres_server.connect(first) as connection:
        connection.execute("CREATE TABLE only_in_the_first (id int)")
    with postgres_server.connect(second) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()

    postgres_server.drop_database(first)
    postgres_server.drop_database(second)
    assert tables == []


def test_dropping_a_database_throws_its_sessions_out(postgres_server: PostgresServer) -> None:
    name = postgres_server.create_database()

    with postgres_server.connect(name) as connection:
        postgres_server.drop_database(name)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_committed_rows_and_the_url_survive_a_restart(private_postgres: PrivatePostgres, mode: StopMode) -> None:
    url = private_postgres.url()
    with private_postgres.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    private_postgres.stop(mode)
    with pytest.raises(psycopg.OperationalError):
        private_postgres.connect()
    private_postgres.start()

    assert private_postgres.url() == url
    with private_postgres.connect() as connection:
        assert connection.execute("SELECT answer FROM kept").fetchall() == [(42,)]


def test_server_commits_in_order_and_admits_200_sessions(private_postgres: PrivatePostgres) -> None:
    with private_postgres.connect() as connection:
        settings = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()
            for name in ["synchronous_commit", "max_connections"]
        }

    assert settings == {"synchronous_commit": ("on",), "max_connections": ("200",)}


def test_server_goes_with_a_test_run_that_was_killed() -> None:
    code = (
        "import os; from tests.databases import PrivatePostgres; server = PrivatePostgres();"
        " print(server.home, flush=True); os._exit(1)"
    )

    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    home = Path(killed.stdout.strip())
    assert home.is_absolute()
    for _ in range(100):
        if not home.exists():
            break
        time.sleep(0.1)
    assert not home.exists()


def test_unreachable_server_is_named_plainly() -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"

    with pytest.raises(PostgresUnavailable, match="TEST_POSTGRES_URL"):
        shared_server(os.environ | {"TEST_POSTGRES_URL": url})
