"""What users get: the wheel must hold the package, its folders and nothing else."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Where each folder of the checkout lands in the wheel.
SHIPPED = {
    "flask_workflows": "flask_workflows",
    "migrations": "flask_workflows/migrations",
    "static": "flask_workflows/static",
    "templates": "flask_workflows/templates",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = directory.glob("*.whl")

    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))

    return Parser().parsestr(wheel.read(name).decode())


def test_wheel_holds_every_file_of_the_package_and_the_plugin_beside_it(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in SHIPPED.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert shipped == expected | {"_flask_workflows_pytest.py"}


def test_pytest_finds_the_plugin(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))

    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(name).decode())

    assert dict(entries["pytest11"]) == {"flask_workflows": "_flask_workflows_pytest"}


@pytest.mark.parametrize(
    "name",
    [
        "flask_workflows/__init__.py",
        "flask_workflows/py.typed",
        "flask_workflows/static/htmx.LICENSE.txt",
        "flask_workflows/static/htmx.min.js",
    ],
)
def test_wheel_holds(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()


@pytest.mark.parametrize("folder", ["migrations/versions", "static", "templates/flask_workflows"])
def test_wheel_holds_files_in(wheel: zipfile.ZipFile, folder: str) -> None:
    assert any(name.startswith(f"flask_workflows/{folder}/") for name in wheel.namelist())


def test_wheel_carries_its_licence(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "MIT"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_drivers_and_migrations_are_extras(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist", [])

    assert metadata.get_all("Provides-Extra") == ["metrics", "migrate", "postgresql"]
    assert sorted(line.split(">")[0] for line in required if "extra ==" not in line) == [
        "flask",
        "flask-sqlalchemy",
        "sqlalchemy",
    ]


def test_readme_reads_on_its_own(metadata: Message) -> None:
    """On the package index no file stands beside it."""
    page = str(metadata.get_payload())

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert page.startswith("# Flask-Workflows\n")
    # As in the checkout, but for links into it and what only tests read.
    assert "(docs/tutorial.md)" in page
    assert re.findall(r"\]\((?!\w+:)[^)]*\)", page) == []
    assert "<!--" not in page
    assert "![" not in page


def test_sdist_holds_what_the_wheel_is_built_from_and_the_documentation(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = tmp_path.glob("*.tar.gz")

    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = ("docs/", "example_app/", "flask_workflows/", "migrations/", "static/", "templates/", "tests/")
    files = ("CHANGES.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "pyproject.toml", "zensical.toml")
    wanted = {name for name in tracked.stdout.splitlines() if name.startswith(folders) or name in files}
    assert wanted - names == set()
    assert {name for name in names if name.startswith(("site/", ".venv/"))} == set()
