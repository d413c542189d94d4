"""The real broker groups of `tests.support.broker_group`, for each test of this folder."""

from __future__ import annotations

from tests.support.broker_group import make_group

__all__ = ["make_group"]
