"""The databases under test: a private PostgreSQL behind proxies and pgbouncer, and a SQLite file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from chaos.proxy import Proxy
from tests.databases import free_port
from tests.databases import PrivatePostgres
from tests.databases import StopMode

#: What the server itself ends, in its log, and what that is called in the table.
TIMEOUTS = {
    "due to statement timeout": "statement ended by statement_timeout",
    "due to idle-in-transaction timeout": "connection ended by idle_in_transaction_session_timeout",
}
_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")


class Sqlite:
    """A database file in a folder."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "app.sqlite3")
        self.url = f"sqlite:///{self.path}"

    def url_for(self, slot: int) -> str:
        return self.url

    def config_for(self, slot: int) -> Mapping[str, object]:
        return {}

    def timeouts(self) -> Iterator[tuple[str, str, float]]:
        return iter(())

    def close(self) -> None:
        """Nothing to do: the folder is somebody else's."""


class Postgres:
    """A server of our own; each slot's connections go through a proxy, those of one through pgbouncer too."""

    kind = "postgresql"
    #: The slot behind pgbouncer, where there is one.
    POOLED = 2

    def __init__(self, folder: Path, slots: list[int]) -> None:
        self._server = PrivatePostgres(log_line_prefix="%n %a ")
        self._lock = threading.Lock()
        self._log = folder / "postgresql.log"
        self._name = self._server.create_database()
        #: Straight to the server.
        self.url = self._server.url(self._name)
        for limit in _LIMITS:
            with closing(self.connect()) as connection:
                connection.execute(f'ALTER DATABASE "{self._name}" SET {limit} = 1000'.encode())
        port = sa.make_url(self.url).port
        assert port is not None
        self.pooler = Pooler.find(folder, self.url)
        pooled = self.pooler.port if self.pooler is not None else port
        self._proxies = {slot: Proxy(pooled if slot == self.POOLED else port) for slot in slots}

    def connect(self) -> psycopg.Connection[Any]:
        """A connection straight to the server, in autocommit, without limits."""
        options = " ".join(f"-c {limit}=0" for limit in _LIMITS)
        conninfo = sa.make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(conninfo, autocommit=True, options=options, application_name="chaos")

    def proxy(self, slot: int) -> Proxy:
        return self._proxies[slot]

    def url_for(self, slot: int) -> str:
        url = sa.make_url(self.url).set(port=self._proxies[slot].port)
        return url.render_as_string(hide_password=False)

    def config_for(self, slot: int) -> Mapping[str, object]:
        arguments: dict[str, object] = {"application_name": f"slot{slot}"}
        if slot != self.POOLED or self.pooler is None:
            return {"SQLALCHEMY_ENGINE_OPTIONS": {"connect_args": arguments}}
        # What is prepared belongs to a connection, and a pooler gives each transaction another.
        arguments["prepare_threshold"] = None
        listen = sa.make_url(self.url).update_query_dict({"application_name": f"slot{slot}"})
        return {
            "SQLALCHEMY_ENGINE_OPTIONS": {"connect_args": arguments},
            "WORKFLOWS_LISTEN_URL": listen.render_as_string(hide_password=False),
        }

    def restart(self, mode: StopMode) -> None:
        with self._lock:
            self._server.restart(mode)

    def timeouts(self) -> Iterator[tuple[str, str, float]]:
        """What the server's limits ended: kind, application, when on the machine's monotonic clock."""
        ahead = time.time() - time.monotonic()
        for line in (self._server.home / "log").read_text(errors="replace").splitlines():
            kind = next((kind for words, kind in TIMEOUTS.items() if words in line), None)
            if kind is not None:
                at, application, *_ = line.split(" ")
                yield kind, application, float(at) - ahead

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
        if self.pooler is not None:
            self.pooler.close()
        shutil.copy(self._server.home / "log", self._log)
        self._server.close()


class Pooler:
    """pgbouncer in transaction mode, before a server of this machine."""

    def __init__(self, program: str, folder: Path, url: str) -> None:
        target = sa.make_url(url)
        # It refuses to run as root, and its user may not look into our folder.
        self._home = Path(tempfile.mkdtemp(prefix="chaos-pgbouncer-", dir="/tmp"))
        self._log = folder / "pgbouncer.log"
        self.port = free_port()
        (self._home / "users").write_text(f'"{target.username}" "{target.password}"\n')
        (self._home / "pgbouncer.ini").write_text(
            f"""
[databases]
* = host=127.0.0.1 port={target.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = plain
auth_file = {self._home / "users"}
pool_mode = transaction
server_login_retry = 1
"""
        )
        self._home.chmod(0o755)
        self._command = [program, "-q", str(self._home / "pgbouncer.ini")]
        self._lock = threading.Lock()
        self._process = self._start()

    @classmethod
    def find(cls, folder: Path, url: str) -> Pooler | None:
        """A pooler before that database; null where pgbouncer is not installed."""
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        return None if program is None else cls(program, folder, url)

    def restart(self) -> None:
        """Kill it, and start it again."""
        with self._lock:
            self._process.kill()
            self._process.wait()
            self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        user = "nobody" if os.geteuid() == 0 else None
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, user=user, start_new_session=True)
