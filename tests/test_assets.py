"""The style sheet and the script: how large they may be, and that their colours can be read."""

from __future__ import annotations

import gzip
import re

import pytest

from flask_workflows.paths import STATIC

CSS = (STATIC / "workflows.css").read_text(encoding="utf-8")
JS = (STATIC / "workflows.js").read_text(encoding="utf-8")

STATES = ("pending", "running", "sleeping", "waiting", "retrying", "completed", "failed", "cancelled")
SURFACES = ("bg", "surface", "sunk", "hover")

#: Text, and what it stands on.
TEXTS = [
    *(("ink", surface) for surface in SURFACES),
    *(("muted", surface) for surface in SURFACES),
    *(("accent", surface) for surface in SURFACES),
    ("warn", "warn-tint"),
    *((state, f"{state}-tint") for state in STATES),
    ("ink", "failed-tint"),
    ("failed", "surface"),
    ("failed", "sunk"),
    ("failed", "hover"),
    # The main button.
    ("surface", "accent"),
    ("surface", "ink"),
]
#: What must be seen without being read: bars, and the edges of controls.
MARKS = [
    *(("control", surface) for surface in SURFACES),
    *((f"{state}-bar", "surface") for state in STATES),
    *((f"{state}-bar", "hover") for state in STATES),
    *((f"{state}-bar", "sunk") for state in STATES),
]


def tokens(theme: str) -> dict[str, str]:
    pairs = re.findall(r"--fw-([\w-]+): light-dark\((#\w+), (#\w+)\);", CSS)
    return {name: light if theme == "light" else dark for name, light, dark in pairs}


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_computed_as_defined() -> None:
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(theme: str) -> None:
    found = tokens(theme)

    faint = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in TEXTS}

    assert {pair: round(value, 2) for pair, value in faint.items() if value < 4.5} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_mark_can_be_seen(theme: str) -> None:
    found = tokens(theme)

    faint = {pair: contrast(found[pair[0]], found[pair[1]]) for pair in MARKS}

    assert {pair: round(value, 2) for pair, value in faint.items() if value < 3} == {}


def test_every_colour_is_a_token_in_both_themes() -> None:
    outside = re.sub(r"light-dark\(#\w+, #\w+\)", "", CSS)
    colours = re.findall(r"#[0-9a-f]{3,8}\b(?! *[{>:,])|\brgba?\(|\bhsla?\(|\boklch\(", outside)

    assert colours == []
    assert len(tokens("light")) == len(re.findall("light-dark", CSS))


def test_every_token_used_is_there() -> None:
    used = set(re.findall(r"var\(--fw-([\w-]+)", CSS))
    declared = set(re.findall(r"--fw-([\w-]+):", CSS))

    assert used - declared == set()


def test_directions_are_logical() -> None:
    """So that the pages can be read from right to left."""
    physical = re.findall(
        r"(?:margin|padding|border)-(?:left|right)|text-align: (?:left|right)|[{;] *(?:left|right):", CSS
    )

    assert physical == []


def test_every_class_is_ours() -> None:
    assert {
        name for name in re.findall(r"\.([a-z][\w-]*)", re.sub(r"/\*.*?\*/", "", CSS)) if not is_ours(name)
    } == set()


def is_ours(name: str) -> bool:
    return name == "fw" or name.startswith("fw-")


@pytest.mark.parametrize(("name", "text", "most"), [("workflows.js", JS, 6_000), ("workflows.css", CSS, 8_000)])
def test_file_is_small(name: str, text: str, most: int) -> None:
    assert len(gzip.compress(text.encode(), 9)) < most, name


def test_script_makes_no_code_of_text() -> None:
    assert not re.search(r"\beval\b|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", JS)
