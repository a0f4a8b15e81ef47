"""Acting: a form of its own for each action, checked, done once, and told.

An action has a page that says what it will do (GET) and is done by a POST to the same address. What was filled in wrong
brings the page back with 422, everything typed still in it. What is no longer as the page showed it brings it back with
409, and says what happened meanwhile. What was done leads on with 303, and the next page says so.
"""

from __future__ import annotations

import re
from uuid import uuid4

from ..errors import KeyBusy
from ..errors import KeyTaken
from ..errors import RunChanged
from ..errors import RunFinished
from ..errors import RunNotFailed
from ..errors import RunNotLost
from ..errors import RunNotPaused
from ..errors import RunNotSleeping
from ..errors import StepNotFound
from .access import Permission
from .visit import Visit

#: Things are not as the page showed them, and nothing was done: to be answered 409.
CONFLICTS = (
    *(RunChanged, RunFinished, RunNotFailed, RunNotSleeping, RunNotPaused, RunNotLost),
    *(StepNotFound, KeyTaken, KeyBusy),
)

#: Of a reason, in characters.
REASON_LIMIT = 1_000


class Wrong(Exception):
    """What was filled in cannot be done: the field, and what to say there. To be answered 422."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field
        self.words = words


class Form:
    """What stands in the form of an action, and what is wrong with it.

    A page that asks has one that nobody filled in yet. The names of its fields are the form's own; `reason` is in each.
    """

    def __init__(self, visit: Visit, action: Permission, *, sent: bool | None = None) -> None:
        self.action = action
        #: A page may ask by POST too, and then says that its form was not sent yet.
        self.sent = visit.request.method == "POST" if sent is None else sent
        #: What to say at a field, by its name.
        self.errors: dict[str, str] = {}
        self.needs_reason = action in visit.runtime.config.require_reason
        self._given = visit.request.form
        if self.sent:
            self._check_reason()

    def _check_reason(self) -> None:
        reason = self.text("reason")
        if self.needs_reason and not reason.strip():
            self.refuse("reason", "Say why. The app asks for a reason here, and keeps it with what was done.")
        elif len(reason) > REASON_LIMIT:
            self.refuse("reason", f"Shorten it: {REASON_LIMIT:,} characters are kept, these are {len(reason):,}.")
        elif "\x00" in reason:
            self.refuse("reason", "There is a character in it that cannot be stored.")

    @property
    def ok(self) -> bool:
        """Whether it was sent, and nothing is wrong with it."""
        return self.sent and not self.errors

    @property
    def first_error(self) -> str:
        """The field to put the focus on; empty if nothing is wrong."""
        return next(iter(self.errors), "")

    def text(self, name: str, default: str = "") -> str:
        """What was typed, as it was typed."""
        return self._given.get(name, default)

    def number(self, name: str) -> int | None:
        """A whole number that the form carries; null for anything else."""
        text = self.text(name)
        return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None

    def refuse(self, name: str, words: str) -> None:
        """Say at a field what is wrong with it."""
        self.errors.setdefault(name, words)

    @property
    def once(self) -> str:
        """A token made with the form: a second POST of the same form carries it again, so that it can do nothing."""
        given = self.text("once")
        return given if re.fullmatch(r"[0-9a-f]{32}", given) else uuid4().hex
