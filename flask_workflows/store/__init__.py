"""Every SQL statement of the package.

`Store` has a verb for each thing that happens to a run, `Actions` for what people do to it; `reading` lists and counts for people. `postgresql` and
`sqlite` hold what differs between databases, `statements` what does not.
"""

from .actions import Actions
from .rows import Change
from .rows import ClaimedRun
from .rows import Fenced
from .rows import Lease
from .rows import NewEvent
from .rows import NewRun
from .rows import Seen
from .rows import StepWrite
from .rows import StoredStep
from .rows import WaitWrite
from .store import Busy
from .store import CancelAsked
from .store import key_busy
from .store import LeaseGone
from .store import Scope
from .store import Store

__all__ = [
    "Actions",
    "Busy",
    "CancelAsked",
    "Change",
    "ClaimedRun",
    "Fenced",
    "Lease",
    "LeaseGone",
    "NewEvent",
    "NewRun",
    "Scope",
    "Seen",
    "StepWrite",
    "Store",
    "StoredStep",
    "WaitWrite",
    "key_busy",
]
