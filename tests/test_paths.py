from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flask_workflows import paths

FOLDERS = ["templates", "static", "migrations"]


def test_checkout_has_the_folders_beside_the_package() -> None:
    checkout = Path(__file__).resolve().parent.parent

    assert checkout == paths.ROOT
    assert (paths.TEMPLATES / "flask_workflows").is_dir()
    assert (paths.STATIC / "htmx.min.js").is_file()
    assert (paths.MIGRATIONS / "versions").is_dir()


@pytest.mark.parametrize("inside", [True, False])
def test_folders_are_found_inside_the_package_before_beside_it(tmp_path: Path, inside: bool) -> None:
    package = tmp_path / "flask_workflows"
    package.mkdir()
    shutil.copy(paths.__file__, package)
    (package / "__init__.py").touch()
    for parent in [tmp_path, package] if inside else [tmp_path]:
        for name in FOLDERS:
            (parent / name).mkdir()

    code = "from flask_workflows.paths import *; print(TEMPLATES, STATIC, MIGRATIONS, sep='\\n')"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)

    expected = package if inside else tmp_path
    assert printed.splitlines() == [str(expected / name) for name in FOLDERS]
