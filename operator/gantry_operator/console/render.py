"""Templates and the forms of numbers and times on pages. Pure but for the reading of templates."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gantry_broker.protocol.printable import printable
from gantry_broker.theme import THEME
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

NONE: Final = "\N{EN DASH}"
"""Where there is no value."""
HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"


def count(value: float | None) -> str:
    """12,345."""
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number a second with at most three digits: 0, 0.4, 12, 1.2k."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if value < 10:
        return f"{value:.1f}" if value >= 0.05 else "<0.1"
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.0f}{unit}" if value >= 10 or not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}T"


def size(value: float | None) -> str:
    """1.4 MiB."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float | None) -> str:
    """45 s, 12 min, 3 h, 4 d."""
    if seconds is None:
        return NONE
    for limit, unit, per in ((60, "s", 1), (3600, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / per:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def time_ms(value: int | None) -> str:
    """2026-11-25 08:24:53.120."""
    if not value or not 0 < value < 253_402_300_800_000:
        return NONE
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{value % 1000:03d}"


def clock(text: str) -> str:
    """2026-11-25 08:24:53, from an RFC 3339 time."""
    return text.replace("T", " ").removesuffix("Z")


def harmless(value: Any) -> Any:
    """Texts from outside without characters that turn or hide other text on the page. Markup stays."""
    return printable(value, keep="\n\r\t") if isinstance(value, str) and not isinstance(value, Markup) else value


_HEADING: Final = re.compile(r'<th scope="col"[^>]*>(.*?)</th>', re.DOTALL)
_CELL: Final = re.compile(r"<(t[hd])\b([^>]*)>")
_SPAN: Final = re.compile(r'colspan="(\d+)"')
_MARK: Final = re.compile(r"<[^>]+>|[↑↓]")


def labelled(table: Markup) -> Markup:
    """Give each cell of a table's rows the heading of its column, which a phone shows beside the value."""
    head, split, body = table.partition("</thead>")
    labels = [_MARK.sub("", label).strip() for label in _HEADING.findall(head)]
    at = 0

    def cell(match: re.Match[str]) -> str:
        nonlocal at
        label = labels[at] if at < len(labels) else ""
        span = _SPAN.search(match[2])
        first, at = at == 0, at + (int(span[1]) if span else 1)
        return match[0] if first or not label else f'<{match[1]} data-label="{label}"{match[2]}>'

    rows = []
    for row in str(body).split("</tr>"):
        at = 0
        rows.append(_CELL.sub(cell, row))
    return Markup(f"{head}{split}{'</tr>'.join(rows)}")


_OPTION: Final = re.compile(r"(?<=\s)(--?[A-Za-z][\w-]*)")


def options_whole(command: str) -> Markup:
    """Mark the options of a command: no line ends within one. Like `harmless` otherwise."""
    return Markup(_OPTION.sub(r'<span class="option">\1</span>', str(escape(harmless(command)))))


def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(["html"], default=True),
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "count": count,
        "rate": rate,
        "size": size,
        "duration": duration,
        "time_ms": time_ms,
        "clock": clock,
        "labelled": labelled,
        "options_whole": options_whole,
    }
    env.filters.update(filters)
    return env


def static_version() -> str:
    """Return a digest of the static files, so that browsers load changed ones again."""
    digest = hashlib.sha256(THEME.encode())
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
