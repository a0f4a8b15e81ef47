"""Whether all is well, by rules: one sentence, the rest after it.

Pure: everything known comes in, nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from statistics import median

from .. import phrases
from ..explain import Instant
from ..explain import Name
from ..explain import PATIENCE
from ..explain import Surroundings
from ..explain import Text
from ..explain import work_command
from ..runs import Due
from ..runs import DueGroup
from ..runs import in_ranges
from ..runs import RunningQueue
from ..runs import RunStatus
from ..runs import Worker

#: A queue none of whose runs moved for this long is stalled.
STALLED_AFTER = timedelta(minutes=5)
#: Longer than this, due runs wait for a free thread.
BACKLOG_AFTER = timedelta(seconds=60)
#: So many times the usual number of failures an hour are too many, where there are at least `FEW_FAILURES`.
TOO_MANY = 3
FEW_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """`good` where no rule found anything. `others` are what was found beside the headline."""

    good: bool
    headline: Text
    others: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """Due runs that no live worker can take, and what helps. Null says that it does not matter which."""

    count: int
    oldest: datetime
    queue: str | None = None
    workflow: str | None = None
    version: int | None = None
    #: Neither this app's code nor a live worker's has the workflow.
    orphan: bool = False
    #: This app's code can run it, so that a restart of the workers helps.
    here: bool = False

    @property
    def what(self) -> Text:
        if self.orphan:
            return ("No workflow named ", Name(self.workflow or ""), " is in this app's code")
        if self.version is not None:
            return (f"No live worker runs version {self.version} of ", Name(self.workflow or ""))
        if self.workflow is not None:
            return ("No live worker knows ", Name(self.workflow))
        if self.queue is not None:
            return ("No live worker serves queue ", Name(self.queue))
        return ("No worker is live",)

    @property
    def help(self) -> Text:
        if self.orphan:
            return ("Cancel its runs, or bring its code back.",)
        if self.version is not None or self.workflow is not None:
            if self.here:
                return ("This app's code has it: restart the workers.",)
            return ("Start one whose code has it.",)
        return ("Start one: ", Name(work_command(self.queue)))


def gaps(due: Due, around: Surroundings) -> tuple[Gap, ...]:
    """What is due and cannot be taken by any live worker, the longest due first, and last what has no code."""
    found: dict[tuple[str | None, str | None, int | None], Gap] = {}
    for group in due.groups:
        gap = _gap(group, around)
        if gap is None:
            continue
        key = (gap.queue, gap.workflow, gap.version)
        known = found.get(key)
        if known is not None:
            gap = Gap(
                known.count + gap.count, min(known.oldest, gap.oldest), *key, orphan=known.orphan, here=known.here
            )
        found[key] = gap
    return tuple(sorted(found.values(), key=lambda gap: (gap.orphan, gap.oldest)))


def _gap(group: DueGroup, around: Surroundings) -> Gap | None:
    count, oldest, workflow = group.count, group.oldest, group.workflow
    unknown = around.known is not None and workflow not in around.known
    if unknown and not any(worker.versions(workflow) for worker in around.workers):
        return Gap(count, oldest, workflow=workflow, orphan=True)
    if not around.workers:
        return Gap(count, oldest)
    serving = [worker for worker in around.workers if worker.serves(group.queue)]
    if not serving:
        return Gap(count, oldest, queue=group.queue)
    ranges = [versions for worker in serving for versions in worker.versions(workflow)]
    here = in_ranges(group.version, (around.known or {}).get(workflow, ()))
    if not ranges:
        return Gap(count, oldest, workflow=workflow, here=here)
    if not in_ranges(group.version, ranges):
        return Gap(count, oldest, workflow=workflow, version=group.version, here=here)
    return None


def verdict(
    due: Due | None,
    running: Sequence[RunningQueue] | None,
    failures: Mapping[datetime, int] | None,
    around: Surroundings,
) -> Verdict:
    """What the rules say. Null stands for what took too long to read.

    `failures` are the failed runs of each of the last hours by the instant at which it ends, the last hour included.
    """
    found = [
        *_nobody(due, around),
        *_stalled(running or (), around.now),
        *_overdue(due, around),
        *_backlogs(due, around),
        *_failures(failures or {}),
    ]
    if found:
        return Verdict(False, found[0], tuple(found[1:]))
    if due is None or running is None:
        return Verdict(False, ("Nobody knows: the database took over 2 s to say what is due.",))
    return Verdict(True, _all_good(due, running, around.workers))


def _all_good(due: Due, running: Sequence[RunningQueue], workers: Sequence[Worker]) -> Text:
    number = sum(queue.count for queue in running)
    pending = [group.oldest for group in due.groups if group.status is RunStatus.PENDING]
    if pending:
        return (f"All good. {phrases.number(number)} running, oldest pending for ", Instant(min(pending), "for"), ".")
    if number:
        return (f"All good. {phrases.number(number)} running, none pending.",)
    return ("All good. Nothing is due" + ("." if workers else ", and no worker is live."),)


def _nobody(due: Due | None, around: Surroundings) -> Iterator[Text]:
    for gap in () if due is None else gaps(due, around):
        runs = f"; {_runs(gap.count, due)} {'waits' if gap.count == 1 else 'wait'}, the oldest for "
        yield (*gap.what, runs, Instant(gap.oldest, "for"), ". ", *gap.help)


def _runs(count: int, due: Due | None) -> str:
    if due is not None and due.cut:
        return f"{phrases.count(count, capped=True)} runs"
    return phrases.several(count, "run")


def _stalled(running: Sequence[RunningQueue], now: datetime) -> Iterator[Text]:
    for queue in running:
        if queue.count and now - queue.moved_at > STALLED_AFTER:
            since = Instant(queue.moved_at, "for")
            number = phrases.number(queue.count)
            yield (
                "Queue ",
                Name(queue.queue),
                f" is stalled: {number} running, no step began or ended for ",
                since,
                ".",
            )


def _taken(due: Due | None, around: Surroundings) -> Iterator[DueGroup]:
    """The groups that some live worker can take."""
    for group in () if due is None else due.groups:
        if _gap(group, around) is None:
            yield group


def _overdue(due: Due | None, around: Surroundings) -> Iterator[Text]:
    late = [
        group
        for group in _taken(due, around)
        if group.status in (RunStatus.SLEEPING, RunStatus.WAITING) and around.now - group.oldest > PATIENCE
    ]
    if late:
        oldest = min(group.oldest for group in late)
        words = f"{_times(sum(group.count for group in late), due)} overdue, the oldest since "
        yield (words, Instant(oldest), ", ", Instant(oldest, "ago"), ".")


def _times(count: int, due: Due | None) -> str:
    number = phrases.count(count, capped=due is not None and due.cut)
    return f"{number} {'timer or time-out is' if count == 1 else 'timers or time-outs are'}"


def _backlogs(due: Due | None, around: Surroundings) -> Iterator[Text]:
    oldest: dict[str, datetime] = {}
    counts: dict[str, int] = {}
    for group in _taken(due, around):
        if group.status is RunStatus.PENDING:
            oldest[group.queue] = min(oldest.get(group.queue, group.oldest), group.oldest)
            counts[group.queue] = counts.get(group.queue, 0) + group.count
    for queue, at in sorted(oldest.items(), key=lambda item: item[1]):
        if around.now - at > BACKLOG_AFTER:
            threads = sum(worker.concurrency for worker in around.workers if worker.serves(queue))
            served = f"; {phrases.several(threads, 'thread')} {'serves' if threads == 1 else 'serve'} it."
            words = f" has a backlog: {_runs(counts[queue], due)} due, the oldest for "
            yield ("Queue ", Name(queue), words, Instant(at, "for"), served)


def _failures(hours: Mapping[datetime, int]) -> Iterator[Text]:
    if len(hours) < 2:
        return
    last = max(hours)
    usual = median(count for hour, count in hours.items() if hour != last)
    if hours[last] >= FEW_FAILURES and hours[last] > TOO_MANY * usual:
        number = phrases.several(hours[last], "run")
        yield (f"{number} failed in the last hour; {phrases.number(round(usual))} is usual.",)
