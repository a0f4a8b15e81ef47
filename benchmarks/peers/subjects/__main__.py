"""One role of one subject: `python -m benchmarks.peers.subjects SUBJECT setup|client|worker URL …`."""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.peers.subjects import lines


def main(name: str, role: str, url: str, *options: str) -> None:
    subject = importlib.import_module(f"benchmarks.peers.subjects.{name}")
    if role == "setup":
        subject.set_up(url)
    elif role == "client":
        client = subject.Client(url)
        lines.say_ready(*subject.PACKAGES)
        lines.serve(client)
    else:
        concurrency, mode = options
        subject.work(url, int(concurrency), mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
    # The threads of a peer are not waited for.
    os._exit(0)
