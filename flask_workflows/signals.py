"""Blinker signals, sent after the commit, in the process that made it.

A receiver that raises is logged: the run is settled by then.
"""

from __future__ import annotations

import logging
from typing import Any

from blinker import Namespace
from blinker import Signal
from flask import Flask

from .store import ClaimedRun

logger = logging.getLogger("flask_workflows")

_signals = Namespace()

#: A run completed. Sent by the app with `run_id`, `workflow`.
run_completed = _signals.signal("run-completed")

#: A run failed for good. Sent by the app with `run_id`, `workflow`, `error` (type, message, traceback, step).
run_failed = _signals.signal("run-failed")

#: A run was cancelled. Sent by the app with `run_id`, `workflow`.
run_cancelled = _signals.signal("run-cancelled")

#: A step failed for good; its run may go on. Sent by the app with `run_id`, `workflow`, `step`, `error`.
step_failed = _signals.signal("step-failed")

_BY_STATUS = {"completed": run_completed, "failed": run_failed, "cancelled": run_cancelled}


def send_run(app: Flask, status: str, run: ClaimedRun, error: dict[str, Any] | None) -> None:
    """Send what belongs to a run's new status, if anything does."""
    signal = _BY_STATUS.get(status)
    if signal is not None and signal.receivers:
        extra = {"error": error} if status == "failed" else {}
        _send(signal, app, run_id=run.id, workflow=run.workflow, **extra)


def send_step_failed(app: Flask, run: ClaimedRun, step: str, error: dict[str, Any]) -> None:
    if step_failed.receivers:
        _send(step_failed, app, run_id=run.id, workflow=run.workflow, step=step, error=error)


def send_cancelled(app: Flask, run_id: str, workflow: str) -> None:
    """For a run an operator ended while nothing executed it."""
    if run_cancelled.receivers:
        _send(run_cancelled, app, run_id=run_id, workflow=workflow)


def _send(signal: Signal, app: Flask, **values: Any) -> None:
    for receiver in signal.receivers_for(app):
        try:
            receiver(app, **values)
        except Exception:
            logger.exception("a receiver of the signal %s failed", signal)
