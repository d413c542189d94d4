"""A user of a cluster: `BrokerUser` of `gantry.dev`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gantry_operator.api.annotations import GROUP
from gantry_operator.api.base import (
    ACCESS_KEY,
    OBJECT_NAME,
    RESOURCE,
    SECRET_KEY,
    SOURCE,
    AnyCondition,
    Duration,
    Model,
    Observed,
    Rule,
    Strict,
    between,
    either,
    parse_duration,
)
from gantry_operator.api.beside import BesideCluster, cluster_field
from gantry_operator.api.cluster import name_rule
from gantry_operator.api.security import MAX_RATE

KIND = "BrokerUser"
PLURAL = "brokerusers"
SINGULAR = "brokeruser"
SHORT_NAME = "bu"

ROTATE = f"{GROUP}/rotate"
"""Annotation: each new value makes a new secret key. The former key stays valid for `spec.rotation.overlap`."""

MAX_USER_NAME = 63
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"

MIN_SECRET_KEY, MAX_SECRET_KEY = 8, 256
"""Characters of a secret key."""

Source = Annotated[str, Field(pattern=SOURCE, max_length=64)]
"""An address, or a network as address/bits."""

Action = Literal["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "Any"]


class AccessRule(Model):
    """One permission or prohibition. Of the rules that match, the most exact one decides: a literal name before a
    prefix, a longer prefix before a shorter one, a prefix before every name; between equals Deny. What no rule allows
    is refused.
    """

    type: Literal["Topic", "Group", "Cluster", "Any"] = Field(
        description="Kind of the resource: topics, consumer groups, the cluster itself, or all of them."
    )
    name: str = Field(
        "", description="Name of the resource, or its beginning with pattern Prefix.", max_length=255,
        pattern=RESOURCE,
    )  # fmt: skip
    pattern: Literal["Literal", "Prefix", "Any"] = Field(
        "Literal", description="Literal: exactly this name. Prefix: every name that begins with it. Any: every name."
    )
    actions: list[Action] = Field(
        min_length=1,
        max_length=8,
        description="Pub: send. Sub: consume, store positions. Create, Update, Delete, Get and List: administer. "
        "Any: all of them.",
    )
    decision: Literal["Allow", "Deny"] = Field("Allow", description="Whether the actions are allowed or refused.")
    sources: list[Source] = Field(
        default_factory=list,
        max_length=64,
        description="Networks from which the rule holds, such as 10.0.0.0/8. Empty: from everywhere.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{either('self.pattern', 'Literal')} == 'Any' || {either('self.name', '')} != ''",
            "name is missing: write the name of the topic or group, or pattern: Any for all of them",
            lambda r: r.pattern == "Any" or r.name != "",
            "name",
        ),
        Rule(
            f"{either('self.pattern', 'Literal')} != 'Any' || {either('self.name', '')} == ''",
            "name has no meaning with pattern Any: leave it out, or write pattern: Literal or Prefix",
            lambda r: r.pattern != "Any" or r.name == "",
            "name",
        ),
    )


class UserQuotas(Strict):
    """The most that a user may send and open."""

    bytesPerSecond: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Bytes of messages a second, at each master or proxy."
    )
    messagesPerSecond: int | None = Field(
        None, ge=1, le=MAX_RATE, description="Messages a second, at each master or proxy."
    )
    connections: int | None = Field(
        None, ge=1, le=1_000_000, description="Connections to each member; proxies count none."
    )


class SecretReference(Strict):
    """A key of a Secret in the namespace of the BrokerUser."""

    name: str = Field(
        description="Name of the Secret. It needs the label gantry.dev/cluster with the cluster's name.",
        min_length=1, max_length=253, pattern=OBJECT_NAME,
    )  # fmt: skip
    key: str = Field(
        "secretKey", description="Key of the Secret with the secret key.", min_length=1, max_length=253,
        pattern=SECRET_KEY,
    )  # fmt: skip


class Rotation(Model):
    """Changes of the secret key."""

    overlap: Duration = Field(
        "1h",
        description="Time for which the former secret key stays valid after a change, at most 168h. 0s: not at all.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            between("overlap", "0s", "168h"),
            "overlap is too long: write 168h or less",
            lambda r: parse_duration(r.overlap) <= 168 * 3600,
            "overlap",
        ),
    )


class BrokerUserSpec(Strict):
    """The user's rights and the place of its secret key."""

    cluster: str = cluster_field("BrokerUser")
    accessKey: str | None = Field(
        None,
        description="The user's name in clients (RocketMQ's AccessKey). Default: metadata.name.",
        min_length=1,
        max_length=128,
        pattern=ACCESS_KEY,
    )
    secret: SecretReference | None = Field(
        None,
        description="An existing Secret with the secret key; a change of it is a rotation. Default: the operator makes "
        "the Secret <cluster>-user-<name> with the keys accessKey and secretKey.",
    )
    superUser: bool = Field(False, description="A super user may do everything, whatever the rules say.")
    enabled: bool = Field(True, description="False: every request of this user is refused.")
    rules: list[AccessRule] = Field(
        default_factory=list, max_length=256, description="What the user may do. Without rules: nothing."
    )
    quotas: UserQuotas = Field(default_factory=lambda: UserQuotas(), description="Limits of this user.")
    rotation: Rotation = Field(default_factory=lambda: Rotation(), description="Changes of the secret key.")


class UserCondition(AnyCondition):
    """One aspect of the state, as in every Kubernetes object."""

    type: Literal["Ready"] = Field(description="Ready: the brokers know the user as the spec says.")


class BrokerUserStatus(Observed):
    """The state of the user. It contains no secret."""

    observedGeneration: int | None = Field(None, description="Generation of the spec that this describes.")
    accessKey: str = Field("", description="The user's name in clients.")
    superUser: bool = Field(False, description="Whether the spec makes it a super user.")
    secret: str = Field("", description="Name of the Secret with the keys.")
    keys: int = Field(0, description="Number of valid secret keys: 2 during the overlap of a rotation.")
    oldKeyExpires: str | None = Field(None, description="Time at which the former secret key becomes invalid.")
    conditions: list[UserCondition] = Field(
        default_factory=list,
        description="Ready: the brokers know the user as the spec says.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


class BrokerUser(BesideCluster):
    """A user of a broker cluster: its rights, its limits and the place of its secret key."""

    kind: Literal["BrokerUser"]
    spec: BrokerUserSpec = Field(description="The user's rights and the place of its secret key.")
    status: BrokerUserStatus = Field(
        default_factory=lambda: BrokerUserStatus(), description="Observed state, written by the operator."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        name_rule(MAX_USER_NAME, _NAME, "digits, '-' and '.', a letter or digit first and last"),
    )

    @property
    def access_key(self) -> str:
        return self.spec.accessKey or self.metadata.name
