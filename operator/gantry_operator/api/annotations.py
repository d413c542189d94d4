"""The group of the API, and the annotations that users and commands set. Without models: commands read them quickly."""

from __future__ import annotations

from typing import Final

GROUP: Final = "gantry.dev"

PAUSED: Final = f"{GROUP}/paused"
"""While "true", the operator changes no planned object. Failover goes on."""

FENCED: Final = f"{GROUP}/fenced"
"""Names of members, joined by commas. Their brokers are stopped while their pods, or processes, stay."""

RESTART: Final = f"{GROUP}/restart"
"""Of a member's pod, with any value: the operator replaces the pod as in a planned change."""
