"""When a failed step is tried again. Pure: attempts in, a delay or the end out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from dataclasses import field
from datetime import timedelta
from typing import Literal

from .durations import to_ms
from .errors import DefinitionError

#: Longer back-offs are cut to this; it keeps `2 ** attempt` inside what a clock can hold.
LONGEST_MS = 366 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after the n-th failed attempt, in ms."""

    kind: Literal["constant", "linear", "exponential"]
    base_ms: int
    max_ms: int = LONGEST_MS

    def delay_ms(self, attempt: int) -> int:
        if self.kind == "constant":
            delay = self.base_ms
        elif self.kind == "linear":
            delay = self.base_ms * attempt
        else:
            delay = self.base_ms * 2 ** min(attempt - 1, 60)
        return min(delay, self.max_ms)


@dataclass(frozen=True, slots=True)
class Retry:
    """How a step is retried.

    `attempts` counts the first one too; `backoff` is one of `Retry.constant`, `Retry.linear`, `Retry.exponential`;
    what is left out comes from `WORKFLOWS_STEP_ATTEMPTS` and `WORKFLOWS_STEP_BACKOFF_SECS`. `jitter` from 0 to 1
    spreads a delay by up to that share either way. Only errors in `retry_on`, and none in `give_up_on`, are retried.
    """

    attempts: int | None = None
    backoff: Backoff | None = None
    jitter: float = 0.0
    retry_on: tuple[type[BaseException], ...] = field(default=(BaseException,))
    give_up_on: tuple[type[BaseException], ...] = field(default=())

    def __post_init__(self) -> None:
        attempts = self.attempts
        if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
            raise DefinitionError(f"Retry(attempts={attempts!r}): write a whole number from 1")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise DefinitionError(f"Retry(backoff={self.backoff!r}): write Retry.linear(seconds) or one of its kind")
        jitter = self.jitter
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not (0 <= jitter <= 1):
            raise DefinitionError(f"Retry(jitter={jitter!r}): write a number from 0 to 1")
        object.__setattr__(self, "retry_on", _classes("retry_on", self.retry_on))
        object.__setattr__(self, "give_up_on", _classes("give_up_on", self.give_up_on))

    @staticmethod
    def constant(seconds: float | timedelta) -> Backoff:
        """The same delay each time."""
        return Backoff("constant", to_ms(seconds, what="a back-off"))

    @staticmethod
    def linear(seconds: float | timedelta, *, max: float | timedelta | None = None) -> Backoff:
        """Once, twice, three times the delay."""
        return Backoff("linear", to_ms(seconds, what="a back-off"), _max_ms(max))

    @staticmethod
    def exponential(seconds: float | timedelta, *, max: float | timedelta | None = None) -> Backoff:
        """The delay, doubled each time."""
        return Backoff("exponential", to_ms(seconds, what="a back-off"), _max_ms(max))

    def filled(self, attempts: int, backoff: Backoff) -> Retry:
        """This policy with the given defaults for what it leaves open."""
        if self.attempts is not None and self.backoff is not None:
            return self
        return Retry(
            self.attempts if self.attempts is not None else attempts,
            self.backoff if self.backoff is not None else backoff,
            self.jitter,
            self.retry_on,
            self.give_up_on,
        )

    def delay_ms(self, error: BaseException, attempt: int) -> int | None:
        """The delay after the failed `attempt`, or null when there is to be no other."""
        if self.attempts is None or self.backoff is None:
            raise DefinitionError("a Retry must be filled with the defaults before it is asked for a delay")
        if attempt >= self.attempts or isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on):
            return None
        delay = self.backoff.delay_ms(attempt)
        if self.jitter:
            delay = math.ceil(delay * random.uniform(1 - self.jitter, 1 + self.jitter))
        return delay


def _max_ms(value: float | timedelta | None) -> int:
    return LONGEST_MS if value is None else min(to_ms(value, what="the longest back-off"), LONGEST_MS)


def _classes(name: str, value: object) -> tuple[type[BaseException], ...]:
    classes = value if isinstance(value, tuple) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise DefinitionError(f"Retry({name}=…): {item!r} is not an exception class")
    return classes
