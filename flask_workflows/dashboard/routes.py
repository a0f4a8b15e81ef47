"""What a route is. The modules of `views` and `api` list theirs as `ROUTES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask.typing import ResponseReturnValue

from .access import Permission

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

    @property
    def writes(self) -> bool:
        return self.methods != ("GET",)


def get(rule: str, endpoint: str, permission: Permission | None, view: View, **more: Any) -> Route:
    return Route(rule, endpoint, permission, view, **more)


def post(rule: str, endpoint: str, permission: Permission | None, view: View, **more: Any) -> Route:
    return Route(rule, endpoint, permission, view, ("POST",), **more)
