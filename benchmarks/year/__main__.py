"""Simulates a year of an app with 10,000 runs a day: `python -m benchmarks.year`.

Prints tables in Markdown; with `--into docs` they and a picture take the place of those in `docs/growth.md`.
PostgreSQL is the server named by TEST_POSTGRES_URL, else a private one that is started and thrown away.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from contextlib import contextmanager
from datetime import datetime
from datetime import UTC
from pathlib import Path

from benchmarks.databases import describe
from benchmarks.databases import fresh_database
from benchmarks.year.growth import Day
from benchmarks.year.plot import svg
from benchmarks.year.report import days_table
from benchmarks.year.report import panels
from benchmarks.year.report import tables_table
from benchmarks.year.simulation import Year
from tests.databases import PostgresServer
from tests.databases import PostgresUnavailable
from tests.databases import PrivatePostgres
from tests.databases import shared_server

KINDS = ("postgresql", "sqlite")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # The runs that fail are meant to.
    logging.getLogger("flask_workflows").setLevel(logging.CRITICAL)
    try:
        for kind in KINDS if options.database == "both" else (options.database,):
            with _server(kind) as server:
                _simulate(kind, server, options)
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.year", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--days", type=_days, default=365, help="(default: 365)")
    parser.add_argument("--runs-per-day", type=_runs, default=10_000, metavar="RUNS", help="(default: 10,000)")
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both", help="(default: both)")
    parser.add_argument("--into", type=Path, metavar="DOCS", help="write to growth.md and pictures/ in this folder")
    return parser


def _days(text: str) -> int:
    return _at_least(text, 5, "days")


def _runs(text: str) -> int:
    return _at_least(text, 1_000, "runs a day")


def _at_least(text: str, least: int, what: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: at least {least:,} {what}, as a whole number")
    return int(text)


@contextmanager
def _server(kind: str) -> Iterator[PostgresServer | None]:
    if kind == "sqlite":
        yield None
    elif os.environ.get("TEST_POSTGRES_URL"):
        yield shared_server()
    else:
        with closing(
            PrivatePostgres(shared_buffers="512MB", max_wal_size="4GB", maintenance_work_mem="256MB")
        ) as server:
            yield server


def _simulate(kind: str, server: PostgresServer | None, options: argparse.Namespace) -> None:
    began = time.monotonic()
    days: list[Day] = []
    with fresh_database(kind, server) as database, closing(Year(database, options.runs_per_day)) as year:
        for day in year.days(options.days):
            days.append(day)
            size = (day.heap + day.indexes) >> 20
            print(f"{kind}: day {day.number}, {size} MB, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        report = f"{days_table(days)}\n\n{tables_table(days, year.sizes.vacuums)}"
    about = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPUs, {describe(server)}; {options.days} days of "
        f"{options.runs_per_day:,} runs in {(time.monotonic() - began) / 60:.0f} minutes."
    )
    print(f"{about}\n\n{report}\n")
    if options.into is not None:
        publish(options.into, kind, f"{about}\n\n{report}", days)


def publish(docs: Path, kind: str, report: str, days: Sequence[Day]) -> None:
    """Put the report between the page's marks, and draw the picture."""
    (docs / "pictures" / f"growth-{kind}.svg").write_text(svg([day.number for day in days], panels(days)))
    page = docs / "growth.md"
    between = re.compile(rf"(?<=<!-- {kind} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    text, count = between.subn(lambda found: f"\n{report}\n\n", page.read_text(encoding="utf-8"), count=1)
    if not count:
        raise SystemExit(f"{page} has no <!-- {kind} --> … <!-- end --> to put the tables in")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
