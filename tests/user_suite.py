"""What users do in processes of their own: fork them, and run tests in many of them at once."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flask import Flask

from tests import busy_app
from tests.processes import working


def fork_and_start(url: str, directory: str, children: int) -> None:
    """As a server that loads the app first and forks then: parent and children start ten runs each."""
    app = busy_app.make_busy_app(url, directory)
    with app.app_context():
        start_in_both_ways(app)
        pids = []
        for _ in range(children):
            pid = os.fork()
            if not pid:
                # The app's own pool is its own affair.
                app.extensions["sqlalchemy"].engine.dispose(close=False)
                start_in_both_ways(app)
                os._exit(0)
            pids.append(pid)
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
    sys.exit(max(codes))


def start_in_both_ways(app: Flask) -> None:
    for _ in range(5):
        busy_app.one.spawn()
        busy_app.one.start()
        app.extensions["sqlalchemy"].session.commit()


def repeat(directory: str, times: int) -> None:
    """Tests with inline execution and with a worker on a thread, each on a database of its own."""
    for number in range(times):
        folder = Path(directory) / str(number)
        folder.mkdir(parents=True)
        run_inline(folder)
        run_by_worker(folder)
        left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        assert left == [], left


def make_app(folder: Path, name: str, **config: object) -> Flask:
    app = busy_app.make_busy_app(f"sqlite:///{folder / name}.sqlite3", folder, **config)
    with app.app_context():
        app.extensions["sqlalchemy"].create_all()

    return app


def run_inline(folder: Path) -> None:
    app = make_app(folder, "inline", WORKFLOWS_EXECUTION="inline")

    def start(number: int) -> str:
        with app.app_context():
            run = busy_app.five.start()
            app.extensions["sqlalchemy"].session.commit()
            return run.result(timeout=20)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(12))) == ["5"] * 12


def run_by_worker(folder: Path) -> None:
    app = make_app(folder, "worker")

    with working(app), app.app_context():
        runs = [busy_app.five.spawn() for _ in range(12)]
        assert [run.result(timeout=20) for run in runs] == ["5"] * 12
