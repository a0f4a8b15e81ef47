"""Flask apps as the tests make them, and what is looked at when they are done."""

from __future__ import annotations

from typing import Protocol

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.pool import QueuePool

from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.runtime import Runtime


class MakeApp(Protocol):
    """What the fixture `make_app` gives: bring a `db` to have models of your own on it."""

    def __call__(
        self, url: str, *, db: SQLAlchemy | None = None, workflows: Workflows | None = None, **config: object
    ) -> Flask: ...


def make_app(url: str, *, db: SQLAlchemy | None = None, workflows: Workflows | None = None, **config: object) -> Flask:
    """Make an app whose tables, its own and ours, are in the database.

    Without `workflows` it gets some of its own, whose pages are open to everybody.
    """
    app = Flask("tests")
    app.config.update(SECRET_KEY="tests", SQLALCHEMY_DATABASE_URI=url, TESTING=True)
    app.config.update(config)
    db = db or make_db()
    db.init_app(app)
    workflows = workflows or Workflows(authorize=_everybody)
    workflows.init_app(app)
    with app.app_context():
        db.create_all()

    return app


def make_db() -> SQLAlchemy:
    class Base(DeclarativeBase):
        pass

    return SQLAlchemy(model_class=Base)


def database_of(app: Flask) -> SQLAlchemy:
    db: SQLAlchemy = app.extensions["sqlalchemy"]

    return db


def workflows_of(app: Flask) -> Workflows:
    return runtime_of(app).workflows


def runtime_of(app: Flask) -> Runtime:
    runtime: Runtime = app.extensions["workflows"]

    return runtime


def _everybody(action: str, run: Run | None = None) -> bool:
    return True


def connections_in_use(app: Flask) -> int:
    with app.app_context():
        pools = [engine.pool for engine in database_of(app).engines.values()]

    return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))


def dispose_engines(app: Flask) -> None:
    """Close what the app's engines hold open, as pytest makes an error of what is left."""
    with app.app_context():
        for engine in database_of(app).engines.values():
            engine.dispose()

    # The workflows' own connections: there are some once the store was used.
    runtime = app.extensions.get("workflows")
    if runtime is not None and "store" in vars(runtime):
        runtime.store.close()
