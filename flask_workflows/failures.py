"""Errors as stored text, and back.

Nothing here may raise, whatever the error's own `__str__` does, and what comes out can be stored: without NUL
characters and lone surrogates, and of bounded length.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import traceback
from typing import Any

from .errors import StepFailed
from .plain import decode_args
from .plain import encode_args

MESSAGE_LIMIT = 10_000
TRACEBACK_LIMIT = 50_000

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def describe(error: BaseException, kind: str, *, step: str | None = None, frames: bool = True) -> dict[str, Any]:
    """Class, message and traceback of an error, for the `error` columns. The long parts come last: lists cut them off."""
    return {
        "kind": kind,
        "type": type_name(error),
        "step": step,
        "message": message_of(error),
        "traceback": _traceback(error) if frames else None,
    }


def message_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(its message cannot be read: {type(broken).__name__})"
    return storable(text, MESSAGE_LIMIT)


def type_name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def storable(text: str, limit: int) -> str:
    """The text with what no database takes replaced, its middle cut out if it is too long."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return _UNSTORABLE.sub("\ufffd", text)


def dumps(described: dict[str, Any]) -> str:
    return json.dumps(described, ensure_ascii=False, separators=(",", ":"))


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error, limit=-60))
    except BaseException as broken:
        text = f"(the traceback cannot be formatted: {type(broken).__name__})"
    return storable(text, TRACEBACK_LIMIT)


def describe_stack(described: dict[str, Any], thread: int) -> None:
    """Give an error that was raised nowhere the place where a thread is now, for a traceback."""
    frame = sys._current_frames().get(thread)
    if frame is not None:
        stack = "".join(traceback.format_stack(frame, limit=60))
        last = f"{described['type']}: {described['message']}"
        described["traceback"] = storable(f"Traceback (most recent call last):\n{stack}{last}\n", TRACEBACK_LIMIT)


def business(error: BaseException, *, step: str) -> dict[str, Any] | None:
    """As `describe`, with what rebuilds the very error; null where that does not give an equal one."""
    args = encode_args(error.args)
    if args is None:
        return None
    described = describe(error, "business", step=step)
    described["class"] = [type(error).__module__, type(error).__qualname__]
    described["args"] = args
    rebuilt = rebuild(described, (type(error),))
    return described if rebuilt is not None and _equal(rebuilt, error) else None


def _equal(rebuilt: BaseException, error: BaseException) -> bool:
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    try:
        return bool(rebuilt.args == error.args and vars(rebuilt) == state)
    except Exception:
        # What cannot be compared is not known to be equal.
        return False


def rebuild(described: dict[str, Any], allowed: tuple[type[BaseException], ...]) -> BaseException | None:
    """The business error a step raised, or null when its class is gone or not among `allowed`."""
    try:
        module, qualname = described["class"]
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        if not (isinstance(found, type) and issubclass(found, allowed)):
            return None
        rebuilt: BaseException = found(*decode_args(described["args"]))
    except Exception:
        return None
    return rebuilt


def step_failed(step: str, attempts: int, described: dict[str, Any]) -> StepFailed:
    return StepFailed(step, attempts, str(described.get("message", "")), str(described.get("type", "")))
