"""How an execution is stopped from inside.

They are `BaseException`s, so that `except Exception` in a workflow lets them through. Code that swallows them all the
same changes nothing: the execution remembers what stopped it, and the engine goes by that.
"""

from __future__ import annotations

from collections.abc import Sequence

from .store import Change
from .store import StepWrite
from .store import WaitWrite


class Interrupt(BaseException):
    """The body is left here; it is not an error."""


class Suspended(Interrupt):
    """The run sleeps or waits; it is called again from the top when it is due."""

    def __init__(
        self, change: Change, write: StepWrite | None, waits: Sequence[WaitWrite] = (), waiting: Sequence[str] = ()
    ) -> None:
        super().__init__(f"the run is {change.status}")
        self.change = change
        self.write = write
        self.waits = waits
        #: Recorded calls that end with an event, which may have come meanwhile.
        self.waiting = waiting


class TimedOut(Interrupt):
    """The step took longer than its time-out: whatever its call still does, nothing of it counts."""


class LeaseLost(Interrupt):
    """The run belongs to somebody else: nothing more may happen here."""


class Cancelling(Interrupt):
    """The run is to be cancelled: no further step starts."""


class Pausing(Interrupt):
    """The run is to be paused: no further step starts until it is resumed."""


class OutOfTime(Interrupt):
    """The run's deadline has passed: no further step starts."""


class Broken(Interrupt):
    """The store failed in a way that is no fault of the workflow; the run is left to its lease."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
