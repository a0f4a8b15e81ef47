"""Stored values and tracebacks as operators see them: laid out, redacted, and cut where they are long.

Nothing is imported or built to show a value, and numbers stand as they were stored.
"""

from __future__ import annotations

import html
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
from .hooks import app_hides
from .hooks import Hides
from .redaction import hides
from .redaction import redact_text
from .redaction import under
from .runs import Head

#: Of a value so much is shown, in bytes of a page.
LIMIT = 20_000
#: A longer value is not read: of that, the beginning is shown.
DECODE_LIMIT = 500_000

_RAW_LIMIT = 2_000
_TEXT_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class Hidden:
    """Stands where a secret would: for a telling key, or because the app says so."""

    word: str = ""

    def __str__(self) -> str:
        return f"hidden: matches “{self.word}”" if self.word else "hidden by the app"

    @property
    def plain(self) -> str:
        """Without quotation marks, to stand between some."""
        return f"hidden: matches {self.word}" if self.word else "hidden by the app"


@dataclass(frozen=True, slots=True)
class Shown:
    """A value in pieces, ready to be marked up, and what to say about it."""

    parts: tuple[str | Hidden, ...]
    note: str = ""


class _Number(str):
    """A number as it was written."""


class _Pairs(list[tuple[str, Any]]):
    """An object, with every key as often as it was written."""


def show_value(head: Head, limit: int = LIMIT, *, path: str = "$") -> Shown:
    """Lay out a stored JSON value, up to a size. `path` is where it stands in the whole, for the app to judge."""
    hides_too = app_hides()
    whole = phrases.size(head.length)
    text = head.text if head.whole else mended(head.text[: 2 * limit])
    try:
        parts, complete = _take(_lines(_decode(text), "", path, _Asked(hides_too)), limit)
    except (ValueError, RecursionError) as error:
        return _as_stored(head, str(error).partition("\n")[0], limit, hides_too)
    if not head.whole:
        return Shown((*parts, "…") if complete else parts, f"The beginning of {whole}.")
    return Shown(parts, "" if complete else f"The first {phrases.size(sum(map(_length, parts)))} of {whole}.")


def show_member(name: str, head: Head, limit: int = LIMIT, *, path: str | None = None) -> Shown:
    """As `show_value`, of a value that stands under a name, at a path that is made of it unless it is given."""
    word = hides(name)
    if word is not None and head.text not in ("null", "true", "false"):
        return Shown(("", Hidden(word)))
    return show_value(head, limit, path=under("$", name) if path is None else path)


def _as_stored(head: Head, reason: str, limit: int, hides_too: Hides | None) -> Shown:
    """What is no JSON. Nothing in it has a path, so the app cannot be asked."""
    note = f"Not readable as JSON ({reason})."
    if hides_too is not None:
        return Shown((Hidden(),), note)
    raw = _fitting(redact_text(head.text[:_RAW_LIMIT]), limit)
    return Shown((raw,), f"{note} As it is stored:")


def write_redacted(text: str) -> Iterator[str]:
    """A stored JSON value, whole, as indented JSON in which texts stand in place of secrets."""
    # Now, and not when the first piece is taken: the app's context may be gone by then.
    return _written(text, app_hides())


def copied(text: str) -> str | None:
    """A stored JSON value laid out, every number as it stands there; null where something in it is to be hidden."""
    laid_out = "".join(_written(text, app_hides()))
    try:
        return laid_out.rstrip("\n") if _decode(laid_out) == _decode(text) else None
    except (ValueError, RecursionError):
        return None


def _written(text: str, hides_too: Hides | None) -> Iterator[str]:
    try:
        value = _decode(text)
    except (ValueError, RecursionError):
        value = None
    if (value is None and text != "null") or _is_deep(value):
        # Not readable as JSON: the text itself, as a JSON string.
        yield json.dumps(redact_text(text) if hides_too is None else Hidden().plain, ensure_ascii=False)
    else:
        for part in _lines(value, "", "$", _Asked(hides_too), whole=True):
            yield json.dumps(part.plain) if isinstance(part, Hidden) else part
    yield "\n"


def _is_deep(value: Any, most: int = 200) -> bool:
    """Whether it is nested too deeply to be walked through."""
    level = [value]
    for _ in range(most):
        level = [
            held[1] if isinstance(outer, _Pairs) else held
            for outer in level
            if isinstance(outer, list)
            for held in outer
        ]
        if not level:
            return False
    return True


def _decode(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number)


def _length(part: str | Hidden) -> int:
    return len(part) if isinstance(part, str) else 0


def _size(text: str) -> int:
    """In bytes, once it stands in a page."""
    return len(html.escape(text).encode("utf-8", "backslashreplace"))


def _fitting(text: str, limit: int) -> str:
    """As much of the text as takes up the limit at most."""
    text = text[: max(limit, 0)]
    while (size := _size(text)) > limit:
        text = text[: min(len(text) * limit // size, len(text) - 1)]
    return text


def _take(parts: Iterable[str | Hidden], limit: int) -> tuple[tuple[str | Hidden, ...], bool]:
    """The parts up to a size, neighbouring texts joined, and whether these are all."""
    taken: list[str | Hidden] = []
    text: list[str] = []
    left = limit
    for part in parts:
        if isinstance(part, Hidden):
            taken += ["".join(text), part]
            text.clear()
            left -= 60
            continue
        left -= _size(part)
        if left < 0:
            text.append(_fitting(part, left + _size(part)))
            return (*taken, "".join(text), "…"), False
        text.append(part)
    return (*taken, "".join(text)), True


def _lines(value: Any, indent: str, path: str, asked: _Asked, *, whole: bool = False) -> Iterator[str | Hidden]:
    """The value laid out; of a long text only the beginning, unless it is to be `whole`."""
    if asked.hides(path, value):
        yield Hidden()
        return
    inner = indent + "  "
    match value:
        case _Pairs() if value:
            yield "{"
            for place, (key, held) in enumerate(value):
                yield f"{',' if place else ''}\n{inner}{_quoted(key, whole=whole)}: "
                word = hides(key)
                if word is not None and held is not None and not isinstance(held, bool):
                    yield Hidden(word)
                else:
                    yield from _lines(held, inner, under(path, key), asked, whole=whole)
            yield f"\n{indent}}}"
        case _Pairs():
            yield "{}"
        case list() if value:
            yield "["
            for place, held in enumerate(value):
                yield f"{',' if place else ''}\n{inner}"
                yield from _lines(held, inner, under(path, place), asked, whole=whole)
            yield f"\n{indent}]"
        case _Number():
            yield value
        case str():
            yield _quoted(value, whole=whole)
        case _:
            yield json.dumps(value)


class _Asked:
    """Asks the app about the values of one payload, each converted to what the app knows it as, once."""

    def __init__(self, hides_too: Hides | None) -> None:
        self._hides_too = hides_too
        self._converted: dict[int, Any] = {}

    def hides(self, path: str, value: Any) -> bool:
        return self._hides_too is not None and self._hides_too(path, self._plain(value))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, _Number):
            try:
                return json.loads(value)
            except ValueError:
                # More digits than Python reads.
                return str(value)
        if not isinstance(value, list):
            return value
        if id(value) not in self._converted:
            self._converted[id(value)] = (
                {key: self._plain(held) for key, held in value}
                if isinstance(value, _Pairs)
                else [self._plain(held) for held in value]
            )
        return self._converted[id(value)]


def _quoted(text: str, *, whole: bool) -> str:
    return json.dumps(redact_text(text if whole else text[:_TEXT_LIMIT]), ensure_ascii=False)


# Beginnings ---------------------------------------------------------------------------------

_TOKEN = re.compile(r'[\s:]+|"(?:[^"\\]|\\.)*"|[\[\]{},]|[^\s\[\]{},:"]+', re.DOTALL)
#: As much of a string as is whole: half an escape at its end is left out.
_BEGUN = re.compile(r'"(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')


def mended(text: str) -> str:
    """The beginning of a JSON text, made whole: what is open is closed, and a member that is not all there left out.

    Of a string that was cut off its beginning stays. What is no JSON stays none.
    """
    open_: list[str] = []
    safe, closers, last, at = 0, "", "", 0
    while (found := _TOKEN.match(text, at)) is not None:
        token, at = found[0], found.end()
        if token in "[{":
            open_.append("]" if token == "[" else "}")
        elif token in "]}" and open_:
            open_.pop()
        if token in "[]{}" or token == ",":
            safe = at - 1 if token == "," else at
            closers = "".join(reversed(open_))
        last = token.strip() or last
    begun = _BEGUN.match(text, at)
    if begun is not None and (last == ":" or (last in ("[", ",", "") and open_[-1:] != ["}"])):
        return f'{text[:at]}{begun[0]}"{"".join(reversed(open_))}'
    return text[:safe] + closers


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
