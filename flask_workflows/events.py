"""Events: what an app tells its runs, and what runs wait for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from typing import is_typeddict
from typing import NamedTuple

from .durations import from_ms
from .errors import DuplicateDefinition
from .errors import UndecodableValue
from .errors import UnregisteredEvent
from .errors import ValueRefused
from .names import check_label
from .values import value_codec
from .values import ValueCodec


@dataclass(frozen=True, slots=True)
class Event:
    """An event without a declared type, or a message, as a run receives it; `payload` is plain JSON."""

    id: int
    name: str
    payload: Any
    emitted_at: datetime


@dataclass(frozen=True, slots=True)
class EventMatch:
    """One of several events to wait for: the event's class or name, fields of it, and from when on it counts."""

    event: str | type
    match: Mapping[str, Any] | None = None
    since: datetime | None = None


class Happened(NamedTuple):
    """What ended a `wait_any`: which of the events, counted from 0, and the event."""

    number: int
    event: Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run says it is."""

    done: float
    total: float | None
    note: str | None


class EventType:
    """An event that was declared: its name, and the class of its payload if it has one."""

    def __init__(self, name: str, cls: type | None) -> None:
        self.name = check_label(name, "event name")
        self.cls = cls
        annotation = Any if cls is None else cls
        self._codec: ValueCodec = value_codec(annotation, noun="payload", subject="the type")
        self._where = f"event {name!r}"

    def dump(self, payload: Any, max_bytes: int) -> str:
        """The payload as stored. A mapping is taken for an object of the declared class if it fits it."""
        if self.cls is not None and isinstance(payload, Mapping) and not self._takes(payload):
            text = value_codec(Any, noun="payload").dump(dict(payload), where=self._where, max_bytes=max_bytes)
            try:
                payload = self._codec.load(text, stored=False)
            except Exception as error:
                raise ValueRefused(f"{self._where}: the payload is no {self.cls.__name__}: {error}") from error
        return self._codec.dump(payload, where=self._where, max_bytes=max_bytes)

    def dump_plain(self, payload: Any, max_bytes: int) -> str:
        """As `dump`, of plain JSON values as somebody typed them: they are read as stored ones are."""
        text = value_codec(Any, noun="payload").dump(payload, where=self._where, max_bytes=max_bytes)
        if self.cls is None:
            return text
        try:
            value = self._codec.load(text, stored=False)
        except UndecodableValue as error:
            raise ValueRefused(f"{self._where}: the payload is no {self.cls.__name__}: {error}") from error
        return self._codec.dump(value, where=self._where, max_bytes=max_bytes)

    def _takes(self, payload: Mapping[str, Any]) -> bool:
        return self.cls is None or is_typeddict(self.cls) or isinstance(payload, self.cls)

    def received(self, stored: Mapping[str, Any]) -> Any:
        """The event as the wait returns it."""
        if self.cls is None:
            return event_of(stored)
        return self._codec.load(json.dumps(stored["payload"]), where=self._where)


def event_of(stored: Mapping[str, Any]) -> Event:
    return Event(stored["seq"], stored["name"], stored["payload"], from_ms(stored["emitted_at"]))


class EventTypes:
    """The events declared in this process, by name and by class."""

    def __init__(self) -> None:
        self._by_name: dict[str, EventType] = {}
        self._by_class: dict[type, EventType] = {}

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def types(self) -> list[EventType]:
        """Every declared event, by name."""
        return [declared for _, declared in sorted(self._by_name.items())]

    def declare(self, name: str, cls: type | None) -> None:
        """Register an event. Raises `DuplicateDefinition` for two different classes under one name."""
        known = self._by_name.get(name)
        if known is not None and known.cls is not None and cls is not None and not _same_class(known.cls, cls):
            raise DuplicateDefinition(
                f"two classes are declared for the event {name!r}: {known.cls.__module__}.{known.cls.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}; rename one"
            )
        if known is not None and cls is None:
            return
        declared = EventType(name, cls)
        self._by_name[name] = declared
        if cls is not None:
            self._by_class[cls] = declared

    def find(self, event: str | type) -> EventType:
        """The event of that name or class. Raises `UnregisteredEvent`."""
        found = self._by_name.get(event) if isinstance(event, str) else self._by_class.get(event)
        if found is None:
            shown = repr(event) if isinstance(event, str) else f"of class {event.__qualname__}"
            known = ", ".join(self.names()) or "none"
            raise UnregisteredEvent(
                f"no event {shown} is registered here (registered: {known}); declare it, "
                f'@workflows.event("…") on its class or workflows.event("…") for one without a type, and import the '
                "module that does"
            )
        return found

    def of(self, event: Any, payload: Any) -> tuple[EventType, Any]:
        """What to emit: by name and payload, or an object of a declared class alone."""
        if isinstance(event, str):
            return self.find(event), payload
        if payload is not None:
            raise ValueRefused("emit an object of the event's class alone, or a name with a payload")
        return self.find(type(event)), event


def _same_class(one: type, other: type) -> bool:
    """The same declaration seen twice: a reload, or one module under two names."""
    return one is other or _identity(one) == _identity(other)


def _identity(cls: type) -> tuple[object, ...]:
    # By the names of its fields: a reload makes the classes they refer to anew, too.
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None), cls.__qualname__, list(getattr(cls, "__annotations__", {}))
