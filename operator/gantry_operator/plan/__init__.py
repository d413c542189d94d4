"""From a spec to members, their configs and their order of replacement. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.lazily import lazily

from gantry_operator.plan.plan import GroupPlan, MemberPlan, NameServerPlan, Plan, ProxyPlan, member_name, plan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE, KEY

if TYPE_CHECKING:
    from gantry_operator.plan.order import MemberState, Step, StepKind, next_step, replacement_order
    from gantry_operator.plan.process_config import (
        LIVE_FIELDS,
        ArchiveFiles,
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
    "ArchiveFiles",
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

__getattr__ = lazily(
    __name__,
    {
        "gantry_operator.plan.order": "MemberState Step StepKind next_step replacement_order",
        "gantry_operator.plan.process_config": (
            "LIVE_FIELDS ArchiveFiles BrokerAddresses ProxyFiles TlsFolders broker_config "
            "name_server_config proxy_config proxy_restarts proxy_text restarts text_of"
        ),
    },
)
