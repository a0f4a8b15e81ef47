"""The configuration, read once from `app.config` and frozen."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from typing import Any
from typing import Literal
from typing import Self

from flask_workflows.errors import ConfigError
from flask_workflows.errors import InvalidName
from flask_workflows.names import check_label

logger = logging.getLogger("flask_workflows")

PREFIX = "WORKFLOWS_"

_DAY = 86_400

#: What a person can do; `bulk` is any of them to many runs.
ACTIONS = ("start", "cancel", "retry", "wake", "pause", "deliver", "send", "release", "bulk")


def _number(default: int, low: int, high: int) -> int:
    """Declare a field that holds a whole number from `low` to `high`."""
    field: int = dataclasses.field(default=default, metadata={"bounds": (low, high)})
    return field


@dataclass(frozen=True, kw_only=True)
class WorkflowsConfig:
    """Every setting of an app's workflows.

    In `app.config` each field is a key in capitals behind `WORKFLOWS_`; in the environment, read by
    `app.config.from_prefixed_env()`, it is that key behind `FLASK_`, its value written as JSON:

        FLASK_WORKFLOWS_CONCURRENCY=8
        FLASK_WORKFLOWS_DASHBOARD=false
        FLASK_WORKFLOWS_IMPORTS='["shop.billing.workflows", "shop.mail.workflows"]'

    `poll_interval_ms` (1000; 10 to 60,000): how long an idle worker waits before it looks for due runs again. A
    notification wakes it earlier.

    `concurrency` (4; 1 to 512): runs one worker process executes at once, each on a thread of its own.

    `lock_timeout_secs` (30; 2 to 3,600): how long a claim holds without being renewed. Renewal comes at a third of it;
    after it, any worker takes the run over.

    `max_attempts` (3; 1 to 1,000): how often a run's body may raise, or its worker be lost, before the run fails. The
    count starts again at each newly stored step.

    `retry_backoff_secs` (5; 0 to 86,400): the wait before a run's next attempt, times the attempts it has used.

    `step_attempts` (3; 1 to 1,000): attempts of a step declared without a `Retry`.

    `step_backoff_secs` (10; 0 to 86,400): the wait before such a step's next attempt, times the attempts it has used.

    `drain_secs` (30; 0 to 86,400): how long a worker told to stop lets its runs go on before it hands them back.

    `prune_after_days` (30; 0 to 36,500): age at which finished runs and old events are deleted; 0 keeps them.

    `prune_at` (03:40): the time of day, in UTC, at which a worker does that. `"HH:MM"` or a `datetime.time`.

    `max_payload_bytes` (1,048,576; 1,024 to 268,435,456): the largest input, result or event, as JSON.

    `imports` (none): modules that declare workflows, imported when a worker or a command starts. A list, or names
    separated by commas.

    `queue` ("default"): the queue of workflows declared without one; 1 to 255 characters.

    `url_prefix` ("/workflows"): where the pages and the JSON routes stand; "/" for the root.

    `env_name` (none): what the pages call this deployment, such as "staging", so that nobody mistakes one for another.

    `dashboard` (true): serve the pages.

    `dashboard_read_only` (false): let nobody change anything through the pages and the JSON routes.

    `audit_after_days` (400; 0 to 36,500): age at which entries of the audit are deleted; 0 keeps them.

    `audit_address` (false): keep with each action the address it was asked for from.

    `require_reason` (none): actions that are done only with a reason, such as `["cancel", "bulk"]`; of start, cancel,
    retry, wake, deliver, send, release and bulk.

    `metrics_token` (none): what a scraper of `/metrics` sends as its bearer token. Without one, `/metrics` is for
    visitors whom `authorize` lets `view`.

    `api` (true): serve the JSON routes.

    `store` ("database"): `"database"`, or `"memory"` for runs that are lost when the process ends.

    `execution` ("worker"): `"worker"`, or `"inline"` to execute each run in the process that starts it.

    `listen` (true): workers on PostgreSQL wait for notifications; false polls only.

    `listen_url` (none): a database URL for notifications alone, when the app's own goes through a pooler that does not
    pass them on.
    """

    poll_interval_ms: int = _number(1000, 10, 60_000)
    concurrency: int = _number(4, 1, 512)
    lock_timeout_secs: int = _number(30, 2, 3_600)
    max_attempts: int = _number(3, 1, 1_000)
    retry_backoff_secs: int = _number(5, 0, _DAY)
    step_attempts: int = _number(3, 1, 1_000)
    step_backoff_secs: int = _number(10, 0, _DAY)
    drain_secs: int = _number(30, 0, _DAY)
    prune_after_days: int = _number(30, 0, 36_500)
    prune_at: time = time(3, 40)
    max_payload_bytes: int = _number(1_048_576, 1_024, 268_435_456)
    imports: tuple[str, ...] = ()
    queue: str = "default"
    url_prefix: str = "/workflows"
    env_name: str | None = None
    dashboard: bool = True
    dashboard_read_only: bool = False
    audit_after_days: int = _number(400, 0, 36_500)
    audit_address: bool = False
    require_reason: tuple[str, ...] = ()
    metrics_token: str | None = dataclasses.field(default=None, repr=False)
    api: bool = True
    store: Literal["database", "memory"] = "database"
    execution: Literal["worker", "inline"] = "worker"
    listen: bool = True
    listen_url: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def from_app_config(cls, mapping: Mapping[str, Any]) -> Self:
        """Read the `WORKFLOWS_…` keys of an app's configuration.

        A number out of range is moved to the nearest allowed one, with a warning, so that a slip in a deployment's
        environment does not keep the app from starting. A key nobody reads is warned about too. What has no nearest
        right value, a wrong type or a blank name, raises `ConfigError`.
        """
        _warn_of_unread(mapping)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            key = PREFIX + field.name.upper()
            if key in mapping:
                value = _READERS[field.name](key, mapping[key])
                values[field.name] = _nearest(field, value)
                if values[field.name] != value:
                    logger.warning("%s is %s, out of range; using %s", key, value, values[field.name])

        return cls(**values)

    def validate(self) -> None:
        """Refuse what `from_app_config` refuses, and any number out of range.

        For configurations built in code, where a number out of range is a mistake and not a slip.
        """
        for field in dataclasses.fields(self):
            label = f"WorkflowsConfig.{field.name}"
            value = getattr(self, field.name)
            accepted = _READERS[field.name](label, value)
            if accepted != value:
                raise ConfigError(f"{label} is {value!r}; write {accepted!r}")
            nearest = _nearest(field, value)
            if nearest != value:
                raise ConfigError(f"{label} is {value!r}, out of range; the nearest allowed is {nearest!r}")


def _warn_of_unread(mapping: Mapping[str, Any]) -> None:
    known = [field.name.upper() for field in dataclasses.fields(WorkflowsConfig)]
    for key in mapping:
        name = key.removeprefix(PREFIX)
        if name == key or name in known:
            continue

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        logger.warning("nothing reads the configuration key %s%s", key, hint)


def _nearest(field: dataclasses.Field[Any], value: Any) -> Any:
    if "bounds" not in field.metadata:
        return value

    low, high = field.metadata["bounds"]
    return min(max(value, low), high)


# One reader a kind of value. Each takes the key as the reader of the message knows it, and returns the value the field
# holds or raises. A reader leaves a field's own value as it is: `validate` relies on that.


def _whole_number(key: str, value: Any) -> int:
    # bool is a subclass of int, and `WORKFLOWS_CONCURRENCY = True` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}; write a whole number, without quotes and without a fraction")
    return value


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}; write True or False in Python, true or false in the environment")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}; write text (in the environment, a number needs quotes: '\"7\"')")
    if not value.strip():
        raise ConfigError(f"{key} is blank; write a name, or leave the key out for the default")
    return value


def _queue(key: str, value: Any) -> str:
    try:
        return check_label(_text(key, value), "queue")
    except InvalidName as error:
        raise ConfigError(f"{key} is refused: {error}") from None


def _url_prefix(key: str, value: Any) -> str:
    prefix = _text(key, value)
    if not prefix.startswith("/"):
        raise ConfigError(f'{key} is {prefix!r}; start it with a slash: "/{prefix}"')
    return prefix.rstrip("/") or "/"


def _choice(*options: str) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in options:
            raise ConfigError(f"{key} is {value!r}; write {' or '.join(map(repr, options))}")
        return str(value)

    return read


def _time_of_day(key: str, value: Any) -> time:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = time.fromisoformat(value)
    if not isinstance(value, time):
        raise ConfigError(f'{key} is {value!r}; write a time of day in UTC as "HH:MM"')
    if value.tzinfo is not None:
        raise ConfigError(f"{key} is {value!r}; leave the time zone out, the time is always UTC")
    return value


def _modules(key: str, value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) and value.strip() else value
    if not isinstance(names, list | tuple):
        raise ConfigError(f'{key} is {value!r}; write a list of module names: ["shop.billing.workflows"]')

    return tuple(_module(key, name) for name in names)


def _module(key: str, value: Any) -> str:
    name = value.strip() if isinstance(value, str) else value
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{key} holds {value!r}; write a module's name with dots, such as 'shop.billing.workflows'")
    return name


def _actions(key: str, value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) and value.strip() else value
    if not isinstance(names, list | tuple):
        raise ConfigError(f'{key} is {value!r}; write a list of actions: ["cancel", "bulk"]')
    stripped = tuple(name.strip() if isinstance(name, str) else name for name in names)
    for name in stripped:
        if name not in ACTIONS:
            raise ConfigError(f"{key} holds {name!r}; write some of {', '.join(ACTIONS)}")
    return stripped


def _optional_text(key: str, value: Any) -> str | None:
    return None if value is None else _text(key, value)


def _secret(key: str, value: Any) -> str | None:
    """A text that no message may quote."""
    if value is None:
        return None
    if not isinstance(value, str):
        # The environment is read as JSON, so a token of digits comes as a number.
        raise ConfigError(f"{key} is a {type(value).__name__}; write text, in the environment with quotes: '\"…\"'")
    if not value.strip() or not value.isascii() or value != value.strip():
        raise ConfigError(f"{key} is blank, has blanks around it, or letters beyond ASCII; write a token")
    return value


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "poll_interval_ms": _whole_number,
    "concurrency": _whole_number,
    "lock_timeout_secs": _whole_number,
    "max_attempts": _whole_number,
    "retry_backoff_secs": _whole_number,
    "step_attempts": _whole_number,
    "step_backoff_secs": _whole_number,
    "drain_secs": _whole_number,
    "prune_after_days": _whole_number,
    "prune_at": _time_of_day,
    "max_payload_bytes": _whole_number,
    "imports": _modules,
    "queue": _queue,
    "url_prefix": _url_prefix,
    "env_name": _optional_text,
    "dashboard": _flag,
    "dashboard_read_only": _flag,
    "audit_after_days": _whole_number,
    "audit_address": _flag,
    "require_reason": _actions,
    "metrics_token": _secret,
    "api": _flag,
    "store": _choice("database", "memory"),
    "execution": _choice("worker", "inline"),
    "listen": _flag,
    "listen_url": _optional_text,
}
