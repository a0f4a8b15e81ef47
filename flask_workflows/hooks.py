"""What the app tells the dashboard by functions of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Hook = Callable[..., Any]


@dataclass(slots=True)
class Hooks:
    """The app's functions, null where it gave none. They may be given until they are first asked.

    - `authorize(action, run=None)`: whether the visitor may do this: true, false, or a response to give instead.
      Without it nobody may do anything.
    - `scope()`: the workspaces the visitor may see: a name, several, or null for all. Asked in a request.
    - `actor()`: who the visitor is, as text for the audit.
    - `redact(path, value)`: whether to hide a value besides those hidden anyway. `path` is like `$.card.number`.
    """

    authorize: Hook | None = None
    scope: Hook | None = None
    actor: Hook | None = None
    redact: Hook | None = None

    def over(self, others: Hooks) -> Hooks:
        """These, and where there is none, the others."""
        return Hooks(*(getattr(self, name) or getattr(others, name) for name in self.__slots__))
