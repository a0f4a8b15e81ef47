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


def configure_worker_logging(app: Flask) -> None:
    """Log to standard error from INFO on, unless the app has set up logging itself."""
    root = logging.getLogger()
    if root.handlers:
        return

    formatter = logging.Formatter(FORMAT)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(RunFilter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Flask adds it when nobody else handles the app's records; now they would be written twice.
    app.logger.removeHandler(default_handler)
