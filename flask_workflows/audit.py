"""Who did what to which run: what an operator's action carries, to be kept with it."""

from __future__ import annotations

from dataclasses import dataclass

from .failures import storable

_LIMITS = {"actor": 255, "reason": 2_000, "request_id": 100, "address": 100}


@dataclass(frozen=True, slots=True)
class By:
    """Who acts and why. An action that is given one leaves a row in `workflow_audit`, in its own transaction.

    What is too long to be kept is cut.
    """

    #: A name the app knows its people by; empty where it knows none.
    actor: str
    reason: str = ""
    #: The id of the HTTP request, where the app or its proxy gives them one.
    request_id: str | None = None
    #: Where the request came from, where `WORKFLOWS_AUDIT_ADDRESS` asks for it.
    address: str | None = None
    #: The run that acts on many others for this person.
    operation: str | None = None

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, storable(text[:limit], limit))
