"""The extensions, made without an app so that any module may import them."""

from __future__ import annotations

from flask import request
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy

from example_app.models import Base
from flask_workflows import Workflows

db = SQLAlchemy(metadata=Base.metadata)
migrate = Migrate()
workflows = Workflows()


@workflows.authorize
def only_from_this_machine(action: str, run: object = None) -> bool:
    """Let in whoever sits at this machine: the shop has no staff accounts.

    An app with a log-in asks it here, as in `current_user.is_staff`.
    """
    return request.remote_addr in {"127.0.0.1", "::1"}


@workflows.actor
def whoever_sits_there() -> str:
    """Who acts, for the audit: without accounts, no more than where from."""
    return f"somebody at {request.remote_addr}"
