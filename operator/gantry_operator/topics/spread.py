"""The queues of a topic in each broker group. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def queues_by_group(
    total: int | None, per_group: int | None, groups: Sequence[str], draining: Collection[str] = ()
) -> dict[str, int]:
    """Return the queues that take messages, by broker group; a group that drains is left out.

    `total` is spread evenly in the order of `groups`: the first ones get one more, and with fewer queues than groups
    the last ones get none. `per_group`: as many in each. The caller gives one of them.
    """
    taking = [g for g in groups if g not in draining]
    if total is None:
        assert per_group is not None
        return dict.fromkeys(taking, per_group)
    if not taking:
        return {}
    each, more = divmod(total, len(taking))
    return {group: each + (number < more) for number, group in enumerate(taking)}
