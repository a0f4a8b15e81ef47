"""The workflows, steps and events that are declared, and what the database has of them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ... import phrases
from ...definition import Step
from ...definition import Workflow
from ...events import EventType
from ...explain import Name
from ...explain import Text
from ...runs import Count
from ...runs import in_ranges
from ...runs import Unfinished
from ...runs import Worker
from ...runtime import Runtime
from .. import declarations
from ..declarations import Parameter
from .run import Fact


@dataclass(frozen=True, slots=True)
class Ended:
    """How many runs ended in the last 24 hours, in which way."""

    completed: Count
    failed: Count
    cancelled: Count

    @property
    def words(self) -> str:
        counts = ((self.completed, "completed"), (self.failed, "failed"), (self.cancelled, "cancelled"))
        some = [f"{phrases.count(count.value, capped=count.capped)} {word}" for count, word in counts if count.value]
        return ", ".join(some) + self._share if some else "none"

    @property
    def _share(self) -> str:
        """Of those that ran to an end, how many failed."""
        ran = self.completed.value + self.failed.value
        if not self.failed.value or self.completed.capped or self.failed.capped:
            return ""
        return f" ({phrases.share(self.failed.value, ran)} failed)"


NONE_ENDED = Ended(Count(0), Count(0), Count(0))


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow in the list; what was counted is null where counting took too long."""

    name: str
    description: str
    place: str
    versions: str
    queue: str
    unfinished: Count | None
    workers: int
    #: Null where that is not known.
    ended: Ended | None


@dataclass(frozen=True, slots=True)
class Orphan:
    """A workflow that has runs, and no code here."""

    name: str
    versions: str
    unfinished: Count | None
    workers: int


@dataclass(frozen=True, slots=True)
class StepRow:
    name: str
    place: str
    description: str
    retry: str
    #: Errors that are not tried again.
    raises: str
    transactional: bool


@dataclass(frozen=True, slots=True)
class EventRow:
    """A declared event; `cls` is null where its payload is plain JSON."""

    name: str
    cls: str | None
    place: str
    fields: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class RegistryPage:
    workflows: tuple[WorkflowRow, ...]
    #: Null where looking for them took too long.
    orphans: tuple[Orphan, ...] | None
    steps: tuple[StepRow, ...]
    events: tuple[EventRow, ...]
    #: Modules of `WORKFLOWS_IMPORTS` that this process did not import: what they declare is not known here.
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a workflow: one that is declared, or that has unfinished runs."""

    version: int
    #: Null where it is not declared.
    place: str | None
    #: The oldest version whose runs it takes.
    takes_from: int | None
    unfinished: Count | None
    workers: int
    #: Whether it may be removed: true, false, or null where that is not known or not asked.
    removable: bool | None
    verdict: str


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    name: str
    doc: str
    #: Whether it can be started here.
    declared: bool
    #: Whether it is the package's own.
    own: bool
    facts: tuple[Fact, ...]
    parameters: tuple[Parameter, ...]
    versions: tuple[VersionRow, ...]


def registry_page(
    runtime: Runtime,
    steps: Iterable[Step[Any, Any]],
    events: Iterable[EventType],
    *,
    known: Sequence[str] | None,
    unfinished: Unfinished | None,
    workers: Sequence[Worker],
    ended: Mapping[str, Ended] | None,
    missing: Sequence[str],
) -> RegistryPage:
    """`known` are the names that have runs, null where that was not to be had, as `ended` is."""
    registry = runtime.registry
    names = registry.names()
    unknown = None if known is None else sorted({name for name in known if not registry.is_own(name)} - set(names))
    return RegistryPage(
        workflows=tuple(
            _workflow_row(
                runtime,
                registry.versions(name),
                unfinished,
                workers,
                None if ended is None else ended.get(name, NONE_ENDED),
            )
            for name in names
        ),
        orphans=None if unknown is None else tuple(_orphan(name, unfinished, workers) for name in unknown),
        steps=tuple(_step_row(runtime, step) for step in steps),
        events=tuple(_event_row(event) for event in events),
        missing=tuple(missing),
    )


def _workflow_row(
    runtime: Runtime,
    versions: Sequence[Workflow[Any, Any]],
    unfinished: Unfinished | None,
    workers: Sequence[Worker],
    ended: Ended | None,
) -> WorkflowRow:
    newest = versions[0]
    return WorkflowRow(
        name=newest.name,
        description=newest.description,
        place=declarations.place(newest.place),
        versions=", ".join(map(_range, reversed(versions))),
        queue=newest.queue or runtime.config.queue,
        unfinished=None if unfinished is None else unfinished.of(newest.name),
        workers=_able(workers, newest.name, newest.version, newest.queue or runtime.config.queue),
        ended=ended,
    )


def _range(workflow: Workflow[Any, Any]) -> str:
    older = workflow.min_version < workflow.version
    return f"{workflow.version} (takes runs from {workflow.min_version})" if older else str(workflow.version)


def _able(workers: Iterable[Worker], name: str, version: int, queue: str | None = None) -> int:
    """How many of the workers run a version, in one queue or in any."""
    return sum(
        in_ranges(version, worker.versions(name)) and (queue is None or worker.serves(queue)) for worker in workers
    )


def _orphan(name: str, unfinished: Unfinished | None, workers: Sequence[Worker]) -> Orphan:
    return Orphan(
        name=name,
        versions="" if unfinished is None else ", ".join(map(str, unfinished.versions(name))),
        unfinished=None if unfinished is None else unfinished.of(name),
        workers=sum(bool(worker.versions(name)) for worker in workers),
    )


def _step_row(runtime: Runtime, step: Step[Any, Any]) -> StepRow:
    return StepRow(
        name=step.name,
        place=declarations.place(step.place),
        description=declarations.docstring(step.function).partition("\n")[0],
        retry=declarations.retry(runtime.retry_of(step)) + declarations.time_out(step.timeout_ms),
        raises=", ".join(cls.__name__ for cls in step.raises),
        transactional=step.transactional,
    )


def _event_row(event: EventType) -> EventRow:
    cls = event.cls
    return EventRow(
        name=event.name,
        cls=None if cls is None else cls.__qualname__,
        place="" if cls is None else cls.__module__,
        fields=() if cls is None else tuple(declarations.fields(cls)),
    )


# One workflow ------------------------------------------------------------------------------


def workflow_page(
    runtime: Runtime,
    name: str,
    declared: Sequence[Workflow[Any, Any]],
    *,
    unfinished: Unfinished | None,
    recent: Sequence[int],
    workers: Sequence[Worker],
    ended: Ended | None,
) -> WorkflowPage:
    """`declared` are its versions here, the newest first; `recent` those of its newest runs."""
    newest = declared[0] if declared else None
    return WorkflowPage(
        name=name,
        doc="" if newest is None else declarations.docstring(newest.function),
        declared=newest is not None,
        own=runtime.registry.is_own(name),
        facts=(
            *(() if newest is None else _facts(runtime, newest)),
            Fact("Ended in the last 24 hours", ("not known" if ended is None else ended.words,)),
        ),
        parameters=() if newest is None else tuple(declarations.parameters(newest.codec.parameters)),
        versions=tuple(_version_rows(name, declared, unfinished, recent, workers)),
    )


def _facts(runtime: Runtime, workflow: Workflow[Any, Any]) -> Iterator[Fact]:
    config = runtime.config
    returns = workflow.function.__annotations__.get("return") if hasattr(workflow.function, "__annotations__") else None
    yield Fact("Source", (Name(declarations.place(workflow.place)),))
    yield Fact("Queue", (Name(workflow.queue or config.queue),))
    if returns is not None:
        yield Fact("Returns", (Name(declarations.written(returns)),))
    yield Fact("Attempts of the body", _attempts(config.max_attempts, config.retry_backoff_secs))
    yield Fact("Replay", ("calls must come in the recorded order" if workflow.strict else "calls are matched by key",))


def _attempts(attempts: int, backoff_secs: int) -> Text:
    if attempts == 1:
        return ("1",)
    pause = f"{backoff_secs} s more before each" if backoff_secs else "at once"
    return (f"{phrases.number(attempts)}, {pause}",)


def _version_rows(
    name: str,
    declared: Sequence[Workflow[Any, Any]],
    unfinished: Unfinished | None,
    recent: Sequence[int],
    workers: Sequence[Worker],
) -> Iterator[VersionRow]:
    ranges = {workflow.version: workflow.min_version for workflow in declared}
    places = {workflow.version: declarations.place(workflow.place) for workflow in declared}
    found = () if unfinished is None else unfinished.versions(name)
    for version in sorted({*ranges, *found, *recent}, reverse=True):
        count = None if unfinished is None else unfinished.of(name, version)
        removable, verdict = (
            may_remove(version, ranges, None if unfinished is None else _by_version(unfinished, name), unfinished)
            if version in ranges
            else (None, _undeclared(version, ranges, count))
        )
        yield VersionRow(
            version=version,
            place=places.get(version),
            takes_from=ranges.get(version),
            unfinished=count,
            workers=_able(workers, name, version),
            removable=removable,
            verdict=verdict,
        )


def _by_version(unfinished: Unfinished, name: str) -> dict[int, int]:
    return {version: count for (workflow, version), count in unfinished.counts.items() if workflow == name}


def may_remove(
    version: int, ranges: Mapping[int, int], counts: Mapping[int, int] | None, looked: Unfinished | None
) -> tuple[bool | None, str]:
    """Whether a declared version may be removed, and why. `ranges` are the declared versions and their min_version,
    `counts` the unfinished runs by version."""
    if counts is None or looked is None:
        return None, "Not known: counting took too long."
    others = {other: low for other, low in ranges.items() if other != version}
    served = [run for run in counts if resumed_by(run, ranges) == version]
    stuck = sum(counts[run] for run in served if resumed_by(run, others) is None)
    if stuck:
        return False, f"No: {_runs(stuck, looked.capped)} {'needs' if stuck == 1 and not looked.capped else 'need'} it."
    if looked.capped:
        return None, "Not known: there are more unfinished runs than were looked at."
    moving = sum(counts[run] for run in served)
    if version == max(ranges):
        return (
            (False, "No: new runs start on it.")
            if others
            else (True, "Yes, and with it the workflow: no run needs it.")
        )
    if moving:
        heirs = sorted({resumed_by(run, others) or 0 for run in served})
        return True, f"Yes: {_runs(moving, False)} would go on with version {' or '.join(map(str, heirs))}."
    return True, "Yes: no unfinished run needs it."


def resumed_by(version: int, ranges: Mapping[int, int]) -> int | None:
    """Which declared version resumes a run: its own, else the nearest newer one that takes it."""
    if version in ranges:
        return version
    newer = [declared for declared, low in ranges.items() if low <= version < declared]
    return min(newer, default=None)


def _runs(count: int, capped: bool) -> str:
    if capped:
        return f"at least {phrases.several(count, 'unfinished run')}"
    return phrases.several(count, "unfinished run")


def _undeclared(version: int, ranges: Mapping[int, int], count: Count | None) -> str:
    heir = resumed_by(version, ranges)
    if heir is not None:
        return f"Not in the code; its runs go on with version {heir}."
    if count is not None and count.value:
        return "Not in the code: its runs wait for a worker that has it."
    return "Not in the code."
