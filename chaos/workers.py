"""The worker processes: each has a slot, in which it is started again whenever it ended."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from contextlib import suppress

from chaos.app import work
from tests.processes import Fleet
from tests.processes import Process

#: How often a slot is looked at.
LOOK_SECONDS = 0.1
#: The codes of a worker that ends as it was asked to, once or twice.
_ASKED_FOR = (0, -signal.SIGKILL, 128 + signal.SIGTERM)


class Slot:
    """One of the workers, whichever process it is at the moment."""

    def __init__(self, fleet: Fleet, number: int, url: str, config: Mapping[str, object]) -> None:
        self.number = number
        #: How many seconds the clock of the next process is off.
        self.shift = 0.0
        self._fleet = fleet
        self._url = url
        self._config = dict(config)
        self._lock = threading.Lock()
        #: Whether the end of the present process was asked for.
        self._asked = False
        self._process = self._start()

    def _start(self) -> Process:
        process = self._fleet.run(work, self._url, self.number, self.shift, self._config)
        self.shift = 0.0
        return process

    def serves(self) -> bool:
        with self._lock:
            return self._process.alive and self._process.serves()

    def kill(self) -> None:
        with self._lock:
            self._asked = True
            self._process.kill()

    def terminate(self) -> None:
        """Ask it to stop. Whatever freezes it in between makes it take longer."""
        with self._lock:
            self._asked = True
            process = self._process
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while self._lives(process) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _lives(self, process: Process) -> bool:
        # Two threads that ask at once for the end of one process would read its exit code twice.
        with self._lock:
            return process is self._process and process.alive

    def freeze(self) -> int:
        """Stop the process; its pid."""
        with self._lock:
            self._process.send(signal.SIGSTOP)
            return self._process.pid

    def thaw(self, pid: int) -> None:
        with self._lock:
            if self._process.pid == pid:
                self._process.send(signal.SIGCONT)

    @contextmanager
    def limited(self, what: int, limit: int) -> Iterator[None]:
        """The process under a limit of the system's."""
        with self._lock:
            pid = self._process.pid
            before = _set_limit(pid, what, limit)
        yield
        with self._lock:
            if before is not None and self._process.pid == pid and self._process.alive:
                _set_limit(pid, what, before)

    def look(self) -> int | None:
        """Start another process if this one has ended; answer the code of one that nobody asked to end."""
        with self._lock:
            if self._process.alive:
                return None
            ended = self._process
            code = ended.wait()
            asked, self._asked = self._asked, False
            self._process = self._start()
        # Asked before it has begun, Python itself ends it.
        early = code == -signal.SIGTERM and not ended.serves()
        return None if asked and (early or code in _ASKED_FOR) else code


def _set_limit(pid: int, what: int, limit: int) -> int | None:
    """Set a soft limit; what it was, null where the process has gone."""
    with suppress(ProcessLookupError):
        soft, hard = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (limit, hard))
        return soft
    return None


class Supervisor:
    """Keeps every slot filled, from a thread of its own, as systemd would."""

    def __init__(self, slots: list[Slot], ended: Callable[[int, int], None]) -> None:
        """`ended` is told the number of a slot whose process ended unasked, and its exit code."""
        self._slots = slots
        self._ended = ended
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            for slot in self._slots:
                code = slot.look()
                if code is not None:
                    self._ended(slot.number, code)
