"""How an event's payload is compared with what a wait asks for. Pure.

A wait stores which fields it compares and a hash of the values they must have. An event's hash over the same fields
is looked up in one index, so matching costs the same with one and with a hundred thousand open waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .annotations import annotation_for
from .annotations import codec_for
from .errors import MatchRefused
from .plain import check_plain
from .plain import Refusal
from .plain import SCALARS
from .plain import type_name
from .plain import write

#: In place of the list of fields, for waits on messages to one's own run.
#: Stands for the fields of a wait for the end of a run, and then its id for the values; and the event's name.
ENDS = "@end"
FINISHED = "$finished"

MESSAGES = "@"

#: In bytes: with the longest name the index entry then stays below what PostgreSQL takes.
FIELDS_LIMIT = 500


def fields_of(match: Mapping[str, Any] | None) -> str:
    """The compared fields as they are stored. Raises `MatchRefused` for what is no dotted path."""
    if match is not None and not isinstance(match, Mapping):
        raise MatchRefused(f"match is a {type(match).__name__}: write fields and their values, as in {{'user.id': 7}}")
    for path in match or {}:
        if not isinstance(path, str) or not path or not all(path.split(".")):
            raise MatchRefused(f"{path!r} is no field to match: write dotted paths, as in {{'user.id': 7}}")
    try:
        text = write(sorted(match or {}))
    except Refusal as refusal:
        raise MatchRefused(f"a field to match {refusal.reason}") from None
    if len(text.encode()) > FIELDS_LIMIT:
        raise MatchRefused(f"the fields to match take {len(text.encode())} bytes: at most {FIELDS_LIMIT}")
    return text


def plain_match(match: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared, as JSON values by field. Raises `MatchRefused` for a value that no payload can hold."""
    fields_of(match)
    return {path: _plain(match[path], path) for path in sorted(match)}


def hash_of(match: Mapping[str, Any] | None) -> str:
    """The hash of the values a wait asks for, in the order of its fields."""
    return _hash(list(plain_match(match or {}).values()))


def hash_in(payload: Any, fields: str) -> str | None:
    """The hash of a payload's values at these fields; null where it lacks one of them."""
    values = []
    for path in json.loads(fields):
        value = payload
        for name in path.split("."):
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and _is_index(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        values.append(value)
    return _hash(values)


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _plain(value: Any, path: str) -> Any:
    kind = type(value)
    try:
        if kind not in SCALARS and kind is not list and kind is not dict:
            if annotation_for(kind) is None:
                raise Refusal(f"is of type {type_name(kind)}, which no JSON value can equal")
            value = codec_for(kind).encode(value)
        check_plain(value)
        write(value)
    except Refusal as refusal:
        inside = refusal.path.removeprefix("$")
        raise MatchRefused(f"match[{path!r}]{inside} {refusal.reason}") from None
    return value


def _hash(values: list[Any]) -> str:
    # Numbers by value: JSON does not tell 1 from 1.0. Booleans are none, though Python says so.
    text = json.dumps(_normal(values), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, dict):
        return {name: _normal(item) for name, item in value.items()}
    return value
