"""Every page there is, in light, in dark and on a phone. A new page is looked at as soon as its route is listed."""

from __future__ import annotations

import pytest

from flask_workflows.dashboard import views
from tests.browser.site import PHONE
from tests.browser.site import Tab
from tests.browser.site import Visitors
from tests.browser.world import World

#: What is fetched and not looked at.
FILES = {"asset", "value", "step_value"}

PAGES = sorted({route.endpoint for route in views.ROUTES if not route.writes and not route.api} - FILES)

MESSAGES = [("/workflows/run/unknown", 404), ("/workflows/runs?status=nope", 422), ("/workflows/runs?key=none", 200)]


def look_at(tab: Tab) -> list[str]:
    """What is wrong with the page: by any rule of WCAG 2.2 AA, of the policy and of ours, each way it can be seen."""
    found = tab.violations()
    found += [f"in the dark: {violation}" for violation in _seen_in_the_dark(tab)]
    tab.show(size=PHONE)
    found += [f"on a phone: {violation}" for violation in tab.violations()]
    if beyond := tab.sideways():
        found.append(f"on a phone it scrolls sideways by {beyond} px")
    tab.show()
    if beyond := tab.sideways():
        found.append(f"it scrolls sideways by {beyond} px")
    return found + tab.faults


def _seen_in_the_dark(tab: Tab) -> list[str]:
    # The same page in other colours.
    tab.show(scheme="dark")
    return tab.violations("color-contrast", "link-in-text-block")


@pytest.mark.parametrize("endpoint", PAGES)
def test_page_has_no_fault(world: World, visitors: Visitors, endpoint: str) -> None:
    """B107: no violation, no error, nothing from elsewhere."""
    addresses = world.addresses(endpoint)
    assert addresses, f"no address of {endpoint} is known: link to it, or give `world` a run that has it"
    tab = visitors.tab(world.site)

    for address in addresses:
        tab.go(address)
        assert look_at(tab) == [], address


@pytest.mark.parametrize(("address", "status"), MESSAGES)
def test_page_that_says_one_thing_has_no_fault(world: World, visitors: Visitors, address: str, status: int) -> None:
    tab = visitors.tab(world.site)

    tab.go(address, status)

    assert look_at(tab) == []


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
