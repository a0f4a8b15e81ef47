"""Chromium for the browser tests: found, or installed where that can be done.

`make test` runs this before the tests. It keeps silent and never fails: without a browser the tests themselves say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: Set to 1, it lets the tests do without a browser: they are skipped, and say so.
WITHOUT = "WORKFLOWS_TESTS_WITHOUT_BROWSER"

MISSING = (
    f"no Chromium: none of {', '.join(NAMES)} is on the PATH. Install it (Debian: apt-get install chromium), "
    f"or leave these tests out with {WITHOUT}=1."
)

_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120")
# Without its recommendations, which may be hundreds of packages; a font it must have.
_INSTALL = (*_APT, "install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core")


def find() -> str | None:
    """Where the browser is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def left_out(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(WITHOUT) == "1"


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def main() -> None:
    if left_out() or find() is not None or not can_install():
        return
    print("Installing Chromium for the browser tests …", file=sys.stderr)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Lists that are older than the archive name packages that are gone from it.
    for command in ((*_APT, "update"), _INSTALL):
        subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
