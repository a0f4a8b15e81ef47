"""What a year came to: two tables, and the panels of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from statistics import median
from statistics import quantiles

from benchmarks.figures import markdown
from benchmarks.figures import number
from benchmarks.year.growth import Day
from benchmarks.year.growth import Size
from benchmarks.year.plot import Line
from benchmarks.year.plot import Panel

SHOWN = (30, 60, 90, 180, 270)
_MB = 1024 * 1024

_DAYS = (
    *("day", "runs", "tables, MB", "indexes, MB", "dead rows", "pruned that day", "in s"),
    *("claim of 32, p50", "p95, ms", "nothing due, p50", "p95, ms"),
)


def days_table(days: Sequence[Day]) -> str:
    """Some days and the last; claims are those of the days since the one looked at before."""
    shown = [day for day in days if day.number in SHOWN or day is days[-1]]
    return markdown([_DAYS, *(_day(day) for day in shown)], left=0)


def _day(day: Day) -> list[str]:
    claims = [number(value) for found in (day.due, day.idle) for value in (_p50(found), _p95(found))]
    sizes = [f"{day.heap / _MB:,.0f}", f"{day.indexes / _MB:,.0f}", f"{day.dead:,}"]
    return [
        str(day.number),
        f"{day.tables['workflow_runs'].rows:,}",
        *sizes,
        f"{day.pruned:,}",
        number(day.prune_seconds),
        *claims,
    ]


def tables_table(days: Sequence[Day], vacuums: Mapping[str, int]) -> str:
    """Each table 60 days after the beginning, when pruning has gone on for a month, and at the end."""
    then = next((day for day in days if day.number >= 60), days[0])
    now = days[-1]
    head = [
        "table",
        "rows",
        f"on day {then.number}",
        "MB with its indexes",
        f"on day {then.number}",
        "largest index, MB",
    ]
    rows = [[*head, "vacuumed"] if vacuums else head]
    for name, size in now.tables.items():
        before = then.tables[name]
        largest = max(size.indexes.values()) / _MB
        sizes = [f"{_whole(size):,.1f}", f"{_whole(before):,.1f}", f"{largest:,.1f}"]
        row = [f"`{name}`", f"{size.rows:,}", f"{before.rows:,}", *sizes]
        rows.append([*row, str(vacuums[name])] if vacuums else row)
    return markdown(rows, left=1)


def panels(days: Sequence[Day]) -> list[Panel]:
    sizes = [Line("tables", [day.heap / _MB for day in days]), Line("indexes", [day.indexes / _MB for day in days])]
    if any(day.free for day in days):
        sizes.append(Line("free in the file", [day.free / _MB for day in days]))
    found = [Panel("size, MB", sizes)]
    if any(day.dead for day in days):
        found.append(Panel("dead rows at the end of the day, thousands", [_thousands("all tables", days)]))
    due = [Line("32 due, p50", [_p50(day.due) for day in days]), Line("32 due, p95", [_p95(day.due) for day in days])]
    idle = [Line("nothing due, p50", [_p50(day.idle) for day in days])]
    return [*found, Panel("claim, ms", [*due, *idle])]


def _thousands(name: str, days: Sequence[Day]) -> Line:
    return Line(name, [day.dead / 1000 for day in days])


def _whole(size: Size) -> float:
    return (size.heap + sum(size.indexes.values())) / _MB


def _p50(found: Sequence[float]) -> float:
    return median(found)


def _p95(found: Sequence[float]) -> float:
    return quantiles(found, n=20)[-1]
