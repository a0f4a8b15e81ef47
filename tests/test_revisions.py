from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Literal

import click.testing
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import add_version_location
from flask_workflows import models
from flask_workflows import paths
from flask_workflows import Workflows
from flask_workflows.errors import SchemaError
from flask_workflows.errors import SetupError
from flask_workflows.revisions import install
from flask_workflows.schema import check_schema
from tests.apps import database_of
from tests.apps import dispose_engines
from tests.apps import MakeApp
from tests.apps import runtime_of
from tests.databases import PostgresServer

Route = Literal["copied", "located"]

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

#: The shipped revisions, as files and as they are called in a history.
FILES = [
    "workflows_0001_create_tables.py",
    "workflows_0002_events.py",
    "workflows_0003_audit.py",
    "workflows_0004_children.py",
    "workflows_0005_pause.py",
]
TITLES = [
    "Create the tables of Flask-Workflows.",
    "Add events, waits, published state and marks to Flask-Workflows.",
    "Add causes of failures, the audit and statistics to Flask-Workflows.",
    "Let runs have children, and wait for the end of others, in Flask-Workflows.",
    "Let runs be paused, and have deadlines, in Flask-Workflows.",
]


class Shop:
    """An app with a table, a migrations folder and a revision of its own."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        route: Route = "copied",
        extended: bool = True,
        metadata: sa.MetaData | None = None,
        columns: tuple[str, ...] = (),
        **config: object,
    ) -> None:
        self.versions = directory / "versions"
        self.db = SQLAlchemy(metadata=metadata)
        sa.Table(
            "customers",
            self.db.metadata,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("name", sa.String(80), index=True),
            *(sa.Column(name, sa.String(80)) for name in columns),
        )
        self.app = Flask("shop")
        self.app.config.update(SQLALCHEMY_DATABASE_URI=url, **config)
        self.db.init_app(self.app)
        migrate = Migrate(self.app, self.db, directory=str(directory), compare_server_default=True)
        if extended:
            Workflows().init_app(self.app)
        if route == "located":
            migrate.configure(add_version_location)

    def flask(self, *args: str, exit_code: int = 0) -> click.testing.Result:
        """Run a command in this process."""
        result = self.app.test_cli_runner().invoke(args=args)

        assert result.exit_code == exit_code, result.output or result.exception
        return result

    def install(self) -> list[str]:
        with self.app.app_context():
            return [path.name for path in install()]

    def revisions(self) -> set[Path]:
        return set(self.versions.glob("*.py"))

    def line(self) -> list[str]:
        """The app's history from its first revision to its only head, by message."""
        history = ScriptDirectory(str(self.versions.parent))

        assert len(history.get_heads()) == 1
        return [script.doc for script in reversed(list(history.walk_revisions()))]

    def definitions(self) -> list[Any]:
        with self.app.app_context():
            return definitions(self.db.engine)


MakeShop = Callable[..., Shop]


@pytest.fixture(autouse=True)
def _logging_kept() -> Iterator[None]:
    """Undo what the `fileConfig()` in an app's env.py does to the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    yield

    root.handlers[:], root.level = handlers, level
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[MakeShop]:
    apps: list[Flask] = []

    def make(url: str, **options: Any) -> Shop:
        shop = Shop(url, tmp_path / "migrations", **options)
        apps.append(shop.app)

        return shop

    yield make

    for app in apps:
        dispose_engines(app)


@pytest.fixture
def young_shop(database_url: str, make_shop: MakeShop) -> Shop:
    """The shop before it took up workflows, its own table made."""
    shop = make_shop(database_url, extended=False)
    shop.flask("db", "init")
    shop.flask("db", "migrate", "-m", "customers")
    shop.flask("db", "upgrade")

    return shop


def definitions(engine: sa.Engine) -> list[Any]:
    """What the database itself says about the tables and indexes of workflows."""
    if engine.dialect.name == "sqlite":
        statement = """
            SELECT type, name, sql FROM sqlite_master
            WHERE tbl_name LIKE 'workflow%' ORDER BY 1, 2
        """
    else:
        statement = """
            SELECT table_name, column_name, ordinal_position, data_type,
                   character_maximum_length::text, is_nullable, column_default
            FROM information_schema.columns WHERE table_name LIKE 'workflow%'
            UNION ALL
            SELECT tablename, indexname, 0, indexdef, NULL, NULL, NULL
            FROM pg_indexes WHERE tablename LIKE 'workflow%'
            UNION ALL
            SELECT conrelid::regclass::text, conname, 0, pg_get_constraintdef(oid),
                   NULL, NULL, NULL
            FROM pg_constraint WHERE conrelid::regclass::text LIKE 'workflow%'
            ORDER BY 1, 3, 2, 4
        """
    with engine.connect() as connection:
        return [tuple(map(_one_line, row)) for row in connection.execute(sa.text(statement))]


def _one_line(value: str | int | None) -> str | int | None:
    """SQLite keeps the text that made a table; a column added later is on the line before, a new name in quotes."""
    if not isinstance(value, str):
        return value
    return re.sub(r'TABLE "(workflow_\w+)"', r"TABLE \1", " ".join(value.split()))


def run_shipped(connection: sa.Connection, direction: Literal["upgrade", "downgrade"]) -> MigrationContext:
    """Run every shipped revision as it stands, without an app."""
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    scripts = list(ScriptDirectory(str(paths.MIGRATIONS)).walk_revisions())
    with Operations.context(context):
        for script in reversed(scripts) if direction == "upgrade" else scripts:
            getattr(script.module, direction)()

    return context


# The shipped revisions


def test_shipped_revisions_make_what_create_all_makes(database_url: str) -> None:
    engine = sa.create_engine(database_url)

    with engine.begin() as connection:
        context = run_shipped(connection, "upgrade")
        differences = compare_metadata(context, models.metadata)
    migrated = definitions(engine)
    with engine.begin() as connection:
        run_shipped(connection, "downgrade")
    left = sa.inspect(engine).get_table_names()
    models.metadata.create_all(engine)

    assert differences == []
    assert left == []
    assert migrated == definitions(engine)
    engine.dispose()


def test_events_are_added_to_what_is_stored_and_taken_away_again(database_url: str) -> None:
    """B119: the rows of the release before stay as they are, both ways."""
    engine = sa.create_engine(database_url)
    shipped = ScriptDirectory(str(paths.MIGRATIONS))
    first, second = (shipped.get_revision(f"workflows_{number}").module for number in ("0001", "0002"))
    run = """INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, attempts,
                 max_attempts, losses, created_at, updated_at)
             VALUES ('r', 'w', 1, 'q', '', 'sleeping', '{}', 1, 0, 3, 0, 1, 1)"""
    step = """INSERT INTO workflow_steps (run_id, "key", position, kind, status, attempts)
              VALUES ('r', '$sleep', 1, 'sleep', 'sleeping', 1)"""

    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        first.upgrade()
        connection.exec_driver_sql(run)
        connection.exec_driver_sql(step)
    before = definitions(engine)
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        second.upgrade()
        # As a worker of the release before goes on to do.
        connection.exec_driver_sql(step.replace("$sleep", "$sleep#2").replace("1, 'sleep'", "2, 'sleep'"))
        stored = connection.exec_driver_sql('SELECT "key", event_seq FROM workflow_steps ORDER BY position').all()
        second.downgrade()
        left = connection.exec_driver_sql('SELECT "key", position FROM workflow_steps ORDER BY position').all()

    assert [tuple(row) for row in stored] == [("$sleep", None), ("$sleep#2", None)]
    assert [tuple(row) for row in left] == [("$sleep", 1), ("$sleep#2", 2)]
    assert definitions(engine) == before
    engine.dispose()


def test_causes_and_the_audit_are_added_to_what_is_stored_and_taken_away_again(database_url: str) -> None:
    """B119: a worker of the release before goes on beside the new tables, and its rows survive both ways."""
    engine = sa.create_engine(database_url)
    shipped = ScriptDirectory(str(paths.MIGRATIONS))
    *earlier, third = (shipped.get_revision(f"workflows_{number}").module for number in ("0001", "0002", "0003"))
    run = """INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, attempts,
                 max_attempts, losses, created_at, updated_at)
             VALUES ('r1', 'w', 1, 'q', '', 'failed', '{}', 1, 0, 3, 0, 1, 1)"""

    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        for module in earlier:
            module.upgrade()
        connection.exec_driver_sql(run)
    before = definitions(engine)
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        third.upgrade()
        connection.exec_driver_sql(run.replace("r1", "r2"))
        stored = connection.exec_driver_sql("SELECT id, cause FROM workflow_runs ORDER BY id").all()
        third.downgrade()
        left = connection.exec_driver_sql("SELECT id, status FROM workflow_runs ORDER BY id").all()

    assert [tuple(row) for row in stored] == [("r1", None), ("r2", None)]
    assert [tuple(row) for row in left] == [("r1", "failed"), ("r2", "failed")]
    assert definitions(engine) == before
    engine.dispose()


def test_shipped_revisions_are_one_labelled_line() -> None:
    shipped = ScriptDirectory(str(paths.MIGRATIONS))
    first = shipped.get_revision("workflows_0001")

    assert len(shipped.get_heads()) == 1
    assert first.branch_labels == {"workflows"}
    for script in shipped.walk_revisions():
        assert Path(script.path).name.startswith(f"{script.revision}_")
        assert len(script.revision) <= 32
        assert "flask_workflows" not in Path(script.path).read_text(encoding="utf-8")


def test_each_table_has_a_primary_key_and_each_name_is_given() -> None:
    for table in models.metadata.tables.values():
        assert table.primary_key.name == f"{table.name}_pkey"
        assert list(table.primary_key)
        named: list[sa.Constraint | sa.Index] = [*table.constraints, *table.indexes]
        for item in named:
            assert str(item.name).startswith(f"{table.name}_")


# In an app's history, by either route


@pytest.mark.parametrize("route", ["copied", "located"])
def test_either_route_makes_the_tables_and_leaves_nothing_to_do(
    young_shop: Shop, database_url: str, make_shop: MakeShop, route: Route
) -> None:
    shop = make_shop(database_url, route=route)
    if route == "copied":
        shop.install()

    shop.flask("db", "upgrade", "heads")
    shop.flask("db", "check")
    migrated = shop.definitions()
    shop.flask("db", "downgrade", "base")
    with shop.app.app_context():
        left = sa.inspect(shop.db.engine).get_table_names()
        models.metadata.create_all(shop.db.engine)

    assert left == ["alembic_version"]
    assert migrated == shop.definitions()


def test_an_apps_naming_convention_changes_nothing(database_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(database_url, metadata=sa.MetaData(naming_convention=CONVENTION))
    shop.flask("db", "init")
    shop.install()
    shop.flask("db", "upgrade")
    shop.flask("db", "migrate", "-m", "customers")
    shop.flask("db", "upgrade")

    shop.flask("db", "check")

    with shop.app.app_context():
        check_schema(shop.db.engine)


def test_an_apps_own_change_is_all_that_autogenerate_proposes(
    young_shop: Shop, database_url: str, make_shop: MakeShop
) -> None:
    shop = make_shop(database_url)
    shop.install()
    shop.flask("db", "upgrade")
    shop = make_shop(database_url, columns=("street",))
    before = shop.revisions()

    shop.flask("db", "migrate", "-m", "street")
    (added,) = shop.revisions() - before
    shop.flask("db", "upgrade")
    shop.flask("db", "migrate", "-m", "nothing")

    assert "street" in added.read_text()
    assert "workflow_" not in added.read_text()
    assert shop.revisions() - before == {added}


def test_offline_mode_prints_the_script(young_shop: Shop, database_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(database_url)
    shop.install()

    script = shop.flask("db", "upgrade", "--sql").output

    assert "CREATE TABLE workflow_runs" in script
    assert "WHERE live_key IS NOT NULL" in script


def test_an_app_with_several_databases_gets_the_tables_in_its_own(tmp_path: Path, make_shop: MakeShop) -> None:
    shop = make_shop(
        f"sqlite:///{tmp_path / 'main.sqlite3'}",
        SQLALCHEMY_BINDS={"archive": f"sqlite:///{tmp_path / 'archive.sqlite3'}"},
    )
    shop.flask("db", "init", "--multidb")
    shop.install()

    shop.flask("db", "upgrade")
    with shop.app.app_context():
        tables = {name: sa.inspect(engine).get_table_names() for name, engine in shop.db.engines.items()}
        check_schema(shop.db.engine)
    shop.flask("db", "downgrade", "base")

    assert "workflow_runs" in tables[None]
    assert "workflow_runs" not in tables["archive"]


# Copying


def test_copies_continue_the_apps_line(young_shop: Shop, database_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(database_url)

    names = shop.install()

    assert names == FILES
    assert shop.line() == ["customers", *TITLES]
    copy = (shop.versions / names[0]).read_text()
    assert f"Revises: {ScriptDirectory(str(shop.versions.parent)).get_base()}" in copy
    assert "branch_labels = None" in copy
    assert not list(shop.versions.glob("*.part"))


def test_second_install_copies_nothing(young_shop: Shop, database_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(database_url)
    shop.install()
    shop.flask("db", "upgrade")
    before = {path: path.read_text() for path in shop.revisions()}

    names = shop.install()

    assert names == []
    assert {path: path.read_text() for path in shop.revisions()} == before


def test_next_release_continues_after_the_apps_own_work(
    young_shop: Shop, database_url: str, make_shop: MakeShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(database_url)
    shop.install()
    shop.flask("db", "upgrade")
    shop.flask("db", "revision", "-m", "own work")
    released = tmp_path / "released" / "versions"
    released.mkdir(parents=True)
    for path in (paths.MIGRATIONS / "versions").glob("*.py"):
        (released / path.name).write_text(path.read_text())
    head = ScriptDirectory(str(paths.MIGRATIONS)).get_current_head()
    (released / "workflows_9000_more.py").write_text(
        '"""More.\n\nRevises: x\n"""\n\n'
        f'revision = "workflows_9000"\ndown_revision = "{head}"\n'
        "branch_labels = None\ndepends_on = None\n\n\n"
        'def upgrade(engine_name=""):\n    pass\n\n\n'
        'def downgrade(engine_name=""):\n    pass\n'
    )
    monkeypatch.setattr(paths, "MIGRATIONS", released.parent)

    names = shop.install()

    assert names == ["workflows_9000_more.py"]
    assert shop.line()[-2:] == ["own work", "More."]
    shop.flask("db", "upgrade")


def test_eight_processes_install_at_once(sqlite_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(sqlite_url)
    shop.flask("db", "init")
    program = """
import sys
from pathlib import Path
from tests.test_revisions import Shop

shop = Shop(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
shop.install()
"""
    arguments = [sqlite_url, str(shop.versions.parent)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    complaints = [process.communicate(timeout=60)[1] for process in processes]

    assert complaints == [""] * 8
    assert shop.line() == TITLES
    assert shop.install() == []
    shop.flask("db", "upgrade")


# Refusals


def refused(shop: Shop) -> str:
    before = shop.revisions()
    with pytest.raises((SetupError, SchemaError)) as refusal:
        shop.install()

    assert shop.revisions() == before
    return str(refusal.value)


def test_app_without_flask_migrate_is_refused() -> None:
    app = Flask("tests")

    with app.app_context(), pytest.raises(SetupError) as refusal:
        install()

    assert "this app does not use Flask-Migrate" in str(refusal.value)
    assert "pip install 'Flask-Workflows[migrate]'" in str(refusal.value)


def test_app_without_a_migrations_folder_is_refused(sqlite_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(sqlite_url)

    message = refused(shop)

    assert f"no migrations folder at {shop.versions.parent}" in message
    assert "`flask db init`" in message


def test_other_directory_is_taken_when_named(sqlite_url: str, make_shop: MakeShop, tmp_path: Path) -> None:
    shop = make_shop(sqlite_url)
    shop.flask("db", "init", "--directory", str(tmp_path / "other"))

    with shop.app.app_context():
        copies = install(str(tmp_path / "other"))

    assert {copy.parent for copy in copies} == {tmp_path / "other" / "versions"}


def test_two_heads_are_refused(sqlite_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(sqlite_url)
    shop.flask("db", "init")
    for name in ("one", "two"):
        shop.flask("db", "revision", "--head", "base", "--splice", "--rev-id", name)

    message = refused(shop)

    assert "2 heads (one, two)" in message
    assert "`flask db merge heads`" in message


def test_tables_made_by_the_apps_own_revision_are_refused(sqlite_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(sqlite_url)
    shop.flask("db", "init")
    shop.flask("db", "migrate", "-m", "everything")
    (path,) = shop.revisions()

    message = refused(shop)

    assert message.startswith(f"{path} creates workflow_runs itself")
    assert "Take the workflow_ tables out of that revision" in message


def test_tables_made_by_create_all_are_refused(young_shop: Shop, database_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(database_url)
    with shop.app.app_context():
        shop.db.create_all()

    message = refused(shop)

    assert "the database has the table workflow_runs" in message
    assert "no revision workflows_0001" in message
    assert "`flask db stamp workflows_0005`" in message


def test_the_revision_to_stamp_is_the_one_that_made_what_is_there(
    young_shop: Shop, database_url: str, make_shop: MakeShop
) -> None:
    shop = make_shop(database_url)
    with shop.app.app_context():
        shop.db.create_all()
        for revision, later in (("0002", [models.audit]), ("0001", [models.waits])):
            shop.db.metadata.drop_all(shop.db.engine, tables=[shop.db.metadata.tables[table.name] for table in later])

            assert f"`flask db stamp workflows_{revision}`" in refused(shop)


def test_database_need_not_be_up_to_copy(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql+psycopg://postgres@127.0.0.1:1/nowhere")
    shop.flask("db", "init")

    assert shop.install() == FILES


def test_both_routes_at_once_are_refused_on_either_side(sqlite_url: str, make_shop: MakeShop) -> None:
    make_shop(sqlite_url).flask("db", "init")

    assert "nothing to copy" in refused(make_shop(sqlite_url, route="located"))

    make_shop(sqlite_url).install()

    assert "would be there twice" in refused(make_shop(sqlite_url, route="located"))


def test_file_of_that_name_is_not_overwritten(sqlite_url: str, make_shop: MakeShop) -> None:
    shop = make_shop(sqlite_url)
    shop.flask("db", "init")
    shop.flask("db", "revision", "--rev-id", "mine")
    (own,) = shop.revisions()
    own.rename(shop.versions / "workflows_0001_create_tables.py")

    assert "exists and is not revision workflows_0001" in refused(shop)


def test_metadata_with_a_schema_is_refused(sqlite_url: str, make_shop: MakeShop) -> None:
    with pytest.raises(SetupError) as refusal:
        make_shop(sqlite_url, metadata=sa.MetaData(schema="app"))

    assert "db.metadata has the schema 'app'" in str(refusal.value)
    assert "search_path" in str(refusal.value)


# Rights


def test_role_without_ddl_runs_workflows(
    postgresql_url: str, postgres_server: PostgresServer, make_app: MakeApp
) -> None:
    owner = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    models.metadata.create_all(owner)
    role = f"{owner.url.database}_app"
    workflows = Workflows()

    @workflows.workflow
    def hello() -> str:
        return "world"

    with owner.connect() as connection:
        connection.execute(sa.text(f"CREATE ROLE {role} LOGIN PASSWORD 'app'"))
        connection.execute(sa.text("REVOKE CREATE ON SCHEMA public FROM public"))
        connection.execute(sa.text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"))
    url = owner.url.set(username=role, password="app")
    app = make_app(url.render_as_string(hide_password=False), workflows=workflows)
    with app.app_context():
        runtime_of(app).check_schema()
        handle = hello.spawn()
        workflows.tick()
        output = handle.output()
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
            database_of(app).session.execute(sa.text("CREATE TABLE t (id INTEGER)"))
    dispose_engines(app)
    with owner.connect() as connection:
        connection.execute(sa.text(f"DROP OWNED BY {role}"))
        connection.execute(sa.text(f"DROP ROLE {role}"))
    owner.dispose()

    assert output == "world"
