"""The real broker groups of `broker_group.py`."""

from __future__ import annotations

from tests.support.broker_group import Group, Member, make_group, until

__all__ = ["Group", "Member", "make_group", "until"]
