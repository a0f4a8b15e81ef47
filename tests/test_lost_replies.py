"""Transactions that are committed, or are about to be, when the connection that asked for it is gone.

A proxy does it to the connections of an app that runs its workflows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import pytest
import sqlalchemy as sa
from flask import Flask

from chaos.proxy import Loss
from chaos.proxy import Proxy
from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import WorkflowContext
from tests import apps
from tests.apps import database_of
from tests.apps import workflows_of
from tests.processes import execute
from tests.processes import rows

How = Literal["dropped", "cut", "ended"]

#: A commit that takes its time, so that it goes on when whoever asked for it is gone.
_SLOW_COMMIT = """
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON workflow_steps DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION dawdle();
CREATE TABLE done (run text);
"""


@pytest.fixture
def proxy(postgresql_url: str) -> Iterator[Proxy]:
    port = sa.make_url(postgresql_url).port
    assert port is not None
    with closing(Proxy(port)) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, postgresql_url: str, make_app: apps.MakeApp) -> Flask:
    """An app behind the proxy, whose commits of recorded calls are slow."""
    app = make_app(sa.make_url(postgresql_url).set(port=proxy.port).render_as_string(hide_password=False))
    execute(app, _SLOW_COMMIT)

    return app


@pytest.mark.parametrize("how", ["dropped", "cut", "ended"])
@pytest.mark.parametrize("attempts", [1, 3], ids=["last attempt", "first attempt"])
def test_step_whose_commit_may_have_happened_is_not_repeated(
    proxied: Flask, proxy: Proxy, how: How, attempts: int
) -> None:
    workflows = workflows_of(proxied)

    @workflows.step(transactional=True, retry=Retry(attempts=attempts, backoff=Retry.constant(0)))
    def write() -> None:
        session = database_of(proxied).session
        session.execute(sa.text("INSERT INTO done VALUES (:run)"), {"run": current_run.run_id})
        proxy.armed = Loss("commit", how)

    @workflows.workflow
    def writing() -> str:
        write()
        return "written"

    with proxied.app_context():
        run = writing.spawn()
        while workflows.tick():
            pass

        assert proxy.armed is None
        assert rows(proxied, "SELECT count(*) FROM done") == [(1,)]
        assert run.output() == "written"
        (call,) = workflows.details(run.id).steps
        assert (str(call.status), call.attempts) == ("completed", 1)


@pytest.mark.parametrize("how", ["dropped", "cut", "ended"])
def test_event_whose_commit_may_have_happened_is_not_emitted_twice(proxied: Flask, proxy: Proxy, how: How) -> None:
    workflows = workflows_of(proxied)
    workflows.event("said")

    @workflows.workflow
    def saying(ctx: WorkflowContext) -> None:
        proxy.armed = Loss("commit", how)
        workflows.emit("said", {"words": "once"})

    with proxied.app_context():
        run = saying.spawn()
        while workflows.tick():
            pass

        assert proxy.armed is None
        assert str(run.status()) == "completed"
        assert len(workflows.emitted("said")) == 1
