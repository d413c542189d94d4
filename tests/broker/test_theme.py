"""The colours of pages: every text can be read on every ground, in both schemes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from gantry_broker import theme

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


@pytest.mark.parametrize("scheme", [theme.LIGHT, theme.DARK])
def test_every_text_is_readable(scheme: Mapping[str, str]) -> None:
    for name in ("ink", "dim", "accent", "good", "warn", "bad"):
        for ground in ("paper", "ground", f"{name}-ground" if f"{name}-ground" in scheme else "badge-ground"):
            assert contrast(scheme[name], scheme[ground]) >= TEXT_CONTRAST, f"{name} on {ground}"


def test_every_colour_of_a_plot_is_visible_by_day_and_by_night() -> None:
    for colour in (*theme.SERIES, theme.QUIET, theme.ALARM):
        for scheme in (theme.LIGHT, theme.DARK):
            assert contrast(colour, scheme["paper"]) >= PLOT_CONTRAST, colour


def test_both_schemes_have_the_same_names() -> None:
    assert list(theme.LIGHT) == list(theme.DARK)
    assert theme.THEME.count("--ink: ") == 2
