"""Lines over days as an SVG picture, light or dark as its reader likes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 132, 34, 26

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600 }
.grid { stroke: #ddd }
polyline { fill: none; stroke-width: 1.8 }
.line0 { stroke: #2563eb } .line1 { stroke: #d97706 } .line2 { stroke: #059669 } .line3 { stroke: #9333ea }
text.line0 { stroke: none; fill: #2563eb } text.line1 { stroke: none; fill: #b45309 }
text.line2 { stroke: none; fill: #047857 } text.line3 { stroke: none; fill: #9333ea }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .grid { stroke: #444 }
  text.line0 { fill: #60a5fa } text.line1 { fill: #fbbf24 } text.line2 { fill: #34d399 } text.line3 { fill: #c084fc }
}
"""


@dataclass(frozen=True)
class Line:
    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Some lines on one scale, which begins at 0."""

    title: str
    lines: Sequence[Line]


def svg(days: Sequence[int], panels: Sequence[Panel]) -> str:
    """One panel below the other, all over the same days."""
    height = HEIGHT * len(panels)
    drawn = "".join(_panel(days, panel, HEIGHT * number) for number, panel in enumerate(panels))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n{drawn}</svg>\n'


def _panel(days: Sequence[int], panel: Panel, top: int) -> str:
    step = _step(max(max(line.values) for line in panel.lines))
    most = step * 4
    bottom = top + HEIGHT - BOTTOM
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(day: int) -> float:
        return LEFT + across * day / days[-1]

    def y(value: float) -> float:
        return bottom - down * value / most

    parts = [_text(LEFT, top + 18, panel.title, "title")]
    for number in range(5):
        at = y(step * number)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>\n')
        parts.append(_text(LEFT - 6, at + 4, f"{step * number:g}", anchor="end"))
    for day in range(0, days[-1] + 1, max(days[-1] // 60 * 10, 10)):
        parts.append(_text(x(day), bottom + 17, f"day {day}", anchor="middle"))
    lowest = bottom + 13.0
    for number, line in sorted(enumerate(panel.lines), key=lambda each: each[1].values[-1]):
        points = " ".join(f"{x(day):.1f},{y(value):.1f}" for day, value in zip(days, line.values, strict=True))
        parts.append(f'<polyline class="line{number}" points="{points}"/>\n')
        # Names stand at the ends of their lines, and above one another where these are close.
        lowest = min(y(line.values[-1]) + 4, lowest - 13)
        parts.append(_text(WIDTH - RIGHT + 6, lowest, line.name, f"line{number}"))
    return "".join(parts)


def _step(most: float) -> float:
    """A round number, four of which reach so far."""
    step = 10.0**-3
    while True:
        for factor in (1, 2, 2.5, 5):
            if step * factor * 4 >= most:
                return step * factor
        step *= 10


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{chosen}>{escape(words)}</text>\n'
