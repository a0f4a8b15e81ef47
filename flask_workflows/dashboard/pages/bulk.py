"""One action on many runs: the page that asks, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ... import phrases
from ...explain import Instant
from ...explain import Name
from ...explain import Text
from ...operations import MOST
from ...runs import Run
from ...runs import RunStatus
from ...runs import Share
from ..access import Permission

#: Above this many runs their number must be typed.
TYPED_ABOVE = 100
SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be done to many runs at once."""

    permission: Permission
    #: "Cancel", and what the operation is called while and after it goes on.
    verb: str
    noun: str
    #: The runs it is for; the others are skipped.
    statuses: frozenset[RunStatus]
    effects: tuple[str, ...]
    danger: bool = False


_OPEN = frozenset(status for status in RunStatus if not status.finished)

KINDS = {
    "cancel": Kind(
        Permission.CANCEL,
        "Cancel",
        "Cancelling",
        _OPEN,
        (
            "A run that waits or sleeps ends at once.",
            "A run that is executed finishes the step it is in, and ends before the next. What the steps did is not undone.",
        ),
        danger=True,
    ),
    "retry": Kind(
        Permission.RETRY,
        "Retry",
        "Retrying",
        frozenset({RunStatus.FAILED, RunStatus.CANCELLED}),
        (
            "Each run goes on from where it stopped: the steps that completed are kept, the one that failed gets fresh attempts.",
            "A run whose key a newer run holds is left as it is.",
        ),
    ),
    "wake": Kind(
        Permission.WAKE,
        "Wake",
        "Waking",
        frozenset({RunStatus.SLEEPING}),
        ("Each run's sleep, or its wait before the next attempt, ends now.",),
    ),
}


@dataclass(frozen=True, slots=True)
class Sample:
    id: str
    workflow: str
    state: str
    created_at: datetime

    @property
    def short_id(self) -> str:
        return f"…{self.id[-6:]}"


@dataclass(frozen=True, slots=True)
class ConfirmPage:
    """What would be done to how many runs, and to which."""

    action: str
    title: str
    able: int
    #: There are more than one operation takes.
    cut: bool
    skipped: int
    shares: tuple[Share, ...]
    samples: tuple[Sample, ...]
    effects: tuple[Text, ...]
    danger: bool
    #: The number to type; null where there are few.
    typed: int | None
    do: str


def confirm_page(action: str, shares: Sequence[Share], samples: Iterable[Run]) -> ConfirmPage:
    kind = KINDS[action]
    able = sum(share.count for share in shares if share.status in kind.statuses)
    skipped = sum(share.count for share in shares) - able
    cut = able > MOST
    able = min(able, MOST)
    runs = phrases.several(able, "run")
    return ConfirmPage(
        action=action,
        title=f"{kind.verb} {runs}?",
        able=able,
        cut=cut,
        skipped=skipped,
        shares=_by_version(share for share in shares if share.status in kind.statuses),
        samples=tuple(
            Sample(run.id, run.workflow, run.status, run.created_at) for run in samples if run.status in kind.statuses
        )[:SAMPLES],
        effects=tuple((effect,) for effect in kind.effects),
        danger=kind.danger,
        typed=able if able > TYPED_ABOVE else None,
        do=f"{kind.verb} {runs}",
    )


def _by_version(shares: Iterable[Share]) -> tuple[Share, ...]:
    """The shares without their statuses."""
    counted: dict[tuple[str, int], int] = {}
    for share in shares:
        counted[share.workflow, share.version] = counted.get((share.workflow, share.version), 0) + share.count
    return tuple(Share(*found, "", count) for found, count in counted.items())


# What became of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it was ordered, and how far it is."""

    id: str
    state: str
    noun: str
    actor: str
    reason: str
    created_at: datetime
    finished_at: datetime | None
    #: Runs it looked at, of how many it was ordered for; null while nothing is known.
    seen: int
    expected: int
    #: Runs it acted on.
    done: int
    skipped: int | None
    refused: int | None
    problem: str
    now: Text

    @property
    def percent(self) -> int:
        return 100 if not self.expected else min(100, 100 * self.seen // self.expected)

    @property
    def open(self) -> bool:
        return self.finished_at is None


def headline(operation: Operation, *, workers: bool) -> Text:
    """What is going on with it, in one sentence."""
    of = f"{phrases.number(operation.done)} of {phrases.several(operation.expected, 'run')}"
    match operation.state:
        case RunStatus.COMPLETED:
            return (f"Done: {of}.",)
        case RunStatus.CANCELLED:
            return (f"Stopped after {of}.",)
        case RunStatus.FAILED:
            return (f"Failed after {of}. Its run says why; retried there, it goes on.",)
        case _ if not workers:
            return ("No worker is live, so it waits. Start one: ", Name("flask workflows work"))
        case _:
            return (f"{operation.noun}: {of}, since ", Instant(operation.created_at, "for"), ".")
