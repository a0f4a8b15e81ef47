"""What is measured: sizes, dead rows, claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

import sqlalchemy as sa

from flask_workflows import models

TABLES = tuple(sorted(table.name for table in models.metadata.tables.values()))


@dataclass(frozen=True)
class Size:
    """A table at one moment; of SQLite, where nothing keeps count, rows are counted and none is dead. In bytes."""

    rows: int
    dead: int
    heap: int
    indexes: Mapping[str, int]


@dataclass(frozen=True)
class Day:
    """A day of the year, at its end. Times are in ms, but for `prune_seconds`."""

    number: int
    tables: Mapping[str, Size]
    #: Bytes of SQLite's file that hold nothing now and will be used again.
    free: int
    pruned: int
    prune_seconds: float
    #: Of each claim of 32 due runs, and of each that found nothing due.
    due: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    @property
    def heap(self) -> int:
        return sum(size.heap for size in self.tables.values())

    @property
    def indexes(self) -> int:
        return sum(sum(size.indexes.values()) for size in self.tables.values())

    @property
    def dead(self) -> int:
        return sum(size.dead for size in self.tables.values())


class PostgreSQLSizes:
    """Looks at a PostgreSQL database, and vacuums as autovacuum would."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        #: How often each table was vacuumed.
        self.vacuums = dict.fromkeys(TABLES, 0)
        with self._engine.connect() as connection:
            for table in TABLES:
                # Its own, which comes once a minute, would come once in a simulated month or two.
                connection.exec_driver_sql(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")

    def vacuum(self) -> None:
        """Vacuum and analyse the tables that autovacuum would, by its rule and its default settings."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql("SET synchronous_commit = off")
            for table, vacuum in connection.exec_driver_sql(_AUTOVACUUM).all():
                connection.exec_driver_sql(f"VACUUM (ANALYZE) {table}" if vacuum else f"ANALYZE {table}")
                self.vacuums[table] += vacuum

    def look(self) -> tuple[dict[str, Size], int]:
        with self._engine.connect() as connection:
            rows = connection.exec_driver_sql(_SIZES).all()
            indexes: dict[str, dict[str, int]] = {table: {} for table in TABLES}
            for table, name, size in connection.exec_driver_sql(_INDEX_SIZES).all():
                indexes[table][name] = size
        return {table: Size(live, dead, heap, indexes[table]) for table, live, dead, heap in rows}, 0


_OURS = r"relname LIKE 'workflow\_%%'"

#: Thresholds are the defaults: 50 rows and a fifth, 1,000 inserted rows and a fifth, 50 changed rows and a tenth.
_AUTOVACUUM = f"""
SELECT relname, dead OR inserted FROM (
    SELECT s.relname, s.n_dead_tup > 50 + 0.2 * greatest(c.reltuples, 0) AS dead,
        s.n_ins_since_vacuum > 1000 + 0.2 * greatest(c.reltuples, 0) AS inserted,
        s.n_mod_since_analyze > 50 + 0.1 * greatest(c.reltuples, 0) AS changed
    FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid WHERE s.{_OURS}
) AS tables WHERE dead OR inserted OR changed
"""

_SIZES = f"""
SELECT relname, n_live_tup, n_dead_tup, pg_table_size(relid) FROM pg_stat_user_tables WHERE {_OURS}
"""

_INDEX_SIZES = f"SELECT relname, indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes WHERE {_OURS}"


class SQLiteSizes:
    """Looks at a SQLite file, which nobody vacuums."""

    vacuums: Mapping[str, int] = {}

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def vacuum(self) -> None:
        """Nothing to do: a deleted row's place is free at once."""

    def look(self) -> tuple[dict[str, Size], int]:
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT name, pgsize FROM dbstat WHERE aggregate = 1").all()
            sizes = {str(name): int(size) for name, size in found}
            free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
            free *= connection.exec_driver_sql("PRAGMA page_size").scalar_one()
            return {table: _sqlite_size(connection, table, sizes) for table in TABLES}, free


def _sqlite_size(connection: sa.Connection, table: str, sizes: Mapping[str, int]) -> Size:
    rows = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
    found = connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?", (table,))
    return Size(rows, 0, sizes[table], {str(name): sizes[str(name)] for name in found.scalars()})


Sizes = PostgreSQLSizes | SQLiteSizes
