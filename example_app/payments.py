"""A payment service of its own: `flask --app example_app.payments run --port 5081`.

It does what such services do. A charge needs an Idempotency-Key; the same key gives the
first receipt again and charges nothing. Some cards misbehave, told by their last digits:

====  =====================================================================
0002  declined by the bank: 402
0500  the service is down for it: always 503
0503  the first try fails, the second charges but its answer is lost: 503, 503, then 200
2000  charges at once and takes its time to answer (EXAMPLE_PAYMENTS_SLOW_SECONDS)
====  =====================================================================

With EXAMPLE_PAYMENTS_FAIL_EVERY=4 every fourth request gets a 503, whatever the card.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from decimal import Decimal
from decimal import InvalidOperation
from typing import Any

from flask import Blueprint
from flask import current_app
from flask import Flask
from flask import jsonify
from flask import request
from flask import Response
from werkzeug.exceptions import HTTPException

DEFAULTS: dict[str, Any] = {
    "EXAMPLE_PAYMENTS_DATABASE": "payments.sqlite3",
    "EXAMPLE_PAYMENTS_FAIL_EVERY": 0,
    "EXAMPLE_PAYMENTS_SLOW_SECONDS": 5,
}

SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY,
    idempotency_key TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS ix_requests_key ON requests (idempotency_key);
CREATE TABLE IF NOT EXISTS charges (
    id TEXT PRIMARY KEY,
    idempotency_key TEXT NOT NULL UNIQUE,
    card TEXT NOT NULL,
    amount TEXT NOT NULL
);
"""

bp = Blueprint("payments", __name__)


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(DEFAULTS)
    app.config.from_mapping({key: os.environ[key] for key in DEFAULTS if key in os.environ})
    app.config.from_mapping(config)
    app.register_blueprint(bp)
    app.register_error_handler(HTTPException, _as_json)
    with app.app_context(), _transaction() as database:
        for statement in SCHEMA.split(";"):
            database.execute(statement)
    return app


@bp.post("/charges")
def create_charge() -> tuple[Response, int]:
    key = request.headers.get("Idempotency-Key", "")
    if not key:
        return _error("missing_key", "Send an Idempotency-Key with each charge.", 400)
    try:
        card, amount = str(request.json["card"]), Decimal(request.json["amount"])
    except (KeyError, TypeError, InvalidOperation):
        return _error("bad_request", "Send a card and an amount.", 400)

    with _transaction() as database:
        tries = _count_request(database, key)
        if _fails_now(database):
            return _error("unavailable", "Try again later.", 503)
        if card.endswith("0500") or (card.endswith("0503") and tries == 1):
            return _error("unavailable", "Try again later.", 503)
        if card.endswith("0002"):
            return _error("card_declined", "The bank declined the card.", 402)
        receipt, charged = _charge_once(database, key, card, amount)

    if (receipt["card"], receipt["amount"]) != (card, str(amount)):
        return _error("key_reused", "This key was used for another charge.", 422)
    if charged and card.endswith("2000"):
        time.sleep(float(current_app.config["EXAMPLE_PAYMENTS_SLOW_SECONDS"]))
    if charged and card.endswith("0503"):
        return _error("unavailable", "The charge went through, but you are not told.", 503)
    return jsonify(receipt), 201 if charged else 200


@bp.get("/charges")
def list_charges() -> Response:
    """Show all that was charged, with the number of times each was asked for."""
    with _transaction() as database:
        rows = database.execute(
            "SELECT id, idempotency_key, card, amount, (SELECT count(*) FROM requests"
            " WHERE requests.idempotency_key = charges.idempotency_key) AS requests"
            " FROM charges ORDER BY rowid"
        ).fetchall()
    return jsonify([dict(row) for row in rows])


@contextmanager
def _transaction() -> Iterator[sqlite3.Connection]:
    path = current_app.config["EXAMPLE_PAYMENTS_DATABASE"]
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    database.row_factory = sqlite3.Row
    try:
        # Takes the write lock at once: two requests with one key come after each other.
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")
    finally:
        database.close()


def _count_request(database: sqlite3.Connection, key: str) -> int:
    """Note the request and return how many there were with this key, it included."""
    database.execute("INSERT INTO requests (idempotency_key) VALUES (?)", (key,))
    row = database.execute("SELECT count(*) FROM requests WHERE idempotency_key = ?", (key,)).fetchone()
    return int(row[0])


def _fails_now(database: sqlite3.Connection) -> bool:
    every = int(current_app.config["EXAMPLE_PAYMENTS_FAIL_EVERY"])
    if every < 1:
        return False
    total = database.execute("SELECT count(*) FROM requests").fetchone()[0]
    return int(total) % every == 0


def _charge_once(database: sqlite3.Connection, key: str, card: str, amount: Decimal) -> tuple[dict[str, str], bool]:
    """Return the receipt of this key and whether it was made just now."""
    made = database.execute(
        "INSERT INTO charges (id, idempotency_key, card, amount)"
        " VALUES ('rcpt_' || lower(hex(randomblob(8))), ?, ?, ?)"
        " ON CONFLICT (idempotency_key) DO NOTHING",
        (key, card, str(amount)),
    ).rowcount
    row = database.execute("SELECT id, card, amount FROM charges WHERE idempotency_key = ?", (key,)).fetchone()
    return dict(row), made == 1


def _error(error: str, message: str, status: int) -> tuple[Response, int]:
    return jsonify(error=error, message=message), status


def _as_json(error: HTTPException) -> tuple[Response, int]:
    return _error(error.name.lower().replace(" ", "_"), error.description or "", error.code or 500)
