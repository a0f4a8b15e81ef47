"""Plain JSON values: what may be stored without an annotation, and the text they are stored as."""

from __future__ import annotations

from collections.abc import Iterator
from json import JSONDecoder
from json import JSONEncoder
from types import NoneType
from typing import Any
from typing import NoReturn

from .errors import UndecodableValue

#: Objects and arrays inside one another. MySQL's JSON functions stop here too, and the limit is
#: far enough below Python's own that a value stored from a shallow stack is read from a deep one.
MAX_DEPTH = 100

SCALARS: frozenset[type] = frozenset({NoneType, bool, int, float, str})
_STR: frozenset[type] = frozenset({str})
#: A longer path would put much of the value into the message.
_LONGEST_KEY = 60


class Refusal(Exception):
    """A value that does not fit, not yet saying whose value it is.

    It is raised at the value and gathers the path while it passes the containers, so that a
    value that fits pays nothing for paths.
    """

    def __init__(self, reason: str, *, unannotated: type | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        #: The type of the value, where only an annotation is missing or says `Any`.
        self.unannotated = unannotated
        #: Indexes and keys, the innermost first.
        self.pieces: list[str | int] = []

    def under(self, piece: str | int) -> None:
        """Put an index or a key in front of the path."""
        self.pieces.append(piece)

    @property
    def path(self) -> str:
        return "$" + "".join(map(_piece, reversed(self.pieces)))


class TooLarge(Refusal):
    """A value whose text is over the limit."""


def _piece(piece: str | int) -> str:
    if isinstance(piece, int):
        return f"[{piece}]"
    if piece.isidentifier() and len(piece) <= _LONGEST_KEY:
        return f".{piece}"
    return f"[{piece[:_LONGEST_KEY]!a}{'…' if len(piece) > _LONGEST_KEY else ''}]"


def type_name(cls: type) -> str:
    """Name a class as its user would write it."""
    if cls is NoneType:
        return "None"
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


# Text --------------------------------------------------------------------------------------

# Without check_circular the encoder keeps no table of what it has seen: `check_plain` and the
# codecs bound the depth before a value gets here.
dumps = JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_canonical = JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_decoder = JSONDecoder(parse_constant=_refuse_constant)
_raw_decode = _decoder.raw_decode
_decode = _decoder.decode


def loads(text: str) -> Any:
    """Read JSON text; raise `UndecodableValue` for anything that is not."""
    try:
        # raw_decode alone costs a third of decode, which is only needed to skip white space.
        plain, end = _raw_decode(text)
        if end == len(text):
            return plain
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        return _decode(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise UndecodableValue(f"not JSON: {error}") from error


def write(plain: Any, *, max_bytes: int | None = None) -> str:
    """Return the text of a plain value; raise `Refusal` where a database or a browser would choke on it."""
    try:
        text = dumps(plain)
        size = len(text) if text.isascii() else len(text.encode())
    except ValueError:
        # Not chained: the encoder's error would keep the whole text alive and name no place.
        raise find_fault(plain) or Refusal("is not JSON") from None

    # True also for a harmless backslash before "u0000", hence the second look.
    if "\\u0000" in text and (fault := find_fault(plain)):
        raise fault

    if max_bytes is not None and size > max_bytes:
        raise TooLarge(f"is {size:,} bytes of JSON, and {max_bytes:,} are allowed")

    return text


def same_json(left: str, right: str) -> bool:
    """Tell whether two texts say the same, whatever the order of their keys; 1, 1.0 and true differ."""
    return left == right or _canonical(loads(left)) == _canonical(loads(right))


# Exceptions --------------------------------------------------------------------------------


def encode_args(args: tuple[Any, ...], *, max_bytes: int | None = None) -> list[Any] | None:
    """Return an exception's args as plain JSON that `write` takes, or None if they would not come back equal."""
    plain = list(args)
    try:
        check_plain(plain)
        return list(loads(write(plain, max_bytes=max_bytes)))
    except (Refusal, RecursionError):
        return None


def decode_args(plain: list[Any]) -> tuple[Any, ...]:
    """Return the args of an exception that `encode_args` stored."""
    return tuple(plain)


# Checks ------------------------------------------------------------------------------------


def check_plain(value: Any, depth: int = 1) -> None:
    """Raise `Refusal` unless the value is None, bool, int, float, str, or a list or str-keyed dict of such."""
    kind = type(value)
    if kind in SCALARS:
        return

    if kind is not list and kind is not dict:
        raise Refusal(f"is of type {type_name(kind)}", unannotated=kind)
    if depth > MAX_DEPTH:
        raise Refusal(f"is nested more than {MAX_DEPTH} deep, or contains itself")

    if kind is dict:
        check_keys(value)
    if not SCALARS.issuperset(map(type, value.values() if kind is dict else value)):
        _check_items(value, depth)


def _check_items(value: list[Any] | dict[str, Any], depth: int) -> None:
    for key, item in _items(value):
        try:
            check_plain(item, depth + 1)
        except Refusal as refusal:
            refusal.under(key)
            raise


def check_keys(value: dict[Any, Any]) -> None:
    """Raise `Refusal` unless every key is a str: JSON would turn 1 and "1" into one key."""
    if _STR.issuperset(map(type, value)):
        return

    kind = next(type(key) for key in value if type(key) is not str)
    name = type_name(kind)
    raise Refusal(f"has a key of type {name}, and JSON has str keys: annotate it as dict[{name}, …]")


def check_depth(plain: Any) -> None:
    """Raise `Refusal` if a plain value is nested too deep; needed where an annotation contains itself."""
    level = [plain]
    for _ in range(MAX_DEPTH):
        items = (item for value in level for _, item in _items(value))
        level = [item for item in items if isinstance(item, list | dict)]
        if not level:
            return
    raise Refusal(f"is nested more than {MAX_DEPTH} deep")


def find_fault(plain: Any) -> Refusal | None:
    """Find the first part of a plain value that JSON, UTF-8 or a text column cannot hold."""
    fault = _scalar_fault(plain)
    if fault is not None:
        return fault

    for key, item in _items(plain):
        if isinstance(key, str) and (fault := _scalar_fault(key)):
            return Refusal(f"has a key that {fault.reason}")
        if fault := find_fault(item):
            fault.under(key)
            return fault
    return None


def _items(plain: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(plain, dict):
        return iter(plain.items())
    if isinstance(plain, list):
        return enumerate(plain)
    return iter(())


def _scalar_fault(plain: Any) -> Refusal | None:
    if isinstance(plain, str):
        if "\0" in plain:
            return Refusal("contains a NUL character, which PostgreSQL cannot store")
        if not plain.isascii() and any("\ud800" <= char <= "\udfff" for char in plain):
            return Refusal("contains half of a surrogate pair, which is no text in UTF-8")
        return None

    try:
        dumps(None if isinstance(plain, list | dict) else plain)
    except ValueError:
        what = "NaN or infinite" if isinstance(plain, float) else "an int of too many digits"
        return Refusal(f"is {what}, which JSON cannot hold")
    return None
