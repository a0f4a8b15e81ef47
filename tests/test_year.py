"""The simulated year: what it writes is what the engine leaves, and what it shows can be looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sqlalchemy as sa

from benchmarks.databases import Database
from benchmarks.year import simulation
from benchmarks.year.__main__ import main
from benchmarks.year.__main__ import publish
from benchmarks.year.app import db
from benchmarks.year.app import LONGEST
from benchmarks.year.app import STARTED
from benchmarks.year.growth import Day
from benchmarks.year.growth import Size
from benchmarks.year.report import days_table
from benchmarks.year.report import tables_table
from benchmarks.year.simulation import Year
from benchmarks.year.written import QUEUE

#: How a run may stand when five days are over.
STANDING = {
    *(("order", "completed"), ("dunning", "failed"), ("trial", "sleeping"), ("trial", "completed")),
    *(("approval", "waiting"), ("approval", "completed"), ("batch", "completed")),
}

TABLES = {
    "runs": "SELECT r.* FROM workflow_runs r",
    "steps": "SELECT s.*, r.workflow FROM workflow_steps s JOIN workflow_runs r ON r.id = s.run_id",
    "waits": "SELECT w.*, r.workflow FROM workflow_waits w JOIN workflow_runs r ON r.id = w.run_id",
    "state": "SELECT s.*, r.workflow FROM workflow_state s JOIN workflow_runs r ON r.id = s.run_id",
    "ends": "SELECT e.* FROM workflow_events e JOIN workflow_runs r ON r.id = e.delivery_id",
    "answers": "SELECT e.* FROM workflow_steps s JOIN workflow_runs r ON r.id = s.run_id "
    "JOIN workflow_events e ON e.seq = s.event_seq",
}


@pytest.fixture
def year(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Year]:
    # Of every workflow on every day.
    monkeypatch.setattr(simulation, "EXECUTED", STARTED)
    # The first trial then sleeps four days.
    monkeypatch.setattr(simulation, "FIRST_EXECUTED", STARTED * LONGEST * 7_000)
    with closing(Year(Database(sa.make_url(database_url).get_backend_name(), database_url), 400)) as made:
        yield made


def test_written_runs_are_as_the_engine_leaves_them(year: Year) -> None:
    days = list(year.days(5))

    assert [day.number for day in days] == [5]
    with year.app.app_context(), db.engine.connect() as connection:
        for table, query in TABLES.items():
            executed, written = (_shapes(connection, query, queue) for queue in ("default", QUEUE))
            assert executed <= written, table
            assert executed, table
        standing = _standing(connection, "default")
        assert standing == STANDING
        assert standing <= _standing(connection, QUEUE)
        overdue = "SELECT count(*) FROM workflow_runs WHERE due_at < :now"
        last = year.runtime.store.now() - simulation.SLOT.total_seconds() * 1000
        assert connection.execute(sa.text(overdue), {"now": last}).scalar_one() == 0


def _standing(connection: sa.Connection, queue: str) -> set[tuple[str, str]]:
    query = sa.text("SELECT DISTINCT workflow, status FROM workflow_runs WHERE queue = :queue")
    return {(workflow, status) for workflow, status in connection.execute(query, {"queue": queue})}


def _shapes(connection: sa.Connection, query: str, queue: str) -> set[str]:
    """The rows of runs on a queue, without what tells one run from the next."""
    rows = connection.execute(sa.text(f"{query} WHERE r.queue = :queue"), {"queue": queue}).mappings()
    return {_shape(dict(row)) for row in rows}


def _shape(row: dict[str, object]) -> str:
    row.pop("queue", None)
    # Of a wait the last event before it, none for written ones; and its hash, which is one for those executed.
    row["after_seq"] = row["values_hash"] = None
    return re.sub(r"\d{4,}", "N", re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", _numbers(str(row))))


def _numbers(text: str) -> str:
    text = re.sub(r'("number":|"output": ?|"seq":|order )\d+', r"\1N", text)
    return re.sub(
        r"('output': '|'value': '|'event_seq': |'seq': |\"ms\": ?)\d+", r"\1N", re.sub(r"\d+:\d+:[\d,]*", "SNAP", text)
    )


DAYS = [
    Day(
        number,
        {"workflow_runs": Size(1_000 * number, number, 2**20, {"pkey": 2**19})},
        0,
        10,
        0.5,
        [1.0, 2.0],
        [0.5, 0.5],
    )
    for number in (30, 60, 65)
]


def test_the_tables_show_some_days_and_the_last() -> None:
    rows = [line.split("|") for line in days_table(DAYS).splitlines()]

    assert [row[1].strip() for row in rows[2:]] == ["30", "60", "65"]
    assert [cell.strip() for cell in rows[-1][2:9]] == ["65,000", "1", "0", "65", "10", "0.50", "1.50"]
    assert "| 65,000 | 60,000 |" in re.sub(" +", " ", tables_table(DAYS, {}))


def test_a_report_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "growth.md"
    page.write_text("# Growth\n\n<!-- sqlite -->\n<!-- end -->\n\n<!-- other -->\n<!-- end -->\n")

    for report in ("old", r"new \1"):
        publish(tmp_path, "sqlite", report, DAYS)

    written = "# Growth\n\n<!-- sqlite -->\n\nnew \\1\n\n<!-- end -->\n\n<!-- other -->\n<!-- end -->\n"
    assert page.read_text() == written
    picture = ElementTree.parse(tmp_path / "pictures" / "growth-sqlite.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(str(line.get("points")).split()) for line in lines] == [3] * 6
    with pytest.raises(SystemExit, match="has no <!-- postgresql -->"):
        publish(tmp_path, "postgresql", "new", DAYS)


@pytest.mark.parametrize("arguments", [["--days", "4"], ["--days", "x"], ["--runs-per-day", "999"]])
def test_too_small_a_year_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)

    assert raised.value.code == 2
    assert "at least" in capsys.readouterr().err
