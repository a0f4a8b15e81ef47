"""Where the folders that are not Python lie."""

from __future__ import annotations

from pathlib import Path

_package = Path(__file__).resolve().parent

#: An installed package holds templates/, static/ and migrations/ itself; in a
#: checkout they stand beside it.
ROOT = _package if (_package / "templates").is_dir() else _package.parent
TEMPLATES = ROOT / "templates"
STATIC = ROOT / "static"
MIGRATIONS = ROOT / "migrations"
