"""From a spec to members, their configs and their order of replacement. Pure."""

from gantry_operator.plan.order import MemberState, Step, StepKind, next_step, replacement_order
from gantry_operator.plan.plan import GroupPlan, MemberPlan, NameServerPlan, Plan, ProxyPlan, member_name, plan
from gantry_operator.plan.process_config import (
    AUTHORITIES,
    CERTIFICATE,
    KEY,
    LIVE_FIELDS,
    BrokerAddresses,
    ProxyFiles,
    TlsFolders,
    broker_config,
    name_server_config,
    proxy_config,
    proxy_restarts,
    proxy_text,
    restarts,
    text_of,
)

__all__ = [
    "AUTHORITIES",
    "CERTIFICATE",
    "KEY",
    "LIVE_FIELDS",
    "BrokerAddresses",
    "GroupPlan",
    "MemberPlan",
    "MemberState",
    "NameServerPlan",
    "Plan",
    "ProxyFiles",
    "ProxyPlan",
    "Step",
    "StepKind",
    "TlsFolders",
    "broker_config",
    "member_name",
    "name_server_config",
    "next_step",
    "plan",
    "proxy_config",
    "proxy_restarts",
    "proxy_text",
    "replacement_order",
    "restarts",
    "text_of",
]
