"""The site that most browser tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field

from tests import apps
from tests.browser.site import served
from tests.browser.site import Site
from tests.everything import find_addresses
from tests.everything import make_workflows
from tests.everything import populate
from tests.everything import StandingClock


@dataclass
class World:
    """The site, the ids of some of its runs by what they show, and the addresses of its pages."""

    site: Site
    runs: Mapping[str, str]
    _addresses: dict[str, list[str]] = field(default_factory=dict)

    def addresses(self, endpoint: str) -> list[str]:
        """Addresses of an endpoint's pages: those of the runs here, and those that other pages lead to."""
        if not self._addresses:
            self._addresses = find_addresses(self.site.app, self.runs)
        return self._addresses.get(endpoint, [])


@contextmanager
def make_world(url: str) -> Iterator[World]:
    workflows = make_workflows()
    workflows.clock = StandingClock()
    app = apps.make_app(url, workflows=workflows)
    runs = populate(app, workflows)
    with served(app) as origin:
        yield World(Site(app, origin), runs)
