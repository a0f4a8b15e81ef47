"""What was declared, in words: where it stands, what it takes, how it is tried again."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from typing import ForwardRef

from .. import phrases
from ..redaction import hides
from ..redaction import redact_text
from ..retry import LONGEST_MS
from ..retry import Retry

_DEFAULT_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a workflow, or a field of an event, as its source has it; null where that says nothing."""

    name: str
    annotation: str | None
    default: str | None = None


def docstring(function: Callable[..., Any]) -> str:
    """The whole of it, its indentation taken off."""
    return inspect.getdoc(function) or ""


def place(where: str) -> str:
    """`file:line`, the file as it is imported from, where it is found that way."""
    file, _, line = where.rpartition(":")
    roots = {os.path.abspath(entry) for entry in sys.path}
    below = [root for root in roots if file.startswith(root.rstrip(os.sep) + os.sep)]
    if not below:
        return where
    return f"{os.path.relpath(file, max(below, key=len))}:{line}"


def parameters(declared: tuple[inspect.Parameter, ...]) -> Iterator[Parameter]:
    for each in declared:
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        yield Parameter(
            f"{stars}{each.name}",
            None if each.annotation is each.empty else written(each.annotation),
            "nothing" if stars else None if each.default is each.empty else _default(each.name, each.default),
        )


def written(annotation: Any) -> str:
    """An annotation as in the source."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(name: str, value: object) -> str:
    # Values in a source are no stored ones, but people do write passwords there.
    word = hides(name)
    if word is not None and value is not None and not isinstance(value, bool):
        return f"hidden: matches “{word}”"
    try:
        return phrases.cut(redact_text(repr(value)), _DEFAULT_LENGTH)
    except Exception:
        return f"a {type(value).__name__}"


def fields(cls: type) -> Iterator[Parameter]:
    """The annotated fields of a dataclass, TypedDict, named tuple or model, those of its bases first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        # What a library's base class annotates is its own affair.
        if base.__module__.partition(".")[0] not in ("builtins", "typing", "pydantic"):
            found.update({name: written(value) for name, value in inspect.get_annotations(base).items()})
    for name, annotation in found.items():
        if not name.startswith("_"):
            yield Parameter(name, annotation)


def retry(policy: Retry) -> str:
    """A policy whose defaults are filled in, such as "5 attempts, 1 min after the first, doubled each time"."""
    parts = [phrases.several(policy.attempts or 1, "attempt")]
    if policy.attempts != 1 and policy.backoff is not None:
        parts += _backoff(policy)
    if policy.retry_on != (BaseException,):
        parts.append(f"only after {_names(policy.retry_on)}")
    if policy.give_up_on:
        parts.append(f"not after {_names(policy.give_up_on)}")
    return ", ".join(parts)


def time_out(milliseconds: int | None) -> str:
    """What follows a policy where an attempt has a time-out."""
    return "" if milliseconds is None else f"; times out after {_length(milliseconds)}"


def _backoff(policy: Retry) -> Iterator[str]:
    backoff = policy.backoff
    assert backoff is not None
    base = _length(backoff.base_ms)
    if not backoff.base_ms:
        yield "at once"
    elif backoff.kind == "constant":
        yield f"{base} apart"
    else:
        grows = "doubled each time" if backoff.kind == "exponential" else f"each time {base} more"
        yield f"{base} after the first"
        yield grows
        if backoff.max_ms < LONGEST_MS:
            yield f"at most {_length(backoff.max_ms)}"
    if policy.jitter and backoff.base_ms:
        yield f"±{policy.jitter * 100:.0f} %"


def _length(millis: int) -> str:
    return phrases.duration(timedelta(milliseconds=millis))


def _names(classes: tuple[type[BaseException], ...]) -> str:
    return " or ".join(each.__name__ for each in classes)
