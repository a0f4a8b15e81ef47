"""The shop's own command."""

from __future__ import annotations

import click
from flask import Flask

from example_app import shop
from example_app.extensions import db


def init_app(app: Flask) -> None:
    app.cli.add_command(seed)


@click.command()
def seed() -> None:
    """Put the courses in."""
    shop.seed_courses()
    db.session.commit()
