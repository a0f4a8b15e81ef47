"""What the app tells the dashboard by functions of its own."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from flask import current_app
from flask import Flask

logger = logging.getLogger("flask_workflows")

Hook = Callable[..., Any]

#: Says of a path, such as `$.card.number`, and the value there whether the app hides it.
Hides = Callable[[str, Any], bool]


@dataclass(slots=True)
class Hooks:
    """The app's functions, null where it gave none. They may be given until they are first asked.

    - `authorize(action, run=None)`: whether the visitor may do this: true, false, or a response to give instead.
      Without it nobody may do anything.
    - `scope()`: the workspaces the visitor may see: a name, several, or null for all. Asked in a request.
    - `actor()`: who the visitor is, as text for the audit.
    - `redact(path, value)`: whether to hide a value besides those hidden anyway: true or false. `path` is like
      `$.card.number` or `$.lines[3]`, from the root of each input, output and payload; it is asked for objects and
      arrays before it is asked for what is in them. Where it fails, the value is hidden.
    """

    authorize: Hook | None = None
    scope: Hook | None = None
    actor: Hook | None = None
    redact: Hook | None = None

    def over(self, others: Hooks) -> Hooks:
        """These, and where there is none, the others."""
        return Hooks(*(getattr(self, name) or getattr(others, name) for name in self.__slots__))


#: Apps whose function failed: that is logged once.
_complained: WeakSet[Flask] = WeakSet()


def app_hides() -> Hides | None:
    """The current app's `redact`, made safe to ask; null where it gave none.

    Get it while the app's context is there, and ask it for as long as you like.
    """
    runtime: Any = current_app.extensions.get("workflows") if current_app else None
    hook = None if runtime is None else runtime.hooks.redact
    if hook is None:
        return None
    app: Flask = runtime.app
    asked = app.ensure_sync(hook)

    def hides(path: str, value: Any) -> bool:
        try:
            answer = asked(path, value)
        except Exception as error:
            _complain(app, _place(error))
            return True
        if not isinstance(answer, bool):
            _complain(app, f"it returned a {type(answer).__name__}: return True or False")
        return answer is not False

    return hides


def _complain(app: Flask, words: str) -> None:
    if app not in _complained:
        _complained.add(app)
        logger.error("redact() failed, so what it is asked about is hidden: %s", words)


def _place(error: Exception) -> str:
    """What was raised, and where. Without its message, which may be the secret itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
