"""The terms of a search as criteria of runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import sqlalchemy as sa

from ...models import runs
from ...models import steps
from ...models import waits
from ...models import workers
from ...runs import LIVE
from ...runs import RunStatus
from ...search import fits_error
from ...search import fits_value
from ...search import Hides
from ...search import Term
from ...search import traces
from ...search import WORD
from .criteria import Criteria
from .criteria import Facts
from .criteria import Filter
from .criteria import Test
from .rows import Conditions
from .rows import OPEN

#: Of more runs that wait for one event, the newest waiting runs are looked through.
_FEW = 10_000
#: Workers that are looked through for a name, the newest.
_WORKERS = 1_000

_LIKE_AN_ID = re.compile(r"[0-9A-Za-z_-]{1,36}")
_UNFINISHED_OR_FAILED = (*LIVE, RunStatus.FAILED, RunStatus.CANCELLED)


def alternatives(
    facts: Facts, criteria: Criteria, terms: Sequence[Term], hidden: Hides | None = None
) -> Iterator[Criteria]:
    """The criteria and the terms as criteria of which runs must meet one, each alternative of runs of its own."""
    for term in terms:
        if term.field != WORD and not term.tested:
            criteria = _narrowed(facts, criteria, term)
    criteria = _tested(facts, criteria, [term for term in terms if term.tested], hidden)
    words = [term for term in terms if term.field == WORD]
    leading = next((term for term in words if not term.negated), None)
    criteria = criteria.plus(*(_word(term) for term in words if term is not leading))

    held = any(term.field == "worker" and not term.negated for term in terms)
    for one in [criteria.in_status(status) for status in _HELD] if held else [criteria]:
        yield from [one] if leading is None else _by_word(one, leading.value)


_HELD = (RunStatus.RUNNING, RunStatus.PENDING)


def _narrowed(facts: Facts, criteria: Criteria, term: Term) -> Criteria:
    value = term.value
    match term.field:
        case "workflow" if not term.negated:
            return criteria.of_workflow(value)
        case "workspace" if not term.negated:
            return criteria.in_workspace(value)
        case "status":
            status = RunStatus(value)
            wanted = tuple(one for one in RunStatus if (one is status) is not term.negated)
            return criteria.in_status(*wanted)
        case "id" if not term.negated:
            return criteria.with_ids(*_begins(value))
        case "cause" | "parent" if not term.negated and criteria.indexed is None:
            return replace(criteria, indexed=(_COLUMNS.get(term.field, term.field), value))
        case "is":
            return _paused(facts, criteria, term)
        case "worker":
            return _held_by(facts, criteria, term)
        case "event":
            return _awaiting(facts, criteria, term)
        case "step":
            narrowed = criteria if term.negated else criteria.in_status(*_UNFINISHED_OR_FAILED)
            return narrowed.plus(Filter(("id", "status"), lambda c: _signed(_at_step(c, value), term)))
        case "id":
            return criteria.plus(Filter(("id",), lambda c: sa.func.substr(c.id, 1, len(value)) != _lower(value)))
        case "version":
            return criteria.plus(_equal("version", int(value), term))
        case _:
            return criteria.plus(_equal(_COLUMNS.get(term.field, term.field), value, term))


_COLUMNS = {"parent": "parent_id"}


def _equal(column: str, value: str | int, term: Term) -> Filter:
    if term.negated:
        return Filter((column,), lambda c: c[column].is_distinct_from(value))
    return Filter((column,), lambda c: c[column] == value)


def _signed(condition: sa.ColumnElement[bool], term: Term) -> sa.ColumnElement[bool]:
    return ~condition if term.negated else condition


def _lower(value: str) -> str:
    # Ids are written small; an upper-case one was pasted from elsewhere.
    return value.lower() if re.fullmatch(r"[0-9A-Fa-f-]+", value) else value


def _begins(value: str) -> Conditions:
    """That the id begins so. The bounds hold in any collation; they are for the index, and the last one decides."""
    text = _lower(value)
    if not _LIKE_AN_ID.fullmatch(text):
        return (sa.false(),)
    return (runs.c.id >= text, runs.c.id <= text + "z" * 36, sa.func.substr(runs.c.id, 1, len(text)) == text)


# Bare words --------------------------------------------------------------------------------


def _by_word(criteria: Criteria, word: str) -> Iterator[Criteria]:
    """An id that begins so, a workflow of that name, or a key: each found in its own way, and only in one of them."""
    text, beginning = _lower(word), sa.func.substr(runs.c.id, 1, len(word))
    others = criteria
    if _LIKE_AN_ID.fullmatch(word):
        yield criteria.with_ids(*_begins(word))
        others = criteria.with_ids(beginning != text)
    yield others.of_workflow(word)
    yield others.plus(Filter(("key", "workflow"), lambda c: sa.and_(c.key == word, c.workflow != word)))


def _word(term: Term) -> Filter:
    def condition(c: sa.ColumnCollection[str, sa.ColumnElement[object]]) -> sa.ColumnElement[bool]:
        beginning = sa.func.substr(c.id, 1, len(term.value))
        keyed = sa.func.coalesce(c.key, "") == term.value
        return _signed(sa.or_(beginning == _lower(term.value), c.workflow == term.value, keyed), term)

    return Filter(("id", "key", "workflow"), condition)


# What stands in other tables -----------------------------------------------------------------


def _held_by(facts: Facts, criteria: Criteria, term: Term) -> Criteria:
    newest = sa.select(workers.c.id, workers.c.name, workers.c.host).order_by(workers.c.id.desc()).limit(_WORKERS)
    known = newest.subquery()
    named = sa.select(known.c.id).where(
        sa.or_(known.c.name == term.value, known.c.host == term.value, known.c.id == term.value)
    )
    ids = facts.ask(named, ("worker", term.value))
    if term.negated:
        return criteria.plus(Filter(("worker",), lambda c: sa.or_(c.worker.is_(None), c.worker.not_in(ids))))
    if not ids:
        return criteria.in_status()
    return criteria.in_status(*_HELD).plus(Filter(("worker",), lambda c: c.worker.in_(ids)))


def _awaiting(facts: Facts, criteria: Criteria, term: Term) -> Criteria:
    """Runs that wait for an event: all that do, or, where these are very many, those among the newest."""
    name = term.value

    def condition(c: sa.ColumnCollection[str, sa.ColumnElement[str]]) -> sa.ColumnElement[bool]:
        return _signed(_has(waits.c.run_id == c.id, waits.c.name == name), term)

    if term.negated:
        return criteria.plus(Filter(("id",), condition))
    criteria = criteria.in_status(*LIVE)
    few = sa.select(waits.c.run_id).where(waits.c.name == name).limit(_FEW + 1)
    (number,) = facts.ask(sa.select(sa.func.count()).select_from(few.subquery()), ("event", name))
    if number > _FEW or criteria.few is not None:
        return criteria.plus(Filter(("id",), condition))
    return replace(criteria, few=runs.c.id.in_(sa.select(waits.c.run_id).where(waits.c.name == name)))


def _paused(facts: Facts, criteria: Criteria, term: Term) -> Criteria:
    """Paused runs: all that are, or, where these are very many, those among the newest."""
    if term.negated:
        return criteria.plus(Filter(("paused_at",), lambda c: c.paused_at.is_(None)))
    criteria = criteria.in_status(*LIVE)
    few = sa.select(runs.c.id).where(runs.c.paused_at.is_not(None)).limit(_FEW + 1)
    (number,) = facts.ask(sa.select(sa.func.count()).select_from(few.subquery()), ("is", "paused"))
    if number > _FEW or criteria.few is not None:
        return criteria.plus(Filter(("paused_at",), lambda c: c.paused_at.is_not(None)))
    return replace(criteria, few=runs.c.paused_at.is_not(None))


def _at_step(c: sa.ColumnCollection[str, sa.ColumnElement[str]], name: str) -> sa.ColumnElement[bool]:
    """That a step of that name is open or failed. Its key may say which use it is, and in which branch."""
    key = steps.c.key
    named = _named(key, name)
    # Open steps have an index. To look at all steps of a run is dear, so of a live one that went on after a failure
    # only the key is looked up that the step has at its first use.
    live = c.status.in_([status.value for status in LIVE])
    failed = steps.c.status == "failed"
    return sa.case(
        (live, sa.or_(_has(steps.c.run_id == c.id, OPEN, named), _has(steps.c.run_id == c.id, key == name, failed))),
        else_=_has(steps.c.run_id == c.id, failed, named),
    )


def _has(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """That a row of another table meets the conditions, which is looked up run by run.

    Without the offset PostgreSQL may choose to gather all such rows of the table once, however many these are.
    """
    return sa.exists(sa.select(sa.literal(1)).where(*conditions).offset(0))


def _named(key: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    own = sa.or_(key == name, sa.func.substr(key, 1, len(name) + 1) == f"{name}#")
    branched = sa.or_(
        sa.func.substr(key, sa.func.length(key) - len(name)) == f"/{name}", sa.func.replace(key, f"/{name}#", "") != key
    )
    # The first of these decides for most keys, at little cost.
    return sa.or_(own, sa.and_(key.contains(f"/{name}", autoescape=True), branched))


# Stored values -----------------------------------------------------------------------------


def _tested(facts: Facts, criteria: Criteria, terms: Sequence[Term], hidden: Hides | None) -> Criteria:
    """What code must look at is first narrowed down to what may fit by the texts that stand in it."""
    for column, group in groupby(sorted(terms, key=lambda term: term.field), key=lambda term: term.field):
        asked = tuple(group)
        wanted = [term for term in asked if not term.negated]
        if column == "error":
            test = Test(column, partial(fits_error, asked))
            criteria = criteria.in_status(*_UNFINISHED_OR_FAILED) if wanted else criteria
        else:
            test = Test(column, partial(fits_value, asked, hidden=hidden))
        if column == "output" and wanted:
            criteria = criteria.in_status(RunStatus.COMPLETED)
        criteria = replace(criteria, tests=(*criteria.tests, test))
        # The most telling are looked for first.
        texts = [group for term in wanted for group in reversed(traces(term))]
        criteria = criteria.plus(*(_contains(facts.connection.dialect, column, group) for group in texts))
    return criteria


def _contains(dialect: sa.Dialect, column: str, texts: Sequence[str]) -> Filter:
    place = sa.func.strpos if dialect.name == "postgresql" else sa.func.instr

    def condition(c: sa.ColumnCollection[str, sa.ColumnElement[str]]) -> sa.ColumnElement[bool]:
        if column == "error":
            return sa.or_(*(c[column].icontains(text, autoescape=True) for text in texts))
        return sa.or_(*(place(c[column], text) > 0 for text in texts))

    return Filter((column,), condition)
