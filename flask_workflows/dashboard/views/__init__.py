"""The pages' views: each reads a request, asks, and answers."""

from __future__ import annotations

from ..access import Permission
from ..routes import Route
from ..visit import Link
from . import actions
from . import assets
from . import health
from . import now
from . import registry
from . import run
from . import runs
