"""Text contrast in light and dark: WCAG's 4.5 to 1."""

from __future__ import annotations

import re

import pytest

from midfold.pages.html import STYLE

LEAST = 4.5
TEXT_ON = [
    ("ink", "ground"), ("ink", "surface"), ("ink", "fold-soft"), ("ink", "warn-soft"), ("ground", "ink"),
    ("soft", "ground"), ("soft", "surface"), ("soft", "grid"),
    ("accent", "ground"), ("accent", "surface"), ("accent", "accent-soft"),
    ("fold", "surface"), ("change", "surface"), ("bad", "surface"), ("bad", "bad-soft"), ("warn", "warn-soft"),
]  # fmt: skip


def palettes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE.decode(), re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    assert set(light) == set(dark)
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: str) -> None:
    colours = palettes()[scheme]
    poor = {}
    for text, ground in TEXT_ON:
        high, low = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        ratio = (high + 0.05) / (low + 0.05)
        if ratio < LEAST:
            poor[text, ground] = round(ratio, 2)
    assert poor == {}
