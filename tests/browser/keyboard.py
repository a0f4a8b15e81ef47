"""A visitor who has a keyboard and nothing else."""

from __future__ import annotations

import re

from playwright.sync_api import Page

from tests.browser.site import Tab

#: How often Tab is pressed before something counts as out of reach.
MOST = 150

_FOCUSED = """() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const labels = [...(element.labels || [])].map((label) => label.cloneNode(true));
  for (const label of labels) for (const field of label.querySelectorAll("input, select, textarea")) field.remove();
  const name = element.getAttribute("aria-label") || labels.map((label) => label.textContent).join(" ")
    || element.textContent || element.value || "";
  return {
    name: name.replace(/\\s+/g, " ").trim(),
    tag: element.tagName.toLowerCase(),
    seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  };
}"""


class OutOfReach(AssertionError):
    """Tab does not lead there."""


class Keyboard:
    def __init__(self, tab: Tab, *, javascript: bool = True) -> None:
        self.tab = tab
        self.javascript = javascript
        self.page: Page = tab.page

    def go(self, address: str) -> None:
        self.tab.go(address)

    def reach(self, name: str, *, key: str = "Tab") -> None:
        """Press Tab until what bears a name, as a pattern has it, has the focus. Every stop shows that it has it."""
        passed = []
        for _ in range(MOST):
            self.page.keyboard.press(key)
            focused = self.page.evaluate(_FOCUSED)
            if focused["tag"] == "body":
                continue
            assert focused["seen"], f"the focus cannot be seen on {focused['name']!r}"
            if re.fullmatch(name, focused["name"]):
                return
            passed.append(focused["name"])
        raise OutOfReach(f"{name!r}; passed {list(dict.fromkeys(passed))}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def follow(self, name: str) -> None:
        """Reach a link or a button, and press it."""
        self.reach(name)
        self.enter()

    def enter(self) -> None:
        """Press Enter where it leads to another page."""
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def write(self, name: str, text: str) -> None:
        """Reach a field, and write into it instead of what it holds."""
        self.reach(name)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def faults(self) -> list[str]:
        """What is wrong with the page; the rules of accessibility need a script to look."""
        return self.tab.all_faults() if self.javascript else self.tab.faults
