"""What was measured of ours and of the peers in the same rounds, and our multiple of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.figures import markdown
from benchmarks.figures import number
from benchmarks.figures import three

BEST = "the best peer"


@dataclass(frozen=True)
class Comparison:
    """One thing measured once a round of each; all sequences go by the rounds."""

    scenario: str
    database: str
    what: str
    unit: str
    engine: str
    samples: Sequence[float]
    peers: Mapping[str, Sequence[float]]

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def best(self) -> list[float]:
        """The best of the peers in each round."""
        choose = max if self.is_rate else min
        return [choose(values) for values in zip(*self.peers.values(), strict=True)]

    def multiples(self, theirs: Sequence[float]) -> list[float]:
        """How many times as fast as theirs ours is, round by round."""
        pairs = zip(self.samples, theirs, strict=True)
        return [ours / other if self.is_rate else other / ours for ours, other in pairs]

    def record(self) -> dict[str, Any]:
        """The comparison for a JSON file."""
        return {
            "scenario": self.scenario,
            "database": self.database,
            "what": self.what,
            "unit": self.unit,
            "engine": self.engine,
            "samples": list(self.samples),
            "peers": {
                name: {"samples": list(samples), "multiples": self.multiples(samples)}
                for name, samples in self.peers.items()
            },
            "multiples of the best": self.multiples(self.best) if self.peers else [],
        }

    def rows(self) -> list[list[str]]:
        others = dict(self.peers)
        if len(others) > 1:
            others[BEST] = self.best
        head = [self.scenario, self.database, self.what, self.unit]
        rows = [[*head, self.engine, *three(self.samples, number), *["-"] * 3]]
        for name, samples in others.items():
            rows.append([*head, name, *three(samples, number), *three(self.multiples(samples), _times)])

        return rows

    def __str__(self) -> str:
        peers = ", ".join(f"{_times(median(self.multiples(samples)))} {name}" for name, samples in self.peers.items())
        ours = f"{self.engine} {number(median(self.samples))} {self.unit}"
        return f"{self.scenario}  {self.database}  {self.what}: {ours}{' = ' if peers else ''}{peers}"


_HEAD = ["", "database", "figure", "unit", "engine", "min", "median", "max", "ours is: min", "median", "max"]


def table(comparisons: Iterable[Comparison]) -> str:
    """All of them as a Markdown table, a row for each engine."""
    return markdown([_HEAD, *(row for comparison in comparisons for row in comparison.rows())], left=5)


def _times(value: float) -> str:
    return f"{value:.1f} x" if value >= 1 else f"{value:.2f} x"
