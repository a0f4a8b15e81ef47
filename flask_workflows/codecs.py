"""How values of one type become plain JSON and come back equal, type and all.

Each function here returns a `Codec`: a pair of functions made once, when a step or
workflow is declared, so that storing a value looks at no annotation. What is read back
equals what was written; what could not be told apart in JSON is refused beforehand.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import time
from datetime import timedelta
from datetime import timezone
from decimal import Decimal
from pathlib import PurePath
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from .errors import AnnotationRefused
from .plain import check_keys
from .plain import check_plain
from .plain import dumps
from .plain import loads
from .plain import Refusal
from .plain import type_name

#: What each JSON type is read as. The arms of a union are told apart by these.
KINDS: dict[type, str] = {
    NoneType: "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How values are written and read; both functions raise `Refusal`."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    #: The JSON types it writes.
    kinds: frozenset[str]
    #: The exact classes of the values it takes.
    types: frozenset[type]
    #: Values are plain JSON as they are: encode and decode only check.
    plain: bool = False
    #: The class alone decides, so that a list is checked without a call for each item.
    scalar: bool = False
    #: Contains itself, so that only the value tells how deep it is.
    recursive: bool = False
    #: User code runs when a value is rebuilt: only a trial shows whether it is equal.
    on_trial: bool = False


def _codec(
    name: str, cls: type, kind: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any], *, plain: bool = False
) -> Codec:
    """Return a codec of one class and one JSON type, both of which it checks."""

    # Exact classes: a datetime is a date, but would come back as no datetime.
    def checked_encode(value: Any) -> Any:
        if type(value) is not cls:
            raise _not_this(value, name)
        return encode(value)

    def checked_decode(plain: Any) -> Any:
        if KINDS[type(plain)] != kind:
            raise _wrong_json(plain, name)
        return decode(plain)

    return Codec(
        name=name,
        encode=checked_encode,
        decode=checked_decode,
        kinds=frozenset({kind}),
        types=frozenset({cls}),
        plain=plain,
    )


def _not_this(value: Any, name: str) -> Refusal:
    written = type_name(type(value))
    return Refusal(f"is of type {written}, where the annotation says {name}")


def _wrong_json(plain: Any, name: str) -> Refusal:
    return Refusal(f"is a JSON {KINDS[type(plain)]}, which is no {name}")


def _call(function: Callable[..., Any], name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run what rebuilds a value; whatever it raises says that the value does not fit."""
    try:
        return function(*args, **kwargs)
    except Refusal:
        raise
    except Exception as error:
        # Without its message, which may quote the value, and messages are logged.
        kind = type(error).__name__
        raise Refusal(f"cannot be rebuilt as {name}: {kind}") from error


# Scalars -----------------------------------------------------------------------------


def plain_scalar(name: str, *classes: type) -> Codec:
    """Return the codec of a scalar that JSON knows."""
    accepted = frozenset(classes)

    def check(value: Any) -> Any:
        # Exact classes: True is an int and a numpy.float64 a float, but neither comes
        # back as such.
        if type(value) not in accepted:
            raise _not_this(value, name)
        return value

    kinds = frozenset(KINDS[cls] for cls in classes)
    return Codec(name=name, encode=check, decode=check, kinds=kinds, types=accepted, plain=True, scalar=True)


def _any_encode(value: Any) -> Any:
    check_plain(value)
    return value


def _any_decode(plain: Any) -> Any:
    return plain


#: Nothing is known but that it is plain JSON.
ANY = Codec(
    name="Any",
    encode=_any_encode,
    decode=_any_decode,
    kinds=frozenset(KINDS.values()),
    types=frozenset(KINDS),
    plain=True,
)


def text(cls: type, write: Callable[[Any], str], read: Callable[[str], Any], *, name: str = "") -> Codec:
    """Return the codec of a class whose values are written as JSON strings."""
    name = name or cls.__name__
    return _codec(name, cls, "string", write, lambda plain: _call(read, name, plain))


def write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Refusal("is NaN or infinite, which JSON cannot hold")
    return str(value)


def write_datetime(value: datetime) -> str:
    written = value.isoformat()
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return written
    if value.utcoffset() is None:
        raise Refusal("has a time zone without an offset")
    # As RFC 9557 writes it. With the offset alone, a day added to the value that was
    # read would ignore the change to winter time.
    return f"{written}[{zone.key}]" if isinstance(zone, ZoneInfo) and zone.key else written


def read_datetime(written: str) -> datetime:
    if not written.endswith("]"):
        return datetime.fromisoformat(written)

    iso, _, key = written[:-1].partition("[")
    instant = datetime.fromisoformat(iso)
    zone = ZoneInfo(key)
    for fold in (0, 1):
        local = instant.replace(tzinfo=zone, fold=fold)
        if local.utcoffset() == instant.utcoffset():
            return local
    # The rules of the zone have changed since: the instant stands, the wall clock moves.
    return instant.astimezone(zone)


def write_time(value: time) -> str:
    if value.tzinfo is not None and type(value.tzinfo) is not timezone:
        raise Refusal("has a time zone whose offset depends on the day")
    return value.isoformat()


_DURATION = re.compile(r"P(-?\d+)DT(\d+)(?:\.(\d{6}))?S", re.ASCII)


def write_timedelta(value: timedelta) -> str:
    fraction = f".{value.microseconds:06d}" if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"


def read_timedelta(written: str) -> timedelta:
    match = _DURATION.fullmatch(written)
    if match is None:
        raise ValueError("not a duration as write_timedelta writes it")
    days, seconds, microseconds = map(int, match.groups(default="0"))
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def write_bytes(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def read_bytes(written: str) -> bytes:
    return base64.b64decode(written, validate=True)


def path(cls: type[PurePath]) -> Codec:
    # Path() makes a PosixPath, and that is the class its values have.
    return text(type(cls()), str, cls, name=cls.__name__)


# Enums and literals ------------------------------------------------------------------


def enumeration(cls: type[enum.Enum]) -> Codec:
    """Return the codec of an enum, written by value where that is a str or int, else by name."""
    name = type_name(cls)
    members = {_key(_member_plain(member)): member for member in cls}
    if len(members) < len(cls):
        raise AnnotationRefused(f"`{name}`: one member's value is another one's name")

    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise _not_this(value, name)
        return _member_plain(value)

    def decode(plain: Any) -> Any:
        if type(plain) is not str and type(plain) is not int:
            raise _wrong_json(plain, name)
        member = members.get(_key(plain))
        # The call is for combined flags, and for old values that `_missing_` still knows.
        return _call(cls, name, plain) if member is None else member

    kinds = frozenset(KINDS[kind] for kind, _ in members) or frozenset({"string"})
    return Codec(name=name, encode=encode, decode=decode, kinds=kinds, types=frozenset({cls}))


def _member_plain(member: enum.Enum) -> str | int:
    value = member._value_
    return value if type(value) is str or type(value) is int else member._name_


def literal(name: str, written: Mapping[tuple[type, Any], Any]) -> Codec:
    """Return the codec of literals, given the plain value of each (class, value)."""
    values = {_key(plain): value for (_, value), plain in written.items()}
    if len(values) < len(written):
        raise AnnotationRefused(f"`{name}`: two of its values are the same in JSON")

    def encode(value: Any) -> Any:
        try:
            return written[_key(value)]
        except (KeyError, TypeError):
            raise Refusal(f"is none of {name}") from None

    def decode(plain: Any) -> Any:
        try:
            return values[_key(plain)]
        except (KeyError, TypeError):
            raise Refusal(f"is none of {name}") from None

    return Codec(
        name=name,
        encode=encode,
        decode=decode,
        kinds=frozenset(KINDS[kind] for kind, _ in values),
        types=frozenset(kind for kind, _ in written),
        plain=all(kind in KINDS for kind, _ in written),
    )


def _key(value: Any) -> tuple[type, Any]:
    """Return a key that tells 1 from True."""
    return type(value), value


# Containers --------------------------------------------------------------------------


def _each_item(items: Iterable[Any], function: Callable[[Any], Any]) -> list[Any]:
    out: list[Any] = []
    try:
        for item in items:
            out.append(function(item))
    except Refusal as refusal:
        refusal.under(len(out))
        raise
    return out


def _each_entry(entries: Iterable[tuple[str, Any]], function: Callable[[Any], Any]) -> dict[str, Any]:
    out = {}
    key = ""
    try:
        for key, item in entries:
            out[key] = function(item)
    except Refusal as refusal:
        refusal.under(key)
        raise
    return out


def list_of(item: Codec) -> Codec:
    name = f"list[{item.name}]"
    scalars = item.types if item.scalar else frozenset[type]()

    def encode(value: Any) -> Any:
        if scalars.issuperset(map(type, value)):
            return value
        out = _each_item(value, item.encode)
        return value if item.plain else out

    def decode(plain: Any) -> Any:
        if item is ANY or scalars.issuperset(map(type, plain)):
            return plain
        return _each_item(plain, item.decode)

    return _codec(name, list, "array", encode, decode, plain=item.plain)


def tuple_of(item: Codec) -> Codec:
    name = f"tuple[{item.name}, ...]"
    return _codec(
        name,
        tuple,
        "array",
        lambda value: _each_item(value, item.encode),
        lambda plain: tuple(_each_item(plain, item.decode)),
    )


def set_of(cls: type, item: Codec) -> Codec:
    """Return the codec of a set or frozenset, written sorted: hashes differ by process."""
    name = f"{cls.__name__}[{item.name}]"
    return _codec(
        name,
        cls,
        "array",
        lambda value: sorted(_each_item(value, item.encode), key=_json),
        lambda plain: _call(cls, name, _each_item(plain, item.decode)),
    )


def _json(plain: Any) -> str:
    try:
        return dumps(plain)
    except ValueError:
        raise Refusal("contains a number that JSON cannot hold") from None


def fixed_tuple(items: tuple[Codec, ...]) -> Codec:
    name = f"tuple[{', '.join(item.name for item in items) or '()'}]"
    encoders = [item.encode for item in items]
    decoders = [item.decode for item in items]

    def each(values: Any, functions: list[Callable[[Any], Any]]) -> list[Any]:
        if len(values) != len(functions):
            raise Refusal(f"has {len(values)} items, where the annotation says {name}")
        following = iter(functions)
        return _each_item(values, lambda value: next(following)(value))

    return _codec(name, tuple, "array", lambda value: each(value, encoders), lambda plain: tuple(each(plain, decoders)))


def str_dict_of(item: Codec) -> Codec:
    name = f"dict[str, {item.name}]"
    scalars = item.types if item.scalar else frozenset[type]()

    def encode(value: Any) -> Any:
        check_keys(value)
        if scalars.issuperset(map(type, value.values())):
            return value
        out = _each_entry(value.items(), item.encode)
        return value if item.plain else out

    def decode(plain: Any) -> Any:
        if item is ANY or scalars.issuperset(map(type, plain.values())):
            return plain
        return _each_entry(plain.items(), item.decode)

    return _codec(name, dict, "object", encode, decode, plain=item.plain)


def keyed_dict(key: Codec, item: Codec) -> Codec:
    """Return the codec of a dict whose keys become strings, or else their JSON text."""
    name = f"dict[{key.name}, {item.name}]"
    as_json = key.kinds != {"string"}
    if as_json and "string" in key.kinds:
        raise AnnotationRefused(f'`{name}`: the keys 1 and "1" would be one in JSON; use keys of one type')

    def write_key(value: Any) -> Any:
        plain = key.encode(value)
        return _json(plain) if as_json else plain

    def read_key(written: str) -> Any:
        return key.decode(_call(loads, key.name, written) if as_json else written)

    def encode(value: Any) -> Any:
        keys = _each_key(value, write_key)
        return _each_entry(zip(keys, value.values(), strict=True), item.encode)

    def decode(plain: Any) -> Any:
        keys = _each_key(plain, read_key)
        items = _each_entry(plain.items(), item.decode).values()
        return _call(dict, name, zip(keys, items, strict=True))

    return _codec(name, dict, "object", encode, decode)


def _each_key(keys: Iterable[Any], function: Callable[[Any], Any]) -> list[Any]:
    try:
        return [function(key) for key in keys]
    except Refusal as refusal:
        raise Refusal(f"has a key that {refusal.reason}") from refusal.__cause__


# Unions ------------------------------------------------------------------------------


def union(arms: list[Codec]) -> Codec:
    name = " | ".join(arm.name for arm in arms)
    for position, arm in enumerate(arms):
        for other in arms[:position]:
            _refuse_overlap(name, other, arm)

    encoders = _by_type(name, arms, lambda arm: arm.types, lambda arm: arm.encode)
    decoders = _by_type(name, arms, _read_types, lambda arm: arm.decode)

    def encode(value: Any) -> Any:
        encoder = encoders.get(type(value))
        if encoder is None:
            raise _not_this(value, name)
        return encoder(value)

    def decode(plain: Any) -> Any:
        decoder = decoders.get(type(plain))
        if decoder is None:
            raise _wrong_json(plain, name)
        return decoder(plain)

    return Codec(
        name=name,
        encode=encode,
        decode=decode,
        kinds=frozenset().union(*(arm.kinds for arm in arms)),
        types=frozenset().union(*(arm.types for arm in arms)),
        plain=all(arm.plain for arm in arms),
        scalar=all(arm.scalar for arm in arms),
    )


def _refuse_overlap(name: str, one: Codec, other: Codec) -> None:
    # Where both are plain, it does not matter which of them reads what the other wrote.
    if one.plain and other.plain:
        return
    for kind in sorted(one.kinds & other.kinds):
        raise AnnotationRefused(
            f"`{name}`: {one.name} and {other.name} are both a JSON {kind}, so what is "
            "stored could not be told apart; use one of them, or a dataclass with a field for each"
        )


def _read_types(arm: Codec) -> Iterable[type]:
    return (cls for cls, kind in KINDS.items() if kind in arm.kinds)


def _by_type(
    name: str,
    arms: list[Codec],
    types_of: Callable[[Codec], Iterable[type]],
    function_of: Callable[[Codec], Callable[[Any], Any]],
) -> dict[type, Callable[[Any], Any]]:
    found: dict[type, list[Callable[[Any], Any]]] = {}
    for arm in arms:
        for cls in types_of(arm):
            found.setdefault(cls, []).append(function_of(arm))
    return {cls: _first_of(name, functions) for cls, functions in found.items()}


def _first_of(name: str, functions: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if len(functions) == 1:
        return functions[0]

    def try_each(value: Any) -> Any:
        for function in functions:
            try:
                return function(value)
            except Refusal:
                continue
        raise Refusal(f"does not fit {name}")

    return try_each


# Records -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a record, or the parameters of a function."""

    name: str
    codecs: dict[str, Codec]
    #: Those that a stored object must have; the others have defaults, or may be left out.
    required: frozenset[str]

    def write(self, values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        codecs = self.codecs
        out = {}
        key = ""
        try:
            for key, value in values:
                out[key] = codecs[key].encode(value)
        except Refusal as refusal:
            refusal.under(key)
            raise
        return out

    def read(self, plain: dict[str, Any]) -> dict[str, Any]:
        self.check(plain)
        codecs = self.codecs
        out = {}
        key = ""
        try:
            for key, item in plain.items():
                out[key] = codecs[key].decode(item)
        except Refusal as refusal:
            refusal.under(key)
            raise
        return out

    def check(self, present: Mapping[str, Any]) -> None:
        keys = present.keys()
        if missing := self.required - keys:
            raise Refusal(f"lacks {min(missing)!r}, for which {self.name} has no default")
        if unknown := keys - self.codecs.keys():
            name = min(map(str, unknown))
            raise Refusal(f"has {name!r}, which {self.name} does not know")


def data_class(cls: type, fields: Fields, late: frozenset[str]) -> Codec:
    """Return the codec of a dataclass; its constructor does not take the `late` fields."""
    names = list(fields.codecs)

    def encode(value: Any) -> Any:
        try:
            values = [(name, getattr(value, name)) for name in names]
        except AttributeError as error:
            raise Refusal(f"has no value in its field {error.name!r}") from None
        return fields.write(values)

    def decode(plain: Any) -> Any:
        values = fields.read(plain)
        afterwards = {name: values.pop(name) for name in late & values.keys()}
        rebuilt = _call(cls, fields.name, **values)
        for name, value in afterwards.items():
            object.__setattr__(rebuilt, name, value)  # the class may be frozen
        return rebuilt

    return _codec(fields.name, cls, "object", encode, decode)


def named_tuple(cls: type, fields: Fields) -> Codec:
    """Return the codec of a named tuple, written by name so that a field may be added."""

    def encode(value: Any) -> Any:
        return fields.write(zip(fields.codecs, value, strict=True))

    def decode(plain: Any) -> Any:
        return _call(cls, fields.name, **fields.read(plain))

    return _codec(fields.name, cls, "object", encode, decode)


def typed_dict(fields: Fields) -> Codec:
    def encode(value: Any) -> Any:
        fields.check(value)
        return fields.write(value.items())

    return _codec(fields.name, dict, "object", encode, fields.read)


def parameters(fields: Fields) -> Codec:
    """Return the codec of a call's arguments by name."""
    return _codec(fields.name, dict, "object", lambda bound: fields.write(bound.items()), fields.read)


def pydantic_model(cls: Any) -> Codec:
    """Return the codec of a pydantic model, which pydantic itself writes and reads."""
    name = type_name(cls)

    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise _not_this(value, name)
        try:
            plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
            same = decode(plain) == value
        except Exception as error:
            kind = type(error).__name__
            raise Refusal(f"cannot be written by pydantic: {kind}") from error
        if not same:
            raise Refusal(f"does not come back equal from the JSON that {name} writes")
        return plain

    def decode(plain: Any) -> Any:
        # From text: a strict model takes a string for a datetime only from there.
        return _call(lambda: cls.model_validate_json(dumps(plain)), name)

    any_json = cls.__pydantic_root_model__
    kinds = frozenset(KINDS.values()) if any_json else frozenset({"object"})
    return Codec(name=name, encode=encode, decode=decode, kinds=kinds, types=frozenset({cls}))


def promise(name: str, built: list[Codec], kinds: Iterable[str], cls: type | None) -> Codec:
    """Return the codec that `built` will hold: that of a class inside itself."""
    return Codec(
        name=name,
        encode=lambda value: built[0].encode(value),
        decode=lambda plain: built[0].decode(plain),
        kinds=frozenset(kinds),
        types=frozenset() if cls is None else frozenset({cls}),
    )
