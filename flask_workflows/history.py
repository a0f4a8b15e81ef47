"""The recorded calls of a run, and the guard that the code still makes them."""

from __future__ import annotations

import linecache
import sys
from typing import NamedTuple

from .errors import NonDeterminismError
from .store import StoredStep
from .values import same_json


class Call(NamedTuple):
    """A call the body makes now; `stored` is its record, null for a new one."""

    key: str
    position: int
    stored: StoredStep | None


class History:
    """The calls of one branch, in their order.

    Strict: the n-th call must be the recorded n-th, with the same input. Otherwise calls are found by key alone.
    """

    def __init__(self, stored: list[StoredStep], *, strict: bool, path: str = "") -> None:
        self._path = path
        self._stored = stored
        self._by_key = {step.key: step for step in stored}
        self._strict = strict
        self._position = 0
        self._uses: dict[str, int] = {}
        self._last = stored[-1].position if stored else 0

    @property
    def replaying(self) -> bool:
        """Whether recorded calls are still to come."""
        return self._position < len(self._stored)

    @property
    def upcoming(self) -> StoredStep | None:
        """The recorded call that is to come next; null where none is, or where their order does not matter."""
        return self._stored[self._position] if self._strict and self.replaying else None

    def comes(self, name: str) -> bool:
        """Whether the next call is recorded as the first one of this name; by key alone where order does not matter."""
        key = f"{self._path}{name}"
        return key in self._by_key if not self._strict else self.replaying and self._stored[self._position].key == key

    def next(self, name: str, input: str | None) -> Call:
        """Take the next call of this name. Raises `NonDeterminismError` when the record holds another one here."""
        uses = self._uses.get(name, 0) + 1
        self._uses[name] = uses
        key = f"{self._path}{name}" if uses == 1 else f"{self._path}{name}#{uses}"
        self._position += 1

        if not self._strict:
            stored = self._by_key.get(key)
            if stored is not None:
                return Call(key, stored.position, stored)
            self._last += 1
            return Call(key, self._last, None)

        if self._position > len(self._stored):
            self._last += 1
            return Call(key, self._last, None)
        stored = self._stored[self._position - 1]
        if stored.key != key:
            self._diverged(f"call {self._position} was {stored.key!r} and is now {key!r}")
        if stored.input is not None and stored.input != input and not _same(stored.input, input):
            self._diverged(
                f"call {self._position}, {key!r}, had the input {_cut(stored.input)} and has now {_cut(input)}"
            )
        return Call(key, stored.position, stored)

    def ended(self, place: str) -> None:
        """Check, when the body at `place` returns, that no recorded call is left over."""
        if self._strict and self.replaying:
            left = self._stored[self._position]
            raise NonDeterminismError(
                f"the body at {place} returned before call {left.position}, which was {left.key!r}. Code between steps "
                "must decide the same on every execution: put it back as it was, or give the changed code a new "
                "version, then retry the run"
            )

    def _diverged(self, what: str) -> None:
        raise NonDeterminismError(
            f"{what}, at {caller()}. Code between steps must decide the same on every execution: put it back as it "
            "was, or give the changed code a new version, then retry the run"
        )


def caller() -> str:
    """`file:line` of the nearest frame outside this package."""
    frame = sys._getframe(1)
    package = __name__.rpartition(".")[0]
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != package and not module.startswith(package + "."):
            break
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"{place} ({line})" if line else place


def _same(stored: str, given: str | None) -> bool:
    """Equal but for the order of names: a signature may be reordered under running runs."""
    return given is not None and same_json(stored, given)


def _cut(text: str | None) -> str:
    shown = str(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"
