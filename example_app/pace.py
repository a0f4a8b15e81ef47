"""How long a day and a minute are.

The demo makes both short so that one can watch a trial end. They are read once, at
import: runs under way would not agree with durations that change beneath them.
"""

from __future__ import annotations

import os
from datetime import timedelta

#: EXAMPLE_DAY_SECONDS, for what the shop's customers wait for.
DAY = timedelta(seconds=float(os.environ.get("EXAMPLE_DAY_SECONDS", "86400")))

#: EXAMPLE_MINUTE_SECONDS, for the pauses between two tries at a charge.
MINUTE = timedelta(seconds=float(os.environ.get("EXAMPLE_MINUTE_SECONDS", "60")))
