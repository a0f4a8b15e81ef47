"""Write the pages of `docs/reference` from the code: `python docs/generate.py`.

Signatures, docstrings, the `#:` comments beside fields and columns, and what click knows of the commands. The tests
compare the pages with what this writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any
from typing import get_overloads

import click
import sqlalchemy as sa
from blinker import Signal

import flask_workflows
from flask_workflows import models
from flask_workflows import signals
from flask_workflows import testing
from flask_workflows.cli import workflows_group
from flask_workflows.config import PREFIX
from flask_workflows.config import WorkflowsConfig
from flask_workflows.definition import Start
from flask_workflows.definition import Step
from flask_workflows.definition import Workflow
from flask_workflows.events import Progress
from flask_workflows.hooks import Hooks
from flask_workflows.runs import RunError
from flask_workflows.runs import Step as RecordedCall
from flask_workflows.worker import Worker

HERE = Path(__file__).resolve().parent

NOTICE = "<!-- Written by docs/generate.py. Change the docstrings and comments in the code, then run it. -->"

#: Public in Python, and not meant for apps.
INTERNAL = {
    "Workflows": {"clock_ms"},
    "Workflow": {"ranges"},
    "Retry": {"filled", "delay_ms"},
    "RunError": {"read", "of"},
    "RunStatus": {"read"},
    "Hooks": {"over"},
    "Worker": {"wake"},
}

#: Where the part of a class that apps call ends.
ENDS = {"WorkflowContext": "events"}

#: Classes that apps make objects of.
MADE = {"Workflows", "Retry", "EventMatch", "RunQuery", "By", "FixedClock", "WorkflowsFake"}


def main() -> None:
    for name, page in render().items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(page, encoding="utf-8")


def render() -> dict[str, str]:
    """The pages by their paths below `docs`."""
    pages = {"api": api(), "configuration": configuration(), "cli": cli(), "tables": tables()}
    return {f"reference/{name}.md": f"{NOTICE}\n\n{_joined(parts)}" for name, parts in pages.items()}


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


# The API -----------------------------------------------------------------------------------


def api() -> Iterator[str]:
    yield "# API"
    yield (
        "Everything that `flask_workflows` and `flask_workflows.testing` offer, from their docstrings. "
        "[Writing workflows](../writing.md) and [Testing workflows](../testing.md) say how it is used."
    )
    rest = dict.fromkeys(flask_workflows.__all__)

    def take(*names: str) -> Iterator[str]:
        for name in names:
            del rest[name]
            yield from _entry(name, getattr(flask_workflows, name))

    yield "## The extension"
    yield from take("Workflows")
    yield from _entry("Hooks", Hooks)
    yield from _entry("Worker", Worker)
    yield "## What is declared"
    yield "`@workflows.workflow` makes a `Workflow` of a function, `@workflows.step` a `Step`."
    for declared in (Workflow, Start, Step):
        yield from _entry(declared.__name__, declared)
    yield "## In a run"
    yield from take("WorkflowContext")
    del rest["current_run"]
    yield "### `current_run`"
    yield "The `WorkflowContext` of the run executed here, as a proxy; falsy outside one."
    yield from take("Retry", "EventMatch", "Event", "Happened")
    yield "## Looking after runs"
    yield from take("Handle", "Run", "RunStatus", "RunDetails")
    yield from _entry("Step", RecordedCall, title="`Step`, a recorded call of `RunDetails.steps`")
    yield from _entry("RunError", RunError)
    yield from _entry("Progress", Progress)
    yield from take("RunQuery", "Page", "EmittedEvent", "By")
    yield "## Logs and migrations"
    yield from take("RunFilter", "add_version_location")
    yield "## Signals"
    yield "Blinker signals, sent after the commit, in the process that made it. A receiver that raises is logged."
    yield _table(["signal", "sent when"], _signals(rest))
    yield "## Errors"
    yield from _errors(rest)
    yield "## `flask_workflows.testing`"
    for name in testing.__all__:
        yield from _entry(name, getattr(testing, name))
    if rest:
        sys.exit(f"docs/generate.py puts these names nowhere: {', '.join(rest)}")


def _entry(name: str, thing: Any, title: str = "") -> Iterator[str]:
    yield f"### {title or f'`{name}`'}"
    if not inspect.isclass(thing):
        yield _code(name, thing)
        yield _doc(thing)
        return
    if name in MADE:
        yield _code(name, thing)
    yield _doc(thing)
    rows = [*_fields(thing), *_properties(name, thing)]
    if rows:
        yield _table(["", "", ""], rows)
    for method, function in _public(name, thing):
        if inspect.isfunction(function):
            yield f"#### `{name}.{method}()`"
            yield _code(method, function)
            yield _doc(function)


def _public(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """What a class declares for apps, in order; what has no docstring of its own is for the package."""
    for method, value in vars(cls).items():
        if method == ENDS.get(name):
            return
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        documented = isinstance(function, property) or (inspect.isfunction(function) and function.__doc__)
        if documented and not method.startswith("_") and method not in INTERNAL.get(name, ()):
            yield method, function


def _properties(name: str, cls: type) -> Iterator[list[str]]:
    for attribute, value in _public(name, cls):
        if isinstance(value, property):
            kind = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield [f"`{attribute}`", f"`{_escaped(str(kind))}`", _escaped(" ".join((value.__doc__ or "").split()))]


class _Verbatim(str):
    """An annotation that is shown as it is written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _code(name: str, function: Any) -> str:
    """The signature, and where there are overloads the one with the options."""
    overloads = get_overloads(function) if inspect.isfunction(function) else []
    signature = inspect.signature(overloads[-1] if overloads else function)
    parameters = [
        parameter.replace(annotation=_Verbatim(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    answer = signature.empty if inspect.isclass(function) else _Verbatim(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=answer)).replace("_Declare", "decorator")
    call = f"{name}{text}"
    if len(call) > 100:
        arguments, answers = _arguments(text)
        call = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){answers}"
    return f"```text\n{call}\n```"


def _arguments(text: str) -> tuple[list[str], str]:
    """The parameters of a signature, and what stands behind them."""
    depth, start, parts = 0, 1, []
    for at, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
        if depth == 0:
            return parts, text[at + 1 :]
    return parts, ""


def _doc(thing: Any) -> str:
    doc = inspect.getdoc(thing) or ""
    if dataclasses.is_dataclass(thing) and doc.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""
    return doc


def _fields(cls: type) -> Iterator[list[str]]:
    if issubclass(cls, Enum):
        yield from ([f"`{cls.__name__}.{member.name}`", f"`{str(member)!r}`", ""] for member in cls)
        return
    notes = _notes(inspect.getsource(cls))
    if not dataclasses.is_dataclass(cls) and not hasattr(cls, "_fields"):
        return
    for name, kind in inspect.get_annotations(cls).items():
        if not name.startswith("_") and not name.endswith("_json") and cls is not Start:
            # A NamedTuple wraps what is written in quotes.
            kind = getattr(kind, "__forward_arg__", kind)
            yield [f"`{name}`", f"`{_escaped(str(kind))}`", _escaped(notes.get(name, ""))]


def _notes(source: str) -> dict[str, str]:
    """What the `#:` comments above names say of them."""
    found: dict[str, str] = {}
    lines: list[str] = []
    for line in source.splitlines():
        text = line.strip()
        if text.startswith("#:"):
            lines.append(text[2:].strip())
            continue
        name = re.match(r'(?:self\.)?(?:sa\.Column\(")?([a-z_]+)', text)
        if lines and name:
            found.setdefault(name[1], " ".join(lines))
        lines = []
    return found


def _signals(rest: dict[str, None]) -> Iterator[list[str]]:
    notes = _notes(inspect.getsource(signals))
    for name in list(rest):
        if isinstance(getattr(flask_workflows, name), Signal):
            del rest[name]
            yield [f"`{name}`", notes[name]]


def _errors(rest: dict[str, None]) -> Iterator[str]:
    names = [name for name in rest if inspect.isclass(getattr(flask_workflows, name))]
    names = [name for name in names if issubclass(getattr(flask_workflows, name), BaseException)]
    yield "All derive from `WorkflowsError`. The message of each says what was wrong and what to write instead."
    rows = []
    for name in names:
        del rest[name]
        error = getattr(flask_workflows, name)
        bases = [base.__name__ for base in error.__bases__ if base is not Exception]
        rows.append([f"`{name}`", ", ".join(f"`{base}`" for base in bases), " ".join(_doc(error).split())])
    yield _table(["error", "is a", "means"], rows)


# Configuration -----------------------------------------------------------------------------


def configuration() -> Iterator[str]:
    yield "# Configuration"
    yield (
        "Each is a key of `app.config`, read once by `init_app`. In the environment it is that key behind `FLASK_`, its "
        "value written as JSON, where the app calls `app.config.from_prefixed_env()`:"
    )
    yield (
        "```sh\n"
        "export FLASK_WORKFLOWS_CONCURRENCY=8\n"
        "export FLASK_WORKFLOWS_DASHBOARD=false\n"
        'export FLASK_WORKFLOWS_IMPORTS=\'["shop.billing.workflows", "shop.mail.workflows"]\'\n'
        "```"
    )
    yield (
        "A number out of range is moved to the nearest allowed one, with a warning. A key nobody reads is warned about. "
        "A wrong type or a blank name stops the app with `ConfigError`."
    )
    yield _table(["key", "default", "allowed", "meaning"], _settings())


def _settings() -> Iterator[list[str]]:
    meanings = _meanings()
    for field in dataclasses.fields(WorkflowsConfig):
        low, high = field.metadata.get("bounds", ("", ""))
        allowed = f"{low:,} to {high:,}" if field.metadata else ""
        yield [f"`{PREFIX}{field.name.upper()}`", _default(field.default), allowed, meanings[field.name]]


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool | str):
        return f"`{value!r}`"
    return f"`{value:%H:%M}`" if hasattr(value, "hour") else f"{value:,}"


def _meanings() -> dict[str, str]:
    """What the docstring says of each field, without the default and the bounds."""
    found = {}
    for part in (inspect.getdoc(WorkflowsConfig) or "").split("\n\n"):
        match = re.match(r"`([a-z_]+)` \([^)]*\): (.*)", " ".join(part.split()))
        if match:
            found[match[1]] = match[2][0].upper() + match[2][1:]
    return found


# The commands ------------------------------------------------------------------------------


def cli() -> Iterator[str]:
    yield "# Commands"
    group = click.Context(workflows_group, info_name="flask workflows")
    yield inspect.cleandoc(workflows_group.help or "")
    yield "`flask --app shop …` names the app where it is not in `app.py` or `wsgi.py`, as for every command of Flask."
    for name in workflows_group.list_commands(group):
        command = workflows_group.get_command(group, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=group)
        yield f"## `flask workflows {name}`"
        yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
        yield inspect.cleandoc(command.help or "")
        rows = [_option(option, context) for option in command.params if isinstance(option, click.Option)]
        if rows:
            yield _table(["option", "meaning"], rows)


def _option(option: click.Option, context: click.Context) -> list[str]:
    names = ", ".join(option.opts)
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    default = f" By default {option.default}." if option.show_default else ""
    if isinstance(option.type, click.Choice):
        value, default = "", f"One of {', '.join(option.type.choices)}."
    required = " Required." if option.required else ""
    return [f"`{_escaped(names + value)}`", _escaped(f"{option.help or ''}{default}{required}".strip())]


# The tables --------------------------------------------------------------------------------


def tables() -> Iterator[str]:
    yield "# Tables"
    module = inspect.getdoc(models) or ""
    yield module.partition("\n\n")[2]
    yield "They are for reading. Change them through the API: what else writes there knows nothing of the fence."
    source = inspect.getsource(models)
    notes = _notes(source)
    for variable, table in vars(models).items():
        if not isinstance(table, sa.Table):
            continue
        yield f"## `{table.name}`"
        yield notes[variable]
        part = source.partition(f'"{table.name}",')[2].partition("\n)\n")[0]
        columns = _notes(part)
        yield _table(["column", "type", "", "meaning"], (_column(column, columns) for column in table.columns))
        indexes = sorted(index.name or "" for index in table.indexes)
        if indexes:
            yield "Indexes: " + ", ".join(f"`{name}`" for name in indexes) + "."


def _column(column: sa.Column[Any], notes: dict[str, str]) -> list[str]:
    marks = ["key"] if column.primary_key else ["null"] if column.nullable else []
    return [f"`{column.name}`", str(column.type).lower(), ", ".join(marks), _escaped(notes.get(column.name, ""))]


# Markdown ----------------------------------------------------------------------------------


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
