"""Who may see the pages: nobody, until the app says who.

The app says it by a function, `authorize(action, run=None)`. Without one the pages are closed, but for one exception
that makes a first look easy: an app in debug mode, looked at from the machine it runs on.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from typing import Literal

from flask import current_app
from flask import Request
from werkzeug.exceptions import SecurityError
from werkzeug.wrappers import Response

from .runs import Run
from .runtime import Authorize

Action = Literal["view"]

#: One of these says that the peer is a proxy, and the visitor is somebody else.
_FORWARDED = re.compile(r"(?i)forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|x-cluster-client-ip|.*connecting-ip")

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def decide(authorize: Authorize | None, action: Action, run: Run | None, request: Request) -> bool | Response:
    """Whether the visitor may do this; a response of the app's is to be given as it is.

    Raises `TypeError` when the app's function answers something else: what is neither yes nor no must not open doors.
    """
    if authorize is None:
        return current_app.debug and is_own_machine(request)

    answer: Any = current_app.ensure_sync(authorize)(action, run=run)
    if isinstance(answer, bool | Response):
        return answer
    raise TypeError(f"authorize({action!r}) returned {answer!r}: return True, False or a response")


def is_own_machine(request: Request) -> bool:
    """Whether the visitor sits at the machine that the app runs on.

    The peer alone does not say so: a proxy on the same machine is a local peer for every visitor. Nor does it without
    the host: a name that somebody points at 127.0.0.1 would bring a local peer too.
    """
    if any(_FORWARDED.fullmatch(name) for name, _ in request.headers):
        return False
    if "werkzeug.proxy_fix.orig" in request.environ:
        return False
    return _is_loopback(request.remote_addr) and _host(request) in _LOCAL_HOSTS


def _is_loopback(address: str | None) -> bool:
    try:
        peer = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback


def _host(request: Request) -> str:
    try:
        return re.sub(r":\d+$", "", request.host)
    except SecurityError:
        return ""
