"""`flask workflows` in a process of its own: the worker, and how commands end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

SHOP = """
import os
from time import sleep

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from flask_workflows import Workflows

db = SQLAlchemy()
workflows = Workflows()


@workflows.step
def nap(seconds: float) -> None:
    print("napping", flush=True)
    sleep(seconds)


@workflows.workflow
def rest(seconds: float) -> None:
    nap(seconds)


def create_app():
    app = Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SHOP_DATABASE"]
    app.config.from_prefixed_env()
    db.init_app(app)
    workflows.init_app(app)
    if "SHOP_WITHOUT_TABLES" not in os.environ:
        with app.app_context():
            db.create_all()
    return app
"""


class Shell:
    """Runs `flask workflows` for an app of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.log = folder / "worker.log"
        (folder / "shop.py").write_text(SHOP)
        root = Path(__file__).parent.parent
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(root)]),
            "FLASK_APP": "shop",
            "SHOP_DATABASE": url,
        }

    def run(self, *args: str, exit_code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self._command(*args), cwd=self.folder, env=self.env | env, capture_output=True, text=True, timeout=60
        )

        assert done.returncode == exit_code, done.stderr
        return done

    @contextmanager
    def working(self, *args: str, until: str = " serves ", **env: str) -> Iterator[subprocess.Popen[str]]:
        """A worker that has logged `until`, killed if it outlives the block.

        Its log goes to a file: a pipe that is read by lines first keeps what came in the same piece.
        """
        with self.log.open("w") as log:
            process = self.popen("work", *args, stderr=log.fileno(), env=env)
        deadline = time.monotonic() + 60
        try:
            while until not in self.log.read_text():
                assert process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.communicate()

    def popen(
        self,
        *args: str,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command(*args),
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "flask", "workflows", *args]


@pytest.fixture
def shell(sqlite_url: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path, sqlite_url)


def test_module_named_in_the_configuration_is_imported(shell: Shell) -> None:
    (shell.folder / "billing.py").write_text(
        "from shop import workflows\n\n\n@workflows.workflow\ndef bill() -> None:\n    '''Sends the bill.'''\n"
    )

    listed = shell.run("list", "--registered", FLASK_WORKFLOWS_IMPORTS="billing").stdout

    assert "bill v1  queue default  Sends the bill.\n" in listed


@pytest.mark.parametrize("command", [["work"], ["check"], ["tick"], ["list", "--registered"], ["start", "rest"]])
def test_error_of_a_named_module_is_shown_whole(shell: Shell, command: list[str]) -> None:
    (shell.folder / "billing.py").write_text("def broken(:\n")

    failed = shell.run(*command, exit_code=1, FLASK_WORKFLOWS_IMPORTS="billing")

    assert "Traceback (most recent call last):" in failed.stderr
    assert "def broken(:" in failed.stderr
    assert "SyntaxError" in failed.stderr


def test_missing_module_is_named(shell: Shell) -> None:
    failed = shell.run("work", exit_code=1, FLASK_WORKFLOWS_IMPORTS="nowhere.at_all")

    assert "ModuleNotFoundError: No module named 'nowhere'" in failed.stderr


def test_error_in_the_apps_factory_is_not_hidden(shell: Shell) -> None:
    del shell.env["SHOP_DATABASE"]

    failed = shell.run("work", exit_code=1)

    assert "KeyError: 'SHOP_DATABASE'" in failed.stderr


def test_wrong_configuration_ends_the_command(shell: Shell) -> None:
    failed = shell.run("work", exit_code=1, FLASK_WORKFLOWS_QUEUE="7")

    assert "WORKFLOWS_QUEUE is 7; write text" in failed.stderr


def test_reader_that_hangs_up_gets_no_traceback(shell: Shell) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    process = shell.popen("list", "--registered", stdout=writer)
    os.close(writer)
    _, complaints = process.communicate(timeout=60)

    assert complaints == ""
    assert process.returncode == 1


def test_worker_executes_runs_until_it_is_told_to_stop(database_url: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, database_url)
    run_id = shell.run("start", "rest", "--input", '{"seconds": 0}').stdout.strip()

    with shell.working("--concurrency", "1", "--name", "tester") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "napping\n"
        worker.terminate()
        worker.communicate(timeout=30)
        log = shell.log.read_text()

    assert worker.returncode == 0
    assert run_id in log
    assert "Traceback" not in log
    assert shell.run("list", "--status", "completed").stdout.startswith(run_id)


def test_idle_worker_stops_on_an_interrupt(shell: Shell) -> None:
    with shell.working() as worker:
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=30)
        log = shell.log.read_text()

    assert worker.returncode == 0
    assert "Traceback" not in log


def test_worker_serves_the_queues_it_names(shell: Shell) -> None:
    shell.run("start", "rest", "--input", '{"seconds": 0}')

    with shell.working("--queue", "mail", "--queue", "bulk", until="serves mail, bulk") as worker:
        worker.terminate()
        worker.communicate(timeout=30)

    assert worker.returncode == 0
    assert "pending" in shell.run("list").stdout


def test_queue_no_workflow_is_in_is_warned_about(shell: Shell) -> None:
    with shell.working("--queue", "mial", until="no registered workflow is in the queue 'mial'") as worker:
        worker.terminate()
        worker.communicate(timeout=30)

    assert worker.returncode == 0


def test_second_signal_ends_the_worker_at_once(shell: Shell) -> None:
    shell.run("start", "rest", "--input", '{"seconds": 60}')

    with shell.working() as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "napping\n"
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=30)
        log = shell.log.read_text()

    assert worker.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "second signal" in log


def test_unfinished_run_is_handed_back_after_the_drain(database_url: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, database_url)
    run_id = shell.run("start", "rest", "--input", '{"seconds": 60}').stdout.strip()

    with shell.working(FLASK_WORKFLOWS_DRAIN_SECS="0") as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "napping\n"
        worker.terminate()
        worker.communicate(timeout=30)

    shown = json.loads(shell.run("show", run_id, "--json").stdout)
    assert worker.returncode == 0
    assert (shown["status"], shown["worker"], shown["attempts"]) == ("pending", None, 0)


def test_worker_waits_for_a_silent_database_and_still_stops(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "postgresql+psycopg://app:s3cret@127.0.0.1:1/app")

    with shell.working(SHOP_WITHOUT_TABLES="1", until="the database does not answer") as worker:
        worker.terminate()
        worker.communicate(timeout=30)
        log = shell.log.read_text()

    assert worker.returncode == 0
    assert "s3cret" not in log
    assert "Traceback" not in log


def test_worker_without_tables_says_what_to_run(shell: Shell) -> None:
    failed = shell.run("work", exit_code=1, SHOP_WITHOUT_TABLES="1")

    assert "run `flask workflows install` and `flask db upgrade`" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_worker_on_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    failed = Shell(tmp_path, "sqlite://").run("work", exit_code=1)

    assert "Error: this app keeps its runs in the process" in failed.stderr


def test_stop_during_start_up_is_obeyed(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")

    process = shell.popen("work", env={"FLASK_WORKFLOWS_IMPORTS": "slow"})
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=30)

    assert process.returncode == 0
