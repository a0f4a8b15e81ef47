"""Whether a request that changes something was meant by the visitor.

Three checks, each of which stops a page of another site: what the browser says of the request's origin
(`Sec-Fetch-Site`, `Origin`), and a token that only our own pages hold. The token is signed with the app's `SECRET_KEY`,
names the visitor, and is good for a day.

A caller without cookies, or with a bearer token, sends no credentials by itself, so it needs no token.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import current_app
from flask import Request
from flask import session
from itsdangerous import BadData
from itsdangerous import URLSafeTimedSerializer

FIELD = "workflows_token"
HEADER = "X-Workflows-Token"
_SALT = "flask_workflows.csrf"
#: For how long a token is good.
SECONDS = 86_400


def can_act() -> bool:
    """Whether the app has the key that tokens are signed with."""
    return bool(current_app.secret_key)


def token(visitor: str) -> str:
    """The token for this visitor's forms; empty where the app has no `SECRET_KEY`."""
    return _serializer().dumps(_holder(visitor)) if can_act() else ""


def problem(request: Request, visitor: str, *, api: bool, token: bool = True) -> str | None:
    """Why the request is refused, in words; null where it may pass. Without `token` its origin alone is looked at."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        return f"It comes from another site: the browser says {site!r}."
    origin = request.headers.get("Origin")
    if origin is not None and not _is_ours(origin, request):
        return (
            f"It comes from another origin, {origin[:100]!r}; behind a proxy, the app needs ProxyFix to know its own."
        )
    if not token or (api and (_is_bearer(request) or not request.cookies)):
        return None
    if not can_act():
        return "The app has no SECRET_KEY, which the forms are signed with. Set one."
    given = request.headers.get(HEADER) or ("" if api else request.form.get(FIELD, ""))
    if not given:
        return f"It has no token: send the header {HEADER}." if api else "The form came without its token."
    try:
        holder = _serializer().loads(given, max_age=SECONDS)
    except BadData:
        return "Its token is not ours, or is older than a day. Load the page again."
    return None if holder == _holder(visitor) else "Its token was given to somebody else. Load the page again."


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(current_app.secret_key or "", salt=_SALT)


def _holder(visitor: str) -> list[str]:
    # Flask-Login renews the second when somebody signs in or out.
    return [visitor, str(session.get("_id", ""))] if session else [visitor, ""]


def _is_ours(origin: str, request: Request) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return (parts.scheme, parts.netloc) == (request.scheme, request.host)


def _is_bearer(request: Request) -> bool:
    return request.authorization is not None and request.authorization.type == "bearer"
