"""Colours, type and spacing of Gantry's pages, as CSS variables: one place, so that all pages look alike.

`THEME` goes into a page's <style> before its own rules. Plots, which cannot read variables, use `SERIES` and the names
below it. These colours are readable on both grounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LIGHT: Final[Mapping[str, str]] = {
    "ink": "#1a2430",
    "dim": "#566474",
    "line": "#e2e7ed",
    "paper": "#ffffff",
    "ground": "#f4f6f9",
    "accent": "#1a63d8",
    "accent-ground": "#e7f0fd",
    "good": "#14703f",
    "good-ground": "#e1f4e9",
    "warn": "#8f5200",
    "warn-ground": "#fcf0da",
    "bad": "#b42a20",
    "bad-ground": "#fde8e6",
    "badge-ground": "#edf0f4",
}
"""By day. `ink`: text; `dim`: secondary text; `line`: borders; `paper`: cards; `ground`: behind cards; `accent`: links
and what is chosen; `good`, `warn`, `bad`: states, each with a `-ground` for badges."""

DARK: Final[Mapping[str, str]] = {
    "ink": "#e6edf3",
    "dim": "#9aa7b4",
    "line": "#2a333e",
    "paper": "#161b22",
    "ground": "#0d1117",
    "accent": "#6cb0ff",
    "accent-ground": "#142a45",
    "good": "#56d18a",
    "good-ground": "#12301f",
    "warn": "#e3b052",
    "warn-ground": "#36290f",
    "bad": "#ff8d85",
    "bad-ground": "#3d1815",
    "badge-ground": "#262d36",
}
"""By night: the same names."""

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MONO: Final = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'

SIZES: Final[Mapping[str, str]] = {
    "font": FONT,
    "mono": MONO,
    "text-s": "13px",
    "text-m": "15px",
    "text-l": "17px",
    "text-xl": "24px",
    "leading": "1.5",
    "space-1": "4px",
    "space-2": "8px",
    "space-3": "12px",
    "space-4": "16px",
    "space-5": "24px",
    "space-6": "40px",
    "radius": "10px",
    "width": "1180px",
}
"""Type and spacing."""

SERIES: Final = ("#1f6feb", "#178a52", "#cf7106", "#8b5cf6", "#0891b2", "#db2777", "#5b940b", "#64748b")
"""Colours of plots, in this order."""
QUIET: Final = "#7f94ae"
"""A part of a plot that needs no attention."""
ALARM: Final = "#d6443a"
"""A limit in a plot."""


def variables(values: Mapping[str, str]) -> str:
    """Return CSS declarations: `--ink: #1a2430; ...`."""
    return " ".join(f"--{name}: {value};" for name, value in values.items())


THEME: Final = (
    f":root {{ color-scheme: light dark; {variables(SIZES)} {variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}\n"
)
"""The variables of both schemes; the browser chooses."""
