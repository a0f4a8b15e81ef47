"""What was measured, beside what it should come to."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Target:
    """What the median of a figure should come to, or, with `share`, the median of its shares of the limit."""

    value: float
    share: bool = False
    at_most: bool = False


@dataclass(frozen=True)
class Figure:
    """One thing measured several times; `limits`, if any, were measured between the samples, one for each.

    `wanted` is what the figure has to come to, `aim` what is to be reached beyond that.
    """

    scenario: str
    database: str
    what: str
    unit: str
    samples: Sequence[float]
    limits: Sequence[float] = ()
    wanted: Target | None = None
    aim: Target | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def shares(self) -> list[float]:
        """Each sample as a share of the limit beside it, in per cent; of times, how many times the limit it is."""
        scale = 100 if self.is_rate else 1
        return [scale * sample / limit for sample, limit in zip(self.samples, self.limits, strict=False)]

    def meets(self, target: Target) -> bool:
        value = median(self.shares if target.share else self.samples)
        return value <= target.value if target.at_most else value >= target.value

    def record(self) -> dict[str, Any]:
        """The figure for a JSON file."""
        return {
            "scenario": self.scenario,
            "database": self.database,
            "what": self.what,
            "unit": self.unit,
            "samples": list(self.samples),
            "limits": list(self.limits),
            "shares": self.shares,
            "median": median(self.samples),
            "wanted": self._verdict(self.wanted),
            "aim": self._verdict(self.aim),
        }

    def row(self) -> list[str]:
        return [
            self.scenario,
            self.database,
            self.what,
            self.unit,
            *three(self.samples, number),
            number(median(self.limits)) if self.limits else "-",
            *(three(self.shares, self._share) if self.limits else ["-"] * 3),
            self._said(self.wanted),
            self._said(self.aim),
        ]

    def _share(self, value: float) -> str:
        return f"{value:.1f} %" if self.is_rate else f"{value:.1f} x"

    def _verdict(self, target: Target | None) -> dict[str, Any] | None:
        return None if target is None else {**vars(target), "met": self.meets(target)}

    def _said(self, target: Target | None) -> str:
        if target is None:
            return "-"
        bound = "<=" if target.at_most else ">="
        value = self._share(target.value) if target.share else number(target.value)
        return f"{bound} {value} {'met' if self.meets(target) else 'MISSED'}"


_HEAD = [
    *("", "database", "figure", "unit", "min", "median", "max", "limit"),
    *("share min", "median", "max", "wanted", "to reach"),
]
_LEFT = 4


def table(figures: Iterable[Figure]) -> str:
    """All figures as a Markdown table, which reads well as it stands."""
    return markdown([_HEAD, *(figure.row() for figure in figures)], left=_LEFT)


def markdown(rows: Sequence[Sequence[str]], left: int) -> str:
    """Rows, the first of which is the head, as a Markdown table; the first `left` columns are words."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths, left) for row in rows]
    rule = [("-" * width if column < left else "-" * (width - 1) + ":") for column, width in enumerate(widths)]

    return "\n".join([lines[0], _line(rule, widths, left), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = (
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"


def three(values: Sequence[float], write: Any) -> list[str]:
    return [write(min(values)), write(median(values)), write(max(values))]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
