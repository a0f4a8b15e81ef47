"""Measures other durable engines and ours in turns, and prints our multiples of them: `python -m benchmarks.peers`.

Each peer comes from PyPI into an environment of its own. PostgreSQL is the server named by TEST_POSTGRES_URL, else a
private one that is started and thrown away.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import ExitStack
from datetime import datetime
from datetime import UTC
from pathlib import Path

from benchmarks.databases import describe
from benchmarks.databases import fresh_database
from benchmarks.databases import open_server
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.comparison import table
from benchmarks.peers.contestants import Other
from benchmarks.peers.contestants import Ours
from benchmarks.peers.environments import default_cache
from benchmarks.peers.environments import make_environment
from benchmarks.peers.environments import Peer
from benchmarks.peers.environments import PEERS
from benchmarks.peers.environments import PeerUnavailable
from benchmarks.peers.processes import SubjectFailed
from benchmarks.peers.scenarios import Effort
from benchmarks.peers.scenarios import Field
from benchmarks.peers.scenarios import ON_SQLITE
from benchmarks.peers.scenarios import QUICK
from benchmarks.peers.scenarios import SCENARIOS
from tests.databases import PostgresServer
from tests.databases import PostgresUnavailable

KINDS = ("postgresql", "sqlite")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    kinds = KINDS if options.database == "both" else (options.database,)
    # Workers that stand still would outlive us.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run = Run(QUICK if options.quick else Effort())
    try:
        with open_server("postgresql" in kinds) as server:
            run.install([peer for peer in PEERS if peer.subject in (options.peer or _SUBJECTS)], options.cache)
            about = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPUs, {describe(server)}"
            _say(about)
            for kind in kinds:
                for scenario in options.scenario or SCENARIOS:
                    if kind == "postgresql" or scenario in ON_SQLITE:
                        run.measure(scenario, kind, server)
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 1

    print("\n".join([about, "", *(f"- {remark}" for remark in run.remarks()), "", table(run.comparisons)]))
    if options.json is not None:
        record = {"about": about, "quick": options.quick, "remarks": run.remarks()}
        record["comparisons"] = [comparison.record() for comparison in run.comparisons]
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if run.left_out else 0


_SUBJECTS = [peer.subject for peer in PEERS]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="compare this one; may be repeated (default: all)"
    )
    parser.add_argument(
        "--peer", action="append", choices=_SUBJECTS, help="measure this one; may be repeated (default: all)"
    )
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both", help="(default: both)")
    parser.add_argument("--quick", action="store_true", help="a look that takes a few minutes, not for comparisons")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        default=default_cache(),
        help="where the peers' environments are kept (default: %(default)s)",
    )
    return parser


class Run:
    """Compares one scenario after the other, and goes on without the peers that fail."""

    def __init__(self, effort: Effort) -> None:
        self.comparisons: list[Comparison] = []
        self.left_out: dict[str, str] = {}
        self._effort = effort
        self._pythons: dict[Peer, Path] = {}
        self._versions: dict[str, Mapping[str, str]] = {}

    def install(self, peers: Sequence[Peer], cache: Path) -> None:
        for peer in peers:
            _say(f"{peer.name}: {', '.join(peer.requirements)}")
            try:
                self._pythons[peer] = make_environment(peer, cache.absolute())
            except PeerUnavailable as error:
                self._leave_out(peer.name, str(error))

    def measure(self, scenario: str, kind: str, server: PostgresServer | None) -> None:
        peers = [peer for peer in self._pythons if kind in peer.databases]
        while True:
            began = time.monotonic()
            try:
                with self._field(kind, server, peers) as field:
                    comparisons = list(SCENARIOS[scenario](field))
            except SubjectFailed as error:
                failed = next(peer for peer in peers if peer.subject == error.subject)
                self._leave_out(f"{failed.name} in {scenario} on {kind}", str(error))
                peers.remove(failed)
                continue

            for comparison in comparisons:
                _say(str(comparison))
            _say(f"{scenario} on {kind} took {time.monotonic() - began:.0f} s")
            self.comparisons += comparisons
            return

    def remarks(self) -> list[str]:
        """What was measured and how it was set, and what was not and why."""
        measured = [
            f"{peer.name}: {', '.join(' '.join(pair) for pair in self._versions[peer.name].items())}; {peer.setting}"
            for peer in self._pythons
            if peer.name in self._versions
        ]
        return measured + [f"left out: {what}, as {why.splitlines()[-1]}" for what, why in self.left_out.items()]

    @contextmanager
    def _field(self, kind: str, server: PostgresServer | None, peers: Sequence[Peer]) -> Iterator[Field]:
        with ExitStack() as stack:
            ours = Ours(stack.enter_context(fresh_database(kind, server)))
            others = []
            for peer in peers:
                database = stack.enter_context(fresh_database(kind, server))
                others.append(Other(peer, self._pythons[peer], database, stack))
                self._versions[peer.name] = others[-1].versions
            yield Field(kind, ours, others, self._effort)

    def _leave_out(self, what: str, why: str) -> None:
        self.left_out[what] = why
        _say(f"left out: {what}, as {why}")


def _say(line: str) -> None:
    """What is done so far; the table alone goes to standard output."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
