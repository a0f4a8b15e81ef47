"""Every page there is, in light, in dark and on a phone. A new page is looked at as soon as its route is listed."""

from __future__ import annotations

import pytest

from flask_workflows.dashboard import views
from tests.browser.site import Visitors
from tests.browser.world import World

#: What is fetched and not looked at.
FILES = {"asset", "value", "step_value"}

PAGES = sorted({route.endpoint for route in views.ROUTES if not route.writes and not route.api} - FILES)

MESSAGES = [
    ("/workflows/run/unknown", 404),
    ("/workflows/runs?status=nope", 422),
    ("/workflows/runs?q=colour:red", 422),
    ("/workflows/runs?key=none", 200),
]


@pytest.mark.parametrize("endpoint", PAGES)
def test_page_has_no_fault(world: World, visitors: Visitors, endpoint: str) -> None:
    """B107: no violation, no error, nothing from elsewhere."""
    addresses = world.addresses(endpoint)
    assert addresses, f"no address of {endpoint} is known: link to it, or give `world` a run that has it"
    tab = visitors.tab(world.site)

    for address in addresses:
        tab.go(address)
        assert tab.all_faults(again=address != addresses[0]) == [], address


@pytest.mark.parametrize(("address", "status"), MESSAGES)
def test_page_that_says_one_thing_has_no_fault(world: World, visitors: Visitors, address: str, status: int) -> None:
    tab = visitors.tab(world.site)

    tab.go(address, status)

    assert tab.all_faults() == []


@pytest.mark.parametrize("endpoint", PAGES)
def test_page_can_be_read_without_script(world: World, visitors: Visitors, endpoint: str) -> None:
    tab = visitors.tab(world.site, javascript=False)

    for address in world.addresses(endpoint):
        page = tab.go(address)
        assert page.locator("h1").count() == 1, address
        assert page.locator("main").inner_text().strip(), address
        # What only the script brings to life is not shown.
        for hidden in page.locator(".fw-js").all():
            assert not hidden.is_visible(), address
        if page.locator("[data-live]").count():
            assert page.get_by_role("link", name="Refresh").is_visible(), address
