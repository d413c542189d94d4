"""Colours, type and spacing of Gantry's pages, as CSS variables: one place, so that all pages look alike.

`THEME` goes into a page's <style> before its own rules. Plots, which cannot read variables, use `SERIES` and the names
below it. These colours are readable on both grounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    "bg": ("#f7f7f8", "#0e0f12"),
    "panel": ("#ffffff", "#16171b"),
    "raised": ("#ffffff", "#1c1e23"),
    "sunken": ("#f1f1f3", "#111216"),
    "line": ("#e4e4e8", "#26282f"),
    "line-strong": ("#c9c9d1", "#3a3d47"),
    "text": ("#17171c", "#ececf1"),
    "soft": ("#55555f", "#a9abb6"),
    "faint": ("#6b6b76", "#8e909c"),
    "accent": ("#3a4fd0", "#98a6ff"),
    "accent-soft": ("#eceffc", "#1f2440"),
    "good": ("#12743f", "#5fd08f"),
    "good-dot": ("#1f9d57", "#36b26d"),
    "good-soft": ("#e6f5ec", "#14281d"),
    "warn": ("#8a5300", "#f0b350"),
    "warn-dot": ("#d98a00", "#e09a25"),
    "warn-soft": ("#fdf1dc", "#2e2411"),
    "bad": ("#b42318", "#ff8d83"),
    "bad-dot": ("#dc3a2e", "#f0564a"),
    "bad-soft": ("#fdeae8", "#351a18"),
    "series-a": ("#3a4fd0", "#8d9cff"),
    "series-b": ("#0e8a74", "#43c7ae"),
    "shadow": ("#14141e0d", "#00000000"),
}
"""Each colour by day and by night. `bg`: behind cards; `panel`: cards; `raised`, `sunken`: above and below them;
`text`, `soft`, `faint`: text, the last two secondary; `accent`: what can be clicked or is chosen; `good`, `warn`,
`bad`: states, each with a `-dot` for marks and a `-soft` ground; `series-a`, `series-b`: lines of small plots.
"""

FONT: Final = (
    'ui-sans-serif, -apple-system, BlinkMacSystemFont, "Inter", "Segoe UI", Roboto, "Noto Sans", '
    '"DejaVu Sans", sans-serif'
)
MONO: Final = 'ui-monospace, SFMono-Regular, "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'

SIZES: Final[Mapping[str, str]] = {
    "sans": FONT,
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
    f":root {{ color-scheme: light dark; {variables(SIZES)} "
    f"{variables({name: f'light-dark({day}, {night})' for name, (day, night) in COLOURS.items()})} }}\n"
    ':root[data-theme="light"] { color-scheme: light; }\n'
    ':root[data-theme="dark"] { color-scheme: dark; }\n'
)
"""The variables of both schemes. The browser chooses, unless the page sets `data-theme` on its root element."""
