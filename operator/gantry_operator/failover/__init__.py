"""Who is master: observations in, decisions out, each with its reason.

`decide` is pure: time, the registry's content and what was heard of the members are arguments. `loop` is the one
asyncio edge that drives it, in local mode and on Kubernetes alike.
"""

from gantry_operator.failover.decide import decide
from gantry_operator.failover.model import (
    Bootstrap,
    CancelHandover,
    Decision,
    Demote,
    ExpandInSyncSet,
    FailoverSettings,
    FollowerView,
    HandoverReady,
    MemberView,
    Observation,
    Promote,
    Recover,
    RejectProposal,
    Report,
    RequestHandover,
    SendAssignment,
    ShrinkInSyncSet,
    Switchover,
    Wait,
    Write,
)

__all__ = [
    "Bootstrap",
    "CancelHandover",
    "Decision",
    "Demote",
    "ExpandInSyncSet",
    "FailoverSettings",
    "FollowerView",
    "HandoverReady",
    "MemberView",
    "Observation",
    "Promote",
    "Recover",
    "RejectProposal",
    "Report",
    "RequestHandover",
    "SendAssignment",
    "ShrinkInSyncSet",
    "Switchover",
    "Wait",
    "Write",
    "decide",
]
