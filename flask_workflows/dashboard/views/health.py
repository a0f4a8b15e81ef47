"""For machines: whether the app is well, and how much there is. Neither asks who the visitor is by a cookie."""

from __future__ import annotations

import hmac
from importlib.util import find_spec
from typing import TYPE_CHECKING

import sqlalchemy as sa
from flask import Response
from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...store import reading as read
from ..access import Permission
from ..routes import get
from ..visit import Visit

if TYPE_CHECKING:
    from ..metrics import Known


def healthz(visit: Visit) -> ResponseReturnValue:
    """Says yes or no to anybody, and nothing else; the log says why."""
    good = visit.site.health.is_good(visit, deep=visit.request.args.get("deep") == "1")
    return _words("ok", 200) if good else _words("not ok", 503)


def metrics(visit: Visit) -> ResponseReturnValue:
    refusal = _refusal(visit)
    if refusal is not None:
        return refusal
    if find_spec("prometheus_client") is None:
        return _words("There are no metrics: install Flask-Workflows[metrics], which brings prometheus-client.", 404)

    from .. import metrics

    try:
        measured = visit.site.kept.get(("metrics",), lambda: metrics.measure(visit.reading, visit.now))
        known = _known(visit)
    except (ReadTimeout, sa.exc.SQLAlchemyError):
        return _words("The database does not answer, or its tables are not as they should be.", 503)
    text, content_type = metrics.exposition(
        measured, known, visit.site.timings.histogram(), visit.request.headers.get("Accept", "")
    )
    return Response(text, content_type=content_type)


def _refusal(visit: Visit) -> ResponseReturnValue | None:
    """What to answer whoever is no scraper of ours: by the token where one is set, else as the app decides."""
    token = visit.runtime.config.metrics_token
    if token is not None:
        given = visit.request.authorization
        sent = given.token if given is not None and given.type == "bearer" and given.token else ""
        if hmac.compare_digest(sent.encode(), token.encode()):
            return None
        response = _words("Send the token of WORKFLOWS_METRICS_TOKEN as a bearer token.", 401)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    refusal = visit.refusal(Permission.VIEW)
    if refusal is None and visit.scope is not None:
        # Metrics count the runs of all workspaces.
        return _words("You see some workspaces only, and metrics count all. Set WORKFLOWS_METRICS_TOKEN.", 403)
    return refusal


def _known(visit: Visit) -> Known:
    from ..metrics import Known

    runtime = visit.runtime
    with visit.reading() as connection:
        workers = read.live_workers(connection, visit.now(connection))
    queues = {workflow.queue or runtime.config.queue for workflow in runtime.registry.workflows()}
    queues |= {queue for worker in workers for queue in worker.queues or ()}
    return Known(queues=sorted(queues), workflows=runtime.registry.names(), events=runtime.workflows.events.names())


def _words(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")


ROUTES = (get("/healthz", "healthz", None, healthz), get("/metrics", "metrics", None, metrics))
