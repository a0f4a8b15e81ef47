"""Where on a line of time the attempts and waits of a run's steps lie.

A run may work for seconds in a life of weeks. Stretches in which no step executes are drawn no longer than a fair
share of the work beside them, and marked where they were cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from statistics import median

from ..runs import Step

#: Narrower bars cannot be seen. In percent, as all places and widths here.
NARROWEST = 0.6

_WAITS = ("sleep", "wait", "receive", "result", "start")


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time; `kind` is a status, or "backoff" between two attempts."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The bars of each step, by its number, and where waits were cut short."""

    bars: dict[int, tuple[Bar, ...]]
    cuts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    kind: str
    start: datetime
    end: datetime

    @property
    def works(self) -> bool:
        return self.kind in ("completed", "failed", "running")


def draw(steps: Sequence[Step], *, now: datetime, shorten: bool = True) -> Timeline | None:
    """The timeline of steps in order; null where there is nothing to compare. Waits are cut short unless told."""
    spans = {step.number or step.position: tuple(_spans(step, now)) for step in steps}
    every = [span for row in spans.values() for span in row]
    if len(every) < 2:
        return None
    scale = _Scale(every, shorten)
    return Timeline({number: tuple(map(scale.bar, row)) for number, row in spans.items()}, scale.cuts)


def _spans(step: Step, now: datetime) -> Iterator[_Span]:
    if step.status == "pushed":
        return
    if step.kind in _WAITS:
        if step.started_at is not None:
            kind = "waiting" if step.kind in ("wait", "receive", "result") else "sleeping"
            yield _span(kind, step.started_at, step.finished_at or now)
        return

    resumes = None
    for attempt in step.earlier:
        if attempt.started_at is None or attempt.finished_at is None:
            continue
        if resumes is not None:
            yield _span("backoff", resumes, attempt.started_at)
        yield _span("failed", attempt.started_at, attempt.finished_at)
        resumes = attempt.finished_at
    if step.status == "retrying":
        # The attempt that failed last is among the earlier ones already.
        if resumes is not None:
            yield _span("backoff", resumes, now)
    elif step.started_at is not None:
        if resumes is not None:
            yield _span("backoff", resumes, step.started_at)
        yield _span(step.status, step.started_at, step.finished_at or now)


def _span(kind: str, start: datetime, end: datetime) -> _Span:
    return _Span(kind, start, max(start, end))


class _Scale:
    """From instants to percent."""

    def __init__(self, spans: Iterable[_Span], shorten: bool) -> None:
        spans = list(spans)
        begin, end = min(span.start for span in spans), max(span.end for span in spans)
        pieces = list(_pieces(_merged(span for span in spans if span.works), begin, end))
        longest = _longest_wait([length for length, works in pieces if works]) if shorten else None

        self._edges = [begin]
        self._places = [0.0]
        cut_at = []
        for length, works in pieces:
            drawn = length if works or longest is None else min(length, longest)
            if drawn < length:
                cut_at.append(self._places[-1] + drawn.total_seconds() / 2)
            self._edges.append(self._edges[-1] + length)
            self._places.append(self._places[-1] + drawn.total_seconds())
        self._total = self._places[-1] or 1.0
        self.cuts = tuple(round(place / self._total * 100, 2) for place in cut_at)

    def bar(self, span: _Span) -> Bar:
        x = min(self._place(span.start), 100 - NARROWEST)
        return Bar(span.kind, round(x, 2), round(max(self._place(span.end) - x, NARROWEST), 2))

    def _place(self, at: datetime) -> float:
        index = min(bisect_right(self._edges, at), len(self._edges) - 1) - 1
        left, right = self._edges[index], self._edges[index + 1]
        share = (at - left) / (right - left) if right > left else 0.0
        seconds = self._places[index] + share * (self._places[index + 1] - self._places[index])
        return seconds / self._total * 100


def _merged(spans: Iterable[_Span]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.start, span.end))
    return merged


def _pieces(
    works: Iterable[tuple[datetime, datetime]], begin: datetime, end: datetime
) -> Iterator[tuple[timedelta, bool]]:
    """The whole length in pieces, each with whether something executes in it."""
    last = begin
    for start, finish in works:
        if start > last:
            yield start - last, False
        yield finish - start, True
        last = finish
    if end > last or last == begin:
        yield end - last, False


def _longest_wait(works: Sequence[timedelta]) -> timedelta | None:
    """How long a stretch without work is drawn; null where there is no work to measure it by."""
    total = sum(works, timedelta())
    if not total:
        return None
    typical = timedelta(seconds=median(work.total_seconds() for work in works))
    return max(2 * typical, total / 4)
