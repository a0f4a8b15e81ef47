"""Log records that say which run and step they belong to."""

from __future__ import annotations

import logging
import time

from flask import Flask
from flask.logging import default_handler

from flask_workflows.context import current_labels

FORMAT = "%(asctime)s %(levelname)s [%(run_id)s %(step)s] %(name)s: %(message)s"


class RunFilter(logging.Filter):
    """Give each record `run_id` and `step`, "-" where it was made outside of a run or step.

    Add it to handlers, not to loggers: a logger's filters do not see what its children log. Nothing is filtered out.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        run_id, step = current_labels()
        # A record about a run, made outside of it, carries these already.
        record.__dict__.setdefault("run_id", run_id or "-")
        record.__dict__.setdefault("step", step or "-")
        return True


class _Formatter(logging.Formatter):
    """Times in UTC, each second of which is formatted once: there is a line for every run."""

    _last: tuple[int, str] = (-1, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second, text = self._last
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
            self._last = second, text
        return f"{text},{int(record.msecs):03d}"


def configure_worker_logging(app: Flask) -> None:
    """Log to standard error from INFO on, unless the app has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        return

    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(FORMAT))
    handler.addFilter(RunFilter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Flask adds it when nobody else handles the app's records; now they would be written twice.
    app.logger.removeHandler(default_handler)
