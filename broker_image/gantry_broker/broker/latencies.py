"""Histograms of a member's latencies, in seconds. They count batches at the weight of their messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_broker.histogram import LATENCY_S, Histogram


def _seconds() -> Histogram:
    return Histogram(LATENCY_S)


@dataclass(slots=True)
class Latencies:
    """One member's latencies since its start."""

    send: Histogram = field(default_factory=_seconds)
    """From the arrival of a send until its answer is written."""
    append: Histogram = field(default_factory=_seconds)
    """The append of a batch of sends to the log."""
    flush: Histogram = field(default_factory=_seconds)
    """One fsync of the log, from its request to its end."""
