"""One step of a run, and the whole values of runs and steps to be kept as files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Iterator

from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from ... import phrases
from ...payloads import DECODE_LIMIT
from ...payloads import write_redacted
from ...runs import Run
from ...store import reading as read
from ..access import Permission
from ..pages.actions import offers_from_here
from ..pages.actions import Scene
from ..pages.step import step_page
from ..routes import get
from ..visit import Visit
from .run import find_or_longer
from .runs import back_to_list

#: Longer values are not sent: they are redacted in memory. In characters.
DOWNLOAD_LIMIT = 16_000_000
_CHUNK = 64_000


def step(visit: Visit, run_id: str, number: int) -> ResponseReturnValue:
    found = find_or_longer(visit, run_id, f"step/{number}")
    if not isinstance(found, Run):
        return found
    payloads = visit.may(Permission.VIEW_PAYLOAD, found)
    # No run has more, and no database takes a larger number.
    number = min(number, 1_000_000_000)
    with visit.reading() as connection:
        now = visit.now(connection)
        details = read.read_step(connection, run_id, number, payload_limit=DECODE_LIMIT if payloads else 0)
        started = {}
        if details is not None and details.step.kind == "start":
            started = read.read_started(connection, run_id, [details.step.key])
    if details is None:
        words = f"The run has no step {phrases.number(number)}."
        return visit.message("no_step.html", 404, code="workflow_step_not_found", words=words, run_id=run_id)
    around = visit.surroundings(now, (), run=found)
    own = visit.runtime.registry.is_own(found.workflow)
    scene = Scene(found, (), details.step_count, around, from_key=details.step.key, own=own)
    actions = offers_from_here(scene, visit.may)
    page = step_page(found, details, around, started=started.get(details.step.key), actions=actions)
    return visit.page("step", now, page, section="runs", back=back_to_list(visit.request.args))


def download(visit: Visit, run_id: str, part: str, number: int | None = None) -> ResponseReturnValue:
    """The whole `input` or `output`, redacted, as a file."""
    place = f"{part}.json" if number is None else f"step/{number}/{part}.json"
    found = find_or_longer(visit, run_id, place, Permission.VIEW_PAYLOAD)
    if not isinstance(found, Run):
        return found
    number = None if number is None else min(number, 1_000_000_000)
    with visit.reading() as connection:
        value = read.read_value(connection, run_id, part, step=number, limit=DOWNLOAD_LIMIT)
    if value is None:
        words = f"There is no {part} stored there."
        return visit.message("no_step.html", 404, code="workflow_value_not_found", words=words, run_id=run_id)
    if not value.whole:
        words = (
            f"The {part} takes {phrases.size(value.length)}; at most {phrases.size(DOWNLOAD_LIMIT)} are sent. "
            "It stands whole in the database."
        )
        return visit.message("too_large.html", 413, code="value_too_large", words=words, run_id=run_id)
    response = Response(_chunks(write_redacted(value.text)), mimetype="application/json")
    response.headers["Content-Disposition"] = f'attachment; filename="{_file_name(run_id, number, part)}"'
    return response


def _chunks(parts: Iterable[str]) -> Iterator[bytes]:
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > _CHUNK:
            yield "".join(held).encode("utf-8", "backslashreplace")
            held, size = [], 0
    yield "".join(held).encode("utf-8", "backslashreplace")


def _file_name(run_id: str, number: int | None, name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", run_id)[:60]
    return f"{plain}-{name}.json" if number is None else f"{plain}-step-{number}-{name}.json"


ROUTES = (
    get("/run/<path:run_id>/step/<int:number>", "step", Permission.VIEW, step),
    get("/run/<path:run_id>/<any(input, output):part>.json", "value", Permission.VIEW_PAYLOAD, download),
    get(
        "/run/<path:run_id>/step/<int:number>/<any(input, output):part>.json",
        "step_value",
        Permission.VIEW_PAYLOAD,
        download,
    ),
)
