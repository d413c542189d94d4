"""What people ask of the operator by annotations on the cluster, and the answers. Pure."""

from __future__ import annotations

import uuid

from gantry_operator.api import GROUP
from gantry_operator.plan import Plan

SWITCHOVER = f"{GROUP}/switchover"
"""`GROUP`, or `GROUP=MEMBER`; ` #id` may follow, so that the same wish twice is two wishes."""
SWITCHOVER_RESULT = f"{GROUP}/switchover-result"
"""The wish, then "done: ..." or "failed: ..."."""


def switchover_wish(group: str, to: str | None) -> str:
    return f"{group}{'' if to is None else f'={to}'} #{uuid.uuid4().hex[:8]}"


def parse_switchover(text: str, plan: Plan) -> tuple[str, int | None]:
    """Group and member number. Raises ValueError with what is known instead."""
    wish = text.split(" #")[0].strip()
    group, _, member = wish.partition("=")
    try:
        known = plan.group(group)
        if not member:
            return group, None
        found = plan.member(member)
    except KeyError as error:
        raise ValueError(str(error.args[0])) from None
    if found not in known.members:
        raise ValueError(f"{found.name} is a member of group {found.group}, not of {group}")
    return group, found.number
