"""How a subject speaks to whoever started it: a JSON object a line, on its standard input and output."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

#: In seconds.
MONTH = 30 * 24 * 3_600

# What a library prints goes to standard error instead, or it would stand among the lines.
_output = os.dup(1)
os.dup2(2, 1)
_one_at_a_time = threading.Lock()


def say(**message: Any) -> None:
    """Write one line; may be called from any thread."""
    line = json.dumps(message).encode() + b"\n"
    with _one_at_a_time:
        while line:
            line = line[os.write(_output, line) :]


def say_ready(*packages: str) -> None:
    say(ready={package: version(package) for package in packages})


def say_began(number: int) -> None:
    """Called first in a probe's step: the system-wide monotonic clock, which its starter reads too."""
    say(began=number, at=time.monotonic_ns())


def serve(client: object) -> None:
    """Call the client's methods by request, until there are no more. What one raises ends the process."""
    for line in sys.stdin:
        request = json.loads(line)
        say(answer=getattr(client, request.pop("do"))(**request))


def wait_until_closed() -> None:
    """Return when whoever started this process closes its standard input, or is gone."""
    while sys.stdin.read(1):
        pass


def wait_until(condition: Callable[[], bool], patience: float = 100.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:.0f} s")
        time.sleep(0.05)


def start_one_by_one(start: Callable[[int], object], pauses: list[float]) -> list[int]:
    """Call `start` with 0, 1, … after each pause; answer the instants before the calls."""
    instants = []
    for number, pause in enumerate(pauses):
        time.sleep(pause)
        instants.append(time.monotonic_ns())
        start(number)

    return instants
