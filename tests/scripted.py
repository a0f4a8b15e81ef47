"""Workflows that do what their input says, in any order, and note what their functions did: for `tests.test_machine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from flask import current_app
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows

#: What is done, with its arguments.
Script = list[list[Any]]


class Base(DeclarativeBase):
    pass


class Written(Base):
    """What a transactional step wrote; nothing but the engine keeps two of a kind out."""

    __tablename__ = "written"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    step: Mapped[str]


#: A call of a run, by both their keys.
Key = tuple[str, str]

#: How often the function of each step returned.
returned: Counter[Key] = Counter()
#: How often a step was called that fails, and a body that raises came there.
tried: Counter[Key] = Counter()
#: Told of each step when its function is called: the run, the step, the epoch it is executed under.
watchers: list[Callable[[str, str, int], None]] = []

workflows = Workflows(authorize=lambda action, run=None: True)
workflows.event("go")


def forget() -> None:
    returned.clear()
    tried.clear()
    watchers.clear()


def here() -> Key:
    run, _, step = current_run.idempotency_key.partition(":")
    for watcher in watchers:
        watcher(run, step, current_run.execution.run.epoch)
    return run, step


def done(key: Key) -> int:
    """The function returns: how often it has. It is the step's result too, so that the record says which one it is of."""
    returned[key] += 1
    return returned[key]


@workflows.step
def plain() -> int:
    return done(here())


@workflows.step(transactional=True)
def writing() -> int:
    key = here()
    current_app.extensions["sqlalchemy"].session.add(Written(run=key[0], step=key[1]))
    return done(key)


@workflows.step(retry=Retry(attempts=3, backoff=Retry.constant(60)))
def failing(times: int) -> int:
    key = here()
    tried[key] += 1
    if tried[key] <= times:
        raise OSError(f"failure {tried[key]}")
    return done(key)


@workflows.step
def cancelling() -> int:
    key = here()
    workflows.cancel(key[0])
    return done(key)


@workflows.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
def undoing(times: int) -> int:
    key = here()
    tried[key] += 1
    if tried[key] <= times:
        raise OSError(f"failure {tried[key]}")
    return done(key)


def caught(times: int) -> None:
    try:
        failing(times)
    except StepFailed:
        plain()


def raising(ctx: WorkflowContext, times: int) -> None:
    key = (ctx.run_id, "body")
    tried[key] += 1
    if tried[key] <= times:
        raise ValueError(f"fault {tried[key]}")


def child(script: Script, awaited: bool) -> None:
    handle = scripted.start(script)
    if awaited:
        handle.result()


def emit() -> None:
    workflows.emit("go")


#: Each entry of a script names one of these.
ACTS: dict[str, Callable[..., object]] = {
    "plain": lambda ctx: plain(),
    "writing": lambda ctx: writing(),
    "failing": lambda ctx, times: failing(times),
    "caught": lambda ctx, times: caught(times),
    "cancelling": lambda ctx: cancelling(),
    "raising": raising,
    "sleep": lambda ctx, seconds: ctx.sleep(seconds),
    "wait": lambda ctx, seconds: ctx.wait_for("go", timeout=seconds),
    "receive": lambda ctx, seconds: ctx.receive("letter", timeout=seconds),
    "emit": lambda ctx: emit(),
    "publish": lambda ctx: ctx.set("step", 1),
    "undo": lambda ctx, times: ctx.on_failure(undoing, times),
    "child": lambda ctx, script, awaited: child(script, awaited),
    "parallel": lambda ctx, scripts: ctx.parallel(*[lambda script=script: follow(ctx, script) for script in scripts]),
}


def follow(ctx: WorkflowContext, script: Script) -> None:
    for act, *arguments in script:
        ACTS[act](ctx, *arguments)


@workflows.workflow
def scripted(ctx: WorkflowContext, script: list[list[Any]]) -> str:
    follow(ctx, script)
    return "done"
