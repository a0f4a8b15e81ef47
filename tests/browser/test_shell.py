"""The bar around every page, and how the visitor wants to see them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from playwright.sync_api import Page

from flask_workflows.dashboard.views import LINKS
from tests.browser.site import PHONE
from tests.browser.site import Visitors
from tests.browser.world import World

RUNS = "/workflows/runs"


def background(page: Page) -> str:
    found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def focused(page: Page) -> str:
    """The text of what has the focus."""
    found: str = page.evaluate("document.activeElement.textContent.trim()")
    return found


def first_run(page: Page) -> str:
    return (page.locator("tbody a").first.text_content() or "").strip()


def row_height(page: Page) -> float:
    box = page.locator("tbody tr").first.bounding_box()
    assert box is not None
    return box["height"]


@pytest.mark.parametrize("javascript", [True, False])
def test_colours_and_rows_can_be_chosen_in_the_bar(world: World, visitors: Visitors, javascript: bool) -> None:
    page = visitors.tab(world.site, javascript=javascript).go(f"{RUNS}?limit=25")
    light = page.locator("body").screenshot()
    tall = row_height(page)

    page.locator("details.fw-menu summary").click()
    page.get_by_label("Colours").select_option("dark")
    page.get_by_label("Spacing").select_option("compact")
    page.get_by_role("button", name="Save").click()

    expect(page.locator("#fw-done")).to_have_text("Saved in this browser.")
    assert page.url.endswith(f"{RUNS}?limit=25")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.locator("body").screenshot() != light
    assert row_height(page) < tall


def test_chosen_colours_go_before_the_systems(world: World, visitors: Visitors) -> None:
    tab = visitors.tab(world.site, scheme="dark")
    page = tab.go(RUNS)
    dark = background(page)
    tab.show(scheme="light")
    light = background(page)
    assert dark != light

    for theme, shown in (("dark", dark), ("light", light)):
        page.context.add_cookies(
            [{"name": "workflows_view", "value": f"theme={theme}", "url": f"{tab.origin}/workflows/"}]
        )
        for scheme in ("dark", "light"):
            tab.show(scheme=scheme)
            tab.go(RUNS)
            assert background(page) == shown
    assert tab.violations("color-contrast") == []


@pytest.mark.parametrize("javascript", [True, False])
def test_line_after_an_action_has_the_focus(world: World, visitors: Visitors, javascript: bool) -> None:
    page = visitors.tab(world.site, javascript=javascript).go("/workflows/view")

    page.locator("main").get_by_role("button", name="Save").click()

    line = page.locator("#fw-done")
    expect(line).to_be_visible()
    expect(line).to_be_focused()
    page.reload()
    expect(line).to_have_count(0)


def test_times_follow_the_browsers_zone_until_one_is_chosen(world: World, visitors: Visitors) -> None:
    tab = visitors.tab(world.site, zone="Asia/Tokyo")

    page = tab.go(RUNS)
    expect(page.locator(".fw-zone")).to_have_text("Asia/Tokyo")
    expect(page.locator("tbody").get_by_text("20:5", exact=False).first).to_be_visible()

    tab.go("/workflows/view")
    page.get_by_label("Time zone").select_option("Europe/Paris")
    page.locator("main").get_by_role("button", name="Save").click()
    expect(page.locator(".fw-zone")).to_have_text("Europe/Paris")
    tab.go(RUNS)
    expect(page.locator(".fw-zone")).to_have_text("Europe/Paris")

    tab.go("/workflows/view")
    page.get_by_label("Time zone").select_option("")
    page.locator("main").get_by_role("button", name="Save").click()
    expect(page.locator(".fw-zone")).to_have_text("Asia/Tokyo")


def test_menu_closes_by_escape_and_by_a_click_elsewhere(world: World, visitors: Visitors) -> None:
    page = visitors.tab(world.site).go(RUNS)
    menu = page.locator("details.fw-menu")
    summary = menu.locator("summary")

    summary.press("Enter")
    expect(menu).to_have_attribute("open", "")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    expect(summary).to_be_focused()

    summary.click()
    expect(menu).to_have_attribute("open", "")
    page.locator("h1").click()
    expect(menu).not_to_have_attribute("open", "")


# Keys ----------------------------------------------------------------------------------------


def with_keys(world: World, visitors: Visitors, address: str = RUNS) -> Page:
    tab = visitors.tab(world.site)
    cookie = {"name": "workflows_view", "value": "keys=on", "url": f"{tab.origin}/workflows/"}
    tab.page.context.add_cookies([cookie])  # type: ignore[list-item]
    return tab.go(address)


def test_single_keys_do_nothing_until_they_are_switched_on(world: World, visitors: Visitors) -> None:
    """WCAG 2.1.4"""
    tab = visitors.tab(world.site)
    page = tab.go(RUNS)

    for key in ("/", "j", "o", "x", "?", "g", "r"):
        page.keyboard.press(key)

    assert page.evaluate("document.activeElement === document.body")
    assert page.url.endswith(RUNS)

    tab.go("/workflows/view")
    page.get_by_label("Keys as shortcuts").select_option("on")
    page.locator("main").get_by_role("button", name="Save").click()
    tab.go(RUNS)
    page.keyboard.press("j")
    assert focused(page) == first_run(page)


def test_keys_lead_through_the_rows(world: World, visitors: Visitors) -> None:
    page = with_keys(world, visitors)
    names = [link.text_content() or "" for link in page.locator("tbody td.fw-lead a").all()]

    seen = []
    for key in ("j", "j", "j", "k"):
        page.keyboard.press(key)
        seen.append(focused(page))

    assert [text.split() for text in seen] == [names[at].split() for at in (0, 1, 2, 1)]
    page.keyboard.press("o")
    expect(page).to_have_url(re.compile("/workflows/run/"))


def test_keys_lead_to_pages_and_to_the_filter(world: World, visitors: Visitors) -> None:
    page = with_keys(world, visitors)

    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("jx?g")
    assert page.evaluate("document.activeElement.value") == "jx?g"
    page.keyboard.press("Escape")
    page.locator("h1").click()

    page.keyboard.press("?")
    expect(page).to_have_url(re.compile("/workflows/view$"))
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page).to_have_url(re.compile("/workflows/runs$"))
    page.keyboard.press("Control+g")
    page.keyboard.press("j")
    assert focused(page) == first_run(page)


# The bar -------------------------------------------------------------------------------------


@pytest.mark.parametrize("javascript", [True, False])
def test_every_link_of_the_bar_can_be_reached_on_a_phone(world: World, visitors: Visitors, javascript: bool) -> None:
    page = visitors.tab(world.site, size=PHONE, javascript=javascript).go(RUNS)

    for link in LINKS:
        found = page.locator(".fw-nav").get_by_role("link", name=re.compile(f"^{link.label}"))
        found.focus()
        box = found.bounding_box()
        assert box is not None
        assert box["x"] >= 0, link.label
        assert box["x"] + box["width"] <= PHONE[0], link.label
        assert box["height"] >= 24, link.label


def test_first_tab_leads_past_the_bar(world: World, visitors: Visitors) -> None:
    page = visitors.tab(world.site).go(RUNS)

    page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")


def test_what_has_the_focus_is_not_under_the_bar(world: World, visitors: Visitors) -> None:
    """WCAG 2.4.11"""
    page = visitors.tab(world.site, size=(1280, 400)).go(RUNS)
    bar = page.locator(".fw-top").bounding_box()
    assert bar is not None
    page.locator("tbody a").last.focus()

    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        top = page.evaluate("document.activeElement.getBoundingClientRect().top")
        inside = page.evaluate("document.activeElement.closest('.fw-top, .fw-skip') !== null")
        assert inside or top >= bar["height"]


def test_states_are_told_apart_without_colours(world: World, visitors: Visitors) -> None:
    page = visitors.tab(world.site, forced_colors="active").go(RUNS)

    badge = page.locator(".fw-state").first
    assert badge.evaluate("badge => getComputedStyle(badge).borderTopStyle") == "solid"
    expect(badge.locator("svg")).to_be_visible()
    assert badge.inner_text().strip()


def test_page_reads_from_right_to_left(world: World, visitors: Visitors) -> None:
    tab = visitors.tab(world.site, size=PHONE)
    page = tab.go(f"/workflows/run/{world.runs['failed']}")

    page.evaluate("document.documentElement.dir = 'rtl'")

    assert tab.sideways() == 0
    (heading,) = [box for box in [page.locator("h1").bounding_box()] if box is not None]
    assert heading["x"] + heading["width"] > PHONE[0] - 20


def test_text_can_be_made_twice_as_large(world: World, visitors: Visitors) -> None:
    """WCAG 1.4.4 and 1.4.10: a window of 1280 pixels at 400 % is one of 320."""
    tab = visitors.tab(world.site, size=(320, 256))

    for address in (RUNS, f"/workflows/run/{world.runs['failed']}", "/workflows/view"):
        tab.go(address)
        assert tab.sideways() == 0, address


def test_text_may_be_spaced_out(world: World, visitors: Visitors) -> None:
    """WCAG 1.4.12"""
    tab = visitors.tab(world.site, size=PHONE, bypass_csp=True)
    for address in (RUNS, f"/workflows/run/{world.runs['failed']}"):
        page = tab.go(address)
        page.add_style_tag(
            content="* { line-height: 1.5 !important; letter-spacing: .12em !important; word-spacing: .16em !important }"
            " p { margin-block-end: 2em !important }"
        )
        assert tab.sideways() == 0, address
        cut = page.evaluate(
            """[...document.querySelectorAll("main :is(p, a, button, h1, h2, dd, dt, summary)")].filter((element) =>
              element.clientHeight && getComputedStyle(element).overflowY !== "visible"
              && element.scrollHeight > element.clientHeight + 1).map((element) => element.textContent)"""
        )
        assert cut == [], address
