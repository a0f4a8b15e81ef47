"""How the pages look to this visitor: their zone, colours, rows, keys."""

from __future__ import annotations

import re
from urllib.parse import unquote

from flask import redirect
from flask import url_for
from flask.typing import ResponseReturnValue

from .. import preferences
from .. import status
from ..access import Permission
from ..preferences import Preferences
from ..preferences import UnknownChoice
from ..routes import get
from ..routes import post
from ..visit import Visit

#: An address on this site, as browsers take it: two slashes, or one of either kind, would lead to another.
_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")


def view(visit: Visit) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
    return visit.page("view", now, (), zones=preferences.zones())


def set_view(visit: Visit) -> ResponseReturnValue:
    form = visit.request.form
    held = Preferences.of(visit.request.cookies.get(preferences.COOKIE, ""))
    try:
        wanted = held.changed(form)
    except UnknownChoice as error:
        return visit.message("refused.html", 422, code="invalid_view", words=str(error))

    response = redirect(_way_back(form.get("next", "")), code=303)
    response.set_cookie(
        preferences.COOKIE,
        str(wanted),
        max_age=preferences.SECONDS,
        path=url_for(".index"),
        secure=visit.request.is_secure,
        samesite="Lax",
    )
    status.put(response, "Saved in this browser.")
    return response


def _way_back(address: str) -> str:
    """Where the form came from, if that is one of our pages."""
    root = url_for(".index")
    ours = address.startswith(root) and _PATH.fullmatch(address) and ".." not in unquote(address)
    return address if ours else root


ROUTES = (
    get("/view", "view", Permission.VIEW, view),
    post("/view", "set_view", Permission.VIEW, set_view, token=False),
)
