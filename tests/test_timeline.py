from __future__ import annotations

from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

from flask_workflows.dashboard.timeline import Bar
from flask_workflows.dashboard.timeline import draw
from flask_workflows.dashboard.timeline import NARROWEST
from flask_workflows.runs import Attempt
from flask_workflows.runs import Step

START = datetime(2026, 11, 30, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_step(number: int, begin: float | None, end: float | None, status: str = "completed", **values: Any) -> Step:
    return Step(
        run_id="r",
        key=f"s{number}",
        position=number,
        kind=values.get("kind", "step"),
        status=status,
        attempts=1,
        started_at=None if begin is None else at(begin),
        finished_at=None if end is None else at(end),
        due_at=None,
        error=None,
        earlier=values.get("earlier", ()),
        number=number,
    )


def test_one_step_has_nothing_to_compare_with() -> None:
    assert draw([], now=at(9)) is None
    assert draw([a_step(1, 0, 5)], now=at(9)) is None


def test_work_is_drawn_to_scale() -> None:
    drawn = draw([a_step(1, 0, 1), a_step(2, 1, 4)], now=at(9))

    assert drawn is not None
    assert drawn.bars == {1: (Bar("completed", 0.0, 25.0),), 2: (Bar("completed", 25.0, 75.0),)}
    assert drawn.cuts == ()


def test_running_step_goes_up_to_now() -> None:
    drawn = draw([a_step(1, 0, 1), a_step(2, 1, None, "running")], now=at(2))

    assert drawn is not None
    assert drawn.bars[2] == (Bar("running", 50.0, 50.0),)


def test_long_wait_is_cut_short_and_marked() -> None:
    sleep = a_step(2, 1, 100_000, kind="sleep")
    drawn = draw([a_step(1, 0, 1), sleep, a_step(3, 100_000, 100_001)], now=at(100_001))

    assert drawn is not None
    assert drawn.bars == {
        1: (Bar("completed", 0.0, 25.0),),
        2: (Bar("sleeping", 25.0, 50.0),),
        3: (Bar("completed", 75.0, 25.0),),
    }
    assert drawn.cuts == (50.0,)


def test_long_wait_can_be_drawn_at_its_full_length() -> None:
    drawn = draw([a_step(1, 0, 1), a_step(2, 1, 99, kind="sleep"), a_step(3, 99, 100)], now=at(100), shorten=False)

    assert drawn is not None
    assert drawn.bars[2] == (Bar("sleeping", 1.0, 98.0),)
    assert drawn.cuts == ()


def test_short_wait_is_drawn_as_it_is() -> None:
    drawn = draw([a_step(1, 0, 4), a_step(2, 4, 5, kind="wait"), a_step(3, 5, 10)], now=at(10))

    assert drawn is not None
    assert drawn.bars[2] == (Bar("waiting", 40.0, 10.0),)
    assert drawn.cuts == ()


def test_attempts_and_the_time_between_them_are_bars_of_one_row() -> None:
    earlier = (Attempt(at(0), at(2), None), Attempt(None, None, None), Attempt(at(3), at(5), None))
    drawn = draw([a_step(1, 6, 10, earlier=earlier)], now=at(10))

    assert drawn is not None
    assert [(bar.kind, bar.x, bar.width) for bar in drawn.bars[1]] == [
        ("failed", 0.0, 20.0),
        ("backoff", 20.0, 10.0),
        ("failed", 30.0, 20.0),
        ("backoff", 50.0, 10.0),
        ("completed", 60.0, 40.0),
    ]


def test_retrying_step_waits_up_to_now() -> None:
    step = a_step(1, 0, None, "retrying", earlier=(Attempt(at(0), at(5), None),))

    drawn = draw([step], now=at(10))

    assert drawn is not None
    assert [bar.kind for bar in drawn.bars[1]] == ["failed", "backoff"]


def test_nothing_is_too_narrow_or_sticks_out() -> None:
    steps = [a_step(1, 0, 0), a_step(2, 0, 1_000), a_step(3, 1_000, 1_000), a_step(4, None, None), a_step(5, 999, 998)]

    drawn = draw(steps, now=at(1_000))

    assert drawn is not None
    assert drawn.bars[4] == ()
    for row in drawn.bars.values():
        for bar in row:
            assert bar.width >= NARROWEST
            assert 0 <= bar.x <= bar.x + bar.width <= 100.01


def test_run_that_only_waited_is_drawn_too() -> None:
    drawn = draw([a_step(1, 0, 10, kind="sleep"), a_step(2, 10, 20, kind="sleep")], now=at(20))

    assert drawn is not None
    assert [row[0].width for row in drawn.bars.values()] == [50.0, 50.0]
