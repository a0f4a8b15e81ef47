"""Measures the scenarios and prints one table: `python -m benchmarks`.

PostgreSQL is the server named by TEST_POSTGRES_URL, else a private one that is started and thrown away.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import datetime
from datetime import UTC
from pathlib import Path

from benchmarks import lasting
from benchmarks import scenarios
from benchmarks.databases import describe
from benchmarks.databases import find_pgbench
from benchmarks.databases import open_server
from benchmarks.figures import Figure
from benchmarks.figures import table
from benchmarks.scenarios import Bench
from benchmarks.scenarios import Effort
from benchmarks.scenarios import QUICK
from tests.databases import PostgresServer
from tests.databases import PostgresUnavailable

SCENARIOS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {
    "S1": scenarios.enqueue,
    "S2": scenarios.drain_one_step,
    "S3": scenarios.drain_ten_steps,
    "S4": scenarios.start_latency,
    "S5": scenarios.replay,
    "S6": scenarios.sleepers,
    "S7": lasting.wake_ups,
    "S8": lasting.newest_failed,
    "S9": scenarios.fan_out,
    "S10": scenarios.family,
    "S11": lasting.claims,
    "S12": lasting.memory,
}

KINDS = ("postgresql", "sqlite")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    kinds = KINDS if options.database == "both" else (options.database,)
    effort = QUICK if options.quick else Effort()
    try:
        with open_server("postgresql" in kinds) as server:
            about = _about(server)
            _say(about)
            figures = list(_measure(options.scenario or list(SCENARIOS), kinds, server, effort))
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 1

    print(f"{about}\n\n{table(figures)}")
    if options.json is not None:
        record = {"about": about, "quick": options.quick, "figures": [figure.record() for figure in figures]}
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="measure this one; may be repeated (default: all)"
    )
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both", help="(default: both)")
    parser.add_argument("--quick", action="store_true", help="a look that takes a minute or two, not for comparisons")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    return parser


def _about(server: PostgresServer | None) -> str:
    limit = "the limit is pgbench's" if find_pgbench() else "the limit is that of Python threads: there is no pgbench"
    now = datetime.now(UTC)

    return f"{now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPUs, {describe(server)}; {limit}"


def _measure(
    chosen: Sequence[str], kinds: Sequence[str], server: PostgresServer | None, effort: Effort
) -> Iterator[Figure]:
    for scenario in chosen:
        for kind in kinds:
            began = time.monotonic()
            for figure in SCENARIOS[scenario](Bench(kind, server, effort)):
                _say("  ".join(cell for cell in figure.row() if cell != "-"))
                yield figure
            _say(f"{scenario} on {kind} took {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    """What is done so far; the table alone goes to standard output."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
