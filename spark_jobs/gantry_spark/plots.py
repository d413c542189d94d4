"""The plots of the page. Each function returns a piece of HTML, or an empty string if there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final

import plotly.graph_objects as go
from gantry_broker.theme import ALARM, FONT, QUIET, SERIES

from gantry_spark.format import format_bytes, format_share

MAX_TOPICS: Final = 15
MAX_KEYS: Final = 12
NAMES: Final = {"showgrid": False, "ticklabelstandoff": 6}
"""Of an axis with names."""
HEIGHT: Final = 320
"""Pixels of every plot that shares a row with another one."""
KEEP: Final = QUIET
SAVE: Final = SERIES[0]
AREA: Final = "rgba(31,111,235,0.14)"

Topic = Mapping[str, Any]


def _unit(most: float) -> tuple[str, float]:
    """Return the unit for an axis up to `most` bytes, and the size of that unit in bytes."""
    for name, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if most >= factor:
            return name, float(factor)
    return "B", 1.0


def _html(figure: Any, height: int, legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return the plot as HTML. `legend`: names and colours, drawn as text above the plot so that they wrap."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        font={"family": FONT, "size": 12},
        showlegend=False,
        barcornerradius=2,
        hoverlabel={"font": {"family": FONT}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_font_size=12)
    figure.update_yaxes(automargin=True, zeroline=False, title_font_size=12)
    figure.update_traces(marker_line_width=0, selector={"type": "bar"})
    plot = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"displayModeBar": False, "responsive": True},
    )
    items = "".join(f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in legend)
    return f'<div class="legend">{items}</div>{plot}' if items else str(plot)


def _user(topics: Sequence[Topic]) -> list[Topic]:
    return [t for t in topics if t["kind"] == "user"]


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(name: str, most: int = 24) -> str:
    """Return a name as text of a plot, where `<b>` would be markup."""
    return escape(_short(name, most), quote=False)


def _gap(categories: int) -> float:
    """Return the share of a category beside its bar: few bars are not broader than many."""
    return 0.3 if categories > 4 else 0.6


def savings(topics: Sequence[Topic]) -> str:
    """Plot the bytes of each topic, split into the part that stays and the part that compaction removes."""
    shown = sorted(_user(topics), key=lambda t: (t["savedBytes"], t["bytes"]))[-MAX_TOPICS:]
    if not shown:
        return ""
    unit, factor = _unit(max(t["bytes"] for t in shown))
    # Shortened names may be equal, so the bars are identified by number.
    rows = list(range(len(shown)))
    figure = go.Figure()
    parts = (
        ("stays", KEEP, [t["bytes"] - t["savedBytes"] for t in shown]),
        ("removed by compaction", SAVE, [t["savedBytes"] for t in shown]),
    )
    for label, color, values in parts:
        figure.add_bar(
            y=rows, x=[v / factor for v in values], name=label, orientation="h", marker={"color": color},
            customdata=[(escape(t["topic"]), format_bytes(v)) for t, v in zip(shown, values, strict=True)],
            hovertemplate="%{customdata[0]}: %{customdata[1]}<extra>" + label + "</extra>",
        )  # fmt: skip
    for row, t in zip(rows, shown, strict=True):
        if 100 * t["savedBytes"] >= t["bytes"] > 0:
            figure.add_annotation(
                x=t["bytes"] / factor, y=row, text=f"-{format_share(t['savedBytes'], t['bytes'])}", showarrow=False,
                xanchor="left", xshift=6, font={"color": SAVE},
            )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title=unit, range=[0, 1.2 * max(t["bytes"] for t in shown) / factor])
    figure.update_yaxes(tickmode="array", tickvals=rows, ticktext=[_text(t["topic"]) for t in shown], **NAMES)
    return _html(figure, 90 + 34 * len(shown), [(label, color) for label, color, _ in parts])


def growth(growth: Mapping[str, Any]) -> str:
    """Plot the log's bytes over time, the forecast, and the size at which the disk is full."""
    hours = growth["hours"]
    if not hours:
        return ""
    times = [datetime.fromisoformat(h["hour"]) for h in hours]
    total, sums = 0, []
    for h in hours:
        total += h["bytes"]
        sums.append(total)
    # The bytes of an hour are complete at its end.
    ends = [t + timedelta(hours=1) for t in times]
    rate = growth["bytesPerHour"]
    ahead = max(24, min(growth["reservedHours"], 2 * len(hours)))
    until = [ends[-1] + timedelta(hours=h) for h in range(ahead + 1)]
    most = max(growth["steadyStateBytes"], total)
    future = [total + rate * h for h in range(ahead + 1)]
    capped = [min(v, most) for v in future]
    # The size of all logs together at which the first disk is full.
    full = total + rate * growth["hoursToFull"] if rate and growth["hoursToFull"] is not None else None
    unit, factor = _unit(max(*capped, 1))
    figure = go.Figure()
    hover = "%{x|%b %d %H:%M}: %{customdata}<extra></extra>"
    figure.add_scatter(
        x=[times[0], *ends], y=[0, *(v / factor for v in sums)], name="log", mode="lines",
        line={"color": SAVE, "width": 2}, fill="tozeroy", fillcolor=AREA,
        customdata=[format_bytes(v) for v in (0, *sums)], hovertemplate=hover,
    )  # fmt: skip
    figure.add_scatter(
        x=until, y=[v / factor for v in capped], name="forecast with retention", mode="lines",
        line={"color": KEEP, "width": 2, "dash": "dot"},
        customdata=[format_bytes(v) for v in capped], hovertemplate=hover,
    )  # fmt: skip
    if full is not None and full <= 1.5 * max(capped):
        figure.add_hline(
            y=full / factor, line={"color": ALARM, "dash": "dash"},
            annotation={"text": "disk full", "font": {"color": ALARM}},
        )  # fmt: skip
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(title=unit, rangemode="tozero")
    return _html(figure, HEIGHT, [("log", SAVE), ("forecast with retention", KEEP)])


def windows(topics: Sequence[Topic]) -> str:
    """Plot the share that compaction saves by window, one line for each of the topics with the largest savings.

    A topic with a single window has no line.
    """
    shown = [t for t in _user(topics) if t["savedBytes"] and len(t["savingsByWindow"]) > 1][: len(SERIES)]
    if not shown:
        return ""
    figure = go.Figure()
    order: list[str] = []
    for t in sorted(shown, key=lambda t: len(t["savingsByWindow"])):
        for w in t["savingsByWindow"]:
            label = _window_text(w["hours"])
            if label not in order:
                order.append(label)
    order.sort(key=_window_order)
    for color, t in zip(SERIES, shown, strict=False):
        points = t["savingsByWindow"]
        figure.add_scatter(
            x=[_window_text(w["hours"]) for w in points], y=[w["savedBytes"] / max(1, w["bytes"]) for w in points],
            name=_text(t["topic"]), mode="lines+markers", line={"color": color, "width": 2},
            customdata=[format_bytes(w["savedBytes"]) for w in points],
            hovertemplate="%{x}: %{y:.0%}, %{customdata}<extra>" + _text(t["topic"]) + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(categoryorder="array", categoryarray=order, type="category", showgrid=False)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title="share of the window")
    return _html(figure, HEIGHT, [(_short(t["topic"]), color) for color, t in zip(SERIES, shown, strict=False)])


def _window_text(hours: int | None) -> str:
    if hours is None:
        return "whole log"
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def _window_order(label: str) -> float:
    if label == "whole log":
        return float("inf")
    number, unit = label.split(" ")
    return float(number) * (24 if unit == "d" else 1)


def _hottest(topics: Sequence[Topic]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the keys with the most versions, each with its topic."""
    keys = [(k, t["topic"]) for t in _user(topics) for k in t["hotKeys"] if k["records"] > 1]
    return sorted(keys, key=lambda f: -f[0]["records"])[:MAX_KEYS]


def equal_versions(topics: Sequence[Topic]) -> int | None:
    """Return the number of versions of the hottest keys if all of them have the same, else None."""
    counts = {key["records"] for key, _ in _hottest(topics)}
    return counts.pop() if len(counts) == 1 else None


def hot_keys(topics: Sequence[Topic]) -> str:
    """Plot the keys with the most versions of all topics. Equal bars say nothing, so they are not drawn."""
    hottest = _hottest(topics)
    if not hottest or (len(hottest) > 1 and equal_versions(topics) is not None):
        return ""
    hottest.reverse()
    names = list(dict.fromkeys(topic for _, topic in reversed(hottest)))
    colors = {name: SERIES[i % len(SERIES)] for i, name in enumerate(names)}
    labels = [_text(k["key"], 20) for k, _ in hottest]
    figure = go.Figure()
    for name in names:
        rows = [(i, k) for i, (k, topic) in enumerate(hottest) if topic == name]
        figure.add_bar(
            y=[i for i, _ in rows], x=[k["records"] for _, k in rows], name=_text(name), orientation="h",
            marker={"color": colors[name]}, width=0.7,
            customdata=[(escape(k["key"]), format_bytes(k["bytes"]), f"{k['share']:.1%}") for _, k in rows],
            hovertemplate="%{customdata[0]}: %{x:,} versions, %{customdata[1]}, %{customdata[2]} of the topic"
            "<extra>" + _text(name) + "</extra>",
        )  # fmt: skip
    figure.update_yaxes(tickmode="array", tickvals=list(range(len(hottest))), ticktext=labels, **NAMES)
    figure.update_xaxes(title="versions")
    figure.update_layout(barmode="overlay")
    return _html(figure, HEIGHT, [(_short(name), colors[name]) for name in names])


def versions(topics: Sequence[Topic]) -> str:
    """Plot the number of keys by their number of versions, all topics together."""
    sums: dict[int, int] = {}
    for t in _user(topics):
        for v in t["versions"]:
            sums[v["from"]] = sums.get(v["from"], 0) + v["keys"]
    if not sums:
        return ""
    order = sorted(sums)
    labels = [f"{a:,}" if a == 1 else f"{a:,}-{2 * a - 1:,}" for a in order]
    figure = go.Figure()
    figure.add_bar(
        x=labels,
        y=[sums[a] for a in order],
        marker={"color": SAVE},
        hovertemplate="%{x} versions: %{y:,} keys<extra></extra>",
    )
    figure.update_layout(bargap=_gap(len(order)))
    figure.update_xaxes(title="versions of a key", type="category", showgrid=False)
    figure.update_yaxes(title="keys")
    return _html(figure, HEIGHT)


def ages(topics: Sequence[Topic]) -> str:
    """Plot the bytes by age, one colour for each of the largest topics."""
    return _stacked(topics, "ages", "bytes", _age_text, _age_order, "age")


def sizes(topics: Sequence[Topic]) -> str:
    """Plot the records by size, one colour for each of the largest topics."""
    return _stacked(topics, "sizes", "records", _size_class, lambda r: float(r["from"]), "record size, from")


def _age_text(row: Mapping[str, Any]) -> str:
    low, high = row["fromHours"], row["toHours"]
    if high is None:
        return f"over {_window_text(low)}"
    if not low:
        return f"under {_window_text(high)}"
    return f"{low}-{high} h" if high < 48 else f"{low // 24}-{high // 24} d"


def _age_order(row: Mapping[str, Any]) -> float:
    return float(row["fromHours"])


def _size_class(row: Mapping[str, Any]) -> str:
    return format_bytes(row["from"]).replace(".0 ", " ")


def _stacked(topics: Sequence[Topic], field: str, value: str, text: Any, order: Any, title: str) -> str:
    shown = sorted(topics, key=lambda t: -t["bytes"])
    if not shown:
        return ""
    few, rest = shown[: len(SERIES) - 1], shown[len(SERIES) - 1 :]
    labels: dict[str, float] = {}
    for t in shown:
        for row in t[field]:
            labels[text(row)] = order(row)
    categories = sorted(labels, key=lambda label: labels[label])
    most = sum(row[value] for t in shown for row in t[field])
    unit, factor = _unit(most / 2) if value == "bytes" else ("records", 1.0)
    figure = go.Figure()
    groups = [(t["topic"], [t]) for t in few] + ([(f"{len(rest)} more", rest)] if rest else [])
    for color, (name, members) in zip(SERIES, groups, strict=False):
        sums: dict[str, int] = {}
        for t in members:
            for row in t[field]:
                sums[text(row)] = sums.get(text(row), 0) + row[value]
        figure.add_bar(
            x=list(sums), y=[v / factor for v in sums.values()], name=_text(name), marker={"color": color},
            customdata=[format_bytes(v) if value == "bytes" else f"{v:,}" for v in sums.values()],
            hovertemplate="%{x}: %{customdata}<extra>" + _text(name) + "</extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=_gap(len(categories)))
    figure.update_xaxes(title=title, type="category", categoryorder="array", categoryarray=categories, showgrid=False)
    figure.update_yaxes(title=unit)
    return _html(figure, HEIGHT, [(_short(name), color) for color, (name, _) in zip(SERIES, groups, strict=False)])
