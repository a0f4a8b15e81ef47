"""Whether today's code still fits what a run did with yesterday's."""

from __future__ import annotations

from typing import Any
from typing import TYPE_CHECKING

from .. import service
from ..handle import Handle
from ..replaying import Diverged
from ..replaying import replay
from .clock import app_of

if TYPE_CHECKING:
    from ..extension import Workflows


def assert_replays(workflows: Workflows, run: str | Handle[Any]) -> None:
    """Assert that the code as it is now still makes the recorded calls of a run, given by its id or a handle.

    The body is called with the recorded results; no step is executed and nothing is written. A run that has completed
    must return what it returned, any other must come to where its record ends. Raises `AssertionError` that names the
    first call that differs, recorded and now, with file and line.
    """
    with app_of(workflows) as runtime:
        found = service.get(runtime, run if isinstance(run, str) else run.id)
        try:
            replay(runtime, found)
        except Diverged as error:
            raise AssertionError(str(error)) from error.__cause__
