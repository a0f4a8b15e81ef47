"""How a visitor wants the pages to look. It is kept in one cookie, in the visitor's own browser.

The cookie is a query string, read leniently: what is unknown in it is as if it were not there. The script writes to it
too: the zone the browser is in, which holds as long as the visitor chose none.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from functools import cache
from typing import Self
from urllib.parse import parse_qsl
from urllib.parse import urlencode
from zoneinfo import available_timezones

COOKIE = "workflows_view"
SECONDS = 31_536_000

#: By field, the values there are and what they are called; the first is what holds until another is chosen.
CHOICES: Mapping[str, Mapping[str, str]] = {
    "theme": {"auto": "As the system has it", "light": "Light", "dark": "Dark"},
    "density": {"normal": "Normal", "compact": "Compact"},
    "keys": {"off": "Off", "on": "On"},
}


class UnknownChoice(ValueError):
    """There is no such theme, density or zone."""


@dataclass(frozen=True, slots=True)
class Preferences:
    #: The zone that times are told in; empty: the browser's.
    zone: str = ""
    #: The zone the browser says it is in; empty until it said so.
    browser: str = ""
    theme: str = "auto"
    density: str = "normal"
    #: Whether single keys are shortcuts.
    keys: str = "off"

    @classmethod
    def of(cls, cookie: str) -> Self:
        """Read the cookie, whatever stands in it."""
        known = {field.name for field in fields(cls)}
        found = {name: value for name, value in parse_qsl(cookie[:500]) if name in known}
        return cls(**{name: value for name, value in found.items() if value in CHOICES.get(name, {value})})

    def changed(self, given: Mapping[str, str]) -> Self:
        """These with what a form says; what it leaves out stays. Raises `UnknownChoice`."""
        changes = {name: given[name] for name in (*CHOICES, "zone") if name in given}
        for name, value in changes.items():
            if value not in CHOICES.get(name, {"", *zones()}):
                raise UnknownChoice(f"There is no {name} {value[:100]!r}.")
        return replace(self, **changes)

    def __str__(self) -> str:
        """What the cookie holds: nothing that is so anyway."""
        plain = type(self)()
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return urlencode({name: value for name, value in chosen.items() if value != getattr(plain, name)})


@cache
def zones() -> tuple[str, ...]:
    """The zones to choose from: UTC, and those named after places."""
    left_out = ("Etc/", "SystemV/", "US/", "posix/", "right/")
    places = (name for name in available_timezones() if "/" in name and not name.startswith(left_out))
    return ("UTC", *sorted(places))


def letters(sections: Iterable[str]) -> dict[str, str]:
    """The key that leads to each section: its first letter that none before it has."""
    found: dict[str, str] = {}
    for section in sections:
        found[section] = next((letter for letter in section if letter not in found.values()), "")
    return found
