"""What a route is. The modules of `views` and `api` list theirs as `ROUTES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from typing import TYPE_CHECKING

from flask.typing import ResponseReturnValue

from .access import Permission

if TYPE_CHECKING:
    from .api.operation import Operation

#: Takes the `Visit`, and what stands in the URL by name.
View = Callable[..., ResponseReturnValue]


@dataclass(frozen=True, slots=True)
class Route:
    """A URL under the blueprint's prefix.

    `permission` is asked for before the view is called; null opens it to all, which is for what says nothing, or asks
    for itself. A view that is about one run asks once more, for that run.
    """

    rule: str
    endpoint: str
    permission: Permission | None
    view: View
    methods: tuple[str, ...] = ("GET",)
    api: bool = False
    #: It changes nothing whatever its method, so it asks for no proof of who sent the request.
    harmless: bool = False
    #: What a JSON route takes and gives.
    operation: Operation | None = None
    #: Whether a write must bring the token of our own forms. Not where all it changes is a cookie of how things look.
    token: bool = True

    @property
    def writes(self) -> bool:
        return self.methods != ("GET",) and not self.harmless


def get(rule: str, endpoint: str, permission: Permission | None, view: View, **more: Any) -> Route:
    return Route(rule, endpoint, permission, view, **more)


def post(rule: str, endpoint: str, permission: Permission | None, view: View, **more: Any) -> Route:
    return Route(rule, endpoint, permission, view, ("POST",), **more)
