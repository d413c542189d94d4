"""How long waits of tests are, on machines that are slow or busy."""

from __future__ import annotations

from typing import Final

SLOW: Final = 3.0
"""Limits of waits are written for an idle machine: a wait lasts so many times as long before it fails."""
