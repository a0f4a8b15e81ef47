"""What people write into the search box, read as terms, and the terms that only code can put to a stored value.

A search is words between blanks, all of which must fit a run: `workflow:onboarding`, `-status:completed`,
`input.user.id:5`, `error:"no such"`, or a bare word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .errors import InvalidSearch
from .redaction import hides
from .redaction import redact_error
from .redaction import redact_text
from .redaction import under
from .runs import decode
from .runs import RunError
from .runs import RunStatus
from .runs import Undecodable

LONGEST = 500
MOST_TERMS = 12
_DEEPEST = 10
_LONGEST_VALUE = 255

#: A word without a field.
WORD = "word"

FIELDS = (
    *("workflow", "id", "queue", "version", "worker", "status", "step", "event", "key", "error", "cause", "workspace"),
    *("parent", "is", "input", "output"),
)
#: These look into stored values.
PAYLOADS = ("input", "output")
_OTHER_NAMES = {"state": "status"}

_FIELD = re.compile(r"([^\s:\"]*):")
_UNQUOTED = re.compile(r"\S*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNSTORABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
#: What stands in stored JSON as it stands in the value.
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;=()@+-]+")

#: Says of a path, such as `$.card.number`, and a value whether operators are not to see it.
Hides = Callable[[str, Any], bool]


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. `at` is the number of its first character in the search, from 1."""

    field: str
    value: str
    at: int
    quoted: bool = False
    negated: bool = False
    #: Into an input or output.
    path: tuple[str, ...] = ()

    @property
    def reads_payload(self) -> bool:
        return self.field in PAYLOADS

    @property
    def tested(self) -> bool:
        """Whether code must look at what is stored: no database would say it of a value that is broken."""
        return self.reads_payload or self.field == "error"

    @property
    def scalar(self) -> Any:
        """The JSON value that is meant: `5` is a number, `"5"` and `five` are texts."""
        return self.value if self.quoted else _scalar(self.value)


@lru_cache(maxsize=256)
def _scalar(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, dict | list) else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# Reading -----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def parse(text: str) -> tuple[Term, ...]:
    """Read a search. Raises `InvalidSearch`."""
    if len(text) > LONGEST:
        raise InvalidSearch(f"A search has {LONGEST} characters at most; this one has {len(text):,}", LONGEST + 1)
    unstorable = _UNSTORABLE.search(text)
    if unstorable is not None:
        raise InvalidSearch("There is a character here that no stored text has", unstorable.start() + 1)

    terms: list[Term] = []
    place = 0
    while True:
        place += len(text[place:]) - len(text[place:].lstrip())
        if place == len(text):
            return tuple(terms)
        if len(terms) == MOST_TERMS:
            raise InvalidSearch(f"A search has {MOST_TERMS} words at most", place + 1)
        term, place = _term(text, place)
        terms.append(term)


def _term(text: str, start: int) -> tuple[Term, int]:
    place = start
    negated = text[place] == "-"
    place += negated
    field = WORD
    path: tuple[str, ...] = ()
    named = _FIELD.match(text, place)
    if named is not None:
        field, path = _field(named[1], place + 1)
        place = named.end()
    value, quoted, end = _value(text, place)
    if not value and not quoted:
        after = text[start:place]
        raise InvalidSearch(f"Nothing stands behind {after!r}", place + 1)
    term = Term(field, value, start + 1, quoted, negated, path)
    _check(term, place + 1)
    return term, end


def _field(written: str, at: int) -> tuple[str, tuple[str, ...]]:
    name, dot, rest = written.partition(".")
    name = _OTHER_NAMES.get(name.lower(), name.lower())
    if name not in FIELDS or (dot and name not in PAYLOADS):
        raise InvalidSearch(
            f"There is no field {written[:50]!r}. The fields are {', '.join(FIELDS)}. "
            "To look for a word with a colon in it, put it in quotes",
            at,
        )
    path = tuple(rest.split(".")) if dot else ()
    if "" in path:
        raise InvalidSearch(f"Write the names on the way between single dots, as in {name}.user.id:5", at)
    if len(path) > _DEEPEST:
        raise InvalidSearch(f"A value is looked for {_DEEPEST} names deep at most", at)
    for key in path:
        word = hides(key)
        if word is not None:
            raise InvalidSearch(
                f"What stands under {key!r} is hidden, as it matches {word!r}: nobody may search it", at
            )
    return name, path


def _value(text: str, place: int) -> tuple[str, bool, int]:
    """The value there, whether it was quoted, and the place after it."""
    if not text.startswith('"', place):
        found = _UNQUOTED.match(text, place)
        assert found is not None
        return found[0], False, found.end()
    quoted = _QUOTED.match(text, place)
    if quoted is None:
        raise InvalidSearch("This quotation mark is not closed", place + 1)
    if quoted.end() < len(text) and not text[quoted.end()].isspace():
        raise InvalidSearch("Behind a closing quotation mark comes a blank", quoted.end() + 1)
    return _ESCAPED.sub(r"\1", quoted[1]), True, quoted.end()


def _check(term: Term, at: int) -> None:
    if len(term.value) > _LONGEST_VALUE and not term.tested:
        raise InvalidSearch(f"A {term.field} has {_LONGEST_VALUE} characters at most", at)
    match term.field:
        case "status" if term.value not in list(RunStatus):
            raise InvalidSearch(f"There is no status {term.value[:50]!r}. They are {', '.join(RunStatus)}", at)
        case "is" if term.value != "paused":
            raise InvalidSearch(f"A run is nothing like {term.value[:50]!r}. Write is:paused", at)
        case "version" if not re.fullmatch(r"[0-9]{1,9}", term.value):
            raise InvalidSearch("A version is a whole number", at)
        case "workspace":
            pass
        case field if not term.value and field not in PAYLOADS:
            raise InvalidSearch("Nothing stands between the quotation marks", at)


# Looking at stored values ------------------------------------------------------------------


def traces(term: Term) -> tuple[tuple[str, ...], ...]:
    """Texts of which, in each group, one stands in every stored value that fits; they may stand in others too.

    Values stand there as `json.dumps` writes them, closely or with blanks. In errors, letters may be of the other case.
    """
    if term.field == "error":
        return _groups(_plain(term.value))
    text = _written(term.scalar)
    *way, last = ("", *term.path)
    around = [_plain(key) for key in way if not key.isdecimal()]
    if last and not last.isdecimal() and _PLAIN.fullmatch(last):
        return (*_groups(*around), (f'"{last}":{text}', f'"{last}": {text}'))
    return _groups(*around, "" if last.isdecimal() else _plain(last), _plain(text))


def _written(value: Any) -> str:
    """How JSON text of the value begins, as far as all ways to write it have that in common."""
    match value:
        case bool() | None:
            return json.dumps(value)
        case int() if 0 < abs(value) < 10**15:
            return str(value)
        case float() if value.is_integer() and 0 < abs(value) < 10**15:
            return str(int(value))
        case float() if value and "e" not in repr(value):
            return repr(value)
        case str():
            found = _PLAIN.match(value)
            return f'"{found[0] if found else ""}'
        case _:
            return ""


def _plain(text: str) -> str:
    """The longest part of a text that stands in JSON as it is."""
    return max(_PLAIN.findall(text), key=len, default="")


def _groups(*texts: str) -> tuple[tuple[str, ...], ...]:
    return tuple((text,) for text in texts if text)


def fits_error(terms: Sequence[Term], stored: str | None) -> bool:
    """Whether a stored error fits the terms: their texts stand in its class or message, as these are shown."""
    error = None if stored is None else redact_error(RunError.read(stored))
    said = "" if error is None else f"{error.type}\n{error.message}".casefold()
    return all((term.value.casefold() in said) is not term.negated for term in terms)


def fits_value(terms: Sequence[Term], stored: str | None, hidden: Hides | None = None) -> bool:
    """Whether a stored JSON value fits the terms; null where there is none.

    One that cannot be read fits no term, not even a negated one, nor does a hidden part of one.
    """
    if stored is None:
        return all(term.negated for term in terms)
    value = decode(stored)
    if isinstance(value, Undecodable):
        return False
    return all(_fits(term, value, hidden) for term in terms)


def _fits(term: Term, value: Any, hidden: Hides | None) -> bool:
    way = "$"
    if hidden is not None and hidden(way, value):
        return False
    for key in term.path:
        match value:
            case dict() if key in value:
                value, way = value[key], under(way, key)
            case list() if key.isdecimal() and len(key) < 10 and int(key) < len(value):
                value, way = value[int(key)], under(way, int(key))
            case _:
                return term.negated
        if hidden is not None and hidden(way, value):
            return False
    if isinstance(value, str) and redact_text(value) != value:
        return False
    return _same(value, term.scalar) is not term.negated


def _same(value: Any, wanted: Any) -> bool:
    """Whether these are the same JSON scalar: 5 is 5.0, but is not true, nor "5"."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return value == wanted
    return type(value) is type(wanted) and value == wanted
