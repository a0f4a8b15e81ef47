"""What the app runs on and how it is set up. No address and no secret stands here: names, numbers, and "set"."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import time
from datetime import timedelta
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from typing import Any

from flask import Flask

from ... import paths
from ... import phrases
from ...config import PREFIX
from ...config import WorkflowsConfig
from ...explain import Instant
from ...explain import Name
from ...explain import Text
from ...hooks import Hooks
from ...runs import Count
from .run import Fact

#: Settings of text that is harmless: names and choices. Any other text may be an address or a secret.
_NAMES = ("queue", "store", "execution", "url_prefix", "env_name")

_PACKAGES = ("Flask-Workflows", "Flask", "Werkzeug", "Flask-SQLAlchemy", "SQLAlchemy")
#: What each is there for.
_OPTIONAL = {
    "alembic": "migrations",
    "Flask-Migrate": "migrations",
    "psycopg": "PostgreSQL",
    "prometheus-client": "/metrics",
    "pydantic": "models as values",
    "Flask-Login": "who acts, without an actor function",
    "Flask-WTF": "the app's own forms",
}
_HOOKS = {
    "authorize": "who may see and do what",
    "scope": "which workspaces a visitor sees",
    "actor": "who acts, for the audit",
    "redact": "what else is hidden",
}
#: Clocks that differ by more than this are worth a warning.
SKEW = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Database:
    """What was read of the database."""

    dialect: str
    driver: str
    version: str
    #: What is wrong with the tables, in words; null where nothing is.
    problem: str | None
    #: Of the app's migrations.
    revisions: tuple[str, ...]
    #: How far its clock is ahead of this machine's; null where a clock is set.
    ahead: timedelta | None
    round_trip: timedelta


@dataclass(frozen=True, slots=True)
class Tables:
    """How full the tables are; null for a visitor who may see some workspaces only."""

    rows: Mapping[str, Count]
    oldest_due: datetime | None


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str
    #: Whether the app's configuration has it.
    given: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A package, or a function of the app's."""

    name: str
    purpose: str
    #: Its version, or "given"; empty where it is not there.
    state: str


@dataclass(frozen=True, slots=True)
class SystemPage:
    database: tuple[Fact, ...]
    #: What should be put right, the worst first.
    warnings: tuple[Text, ...]
    software: tuple[Part, ...]
    optional: tuple[Part, ...]
    hooks: tuple[Part, ...]
    settings: tuple[Setting, ...]
    tables: tuple[tuple[str, Count], ...] | None
    oldest_due: Text


def system_page(
    app: Flask, config: WorkflowsConfig, hooks: Hooks, database: Database, tables: Tables | None
) -> SystemPage:
    return SystemPage(
        database=(*_database(database), Fact("SECRET_KEY", ("set" if app.secret_key else "not set",))),
        warnings=tuple(_warnings(app, hooks, database)),
        software=(
            Part("Python", "", platform.python_version()),
            *(Part(name, "", _version(name)) for name in _PACKAGES),
        ),
        optional=tuple(Part(name, purpose, _version(name)) for name, purpose in _OPTIONAL.items()),
        hooks=tuple(
            Part(name, purpose, "" if getattr(hooks, name) is None else "given") for name, purpose in _HOOKS.items()
        ),
        settings=tuple(_settings(app.config, config)),
        tables=None if tables is None else tuple(tables.rows.items()),
        oldest_due=() if tables is None else _oldest(tables.oldest_due),
    )


def needed_revision() -> str:
    """The newest revision that this version of the package ships."""
    shipped = (re.match(r"workflows_\d+", path.name) for path in (paths.MIGRATIONS / "versions").glob("*.py"))
    return max(found[0] for found in shipped if found is not None)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _database(database: Database) -> Iterator[Fact]:
    yield Fact("Database", (f"{_KINDS.get(database.dialect, database.dialect)} {database.version}",))
    yield Fact("Driver", (Name(database.driver),))
    yield Fact("Tables", ("as this version needs them",) if database.problem is None else (database.problem,))
    yield Fact("Newest revision needed", (Name(needed_revision()),))
    yield Fact(
        "The app's migrations are at",
        (Name(", ".join(database.revisions)),) if database.revisions else ("no revision: it has no migrations",),
    )
    yield Fact("Clocks", (_clocks(database.ahead),))
    yield Fact("Round trip", (phrases.duration(database.round_trip),))


_KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}


def _clocks(ahead: timedelta | None) -> str:
    if ahead is None:
        return "a clock is set, as in tests: every instant comes from it"
    if abs(ahead) < timedelta(seconds=1):
        return "this machine and the database agree"
    length = phrases.duration(abs(ahead))
    return f"the database is {length} {'ahead of' if ahead > timedelta() else 'behind'} this machine"


def _warnings(app: Flask, hooks: Hooks, database: Database) -> Iterator[Text]:
    if database.problem is not None:
        yield (database.problem,)
    if not app.secret_key:
        yield (
            "The app has no ",
            Name("SECRET_KEY"),
            ": forms are signed with it, so nothing can be changed from these pages.",
        )
    if database.ahead is not None and abs(database.ahead) > SKEW:
        yield (f"Clocks differ: {_clocks(database.ahead)}. Stored times are the database's.",)
    if hooks.actor is None and not hasattr(app, "login_manager"):
        yield ("Nobody says who acts, so the audit has no names: give an ", Name("actor"), " function.")


def _settings(given: Mapping[str, Any], config: WorkflowsConfig) -> Iterator[Setting]:
    fields = dataclasses.fields(config)
    for field in fields:
        key = PREFIX + field.name.upper()
        value = getattr(config, field.name)
        note = ""
        if isinstance(value, int) and isinstance(given.get(key), int) and given[key] != value:
            note = "What is given is out of range; this is the nearest."
        yield Setting(key, shown(field.name, value), key in given, note)

    known = {PREFIX + field.name.upper() for field in fields}
    for key in sorted(given):
        if key.startswith(PREFIX) and key not in known:
            yield Setting(key, "set", True, "Nothing reads this key.")


def shown(name: str, value: object) -> str:
    """A setting's value where it is harmless, else whether there is one."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return phrases.number(value)
        case time():
            return value.isoformat("minutes")
        case tuple() | frozenset() if all(isinstance(item, str) for item in value):
            return ", ".join(map(str, sorted(value))) or "none"
        case str() if name in _NAMES:
            return value
        case None | "":
            return "not set"
        case _:
            return "set"


def _oldest(at: datetime | None) -> Text:
    if at is None:
        return ("No run waits for a worker.",)
    return ("The run that waits longest for a worker is due since ", Instant(at), ", ", Instant(at, "ago"), ".")
