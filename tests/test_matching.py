"""How a payload is compared with what a wait asks for (R26)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from datetime import datetime
from datetime import UTC
from decimal import Decimal
from enum import Enum
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from flask_workflows.errors import MatchRefused
from flask_workflows.matching import FIELDS_LIMIT
from flask_workflows.matching import fields_of
from flask_workflows.matching import hash_in
from flask_workflows.matching import hash_of
from flask_workflows.matching import MESSAGES
from flask_workflows.matching import plain_match
from flask_workflows.values import value_codec


class Status(Enum):
    PAID = "paid"


class Rank(IntEnum):
    FIRST = 1


@dataclass
class Line:
    price: int


def shown(value: object) -> str:
    """For the names of tests: "1" and 1 are two."""
    return ascii(value)[:40]


def matches(match: Mapping[str, Any] | None, payload: object) -> bool:
    """Whether an event with this payload ends a wait with this match."""
    stored = json.loads(value_codec().dump(payload, where="test"))

    return hash_in(stored, fields_of(match)) == hash_of(match)


# What equals what --------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, 0, "x", [], {}, {"a": 1}])
def test_no_match_takes_any_payload(payload: object) -> None:
    assert matches(None, payload)
    assert matches({}, payload)


@pytest.mark.parametrize(
    ("wanted", "held"),
    [
        (1, 1),
        (1, 1.0),
        (1.0, 1),
        (0, -0.0),
        (10**16, 1e16),
        (1.5, 1.5),
        ("1", "1"),
        (True, True),
        (None, None),
        ("ü€𝄞", "ü€𝄞"),
        ([1, [2.0]], [1.0, [2]]),
        ({"b": 1, "a": 2}, {"a": 2.0, "b": 1}),
    ],
    ids=shown,
)
def test_equal_json_values_match(wanted: object, held: object) -> None:
    assert matches({"field": wanted}, {"field": held})


@pytest.mark.parametrize(
    ("wanted", "held"),
    [
        (1, "1"),
        (1, True),
        (1.0, True),
        (0, False),
        (0, None),
        (False, None),
        ("", None),
        ("true", True),
        (1, 1.5),
        (1, [1]),
        ([1, 2], [2, 1]),
        ({}, []),
        ([], None),
        ({"a": None}, {}),
        ("a", "A"),
        ("é", "e\u0301"),
        (2**53 + 1, float(2**53)),
    ],
    ids=shown,
)
def test_different_json_values_do_not_match(wanted: object, held: object) -> None:
    assert not matches({"field": wanted}, {"field": held})
    assert not matches({"field": held}, {"field": wanted})


def test_every_field_has_to_match() -> None:
    match = {"user": 8, "course": "knots"}

    assert matches(match, {"course": "knots", "user": 8, "more": True})
    assert not matches(match, {"course": "knots", "user": 9})
    assert not matches(match, {"course": "knots"})


def test_values_of_two_fields_are_not_mixed_up() -> None:
    assert not matches({"a": 1, "b": 2}, {"a": 2, "b": 1})
    assert not matches({"a": "x,y", "b": "z"}, {"a": "x", "b": "y,z"})


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("user.id", {"user": {"id": 7}}),
        ("a.b.c.d", {"a": {"b": {"c": {"d": 7}}}}),
        ("lines.1.price", {"lines": [{"price": 1}, {"price": 7}]}),
        ("0", [7]),
        ("counts.2026", {"counts": {"2026": 7}}),
    ],
)
def test_dotted_paths_lead_into_objects_and_lists(path: str, payload: object) -> None:
    assert matches({path: 7}, payload)
    assert not matches({path: 8}, payload)


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("user.id", {"user": None}),
        ("user.id", {"user": "id"}),
        ("user.id", {"user.id": 7}),
        ("lines.2", {"lines": [7, 7]}),
        ("lines.-1", {"lines": [7]}),
        ("lines.\u0660", {"lines": [7]}),  # another zero
        ("lines." + "9" * 5_000, {"lines": [7]}),
        ("length", [7]),
        ("user", None),
        ("user", 7),
    ],
)
def test_paths_that_lead_nowhere_do_not_match(path: str, payload: object) -> None:
    assert hash_in(payload, json.dumps([path])) is None


def test_missing_field_is_not_null() -> None:
    assert matches({"paid_at": None}, {"paid_at": None})
    assert not matches({"paid_at": None}, {})


@pytest.mark.parametrize(
    ("wanted", "annotation"),
    [
        (UUID(int=7), UUID),
        (Decimal("1.10"), Decimal),
        (datetime(2026, 11, 30, 12, tzinfo=UTC), datetime),
        (date(2026, 11, 30), date),
        (Status.PAID, Status),
        (Rank.FIRST, Rank),
        (Line(price=3), Line),
    ],
)
def test_values_match_as_a_declared_payload_stores_them(wanted: object, annotation: type) -> None:
    stored = json.loads(value_codec(annotation).dump(wanted, where="test"))

    assert hash_in({"field": stored}, '["field"]') == hash_of({"field": wanted})


# What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", 7, None, ("a",)])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(MatchRefused, match="no field to match: write dotted paths"):
        fields_of({path: 1})


def test_paths_of_several_types_are_refused_all_the_same() -> None:
    with pytest.raises(MatchRefused, match="7 is no field to match"):
        fields_of({"a": 1, 7: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize("match", ["user", [("user", 7)], 7])
def test_what_is_no_mapping_is_refused(match: Any) -> None:
    with pytest.raises(MatchRefused, match="write fields and their values"):
        fields_of(match)


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_paths_no_database_can_hold_are_refused(path: str) -> None:
    with pytest.raises(MatchRefused, match="a field to match contains"):
        fields_of({path: 1})


def test_fields_may_take_so_many_bytes() -> None:
    fitting = "é" * ((FIELDS_LIMIT - 4) // 2)

    assert len(fields_of({fitting: 1}).encode()) <= FIELDS_LIMIT
    with pytest.raises(MatchRefused, match="at most 500"):
        fields_of({fitting + "é": 1})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "is of type object, which no JSON value can equal"),
        (float("nan"), "is NaN or infinite"),
        (float("-inf"), "is NaN or infinite"),
        ("a\0b", "contains a NUL character"),
        ("\ud800", "half of a surrogate pair"),
        ([1, UUID(int=7)], r"\[1\] is of type uuid.UUID"),
        ({"deep": [float("inf")]}, r"\.deep\[0\] is NaN or infinite"),
        ({1: 2}, "a key of type int"),
    ],
)
def test_values_that_no_payload_can_hold_are_refused_with_their_place(value: Any, reason: str) -> None:
    """B70: what is compared is stored, and read by browsers, as payloads are."""
    with pytest.raises(MatchRefused, match=rf"^match\['a\.b'\].*{reason}"):
        plain_match({"a.b": value})


def test_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(MatchRefused, match="contains itself"):
        plain_match({"a": endless})


# In general --------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1é", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
names = st.text("abc", min_size=1, max_size=3)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: as Python has it, but for booleans, which are no numbers."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


@given(plain, plain)
def test_two_values_match_when_they_are_equal_and_only_then(one: Any, other: Any) -> None:
    assert matches({"a": one}, {"a": other}) is same(one, other)


@given(st.dictionaries(names, plain, max_size=4), st.dictionaries(names, plain, max_size=4))
def test_an_event_matches_what_it_holds_whatever_else_it_holds(match: dict[str, Any], more: dict[str, Any]) -> None:
    assert matches(match, {**more, **match})


@given(st.dictionaries(names, plain, min_size=1, max_size=4), st.data())
def test_an_event_without_one_of_the_fields_does_not_match(match: dict[str, Any], data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from(sorted(match)))

    assert not matches(match, {name: value for name, value in match.items() if name != missing})


@given(st.lists(names, min_size=1, max_size=4), plain, plain)
def test_a_path_finds_what_is_nested_under_it(path: list[str], wanted: Any, other: Any) -> None:
    assume(not same(wanted, other))

    def nested(value: Any) -> Any:
        for name in reversed(path):
            value = {name: value}
        return value

    assert matches({".".join(path): wanted}, nested(wanted))
    assert not matches({".".join(path): wanted}, nested(other))


@given(st.dictionaries(names, plain, max_size=4))
def test_what_is_stored_of_a_wait_does_not_depend_on_the_order_of_its_fields(match: dict[str, Any]) -> None:
    turned = dict(reversed(match.items()))

    assert (fields_of(match), hash_of(match)) == (fields_of(turned), hash_of(turned))


@given(st.dictionaries(names, plain, max_size=3))
def test_no_field_set_is_taken_for_a_wait_for_messages(match: dict[str, Any]) -> None:
    assert fields_of(match) != MESSAGES
