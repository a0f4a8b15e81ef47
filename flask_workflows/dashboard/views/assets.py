"""The style sheet and the scripts."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from ..routes import get
from ..visit import Visit


def asset(visit: Visit, version: str, file: str) -> ResponseReturnValue:
    return visit.site.assets.response(version, file)


ROUTES = (get("/static/<version>/<path:file>", "asset", None, asset),)
