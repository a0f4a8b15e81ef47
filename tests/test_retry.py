"""Retry policies (R16)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from flask_workflows import Retry
from flask_workflows.errors import DefinitionError


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (Retry(attempts=1), []),
        (Retry(attempts=4, backoff=Retry.constant(7)), [7, 7, 7]),
        (Retry(attempts=4, backoff=Retry.linear(7, max=15)), [7, 14, 15]),
        (Retry(attempts=5, backoff=Retry.exponential(timedelta(minutes=1), max=200)), [60, 120, 200, 200]),
        (Retry(attempts=4, retry_on=(ConnectionError,)), []),
        (Retry(attempts=2, retry_on=(OSError, ValueError)), [10]),
        (Retry(attempts=4, give_up_on=(FileNotFoundError,)), []),
        (Retry(attempts=4, retry_on=(OSError,), give_up_on=(OSError,)), []),
    ],
)
def test_a_policy_says_whether_and_when_a_step_is_tried_again(policy: Retry, delays: list[float]) -> None:
    filled = policy.filled(3, Retry.linear(10))

    waits = [filled.delay_ms(FileNotFoundError("gone"), attempt) for attempt in range(1, len(delays) + 2)]

    assert waits == [*(delay * 1000 for delay in delays), None]


def test_b67_a_doubled_back_off_stays_within_a_year() -> None:
    policy = Retry(attempts=2000, backoff=Retry.exponential(30))

    longest = [policy.delay_ms(OSError(), attempt) for attempt in (60, 1000, 1999)]

    assert longest == [366 * 24 * 3_600_000] * 3


def test_jitter_spreads_a_delay_by_its_share() -> None:
    policy = Retry(attempts=2, backoff=Retry.constant(100), jitter=0.2)

    delays = [policy.delay_ms(OSError(), 1) or 0 for _ in range(200)]

    assert min(delays) >= 80_000
    assert max(delays) <= 120_000
    assert len(set(delays)) > 100


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (lambda: Retry(attempts=0), "attempts=0"),
        (lambda: Retry(attempts=True), "attempts=True"),
        (lambda: Retry(backoff=5), "backoff=5"),  # type: ignore[arg-type]
        (lambda: Retry(jitter=1.5), "jitter=1.5"),
        (lambda: Retry(jitter=float("nan")), "jitter=nan"),
        (lambda: Retry(retry_on="OSError"), "retry_on"),  # type: ignore[arg-type]
        (lambda: Retry(give_up_on=(OSError, 7)), "give_up_on"),  # type: ignore[arg-type]
    ],
)
def test_a_retry_that_cannot_work_is_refused_where_it_is_written(policy: Callable[[], Retry], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        policy()
