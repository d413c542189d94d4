"""Changes that mqadmin made at members, merged into the users that it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def refused(user: Mapping[str, Any]) -> str:
    """Why the members would refuse this user of the table; empty: they take it."""
    return ""


def merge(
    made: Sequence[Mapping[str, Any]],
    merged: Mapping[str, int],
    changes: Mapping[str, Sequence[Mapping[str, Any]]],
    managed: set[str],
) -> tuple[list[dict[str, Any]], dict[str, int], list[str]]:
    """The users of mqadmin after the changes, the new numbers by member, and what was not merged, in words.

    `managed`: AccessKeys of BrokerUsers and of the super user. mqadmin cannot change them for longer than a moment.
    """
    return [dict(u) for u in made if u["name"] not in managed], dict(merged), []
