"""What tests of workflows need. All of it goes through the real engine, on the app's own database.

Values are serialised, bodies are replayed at each suspension, every execution has a fresh app context: a test that
passes here passes on the worker. The pytest fixtures `workflows_clock` and `workflows_fake` come with the package.
"""

from .clock import FixedClock
from .crashes import Crash
from .crashes import crash_at
from .crashes import every_crash
from .crashes import SimulatedCrash
from .driving import advance_until_idle
from .driving import run_until_idle
from .fake import StartedRun
from .fake import WorkflowsFake
from .replays import assert_replays

__all__ = [
    "Crash",
    "FixedClock",
    "SimulatedCrash",
    "StartedRun",
    "WorkflowsFake",
    "advance_until_idle",
    "assert_replays",
    "crash_at",
    "every_crash",
    "run_until_idle",
]
