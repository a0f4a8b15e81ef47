"""The app's context around the code of a run."""

from __future__ import annotations

import logging

from flask import Flask

logger = logging.getLogger("flask_workflows")


class QuietContext:
    """A fresh app context whose teardown functions may fail without harm to the run, which is stored by then."""

    def __init__(self, app: Flask) -> None:
        self._context = app.app_context()

    def __enter__(self) -> None:
        self._context.push()

    def __exit__(self, *error: object) -> None:
        try:
            self._context.pop()
        except BaseException:
            logger.exception("a teardown function of the app failed after a run")
