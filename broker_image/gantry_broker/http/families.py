"""Families of metrics that brokers, NameServers and proxies have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gantry_core

from gantry_broker.access.gate import REASONS
from gantry_broker.exposition import Family, Kind
from gantry_broker.version import VERSION

if TYPE_CHECKING:
    from gantry_broker.access.gate import Gate
    from gantry_broker.refusals import Refusals

Row = tuple[dict[str, str], float]
"""The labels of a sample, and its value."""


def access_families(gate: Gate, labels: dict[str, str]) -> list[Family]:
    """Return the families of access; a broker and a NameServer have the same."""
    refused: list[Row] = [({**labels, "reason": reason}, gate.refused.get(reason, 0)) for reason in REASONS]
    version = 0 if gate.policy is None else gate.policy.version

    held = gate.guesses.held + gate.unsigned.held

    def one(name: str, kind: Kind, text: str, value: float) -> Family:
        return Family(name, kind, text, [(labels, value)])

    return [
        Family("gantry_access_refused_total", "counter", "Clients' requests refused, by reason.", refused),
        one("gantry_access_dropped_total", "counter", "Those of them that were one-way.", gate.dropped),
        one("gantry_access_anonymous_total", "counter", "Requests without a signature.", gate.anonymous),
        one(
            "gantry_access_held_total",
            "counter",
            "Wrong or missing signatures over the limit.",
            held,
        ),
        one("gantry_access_table_version", "gauge", "Version of the access table; 0: none.", version),
    ]


def refused_values(refusals: Refusals, labels: dict[str, str]) -> Family:
    """Return the family of refused values from outside; a broker and a NameServer have the same."""
    rows: list[Row] = [
        ({**labels, "entrance": entrance, "reason": reason}, count) for entrance, reason, count in refusals.rows()
    ]
    return Family("gantry_refused_values_total", "counter", "Values from outside that no correct peer sends.", rows)


def build_info(component: str) -> Family:
    """Return the family with the version of this process."""
    return Family(
        "gantry_build_info", "gauge", "Version of the process, and the body of its core: rust or python.",
        [({"component": component, "version": VERSION, "core": gantry_core.NAME}, 1)],
    )  # fmt: skip
