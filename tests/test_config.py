from __future__ import annotations

import dataclasses
import logging
from datetime import time
from datetime import UTC
from typing import Any

import pytest
from flask import Flask

from flask_workflows.config import WorkflowsConfig
from flask_workflows.errors import ConfigError


def read(**keys: Any) -> WorkflowsConfig:
    return WorkflowsConfig.from_app_config({f"WORKFLOWS_{name.upper()}": value for name, value in keys.items()})


def test_defaults_are_the_documented_ones() -> None:
    config = WorkflowsConfig.from_app_config({})

    assert config == WorkflowsConfig()
    assert dataclasses.asdict(config) == {
        "poll_interval_ms": 1000,
        "concurrency": 4,
        "lock_timeout_secs": 30,
        "max_attempts": 3,
        "retry_backoff_secs": 5,
        "step_attempts": 3,
        "step_backoff_secs": 10,
        "drain_secs": 30,
        "prune_after_days": 30,
        "prune_at": time(3, 40),
        "max_payload_bytes": 1024 * 1024,
        "imports": (),
        "queue": "default",
        "url_prefix": "/workflows",
        "env_name": None,
        "dashboard": True,
        "dashboard_read_only": False,
        "audit_after_days": 400,
        "audit_address": False,
        "require_reason": (),
        "metrics_token": None,
        "api": True,
        "store": "database",
        "execution": "worker",
        "listen": True,
        "listen_url": None,
    }


def test_each_field_is_documented() -> None:
    doc = WorkflowsConfig.__doc__ or ""

    for field in dataclasses.fields(WorkflowsConfig):
        assert f"\n    `{field.name}` (" in doc
        for bound in field.metadata.get("bounds", ()):
            assert f"{bound:,}" in doc.split(f"`{field.name}`")[1].split("):")[0]


def test_defaults_pass_validation() -> None:
    WorkflowsConfig().validate()


def test_keys_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "CONCURRENCY": "8",
        "DASHBOARD": "false",
        "IMPORTS": '["shop.billing", "shop.mail"]',
        "PRUNE_AT": "04:15",
        "QUEUE": "mail",
        "LISTEN_URL": "postgresql://db:5432/app",
    }
    for name, value in environment.items():
        monkeypatch.setenv(f"FLASK_WORKFLOWS_{name}", value)
    app = Flask("tests")
    app.config.from_prefixed_env()

    config = WorkflowsConfig.from_app_config(app.config)

    assert config == WorkflowsConfig(
        concurrency=8,
        dashboard=False,
        imports=("shop.billing", "shop.mail"),
        prune_at=time(4, 15),
        queue="mail",
        listen_url="postgresql://db:5432/app",
    )


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("concurrency", 0, 1),
        ("concurrency", 100_000, 512),
        ("lock_timeout_secs", 1, 2),
        ("poll_interval_ms", -5, 10),
        ("max_payload_bytes", 10**12, 268_435_456),
        ("step_attempts", 0, 1),
    ],
)
def test_numbers_out_of_range_are_clamped_with_a_warning(
    caplog: pytest.LogCaptureFixture, name: str, value: int, used: int
) -> None:
    config = read(**{name: value})

    assert getattr(config, name) == used
    assert caplog.messages == [f"WORKFLOWS_{name.upper()} is {value}, out of range; using {used}"]


def test_numbers_in_range_are_taken_silently(caplog: pytest.LogCaptureFixture) -> None:
    config = read(concurrency=512, lock_timeout_secs=2, prune_after_days=0)

    assert (config.concurrency, config.lock_timeout_secs) == (512, 2)
    assert config.prune_after_days == 0
    assert caplog.messages == []


def test_reasons_are_required_of_a_list_or_of_names_with_commas() -> None:
    assert read(require_reason=["cancel"]).require_reason == ("cancel",)
    assert read(require_reason="cancel, bulk").require_reason == ("cancel", "bulk")


WRONG = [
    ("concurrency", "4", "write a whole number"),
    ("concurrency", 4.0, "write a whole number"),
    ("concurrency", True, "write a whole number"),
    ("concurrency", None, "write a whole number"),
    ("drain_secs", float("nan"), "write a whole number"),
    ("dashboard", "yes", "write True or False"),
    ("api", 1, "write True or False"),
    ("queue", "", "is blank"),
    ("queue", " ", "is blank"),
    ("queue", 7, "write text"),
    ("queue", "q" * 256, "write 1 to 255"),
    ("queue", "a\nb", "control characters"),
    ("queue", "a\x00b", "control characters"),
    ("url_prefix", "", "is blank"),
    ("url_prefix", "workflows", 'start it with a slash: "/workflows"'),
    ("store", "redis", "write 'database' or 'memory'"),
    ("store", None, "write 'database' or 'memory'"),
    ("execution", "Inline", "write 'worker' or 'inline'"),
    ("prune_at", "3.40 am", 'write a time of day in UTC as "HH:MM"'),
    ("prune_at", 340, 'write a time of day in UTC as "HH:MM"'),
    ("prune_at", time(3, 40, tzinfo=UTC), "leave the time zone out"),
    ("imports", "", "write a list of module names"),
    ("imports", 7, "write a list of module names"),
    ("imports", {"a": 1}, "write a list of module names"),
    ("imports", ["shop", 7], "holds 7"),
    ("imports", ["shop", ""], "holds ''"),
    ("imports", ["shop/billing.py"], "a module's name with dots"),
    ("require_reason", "", "write a list of actions"),
    ("require_reason", True, "write a list of actions"),
    ("require_reason", ["cancel", "delete"], "holds 'delete'; write some of start, cancel"),
    ("require_reason", ["view"], "holds 'view'"),
    ("require_reason", [["cancel"]], "holds ['cancel']"),
    ("listen_url", "", "is blank"),
    ("listen_url", False, "write text"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_types_and_blank_names_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(**{name: value})

    assert str(refusal.value).startswith(f"WORKFLOWS_{name.upper()} ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_validate_refuses_the_same(name: str, value: Any, message: str) -> None:
    config = WorkflowsConfig(**{name: value})

    with pytest.raises(ConfigError) as refusal:
        config.validate()

    assert str(refusal.value).startswith(f"WorkflowsConfig.{name} ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lock_timeout_secs", 1, "out of range; the nearest allowed is 2"),
        ("concurrency", 1000, "out of range; the nearest allowed is 512"),
        ("imports", ["shop"], "write ('shop',)"),
        ("prune_at", "03:40", "write datetime.time(3, 40)"),
        ("url_prefix", "/workflows/", "write '/workflows'"),
    ],
)
def test_validate_refuses_what_reading_would_change(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^WorkflowsConfig.{name} is ") as refusal:
        WorkflowsConfig(**{name: value}).validate()

    assert message in str(refusal.value)


def test_imports_may_be_names_separated_by_commas() -> None:
    config = read(imports="shop.billing, shop.mail")

    assert config.imports == ("shop.billing", "shop.mail")


def test_url_prefix_loses_its_trailing_slash() -> None:
    assert read(url_prefix="/admin/workflows/").url_prefix == "/admin/workflows"
    assert read(url_prefix="/").url_prefix == "/"


def test_unread_key_warns_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    WorkflowsConfig.from_app_config({"WORKFLOWS_CONCURENCY": 8, "WORKFLOWS_ZZZ": 1, "WORKFLOW_X": 1, "DEBUG": True})

    assert caplog.record_tuples == [
        (
            "flask_workflows",
            logging.WARNING,
            "nothing reads the configuration key WORKFLOWS_CONCURENCY; did you mean WORKFLOWS_CONCURRENCY?",
        ),
        ("flask_workflows", logging.WARNING, "nothing reads the configuration key WORKFLOWS_ZZZ"),
    ]
