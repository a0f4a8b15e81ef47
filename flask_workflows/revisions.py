"""How the tables get into an app's Alembic history: copied there, or read from where the package keeps them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar

import sqlalchemy as sa
from flask import current_app

from flask_workflows import models
from flask_workflows import paths
from flask_workflows.errors import SchemaError
from flask_workflows.errors import SetupError

# Alembic comes with Flask-Migrate, and both are optional: an app may use `create_all()` alone.
if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import Script
    from alembic.script import ScriptDirectory

#: What each revision made that none before it has, oldest first.
_MARKS = (models.runs, models.waits, models.audit, models.runs.c.parent_id, models.runs.c.paused_at)

#: Alembic's Config. Not bound to it: Flask-Migrate's type stubs know one of their own.
AlembicConfig = TypeVar("AlembicConfig")


def install(directory: str | None = None) -> list[Path]:
    """Copy each shipped revision the app lacks onto the head of its history, and return the new files.

    Touches no database: `flask db upgrade` does that. Needs an app context. `directory` is the app's migrations
    folder, by default the one Flask-Migrate was given.
    """
    migrate = _flask_migrate()
    history = _history(migrate.migrate.get_config(directory))
    _refuse_second_route(history)
    present = {script.revision: Path(script.path) for script in history.walk_revisions()}
    shipped = _shipped_in_order()
    if not any(script.revision in present for script in shipped):
        _refuse_foreign_tables(present.values(), migrate.db.engine, [script.revision for script in shipped])

    head = _single_head(history)
    folder = present[head].parent if head else Path(history.versions)
    copies = []
    for script in shipped:
        if script.revision not in present:
            copies.append(_copy(script, folder, onto=head))
            head = script.revision
    return copies


def add_version_location(config: AlembicConfig) -> AlembicConfig:
    """Let Alembic read the revisions from the package, for apps that want no copies; return the same `config`.

    For Flask-Migrate's hook:

        @migrate.configure
        def workflows_revisions(config):
            return flask_workflows.add_version_location(config)

    The history then has two heads, the app's and `workflows`: upgrade with `flask db upgrade heads`, and name the
    app's own head in `flask db migrate --head`.
    """
    options: Any = config
    folder = Path(options.get_main_option("script_location") or ".")
    own = options.get_version_locations_list() or [str(folder / "versions")]
    for location in own:
        copies = sorted(Path(location).glob("workflows_[0-9]*.py"))
        if copies:
            raise SetupError(
                f"{copies[0]} is a copy made by `flask workflows install`, so the revisions would be there twice. "
                "Remove the call of add_version_location, or, if no database was upgraded with the copies, delete them"
            )

    # A percent sign starts an interpolation in the ini file's syntax.
    locations = os.pathsep.join([*own, str(_shipped_folder())]).replace("%", "%%")
    options.set_main_option("version_locations", locations)
    options.set_main_option("path_separator", "os")
    return config


def _flask_migrate() -> Any:
    if "migrate" not in current_app.extensions:
        raise SetupError(
            "this app does not use Flask-Migrate. Install it (pip install 'Flask-Workflows[migrate]') and add "
            "Migrate(app, db), or create the tables with db.create_all()"
        )
    return current_app.extensions["migrate"]


def _history(config: Config) -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    folder = Path(config.get_main_option("script_location") or ".").absolute()
    if not (folder / "env.py").is_file():
        raise SetupError(
            f"there is no migrations folder at {folder}. Create it with `flask db init`, or name the right one: "
            "Migrate(app, db, directory=…) in the app, or --directory here"
        )
    return ScriptDirectory.from_config(config)


def _shipped_folder() -> Path:
    return (paths.MIGRATIONS / "versions").resolve()


def _shipped_in_order() -> list[Script]:
    from alembic.script import ScriptDirectory

    return list(reversed(list(ScriptDirectory(str(paths.MIGRATIONS)).walk_revisions())))


def _refuse_second_route(history: ScriptDirectory) -> None:
    locations = [Path(location).resolve() for location in history.version_locations]
    if _shipped_folder() in locations:
        raise SetupError(
            "this app reads the revisions from the package (add_version_location), so there is nothing to copy; "
            "run `flask db upgrade heads`"
        )


def _single_head(history: ScriptDirectory) -> str | None:
    heads = history.get_heads()
    if len(heads) > 1:
        raise SetupError(
            f"the app's history has {len(heads)} heads ({', '.join(heads)}); run `flask db merge heads` first"
        )
    return heads[0] if heads else None


def _refuse_foreign_tables(revisions: Iterable[Path], engine: sa.Engine, shipped: Sequence[str]) -> None:
    """Refuse when something other than the first revision has made the tables: that revision would fail."""
    table = models.runs.name
    for path in revisions:
        if re.search(rf"create_table\(\s*['\"]{table}['\"]", path.read_text(encoding="utf-8")):
            raise SchemaError(
                f"{path} creates {table} itself: `flask db migrate` was run before `flask workflows install`. Take the "
                f"workflow_ tables out of that revision (and, where it was applied, drop them), then run this again"
            )

    try:
        inspector = sa.inspect(engine)
        exists = inspector.has_table(table)
        made = sum(takewhile(bool, (_has(inspector, mark) for mark in _MARKS)))
    except sa.exc.OperationalError:
        # Copying files needs no database. If there is a clash, the upgrade will say so.
        return
    if exists:
        tables = ", ".join(reversed([table.name for table in models.metadata.sorted_tables]))
        raise SchemaError(
            f"the database has the table {table}, but the app's history has no revision {shipped[0]}, which would fail to "
            f"create it. If create_all() made the tables: drop them ({tables}) and run this again. To keep their rows, "
            f"run this with an empty database configured, then `flask db stamp {shipped[made - 1]}` on the one that has them"
        )


def _has(inspector: sa.Inspector, mark: sa.Table | sa.Column[Any]) -> bool:
    if isinstance(mark, sa.Table):
        return inspector.has_table(mark.name)
    return any(column["name"] == mark.name for column in inspector.get_columns(mark.table.name))


def _copy(script: Script, folder: Path, onto: str | None) -> Path:
    text = Path(script.path).read_text(encoding="utf-8")
    text = re.sub(r"^Revises:.*$", f"Revises: {onto or ''}".rstrip(), text, count=1, flags=re.M)
    text = _assign(text, "down_revision", onto)
    # Labels name branches, and a copy lies on the app's own line.
    text = _assign(text, "branch_labels", None)

    target = folder / Path(script.path).name
    if target.exists() and target.read_text(encoding="utf-8") != text:
        raise SetupError(f"{target} exists and is not revision {script.revision}; rename it and run this again")

    # Replaced in one move: another process that installs at the same time must not load half a file.
    part = target.with_suffix(f".{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(target)
    return target


def _assign(text: str, name: str, value: str | None) -> str:
    return re.sub(rf"^{name} = .*$", f"{name} = {value!r}", text, count=1, flags=re.M)
