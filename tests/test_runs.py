from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from flask_workflows.errors import InvalidCursor
from flask_workflows.errors import InvalidInstant
from flask_workflows.runs import Cursor
from flask_workflows.runs import decode
from flask_workflows.runs import NOT_LOADED
from flask_workflows.runs import RunError
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.runs import Step
from flask_workflows.runs import Undecodable
from tests.rows import error_json


def test_three_statuses_are_final() -> None:
    assert [status for status in RunStatus if status.finished] == ["completed", "failed", "cancelled"]


def test_status_of_a_newer_version_is_kept_as_it_stands() -> None:
    status = RunStatus.read("paused")

    assert status == "paused"
    assert str(status) == "paused"
    assert not status.finished
    with pytest.raises(ValueError, match="paused"):
        RunStatus("paused")


def test_null_and_values_are_decoded() -> None:
    assert decode(None) is None
    assert decode('{"a": [1, 2.5, "x"]}') == {"a": [1, 2.5, "x"]}


@pytest.mark.parametrize("text", ["", "{", "nope", "\x00", '{"a":', "[" * 100_000, "1" * 5_000])
def test_undecodable_value_gives_a_marker(text: str) -> None:
    """B76"""
    value = decode(text)

    assert isinstance(value, Undecodable)
    assert value.text == text
    assert str(value).startswith("<undecodable: ")


def test_values_that_were_not_read_say_so() -> None:
    step = Step("run", "charge", 1, "step", "completed", 1, None, None, None, None)

    assert step.input is NOT_LOADED
    assert repr(step.output) == "<not loaded>"


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("charge", "charge"),
        ("charge#2", "charge#2"),
        ("$sleep", "sleep"),
        ("$sleep#3", "sleep #3"),
        ("$wait:course.completed", "wait course.completed"),
        ("$start:renewal#2", "start renewal #2"),
    ],
)
def test_label_of_a_call_reads_like_words(key: str, label: str) -> None:
    assert Step("run", key, 1, "step", "completed", 1, None, None, None, None).label == label


def test_error_is_read_whole() -> None:
    error = RunError.read(error_json("app.Declined", "no funds", traceback="Traceback …", step="charge"))

    assert error == RunError("app.Declined", "no funds", "Traceback …", "charge", "step")
    assert error.short_type == "Declined"


@pytest.mark.parametrize("cut", range(60, 200, 7))
def test_error_cut_off_anywhere_keeps_what_stands_before(cut: int) -> None:
    stored = '{"kind":"step","type":"app.Declined","step":"charge","message":"no \\u20ac \\"funds\\"' + "x" * 300

    error = RunError.read(stored[:cut])

    assert (error.type, error.step) == ("app.Declined", "charge")
    assert 'no € "funds"xxxxx'.startswith(error.message[:12])


def test_message_does_not_pass_for_a_field() -> None:
    stored = json.dumps({"message": '{"type": "Fake", "step": "fake"}', "type": "Real"})

    assert RunError.read(stored[:-1]).type == "Real"


@pytest.mark.parametrize("stored", ["", "nope", "[]", "1", '"text"', "{", '{"traceback":'])
def test_unreadable_error_is_still_an_error(stored: str) -> None:
    """B76"""
    assert RunError.read(stored) == RunError("unreadable", "the stored error cannot be read")


def test_error_with_odd_fields_is_read_as_text() -> None:
    assert RunError.read('{"type": 7, "message": ["a"]}') == RunError("7", "['a']")


def test_query_takes_a_status_by_its_word() -> None:
    status: Any = "completed"

    assert RunQuery(status=status).status is RunStatus.COMPLETED


def test_query_refuses_what_cannot_be_asked() -> None:
    with pytest.raises(ValueError, match="limit=0"):
        RunQuery(limit=0)
    with pytest.raises(InvalidInstant, match="created_after"):
        RunQuery(created_after=datetime(2026, 1, 1))  # noqa: DTZ001
    status: Any = "nope"
    with pytest.raises(ValueError, match="nope"):
        RunQuery(status=status)


def test_cursor_survives_its_text() -> None:
    cursor = Cursor(True, "01a2-b_c")

    assert Cursor.read(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "older", "older.", "later.01", "older.a b", "older.'--", "newer." + "1" * 37])
def test_invented_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor, match="not a cursor"):
        Cursor.read(text)
