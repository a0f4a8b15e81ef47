"""Stored values and tracebacks as operators see them: laid out, redacted, and cut where they are long.

Nothing is imported or built to show a value, and numbers stand as they were stored.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import phrases
from .redaction import hides
from .redaction import redact_text
from .runs import Head

#: Characters of a value that are shown.
LIMIT = 20_000
#: A longer value is not decoded: of that, the beginning is shown as it is stored.
DECODE_LIMIT = 500_000

_RAW_LIMIT = 2_000
_TEXT_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class Hidden:
    """Stands where a secret would."""

    word: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A value in pieces, ready to be marked up, and what to say about it."""

    parts: tuple[str | Hidden, ...]
    note: str = ""


class _Number(str):
    """A number as it was written."""


class _Pairs(list[tuple[str, Any]]):
    """An object, with every key as often as it was written."""


def show_value(head: Head) -> Shown:
    """Lay out a stored JSON value."""
    whole = phrases.size(head.length)
    if not head.whole:
        beginning = redact_text(head.text[:LIMIT])
        return Shown((beginning, "…"), f"The beginning of {whole}, as it is stored.")
    try:
        value = json.loads(
            head.text, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
        parts, complete = _take(_lines(value, ""), LIMIT)
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        return Shown((redact_text(head.text[:_RAW_LIMIT]),), f"Not readable as JSON ({reason}). As it is stored:")
    return Shown(parts, "" if complete else f"The first {phrases.size(LIMIT)} of {whole}.")


def _take(parts: Iterable[str | Hidden], limit: int) -> tuple[tuple[str | Hidden, ...], bool]:
    """The parts up to a number of characters, neighbouring texts joined, and whether these are all."""
    taken: list[str | Hidden] = []
    text: list[str] = []
    left = limit
    for part in parts:
        if isinstance(part, Hidden):
            taken += ["".join(text), part]
            text.clear()
            continue
        text.append(part[:left])
        left -= len(part)
        if left < 0:
            return (*taken, "".join(text), "…"), False
    return (*taken, "".join(text)), True


def _lines(value: Any, indent: str) -> Iterator[str | Hidden]:
    inner = indent + "  "
    match value:
        case _Pairs() if value:
            yield "{"
            for place, (key, held) in enumerate(value):
                yield f"{',' if place else ''}\n{inner}{_quoted(key)}: "
                word = hides(key)
                if word is not None and held is not None and not isinstance(held, bool):
                    yield Hidden(word)
                else:
                    yield from _lines(held, inner)
            yield f"\n{indent}}}"
        case _Pairs():
            yield "{}"
        case list() if value:
            yield "["
            for place, held in enumerate(value):
                yield f"{',' if place else ''}\n{inner}"
                yield from _lines(held, inner)
            yield f"\n{indent}]"
        case _Number():
            yield value
        case str():
            yield _quoted(value)
        case _:
            yield json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(redact_text(text[:_TEXT_LIMIT]), ensure_ascii=False)


# Tracebacks --------------------------------------------------------------------------------

_FRAME = re.compile(r'^[\s|+]*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_CODE = re.compile(r"^[\s|]{4,}\S")

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "<frozen ",
    str(Path(__file__).resolve().parent) + "/",
    *{sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")},
    str(Path(sys.prefix).resolve()) + "/lib/",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a traceback's way."""

    file: str
    line: str
    function: str
    code: str = ""

    @property
    def library(self) -> bool:
        return any(part in self.file for part in _LIBRARIES)


@dataclass(frozen=True, slots=True)
class Folded:
    """Neighbouring frames of code that is not the app's."""

    frames: tuple[Frame, ...]


def read_traceback(text: str) -> tuple[str | Frame | Folded, ...]:
    """A redacted traceback in frames, those of libraries folded, with the lines between them as texts."""
    entries: list[str | Frame | Folded] = []
    for entry in _entries(redact_text(text[:_TEXT_LIMIT]).splitlines()):
        last = entries[-1] if entries else None
        if not isinstance(entry, Frame) or not entry.library:
            entries.append(entry)
        elif isinstance(last, Folded):
            entries[-1] = Folded((*last.frames, entry))
        else:
            entries.append(Folded((entry,)))
    return tuple(entries)


def _entries(lines: Iterable[str]) -> Iterator[str | Frame]:
    frame: Frame | None = None
    for line in lines:
        found = _FRAME.match(line)
        if found is not None:
            if frame is not None:
                yield frame
            frame = Frame(found["file"], found["line"], found["function"] or "")
        elif frame is not None and _CODE.match(line):
            # The line under it, of carets, is left out.
            frame = frame if frame.code else Frame(frame.file, frame.line, frame.function, line.strip(" |"))
        else:
            if frame is not None:
                yield frame
                frame = None
            if line.strip() and not line.endswith("Traceback (most recent call last):"):
                yield line
    if frame is not None:
        yield frame
