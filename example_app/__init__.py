"""A course shop: the kind of app that has work spanning days.

It is an ordinary Flask app on Flask-SQLAlchemy and Flask-Migrate. The part worth
reading is workflows.py; `python -m example_app` runs everything at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Flask

from example_app import cli
from example_app import csrf
from example_app import views
from example_app.extensions import db
from example_app.extensions import migrate
from example_app.extensions import workflows

DEFAULTS: dict[str, Any] = {
    # For development only: set FLASK_SECRET_KEY anywhere else.
    "SECRET_KEY": "dev",
    "SQLALCHEMY_DATABASE_URI": "sqlite:///shop.sqlite3",
    # The dashboard is open to this machine, so other host names must not lead here.
    "TRUSTED_HOSTS": ["localhost", "127.0.0.1", "[::1]"],
    "EXAMPLE_SMTP_HOST": "127.0.0.1",
    "EXAMPLE_SMTP_PORT": 5025,
    "EXAMPLE_MAIL_FROM": "Course shop <shop@example.com>",
    "EXAMPLE_MAILBOX": "",
    "EXAMPLE_PAYMENTS_URL": "http://127.0.0.1:5081",
}


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Make the shop.

    Each key of DEFAULTS can be set in the environment: EXAMPLE_… under its own name,
    the others with FLASK_ before it. `config` goes over both.
    """
    app = Flask(__name__)
    app.config.from_mapping(DEFAULTS)
    app.config.from_prefixed_env()
    app.config.from_mapping(
        {key: os.environ[key] for key in DEFAULTS if key.startswith("EXAMPLE_") and key in os.environ}
    )
    app.config.from_mapping(config)

    db.init_app(app)
    # By default Flask-Migrate looks in the working directory, whichever that is.
    migrate.init_app(app, db, directory=str(Path(__file__).parent / "migrations"))
    workflows.init_app(app)
    csrf.init_app(app)
    views.init_app(app)
    cli.init_app(app)
    return app
