"""Runs the whole shop on this machine: `python -m example_app`.

Web pages, worker, SMTP server and payment service are processes of their own, as they
would be anywhere; the database is a SQLite file. Days last two seconds.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from example_app import check
from example_app.supervisor import Ended
from example_app.supervisor import free_port
from example_app.supervisor import HOST
from example_app.supervisor import is_free
from example_app.supervisor import listens
from example_app.supervisor import NotInTime
from example_app.supervisor import ProcessDied
from example_app.supervisor import ROOT
from example_app.supervisor import Supervisor
from example_app.visitor import Visitor

FLASK = ("-m", "flask", "--app", "example_app")

#: Seconds that a process has to come up.
BOOT = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.check:
        with tempfile.TemporaryDirectory(prefix="example_app-") as directory:
            return _run(options, Path(directory), port=free_port())
    if not is_free(options.port):
        _say(f"Port {options.port} is taken. Choose another: python -m example_app --port {options.port + 10}")
        return 2
    if options.fresh:
        shutil.rmtree(options.directory, ignore_errors=True)
    return _run(options, options.directory, port=options.port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m example_app", description="Run the whole course shop on this machine."
    )
    parser.add_argument("--port", type=int, default=5080, help="of the web pages (default: 5080)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "instance" / "demo",
        help="of the database and the mails (default: instance/demo)",
    )
    parser.add_argument("--fresh", action="store_true", help="empty the directory first")
    parser.add_argument("--day-seconds", type=float, default=2, metavar="S", help="how long a day lasts (default: 2)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="play everything through once, with a worker killed on the way; exit 0 if all came out right",
    )
    return parser


def _run(options: argparse.Namespace, directory: Path, *, port: int) -> int:
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    url = f"http://{HOST}:{port}"
    settings = _settings(
        directory, check.SETTINGS if options.check else {"EXAMPLE_DAY_SECONDS": str(options.day_seconds)}
    )
    supervisor = Supervisor({**os.environ, **settings}, _say)
    try:
        with Visitor(url) as visitor:
            _start(supervisor, visitor, settings, port=port)
            if options.check:
                return check.run(supervisor, visitor, settings, _say)
            _invite(visitor)
            _say(_guide(url, options.day_seconds, supervisor.pid("worker"), settings))
            supervisor.watch()
    except Ended:
        _say("Ending.")
    except (ProcessDied, NotInTime) as error:
        _say(f"{error}. Ending.")
        return 1
    finally:
        supervisor.stop()
    # A signal is how the demo ends, and how a check is broken off.
    return 130 if options.check else 0


def _settings(directory: Path, more: dict[str, str]) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        "FLASK_SQLALCHEMY_DATABASE_URI": f"sqlite:///{directory / 'shop.sqlite3'}",
        # A worker that was killed still holds its runs for this long.
        "FLASK_WORKFLOWS_LOCK_TIMEOUT_SECS": "5",
        "FLASK_WORKFLOWS_DRAIN_SECS": "5",
        "EXAMPLE_MINUTE_SECONDS": "1",
        "EXAMPLE_SMTP_PORT": str(free_port()),
        "EXAMPLE_MAILBOX": str(directory / "mailbox"),
        "EXAMPLE_PAYMENTS_URL": f"http://{HOST}:{free_port()}",
        "EXAMPLE_PAYMENTS_DATABASE": str(directory / "payments.sqlite3"),
        "NO_PROXY": HOST,
        **more,
    }


def _start(supervisor: Supervisor, visitor: Visitor, settings: dict[str, str], *, port: int) -> None:
    smtp_port = int(settings["EXAMPLE_SMTP_PORT"])
    payments_port = int(settings["EXAMPLE_PAYMENTS_URL"].rpartition(":")[2])

    supervisor.run("migrate", *FLASK, "db", "upgrade")
    supervisor.run("seed", *FLASK, "seed")
    supervisor.start(
        "mail", "-m", "example_app.mail_sink", f"--port={smtp_port}", f"--mailbox={settings['EXAMPLE_MAILBOX']}"
    )
    supervisor.start(
        "payments", "-m", "waitress", f"--listen={HOST}:{payments_port}", "--call", "example_app.payments:create_app"
    )
    supervisor.start("web", "-m", "waitress", f"--listen={HOST}:{port}", "--call", "example_app:create_app")
    supervisor.wait_until(lambda: listens(smtp_port), "The SMTP server's start", timeout=BOOT)
    supervisor.wait_until(lambda: listens(payments_port), "The payment service's start", timeout=BOOT)
    supervisor.wait_until(visitor.is_served, "The web pages' start", timeout=BOOT)
    supervisor.start("worker", *FLASK, "workflows", "work", restart=True, ready="serves all queues")
    supervisor.wait_until(lambda: supervisor.is_ready("worker"), "The worker's start", timeout=BOOT)


def _invite(visitor: Visitor) -> None:
    """Sign up the first learners, so that there is something to see."""
    for name, card in {"Ada": "tok_4242", "Grace": "tok_0503", "Edsger": "tok_0002"}.items():
        learner_id = visitor.sign_up(name, card)
        if learner_id is not None:
            visitor.renew(learner_id)


def _guide(url: str, day: float, worker: int, settings: dict[str, str]) -> str:
    database = shlex.quote(settings["FLASK_SQLALCHEMY_DATABASE_URI"])
    python = shlex.quote(sys.executable)
    return f"""
The course shop is open. A day lasts {day:g} s here; Ctrl-C ends everything.

  Shop       {url}/
  Mailbox    {url}/mailbox
  Workflows  {url}/workflows

Ada, Grace and Edsger have signed up and are renewing. What to try:

  1. Sign up, and reload your page. A welcome mail comes at once, a nudge after a week
     ({7 * day:g} s) unless you press "Finish" on your course, a reminder three days before the
     trial ends ({11 * day:g} s) and one when it has ({14 * day:g} s).
  2. Renew. Grace's card fails twice, and she is charged once; Edsger's is declined.
  3. Kill the worker now:  kill -9 {worker}
     It is started again and says so here; within 5 s it takes up what the dead one was at.
     Do it while card 2000 renews, which takes 5 s: there is one charge, and one receipt.
  4. Press Ctrl-C, wait, and start again: what should have woken meanwhile does so at once.
  5. Look at the runs from another shell:
     FLASK_SQLALCHEMY_DATABASE_URI={database} \\
       {python} {" ".join(FLASK)} workflows list
"""


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
