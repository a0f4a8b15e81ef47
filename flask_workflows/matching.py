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

#: In place of the list of fields, for waits on messages to one's own run.
MESSAGES = "@"

FIELDS_LIMIT = 500


def fields_of(match: Mapping[str, Any] | None) -> str:
    """The compared fields as they are stored. Raises `MatchRefused` for what is no dotted path."""
    fields = sorted(match or {})
    for path in fields:
        if not isinstance(path, str) or not path or not all(path.split(".")):
            raise MatchRefused(f"{path!r} is no field to match: write dotted paths, as in {{'user.id': 7}}")
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    if len(text) > FIELDS_LIMIT:
        raise MatchRefused(f"the fields to match take {len(text)} characters: at most {FIELDS_LIMIT}")
    return text


def plain_match(match: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared, as JSON values by field."""
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
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        values.append(value)
    return _hash(values)


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    if annotation_for(type(value)) is None:
        raise MatchRefused(f"match[{path!r}] is a {type(value).__name__}, which no JSON value can equal")
    return codec_for(type(value)).encode(value)


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
