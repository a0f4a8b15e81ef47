"""The search: how it is read, and what it finds on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from flask_workflows import models
from flask_workflows.errors import InvalidCursor
from flask_workflows.errors import InvalidSearch
from flask_workflows.errors import ReadTimeout
from flask_workflows.plain import dumps
from flask_workflows.runs import Count
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.search import fits_error
from flask_workflows.search import fits_value
from flask_workflows.search import LONGEST
from flask_workflows.search import MOST_TERMS
from flask_workflows.search import parse
from flask_workflows.search import Term
from flask_workflows.search import traces
from flask_workflows.store import reading as read
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import run_row
from tests.rows import tables


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        yield rows


def found(rows: Rows, search: str, *, scan: int | None = 10_000, **options: Any) -> list[str]:
    """The ids on the first page; the counts must agree with it."""
    query = RunQuery(search=search, **options)
    with read.reading(rows.engine) as connection:
        ids = [run.id for run in read.list_runs(connection, query, scan=scan).runs]
        counts = read.count_runs(connection, query)
        if "status" not in options:
            assert sum(count.value for count in counts.values()) == len(ids)
        assert read.count_matching(connection, query) == Count(len(ids))
        assert [run.id for run in read.list_runs(connection, query).runs] == ids
    return ids


# The grammar -------------------------------------------------------------------------------


def terms(text: str) -> list[tuple[str, ...]]:
    return [("-" * term.negated + ".".join((term.field, *term.path)), term.value) for term in parse(text)]


def test_words_are_read_in_their_order() -> None:
    assert parse("") == parse(" \t\n ") == ()
    assert terms('  onboarding workflow:a  -status:completed error:"no such user"\tinput.user.id:5 output:true ') == [
        ("word", "onboarding"),
        ("workflow", "a"),
        ("-status", "completed"),
        ("error", "no such user"),
        ("input.user.id", "5"),
        ("output", "true"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state:failed", [("status", "failed")]),
        ("STATUS:failed", [("status", "failed")]),
        ("worker:web-2:4411", [("worker", "web-2:4411")]),
        ('"a:b"', [("word", "a:b")]),
        (r'"a \"b\" \\"', [("word", r'a "b" \\'[:-1])]),
        ('-"-x"', [("-word", "-x")]),
        ('a"b', [("word", 'a"b')]),
        ('workspace:""', [("workspace", "")]),
        ('input.a:""', [("input.a", "")]),
        ("input.items.0.sku:x", [("input.items.0.sku", "x")]),
        ("key:ключ", [("key", "ключ")]),
    ],
)
def test_odd_words_are_read_as_they_are_meant(text: str, expected: list[tuple[str, str]]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("colour:red", 1, "There is no field 'colour'"),
        ("a -colour:red", 4, "There is no field"),
        (":x", 1, "There is no field"),
        ("queue.a:x", 1, "There is no field"),
        ('a key:"b', 7, "not closed"),
        ('"', 1, "not closed"),
        ('"a\\"', 1, "not closed"),
        ('"a"b', 4, "comes a blank"),
        ("a -", 4, "Nothing stands behind '-'"),
        ("key:", 5, "Nothing stands behind 'key:'"),
        ("-key: x", 6, "Nothing stands behind"),
        ('key:""', 5, "Nothing stands between"),
        ("a status:nope", 10, "There is no status 'nope'. They are pending, running"),
        ("version:x", 9, "whole number"),
        ("version:-1", 9, "whole number"),
        ("version:99999999999999999999", 9, "whole number"),
        ("input..a:1", 1, "single dots"),
        ("input.a.:1", 1, "single dots"),
        ("input." + ".".join("abcdefghijk") + ":1", 1, "10 names deep"),
        ("input.user.password:x", 1, "is hidden, as it matches 'password'"),
        ("output.apiToken.x:1", 1, "is hidden"),
        ("-input.card:1", 2, "is hidden"),
        ("a\x00b", 2, "no stored text has"),
        ("a \ud800", 3, "no stored text has"),
        ("queue:" + "x" * 256, 7, "255 characters at most"),
        ("x" * (LONGEST + 1), LONGEST + 1, "500 characters at most"),
        ("x " * (MOST_TERMS + 1), 2 * MOST_TERMS + 1, "12 words at most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, at: int, words: str) -> None:
    with pytest.raises(InvalidSearch) as refused:
        parse(text)

    assert refused.value.at == at
    assert words in refused.value.message
    assert f"(character {at})" in str(refused.value)


# Values ------------------------------------------------------------------------------------


def fits(search: str, stored: str | None, **options: Any) -> bool:
    return fits_value(parse(search), stored, **options)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("5", "5"),
        ("5", "5.0"),
        ("5", "0.5e1"),
        ("5.0", "5"),
        ("-5", "-5"),
        ("1.10", "1.1"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"5"', '"5"'),
        ("five", '"five"'),
        ('"a b"', '"a b"'),
        ('""', '""'),
        ("ключ", '"\\u043a\\u043b\\u044e\\u0447"'),
        ("true", "true"),
        ("null", "null"),
        ("NaN", '"NaN"'),
        ("[1]", '"[1]"'),
        ("%", '"%"'),
    ],
)
def test_scalars_are_compared_as_json(value: str, stored: str) -> None:
    assert fits(f"input.a:{value}", f'{{"a": {stored}}}')
    assert not fits(f"-input.a:{value}", f'{{"a": {stored}}}')


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("5", '"5"'),
        ('"5"', "5"),
        ("1", "true"),
        ("true", "1"),
        ("true", '"true"'),
        ("null", '"null"'),
        ("null", "0"),
        ("12345678901234567890123", "12345678901234567890124"),
        ("a", '"A"'),
        ("a", '"ab"'),
        ("a", '["a"]'),
        ("a", '{"a": "a"}'),
        ("NaN", "NaN"),
    ],
)
def test_other_scalars_do_not_fit(value: str, stored: str) -> None:
    assert not fits(f"input.a:{value}", f'{{"a": {stored}}}')
    assert fits(f"-input.a:{value}", f'{{"a": {stored}}}')


def test_way_leads_through_objects_and_lists() -> None:
    stored = json.dumps({"a": [{"b": 1}, {"0": 2}], "0": 3})

    assert fits("input.a.0.b:1", stored)
    assert fits("input.a.1.0:2", stored)
    assert fits("input.0:3", stored)
    for search in ("input.a.2.b:1", "input.a.-1.b:1", "input.a.b:1", "input.b:1", "input.a:1", "input:1"):
        assert not fits(search, stored)
    assert fits("output:5", "5")
    assert fits("output.1:b", '["a", "b"]')


@pytest.mark.parametrize("broken", ["{", "", "nope", "[" * 100_000, '{"a": 5'])
def test_broken_value_fits_nothing(broken: str) -> None:
    """B76"""
    assert not fits("input.a:5", broken)
    assert not fits("-input.a:5", broken)


def test_no_value_fits_no_term_but_negated_ones() -> None:
    assert not fits("output:null", None)
    assert fits("-output:5", None)


def test_b111_what_is_hidden_is_not_found() -> None:
    url = json.dumps({"url": "postgresql://u:hunter2@db", "note": "Bearer hunter2hunter2", "ok": {"a": 1}})

    assert not fits("input.url:postgresql://u:hunter2@db", url)
    assert not fits('input.note:"Bearer hunter2hunter2"', url)
    assert not fits("-input.url:x", url)
    assert fits("input.ok.a:1", url)
    assert not fits("input.ok.a:1", url, hidden=lambda path, value: path == "$.ok.a")
    assert not fits("input.ok.a:1", url, hidden=lambda path, value: path == "$.ok")
    assert not fits("-input.ok.a:2", url, hidden=lambda path, value: path == "$.ok")


def test_b111_error_is_searched_as_it_is_shown() -> None:
    stored = error_json("app.PaymentError", "Card declined for password=hunter2 of ключ", traceback="deep inside")

    def error_fits(search: str) -> bool:
        return fits_error(parse(search), stored)

    assert error_fits("error:paymenterror")
    assert error_fits('error:"card DECLINED"')
    assert error_fits("error:КЛЮЧ")
    assert not error_fits("error:hunter2")
    assert not error_fits('error:"deep inside"')
    assert error_fits('error:declined -error:"no such"')
    assert not error_fits("-error:declined")
    assert fits_error(parse("-error:x"), None)
    assert not fits_error(parse("error:x"), None)
    assert not fits_error(parse("error:step"), '{"kind":"step","message":')


@pytest.mark.parametrize(
    "value", [5, 5.5, -5, 0, -0.0, 1e15, 1e300, 10**20, True, None, "", "a", 'a "q" \\ b', "ключ a", "%_", "a/b<c>"]
)
@pytest.mark.parametrize("path", ["a", "a.0", "a.b", "a.0.0", "a.b.0.c", "ключ", "a b", ""])
def test_traces_stand_in_every_value_that_fits(value: object, path: str) -> None:
    stored = value
    for key in reversed([key for key in path.split(".") if key]):
        stored = [stored] if key == "0" else {"other": 1, key: stored}
    wanted = value if isinstance(value, str) else json.dumps(value)
    term = Term("input", wanted, 1, quoted=isinstance(value, str), path=tuple(filter(None, path.split("."))))

    for text in (dumps(stored), json.dumps(stored), json.dumps(stored, ensure_ascii=False, indent=2)):
        assert fits_value((term,), text)
        assert all(any(one in text for one in group) for group in traces(term))


def test_traces_tell_values_apart() -> None:
    def may_be(search: str, stored: str) -> bool:
        (term,) = parse(search)
        return all(any(text in stored for text in group) for group in traces(term))

    assert may_be("input.a.id:5", '{"a":{"id":5.0}}')
    assert not may_be("input.a.id:5", '{"a":{"id":6},"b":5}')
    assert not may_be("input.a.id:5", '{"b":{"id":5}}')
    assert not may_be("input.a.id:x", '{"a":{"id":"y"},"x":"x"}')
    assert not may_be("input.ok:true", '{"ok":false,"other":true}')


# What it finds -----------------------------------------------------------------------------


def test_columns_are_found(rows: Rows) -> None:
    other = rows.run("failed", workflow="other", queue="mail", version=2, key="k-2", workspace="ws-2", ago=10)
    mine = rows.run("failed", workflow="mine", queue="bulk", version=3, key="k-1", workspace="ws-1", ago=20)
    bare = rows.run("completed", workflow="mine", ago=30)

    for search in ("queue:bulk", "version:3", "key:k-1", "workspace:ws-1", "workflow:mine status:failed"):
        assert found(rows, search) == [mine]
    assert found(rows, "workflow:mine") == [mine, bare]
    assert found(rows, "status:failed") == [other, mine]
    assert found(rows, "status:failed status:completed") == []
    assert found(rows, "-status:failed") == [bare]
    assert found(rows, "-workflow:mine") == [other]
    assert found(rows, "-key:k-1") == found(rows, "-queue:bulk") == found(rows, "-version:3") == [other, bare]
    assert found(rows, "-workspace:ws-1") == [other, bare]
    assert found(rows, 'workspace:""') == [bare]
    assert found(rows, "workflow:mine workflow:other") == []
    assert found(rows, "workflow:nope") == []
    assert found(rows, "status:failed", status=RunStatus.COMPLETED) == []


@pytest.mark.parametrize("text", ["%", "_", "a%b", "'", "';--", "%s", "%(x)s", "{}", ":name", "\\", "ключ", "a b"])
def test_search_matches_literally(rows: Rows, text: str) -> None:
    """B79"""
    rows.run("failed", ago=5, key="other", input='{"a": "other"}', error=error_json("E", "other"))
    values = {"queue": text, "key": text, "workspace": text, "workflow": text}
    mine = rows.run("failed", input=json.dumps({"a": text}), error=error_json("E", f"x{text}y"), **values)
    quoted = json.dumps(text, ensure_ascii=False)

    for field in (*values, "input.a", "error"):
        assert found(rows, f"{field}:{quoted}") == [mine]
    assert found(rows, quoted) == [mine]


def test_word_is_the_beginning_of_an_id_or_a_workflow_or_a_key(rows: Rows) -> None:
    workflow = rows.run(workflow="abc", ago=10)
    key = rows.run("failed", key="abc", ago=20)
    by_id = rows.run(id="abc0e4f0-0000-7000-8000-000000000001", ago=30)
    all_of_it = rows.run(id="abc0e4f0-0000-7000-8000-000000000000", workflow="abc", key="abc", ago=30)
    rows.run(id="ab00e4f0-0000-7000-8000-000000000002", workflow="abcd", key="xabc")
    created = [by_id, all_of_it]

    assert set(found(rows, "abc")) == {workflow, key, *created}
    assert set(found(rows, "ABC0E4F0")) == set(created)
    assert set(found(rows, "id:abc")) == set(found(rows, "abc0e4f0-00")) == set(created)
    assert found(rows, "abc status:failed") == [key]
    assert found(rows, "abc -id:abc key:abc") == [key]
    assert set(found(rows, "abc abc0")) == set(created)
    assert set(found(rows, "abc -abc0")) == {workflow, key}
    assert workflow not in found(rows, "-abc")
    assert found(rows, f"id:{by_id}") == [by_id]
    assert found(rows, "id:abc%") == found(rows, "id:ab_") == []


def test_worker_is_found_by_its_name_and_host(rows: Rows) -> None:
    one, two = rows.worker("web-1:11", host="web-1"), rows.worker("web-2:22", host="web-2")
    mine = rows.run("running", worker=one, ago=10)
    taken = rows.run("pending", worker=one, ago=20)
    other = rows.run("running", worker=two, ago=30)
    done = rows.run("completed", ago=40)

    assert (
        found(rows, "worker:web-1:11") == found(rows, "worker:web-1") == found(rows, f"worker:{one}") == [mine, taken]
    )
    assert found(rows, "worker:web-1 status:running") == [mine]
    assert found(rows, "worker:web-1 onboarding") == [mine, taken]
    assert found(rows, "worker:nobody") == []
    assert found(rows, "-worker:web-1") == [other, done]


def test_step_is_found_where_it_is_open_or_failed(rows: Rows) -> None:
    running, failed, branched, later = (
        rows.run(status, ago=ago) for status, ago in (("running", 4), ("failed", 3), ("sleeping", 2), ("failed", 1))
    )
    rows.step(running, "charge", 1, "running")
    rows.step(failed, "charge#2", 1, "failed")
    rows.step(branched, "2/charge#7", 1, "retrying")
    rows.step(later, "charge", 1)
    rows.step(later, "recharge", 2, "failed")
    rows.step(later, "charge2", 3, "failed")
    rows.step(later, "r/charge", 4)

    assert found(rows, "step:charge") == [branched, failed, running]
    assert found(rows, "step:charge status:failed") == [failed]
    assert found(rows, "-step:charge") == [later]
    assert found(rows, "step:CHARGE") == found(rows, "step:charg_") == []


def wait_row(run: str, name: str, key: str = "$wait:paid") -> dict[str, Any]:
    row = {"run_id": run, "key": key, "number": 0, "name": name, "workspace": "", "fields": "[]", "values_hash": ""}
    return {**row, "after_seq": 0, "checked": 1, "snapshot": None, "since": None}


@pytest.mark.parametrize("few", [10_000, 1], ids=["few", "many"])
def test_event_is_found_by_who_waits_for_it(rows: Rows, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr("flask_workflows.store.reading.searching._FEW", few)
    paid = [rows.run("waiting", ago=ago, workspace=f"ws-{ago}") for ago in (3, 2)]
    other = rows.run("waiting", ago=1)
    rows.insert(models.waits, [*(wait_row(run, "paid") for run in paid), wait_row(other, "sent")])
    rows.insert(models.waits, [wait_row(paid[0], "paid", "$wait:paid#2")])

    assert found(rows, "event:paid") == paid[::-1]
    assert found(rows, "event:sent event:paid") == []
    assert found(rows, "event:paid workspace:ws-3") == [paid[0]]
    assert found(rows, "event:nothing") == []
    assert found(rows, "-event:paid") == [other]


def test_cause_is_found(rows: Rows) -> None:
    one = rows.run("failed", cause="c0ffee", ago=1)
    two = rows.run("failed", cause="c0ffee", ago=2, workflow="other")
    rows.run("failed", cause="beef")
    rows.run("failed")

    assert found(rows, "cause:c0ffee") == [one, two]
    assert found(rows, "cause:c0ffee workflow:other") == [two]
    assert found(rows, "cause:c0ffee cause:beef") == found(rows, "cause:nope") == []
    assert len(found(rows, "-cause:c0ffee")) == 2


def test_children_are_found_by_their_parent(rows: Rows) -> None:
    parent = rows.run("waiting", ago=9)
    child, failed = rows.run(parent_id=parent, ago=2), rows.run("failed", parent_id=parent, ago=1, cause="c")

    assert found(rows, f"parent:{parent}") == [failed, child]
    assert found(rows, f"parent:{parent} cause:c") == found(rows, f"cause:c parent:{parent}") == [failed]
    assert found(rows, f"-parent:{parent}") == [parent]
    assert found(rows, f"parent:{child}") == []


def test_stored_values_are_found_on_both_databases(rows: Rows) -> None:
    number = rows.run(input='{"order": {"id": 8812, "ok": true}}', output='{"total": 5.0}', ago=1)
    text = rows.run(input='{"order":{"id":"8812","ok":"true"}}', output='"5"', ago=2)
    broken = rows.run(input='{"order": {"id": 8812', output="5,", ago=3)
    nulls = rows.run(input='{"order": {"id": null, "nul": "\\u0000"}}', ago=4, output=None)

    assert found(rows, "input.order.id:8812") == [number]
    assert found(rows, 'input.order.id:"8812"') == [text]
    assert found(rows, "input.order.ok:true") == [number]
    assert found(rows, "input.order.id:null") == [nulls]
    assert found(rows, "output.total:5") == [number]
    assert found(rows, 'output:"5"') == [text]
    assert found(rows, "output:5") == []
    assert found(rows, "input.order.id:8812 -output.total:6") == [number]
    assert set(found(rows, "-input.order.id:8812")) == {text, nulls}
    assert broken not in found(rows, "-output:7")


def test_error_is_found_in_class_and_message(rows: Rows) -> None:
    failed = rows.run("failed", error=error_json("app.Declined", 'no "funds"\nleft', traceback="x" * 40_000), ago=1)
    retried = rows.run("sleeping", error=error_json("TimeoutError", "no answer"), attempts=1, ago=2)
    rows.run("failed", error="{", ago=3)

    assert found(rows, "error:declined") == [failed]
    assert found(rows, r'error:"no \"funds\""') == [failed]
    assert found(rows, "error:no") == [failed, retried]
    assert found(rows, "error:xxxx") == []
    assert found(rows, "error:no status:sleeping") == [retried]


def test_b110_search_stays_within_the_workspaces(rows: Rows) -> None:
    mine = rows.run("failed", workspace="ws-1", key="k", input='{"a": 5}', error=error_json("E", "m"), cause="c")
    theirs = rows.run("failed", workspace="ws-2", key="k", input='{"a": 5}', error=error_json("E", "m"), cause="c")
    for run in (mine, theirs):
        rows.step(run, "s", 1, "failed")
        rows.insert(models.waits, [wait_row(run, "paid")])
    rows.change(mine, status="waiting")
    rows.change(theirs, status="waiting")
    searches = (
        "k",
        "key:k",
        "onboarding",
        "input.a:5",
        "error:m",
        "step:s",
        "event:paid",
        "-key:x",
        f"id:{theirs[:8]}",
    )

    for search in (*searches, "cause:c"):
        for scope in (("ws-1",), ("", "ws-1")):
            assert found(rows, search, workspace=scope) == [mine]
        assert found(rows, search, workspace=()) == []
        assert found(rows, f"{search} workspace:ws-2", workspace=("ws-1",)) == []


def test_looking_is_bounded_and_goes_on(rows: Rows) -> None:
    wanted = [rows.run(ago=ago, input='{"a": 5}') for ago in (100, 50)]
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 40)])
    query = RunQuery(search="input.a:5")

    with read.reading(rows.engine) as connection:
        first = read.list_runs(connection, query, scan=20)
        second = read.list_runs(connection, replace(query, cursor=first.older), scan=20)
        third = read.list_runs(connection, replace(query, cursor=second.older), scan=20)

    assert (first.runs, first.searched) == ((), 20)
    assert [run.id for run in second.runs] == [wanted[1]]
    assert [run.id for run in third.runs] == [wanted[0]]
    assert third.older is None


def test_key_is_looked_for_beside_what_an_index_knows(rows: Rows) -> None:
    old = [rows.run(ago=100 + ago, workflow="rare") for ago in range(3)]
    rows.run(ago=90, key="rare")
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 40)])

    with read.reading(rows.engine) as connection:
        page = read.list_runs(connection, RunQuery(search="rare"), scan=20)
        first = read.list_runs(connection, RunQuery(search="rare", limit=2), scan=20)
        rest = read.list_runs(connection, RunQuery(search="rare", limit=2, cursor=first.older), scan=20)

    assert [run.id for run in page.runs] == old
    assert page.searched == 20
    assert page.older is None
    assert [run.id for run in (*first.runs, *rest.runs)] == old


@pytest.mark.parametrize("search", ["-input.a:6", "-error:x"])
def test_looking_at_values_ends_in_time(rows: Rows, search: str) -> None:
    rows.insert(models.runs, [run_row(ago=ago, input='{"a": 5}') for ago in range(1, 300)])

    with read.reading(rows.engine, seconds=60) as connection:
        assert len(read.list_runs(connection, RunQuery(search=search, limit=200), scan=299).runs) == 200
        # The time is over.
        connection.info["workflows_deadline"] = 0
        with pytest.raises(ReadTimeout):
            read.list_runs(connection, RunQuery(search=search, limit=200), scan=299)


# Timers ------------------------------------------------------------------------------------


@pytest.fixture
def sleepers(rows: Rows) -> list[str]:
    """The ids in the order they are due; three at a time at one instant. Others are due between them."""
    made = [
        run_row("sleeping", ago=ago * 7 % 30, due_at=NOW_MS + ago // 3 * 1_000, queue=("a", "b")[ago % 2])
        for ago in range(30)
    ]
    rows.insert(models.runs, made)
    rows.insert(models.runs, [run_row("pending", due_at=NOW_MS + ago * 500) for ago in range(20)])
    rows.insert(models.runs, [run_row("waiting", due_at=None)])
    return [row["id"] for row in sorted(made, key=lambda row: (row["due_at"], row["id"]))]


@pytest.mark.parametrize("scan", [None, 10_000, 25, 7], ids=["unbounded", "sorted", "walked", "tight"])
@pytest.mark.parametrize("search", ["", "queue:b", "onboarding"])
def test_timers_are_listed_soonest_first_and_back(
    rows: Rows, sleepers: list[str], scan: int | None, search: str
) -> None:
    wanted = sleepers
    if search == "queue:b":
        with rows.engine.connect() as connection:
            of_queue = set(connection.scalars(sa.select(models.runs.c.id).where(models.runs.c.queue == "b")))
        wanted = [run for run in sleepers if run in of_queue]
    query = RunQuery(status=RunStatus.SLEEPING, limit=4, by_due=True, search=search)

    with read.reading(rows.engine) as connection:
        forward = [read.list_runs(connection, query, scan=scan)]
        while forward[-1].older is not None:
            forward.append(read.list_runs(connection, replace(query, cursor=forward[-1].older), scan=scan))
            assert len(forward) < 100
        backward = [forward[-1]]
        while backward[-1].newer is not None:
            backward.append(read.list_runs(connection, replace(query, cursor=backward[-1].newer), scan=scan))
            assert len(backward) < 100

    assert [run.id for page in forward for run in page.runs] == wanted
    assert {run.id for page in backward for run in page.runs} == set(wanted)
    for page in (*forward, *backward):
        due = [(run.due_at, run.id) for run in page.runs]
        assert due == sorted(due, key=lambda place: (place[0] or NOW, place[1]))


def test_timers_keep_within_the_other_filters(rows: Rows, sleepers: list[str]) -> None:
    mine = rows.run("sleeping", workspace="ws-1", due_at=NOW_MS - 5, ago=5)
    rows.run("sleeping", workspace="ws-2", due_at=NOW_MS - 5)
    query = RunQuery(status=RunStatus.SLEEPING, by_due=True, workspace=("ws-1",))

    with read.reading(rows.engine) as connection:
        for scan in (None, 10_000, 1):
            page = read.list_runs(connection, query, scan=scan)
            assert [run.id for run in page.runs] == ([] if scan == 1 and page.searched else [mine])
        assert read.newest_id(connection, query) == mine
        since = replace(query, workspace=None, created_after=NOW - timedelta(seconds=6))
        assert {run.id for run in read.list_runs(connection, since).runs} <= {*sleepers, mine}
        assert read.list_runs(connection, query, until="0").runs == ()


def test_cursor_of_another_order_is_refused(rows: Rows, sleepers: list[str]) -> None:
    query = RunQuery(status=RunStatus.SLEEPING, by_due=True, cursor=f"older.{sleepers[0]}")

    with pytest.raises(InvalidCursor, match="another order"), read.reading(rows.engine) as connection:
        read.list_runs(connection, query)
