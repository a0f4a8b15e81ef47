"""The peers, and a virtual environment for each, kept from one run to the next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


class PeerUnavailable(Exception):
    """A peer cannot be measured; the message says why."""


@dataclass(frozen=True)
class Peer:
    """An engine that is measured beside ours."""

    name: str
    #: The module of `benchmarks.peers.subjects` that runs it.
    subject: str
    requirements: tuple[str, ...]
    databases: tuple[str, ...] = ("postgresql",)
    #: Whether what it executes has steps that are stored, and a replay.
    has_steps: bool = True
    #: How it was set, for the reader of its figures.
    setting: str = ""


PEERS = (
    Peer(
        "DBOS",
        "dbos",
        ("dbos>=3.4,<4",),
        databases=("postgresql", "sqlite"),
        setting="queue without limits, max_executor_threads=8, DBOSClient.enqueue; S4: polling_interval_sec=0.005",
    ),
    Peer(
        "Absurd",
        "absurd",
        # The schema comes with the command.
        ("absurd-sdk>=0.5,<0.6", "absurdctl>=0.5,<0.6"),
        setting="8 threads with a connection each, batch_size=8; S4: one thread, poll_interval=0.005",
    ),
    Peer(
        "Procrastinate",
        "procrastinate",
        ("procrastinate>=3.10,<4", "psycopg[binary]>=3.2"),
        has_steps=False,
        setting="asynchronous jobs without steps, concurrency=8, listen_notify",
    ),
)


def default_cache() -> Path:
    """Where environments are kept unless told otherwise: with other programs' caches."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "flask-workflows" / "peers"


def make_environment(peer: Peer, cache: Path) -> Path:
    """Install the peer unless it is; answer its interpreter. Raises `PeerUnavailable` with pip's last words."""
    folder = cache / peer.subject
    python = folder / "bin" / "python"
    # Written last, so that what an interrupted run has left is made anew.
    stamp = folder / "requirements.txt"
    wanted = "\n".join([sys.version, *peer.requirements])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python

    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run(peer, [sys.executable, "-m", "venv", str(folder)])
    _run(peer, [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requirements])
    stamp.write_text(wanted)

    return python


def _run(peer: Peer, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last_words = (done.stderr or done.stdout).strip()[-1_000:]
        raise PeerUnavailable(f"{peer.name} could not be installed: {last_words}")
