"""`BrokerCluster.spec.security`: who may use the cluster, and how connections are protected."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gantry_operator.api.base import TOPIC, Model, Rule
from gantry_operator.api.tls import Peer, Tls

Authentication = Literal["Enabled", "Permissive", "Disabled"]

MAX_TOPIC_QUOTAS = 256
MAX_RATE = 2**40
"""Highest limit of bytes or messages a second: more than any broker can take."""


class TopicQuota(Model):
    """The most that all clients together may send to one topic, at each broker group's master."""

    topic: str = Field(description="Name of the topic.", min_length=1, max_length=127, pattern=TOPIC)
    bytesPerSecond: int | None = Field(None, ge=1, le=MAX_RATE, description="Bytes of messages a second.")
    messagesPerSecond: int | None = Field(None, ge=1, le=MAX_RATE, description="Messages a second.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.bytesPerSecond) || has(self.messagesPerSecond)",
            "the quota limits nothing: write bytesPerSecond, messagesPerSecond or both",
            lambda q: q.bytesPerSecond is not None or q.messagesPerSecond is not None,
        ),
    )


class Security(Model):
    """Who may use the cluster, and how connections are protected."""

    authentication: Authentication | None = Field(
        None,
        description="Enabled: clients sign their requests with the key of a BrokerUser. Permissive: a request without "
        "a signature is allowed and counted (gantry_access_anonymous_total); a wrong signature is refused. Disabled: "
        "every client that reaches a port may do everything. Default: Enabled in Kubernetes; on one machine Disabled "
        "on loopback addresses and Enabled on others.",
    )
    topicQuotas: list[TopicQuota] = Field(
        default_factory=list,
        max_length=MAX_TOPIC_QUOTAS,
        description="Limits for the sends to single topics, by all users together.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["topic"]},
    )
    tls: Tls = Field(default_factory=lambda: Tls(), description="Encrypted connections.")
    allowedClients: list[Peer] = Field(
        default_factory=list,
        max_length=64,
        description="Clients that may connect to the ports for clients, as peers of a NetworkPolicy. Empty: all. The "
        "cluster's members, the operator and the console always may.",
    )

    @field_validator("topicQuotas")
    @classmethod
    def _one_for_each_topic(cls, quotas: list[TopicQuota]) -> list[TopicQuota]:
        """Refuse two quotas for one topic, as the API server does by the list's key."""
        topics = [q.topic for q in quotas]
        twice = next((t for t in topics if topics.count(t) > 1), None)
        if twice is not None:
            message = f"{twice} has two entries: write one for each topic"
            raise PydanticCustomError("rule", "{message}", {"message": message, "field": ""})
        return quotas

    def mode(self, *, loopback: bool = False) -> Authentication:
        """Return the authentication that holds. `loopback`: all addresses of the cluster are of this machine alone."""
        return self.authentication or ("Disabled" if loopback else "Enabled")
