"""Make the pictures of the pages in this folder: `python docs/screenshots.py`.

Runs the course shop with slow days, so that runs are found in several states, and takes the pictures with Chromium,
which must be installed.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PORT = 5079
SHOP = f"http://127.0.0.1:{PORT}"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is needed for the pictures: apt-get install chromium, or your system's like")
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "example_app", "--port", str(PORT), "--directory", directory]
        shop = subprocess.Popen([*command, "--day-seconds", "600"], cwd=HERE.parent)
        try:
            run = _wait_for_runs()
            _take(browser, "runs", f"{SHOP}/workflows/runs", "1320,640")
            _take(browser, "run", f"{SHOP}/workflows/run/{run}", "1320,820")
        finally:
            shop.send_signal(signal.SIGINT)
            shop.wait(timeout=60)


def _wait_for_runs() -> str:
    """The id of a renewal whose charge was tried more than once, once it is done."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{SHOP}/workflows/runs?workflow=renewal&status=completed") as answer:
                page = answer.read().decode()
        except OSError:
            page = ""
        found = list(dict.fromkeys(re.findall(r"/workflows/run/([0-9a-f-]{36})", page)))
        if len(found) >= 2:
            return found[-2]
        time.sleep(0.5)
    sys.exit("the shop's renewals did not complete")


def _take(browser: str, name: str, url: str, size: str) -> None:
    for suffix, scheme in (("", 1), ("-dark", 0)):
        with tempfile.TemporaryDirectory() as profile:
            flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={size}"]
            flags += [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={HERE / f'{name}{suffix}.png'}"]
            subprocess.run([browser, *flags, url], check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main()
