"""The colours of pages: every text can be read on every ground, in both schemes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from gantry_broker import theme

DAY = {name: colours[0] for name, colours in theme.COLOURS.items()}
NIGHT = {name: colours[1] for name, colours in theme.COLOURS.items()}
TEXT_CONTRAST = 4.5
PLOT_CONTRAST = 3.0
"""Least contrast of text and of graphics: WCAG 2.2, level AA."""


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_of_black_and_white() -> None:
    assert round(contrast("#000000", "#ffffff"), 1) == 21.0
    assert contrast("#777777", "#777777") == 1.0


@pytest.mark.parametrize("scheme", [DAY, NIGHT], ids=["day", "night"])
def test_every_text_is_readable(scheme: Mapping[str, str]) -> None:
    for name in ("text", "soft", "faint", "accent", "good", "warn", "bad"):
        for ground in ("panel", "bg", f"{name}-soft" if f"{name}-soft" in scheme else "sunken"):
            assert contrast(scheme[name], scheme[ground]) >= TEXT_CONTRAST, f"{name} on {ground}"


@pytest.mark.parametrize("scheme", [DAY, NIGHT], ids=["day", "night"])
def test_every_colour_of_a_plot_is_visible(scheme: Mapping[str, str]) -> None:
    for colour in (*theme.SERIES, theme.QUIET, theme.ALARM, scheme["series-a"], scheme["series-b"]):
        assert contrast(colour, scheme["panel"]) >= PLOT_CONTRAST, colour


def test_a_page_has_both_schemes_and_may_choose() -> None:
    assert "--text: light-dark(#17171c, #ececf1);" in theme.THEME
    assert ':root[data-theme="dark"] { color-scheme: dark; }' in theme.THEME
