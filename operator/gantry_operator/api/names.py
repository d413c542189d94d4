"""Names of topics and consumer groups in resources: what brokers accept, without RocketMQ's own names."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    PREDEFINED_GROUPS,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)

from gantry_operator.api.base import Rule
from gantry_operator.api.cluster import name_rule
from gantry_operator.api.reserved_names import SYSTEM_GROUP_PREFIX, reserved_group, reserved_topic

RESOURCE_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
MAX_RESOURCE_NAME = 120


def _reserved_cel(field: str, names: Iterable[str], prefixes: Iterable[str]) -> str:
    """CEL: the field is absent, or no reserved name."""
    value = f"self.{field}"
    listed = ", ".join(json.dumps(n) for n in sorted(names))
    parts = [f"!({value} in [{listed}])", *(f"!{value}.startsWith({json.dumps(p)})" for p in prefixes)]
    return f"!has({value}) || ({' && '.join(parts)})"


def reserved_topic_rule(field: str) -> Rule:
    return Rule(
        _reserved_cel(field, SYSTEM_TOPICS, (SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX)),
        f"{field} is a topic of the system, which brokers manage themselves: write the name of a topic of yours",
        lambda spec: getattr(spec, field) is None or not reserved_topic(getattr(spec, field)),
        field,
    )


def reserved_group_rule(field: str) -> Rule:
    return Rule(
        _reserved_cel(field, PREDEFINED_GROUPS, (SYSTEM_GROUP_PREFIX, RETRY_PREFIX, DLQ_PREFIX)),
        f"{field} is a group of the system, which brokers manage themselves: write the name of a group of yours",
        lambda spec: getattr(spec, field) is None or not reserved_group(getattr(spec, field)),
        field,
    )


def default_name_rule(field: str, what: str) -> Rule:
    """Of the resource: its own name is the default, and a name with dots is none that brokers accept."""
    return Rule(
        f"has(self.spec.{field}) || !self.metadata.name.contains('.')",
        f"metadata.name has a dot, which names of {what} have not: write spec.{field}, or a name without dots",
        lambda resource: getattr(resource.spec, field) is not None or "." not in resource.metadata.name,
        "",
    )


def resource_name_rule() -> Rule:
    return name_rule(MAX_RESOURCE_NAME, RESOURCE_NAME, "digits, '-' and '.', a letter or digit first and last")


def fixed(field: str, kind: str) -> dict[str, str]:
    """Return a rule of the spec: the field keeps its value, and stays absent if it was absent. For the API server
    alone.
    """
    return {
        "rule": f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        "message": f"{field} cannot be changed: write the former value, or create another {kind}",
        "fieldPath": f".{field}",
    }
