"""A subject's process, spoken to line by line, and workers that stand still while others are measured."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Self

from benchmarks.databases import find_pgbench
from benchmarks.subject import PATIENCE
from benchmarks.subject import ROOT


class SubjectFailed(Exception):
    """A subject's process ended, or did not answer; the message has its last words."""

    def __init__(self, subject: str, why: str) -> None:
        super().__init__(why)
        self.subject = subject


class SubjectProcess:
    """One role of a subject, run by the peer's interpreter while in the context."""

    def __init__(self, python: Path, subject: str, role: str, *arguments: str) -> None:
        self._subject = subject
        self._role = role
        self._command = [str(python), "-m", "benchmarks.peers.subjects", subject, role, *arguments]

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Ctrl-C reaches us alone, and we end it.
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

        return self.read("answer")

    def read(self, key: str) -> Any:
        """The value under this key in the next line."""
        return self.read_line()[key]

    def read_line(self) -> Mapping[str, Any]:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise self._failure(f"said nothing for {PATIENCE:.0f} s") from None
        if line is None:
            raise self._failure()
        message: Mapping[str, Any] = json.loads(line)

        return message

    def finish(self) -> None:
        """Wait for a role that does one thing and ends. Raises `SubjectFailed` if it did not do it."""
        if self._process.wait(timeout=PATIENCE) != 0:
            raise self._failure()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _failure(self, what: str = "failed") -> SubjectFailed:
        self._log.seek(0)
        return SubjectFailed(self._subject, f"the {self._role} {what}: {self._log.read().strip()[-2_000:]}")


def _environment() -> Mapping[str, str]:
    """Ours, in which PostgreSQL's programs are found, and nothing of our Python."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG"))}
    pgbench = find_pgbench()
    if pgbench is not None:
        environment["PATH"] = f"{environment.get('PATH', '')}:{Path(pgbench).parent}"

    return environment


@contextmanager
def standing_still(pids: Sequence[int]) -> Iterator[None]:
    """Stop these processes, as idle workers of others would take their share of the machine by polling."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        # A stopped process could not be ended in good order.
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def moving(pid: int) -> Iterator[None]:
    """Let one of them go on for a while."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)
