"""Which codec an annotation asks for.

Looked at once, when a step or workflow is declared: an annotation that does not say how
its values come back from JSON is refused there, not when the first value is stored.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from datetime import date
from datetime import datetime
from datetime import time
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import PurePath
from types import NoneType
from typing import Any
from uuid import UUID

from . import codecs
from .codecs import Codec
from .codecs import Fields
from .codecs import KINDS
from .errors import AnnotationRefused
from .plain import type_name

_SUPPORTED = (
    "None, bool, int, float, str, bytes, Decimal, UUID, datetime, date, time, timedelta, "
    "Path, Enum, Literal, dataclass, TypedDict, NamedTuple, pydantic models, "
    "and list, dict, tuple, set, frozenset and unions of these"
)
_NONE = codecs.plain_scalar("None", NoneType)
_STR = codecs.plain_scalar("str", str)
_SCALARS: dict[Any, Codec] = {
    Any: codecs.ANY,
    object: codecs.ANY,
    None: _NONE,
    NoneType: _NONE,
    typing.NoReturn: _NONE,
    typing.Never: _NONE,
    bool: codecs.plain_scalar("bool", bool),
    int: codecs.plain_scalar("int", int),
    # An int may pass for a float (PEP 484). JSON keeps 1 and 1.0 apart, so each comes
    # back as it went.
    float: codecs.plain_scalar("float", float, int),
    str: _STR,
    typing.LiteralString: _STR,
    bytes: codecs.text(bytes, codecs.write_bytes, codecs.read_bytes),
    Decimal: codecs.text(Decimal, codecs.write_decimal, Decimal),
    UUID: codecs.text(UUID, str, UUID),
    datetime: codecs.text(datetime, codecs.write_datetime, codecs.read_datetime),
    date: codecs.text(date, date.isoformat, date.fromisoformat),
    time: codecs.text(time, codecs.write_time, time.fromisoformat),
    timedelta: codecs.text(timedelta, codecs.write_timedelta, codecs.read_timedelta),
}
#: An abstract container is taken as the one that JSON gives back.
_CONTAINERS: dict[Any, type] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    dict: dict,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
#: Around a type, and of no meaning for its values. ReadOnly came with Python 3.13.
_WRAPPERS = (
    typing.Annotated,
    typing.Required,
    typing.NotRequired,
    typing.Final,
    getattr(typing, "ReadOnly", typing.Final),
)


def codec_for(annotation: Any) -> Codec:
    """Return the codec of a resolved annotation; raise `AnnotationRefused` if it has none."""
    try:
        hash(annotation)
    except TypeError:  # Annotated[int, {}]
        return _Builder().root(annotation)
    return _cached(annotation)


@lru_cache(maxsize=1024)
def _cached(annotation: Any) -> Codec:
    return _Builder().root(annotation)


def annotation_for(cls: type) -> str | None:
    """Name the annotation that stores the values of a class, if there is one."""
    try:
        codec = codec_for(cls)
    except AnnotationRefused:
        return None
    return codec.name if cls in codec.types else None


# Names -------------------------------------------------------------------------------


def resolve(owner: Any, annotation: Any) -> Any:
    """Evaluate the annotation of a function, or alias, in its module and the scopes around it."""
    inner = inspect.unwrap(owner)
    module = getattr(inner, "__module__", None) or ""
    names = getattr(inner, "__globals__", None) or vars(sys.modules.get(module, typing))
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    closure = _closure(inner)
    try:
        return typing.get_type_hints(holder, names, closure)["it"]
    except NameError:
        local_names = _callers_names(module) | closure
    try:
        return typing.get_type_hints(holder, names, local_names)["it"]
    except NameError as error:
        raise _undefined(str(annotation), error) from error


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    names = {}
    code = getattr(function, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _callers_names(module: str) -> dict[str, Any]:
    """Return the local names of the calls under way in a module.

    A class declared in a function, as tests do, is nowhere else.
    """
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _field_hints(cls: type, arguments: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the resolved annotations of a record, its type variables replaced."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:
        names = {**_callers_names(cls.__module__), cls.__name__: cls}
        try:
            hints = typing.get_type_hints(cls, localns=names, include_extras=True)
        except NameError as error:
            raise _undefined(type_name(cls), error) from error
    return {name: _substituted(hint, arguments) for name, hint in hints.items()}


def _undefined(where: str, error: NameError) -> AnnotationRefused:
    return AnnotationRefused(
        f"`{where}`: {error.name!r} is not defined when the step or workflow is declared; "
        "define it further up, and import it outside `if TYPE_CHECKING:`"
    )


def _substituted(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not arguments or not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(arguments.get(each, each) for each in parameters)]


def _written(annotation: Any) -> str:
    """Write an annotation as in the source."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return type_name(annotation)
    return inspect.formatannotation(annotation)


def _class_of(annotation: Any) -> Any:
    return typing.get_origin(annotation) or annotation


# Codecs ------------------------------------------------------------------------------


@dataclass
class _Builder:
    """Builds the codec of one annotation.

    It keeps the records it has met, as one may contain itself, and what holds for the
    whole because it holds for a part.
    """

    recursive: bool = False
    on_trial: bool = False
    #: Empty while under way.
    records: dict[Any, list[Codec]] = field(default_factory=dict)

    def root(self, annotation: Any) -> Codec:
        codec = self.build(annotation)
        return dataclasses.replace(codec, recursive=self.recursive, on_trial=self.on_trial)

    def build(self, annotation: Any) -> Codec:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None and isinstance(annotation, collections.abc.Hashable):
            scalar = _SCALARS.get(annotation)
            if scalar is not None:
                return scalar
        if origin in _WRAPPERS:
            return self.build(args[0])
        if isinstance(annotation, typing.NewType):
            return self.build(annotation.__supertype__)
        if origin is typing.Literal:
            return self.literal(args)
        if origin is typing.Union or origin is types.UnionType:
            return codecs.union(self.arms(args))
        if _class_of(annotation) in _CONTAINERS:
            return self.container(annotation, args)
        if type(_class_of(annotation)).__name__ == "TypeAliasType":
            return self.once(annotation, self.alias, KINDS.values(), None)
        if isinstance(_class_of(annotation), type):
            return self.of_class(annotation)
        raise _refused(annotation)

    def literal(self, values: tuple[Any, ...]) -> Codec:
        written = {(type(v), v): self.build(type(v)).encode(v) for v in values}
        return codecs.literal(_written(typing.Literal[values]), written)

    def arms(self, args: tuple[Any, ...]) -> list[Codec]:
        # The literals of a union are one arm: their values are told apart one by one.
        literals = [arg for arg in args if typing.get_origin(arg) is typing.Literal]
        values = [value for arg in literals for value in typing.get_args(arg)]
        arms = [self.build(arg) for arg in args if arg not in literals]
        return [*arms, self.literal(tuple(values))] if values else arms

    def container(self, annotation: Any, args: tuple[Any, ...]) -> Codec:
        container = _CONTAINERS[_class_of(annotation)]
        if container is dict:
            key, item = (self.build(arg) for arg in args or (str, Any))
            if key is _STR or key is codecs.ANY:
                return codecs.str_dict_of(item)
            return codecs.keyed_dict(key, item)
        if container is tuple:
            return self.tuple(annotation, args)
        item = self.build(*args or (Any,))
        if container is list:
            return codecs.list_of(item)
        return codecs.set_of(container, item)

    def tuple(self, annotation: Any, args: tuple[Any, ...]) -> Codec:
        if annotation in (tuple, typing.Tuple):  # noqa: UP006 - users may write it
            return codecs.tuple_of(codecs.ANY)
        if args and args[-1] is Ellipsis:
            return codecs.tuple_of(self.build(args[0]))
        return codecs.fixed_tuple(tuple(self.build(arg) for arg in args))

    def alias(self, annotation: Any) -> Codec:
        """Build what `type X = …` stands for."""
        args, alias = typing.get_args(annotation), _class_of(annotation)
        value = resolve(alias, alias.__value__)
        return self.build(value[args] if args else value)

    def of_class(self, annotation: Any) -> Codec:
        cls = _class_of(annotation)
        if issubclass(cls, enum.Enum):
            return codecs.enumeration(cls)
        if issubclass(cls, PurePath):
            return codecs.path(cls)

        make = self.record_maker(cls)
        if make is None or hasattr(cls, "__mapper__"):
            raise _refused(annotation)
        stored = dict if typing.is_typeddict(cls) else cls
        return self.once(annotation, make, ["object"], stored)

    def record_maker(self, cls: Any) -> Callable[[Any], Codec] | None:
        if typing.is_typeddict(cls):
            return self.typed_dict
        if issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
            return self.named_tuple
        if dataclasses.is_dataclass(cls):
            return self.data_class
        # Looked up and never imported: there is a model only if its app did import it.
        base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
        if base is not None and issubclass(cls, base) and hasattr(cls, "model_dump"):
            return lambda _: codecs.pydantic_model(cls)
        return None

    def once(self, annotation: Any, make: Callable[[Any], Codec], kinds: Iterable[str], cls: type | None) -> Codec:
        """Build a record or alias; inside itself it is a promise of the codec to come."""
        built = self.records.get(annotation)
        if built is None:
            built = self.records[annotation] = []
            built.append(make(annotation))
            return built[0]
        if built:
            return built[0]
        self.recursive = True
        return codecs.promise(_written(annotation), built, kinds, cls)

    def data_class(self, annotation: Any) -> Codec:
        cls = _class_of(annotation)
        hints = _hints(annotation)
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar) and not hasattr(cls, name):
                raise AnnotationRefused(
                    f"`{type_name(cls)}` does not keep its InitVar {name!r}, without which "
                    "it cannot be rebuilt; give that a default"
                )
        # What __post_init__, or a hand-written __init__, makes of the fields, nobody knows.
        if hasattr(cls, "__post_init__") or not cls.__dataclass_params__.init:
            self.on_trial = True

        fields = dataclasses.fields(cls)
        late = frozenset(each.name for each in fields if not each.init)
        required = {each.name for each in fields if not _has_default(each)} - late
        known = {each.name: hints[each.name] for each in fields}
        return codecs.data_class(cls, self.fields(annotation, known, required), late)

    def named_tuple(self, annotation: Any) -> Codec:
        cls = _class_of(annotation)
        hints = _hints(annotation)
        known = {name: hints.get(name, Any) for name in cls._fields}
        required = known.keys() - cls._field_defaults.keys()
        return codecs.named_tuple(cls, self.fields(annotation, known, required))

    def typed_dict(self, annotation: Any) -> Codec:
        hints = _hints(annotation)
        # __required_keys__ alone is wrong where annotations are strings, as under
        # `from __future__ import annotations`: it then sees no NotRequired.
        usual = _class_of(annotation).__required_keys__
        marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
        required = [
            name
            for name, mark in marks.items()
            if mark is typing.Required or (name in usual and mark is not typing.NotRequired)
        ]
        return codecs.typed_dict(self.fields(annotation, hints, required))

    def fields(self, annotation: Any, hints: Mapping[str, Any], required: Iterable[str]) -> Fields:
        name = _written(annotation)
        found = {}
        for key, hint in hints.items():
            try:
                found[key] = self.build(hint)
            except AnnotationRefused as error:
                raise AnnotationRefused(f"field {key!r} of {name}: {error}") from None
        return Fields(name=name, codecs=found, required=frozenset(required))


def _hints(annotation: Any) -> dict[str, Any]:
    cls = _class_of(annotation)
    parameters = getattr(cls, "__parameters__", ())
    arguments = zip(parameters, typing.get_args(annotation), strict=False)
    return _field_hints(cls, dict(arguments))


def _has_default(each: dataclasses.Field[Any]) -> bool:
    return each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING


def _refused(annotation: Any) -> AnnotationRefused:
    if isinstance(annotation, str | typing.ForwardRef):
        return AnnotationRefused(f"`{annotation}` cannot be resolved")

    written = _written(annotation)
    if isinstance(annotation, typing.TypeVar):
        reason = "is a type variable; say which type, as in Page[int]"
    elif hasattr(annotation, "__mapper__"):
        reason = "is an ORM model; use its primary key, and load it again where needed"
    else:
        reason = f"does not say how to store its values; there are {_SUPPORTED}"
    return AnnotationRefused(f"`{written}` {reason}")
