"""Users' switchover requests in annotations of the cluster, and the answers. Pure."""

from __future__ import annotations

import re
import uuid

from gantry_broker.contracts.leadership import LeadershipRecord

from gantry_operator.api.annotations import GROUP

SWITCHOVER = f"{GROUP}/switchover"
"""Annotation `GROUP` or `GROUP=MEMBER`. An optional ` #id` distinguishes equal requests."""
SWITCHOVER_RESULT = f"{GROUP}/switchover-result"
"""Annotation with the request, then "done: ..." or "failed: ..."."""


SWITCHOVER_BEGUN = f"{GROUP}/switchover-begun"
"""Written by the operator: a request without a target member, and the leader at its start. The best candidate changes
with each switchover. An operator that takes over therefore needs to know whether the request has succeeded already."""


def begun(request: str, leadership: LeadershipRecord) -> str:
    master = None if leadership.master is None else leadership.master.member
    return f"{request} in epoch {leadership.epoch} of member {master}"


def led_since(noted: str | None, request: str, leadership: LeadershipRecord) -> int | None:
    """Return the present leader, if it differs from the leader at the start of this request; None: no result yet."""
    mark = re.fullmatch(r" in epoch ([0-9]{1,19}) of member ([0-9]+|None)", (noted or "").removeprefix(request))
    if mark is None or noted == mark[0] or leadership.master is None or leadership.epoch <= int(mark[1]):
        return None
    return None if str(leadership.master.member) == mark[2] else leadership.master.member


def new_switchover_request(group: str, to: str | None) -> str:
    return f"{group}{'' if to is None else f'={to}'} #{uuid.uuid4().hex[:8]}"


def parse_switchover(text: str) -> tuple[str, str | None]:
    """Return the names of the group and of the member that is to lead; None: no certain one."""
    request = text.split(" #")[0].strip()
    group, _, member = request.partition("=")
    return group, member or None
