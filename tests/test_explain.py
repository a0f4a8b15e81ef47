from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flask_workflows import phrases
from flask_workflows.errors import StepFailed
from flask_workflows.explain import Beside
from flask_workflows.explain import Instant
from flask_workflows.explain import Name
from flask_workflows.explain import now_doing
from flask_workflows.explain import plain
from flask_workflows.explain import state
from flask_workflows.explain import Surroundings
from flask_workflows.explain import telling_steps
from flask_workflows.explain import why
from flask_workflows.explain import work_command
from flask_workflows.runs import Awaited
from flask_workflows.runs import Count
from flask_workflows.runs import Run
from flask_workflows.runs import RunError
from flask_workflows.runs import RunStatus
from flask_workflows.runs import Step
from flask_workflows.runs import Worker

NOW = datetime(2026, 11, 30, 17, 13, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def soon(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def a_run(status: RunStatus = RunStatus.PENDING, **values: Any) -> Run:
    run = Run(
        id="01a22945",
        workflow="send_invoice",
        version=2,
        queue="mail",
        workspace="",
        key=None,
        status=status,
        epoch=1,
        worker=None,
        due_at=None if status.finished else ago(5),
        attempts=0,
        max_attempts=3,
        losses=0,
        cancel_requested_at=None,
        created_at=ago(60),
        started_at=None if status is RunStatus.PENDING else ago(55),
        updated_at=ago(5),
        finished_at=ago(5) if status.finished else None,
        error=None,
    )
    return replace(run, **values)


def a_step(key: str = "render_pdf", status: str = "running", **values: Any) -> Step:
    step = Step(
        run_id="01a22945",
        key=key,
        position=4,
        kind="step",
        status=status,
        attempts=1,
        started_at=ago(9),
        finished_at=None,
        due_at=None,
        error=None,
    )
    return replace(step, **values)


def a_worker(name: str = "web-2:4411", **values: Any) -> Worker:
    worker = Worker(
        id="w1",
        name=name,
        host="web-2",
        pid=4411,
        queues=None,
        workflows=(("send_invoice", 1, 2),),
        concurrency=4,
        started_at=ago(1_000),
        seen_at=ago(3),
        stopped_at=None,
    )
    return replace(worker, **values)


def around(*workers: Worker, **values: Any) -> Surroundings:
    return Surroundings(now=NOW, workers=workers, **values)


def line(run: Run, *steps: Step, beside: Surroundings | None = None) -> str:
    return plain(now_doing(run, steps, beside or around(a_worker())), now=NOW)


def sentences(
    run: Run, *steps: Step, beside: Surroundings | None = None, failed: Step | None = None, extra: Beside | None = None
) -> list[str]:
    explained = why(run, steps, beside or around(a_worker()), failed=failed, beside=extra or Beside())
    return [plain(text, now=NOW) for text in (explained.headline, explained.more)]


# Texts -------------------------------------------------------------------------------------


def test_parts_become_plain_words() -> None:
    text = (
        "step ",
        Name("a"),
        " ",
        Instant(ago(200), "ago"),
        ", ",
        Instant(soon(90), "in"),
        ", ",
        Instant(ago(3), "at"),
    )

    assert plain(text, now=NOW) == "step a 3 min ago, in 1 min, 17:12:57"
    assert plain((Instant(ago(3)),), now=NOW, zone=ZoneInfo("Europe/Paris")) == "18:12:57"


def test_same_facts_give_an_equal_text_later() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(20))

    texts = [why(run, [a_step()], Surroundings(now=soon(later), workers=(a_worker(),))) for later in (0, 9)]

    assert texts[0] == texts[1]


# Status ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", list(RunStatus))
def test_shown_status_is_the_runs_own(status: RunStatus) -> None:
    assert state(a_run(status)) == status


def test_sleeping_between_tries_shows_as_retrying() -> None:
    sleeping = a_run(RunStatus.SLEEPING)

    assert state(sleeping, [a_step(status="retrying")]) == "retrying"
    assert state(sleeping, [a_step("$sleep", "sleeping", kind="sleep")]) == "sleeping"
    assert state(replace(sleeping, error=RunError("E", "m"), attempts=1)) == "retrying"
    assert state(replace(sleeping, error=RunError("E", "m"))) == "sleeping"


def test_unfinished_run_to_be_cancelled_shows_as_cancelling() -> None:
    assert state(a_run(RunStatus.RUNNING, cancel_requested_at=ago(1))) == "cancelling"
    assert state(a_run(RunStatus.CANCELLED, cancel_requested_at=ago(1))) == "cancelled"


# Pending -----------------------------------------------------------------------------------


def test_pending_run_waits_for_its_turn() -> None:
    beside = around(a_worker(), a_worker("web-3", id="w2"), ahead=Count(14))

    assert line(a_run()) == "next in mail, due 5 s ago"
    assert sentences(a_run(), beside=beside) == [
        "Pending for 5 s; 14 are ahead of it in mail.",
        "2 live workers can take it, as soon as a thread is free.",
    ]


def test_many_ahead_are_not_counted_to_the_end() -> None:
    headline, _ = sentences(a_run(), beside=around(a_worker(), ahead=Count(1000, capped=True)))

    assert headline == "Pending for 5 s; 1,000+ are ahead of it in mail."


def test_pending_run_in_a_workers_hands_is_about_to_begin() -> None:
    run = a_run(worker="w1", due_at=soon(25))

    assert line(run) == "taken by web-2:4411, begins when a thread is free"
    assert sentences(run)[0] == "Taken by web-2:4411; it begins when a thread is free there."


NOBODY = [
    ((), "no live worker", "No worker is live.", "Start one: flask workflows work. Due 5 s ago."),
    (
        (a_worker(queues=("default",)),),
        "no live worker serves queue mail",
        "No live worker serves queue mail.",
        "Start one: flask workflows work --queue mail. Due 5 s ago.",
    ),
    (
        (a_worker(workflows=(("other", 1, 9),)),),
        "no live worker knows send_invoice",
        "No live worker knows the workflow send_invoice.",
        "Start one whose WORKFLOWS_IMPORTS names the module that declares it. Due 5 s ago.",
    ),
    (
        (a_worker(workflows=(("send_invoice", 3, 4),)), a_worker(workflows=(("send_invoice", 6, 6),))),
        "no live worker runs version 2",
        "Waits for a worker with version 2 of send_invoice.",
        "Live workers run versions 3 to 4, 6. It was started by older code, which this app's no longer takes over: "
        "it fails 5 min after it was due, unless a worker comes that has it. Due 5 s ago.",
    ),
]


@pytest.mark.parametrize(("workers", "short", "headline", "more"), NOBODY, ids=[case[1] for case in NOBODY])
def test_run_that_nobody_can_take_says_what_is_missing(
    workers: tuple[Worker, ...], short: str, headline: str, more: str
) -> None:
    beside = around(*workers, known={"send_invoice": [(3, 6)]})

    assert line(a_run(), beside=beside) == short
    assert sentences(a_run(), beside=beside) == [headline, more]


def test_version_only_this_code_has_asks_for_a_restart() -> None:
    beside = around(a_worker(workflows=(("send_invoice", 1, 1),)), known={"send_invoice": [(1, 2)]})

    assert sentences(a_run(), beside=beside)[1].startswith(
        "Live workers run version 1. This app's code has it: restart the workers."
    )


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (1, "It was started by older code, which no worker has any more."),
        (4, "Live workers run versions 2 to 3, 5. Due"),
        (6, "It was started by newer code, which no worker has yet."),
    ],
)
def test_version_no_worker_has_is_older_or_newer(version: int, words: str) -> None:
    workers = a_worker(workflows=(("send_invoice", 2, 3), ("send_invoice", 5, 5)))

    headline, more = sentences(a_run(version=version), beside=around(workers))

    assert headline == f"Waits for a worker with version {version} of send_invoice."
    assert words in more


def test_workflow_in_nobodys_code_is_an_orphan() -> None:
    beside = around(a_worker(workflows=()), known={"other": [(1, 1)]})

    headline, more = sentences(a_run(), beside=beside)

    assert headline == "No workflow named send_invoice is in this app's code."
    assert "renamed or removed" in more


def test_queue_name_is_quoted_for_the_shell() -> None:
    assert work_command("a b'; rm") == "flask workflows work --queue 'a b'\"'\"'; rm'"


# Running -----------------------------------------------------------------------------------


def timed_out(key: str = "render_pdf", status: str = "retrying", **values: Any) -> Step:
    message = "took longer than its time-out of 30 s; the run waits for its call, in 'h:1', to return, and discards"
    return a_step(key, status, error=RunError("flask_workflows.errors.StepTimeout", message), **values)


def test_step_that_timed_out_is_waited_for_while_its_run_is_held() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(20))
    step = timed_out(due_at=soon(5))

    assert line(run, step) == "step 4, render_pdf, timed out, on web-2:4411"
    assert sentences(run, step)[0] == (
        "Step 4, render_pdf, timed out after 30 s; its call goes on in web-2:4411, and the next attempt waits for it."
    )
    assert sentences(run, *telling_steps([a_step("before", "completed"), timed_out(status="failed")]))[0] == (
        "Step 4, render_pdf, timed out after 30 s; its call goes on in web-2:4411, and the run waits for it."
    )
    assert sentences(replace(run, cancel_requested_at=ago(4)), step) == [
        "Cancelling was asked for 4 s ago; the run stops at its next step.",
        "Step 4, render_pdf, timed out after 30 s; its call goes on in web-2:4411, and the run waits for it.",
    ]
    # Once it sleeps, the call has returned.
    assert sentences(a_run(RunStatus.SLEEPING, due_at=soon(5)), step)[0] == (
        "Step 4, render_pdf, failed once, with StepTimeout. Next try in 5 s."
    )


def test_run_that_went_on_after_a_time_out_is_not_said_to_wait() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(20))

    told = telling_steps([timed_out(status="failed"), a_step("next", position=5)])
    assert line(run, *told) == "step 5, next, on web-2:4411"
    # In a branch it may have returned by now, while another branch works.
    told = telling_steps([timed_out("1.0/render_pdf"), a_step("1.1/next", position=5)])
    assert line(run, *told) == "step 5, 1.1 next, on web-2:4411"
    assert line(run, timed_out("1.0/render_pdf")).startswith("step 4, 1.0 render_pdf, timed out")


def test_running_run_names_its_step_and_worker() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(21))

    assert line(run, a_step()) == "step 4, render_pdf, on web-2:4411"
    assert line(run) == "on web-2:4411"
    assert sentences(run, a_step()) == ["Step 4, render_pdf, runs for 9 s on web-2:4411.", ""]
    assert sentences(run) == ["Running on web-2:4411.", ""]


def test_named_worker_says_where_it_is() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(21))

    assert line(run, beside=around(a_worker("mailer"))) == "on mailer (web-2:4411)"


def test_late_lease_says_who_goes_on() -> None:
    run = a_run(RunStatus.RUNNING, worker="gone", due_at=ago(34), losses=2)

    assert line(run, a_step()) == "step 4, render_pdf, lease ran out 34 s ago"
    assert sentences(run, a_step()) == [
        "Its worker does not answer; the lease ran out 34 s ago.",
        "Any live worker takes it over at its next look. Step 4, render_pdf, then starts again, attempt 2 of 3. "
        "It lost its worker 2 times since its last new step.",
    ]
    assert sentences(run, beside=around())[1].startswith("Nobody can take it over: no live worker.")


def test_run_of_a_worker_that_is_gone_says_so_before_the_lease_ends() -> None:
    run = a_run(RunStatus.RUNNING, worker="gone", due_at=soon(12), attempts=1)
    holder = a_worker("web-2", id="gone", seen_at=ago(48))

    assert line(run) == "on a process that is no live worker"
    assert sentences(run, a_step(), extra=Beside(holder=holder)) == [
        "Its worker, web-2 (web-2:4411), was last seen 48 s ago.",
        "Unless it comes back, any live worker takes the run over in 12 s. "
        "Step 4, render_pdf, then starts again, attempt 3 of 3.",
    ]
    stopped = replace(holder, stopped_at=ago(9))
    assert sentences(run, extra=Beside(holder=stopped))[0] == "Its worker, web-2 (web-2:4411), stopped 9 s ago."
    late = replace(run, due_at=ago(34), attempts=2)
    assert sentences(late, a_step(), extra=Beside(holder=holder)) == [
        "Its worker, web-2 (web-2:4411), does not answer; the lease ran out 34 s ago.",
        "Any live worker takes it over at its next look. It fails then: its attempts are used up.",
    ]


def test_run_of_a_process_nobody_lists_may_be_well() -> None:
    run = a_run(RunStatus.RUNNING, worker="tick", due_at=soon(12))

    assert sentences(run, a_step()) == [
        "Step 4, render_pdf, runs for 9 s on a process that is no live worker.",
        "Should that be gone, any live worker takes the run over in 12 s.",
    ]


def test_cancelling_run_stops_at_its_next_step() -> None:
    run = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(20), cancel_requested_at=ago(8))

    assert line(run, a_step()) == "stops at the next step, asked 8 s ago"
    assert sentences(run, a_step()) == [
        "Cancelling was asked for 8 s ago; the run stops at its next step.",
        "Step 4, render_pdf, finishes first.",
    ]
    assert sentences(run, extra=Beside(cancelled_by="ana"))[0] == (
        "Cancelling was asked for by ana 8 s ago; the run stops at its next step."
    )
    late = replace(run, due_at=ago(40))
    assert sentences(late, a_step())[1] == "Its worker does not answer; the next one ends the run."


# Sleeping and waiting ----------------------------------------------------------------------


def test_sleeping_run_says_when_it_wakes() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=soon(54_000))
    timer = a_step("$sleep", "sleeping", kind="sleep")

    assert line(run, timer) == "wakes Tue 1 Dec 08:13, in 15 h"
    assert sentences(run, timer) == ["Sleeps until Tue 1 Dec 08:13, in 15 h.", "Step 4, sleep, began 17:12:51."]


def test_delayed_run_says_when_it_starts() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=soon(600), started_at=None)

    assert line(run) == "starts 17:23:00, in 10 min"
    assert sentences(run)[0] == "Starts 17:23:00, in 10 min."


def test_what_is_due_this_second_is_not_due_in_0_s() -> None:
    sleeping = a_run(RunStatus.SLEEPING, due_at=NOW)
    waiting = a_run(RunStatus.WAITING, due_at=ago(3))

    assert line(sleeping) == "wakes now"
    assert sentences(sleeping) == ["It wakes now: a worker takes it at its next look.", ""]
    assert sentences(waiting)[1] == "The wait ends now."
    retrying = a_step("fetch", "retrying", error=RunError("E", ""))
    assert line(sleeping, retrying) == "step 4, fetch, try 2 now. E"
    assert sentences(sleeping, retrying)[0] == "Step 4, fetch, failed once, with E. Next try now."


def test_overdue_timer_says_why_nobody_wakes_it() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=ago(180))

    assert line(run) == "waits for a free worker, due 3 min ago"
    assert line(run, beside=around()) == "no live worker, due 3 min ago"
    assert sentences(run, beside=around()) == [
        "It should have woken 3 min ago.",
        "No worker is live. Start one: flask workflows work. Due 3 min ago.",
    ]
    assert sentences(run)[1] == "1 live worker can take it, as soon as a thread is free."


def test_retrying_run_says_what_failed_and_when_it_goes_on() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=soon(40))
    error = RunError("requests.exceptions.ConnectionError", "refused: token=abc\nmore")
    step = a_step("fetch", "retrying", position=2, attempts=2, due_at=soon(40), error=error)

    assert line(run, step) == "step 2, fetch, try 3 in 40 s. ConnectionError"
    assert sentences(run, step) == [
        "Step 2, fetch, failed 2 times, with ConnectionError. Next try in 40 s.",
        "ConnectionError: refused: token=[hidden] …",
    ]


def test_retry_says_how_often_where_the_code_is_known() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=soon(40))
    step = a_step("fetch#2", "retrying", attempts=2, due_at=soon(40), error=RunError("E", ""))

    beside = around(a_worker(), tries={"fetch": 8, "other": 3})
    assert line(run, step, beside=beside) == "step 4, fetch#2, try 3 of 8 in 40 s. E"
    assert sentences(run, step, beside=beside)[0].startswith("Step 4, fetch#2, failed 2 of 8 times, with E.")
    changed = around(a_worker(), tries={"fetch": 2})
    assert line(run, step, beside=changed) == "step 4, fetch#2, try 3 in 40 s. E"


def test_overdue_retry_is_told_in_lists_too() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=ago(60))
    step = a_step("fetch", "retrying", attempts=1, error=RunError("E", ""))

    assert line(run, step, beside=around()) == "step 4, fetch, try 2 due 1 min ago, no live worker. E"


def test_retried_body_says_how_many_attempts_are_left() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=soon(5), attempts=1, error=RunError("ValueError", "row 17", kind="body"))

    assert line(run) == "attempt 2 of 3 in 5 s. ValueError"
    assert sentences(run) == [
        "The workflow's body raised ValueError. Next try in 5 s.",
        "1 of 3 attempts used. ValueError: row 17",
    ]


def test_retry_that_is_due_says_what_it_waits_for() -> None:
    run = a_run(RunStatus.SLEEPING, due_at=ago(60))
    step = a_step("fetch", "retrying", attempts=1, error=RunError("E", ""))

    headline, more = sentences(run, step, beside=around())

    assert headline == "Step 4, fetch, failed once, with E. The next try is due."
    assert more.startswith("No worker is live. Start one")


def test_waiting_run_names_a_message_or_that_any_of_several_will_do() -> None:
    run = a_run(RunStatus.WAITING, due_at=None)

    assert line(run, a_step("$receive:approve", "waiting", kind="receive")) == "message approve"
    assert line(run, a_step("$wait#2", "waiting", kind="wait")) == "the first of several events"


def test_waiting_run_names_the_event_and_the_limit() -> None:
    run = a_run(RunStatus.WAITING, due_at=soon(3_600))
    wait = a_step("$wait:refund.approved", "waiting", kind="wait")

    assert line(run, wait) == "event refund.approved, at most until 18:13:00"
    assert sentences(run, wait) == [
        "Waiting for event refund.approved.",
        "Since 17:12:51. At most until 18:13:00, in 1 h.",
    ]


def test_waiting_run_says_what_has_to_match_and_what_came_instead() -> None:
    run = a_run(RunStatus.WAITING, due_at=None)
    wait = a_step("$wait:refund.approved", "waiting", kind="wait")
    waited = Awaited("refund.approved", (("order.id", "order-8812"), ("token", "abc")))

    extra = Beside((waited,), passed=Count(2), unseen=Count(0))
    assert sentences(run, wait, extra=extra) == [
        'Waiting for event refund.approved with order.id = "order-8812" and token (hidden: matches “token”).',
        "Since 17:12:51. It waits for good. 2 of that name came since, with other values.",
    ]
    none = replace(extra, passed=Count(0))
    assert sentences(run, wait, extra=none)[1].endswith("None of that name came since.")
    unseen = replace(extra, passed=Count(1_000, capped=True), unseen=Count(1))
    assert sentences(run, wait, extra=unseen)[1].endswith(
        "1,000+ of that name came since, with other values. 1 of that name came that no worker has looked at yet."
    )
    several = replace(extra, waited=(waited, Awaited("order.closed"), Awaited("order.lost")))
    assert sentences(run, wait, extra=several)[0].endswith(", event order.closed or event order.lost.")
    assert "2 of these names came since" in sentences(run, wait, extra=several)[1]


def test_values_are_told_to_those_who_may_see_payloads() -> None:
    beside = around(a_worker(), payloads=False)
    run = a_run(RunStatus.WAITING, due_at=None)
    wait = a_step("$wait:paid", "waiting", kind="wait")
    extra = Beside((Awaited("paid", (("order", 8812),)),))
    assert sentences(run, wait, beside=beside, extra=extra)[0] == "Waiting for event paid with a certain order."

    error = RunError("app.Bad", "order 8812", kind="step", step="pay")
    failed = a_run(RunStatus.FAILED, error=error)
    assert line(failed, beside=beside) == "pay. Bad"
    assert sentences(failed, beside=beside) == ["Failed at step pay: Bad", ""]
    retrying = a_run(RunStatus.SLEEPING, due_at=soon(5), attempts=1, error=replace(error, kind="body"))
    assert "8812" not in " ".join(sentences(retrying, beside=beside))
    step = a_step("pay", "retrying", error=error)
    assert "8812" not in " ".join(sentences(replace(retrying, error=None), step, beside=beside))
    lost = replace(failed, error=replace(error, message="worker lost", kind="lost"))
    assert sentences(lost, beside=beside)[1] == "worker lost"


def test_action_that_helps_most_goes_with_the_sentence() -> None:
    def action(run: Run, *steps: Step, workers: tuple[Worker, ...] = (a_worker(),), extra: Beside | None = None) -> str:
        return why(run, steps, around(*workers, known={"send_invoice": [(1, 2)]}), beside=extra or Beside()).action

    assert action(a_run()) == ""
    assert action(a_run(), workers=()) == "workers"
    assert action(a_run(workflow="gone")) == "cancel"
    assert action(a_run(RunStatus.RUNNING, worker="w1", due_at=soon(9)), a_step()) == ""
    lost = a_run(RunStatus.RUNNING, worker="w2", due_at=soon(9))
    assert action(lost, a_step(), extra=Beside(holder=a_worker(id="w2", seen_at=ago(60)))) == "release"
    assert action(a_run(RunStatus.SLEEPING, due_at=soon(9))) == "wake"
    assert action(a_run(RunStatus.SLEEPING, due_at=ago(90))) == "workers"
    assert action(a_run(RunStatus.SLEEPING, due_at=soon(9)), a_step("a", "retrying")) == "wake"
    assert action(a_run(RunStatus.WAITING, due_at=None), a_step("$wait:a", "waiting", kind="wait")) == "deliver"
    assert action(a_run(RunStatus.WAITING, due_at=None), a_step("$receive:a", "waiting", kind="receive")) == "send"
    assert action(a_run(RunStatus.FAILED, error=RunError("E", ""))) == "retry"
    assert action(a_run(RunStatus.CANCELLED)) == "retry"
    assert action(a_run(RunStatus.COMPLETED)) == "start"


def test_wait_without_a_limit_says_so() -> None:
    run = a_run(RunStatus.WAITING, due_at=None)

    assert sentences(run, a_step("$start:renewal", "waiting", kind="start", started_at=None)) == [
        "Waiting for run of renewal.",
        "It waits for good.",
    ]
    assert sentences(run)[0] == "Waiting for something outside."


def test_only_steps_that_fit_the_status_are_told() -> None:
    timer = a_step("$sleep", "sleeping", kind="sleep", position=1, due_at=ago(1))
    left_open = a_step(status="running", position=2)
    running = a_run(RunStatus.RUNNING, worker="w1", due_at=soon(20))

    assert line(running, timer) == "on web-2:4411"
    assert line(running, timer, a_step()) == "step 4, render_pdf, on web-2:4411"
    assert line(a_run(RunStatus.SLEEPING, due_at=soon(40)), left_open, timer) == "wakes 17:13:40, in 40 s"
    assert line(a_run(), left_open) == "next in mail, due 5 s ago"


def test_of_several_steps_the_one_due_first_is_told() -> None:
    run = a_run(RunStatus.WAITING, due_at=None)
    later = a_step("$wait:b", "waiting", kind="wait", position=1, due_at=soon(9))
    first = a_step("$wait:a", "waiting", kind="wait", position=2, due_at=soon(1))

    assert line(run, later, first) == "event a"


# Finished ----------------------------------------------------------------------------------


def test_failed_run_names_step_and_error() -> None:
    error = RunError("builtins.KeyError", "'vat_id'", step="render_pdf", kind="step")
    run = a_run(RunStatus.FAILED, error=error)
    failed = a_step(status="failed", attempts=5, number=3)

    assert line(run) == "render_pdf. KeyError: 'vat_id'"
    assert sentences(run, failed=failed) == [
        "Failed at step 3, render_pdf: KeyError: 'vat_id'",
        "It was tried 5 times.",
    ]
    assert sentences(run)[0] == "Failed at step render_pdf: KeyError: 'vat_id'"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RunError("ValueError", "bad", kind="body"), ["Failed: ValueError: bad", "3 of 3 attempts used."]),
        (
            RunError("WorkerLost", "worker lost at step 'charge': mend it", kind="lost"),
            ["Failed: its worker was lost at each attempt.", "worker lost at step 'charge': mend it"],
        ),
        (
            RunError("NonDeterminismError", "call 2 was 'a' and is now 'b'", kind="nondeterminism"),
            [
                "Failed: the code no longer makes the calls that were recorded.",
                "call 2 was 'a' and is now 'b'. Once the code makes them again, a retry goes on from there.",
            ],
        ),
        (
            RunError("SetupError", "no code", kind="version"),
            ["Failed: no code takes up version 2 any more.", "no code"],
        ),
        (None, ["Failed; no error was stored.", ""]),
    ],
    ids=["body", "lost", "nondeterminism", "version", "none"],
)
def test_each_kind_of_failure_has_its_words(error: RunError | None, expected: list[str]) -> None:
    assert sentences(a_run(RunStatus.FAILED, error=error, attempts=3, losses=3)) == expected


def test_declared_error_was_not_tried_again() -> None:
    error = RunError("app.CardDeclined", "no funds", kind="business")
    failed = a_step("charge", "failed", error=error)

    assert sentences(a_run(RunStatus.FAILED, error=replace(error, kind="step")), failed=failed) == [
        "Failed at step 4, charge: CardDeclined: no funds",
        "The step declares this error, so it was not tried again.",
    ]


def test_failed_step_is_told_by_its_own_error() -> None:
    message = str(StepFailed("charge", 3, "refused", "requests.exceptions.ConnectionError"))
    error = RunError("flask_workflows.errors.StepFailed", message, step="charge", kind="step")

    assert line(a_run(RunStatus.FAILED, error=error)) == "charge. ConnectionError: refused"


def test_long_message_is_cut_and_secrets_are_hidden() -> None:
    """B111"""
    error = RunError("E", "postgresql://u:hunter2@db/x " + "y" * 1_000)

    text = line(a_run(RunStatus.FAILED, error=error))

    assert "hunter2" not in text
    assert len(text) < 130
    assert text.endswith("…")


def test_completed_run_says_how_long_it_took_and_is_kept() -> None:
    run = a_run(RunStatus.COMPLETED, finished_at=ago(53.2))

    assert line(run) == "done 53 s ago"
    assert sentences(run, beside=around(keep_days=30)) == ["Done in 1.8 s.", "Kept until 30 Dec 17:12 (30 days)."]
    assert sentences(run) == ["Done in 1.8 s.", ""]


def test_cancelled_run_says_since_when() -> None:
    assert line(a_run(RunStatus.CANCELLED)) == "cancelled 5 s ago"
    assert sentences(a_run(RunStatus.CANCELLED)) == ["Cancelled, 5 s ago.", ""]
    assert sentences(a_run(RunStatus.CANCELLED), extra=Beside(cancelled_by="ana"))[0] == "Cancelled by ana, 5 s ago."
    assert sentences(a_run(RunStatus.CANCELLED, started_at=None))[0] == "Cancelled before it began, 5 s ago."


def test_unknown_status_is_told_as_it_stands() -> None:
    run = a_run(RunStatus.read("frozen"))

    assert line(run) == ""
    assert sentences(run)[0] == "Its status is frozen, which this version of the package does not know."


# Phrases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "measured", "growing"),
    [
        (-1, "0 ms", "0 s"),
        (0, "0 ms", "0 s"),
        (0.084, "84 ms", "0 s"),
        (1, "1 s", "1 s"),
        (13.14, "13.1 s", "13 s"),
        (59.96, "1 min", "1 min"),
        (125, "2 min 5 s", "2 min"),
        (3_600, "1 h", "1 h"),
        (11_490, "3 h 11 min", "3 h 11 min"),
        (187_200, "2 d 4 h", "2 d 4 h"),
        (864_000_000, "10,000 d", "10,000 d"),
    ],
)
def test_durations_read_well(seconds: float, measured: str, growing: str) -> None:
    assert phrases.duration(timedelta(seconds=seconds)) == measured
    assert phrases.age(timedelta(seconds=seconds)) == growing


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (NOW, "17:13:00"),
        (datetime(2026, 11, 29, 9, 5, tzinfo=UTC), "Sun 29 Nov 09:05"),
        (datetime(2026, 12, 4, 9, 0, tzinfo=UTC), "Fri 4 Dec 09:00"),
        (datetime(2026, 10, 1, 9, 0, tzinfo=UTC), "1 Oct 09:00"),
        (datetime(2027, 1, 1, 0, 0, tzinfo=UTC), "1 Jan 2027 00:00"),
    ],
)
def test_instants_say_the_day_where_it_is_not_today(at: datetime, words: str) -> None:
    assert phrases.instant(at, now=NOW, zone=UTC) == words


def test_numbers_and_sizes_read_well() -> None:
    assert [phrases.size(n) for n in (1, 812, 3_400, 340_000, 999_900, 5_200_000)] == [
        "1 byte",
        "812 bytes",
        "3.4 kB",
        "340 kB",
        "1 MB",
        "5.2 MB",
    ]
    assert [phrases.count(2_310), phrases.count(2_310, capped=True), phrases.count(10_000, capped=True)] == [
        "2,310",
        "2,310+",
        "10k+",
    ]
    assert phrases.several(1, "run") == "1 run"
    assert phrases.several(2_000, "run") == "2,000 runs"
    assert phrases.cut("  one\ntwo", 10) == "one …"
    assert phrases.cut("abcdefghij", 5) == "abcd…"
