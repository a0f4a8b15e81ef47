"""Which recorded calls of a run are forgotten, so that they are made anew."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Protocol
from typing import TypeVar

from .names import path_of

#: The innermost part of a branch's path: the position of its parallel call, and which function.
_LAST_PART = re.compile(r"(\d+)\.\d+/\Z")


class Recorded(Protocol):
    """A recorded call, as the engine or as a page has it."""

    @property
    def key(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def status(self) -> str: ...


C = TypeVar("C", bound=Recorded)


def failed_last(stored: Sequence[Recorded]) -> list[str]:
    """Failed calls that nothing recorded follows: in their branch, nor after the parallel calls around it.

    A failure that the body caught is followed by what it did then, and stays.
    """
    last = _last_of_each(stored)
    return [step.key for path, step in last.items() if step.status == "failed" and _is_at_the_end(path, last)]


def _last_of_each(stored: Iterable[C]) -> dict[str, C]:
    last: dict[str, C] = {}
    for step in stored:
        path = path_of(step.key)
        if path not in last or last[path].position < step.position:
            last[path] = step
    return last


def _is_at_the_end(path: str, last: Mapping[str, Recorded]) -> bool:
    around = _around(path)
    if around is None:
        return True
    outer, position = around
    return outer in last and last[outer].position == position and _is_at_the_end(outer, last)


def _around(path: str) -> tuple[str, int] | None:
    """The branch that a branch was started in, and the position of the parallel call there; null for the body."""
    found = _LAST_PART.search(path)
    return None if found is None else (path[: found.start()], int(found[1]))


def from_call(stored: Sequence[Recorded], key: str) -> list[str]:
    """A call and all that was recorded after it, in its branch and after the parallel calls around it.

    Other branches of those stay. Empty where there is no such call.
    """
    step = next((step for step in stored if step.key == key), None)
    if step is None:
        return []
    #: From which position on the calls of a branch are forgotten, with the branches they started.
    starts = {path_of(key): step.position}
    around = _around(path_of(key))
    while around is not None:
        outer, position = around
        starts[outer] = position + 1
        around = _around(outer)
    return [step.key for step in stored if _is_after(path_of(step.key), step.position, starts)]


def _is_after(path: str, position: int, starts: dict[str, int]) -> bool:
    if path in starts:
        return position >= starts[path]
    around = _around(path)
    return around is not None and _is_after(*around, starts)
