"""What a request brings: declared once, for the document as for reading it."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

from werkzeug.datastructures import MultiDict

from ...durations import LONGEST
from ...errors import InvalidCursor
from ...errors import InvalidName
from ...errors import UndecodableValue
from ...names import check_label
from ...plain import loads
from ...runs import Cursor
from ...runs import RunStatus
from ...store import reading as read

Schema = Mapping[str, Any]

#: By name, null for what was not given and has no default.
Given = Mapping[str, Any]


class Problem(Exception):
    """The request cannot be answered as it was meant to be."""

    def __init__(self, code: str, message: str, status: int = 400, *, path: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.path = path


class Unfit(ValueError):
    """A value is not of its kind; the text ends a sentence that begins with its name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values: its schema, and how a JSON value of it is read. Reading raises `Unfit`."""

    schema: Schema
    read: Callable[[Any], Any]
    #: How it is written in a query string, where that is not the value itself.
    from_text: Callable[[str], Any] = str


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of the query string, or a field of the body."""

    name: str
    kind: Kind
    about: str
    required: bool = False
    default: Any = None


# Kinds -------------------------------------------------------------------------------------

# Nothing but blanks is no name, nor is anything with a control character in it.
_CLEAN = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
_LABEL = rf"^[^{_CLEAN}]*[^{_CLEAN}\s][^{_CLEAN}]*$"

_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d):(\d\d)(\.\d+)?(?:([Zz])|([+-]\d\d:\d\d))", re.ASCII)


def _read_label(value: Any) -> str:
    try:
        return check_label(value, "text")
    except InvalidName as error:
        raise Unfit(f"is no name: {error}") from None


def _read_instant(value: Any) -> datetime:
    found = _RFC_3339.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise Unfit("is no instant: write one as in RFC 3339, 2026-11-30T12:00:00Z")
    day, minute, second, fraction, _, offset = found.groups()
    # The leap second is the last of its minute.
    leap = timedelta(seconds=1 if second == "60" else 0)
    text = f"{day}T{minute}:{'59' if leap else second}{fraction or ''}{offset or '+00:00'}"
    try:
        return (datetime.fromisoformat(text) + leap).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unfit("is no instant: there is no such date or time") from None


def _instant_text(text: str) -> str:
    # A plus sign that was not escaped arrives as a blank.
    return re.sub(r" (?=\d\d:\d\d$)", "+", text) if len(text) > 20 else text


def _read_status(value: Any) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise Unfit(f"is no status: the statuses are {', '.join(RunStatus)}") from None


def _read_event_state(value: Any) -> read.EventState:
    try:
        return read.EventState(value)
    except ValueError:
        raise Unfit(f"is no state: the states are {', '.join(read.EventState)}") from None


def _read_cursor(place: Callable[[str], Any]) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        try:
            place(value)
        except InvalidCursor:
            raise Unfit("is no cursor: take `older` or `newer` of an answer as it is") from None
        return str(value)

    return checked


def _read_text(longest: int) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest or "\x00" in value:
            raise Unfit(f"is no text of at most {longest} characters, none of them NUL")
        return value

    return checked


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit("is neither true nor false")
    return value


def _read_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit("is no JSON object")
    return value


def _read_number(low: float, high: int, *, whole: bool) -> Callable[[Any], Any]:
    word = "whole number" if whole else "number"

    def checked(value: Any) -> Any:
        if isinstance(value, float) and whole and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
            raise Unfit(f"is no {word} from {low} to {high}")
        return value

    return checked


def _integer_text(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def whole_number(low: int, high: int) -> Kind:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Kind(schema, _read_number(low, high, whole=True), _integer_text)


def text(longest: int) -> Kind:
    return Kind({"type": "string", "maxLength": longest, "pattern": r"^[^\u0000]*$"}, _read_text(longest))


LABEL = Kind({"type": "string", "minLength": 1, "maxLength": 255, "pattern": _LABEL}, _read_label)
INSTANT = Kind({"type": "string", "format": "date-time"}, _read_instant, _instant_text)
STATUS = Kind({"type": "string", "enum": [status.value for status in RunStatus]}, _read_status)
CURSOR = Kind({"type": "string", "pattern": "^(older|newer)[.][0-9A-Za-z_-]{1,36}$"}, _read_cursor(Cursor.read))
EVENT_CURSOR = Kind(
    {"type": "string", "pattern": "^(older|newer)[.]-?[0-9]{1,18}[.][0-9]{1,18}$"}, _read_cursor(read.EventPlace.read)
)
EVENT_STATE = Kind({"type": "string", "enum": [state.value for state in read.EventState]}, _read_event_state)
SECONDS = Kind(
    {"type": "number", "minimum": 0, "maximum": LONGEST.total_seconds()},
    _read_number(0, int(LONGEST.total_seconds()), whole=False),
)
#: A duration of something, which is not none at all.
LENGTH = Kind(
    {"type": "number", "minimum": 0.001, "maximum": LONGEST.total_seconds()},
    _read_number(0.001, int(LONGEST.total_seconds()), whole=False),
)
FLAG = Kind({"type": "boolean"}, _read_flag)
OBJECT = Kind({"type": "object"}, _read_object)
ANYTHING = Kind({}, lambda value: value)
LIMIT = Input("limit", whole_number(1, 100), "How many at most.", default=50)


# Reading -----------------------------------------------------------------------------------


def read_query(args: MultiDict[str, str], declared: Iterable[Input]) -> Given:
    """Read the query string. Raises `Problem`, also for a parameter nobody declared: it may be one misspelt."""
    known = {item.name: item for item in declared}
    for name in args:
        if name not in known:
            raise Problem("invalid_query", f"There is no parameter {name[:100]!r} here. {_list('There is', known)}")
        if len(args.getlist(name)) > 1:
            raise Problem(f"invalid_{name}", f"The parameter {name} is given more than once.")
    return {
        name: _read(item, item.kind.from_text(args[name]) if name in args else None) for name, item in known.items()
    }


def read_body(text: str, declared: Iterable[Input]) -> Given:
    """Read the JSON object of a body; an empty one has no fields. Raises `Problem`."""
    known = {item.name: item for item in declared}
    try:
        body = loads(text) if text.strip() else {}
    except UndecodableValue as error:
        raise Problem("invalid_json", f"The body is {error}.") from None
    if not isinstance(body, dict):
        raise Problem("invalid_body", "The body must be a JSON object.")
    for name in body:
        if name not in known:
            raise Problem("invalid_body", f"There is no field {name[:100]!r} here. {_list('There is', known)}")
    return {name: _read_field(item, body) for name, item in known.items()}


def _read_field(item: Input, body: Mapping[str, Any]) -> Any:
    if item.kind is ANYTHING:
        # Null is a value as good as others.
        return body.get(item.name, item.default)
    return _read(item, body.get(item.name))


def _read(item: Input, value: Any) -> Any:
    if value is None:
        if item.required:
            raise Problem(f"invalid_{item.name}", f"{item.name} is missing.")
        return item.default
    try:
        return item.kind.read(value)
    except Unfit as unfit:
        shown = value if isinstance(value, str | int | float) else type(value).__name__
        raise Problem(f"invalid_{item.name}", f"{item.name} {str(shown)[:100]!r} {unfit}.") from None


def _list(beginning: str, known: Mapping[str, Input]) -> str:
    return f"{beginning} {', '.join(known)}." if known else "None is taken."
