"""The real broker groups of `broker_group.py`."""

from __future__ import annotations

from broker_group import make_group

__all__ = ["make_group"]
