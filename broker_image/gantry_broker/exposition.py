"""Families of metrics: plain data, so that pure code can make them and tests can compare them.

`openmetrics.py` writes the page of a broker. `text_page` is for the NameServer, a small process without the libraries
that `prometheus_client` loads (its web servers and TLS).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from gantry_broker.histogram import Histogram

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(slots=True)
class Family:
    """One metric with all its series. The name of a counter ends with `_total`."""

    name: str
    kind: Kind
    text: str
    """What it counts, in one sentence."""
    rows: list[tuple[dict[str, str], float]] = field(default_factory=list)
    histograms: list[tuple[dict[str, str], Histogram]] = field(default_factory=list)

    def add(self, labels: dict[str, str], value: float) -> None:
        self.rows.append((labels, value))


def text_page(families: Iterable[Family]) -> str:
    """Return the page in Prometheus' text form. Histograms are left out."""
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.rows:
            inner = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            lines.append(f"{family.name}{{{inner}}} {value}" if inner else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
