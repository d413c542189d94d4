"""What a dashboard consists of: plain data, from which `grafana.py` makes JSON and `pictures.py` a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from helm.dashboards.style import PLAIN, Unit

Words = Mapping[Any, str]
"""Words for values; the key "inf" stands for what has no end."""
Kind = Literal["stat", "graph", "table", "bars"]

WIDTH: Final = 24
"""Columns of Grafana's grid."""

SELECTORS: Final = {
    "@cluster": 'namespace=~"$namespace",cluster=~"$cluster"',
    "@group": 'namespace=~"$namespace",cluster=~"$cluster",group=~"$group"',
    "@topic": 'namespace=~"$namespace",cluster=~"$cluster",is_system="false",topic=~"$topic"',
    "@fresh": 'namespace=~"$namespace",cluster=~"$cluster",is_system="false",is_retry="false",topic=~"$topic"',
    "@consumer": (
        'namespace=~"$namespace",cluster=~"$cluster",is_system="false",topic=~"$topic",consumer_group=~"$consumer_group"'
    ),
    "@own": (
        'namespace=~"$namespace",cluster=~"$cluster",is_system="false",is_retry="false",'
        'topic=~"$topic",consumer_group=~"$consumer_group"'
    ),
    "@reader": 'namespace=~"$namespace",cluster=~"$cluster",is_system="false",consumer_group=~"$consumer_group"',
    "@user": 'namespace=~"$namespace",cluster=~"$cluster",is_system="false"',
}
"""Label selectors by the word that a query writes for them."""


def selected(text: str) -> str:
    """Replace the words of SELECTORS by label selectors."""
    for word, labels in SELECTORS.items():
        text = text.replace(word, labels)
    return text


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    expr: str
    name: str = ""
    """Name of its series, with labels as {{label}}; of a table: the title of its column."""
    colour: str | None = None
    unit: Unit | None = None
    """Of a table's column."""
    words: Words = field(default_factory=dict)
    """Of a table's column: words for values."""
    steps: tuple[tuple[float | None, str], ...] = ()
    """Of a table's column: colours by value."""


@dataclass(frozen=True)
class Panel:
    """One panel. `steps` are the colours of a stat by value: (None, colour) and then (from this value on, colour)."""

    kind: Kind
    title: str
    queries: tuple[Query, ...]
    unit: Unit = "short"
    width: int = 8
    height: int = 8
    text: str = ""
    steps: tuple[tuple[float | None, str], ...] = ((None, PLAIN),)
    words: Words = field(default_factory=dict)
    decimals: int | None = None
    stacked: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of a table: labels that become columns, with their titles, in this order."""
    empty: str = ""
    """What the panel says without data."""
    may_be_empty: str = ""
    """Why a healthy cluster may have no data for it."""


@dataclass(frozen=True)
class Row:
    """Panels under a heading. The first row of a dashboard, the health, has none."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label."""

    name: str
    title: str
    metric: str
    """With its selectors."""


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels


@dataclass(frozen=True)
class Placed:
    """A heading or a panel with its place on the grid."""

    what: Panel | str
    x: int
    y: int
    w: int
    h: int


def placed(board: Board) -> list[Placed]:
    """Return headings and panels with their places: from left to right, in lines as high as their highest panel."""
    found: list[Placed] = []
    y = 0
    for row in board.rows:
        if row.title:
            found.append(Placed(row.title, 0, y, WIDTH, 1))
            y += 1
        x = line = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, line = 0, y + line, 0
            found.append(Placed(panel, x, y, panel.width, panel.height))
            x, line = x + panel.width, max(line, panel.height)
        y += line
    return found
