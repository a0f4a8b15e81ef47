"""How runs and workflows read on a terminal: one line each, or one run with all its steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from flask_workflows import payloads
from flask_workflows import phrases
from flask_workflows.definition import Workflow
from flask_workflows.explain import said
from flask_workflows.explain import state
from flask_workflows.redaction import redact_text
from flask_workflows.runs import Head
from flask_workflows.runs import NotLoaded
from flask_workflows.runs import Run
from flask_workflows.runs import RunDetails
from flask_workflows.runs import RunError
from flask_workflows.runs import RunStatus
from flask_workflows.runs import Step


def workflow_line(workflow: Workflow[Any, Any], default_queue: str) -> str:
    older = workflow.min_version < workflow.version
    resumes = f" (resumes from v{workflow.min_version})" if older else ""
    return _line(
        f"{workflow.name} v{workflow.version}{resumes}",
        f"queue {workflow.queue or default_queue}",
        workflow.description,
    )


def run_line(run: Run) -> str:
    since = run.started_at or run.created_at
    return _line(
        run.id,
        f"{state(run):<9}",
        f"{run.workflow} v{run.version}",
        f"{'started' if run.started_at else 'created'} {instant(since)}",
        _prospect(run),
    )


def run_lines(details: RunDetails) -> Iterator[str]:
    """Everything known about a run, secrets hidden."""
    run = details.run
    yield run_line(run)
    yield _line(
        f"  queue {run.queue}",
        f"workspace {run.workspace}" if run.workspace else "",
        f"key {run.key}" if run.key else "",
        f"attempts {run.attempts} of {run.max_attempts}",
    )
    yield from _value("input", run.input_json)
    yield from _value("output", run.output_json)
    if run.error is not None:
        yield from _error(run.error)
    for step in details.steps:
        yield from _step(step)


def instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _prospect(run: Run) -> str:
    """What is to come of the run, or how it ended."""
    if run.status is RunStatus.FAILED and run.error is not None:
        return f"error: {said(run.error, limit=200)}"
    if run.status in (RunStatus.SLEEPING, RunStatus.WAITING) and run.due_at is not None:
        return f"wakes {instant(run.due_at)}"
    if run.took is not None:
        return f"took {phrases.duration(run.took)}"
    return ""


def _step(step: Step) -> Iterator[str]:
    yield _line(
        f"  {step.number or step.position:>3}",
        f"{step.status:<9}",
        step.label,
        phrases.several(step.attempts, "attempt") if step.attempts > 1 else "",
        f"wakes {instant(step.due_at)}" if step.due_at and not step.finished else "",
        f"took {phrases.duration(step.took)}" if step.took is not None else "",
        f"error: {said(step.error, limit=200)}" if step.error is not None else "",
    )
    yield from _value("output", step.output_json, indent=" " * 7)


def _value(name: str, stored: str | NotLoaded | None, indent: str = "  ") -> Iterator[str]:
    if not isinstance(stored, str):
        return

    shown = payloads.show_value(Head(stored, len(stored)))
    text = "".join(part if isinstance(part, str) else f"[hidden: {part.word}]" for part in shown.parts)
    first, *others = text.splitlines() or [""]
    yield _printable(f"{indent}{name} {first}")
    yield from (_printable(f"{indent}{other}") for other in others)
    if shown.note:
        yield f"{indent}({shown.note})"


def _error(error: RunError) -> Iterator[str]:
    yield _line(f"  error {said(error, limit=2_000)}")
    if error.traceback is not None:
        for line in redact_text(error.traceback).splitlines():
            yield _printable(f"    {line}")


def _line(*parts: str) -> str:
    return _printable("  ".join(part for part in parts if part).rstrip())


def _printable(text: str) -> str:
    """The text without what would drive the terminal: stored texts are anybody's."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
