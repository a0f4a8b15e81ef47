from __future__ import annotations

import time

import pytest

from flask_workflows.redaction import hides
from flask_workflows.redaction import redact_error
from flask_workflows.redaction import redact_text
from flask_workflows.runs import RunError


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWD",
        "db_password_2",
        "userPassword",
        "client_secret",
        "accessToken",
        "api_key",
        "apiKey",
        "api-key",
        "X-API-KEY",
        "auth",
        "authorization",
        "authHeader",
        "cookies",
        "session_id",
        "private_key",
        "credentials",
        "card_number",
        "creditCard",
        "cvv",
        "iban",
        "userSSN",
        "otp_code",
    ],
)
def test_telling_key_is_hidden(key: str) -> None:
    """B111"""
    assert hides(key)


@pytest.mark.parametrize(
    "key", ["author", "authors", "discard", "dashboard", "classname", "hotpot", "keyboard", "email", "user_id", ""]
)
def test_harmless_key_is_shown(key: str) -> None:
    assert hides(key) is None


def test_hidden_key_names_the_word() -> None:
    assert hides("stripeToken") == "token"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://app:hunter2@db/shop", "hunter2"),
        ("could not connect to https://u:p%40ss@example.com/x", "p%40ss"),
        ("header eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w", "eyJzdWIi"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKC"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut", "MIIEcut"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("sent Bearer abcdefghijkl there", "abcdefghijkl"),
        ("Cookie: sid=abc123; theme=dark456", "dark456"),
        ("login failed with password=hunter2, giving up", "hunter2"),
        ("{'user': 'a', 'api_key': 'sk-123'}", "sk-123"),
        ('{"user": "a", "token": "a b c"}', "a b c"),
        ('"{\\"token\\": \\"tok-1\\"}"', "tok-1"),
        ("https://example.com/?access_token=t0k3n&page=2", "t0k3n"),
    ],
)
def test_secret_in_a_text_is_hidden(text: str, secret: str) -> None:
    """B111"""
    redacted = redact_text(text)

    assert secret not in redacted
    assert "[hidden" in redacted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the card was declined",
        "author: Jane",
        "password: None",
        "https://example.com/a?b=c",
        "division by zero",
        "session expired",
    ],
)
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text


def test_only_the_secret_goes() -> None:
    assert redact_text("to postgresql://app:pw@db/shop, password='x' y") == (
        "to postgresql://app:[hidden]@db/shop, password='[hidden]' y"
    )


def test_redacting_twice_changes_nothing() -> None:
    once = redact_text("Cookie: a=b\ntoken=abc password='x' postgresql://u:p@h/d Bearer abcdefghijk")

    assert redact_text(once) == once


def test_message_and_traceback_of_an_error_are_redacted() -> None:
    error = redact_error(RunError("E", "token=abc", 'x = "postgresql://u:pw@h"'))

    assert "abc" not in error.message
    assert error.traceback is not None
    assert ":pw@" not in error.traceback


@pytest.mark.parametrize(
    "piece", ["x", "token", "pass", "auth", "a://", "eyJ", "-----BEGIN A-----", 'token="', "bearer ", "card:", "_", "."]
)
def test_long_text_takes_no_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))

    began = time.monotonic()
    redact_text(text)

    assert time.monotonic() - began < 2
