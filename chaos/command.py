"""Real workers and databases under faults; docs/chaos.md says which, and what is checked. Exits with 1 on a violation."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.run import try_database
from chaos.table import table
from tests.databases import PostgresUnavailable

KINDS = ("postgresql", "sqlite")
#: Five minutes a database.
SECONDS = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    kinds = KINDS if options.database == "both" else (options.database,)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="flask-workflows-chaos-"))
    print(f"seed {seed}, logs in {folder}", file=sys.stderr, flush=True)
    try:
        reports = []
        for kind in kinds:
            began = time.monotonic()
            reports.append(try_database(kind, options.seconds, seed, folder / kind))
            print(f"{kind} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 2

    print(table(reports))
    violated = any(report.violations for report in reports)
    if violated:
        print(f"\nthe evidence is in {folder}: violations.txt, faults.txt and the workers' logs of each database")
    elif options.folder is None:
        shutil.rmtree(folder)
    return 1 if violated else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=(__doc__ or "").strip())
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both", help="(default: both)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="about how long each database takes (default: 300)"
    )
    parser.add_argument("--seed", type=int, help="of faults and load; the same seed plans the same faults")
    parser.add_argument("--folder", type=Path, help="where logs and evidence are left, also without a violation")
    return parser
