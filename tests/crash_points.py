"""Things that are done to runs, each left in the middle by the death of its process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flask import current_app

from flask_workflows import Workflows
from tests import busy_app
from tests.dbapi import watched_options
from tests.running import Clock

CRASHED = 77

#: What is prepared in peace, answering what is then done and may be left.
Action = Callable[[Workflows, Clock], Callable[[], object]]

ACTIONS: dict[str, Action] = {}


def action(function: Action) -> Action:
    ACTIONS[function.__name__] = function

    return function


def crash(url: str, directory: str, name: str, before: int) -> None:
    """Do it, and die before the so-manieth exchange with the database; answer the others in the exit code."""
    exchanges = 0
    armed = False

    def watch(asked: str) -> None:
        nonlocal exchanges
        if armed and "PRAGMA" not in asked:
            exchanges += 1
            if exchanges == before:
                print(f"{name}: died before {' '.join(asked.split())[:80]}", flush=True)
                os._exit(CRASHED)

    app = busy_app.make_busy_app(url, directory, SQLALCHEMY_ENGINE_OPTIONS=watched_options(url, watch))
    workflows = busy_app.workflows
    workflows.clock = clock = Clock()
    with app.app_context():
        act = ACTIONS[name](workflows, clock)
        armed = True
        act()
    os._exit(0)


def session() -> Any:
    return current_app.extensions["sqlalchemy"].session


@action
def start_with_the_rows_of_the_app(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    def act() -> None:
        session().add(busy_app.Effect(run="app", step="order"))
        busy_app.five.using(key="order").start()
        session().commit()

    return act


@action
def spawn(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    return busy_app.five.using(key="order").spawn


@action
def execute_until_a_step_is_to_be_retried(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    busy_app.everything.spawn()

    return workflows.tick


@action
def execute_until_it_sleeps(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    execute_until_a_step_is_to_be_retried(workflows, clock)()
    clock.move(hours=1)

    return workflows.tick


@action
def execute_until_it_completes(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    execute_until_it_sleeps(workflows, clock)()
    clock.move(hours=1)

    return workflows.tick


@action
def execute_until_the_body_raises(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    busy_app.everything.spawn(fails=True)
    for _ in range(2):
        workflows.tick()
        clock.move(hours=1)

    return workflows.tick


@action
def execute_until_it_fails(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    for _ in range(2):
        execute_until_the_body_raises(workflows, clock)()
        clock.move(hours=1)

    return workflows.tick


@action
def cancel_one_that_sleeps(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    run = busy_app.napping.spawn(60)
    workflows.tick()

    return run.cancel


@action
def execute_one_that_is_to_be_cancelled(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    busy_app.cancelling.spawn()

    return workflows.tick


@action
def retry(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    run = busy_app.napping.spawn(60)
    workflows.tick()
    run.cancel()

    return run.retry


@action
def wake(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    run = busy_app.napping.spawn(3_600)
    workflows.tick()

    return lambda: workflows.wake(run.id)


@action
def prune(workflows: Workflows, clock: Clock) -> Callable[[], object]:
    for _ in range(3):
        busy_app.five.spawn()
    workflows.tick()
    clock.move(days=40)

    return workflows.prune
