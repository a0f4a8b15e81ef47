"""What an event would do, before it is delivered."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass

from ... import phrases
from ...events import EventType
from ...runs import WouldWake
from ..declarations import fields


@dataclass(frozen=True, slots=True)
class Known:
    """An event that is declared, with the fields of its payload where it has a class."""

    name: str
    cls: str
    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What delivering this very event would do."""

    #: Of what was checked; what is delivered must have it too.
    mark: str
    wakes: str
    runs: tuple[tuple[str, str], ...]
    more_runs: str
    others: str


@dataclass(frozen=True, slots=True)
class DeliverPage:
    name: str
    known: tuple[Known, ...]
    #: The workspaces to choose from; null where any will do, and none.
    workspaces: tuple[str, ...] | None
    checked: Checked | None
    #: Whether something else was sent than what was checked.
    changed: bool


def deliver_page(
    name: str,
    types: Iterable[EventType],
    workspaces: tuple[str, ...] | None,
    *,
    checked: Checked | None = None,
    changed: bool = False,
) -> DeliverPage:
    return DeliverPage(
        name=name,
        known=tuple(map(_known, types)),
        workspaces=None if workspaces is None else tuple(workspace for workspace in workspaces if workspace),
        checked=checked,
        changed=changed,
    )


def _known(kind: EventType) -> Known:
    if kind.cls is None:
        return Known(kind.name, "", ())
    return Known(kind.name, kind.cls.__name__, tuple((each.name, each.annotation or "") for each in fields(kind.cls)))


def checked(mark: str, found: WouldWake, workflows: Mapping[str, str]) -> Checked:
    """`workflows` are those of the first runs, by their ids."""
    count, others = found.count, found.others
    number = phrases.count(count.value, capped=count.capped)
    wakes = (
        "This wakes nobody now." if not count.value else f"This wakes {number} {'run' if count.value == 1 else 'runs'}:"
    )
    more = count.value - len(found.run_ids)
    told = ""
    if others.value:
        run, wait = ("run", "waits") if others.value == 1 else ("runs", "wait")
        told = f"{phrases.count(others.value, capped=others.capped)} other {run} {wait} for this name with other values"
    return Checked(
        mark=mark,
        wakes=wakes,
        runs=tuple((run_id, workflows.get(run_id, "a run")) for run_id in found.run_ids),
        more_runs=f"and {phrases.count(more, capped=count.capped)} more" if more > 0 else "",
        others=told,
    )
