"""Changes that mqadmin made at members, merged into the users that it made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gantry_broker.access.table import Change, User
from pydantic import ValidationError


def refused(user: Mapping[str, Any]) -> str:
    """Why the members would refuse this user of the table; empty: they take it."""
    try:
        User.model_validate(user)
    except ValidationError as error:
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
    return ""


def merge(
    made: Sequence[Mapping[str, Any]],
    merged: Mapping[str, int],
    changes: Mapping[str, Sequence[Mapping[str, Any]]],
    managed: Collection[str],
) -> tuple[list[dict[str, Any]], dict[str, int], list[str]]:
    """Return the users of mqadmin after the changes, the new numbers by member, and what was not merged, in words.

    `managed`: AccessKeys of BrokerUsers and of the super user. mqadmin cannot change them for longer than a moment. The
    changes of several members are merged in the order of their times.
    """
    users = {str(u["name"]): dict(u) for u in made}
    numbers = dict(merged)
    unmerged = []
    valid: list[tuple[str, Change]] = []
    for member, reported in changes.items():
        for raw in reported:
            try:
                change = Change.model_validate(raw)
            except ValidationError:
                unmerged.append(f"a change of mqadmin at {member} is not understood")
                continue
            if change.number > merged.get(member, 0):
                valid.append((member, change))
    for member, change in sorted(valid, key=lambda pair: (pair[1].at_ms, pair[0], pair[1].number)):
        numbers[member] = max(numbers.get(member, 0), change.number)
        if change.name in managed:
            unmerged.append(
                f"{change.op} of {change.name} by mqadmin at {member} is undone: change its BrokerUser instead"
            )
        elif change.user is None:
            users.pop(change.name, None)
        else:
            users[change.name] = change.user.model_dump(mode="json")
    kept = [users[name] for name in sorted(users) if name not in managed]
    return kept, numbers, unmerged
