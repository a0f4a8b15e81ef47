from __future__ import annotations

import json

import pytest
from markupsafe import escape

from flask_workflows.payloads import copied
from flask_workflows.payloads import Folded
from flask_workflows.payloads import Frame
from flask_workflows.payloads import Hidden
from flask_workflows.payloads import mended
from flask_workflows.payloads import read_traceback
from flask_workflows.payloads import show_value
from flask_workflows.payloads import Shown
from flask_workflows.payloads import write_redacted
from flask_workflows.runs import Head


def shown(stored: str) -> Shown:
    return show_value(Head(stored, len(stored)))


@pytest.mark.parametrize(
    ("stored", "laid_out"),
    [
        ("null", "null"),
        ("true", "true"),
        ("1.50", "1.50"),
        ("1e400", "1e400"),
        ("NaN", "NaN"),
        ('"a\\u20ac\\n\\u0007"', '"a€\\n\\u0007"'),
        ("[]", "[]"),
        ("{}", "{}"),
        ('{"a":[1,{"b":null}]}', '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}'),
        ('{"a":1,"a":2}', '{\n  "a": 1,\n  "a": 2\n}'),
    ],
)
def test_value_is_laid_out_as_it_is_stored(stored: str, laid_out: str) -> None:
    assert shown(stored) == Shown((laid_out,))


def test_secret_leaves_a_mark() -> None:
    """B111"""
    assert shown('{"token": {"a": 1}, "auth": null, "private": true, "b": 1}').parts == (
        '{\n  "token": ',
        Hidden("token"),
        ',\n  "auth": null,\n  "private": true,\n  "b": 1\n}',
    )


def test_long_value_is_cut_where_it_is_said() -> None:
    value = shown(json.dumps(["x" * 100] * 500))

    assert value.note == "The first 18 kB of 52 kB."
    assert 19_600 < len(escape("".join(str(part) for part in value.parts))) <= 20_001
    assert value.parts[-1] == "…"


def test_beginning_of_a_huge_value_is_laid_out_as_far_as_it_goes() -> None:
    value = show_value(Head('{"password": "hunter2", "a": "b', 4_200_000))

    assert value.note == "The beginning of 4.2 MB."
    assert value.parts == ('{\n  "password": ', Hidden("password"), ',\n  "a": "b"\n}', "…")


def test_b111_secret_in_the_beginning_of_a_huge_value_is_hidden() -> None:
    secrets = {"credentials": {"user": "a", "value": "hunter2"}, "tokens": ["hunter3", {"x": "hunter4"}]}
    stored = json.dumps({"first": secrets, "rest": "y" * 600_000})

    value = show_value(Head(stored[:500_000], len(stored)))

    assert "hunter" not in "".join(map(str, value.parts))
    assert Hidden("credential") in value.parts


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("", ""),
        ("[", "[]"),
        ("{", "{}"),
        ('{"a', "{}"),
        ('{"a"', "{}"),
        ('{"a":', "{}"),
        ('{"a": "b', '{"a": "b"}'),
        ('{"a": "b\\', '{"a": "b"}'),
        ('{"a": "b\\u00', '{"a": "b"}'),
        ('{"a": "b\\\\', '{"a": "b\\\\"}'),
        ('{"a": 12', "{}"),
        ('{"a": 12,', '{"a": 12}'),
        ('{"a": tru', "{}"),
        ('{"a": [1, 2, {"b": [3', '{"a": [1, 2, {"b": []}]}'),
        ('["x", "y', '["x", "y"]'),
        ('["x", {"y": 1}, "z\\"', '["x", {"y": 1}, "z\\""]'),
        ('{"a": {}, "b', '{"a": {}}'),
        ('"abc', '"abc"'),
        ('{"a": "]}[{,", "b', '{"a": "]}[{,"}'),
    ],
)
def test_beginning_of_a_value_is_made_whole(begun: str, whole: str) -> None:
    assert mended(begun) == whole
    if whole:
        json.loads(mended(begun))


def test_every_beginning_of_a_value_is_readable() -> None:
    stored = json.dumps({"a": [1, -2.5e3, None, True, 'x"\\\u20ac'], "b": {"c": {}, "d": []}, "e": "", "": {"f": "g"}})

    for length in range(1, len(stored) + 1):
        json.loads(mended(stored[:length]))
    assert json.loads(mended(stored)) == json.loads(stored)


@pytest.mark.parametrize("stored", ["", "{", "[1,", "nope", "[" * 10_000, "\x00"])
def test_what_is_not_json_is_shown_with_the_reason(stored: str) -> None:
    """B76"""
    value = shown(stored)

    assert value.note.startswith("Not readable as JSON (")
    assert value.parts == (stored[:2_000],)


TRACEBACK = """Traceback (most recent call last):
  File "/env/lib/python3/site-packages/urllib3/pool.py", line 7, in get
    return x()
           ^^^
  File "/env/lib/python3/site-packages/requests/api.py", line 9, in get
    raise Error
Error: refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/billing.py", line 118, in charge
    pay(token="abc")
  File "<string>", line 1, in <module>
shop.Declined: no funds
second line
"""


def test_traceback_is_told_in_frames() -> None:
    assert read_traceback(TRACEBACK) == (
        Folded(
            (
                Frame("/env/lib/python3/site-packages/urllib3/pool.py", "7", "get", "return x()"),
                Frame("/env/lib/python3/site-packages/requests/api.py", "9", "get", "raise Error"),
            )
        ),
        "Error: refused",
        "The above exception was the direct cause of the following exception:",
        Frame("/srv/shop/billing.py", "118", "charge", 'pay(token="[hidden]")'),
        Frame("<string>", "1", "<module>"),
        "shop.Declined: no funds",
        "second line",
    )


@pytest.mark.parametrize("text", ["", "nothing like it", 'File "', '  File "a", line 1', "\n\n"])
def test_any_text_passes_for_a_traceback(text: str) -> None:
    read_traceback(text)


def test_own_code_and_the_standard_library_are_folded() -> None:
    (folded,) = read_traceback(
        f'  File "{json.__file__}", line 1, in loads\n  File "{__import__("flask_workflows").__file__}", line 2, in f'
    )

    assert isinstance(folded, Folded)
    assert len(folded.frames) == 2


@pytest.mark.parametrize("text", ["<" * 50_000, '"' * 50_000, "😀" * 50_000, "a" * 50_000, "\\n" * 50_000])
def test_value_takes_up_no_more_of_a_page_than_it_may(text: str) -> None:
    stored = json.dumps({"a": text, "token": "x"}, ensure_ascii=False)

    for head in (Head(stored, len(stored)), Head(stored, 5_000_000), Head("{" + stored, len(stored) + 1)):
        value = show_value(head, 5_000)
        assert len(str(escape("".join(str(part) for part in value.parts))).encode()) <= 5_010


def whole(stored: str) -> str:
    return "".join(write_redacted(stored))


def test_whole_value_is_written_as_json_without_its_secrets() -> None:
    """B111"""
    stored = '{"a": [1.50, 12345678901234567890123, null], "password": {"b": 1}, "url": "redis://:hunter2@h", "x": "€"}'

    assert json.loads(whole(stored)) == {
        "a": [1.5, 12345678901234567890123, None],
        "password": "hidden: matches password",
        "url": "redis://:[hidden]@h",
        "x": "€",
    }
    assert "1.50" in whole(stored)


def test_long_text_is_written_whole() -> None:
    text = f"{'x' * 65_530} postgresql://app:hunter2@db/shop {'y' * 100_000}"
    stored = json.dumps({"a": text})

    assert json.loads(whole(stored)) == {"a": text.replace("hunter2", "[hidden]")}
    assert copied(json.dumps({"a": "x" * 100_000})) is not None


@pytest.mark.parametrize("stored", ['{"password": "hunter2', "[" * 100_000, "[" * 500 + "]" * 500, "", "nope"])
def test_what_is_no_json_is_written_as_one_text(stored: str) -> None:
    """B76"""
    written = json.loads(whole(stored))

    assert isinstance(written, str)
    assert "hunter2" not in written
