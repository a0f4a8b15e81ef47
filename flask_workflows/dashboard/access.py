"""Who may see and do what: nobody anything, until the app says who.

The app says it by a function, `authorize(action, run=None)`. Without one the pages are closed, but for one exception
that makes a first look easy: an app in debug mode, looked at from the machine it runs on.

A visitor may be confined to workspaces by a second function, `scope()`. What lies outside is not there for them: it is
in no list, no count, and its ids are unknown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from flask import current_app
from flask import Request
from werkzeug.exceptions import SecurityError
from werkzeug.wrappers import Response

from ..hooks import Hook
from ..runs import Run


class Permission(StrEnum):
    """What is asked for. Its `group` is the coarser name: `workflows.view` to look, `workflows.manage` to act."""

    VIEW = "view"
    #: Inputs, outputs and the payloads of events, redacted as they are everywhere.
    VIEW_PAYLOAD = "view_payload"
    VIEW_AUDIT = "view_audit"
    VIEW_SYSTEM = "view_system"
    START = "start"
    CANCEL = "cancel"
    RETRY = "retry"
    WAKE = "wake"
    #: Pausing and resuming.
    PAUSE = "pause"
    DELIVER = "deliver"
    SEND = "send"
    RELEASE = "release"
    #: One action on many runs; the action's own permission is asked for too.
    BULK = "bulk"

    @property
    def group(self) -> str:
        return "workflows.view" if self.looks else "workflows.manage"

    @property
    def looks(self) -> bool:
        """Whether it changes nothing."""
        return self.startswith("view")


#: One of these says that the peer is a proxy, and the visitor is somebody else.
_FORWARDED = re.compile(r"(?i)forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|x-cluster-client-ip|.*connecting-ip")

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def decide(authorize: Hook | None, action: Permission, run: Run | None, request: Request) -> bool | Response:
    """Whether the visitor may do this; a response of the app's is to be given as it is.

    Raises `TypeError` when the app's function answers something else: what is neither yes nor no must not open doors.
    """
    if authorize is None:
        return current_app.debug and is_own_machine(request)

    answer: Any = current_app.ensure_sync(authorize)(action, run=run)
    if isinstance(answer, bool | Response):
        return answer
    raise TypeError(f"authorize({action.value!r}) returned {answer!r}: return True, False or a response")


def workspaces(scope: Hook | None) -> tuple[str, ...] | None:
    """The workspaces the visitor may see, sorted; null for all. Raises `TypeError` for an answer that says neither."""
    if scope is None:
        return None
    answer: Any = current_app.ensure_sync(scope)()
    match answer:
        case None:
            return None
        case str() | int():
            return (str(answer),)
        case Iterable():
            names = tuple(answer)
            if all(isinstance(name, str | int) for name in names):
                return tuple(sorted({str(name) for name in names}))
    raise TypeError(f"scope() returned {answer!r}: return a workspace, several, or None for all")


def actor_of(actor: Hook | None) -> str:
    """Who the visitor is, for the audit: what the app says, else Flask-Login's user; empty if nobody knows."""
    if actor is not None:
        answer = current_app.ensure_sync(actor)()
        return "" if answer is None else str(answer)[:255]
    if getattr(current_app, "login_manager", None) is None:
        return ""
    from flask_login import current_user  # type: ignore[import-not-found, import-untyped, unused-ignore]

    found = current_user.get_id()
    return "" if found is None else str(found)[:255]


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
