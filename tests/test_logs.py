from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from flask import Flask

from flask_workflows import RunFilter
from flask_workflows import Workflows
from flask_workflows.logs import _Formatter
from flask_workflows.logs import configure_worker_logging
from flask_workflows.logs import FORMAT
from tests.apps import MakeApp

logger = logging.getLogger("shop")


@contextmanager
def bare_root() -> Iterator[logging.Logger]:
    """The root logger as it is in a process where nobody has set up logging."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:], root.level = handlers, level


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.labels: list[tuple[str, str, str]] = []
        self.addFilter(RunFilter())

    def emit(self, record: logging.LogRecord) -> None:
        labels = record.__dict__
        self.labels.append((record.getMessage(), labels["run_id"], labels["step"]))


def test_records_carry_the_run_and_the_step_they_were_made_in(database_url: str, make_app: MakeApp) -> None:
    workflows = Workflows()
    records = Records()

    @workflows.step
    def pay() -> None:
        logger.warning("in the step")

    @workflows.workflow
    def renewal() -> None:
        logger.warning("in the body")
        pay()

    app = make_app(database_url, workflows=workflows)
    logger.addHandler(records)
    with app.app_context():
        run_id = renewal.spawn().id
        logger.warning("outside")
        workflows.tick()
    logger.removeHandler(records)

    assert records.labels == [("outside", "-", "-"), ("in the body", run_id, "-"), ("in the step", run_id, "pay")]


def test_labels_a_record_has_already_are_kept() -> None:
    record = logging.makeLogRecord({"run_id": "r-1"})

    passed = RunFilter().filter(record)

    assert passed is True
    assert (record.__dict__["run_id"], record.__dict__["step"]) == ("r-1", "-")


def test_worker_logs_once_to_standard_error_with_labels(capsys: pytest.CaptureFixture[str]) -> None:
    app = Flask("quiet_shop")

    with bare_root() as root:
        app.logger.warning("by Flask's own handler")
        configure_worker_logging(app)
        configure_worker_logging(app)
        app.logger.info("by the worker's")
        handlers = root.handlers[:]

    assert len(handlers) == 1
    own, *others = capsys.readouterr().err.splitlines()
    assert own.endswith("by Flask's own handler")
    assert [re.sub(r"^[-\d]+ [\d:,]+", "<time>", line) for line in others] == [
        "<time> INFO [- -] quiet_shop: by the worker's"
    ]


def test_apps_own_logging_is_left_alone() -> None:
    own = logging.NullHandler()

    with bare_root() as root:
        root.addHandler(own)
        level = root.level
        configure_worker_logging(Flask("shop"))
        handlers, level_after = root.handlers[:], root.level

    assert handlers == [own]
    assert level_after == level


def test_worker_logs_the_times_of_records_in_utc() -> None:
    formatter = _Formatter(FORMAT)

    def written(created: float, milliseconds: int) -> str:
        record = logging.makeLogRecord({"created": created, "msecs": milliseconds})
        return formatter.formatTime(record)

    assert written(0.25, 250) == "1970-01-01 00:00:00,250"
    assert written(0.5, 500) == "1970-01-01 00:00:00,500"
    assert written(86_401, 0) == "1970-01-02 00:00:01,000"
    assert written(0.25, 250) == "1970-01-01 00:00:00,250"
