"""Runs the shop's revisions on the database of the current app."""

from alembic import context
from flask import current_app
from sqlalchemy.types import TypeDecorator

settings = current_app.extensions["migrate"]
db = settings.db


def render_item(kind, item, autogen_context):
    """Write what a type of ours is to the database: revisions do not import the models."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    return False


options = {"target_metadata": db.metadata, "render_item": render_item, **settings.configure_args}

if context.is_offline_mode():
    context.configure(url=db.engine.url, literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    with db.engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
