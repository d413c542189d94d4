"""A picture of a dashboard: an HTML page with its panels and their data. Pure.

It is not Grafana, but has its grid, the panels' own queries, units and colours. `python -m tests.dashboards.pictures`
fetches the data from a real Prometheus and draws docs/dashboards/*.png in Chromium.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

from helm.dashboards.grafana import fill
from helm.dashboards.model import Board, Panel, Placed, Query, Words, placed
from helm.dashboards.style import PLAIN, SERIES, Unit

PAGE: Final = 1600
"""Width of a picture in pixels."""
CELL: Final = 38
"""Height of a row of the grid."""
GAP: Final = 8
MARGIN: Final = 20
HEAD: Final = 64


@dataclass(frozen=True)
class Line:
    """One series of a graph, or one value of the other kinds of panel: then `points` has a single one."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """(Unix seconds, value)."""


Data = dict[tuple[str, int], list[Line]]
"""The series by (title of the panel, number of its query)."""


@dataclass(frozen=True)
class Shown:
    """What one picture shows."""

    board: Board
    data: Data
    start: float
    end: float
    choices: Mapping[str, str] = field(default_factory=dict)


def number(value: float, decimals: int | None = None) -> str:
    """Write a number with three significant digits, or with so many decimals."""
    if decimals is not None:
        return f"{value:,.{decimals}f}"
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, base: float, names: Sequence[str], decimals: int | None) -> str:
    for name in names[:-1]:
        if abs(value) < base:
            return f"{number(value, None if name == names[0] else decimals)} {name}"
        value /= base
    return f"{number(value, decimals)} {names[-1]}"


def _duration(value: float) -> str:
    for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min")):
        if abs(value) < limit:
            return f"{number(value * factor)} {name}" if value else "0 s"
    return f"{number(value / 3600)} h" if abs(value) < 172_800 else f"{number(value / 86_400)} days"


def formatted(value: float, unit: Unit, decimals: int | None = None, now: float = 0.0) -> str:
    """Write a value as Grafana shows its unit. `now`: Unix seconds, for points in time (which are in ms)."""
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return "∞"
    if unit in ("bytes", "bytes/s"):
        per = "/s" if unit == "bytes/s" else ""
        return _scaled(value, 1024, [f"{n}{per}" for n in ("B", "KiB", "MiB", "GiB", "TiB")], decimals)
    if unit == "seconds":
        return _duration(value)
    if unit == "milliseconds":
        return _duration(value / 1000)
    if unit == "percent":
        return f"{number(value * 100)} %"
    if unit == "time":
        seconds = value / 1000 - now
        return f"in {_duration(seconds)}" if seconds > 0 else f"{_duration(-seconds)} ago"
    suffix = {"messages/s": " msg/s", "per second": " /s", "cores": " cores"}.get(unit, "")
    if unit in ("short", "messages") and abs(value) >= 10_000:
        return _scaled(value, 1000, ["", "K", "Mil", "Bil"], 1).rstrip()
    return f"{number(value, decimals)}{suffix}"


def colour_of(value: float, steps: Sequence[tuple[float | None, str]]) -> str:
    """The colour of a stat with this value."""
    found = PLAIN
    for least, colour in steps:
        if least is None or value >= least:
            found = colour
    return found


def word_of(value: float, words: Words) -> str | None:
    return words.get("inf") if math.isinf(value) else words.get(value)


def legend(name: str, labels: Mapping[str, str]) -> str:
    """Fill a series' name: {{label}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), name).strip()


def page(shown: Shown) -> tuple[str, int]:
    """Return the HTML of a picture, and its height in pixels."""
    places = placed(shown.board)
    height = HEAD + 2 * MARGIN + max(p.y + p.h for p in places) * CELL
    chosen = "".join(
        f"<span class=v>{escape(v.title)} <b>{escape(shown.choices.get(v.name, 'All'))}</b></span>"
        for v in shown.board.variables
    )
    when = f"{time.strftime('%H:%M', time.gmtime(shown.start))} to {time.strftime('%H:%M UTC', time.gmtime(shown.end))}"
    body = "".join(_place(shown, at) for at in places)
    title = escape(shown.board.title)
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><header><h1>{title}</h1>{chosen}"
        f"<span class=t>{when}</span></header><main style='height:{height - HEAD - MARGIN}px'>{body}</main>",
        height,
    )


def _place(shown: Shown, at: Placed) -> str:
    column = (PAGE - 2 * MARGIN + GAP) / 24
    box = (
        f"left:{at.x * column:.1f}px;top:{at.y * CELL}px;width:{at.w * column - GAP:.1f}px;height:{at.h * CELL - GAP}px"
    )
    if isinstance(at.what, str):
        return f"<h2 style='{box}'>{escape(at.what)}</h2>"
    panel = at.what
    draw: Mapping[str, Callable[[Shown, Panel, float, float], str]] = {
        "stat": _stat, "graph": _graph, "table": _table, "bars": _bars,
    }  # fmt: skip
    inner = draw[panel.kind](shown, panel, at.w * column - GAP - 24, at.h * CELL - GAP - 42)
    return f"<section style='{box}'><h3>{escape(panel.title)}</h3>{inner}</section>"


def _empty(panel: Panel) -> str:
    return f"<p class=empty>{escape(panel.empty or 'No data')}</p>"


def _stat(shown: Shown, panel: Panel, width: float, height: float) -> str:
    lines = shown.data.get((panel.title, 0), [])
    if not lines:
        return f"<p class=stat style='color:{PLAIN}'>{escape(panel.empty or 'No data')}</p>"
    value = lines[0].points[-1][1]
    said = word_of(value, panel.words) or formatted(value, panel.unit, panel.decimals, shown.end)
    size = 30 if len(said) < 9 else 24 if len(said) < 12 else 21
    return f"<p class=stat style='color:{colour_of(value, panel.steps)};font-size:{size}px'>{escape(said)}</p>"


def _table(shown: Shown, panel: Panel, width: float, height: float) -> str:
    rows: dict[tuple[str, ...], dict[int, float]] = {}
    for query in range(len(panel.queries)):
        for line in shown.data.get((panel.title, query), []):
            key = tuple(line.labels.get(label, "") for label in panel.labels)
            rows.setdefault(key, {})[query] = line.points[-1][1]
    if not rows:
        return _empty(panel)
    head = "".join(f"<th>{escape(t)}</th>" for t in panel.labels.values())
    head += "".join(f"<th class=n>{escape(q.name)}</th>" for q in panel.queries)
    body = ""
    for key, values in sorted(rows.items()):
        cells = "".join(f"<td>{escape(k)}</td>" for k in key)
        cells += "".join(_cell(q, values.get(n), shown.end) for n, q in enumerate(panel.queries))
        body += f"<tr>{cells}</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(query: Query, value: float | None, now: float) -> str:
    if value is None:
        return "<td class=n></td>"
    said = word_of(value, query.words) or formatted(value, query.unit or "short", None, now)
    colour = f" style='color:{colour_of(value, query.steps)}'" if query.steps else ""
    return f"<td class=n{colour}>{escape(said)}</td>"


def _bars(shown: Shown, panel: Panel, width: float, height: float) -> str:
    lines = shown.data.get((panel.title, 0), [])
    if not lines:
        return _empty(panel)
    lines = sorted(lines, key=lambda line: -line.points[-1][1])
    most = max(lines[0].points[-1][1], 1e-9)
    colour = panel.queries[0].colour or SERIES[0]
    rows = "".join(
        f"<div class=bar><span>{escape(legend(panel.queries[0].name, line.labels))}</span>"
        f"<i style='width:{55 * line.points[-1][1] / most:.1f}%;background:{colour}'></i>"
        f"<b>{escape(formatted(line.points[-1][1], panel.unit))}</b></div>"
        for line in lines
    )
    return f"<div class=bars>{rows}</div>"


Named = tuple[str, str, list[tuple[float, float]]]
"""Name, colour and points of a line."""


def top_of(most: float) -> float:
    """The end of an axis: a round number not below `most`."""
    if most <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * power >= most * (1 - 1e-9))


def _graph(shown: Shown, panel: Panel, width: float, height: float) -> str:
    named: list[Named] = []
    free = iter(SERIES * 9)
    for query_number, query in enumerate(panel.queries):
        found = [(legend(query.name, line.labels), line) for line in shown.data.get((panel.title, query_number), [])]
        for name, line in sorted(found, key=lambda pair: pair[0]):
            points = [(t, v) for t, v in line.points if math.isfinite(v)]
            if points:
                named.append((name or panel.title, query.colour or next(free), points))
    if not named:
        return _empty(panel)
    if panel.stacked:
        named = _stacked(named)
    unit_top = top_of(max(v for _, _, points in named for _, v in points))
    if panel.unit in ("bytes", "bytes/s"):
        scale = 1024.0 ** max(0, math.floor(math.log(max(unit_top, 1), 1024)))
        unit_top = top_of(unit_top / scale) * scale
    if panel.unit == "seconds" and unit_top > 120:
        scale = 60 if unit_top < 7200 else 3600
        unit_top = top_of(unit_top / scale) * scale
    left, bottom = 66.0, 22.0
    lines_of_legend = 1 if sum(len(n) + 4 for n, _, _ in named) * 6.4 < width else 2
    tall = height - bottom - 18 * lines_of_legend
    span = max(shown.end - shown.start, 1)

    def x(at: float) -> float:
        return left + (at - shown.start) / span * (width - left)

    def y(value: float) -> float:
        return 6 + (1 - value / unit_top) * (tall - 6)

    parts = []
    for tick in range(5):
        value = unit_top * tick / 4
        parts.append(
            f"<line x1={left} x2={width:.0f} y1={y(value):.1f} y2={y(value):.1f} class=g />"
            f"<text x={left - 8} y={y(value) + 4:.1f} class=a>{escape(formatted(value, panel.unit))}</text>"
        )
    for at in _ticks(shown.start, shown.end):
        when = time.strftime("%H:%M" if span > 240 else "%H:%M:%S", time.gmtime(at))
        parts.append(f"<text x={x(at):.1f} y={tall + 16:.1f} class=b>{when}</text>")
    # A gap is longer than three steps between points.
    step = min((b[0] - a[0] for _, _, p in named for a, b in pairwise(p)), default=1)
    for _, colour, points in named if not panel.stacked else reversed(named):
        for piece in _pieces(points, 3 * step):
            path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in piece)
            area = f"{x(piece[0][0]):.1f},{y(0):.1f} {path} {x(piece[-1][0]):.1f},{y(0):.1f}"
            if panel.stacked:
                parts.append(f"<polygon points='{area}' fill=#fff />")
            parts.append(
                f"<polygon points='{area}' fill='{colour}' fill-opacity={fill(panel) / 100} />"
                f"<polyline points='{path}' stroke='{colour}' class=l />"
            )
    names = "".join(f"<span><i style='background:{c}'></i>{escape(n)}</span>" for n, c, _ in named)
    return f"<svg width={width:.0f} height={tall + 22:.0f}>{''.join(parts)}</svg><div class=legend>{names}</div>"


def _stacked(named: list[Named]) -> list[Named]:
    below: dict[float, float] = {}
    found = []
    for name, colour, points in named:
        for t, v in points:
            below[t] = below.get(t, 0.0) + v
        found.append((name, colour, [(t, below[t]) for t, _ in points]))
    return found


def _pieces(points: Sequence[tuple[float, float]], gap: float) -> list[list[tuple[float, float]]]:
    pieces = [[points[0]]]
    for before, point in pairwise(points):
        if point[0] - before[0] > gap:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _ticks(start: float, end: float) -> list[float]:
    step = next(s for s in (5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 10_800, 86_400) if (end - start) / s <= 6)
    first = math.ceil(start / step) * step
    return [first + n * step for n in range(7) if start + step * 0.2 <= first + n * step <= end - step * 0.2]


STYLE: Final = f"""
*{{box-sizing:border-box;margin:0}}
body{{width:{PAGE}px;background:#F3F5F7;color:#1F2A36;font:13px/1.35 "DejaVu Sans","Segoe UI",sans-serif}}
header{{height:{HEAD}px;padding:0 {MARGIN}px;display:flex;align-items:center;gap:14px}}
h1{{font-size:20px;font-weight:600;margin-right:12px}}
.v{{background:#fff;border:1px solid #DDE3E9;border-radius:6px;padding:5px 10px;color:#5B6B7B}}
.v b{{color:#1F2A36;font-weight:600}} .t{{margin-left:auto;color:#5B6B7B}}
main{{position:relative;margin:0 {MARGIN}px}}
h2{{position:absolute;font-size:14px;font-weight:600;color:#43515F;padding-top:8px}}
section{{position:absolute;background:#fff;
border:1px solid #E1E6EB;border-radius:8px;padding:10px 12px;overflow:hidden}}
h3{{font-size:12.5px;font-weight:600;color:#43515F;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}}
.stat{{font-weight:600;text-align:center;margin-top:8px;font-size:26px;line-height:44px;white-space:nowrap}}
.empty{{color:#8A97A5;text-align:center;margin-top:80px}}
svg{{display:block;margin-top:8px;overflow:visible}} .g{{stroke:#E8ECF0}} .l{{fill:none;stroke-width:1.6}}
text{{font-size:11px;fill:#6B7A89}} .a{{text-anchor:end}} .b{{text-anchor:middle}}
.legend{{display:flex;flex-wrap:wrap;gap:0 14px;
font-size:11.5px;color:#43515F;line-height:17px;max-height:34px;overflow:hidden}}
.legend i{{display:inline-block;width:12px;height:3px;border-radius:2px;margin:0 5px 3px 0}}
table{{width:100%;border-collapse:collapse;margin-top:6px}}
th{{text-align:left;font-size:11.5px;font-weight:600;color:#6B7A89;padding:5px 8px;border-bottom:1px solid #E1E6EB}}
td{{padding:6px 8px;border-bottom:1px solid #F0F2F5;font-variant-numeric:tabular-nums}} .n{{text-align:right}}
.bars{{margin-top:12px;display:grid;gap:9px}} .bar{{display:flex;align-items:center;gap:8px}}
.bar span{{width:26%;overflow:hidden;text-overflow:ellipsis}} .bar i{{height:16px;border-radius:3px;min-width:2px}}
.bar b{{font-weight:600}}
"""
