"""From a spec to who runs, with which config, and in which order they may be replaced. Pure."""

from gantry_operator.plan.order import MemberState, Step, StepKind, next_step, replacement_order
from gantry_operator.plan.plan import GroupPlan, MemberPlan, NameServerPlan, Plan, member_name, plan
from gantry_operator.plan.process_config import BrokerAddresses, broker_config, name_server_config

__all__ = [
    "BrokerAddresses",
    "GroupPlan",
    "MemberPlan",
    "MemberState",
    "NameServerPlan",
    "Plan",
    "Step",
    "StepKind",
    "broker_config",
    "member_name",
    "name_server_config",
    "next_step",
    "plan",
    "replacement_order",
]
