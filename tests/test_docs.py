"""The documentation is true: its code runs, its commands exist, its reference is that of the code."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from flask import Flask

from flask_workflows import models
from flask_workflows import testing
from flask_workflows import Workflows
from flask_workflows.cli import workflows_group
from flask_workflows.config import WorkflowsConfig
from flask_workflows.testing import advance_until_idle
from flask_workflows.testing import FixedClock
from tests import apps
from tests.documents import Block
from tests.documents import blocks_of
from tests.documents import commands_of
from tests.documents import files_of
from tests.documents import FOLLOWED
from tests.documents import PAGES
from tests.documents import ROOT
from tests.documents import text_of
from tests.documents import words_of

LANGUAGES = {"python", "sh", "console", "json", "yaml", "ini", "toml", "nginx", "text"}


def _with(*languages: str) -> list[str]:
    return [page for page in PAGES if any(block.language in languages for block in blocks_of(page))]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language(page: str) -> None:
    found = {str(block): block.language for block in blocks_of(page)}

    assert {where: language for where, language in found.items() if language not in LANGUAGES} == {}
    seen = [block for block in blocks_of(page) if f"\n{block.text}```" in text_of(page)]
    assert len(re.findall("^```", text_of(page), re.MULTILINE)) == 2 * len(seen)


# Python ------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, make_app: apps.MakeApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Where the blocks of a page run."""
    monkeypatch.chdir(tmp_path)
    made = ModuleType("page")
    made.__file__ = str(tmp_path / "page.py")
    monkeypatch.setitem(sys.modules, "page", made)
    app = make_app(f"sqlite:///{tmp_path / 'page.sqlite3'}")
    vars(made).update(app=app, db=apps.database_of(app), workflows=apps.workflows_of(app))
    with app.app_context():
        yield made

    for other in vars(made).values():
        if isinstance(other, Flask) and other is not app and "sqlalchemy" in other.extensions:
            apps.dispose_engines(other)


@pytest.mark.parametrize("page", _with("python"))
def test_python_of_a_page_runs(page: str, module: ModuleType) -> None:
    ran = 0
    for block in blocks_of(page):
        if block.language != "python" or block.file is not None:
            continue
        ran += 1
        if block.body is None:
            exec(_compiled(block, block.text), vars(module))
        else:
            _run_body(block, module)

    files = files_of(page)
    assert ran or files
    assert not files or page in FOLLOWED or any("test_" in name for name in files), "nothing executes these files"


def _compiled(block: Block, source: str) -> Any:
    """Code whose tracebacks name the page and the line."""
    return compile("\n" * (block.line - 1) + source, str(ROOT / block.page), "exec")


def _run_body(block: Block, module: ModuleType) -> None:
    """Execute a block as the body of a run, to the run's end."""
    arguments = eval(f"dict({block.body})", vars(module))
    head = f"def body({', '.join(['ctx', *arguments])}):"
    # The head takes the line before, so that the lines of the page keep their numbers.
    shifted = replace(block, line=block.line - 1)
    exec(_compiled(shifted, f"{head}\n{textwrap.indent(block.text, '    ')}"), vars(module))
    workflows: Workflows = vars(module)["workflows"]
    workflows.clock = FixedClock(datetime(2030, 1, 1, 12, tzinfo=UTC))

    run = workflows.workflow(name=f"line-{block.line}")(vars(module)["body"]).spawn(**arguments)
    advance_until_idle(workflows)

    assert run.status() == "completed", f"{block}: {run.run().error}"


@pytest.mark.parametrize("page", [page for page in _with("python") if any("test_" in name for name in files_of(page))])
def test_suite_of_a_page_passes(page: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = files_of(page)
    for name, code in files.items():
        (pytester.path / name).write_text(code)

    result = pytester.runpytest_subprocess("-p", "_flask_workflows_pytest", "-W", "error")

    tests = sum(code.count("\ndef test_") for code in files.values())
    assert tests
    result.assert_outcomes(passed=tests)


# Other blocks ------------------------------------------------------------------------------


@pytest.mark.parametrize("page", _with("json", "ini", "toml"))
def test_data_of_a_page_can_be_read(page: str) -> None:
    for block in blocks_of(page):
        match block.language:
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "ini":
                parser = configparser.ConfigParser(interpolation=None, strict=False)
                parser.optionxform = str  # type: ignore[assignment,method-assign]
                parser.read_string(block.text if block.text.startswith("[") else f"[file]\n{block.text}")


# Commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands_of(page))])
def test_commands_of_a_page_exist(page: str) -> None:
    for where, command in commands_of(page):
        try:
            _check(words_of(command))
        except (click.UsageError, AssertionError) as error:
            pytest.fail(f"{where}: {command}: {error}")


def _check(words: list[str]) -> None:
    match words:
        case ["flask", "--app", _, *rest]:
            _check(["flask", *rest])
        case ["flask", "workflows", name, *rest]:
            command = workflows_group.get_command(click.Context(workflows_group), name)
            assert command is not None, f"there is no command {name}"
            # Parsed and not converted: an ID stands for one.
            context = click.Context(command, info_name=name)
            command.make_parser(context).parse_args(list(rest))
        case ["make", *rest]:
            targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert {word for word in rest if "=" not in word and "/" not in word} <= targets
        case ["pip", "install", *rest]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for word in rest:
                named = re.match(r"Flask-Workflows\[(.*)\]", word)
                assert named is None or set(named[1].split(",")) <= set(extras)
        case ["python", "-m", name, *_] if name.split(".")[0] in ("example_app", "benchmarks", "tests"):
            assert importlib.util.find_spec(name) is not None


def test_a_command_that_is_not_there_is_found_out() -> None:
    with pytest.raises(click.NoSuchOption):
        _check(["flask", "workflows", "work", "--threads", "4"])
    with pytest.raises(AssertionError, match="no command"):
        _check(["flask", "workflows", "serve"])


# The reference -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """The pages as the code at hand would have them."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    rendered: dict[str, str] = generate.render()

    return rendered


def test_reference_is_that_of_the_code(reference: dict[str, str]) -> None:
    for name, text in reference.items():
        assert text_of(f"docs/{name}") == text, f"docs/{name} is old: run python docs/generate.py"


def test_reference_has_every_public_name() -> None:
    import flask_workflows

    text = text_of("docs/reference/api.md")

    for name in [*flask_workflows.__all__, *testing.__all__]:
        assert re.search(rf"^(### |\| )`{name}`", text, re.MULTILINE), name


def test_reference_has_every_setting_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `WORKFLOWS_(\w+)` \| (.*?) \|", text_of("docs/reference/configuration.md"), re.MULTILINE)
    )
    config = WorkflowsConfig()

    assert list(rows) == [name.upper() for name in vars(config)]
    for name, value in vars(config).items():
        shown = rows[name.upper()].strip("`'").replace(",", "")
        wanted = "none" if value in (None, ()) else f"{value:%H:%M}" if name == "prune_at" else str(value)
        assert shown == wanted, name


def test_settings_of_the_guide_are_those_of_the_code() -> None:
    """docs/writing.md tells the most used ones."""
    known = {name.upper() for name in vars(WorkflowsConfig())}
    table = text_of("docs/writing.md").partition("| key `WORKFLOWS_…` |")[2]

    for row in table.splitlines()[2:]:
        assert set(re.findall(r"`([A-Z_]+)`", row.split("|")[1])) <= known, row


def test_reference_has_every_command_and_option() -> None:
    text = text_of("docs/reference/cli.md")
    context = click.Context(workflows_group, info_name="flask workflows")

    for name in workflows_group.list_commands(context):
        command = workflows_group.get_command(context, name)
        assert command is not None
        section = text.partition(f"\n## `flask workflows {name}`\n")[2].partition("\n## ")[0]
        helped = command.get_help(click.Context(command, info_name=name, parent=context))
        options = set(re.findall(r"^  (--[a-z-]+)", helped, re.MULTILINE)) - {"--help"}
        assert set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE)) == options, name


def test_reference_has_every_table_and_column() -> None:
    sections = re.split(r"^## ", text_of("docs/reference/tables.md"), flags=re.MULTILINE)[1:]
    told = {section.split("`")[1]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in sections}

    assert told == {table.name: [column.name for column in table.columns] for table in models.metadata.tables.values()}


# The site ----------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    listed: list[str] = []

    def walk(entry: object) -> None:
        match entry:
            case str():
                listed.append(entry)
            case dict():
                for value in entry.values():
                    walk(value)
            case list():
                for value in entry:
                    walk(value)

    walk(site["nav"])

    assert sorted(f"docs/{name}" for name in listed) == [page for page in PAGES if page.startswith("docs/")]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?s)```.*?```", "", text_of(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page} links to {target}"
        if anchor and found.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], target


@pytest.mark.parametrize("page", [page for page in PAGES if "/workflows/" in text_of(page)])
def test_addresses_of_a_page_exist(page: str, sqlite_url: str, make_app: apps.MakeApp) -> None:
    site = make_app(sqlite_url).url_map.bind("localhost")

    for path in re.findall(r"(?:`|`GET |localhost:\d+)(/workflows/[\w/.]+)", text_of(page)):
        assert any(site.test(path, method) for method in ("GET", "POST")), path
