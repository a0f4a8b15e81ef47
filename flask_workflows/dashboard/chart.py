"""How much was done, as bars over the hours: completed runs above a line, failed ones below it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

#: The drawing's size in its own units; it is stretched to the page's width.
WIDTH = 960
HEIGHT = 120
THINNEST = 3


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Slot:
    """A stretch of time, what ended in it, and its bars; null where there were none."""

    start: datetime
    end: datetime
    completed: int
    failed: int
    above: Bar | None
    below: Bar | None

    @property
    def empty(self) -> bool:
        return not self.completed and not self.failed


@dataclass(frozen=True, slots=True)
class Chart:
    slots: tuple[Slot, ...]
    #: Where the line between the bars lies.
    line: float

    @property
    def completed(self) -> int:
        return sum(slot.completed for slot in self.slots)

    @property
    def failed(self) -> int:
        return sum(slot.failed for slot in self.slots)


def draw(edges: Sequence[datetime], completed: Mapping[datetime, int], failed: Mapping[datetime, int]) -> Chart:
    """The chart of the stretches between the edges; the numbers are by the starts of the stretches."""
    most_above = max((completed.get(start, 0) for start in edges[:-1]), default=0)
    most_below = max((failed.get(start, 0) for start in edges[:-1]), default=0)
    scale = (HEIGHT - 1) / max(most_above + most_below, 1)
    # However few there are of the one beside the other, their bars can be seen.
    highest = HEIGHT - 1 - (THINNEST if most_below else 0)
    line = round(min(max(most_above * scale, THINNEST if most_above else 0), highest), 1)
    step = WIDTH / max(len(edges) - 1, 1)
    slots = []
    for number, (start, end) in enumerate(pairwise(edges)):
        above, below = completed.get(start, 0), failed.get(start, 0)
        x, width = round(number * step + step * 0.1, 1), round(step * 0.8, 1)
        up, down = _height(above, scale, line), _height(below, scale, HEIGHT - 1 - line)
        slots.append(
            Slot(
                start,
                end,
                above,
                below,
                Bar(x, round(line - up, 1), width, up) if up else None,
                Bar(x, round(line + 1, 1), width, down) if down else None,
            )
        )
    return Chart(tuple(slots), line)


def _height(value: int, scale: float, most: float) -> float:
    return round(min(max(value * scale, THINNEST), most), 1) if value else 0
