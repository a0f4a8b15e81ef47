"""Checks that a wheel holds the package with its folders and the pytest plugin, and nothing beside them."""

from __future__ import annotations

import sys
import zipfile

NEEDED = [
    "_flask_workflows_pytest.py",
    "flask_workflows/__init__.py",
    "flask_workflows/py.typed",
    "flask_workflows/static/htmx.LICENSE.txt",
    "flask_workflows/static/htmx.min.js",
]
NEEDED_FOLDERS = [
    "flask_workflows/migrations/versions/",
    "flask_workflows/static/",
    "flask_workflows/templates/flask_workflows/",
]
UNWANTED = ["__pycache__", ".pyc", ".swp", "~"]


def faults(names: list[str]) -> list[str]:
    """Say what is missing from the wheel or does not belong there."""
    content = [name for name in names if ".dist-info/" not in name]

    return [
        *(f"missing: {name}" for name in NEEDED if name not in content),
        *(
            f"missing: files in {folder}"
            for folder in NEEDED_FOLDERS
            if not any(name.startswith(folder) for name in content)
        ),
        *(f"outside the package: {n}" for n in content if not n.startswith("flask_workflows/") and n not in NEEDED),
        *(f"unwanted: {n}" for n in content if any(part in n for part in UNWANTED)),
    ]


def main(path: str) -> int:
    found = faults(zipfile.ZipFile(path).namelist())
    print(*found or [f"{path}: complete"], sep="\n")

    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
