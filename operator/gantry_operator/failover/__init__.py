"""Leader decisions of one group: observations in, decisions out, each with its reason.

`decide` is pure. Time, the registry's content and the members' reports are arguments. The group controllers in
`cluster` call it, in local mode and on Kubernetes alike.
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
    Retire,
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
    "Retire",
    "SendAssignment",
    "ShrinkInSyncSet",
    "Switchover",
    "Wait",
    "Write",
    "decide",
]
