"""An app whose workflows write down what they do, for workers that tests kill, stop and signal.

It is imported by worker processes: by `tests.processes`, and by `flask --app tests.busy_app`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import WorkflowContext
from flask_workflows import Workflows


class Base(DeclarativeBase):
    pass


class Effect(Base):
    """What a transactional step did. Nothing keeps two of a kind out: that is what the tests look for."""

    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    step: Mapped[str]


workflows = Workflows(authorize=lambda action, run=None: True)


def make_busy_app(url: str, directory: Path | str, **config: object) -> Flask:
    """An app on a database that has its tables; `directory` is where its workflows write and look for files."""
    app = Flask("busy")
    app.config.from_mapping(SECRET_KEY="busy", SQLALCHEMY_DATABASE_URI=url, BUSY_DIRECTORY=str(directory))
    app.config.from_mapping(config)
    app.config.from_prefixed_env()
    SQLAlchemy(metadata=Base.metadata).init_app(app)
    workflows.init_app(app)

    return app


def create_app() -> Flask:
    """For the command line: everything comes from the environment."""
    app = make_busy_app(os.environ["BUSY_URL"], os.environ["BUSY_DIRECTORY"])
    (Path(os.environ["BUSY_DIRECTORY"]) / "created").touch()

    return app


def file(name: str) -> Path:
    return Path(current_app.config["BUSY_DIRECTORY"]) / name


def note(*words: object) -> None:
    """Add a line to the journal: who, for which run, and the words. It is there even if the process dies right after."""
    line = " ".join(map(str, (os.getpid(), threading.get_native_id(), current_run.run_id, *words)))
    journal = os.open(file("journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, f"{line}\n".encode())
    os.close(journal)


def times_noted(words: str) -> int:
    """How often this run wrote that line."""
    lines = file("journal").read_text().splitlines()

    return sum(line.split(" ", 3)[2:] == [current_run.run_id, words] for line in lines)


def held_at_gate() -> bool:
    """Whether the run comes here for the first time: that execution goes on when the test says so, the others now."""
    note("gate")
    if times_noted("gate") > 1:
        return False
    await_file("release")
    return True


def await_file(name: str) -> None:
    while not file(name).exists():
        time.sleep(0.005)


def write_effect(step: str) -> None:
    session = current_app.extensions["sqlalchemy"].session
    session.add(Effect(run=current_run.run_id, step=step))


# Steps -------------------------------------------------------------------------------------


@workflows.step
def plain(name: str, pause_ms: int = 0) -> str:
    note(name)
    time.sleep(pause_ms / 1000)
    return name


@workflows.step(transactional=True)
def transactional(name: str) -> str:
    note(name)
    write_effect(name)
    return name


@workflows.step(transactional=True)
def tally(number: int) -> int:
    """Write an effect of its own for each number, and take a few milliseconds for it."""
    time.sleep(0.004)
    write_effect(str(number))
    return 2 * number


@workflows.step(transactional=True)
def slow_transaction(seconds: float) -> None:
    """Write, and hold what that locks for a while."""
    note("writing")
    write_effect("slow")
    current_app.extensions["sqlalchemy"].session.flush()
    time.sleep(seconds)


@workflows.step
def compute(seconds: float) -> int:
    """Hold the interpreter without a pause."""
    note("compute")
    rounds, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        rounds += 1
    return rounds


@workflows.step
def hold_connection(release: str) -> None:
    """Keep a connection of the app's pool, inside a transaction that only read."""
    current_app.extensions["sqlalchemy"].session.query(Effect).first()
    note("holding")
    await_file(release)


@workflows.step
def blocked(name: str, release: str) -> str:
    note(name)
    await_file(release)
    return name


@workflows.step
def deadly(name: str, deaths: int) -> str:
    """Kill the worker the first times it is called."""
    note(name)
    if times_noted(name) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return name


@workflows.step(retry=Retry(attempts=5, backoff=Retry.constant(0.2)))
def flaky(name: str, failures: int) -> str:
    """Fail the first times it is called, by what the journal says."""
    note(name)
    if times_noted(name) <= failures:
        raise ConnectionError("not yet")
    return name


@workflows.step(timeout=1, retry=Retry(attempts=3, backoff=Retry.constant(0)))
def hung(name: str, release: str) -> str:
    """Hang at its first call, until the file is there."""
    note(name)
    if times_noted(name) == 1:
        await_file(release)
        note("returns")
    return name


@workflows.step
def fork() -> int:
    """Start a run in a forked process; its exit code."""
    pid = os.fork()
    if not pid:
        one.spawn()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@workflows.step
def cancel_the_run() -> None:
    note("cancel")
    workflows.cancel(current_run.run_id)


# Workflows ---------------------------------------------------------------------------------


@workflows.workflow
def five(pause_ms: int = 0) -> str:
    plain("1")
    transactional("2")
    plain("3", pause_ms)
    transactional("4")
    return plain("5")


@workflows.workflow
def parent() -> str:
    plain("1")
    transactional("2")
    one.start()
    plain("3")
    transactional("4")
    return plain("5")


@workflows.workflow
def fanned_out(ctx: WorkflowContext, count: int) -> list[int]:
    return ctx.map(tally, range(count), max_workers=8)


@workflows.workflow
def grandparent(release: str) -> str:
    return waiting_parent.start(release).result()


@workflows.workflow
def waiting_parent(release: str) -> str:
    return waiting_for.start(release).result()


@workflows.workflow
def one(pause_ms: int = 0) -> str:
    return plain("1", pause_ms)


@workflows.workflow
def written() -> str:
    return transactional("1")


@workflows.workflow
def writing_slowly(seconds: float) -> str:
    slow_transaction(seconds)
    return plain("after")


@workflows.workflow
def writing_in_its_body() -> str:
    plain("1")
    write_effect("body")
    current_app.extensions["sqlalchemy"].session.flush()
    return plain("2")


@workflows.workflow
def computing(seconds: float) -> str:
    compute(seconds)
    return plain("after")


@workflows.workflow
def holding(release: str) -> None:
    hold_connection(release)


@workflows.workflow
def reading_then_waiting() -> None:
    hold_connection("first")
    blocked("second", "second")


@workflows.workflow(queue="q" * 255)
def large(text: str) -> None:
    pass


@workflows.workflow
def waiting_for(release: str) -> str:
    blocked("before", release)
    return plain("after")


@workflows.workflow
def hanging(release: str) -> str:
    hung("hung", release)
    return plain("after")


@workflows.workflow
def cooperative(ctx: WorkflowContext, release: str) -> None:
    ctx.step("listening", listen, release)


def listen(release: str) -> None:
    note("listening")
    while not file(release).exists():
        current_run.check_cancelled()
        time.sleep(0.01)


@workflows.workflow
def dangerous(deaths: list[int]) -> str:
    """Kill the worker so many times at each of its steps."""
    for number, times in enumerate(deaths, start=1):
        deadly(f"deadly {number}", times)
    return plain("after")


@workflows.workflow
def napping(ctx: WorkflowContext, seconds: float) -> str:
    plain("before")
    ctx.sleep(timedelta(seconds=seconds))
    return plain("after")


@workflows.workflow
def cancelling() -> str:
    transactional("2")
    cancel_the_run()
    return plain("never")


@workflows.workflow
def everything(ctx: WorkflowContext, fails: bool = False) -> str:
    """Make one write of each kind."""
    plain("1")
    transactional("2")
    one.start()
    flaky("3", 1)
    ctx.sleep(timedelta(minutes=1))
    transactional("4")
    if fails:
        raise ValueError("so it ends")
    return plain("5")


# Executions that are held right before a write, until the run is somebody else's ------------


@workflows.step
def gated() -> str:
    return "first" if held_at_gate() else "second"


@workflows.step(transactional=True)
def gated_transaction() -> None:
    write_effect("first" if held_at_gate() else "second")


@workflows.step
def gated_write() -> None:
    write_effect("first" if held_at_gate() else "second")


@workflows.step(retry=Retry(attempts=3, backoff=Retry.constant(1)))
def gated_error() -> None:
    if held_at_gate():
        raise ConnectionError("to be retried")


@workflows.step(retry=Retry(attempts=1))
def gated_failure() -> None:
    if held_at_gate():
        raise ConnectionError("not to be retried")


def gated_raise() -> None:
    if held_at_gate():
        raise ValueError("by the first")


def held_result() -> None:
    plain("held")
    held_at_gate()


def gated_start() -> None:
    held_at_gate()
    one.start()


def gated_sleep() -> None:
    try:
        current_run.sleep(timedelta(seconds=1))
    finally:
        held_at_gate()


def gated_cancel() -> None:
    if not file(f"cancelled-{current_run.run_id}").exists():
        file(f"cancelled-{current_run.run_id}").touch()
        cancel_the_run()
    try:
        current_run.check_cancelled()
    finally:
        held_at_gate()


#: What is about to be written when the execution is held.
WRITES: dict[str, Callable[[], object]] = {
    "a step": gated,
    "a held result": held_result,
    "a transactional step": gated_transaction,
    "a step that wrote": gated_write,
    "a sleep": gated_sleep,
    "a back-off": gated_error,
    "a failed step": gated_failure,
    "a recorded start": gated_start,
    "the end": held_at_gate,
    "an error": gated_raise,
    "a cancellation": gated_cancel,
}


@workflows.workflow
def gated_before_its_first_step() -> str:
    held_at_gate()
    return plain("next")


@workflows.step
def race() -> str:
    note("race")
    await_file("release")
    return str(threading.get_native_id())


@workflows.workflow
def forking(times: int) -> list[int]:
    return [fork() for _ in range(times)]


@workflows.workflow
def racing() -> str:
    winner = race()
    for number in range(1, 6):
        plain(f"{number}")
    return winner


@workflows.workflow
def held(write: str) -> str:
    WRITES[write]()
    return "" if write == "the end" else plain("next")
