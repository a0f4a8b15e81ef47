"""Runs the demo's processes, shows what they print, and starts the worker again when it dies."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from types import FrameType

HOST = "127.0.0.1"
ROOT = Path(__file__).parent.parent

#: Seconds a process has to end by itself.
GRACE = 10.0

#: A process that lives shorter than this, three times in a row, is not started again.
SHORT_LIFE = 2.0


class Ended(Exception):
    """Somebody pressed Ctrl-C or sent SIGTERM."""


class ProcessDied(Exception):
    """A process that the demo needs is gone."""


class NotInTime(Exception):
    """What was waited for did not happen."""


@dataclass
class _Child:
    name: str
    command: Sequence[str]
    restart: bool
    ready_words: str | None
    process: subprocess.Popen[str]
    reader: threading.Thread
    #: Set once it has printed a line with the words that say so.
    ready: threading.Event
    started_at: float = field(default_factory=time.monotonic)
    short_lives: int = 0


class Supervisor:
    """Owns child processes; nothing happens to them but inside its methods."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env = env
        self._say = say
        self._children: list[_Child] = []
        self._signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self, name: str, *arguments: str) -> None:
        """Run a Python command to its end; raise unless it exits with 0."""
        child = self._spawn(name, arguments, restart=False)
        try:
            while child.process.poll() is None:
                self._raise_if_ended()
                time.sleep(0.05)
        finally:
            self._end(child)
        if child.process.returncode != 0:
            raise ProcessDied(f"{name} {_how_it_ended(child.process)}")

    def start(self, name: str, *arguments: str, restart: bool = False, ready: str | None = None) -> None:
        """Start a Python command that goes on until `stop()`; it is ready when it prints a line with those words."""
        self._children.append(self._spawn(name, arguments, restart=restart, ready_words=ready))

    def pid(self, name: str) -> int:
        return self._child(name).process.pid

    def is_ready(self, name: str) -> bool:
        return self._child(name).ready.is_set()

    def _child(self, name: str) -> _Child:
        return next(child for child in self._children if child.name == name)

    def look(self) -> None:
        """Start again what died and may be; raise if anything else did, or a signal came."""
        self._raise_if_ended()
        for index, child in enumerate(self._children):
            if child.process.poll() is None:
                continue
            short = time.monotonic() - child.started_at < SHORT_LIFE
            short_lives = child.short_lives + 1 if short else 0
            how = f"{child.name} {child.process.pid} {_how_it_ended(child.process)}"
            if not child.restart or short_lives == 3:
                raise ProcessDied(how)

            child.reader.join(1)
            again = self._spawn(child.name, child.command, restart=True, ready_words=child.ready_words)
            again.short_lives = short_lives
            self._children[index] = again
            self._say(f"{how}. It was started again as process {again.process.pid}.")

    def wait_until(self, condition: Callable[[], bool], what: str, *, timeout: float) -> None:
        """Wait for the condition while looking after the processes."""
        deadline = time.monotonic() + timeout
        while True:
            self.look()
            if condition():
                return
            if time.monotonic() > deadline:
                raise NotInTime(f"{what}: not within {timeout:.0f} s")
            time.sleep(0.1)

    def watch(self) -> None:
        """Look after the processes until a signal comes."""
        while True:
            self.look()
            time.sleep(0.1)

    def stop(self) -> None:
        """End all processes, the last started first."""
        for child in reversed(self._children):
            self._end(child)
        self._children.clear()

    def _spawn(self, name: str, arguments: Sequence[str], *, restart: bool, ready_words: str | None = None) -> _Child:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C goes to the whole foreground group. Were the worker in it, our own
            # SIGTERM would be its second signal, at which it leaves without draining.
            start_new_session=True,
        )
        ready = threading.Event()
        relayed = (name, process, ready_words, ready)
        reader = threading.Thread(target=self._relay, args=relayed, daemon=True)
        reader.start()
        return _Child(name, arguments, restart, ready_words, process, reader, ready)

    def _relay(
        self, name: str, process: subprocess.Popen[str], ready_words: str | None, ready: threading.Event
    ) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                print(f"{name:>8} | {line.rstrip()}", flush=True)
                if ready_words is not None and ready_words in line:
                    ready.set()

    def _end(self, child: _Child) -> None:
        child.process.terminate()
        deadline = time.monotonic() + GRACE
        # A second Ctrl-C is somebody who will not wait.
        while child.process.poll() is None and time.monotonic() < deadline and self._signals < 2:
            time.sleep(0.05)
        child.process.kill()
        child.process.wait()
        child.reader.join(1)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only a flag: an exception here could come between a process and its bookkeeping.
        self._signals += 1

    def _raise_if_ended(self) -> None:
        if self._signals:
            raise Ended


def _how_it_ended(process: subprocess.Popen[str]) -> str:
    if process.returncode < 0:
        return f"was ended by {signal.Signals(-process.returncode).name}"
    return f"exited with {process.returncode}"


def listens(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex((HOST, port)) == 0


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
