"""What people ask of the operator by annotations on the cluster, and the answers. Pure."""

from __future__ import annotations

import re
import uuid

from gantry_broker.replication.types import Cell

from gantry_operator.api import GROUP
from gantry_operator.plan import Plan

SWITCHOVER = f"{GROUP}/switchover"
"""`GROUP`, or `GROUP=MEMBER`; ` #id` may follow, so that the same wish twice is two wishes."""
SWITCHOVER_RESULT = f"{GROUP}/switchover-result"
"""The wish, then "done: ..." or "failed: ..."."""


SWITCHOVER_BEGUN = f"{GROUP}/switchover-begun"
"""The operator's own: a wish without a member, and who led when it was begun. Who is the best of the others is somebody
else each time, so an operator that ends before it has answered leaves this to the next one."""


def begun(wish: str, cell: Cell) -> str:
    return f"{wish} in epoch {cell.epoch} of member {None if cell.master is None else cell.master.member}"


def led_since(noted: str | None, wish: str, cell: Cell) -> int | None:
    """The member that leads instead of the one that led when this wish was begun; None: nothing came of it yet."""
    found = re.fullmatch(r" in epoch (\d+) of member (\d+|None)", (noted or "").removeprefix(wish))
    if found is None or noted == found[0] or cell.master is None or cell.epoch <= int(found[1]):
        return None
    return None if str(cell.master.member) == found[2] else cell.master.member


def switchover_wish(group: str, to: str | None) -> str:
    return f"{group}{'' if to is None else f'={to}'} #{uuid.uuid4().hex[:8]}"


def parse_switchover(text: str, plan: Plan) -> tuple[str, int | None]:
    """Group and member number. Raises ValueError with what is known instead."""
    wish = text.split(" #")[0].strip()
    group, _, member = wish.partition("=")
    try:
        plan.group(group)
        return group, plan.member_of(group, member).number if member else None
    except KeyError as error:
        raise ValueError(str(error.args[0])) from None
