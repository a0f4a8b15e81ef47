"""How fast several threads do something together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

#: Makes what one thread needs, and answers what it is to do over and over.
Opened = Callable[[], AbstractContextManager[Callable[[], object]]]


def rate(clients: int, seconds: float, opened: Opened) -> float:
    """How often a second so many threads together do what `opened` gives each of them to do."""
    barrier = threading.Barrier(clients + 1)
    counts: list[int] = []

    def client() -> None:
        with opened() as act:
            count = 0
            barrier.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                act()
                count += 1
            counts.append(count)

    elapsed = timed(client, clients, barrier)
    return sum(counts) / elapsed


def timed(client: Callable[[], None], clients: int, barrier: threading.Barrier) -> float:
    """The seconds so many threads take, from the moment all of them have come to the barrier."""
    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait(timeout=60)
    began = time.perf_counter()
    for thread in threads:
        thread.join()

    return time.perf_counter() - began
