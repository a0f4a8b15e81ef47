"""How arguments and results are stored: JSON text made by the annotations of the function.

The engine keeps one codec for each function and calls `dump` and `load`; what goes wrong is told in the
terms of whoever wrote that function.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .annotations import annotation_for
from .annotations import codec_for
from .annotations import resolve
from .codecs import Codec
from .codecs import Fields
from .codecs import parameters
from .codecs import str_dict_of
from .codecs import tuple_of
from .errors import AnnotationRefused
from .errors import UndecodableValue
from .errors import ValueRefused
from .errors import ValueTooLarge
from .plain import check_depth
from .plain import decode_args
from .plain import dumps
from .plain import encode_args
from .plain import loads
from .plain import Refusal
from .plain import same_json
from .plain import TooLarge
from .plain import write

__all__ = [
    "CallCodec",
    "Codec",
    "ValueCodec",
    "codec_for",
    "decode_args",
    "dumps",
    "encode_args",
    "loads",
    "same_json",
    "value_codec",
]

_Kind = inspect.Parameter
_POSITIONAL = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
_NAMED = (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)
_ONE = (*_POSITIONAL, _Kind.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """Stores the values of one annotation."""

    codec: Codec
    #: What errors call the value.
    noun: str = "result"
    #: What errors tell the user to annotate.
    subject: str = "the return type"

    def dump(self, value: Any, *, where: str, max_bytes: int | None = None) -> str:
        """Return the value as JSON text.

        Raise `ValueRefused`, with the path, for what would not come back equal, and `ValueTooLarge`
        over `max_bytes` of UTF-8. `where` says whose value it is: "step 'charge'".
        """
        codec = self.codec
        try:
            plain = codec.encode(value)
            if codec.recursive:
                check_depth(plain)
            text = write(plain, max_bytes=max_bytes)
            if codec.on_trial:
                self._try_out(plain, text)
        except TooLarge as refusal:
            raise ValueTooLarge(f"{where}: the {self.noun} {refusal.reason}; store a key to it instead") from None
        except Refusal as refusal:
            raise self._refused(refusal, where) from refusal.__cause__
        except RecursionError:
            raise ValueRefused(f"{where}: the {self.noun} is nested too deep, or contains itself") from None
        return text

    def load(self, text: str, *, where: str = "", stored: bool = True) -> Any:
        """Return the value that was dumped; raise `UndecodableValue` if text and annotation do not agree.

        Errors call it the stored value, unless it is one that somebody typed.
        """
        cause: BaseException | None
        path: str | None = None
        try:
            return self.codec.decode(loads(text))
        except UndecodableValue as error:
            reason, cause = f"is {error}", error.__cause__
        except Refusal as refusal:
            path, cause = refusal.path, refusal.__cause__
            reason = f"{'does not decode' if stored else 'does not fit'}: {path} {refusal.reason}"
        except RecursionError as error:
            reason, cause = "is nested too deep", error
        undecodable = UndecodableValue(
            f"{where}{': ' if where else ''}the {'stored ' if stored else ''}{self.noun} {reason}"
        )
        undecodable.path = path
        raise undecodable from cause

    def _try_out(self, plain: Any, text: str) -> None:
        """Raise `Refusal` unless the value comes back the same: user code in its constructor may change it."""
        # From text, as `plain` may share its lists with the value, which the constructor must not touch.
        if self.codec.encode(self.codec.decode(loads(text))) != plain:
            raise Refusal(f"changes when {self.codec.name} is rebuilt by its __init__ or __post_init__")

    def _refused(self, refusal: Refusal, where: str) -> ValueRefused:
        advice = ""
        if refusal.unannotated is not None:
            advice = _advice(refusal.unannotated, f"{self.subject} of {where}", at_root=not refusal.pieces)
        return _refusal(refusal, f"{where}: the {self.noun}: {refusal.path} {refusal.reason}{advice}")


def _refusal(refusal: Refusal, message: str) -> ValueRefused:
    refused = ValueRefused(message)
    refused.path = refusal.path
    return refused


class _InputCodec(ValueCodec):
    """Stores an object whose keys are parameters, so that advice names the parameter."""

    def _refused(self, refusal: Refusal, where: str) -> ValueRefused:
        advice = ""
        if refusal.unannotated is not None:
            *inner, name = refusal.pieces
            advice = _advice(refusal.unannotated, f"parameter {name!r} of {where}", at_root=not inner)
        return _refusal(refusal, f"{where}: the {self.noun}: {refusal.path} {refusal.reason}{advice}")


def value_codec(annotation: Any = Any, *, noun: str = "result", subject: str = "the return type") -> ValueCodec:
    """Return what stores the values of an annotation; raise `AnnotationRefused` if it does not say how."""
    return ValueCodec(codec_for(annotation), noun=noun, subject=subject)


def _advice(cls: type, subject: str, *, at_root: bool) -> str:
    """Say what to do about a value that has no annotation and is no plain JSON."""
    annotation = annotation_for(cls)
    if annotation is not None:
        return f"; annotate {subject} {'as' if at_root else 'so that it says, at this place,'} {annotation}"
    if hasattr(cls, "__mapper__"):
        return ", an ORM object; use its primary key, and load it again where it is needed"
    for base in (str, int, float, list, dict):
        if issubclass(cls, base):
            return f"; convert it with {base.__name__}()"
    return ", which cannot be stored; use plain data, or a dataclass and its annotation"


# Calls -------------------------------------------------------------------------------------


class CallCodec:
    """Stores the arguments of calls to one function, as a JSON object by parameter name."""

    __slots__ = ("_fields", "_inputs", "_leading", "_places", "_signature", "_simple", "name", "result")

    def __init__(self, function: Callable[..., Any], *, skip_first: bool = False) -> None:
        """Read the signature; raise `AnnotationRefused` for a parameter or result that cannot be stored.

        With `skip_first` the first parameter is not the caller's: it receives the context.
        """
        signature = _signature(function)
        parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
        kinds = [each.kind for each in parameters]

        self.name = getattr(function, "__name__", type(function).__name__)
        self.result = ValueCodec(_codec(function, "the return type", signature.return_annotation))
        self._signature = inspect.Signature(parameters)
        self._fields = Fields(
            name=f"{self.name}()",
            codecs={each.name: _parameter_codec(function, each) for each in parameters},
            required=frozenset(each.name for each in parameters if each.default is each.empty and each.kind in _ONE),
        )
        self._inputs = _InputCodec(_input_codec(self._fields), noun="input")
        self._simple = all(kind in _NAMED for kind in kinds)
        self._places = [each.name for each in parameters if each.kind in _POSITIONAL]
        # What follows *args by position must be given by position as well.
        leading = _POSITIONAL if _Kind.VAR_POSITIONAL in kinds else (_Kind.POSITIONAL_ONLY,)
        self._leading = [each for each in parameters if each.kind in leading]

    @property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """What the caller gives."""
        return tuple(self._signature.parameters.values())

    @property
    def fields(self) -> Fields:
        """Its parameters: a codec for each, and which must be given."""
        return self._fields

    def dump_call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, where: str, max_bytes: int | None = None
    ) -> str:
        """Return the arguments of a call as JSON text, defaults left out.

        Raise `TypeError` where Python would, else as `ValueCodec.dump` does.
        """
        return self._inputs.dump(self._bind(args, kwargs), where=where, max_bytes=max_bytes)

    def load_call(self, text: str, *, where: str = "", stored: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what to call the function with; raise `UndecodableValue` if its signature has become another."""
        arguments: dict[str, Any] = self._inputs.load(text, where=where, stored=stored)
        return ((), arguments) if self._simple else self._placed(arguments)

    def load_arguments(self, text: str, *, where: str = "") -> dict[str, Any]:
        """Return the arguments of a stored call by parameter name, defaults filled in."""
        arguments: dict[str, Any] = self._inputs.load(text, where=where)
        parameters = self._signature.parameters.values()
        given = {each.name: arguments.get(each.name, each.default) for each in parameters}
        return {name: value for name, value in given.items() if value is not inspect.Parameter.empty}

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        fields = self._fields
        if self._simple and len(args) <= len(self._places):
            bound = dict(zip(self._places, args, strict=False))
            if kwargs and bound.keys().isdisjoint(kwargs) and fields.codecs.keys() >= kwargs.keys():
                bound.update(kwargs)
                # In the signature's order, so that one input is always one text.
                bound = {name: bound[name] for name in fields.codecs if name in bound}
            if len(bound) == len(args) + len(kwargs) and bound.keys() >= fields.required:
                return bound

        # Five times slower, but it knows every kind of parameter, and every way to call them wrong.
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None

    def _placed(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._leading:
            args.append(arguments.pop(parameter.name, parameter.default))
        for parameter in self._signature.parameters.values():
            if parameter.name not in arguments:
                continue
            if parameter.kind is _Kind.VAR_POSITIONAL:
                args.extend(arguments[parameter.name])
            elif parameter.kind is _Kind.VAR_KEYWORD:
                kwargs.update(arguments[parameter.name])
            else:
                kwargs[parameter.name] = arguments[parameter.name]
        return tuple(args), kwargs


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            from annotationlib import Format

            # A name that is only there for type checkers is no fault in the context's annotation.
            return inspect.signature(function, annotation_format=Format.FORWARDREF)
        return inspect.signature(function)
    except ValueError:  # a builtin that does not tell
        return inspect.signature(lambda *args, **kwargs: None)


def _codec(function: Callable[..., Any], part: str, annotation: Any) -> Codec:
    if annotation is inspect.Parameter.empty:
        return codec_for(Any)
    try:
        return codec_for(resolve(function, annotation))
    except AnnotationRefused as error:
        raise AnnotationRefused(f"{_place(function)}: {part}: {error}") from None


def _parameter_codec(function: Callable[..., Any], parameter: inspect.Parameter) -> Codec:
    one = _codec(function, f"parameter {parameter.name!r}", parameter.annotation)
    if parameter.kind is _Kind.VAR_POSITIONAL:
        return tuple_of(one)
    if parameter.kind is _Kind.VAR_KEYWORD:
        return str_dict_of(one)
    return one


def _input_codec(fields: Fields) -> Codec:
    codecs = fields.codecs.values()
    return dataclasses.replace(
        parameters(fields),
        recursive=any(codec.recursive for codec in codecs),
        on_trial=any(codec.on_trial for codec in codecs),
    )


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = f"{getattr(function, '__qualname__', function)}()"
    return f"{name} in {code.co_filename}:{code.co_firstlineno}" if code else name
