"""A stranger's first hour: what README, quick start and tutorial tell to type is typed, in an empty directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_app.supervisor import free_port
from tests.documents import Block
from tests.documents import blocks_of
from tests.documents import ROOT
from tests.documents import words_of

# Some thirty processes that import everything, one after the other.
pytestmark = pytest.mark.timeout(1_200)

#: Done already, or not without a network.
GIVEN = ("python3 -m venv", ". .venv", "pip install")

#: Commands that go on, and what tells that they are up.
SERVERS = {"flask workflows work": " serves ", "flask run": "Running on "}

#: Seconds for anything that is waited for; reached only where it does not come at all.
LONG = 120.0


class Shell:
    """Types commands in a directory of its own. A server that is started again is stopped before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = str(free_port())
        self.typed: list[str] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FLASK_", "PYTEST_"))},
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "FLASK_RUN_PORT": self.port,
            # Ours alone, since the many plugins of these tests take long to load.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "_flask_workflows_pytest",
        }

    def write(self, block: Block) -> None:
        """Put a block into its file, or at the end of it."""
        assert block.file is not None
        path = self.directory / block.file
        before = f"{path.read_text()}\n\n" if path.exists() else ""
        path.write_text(before + block.text.partition("\n")[2])

    def type(self, line: str, wanted: list[str]) -> None:
        """Type a line; what it prints must be as wanted, where anything is."""
        line = line.replace("localhost:5000", f"127.0.0.1:{self.port}").strip()
        self.typed.append(line)
        if line.startswith(GIVEN):
            return
        for server, sign in SERVERS.items():
            if line.startswith(server):
                self._serve(server, line, sign)
                return
        # A worker may take a moment for what a list shows then.
        deadline = time.monotonic() + LONG
        while True:
            printed = self._run(line)
            if _fits(printed, wanted):
                return
            assert line.startswith(("flask workflows list", "flask workflows show")), f"{line}\n{printed}"
            assert time.monotonic() < deadline, f"{line}\n{printed}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    def get(self, path: str) -> str:
        deadline = time.monotonic() + LONG
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LONG) as answer:
                    return str(answer.read().decode())
            except urllib.error.URLError:
                # The app is loaded again after a change.
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.2)

    def close(self) -> None:
        for process in self._servers.values():
            _stop(process)

    def _run(self, line: str) -> str:
        words = words_of(line)
        if words[:1] == ["curl"]:
            assert words[1:3] == ["-X", "POST"], line
            asked = urllib.request.Request(f"http://{words[3]}", method="POST")
            with urllib.request.urlopen(asked, timeout=LONG) as answer:
                return str(answer.read().decode())
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, server: str, line: str, sign: str) -> None:
        if server in self._servers:
            _stop(self._servers[server])
        log = self.directory / f"{len(list(self.directory.glob('*.log')))}.log"
        with log.open("wb") as output:
            self._servers[server] = process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + LONG
        while sign not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    # The group: the reloader of `flask run --debug` has a child that serves.
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=LONG)


def _fits(printed: str, wanted: list[str]) -> bool:
    """Whether each wanted line is printed, in order; `…` stands for anything, and blanks for as many as there are."""
    parts = [r"\s+".join(re.escape(word).replace("…", ".*") for word in line.split()) for line in wanted]
    return re.search(r".*\n(?:.*\n)*?.*".join(parts), printed) is not None


def test_what_a_page_shows_is_compared() -> None:
    printed = "ab12  waiting  onboarding v1\nmore\ncd34  failed  renewal v1\n"

    assert _fits(printed, [])
    assert _fits(printed, ["… waiting onboarding v1", "…  failed …"])
    assert not _fits(printed, ["… failed …", "… waiting …"])
    assert not _fits(printed, ["… completed …"])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    assert shutil.which("flask", path=str(Path(sys.executable).parent)) is not None
    made = Shell(tmp_path)

    yield made

    made.close()


def _follow(page: str, shell: Shell) -> None:
    """Do all that a page says."""
    for block in blocks_of(page):
        if block.file is not None:
            shell.write(block)
        elif block.language == "sh":
            for line in block.text.splitlines():
                if words_of(line):
                    shell.type(line, [])
        elif block.language == "console":
            for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, *wanted = command.splitlines()
                shell.type(line, wanted)


def test_readme_leads_to_a_workflow_in_the_dashboard_in_under_ten_commands(shell: Shell) -> None:
    for block in blocks_of("README.md"):
        if block.file is not None:
            shell.write(block)
        elif block.language == "sh":
            for line in block.text.splitlines():
                shell.type(line, [])
            if "sign-up" in block.text:
                break

    shell.type("flask workflows list", ["… waiting onboarding v1 …"])
    assert "onboarding" in shell.get("/workflows/runs")
    commands = [part for line in shell.typed[:-1] for part in line.split("&&")]
    assert len(commands) < 11, commands

    shell.type("curl -X POST localhost:5000/finish/8", [])
    shell.type("flask workflows list", ["… completed onboarding v1 …"])


def test_quick_start(shell: Shell) -> None:
    _follow("docs/quick-start.md", shell)

    assert shell.logs().count("welcome mail to user 8") == 1
    assert "onboarding" in shell.get("/workflows/runs")


def test_tutorial(shell: Shell) -> None:
    _follow("docs/tutorial.md", shell)

    assert "onboarding" in shell.get("/workflows/runs")
    assert "CardDeclined" in shell.get("/workflows/failures")
    assert shell.logs().count("To ada: welcome") == 1
