"""Addresses for clients outside Kubernetes, as parts of `BrokerCluster.spec`."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from gantry_operator.api.base import HOST, Model, Rule

HOST_FIELDS = ("cluster", "namespace", "group", "name")
"""Fields in braces of a host template. `name` is the pod or Service of the address."""


def _host_fields_known(host: str | None) -> bool:
    return host is None or set(re.findall(r"\{([^}]*)\}", host)) <= set(HOST_FIELDS)


class External(Model):
    """Addresses for clients outside Kubernetes.

    Clients at the external NameServer address get external broker addresses. Clients inside get internal ones.
    """

    type: Literal["NodePort", "LoadBalancer"] = Field(description="Type of the Services.")
    host: str | None = Field(
        None,
        description="Host for clients outside, with {cluster}, {namespace}, {group} and {name} filled in, for "
        "example {name}.mq.example.com. Required for NodePort (a name or address of any node). Default with "
        "LoadBalancer: the address that the load balancer reports.",
        min_length=1,
        max_length=253,
        pattern=HOST,
    )
    annotations: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="Annotations of these Services, for a load balancer or external-dns. Those that take a name or an "
        "address need external.allowedHosts or external.allowedAnnotations in the operator's chart.",
    )
    sourceRanges: list[str] = Field(
        default_factory=list, description="Networks that may connect (LoadBalancer), such as 10.0.0.0/8. Empty: all.",
        max_length=64,
    )  # fmt: skip

    unprotected: bool = Field(
        False,
        description="Allow external addresses although clients need no signature or no TLS: everybody who reaches them "
        "may then read, change or listen to all messages.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type != 'NodePort' || has(self.host)",
            "host is missing: with type NodePort write the name or address of a node (or of all) that clients reach",
            lambda e: e.type != "NodePort" or e.host is not None,
        ),
        Rule(
            "!has(self.host) || self.host.replace('{cluster}', '').replace('{namespace}', '').replace('{group}', '')"
            ".replace('{name}', '').matches('^[a-zA-Z0-9._-]*$')",
            "host has an unknown field in braces: write {cluster}, {namespace}, {group} or {name}",
            lambda e: _host_fields_known(e.host),
        ),
    )
