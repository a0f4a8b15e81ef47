"""Metrics for Prometheus, through its own client where that is installed.

They count the runs of all workspaces, and no run has a label of its own. What took too long to read, or was more than a
scrape looks at, is left out or a lower bound, and `workflows_metrics_incomplete` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from typing import TypeVar

import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..errors import ReadTimeout
from ..explain import PATIENCE
from ..runs import LIVE
from ..runs import RunStats
from ..runs import RunStatus
from ..store import reading as read
from ..store.reading.metrics import Due
from ..store.reading.metrics import LiveRuns
from ..store.reading.metrics import OldestWaits
from .timings import Histogram

T = TypeVar("T")

Reading = Callable[[], AbstractContextManager[sa.Connection]]

ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)

#: A worker that missed a heartbeat is late; one that is silent for longer than three is lost.
_LATE = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Known:
    """What is declared, or served: it has zeros where nothing was counted."""

    queues: Sequence[str]
    workflows: Sequence[str]
    events: Sequence[str]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was read; null where it took too long."""

    now: datetime
    due: Due | None
    live: LiveRuns | None
    waits: OldestWaits | None
    workers: tuple[datetime, ...] | None
    finished: tuple[RunStats, ...] | None

    @property
    def incomplete(self) -> bool:
        parts = (self.due, self.live, self.waits)
        return None in (self.workers, self.finished) or any(part is None or part.capped for part in parts)


def measure(reading: Reading, now_of: Callable[[sa.Connection], datetime]) -> Measured:
    """Read everything, each part by itself: one that takes too long does not take the others with it."""
    with reading() as connection:
        now = now_of(connection)
    return Measured(
        now,
        due=_within_time(reading, lambda connection: read.measure_due(connection, now, patience=PATIENCE)),
        live=_within_time(reading, read.measure_live),
        waits=_within_time(reading, read.measure_waits),
        workers=_within_time(reading, lambda connection: read.workers_seen(connection, now)),
        finished=_within_time(reading, read.total_stats),
    )


def _within_time(reading: Reading, look: Callable[[sa.Connection], T]) -> T | None:
    try:
        with reading() as connection:
            return look(connection)
    except ReadTimeout:
        return None


def exposition(measured: Measured, known: Known, timings: Histogram, accept: str) -> tuple[bytes, str]:
    """The text that a scraper reads, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkflowsCollector(measured, known, timings))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class WorkflowsCollector(Collector):
    """Gives one measuring to one scrape."""

    def __init__(self, measured: Measured, known: Known, timings: Histogram) -> None:
        self._measured = measured
        self._known = known
        self._timings = timings

    def collect(self) -> Iterator[Metric]:
        measured = self._measured
        if measured.due is not None:
            yield from self._due(measured.due)
        if measured.live is not None:
            yield self._live(measured.live)
        if measured.waits is not None:
            yield self._waits(measured.waits)
        if measured.workers is not None:
            yield self._workers(measured.workers)
        if measured.finished is not None:
            yield from self._finished(measured.finished)
        yield self._queries()
        yield GaugeMetricFamily(
            "workflows_metrics_incomplete",
            "1 where a count is a lower bound, or took too long and is missing",
            value=float(measured.incomplete),
        )

    def _due(self, due: Due) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "workflows_queue_oldest_age_seconds",
            "For how long the run that waits longest for a worker has waited, by queue",
            labels=["queue"],
        )
        # What lies beyond those that were looked at is not known to be zero.
        idle = () if due.capped else set(self._known.queues) - due.oldest.keys()
        for queue in sorted({*due.oldest, *idle}):
            family.add_metric([queue], self._age(due.oldest.get(queue)))
        yield family
        yield GaugeMetricFamily(
            "workflows_timers_overdue",
            "Sleeping runs that should have woken more than 10 seconds ago",
            value=due.overdue_timers,
        )

    def _age(self, since: datetime | None) -> float:
        return 0.0 if since is None else max((self._measured.now - since).total_seconds(), 0.0)

    def _live(self, live: LiveRuns) -> Metric:
        family = GaugeMetricFamily("workflows_runs", "Unfinished runs, by status and queue", labels=["status", "queue"])
        queues = sorted({*self._known.queues, *(queue for _, queue in live.counts)})
        for status in LIVE:
            for queue in queues:
                family.add_metric([status.value, queue], live.counts.get((status, queue), 0))
        return family

    def _waits(self, waits: OldestWaits) -> Metric:
        family = GaugeMetricFamily(
            "workflows_waits_oldest_seconds",
            "For how long the run that waits longest for an event has waited, by event",
            labels=["event"],
        )
        idle = () if waits.capped else set(self._known.events) - waits.since.keys()
        for event in sorted({*waits.since, *idle}):
            family.add_metric([event], self._age(waits.since.get(event)))
        return family

    def _workers(self, seen: Sequence[datetime]) -> Metric:
        family = GaugeMetricFamily(
            "workflows_workers", "Worker processes that did not say goodbye, by state", labels=["state"]
        )
        counts = dict.fromkeys(("live", "late", "lost"), 0)
        for at in seen:
            silence = self._measured.now - at
            counts["live" if silence <= _LATE else "late" if silence <= read.WORKER_SILENCE else "lost"] += 1
        for state, count in counts.items():
            family.add_metric([state], count)
        return family

    def _finished(self, finished: Sequence[RunStats]) -> Iterator[Metric]:
        counts = {(stats.workflow, stats.outcome): stats.count for stats in finished}
        workflows = sorted({*self._known.workflows, *(stats.workflow for stats in finished)})
        ended = CounterMetricFamily(
            "workflows_runs_finished", "Runs that ended, by workflow and outcome", labels=["workflow", "outcome"]
        )
        lost = CounterMetricFamily(
            "workflows_leases_lost", "Runs taken over from a worker that was lost, by workflow", labels=["workflow"]
        )
        for workflow in workflows:
            for outcome in ENDED:
                ended.add_metric([workflow, outcome.value], counts.get((workflow, outcome.value), 0))
            lost.add_metric([workflow], counts.get((workflow, "lost"), 0))
        yield ended
        yield lost

    def _queries(self) -> Metric:
        family = HistogramMetricFamily(
            "workflows_dashboard_query_seconds",
            "How long the dashboard's readings of the database took, in the process that answers",
            labels=["pid"],
        )
        family.add_metric([str(os.getpid())], buckets=list(self._timings.counts), sum_value=self._timings.seconds)
        return family
