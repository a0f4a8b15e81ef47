"""How long the dashboard's own readings take, in this process."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

#: Upper bounds in seconds; a reading is broken off after two.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    #: How many took at most so many seconds, by bound; the last is all there were.
    counts: tuple[tuple[str, int], ...]
    seconds: float


class Timings:
    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count how long what stands in the `with` takes, failed or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(time.monotonic() - began)

    def add(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def histogram(self) -> Histogram:
        with self._lock:
            counts, seconds = list(self._counts), self._seconds
        bounds = [*map(str, BUCKETS), "+Inf"]
        return Histogram(tuple(zip(bounds, accumulate(counts), strict=True)), seconds)
