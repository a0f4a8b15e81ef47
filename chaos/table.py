"""What is printed: faults by kind, runs by outcome, what was looked at, latencies, violations."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from chaos.run import Report

STATUSES = ("completed", "failed", "cancelled")
#: What a violation is told by; the rest of it stands in the evidence.
MOST_TOLD = 20


def table(reports: Sequence[Report]) -> str:
    """Markdown, of one or several databases."""
    seconds = ", ".join(f"{report.database} {report.seconds:.0f} s" for report in reports)
    parts = [f"seed {reports[0].seed}; {seconds}", "", *_counts(reports)]
    for report in reports:
        parts += ["", *_verdict(report)]
    return "\n".join(parts)


def _counts(reports: Sequence[Report]) -> Iterator[str]:
    names = [report.database for report in reports]
    yield from _head("faults injected", names)
    kinds = dict.fromkeys(kind for report in reports for kind in sorted(report.faults))
    for kind in kinds:
        yield _row(kind, [_number(report.faults.get(kind)) for report in reports])
    yield _row("**all**", [f"**{sum(report.faults.values()):,}**" for report in reports])
    yield ""
    yield from _head("runs by outcome", names)
    for status in STATUSES:
        yield _row(status, [_number(_of_status(report, status)) for report in reports])
    others = [sum(report.outcomes.values()) - sum(_of_status(report, one) for one in STATUSES) for report in reports]
    yield _row("not finished", [f"{number:,}" for number in others])
    yield ""
    yield from _head("looked at", names)
    for what in reports[0].looked_at:
        yield _row(what, [f"{report.looked_at[what]:,}" for report in reports])
    for what in dict.fromkeys(what for report in reports for what in sorted(report.done)):
        yield _row(f"the app: {what}", [_number(report.done.get(what)) for report in reports])
    yield _row("start to step before the faults, ms", [_millis(report.before) for report in reports])
    yield _row("start to step after them, ms", [_millis(report.after) for report in reports])
    yield _row("**violations**", [f"**{len(report.violations):,}**" for report in reports])


def _of_status(report: Report, status: str) -> int:
    return sum(number for (_, ended), number in report.outcomes.items() if ended == status)


def _verdict(report: Report) -> Iterator[str]:
    for why in report.left_out:
        yield f"{report.database}: left out: {why}"
    yield f"{report.database}: {len(report.violations)} violations"
    for violation in report.violations[:MOST_TOLD]:
        yield f"  {violation.check}: run {violation.run}: {violation.what}"
    if len(report.violations) > MOST_TOLD:
        yield f"  and {len(report.violations) - MOST_TOLD} more"


def _head(title: str, names: Sequence[str]) -> Iterator[str]:
    yield _row(title, names)
    yield _row("---", ["---:" for _ in names])


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _number(number: int | None) -> str:
    return f"{number:,}" if number else "-"


def _millis(medians: Sequence[float]) -> str:
    """The median of each worker's probes."""
    return " / ".join(f"{1000 * median:.0f}" for median in medians)
