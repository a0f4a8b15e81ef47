"""How runs and workflows read on a terminal: one line each, or one run with all its steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flask_workflows import payloads
from flask_workflows import phrases
from flask_workflows.definition import Workflow
from flask_workflows.explain import Beside
from flask_workflows.explain import now_doing
from flask_workflows.explain import plain
from flask_workflows.explain import said
from flask_workflows.explain import state
from flask_workflows.explain import Surroundings
from flask_workflows.explain import telling_steps
from flask_workflows.explain import why
from flask_workflows.redaction import redact_text
from flask_workflows.runs import Count
from flask_workflows.runs import Head
from flask_workflows.runs import NotLoaded
from flask_workflows.runs import Run
from flask_workflows.runs import RunDetails
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


def run_line(run: Run, open_steps: Sequence[Step] = (), around: Surroundings | None = None) -> str:
    """The run on one line; with its surroundings also what it does or waits for."""
    since = run.started_at or run.created_at
    doing = _outlook(run, None if around is None else around.now)
    told = state(run, open_steps) in ("retrying", "waiting")
    if around is not None and not run.finished and (told or not doing):
        doing = plain(now_doing(run, open_steps, around), now=around.now)
    return _line(
        run.id,
        f"{state(run, open_steps):<9}",
        f"{run.workflow} v{run.version}",
        f"{'started' if run.started_at else 'created'} {instant(since)}",
        doing,
    )


def run_lines(details: RunDetails, around: Surroundings, beside: Beside, same_cause: Count) -> Iterator[str]:
    """Everything known about a run, secrets hidden; `same_cause` is how many others failed the same way."""
    run = details.run
    open_steps = telling_steps(details.steps)
    failed = next((step for step in details.steps if run.error and step.key == run.error.step), None)
    reason = why(run, open_steps, around, failed=failed, beside=beside)
    yield run_line(run, open_steps)
    for text in (reason.headline, reason.more):
        if text:
            yield printable(f"  {plain(text, now=around.now)}")
    if same_cause.value:
        others = phrases.count(same_cause.value, capped=same_cause.capped)
        yield f"  {others} other {'run' if same_cause.value == 1 else 'runs'} failed the same way."
    yield _line(
        f"  queue {run.queue}",
        f"workspace {run.workspace}" if run.workspace else "",
        f"key {run.key}" if run.key else "",
        f"attempts {run.attempts} of {run.max_attempts}",
    )
    yield from _value("input", run.input_json)
    if run.status is RunStatus.COMPLETED:
        yield from _value("output", run.output_json)
    for step in details.steps:
        yield from _step(step)
    if run.error is not None and run.error.traceback is not None:
        yield from (printable(f"  {line}") for line in redact_text(run.error.traceback).splitlines())


def instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _outlook(run: Run, now: datetime | None) -> str:
    """When the run goes on, or how it ended."""
    if run.status is RunStatus.FAILED and run.error is not None:
        place = f"step {run.error.step}: " if run.error.step is not None else ""
        return f"error: {place}{said(run.error, limit=200)}"
    if run.status in (RunStatus.SLEEPING, RunStatus.WAITING) and run.due_at is not None:
        # One that is overdue has something else to say.
        return f"wakes {instant(run.due_at)}" if now is None or now < run.due_at else ""
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
    text = "".join(part if isinstance(part, str) else _hidden(part) for part in shown.parts)
    first, *others = text.splitlines() or [""]
    yield printable(f"{indent}{name} {first}")
    yield from (printable(f"{indent}{other}") for other in others)
    if shown.note:
        yield f"{indent}({shown.note})"


def _hidden(part: payloads.Hidden) -> str:
    return f"[hidden: {part.word}]" if part.word else f"[{part}]"


def _line(*parts: str) -> str:
    return printable("  ".join(part for part in parts if part).rstrip())


def printable(text: str) -> str:
    """The text without what would drive the terminal: stored texts are anybody's."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
