"""`BrokerCluster.spec`: the desired state."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from gantry_broker.settings import BrokerSettings
from pydantic import Field

from gantry_operator.api.analytics import Analytics
from gantry_operator.api.base import (
    BROKER_NAME,
    GROUP_NAME,
    HOST,
    Duration,
    Model,
    Rule,
    Url,
    VolumeSize,
    between,
    either,
    fixed,
    more_than_nothing,
    parse_duration,
)
from gantry_operator.api.maintenance import MaintenanceWindow
from gantry_operator.api.pod_template import PodTemplate
from gantry_operator.api.pods import Placement, Resources
from gantry_operator.api.security import Security
from gantry_operator.api.tls import INTERNAL_IN_KUBERNETES

RESERVED_GROUP_NAMES = ("namesrv", "master", "external", "config", "admin", "analytics", "broker")
"""Ends of other objects' names: a group with such a name would collide with them."""

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

HOST_FIELDS = ("cluster", "namespace", "group", "name")
"""Fields in braces of a host template. `name` is the pod or Service of the address."""


def _unique_names(spec: BrokerClusterSpec) -> bool:
    names = [g.name for g in spec.brokerGroups]
    return len(set(names)) == len(names)


def _unique_broker_names(spec: BrokerClusterSpec) -> bool:
    names = [g.broker_name for g in spec.brokerGroups]
    return len(set(names)) == len(names)


def _rocketmq_name(group: str) -> str:
    """CEL: RocketMQ's name of a group."""
    return f"(has({group}.brokerName) ? {group}.brokerName : {group}.name)"


def _enough_members(spec: BrokerClusterSpec) -> bool:
    return all(g.members >= spec.minInSyncReplicas for g in spec.brokerGroups)


def _host_fields_known(host: str | None) -> bool:
    return host is None or set(re.findall(r"\{([^}]*)\}", host)) <= set(HOST_FIELDS)


def _outside_is_protected(spec: BrokerClusterSpec) -> bool:
    security = spec.security
    if spec.external is None or spec.external.unprotected:
        return True
    return security.tls.mode == "Required" and security.mode() == "Enabled"


MODE_IS_FIXED = (
    "while members change one by one, some would acknowledge by the operator's in-sync set and others by a "
    "majority of the members, so acknowledged messages could be lost; write the former mode, or create a new "
    "cluster and let consumers finish this one"
)


class NameServers(Model):
    """The NameServers, which tell clients the brokers of a topic. They share no state, and each may fail."""

    replicas: int = Field(2, ge=1, le=9, description="Number of NameServers. With two, one may fail.")
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}),
        description="CPU and memory of each.",
    )
    podTemplate: PodTemplate | None = Field(None, description="Additions to the NameServers' pods. Kubernetes only.")
    logLevel: LogLevel = Field("INFO", description="Log level. A change restarts nothing.")


class BrokerGroup(Model):
    """One master and its slaves; each topic's queues lie on one or more groups."""

    name: str = Field(
        pattern=GROUP_NAME,
        min_length=1,
        max_length=15,
        description="Its name in Kubernetes, and RocketMQ's brokerName unless brokerName says otherwise: lower-case "
        "letters and digits, a letter first. It cannot be changed. Further groups can be added.",
    )
    brokerName: str | None = Field(
        None,
        pattern=BROKER_NAME,
        min_length=1,
        max_length=64,
        description="RocketMQ's brokerName as clients and mqadmin see it, for example broker-a. It cannot be changed. "
        "Default: name.",
    )
    members: int = Field(
        3, ge=1, le=9, description="Brokers in the group: one master, the rest slaves. A group of one has no failover."
    )

    preferredMaster: int | None = Field(
        None,
        ge=0,
        le=8,
        description="Number of the preferred master. Once it has been in sync for ten seconds while "
        "another member is master, it takes over by a switchover. Default: the master does not change; in mode "
        "Raft the masters of several groups are spread over the nodes.",
    )

    @property
    def broker_name(self) -> str:
        return self.brokerName or self.name

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.preferredMaster) || self.preferredMaster < {either('self.members', 3)}",
            "preferredMaster is no member of the group: write a number below members (the first member is 0)",
            lambda g: g.preferredMaster is None or g.preferredMaster < g.members,
            "preferredMaster",
        ),
        Rule(
            f"!(self.name in {list(RESERVED_GROUP_NAMES)!r})",
            f"name is reserved: write another than {', '.join(RESERVED_GROUP_NAMES)}",
            lambda g: g.name not in RESERVED_GROUP_NAMES,
            "name",
        ),
    )


class Storage(Model):
    """The volume of each broker."""

    size: VolumeSize = Field(
        "10Gi",
        description="Size of each volume. It may grow if the storage class allows it, and never shrinks once "
        "volumes exist.",
    )
    className: str | None = Field(
        None,
        description="Storage class. Default: the default class. It cannot be changed once volumes exist.",
        max_length=253,
    )

    rules: ClassVar[tuple[Rule, ...]] = (more_than_nothing("size"),)


class Failover(Model):
    """Conditions for a new master."""

    automatic: bool = Field(True, description="False: no automatic promotion; `gantry switchover` still works.")
    detectionTimeout: Duration = Field(
        "2s",
        description="Allowed silence of a master: 1500ms or more, because members report once a second. A master "
        "without a running process is replaced at once.",
    )
    unclean: bool = Field(
        False,
        description="Promote a member that is not in sync if no other is left. LOSES acknowledged messages; "
        "an event reports the number of bytes.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            between("detectionTimeout", "1500ms", "5m"),
            "detectionTimeout must be from 1500ms to 5m: members report once a second, so a shorter silence means "
            "nothing; write 2s",
            lambda f: 1.5 <= parse_duration(f.detectionTimeout) <= 300,
            "detectionTimeout",
        ),
    )


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
        default_factory=dict, description="Annotations of these Services, for a load balancer or external-dns."
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


class Otlp(Model):
    """Push of the brokers' metrics to an OpenTelemetry collector, by OTLP over HTTP."""

    endpoint: Url = Field(
        description="Base URL of the collector, for example http://collector.monitoring:4318. /v1/metrics is added.",
    )
    interval: Duration = Field("60s", description="Time between two pushes, 1s to 1h.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            between("interval", "1s", "1h"),
            "interval is out of range: write 1s to 1h",
            lambda o: 1 <= parse_duration(o.interval) <= 3_600,
            "interval",
        ),
    )


class BrokerClusterSpec(Model):
    """Desired state of the cluster. Every field but brokerGroups has a default."""

    brokerClusterName: str | None = Field(
        None,
        pattern=BROKER_NAME,
        min_length=1,
        max_length=64,
        description="RocketMQ's cluster name as clients, mqadmin and dashboards see it, for example DefaultCluster. It "
        "cannot be changed. Default: metadata.name.",
    )
    nameServers: NameServers = Field(default_factory=lambda: NameServers(), description="The NameServers.")
    brokerGroups: list[BrokerGroup] = Field(
        min_length=1,
        max_length=64,
        description="The broker groups. Groups may be added. Removing one would lose its messages and is refused.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    mode: Literal["MasterSlave", "Raft"] = Field(
        "MasterSlave",
        description="How the master is chosen: by the operator (MasterSlave), or by the group's election (Raft), "
        "which needs three members or more and ignores replication, minInSyncReplicas and failover: a majority counts.",
    )
    replication: Literal["Sync", "Async"] = Field(
        "Sync",
        description="Sync: SEND_OK means that every in-sync member has the message. Async: only the master has it, and "
        "a failover may lose the newest messages.",
    )
    minInSyncReplicas: int = Field(
        1,
        ge=1,
        le=9,
        description="Minimum of in-sync members, the master included, for a SEND_OK; with "
        "replication Async: for new messages to consumers.",
    )
    flush: Literal["Async", "Sync"] = Field(
        "Async", description="Sync: SEND_OK means that the message is on disk. Async: in the system's page cache."
    )
    broker: BrokerSettings = Field(
        default_factory=lambda: BrokerSettings(), description="Broker settings under RocketMQ's own names."
    )
    storage: Storage = Field(default_factory=lambda: Storage(), description="The volume of each broker.")
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"}),
        description="CPU and memory of each broker.",
    )
    image: str | None = Field(
        None, description="Image of brokers and NameServers. Default: the image in the operator's chart. The chart "
        "must allow any other image (image.allowed).", min_length=1, max_length=512,
    )  # fmt: skip
    imagePullPolicy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="Condition for nodes to pull the image."
    )
    imagePullSecrets: list[str] = Field(
        default_factory=list, description="Names of Secrets with registry credentials.", max_length=16
    )
    podTemplate: PodTemplate | None = Field(None, description="Additions to the brokers' pods. Kubernetes only.")
    serviceAccountAnnotations: dict[str, str] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of the pods' ServiceAccount, for an identity in a cloud. Kubernetes only.",
    )
    placement: Placement = Field(default_factory=lambda: Placement(), description="Placement of the pods.")
    failover: Failover = Field(default_factory=lambda: Failover(), description="Conditions for a new master.")
    external: External | None = Field(None, description="Addresses for clients outside Kubernetes.")
    security: Security = Field(
        default_factory=lambda: Security(),
        description="Who may use the cluster, and how connections are protected.",
    )
    metricsNeedToken: bool = Field(
        False,
        description="Whether the brokers' /metrics, which names topics and groups, requires the admin token, like all "
        "else of their HTTP interface except health.",
    )
    otlp: Otlp | None = Field(None, description="Push of metrics by OTLP. Default: none.")
    hibernate: bool = Field(
        False,
        description="Stop all processes in the safe order, and keep volumes, leadership records and addresses. "
        "False again: the cluster goes on where it stopped.",
    )
    maintenanceWindow: MaintenanceWindow | None = Field(
        None, description="When members may be replaced for changes that are not urgent. Default: at any time."
    )
    logLevel: LogLevel = Field("INFO", description="Log level of the brokers. A change restarts nothing.")
    reclaim: Literal["Retain", "Delete"] = Field(
        "Retain", description="Whether volumes are kept (Retain) or deleted (Delete) together with the resource."
    )
    analytics: Analytics | None = Field(None, description="Reports by Spark. Default: none.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{either('self.mode', 'MasterSlave')} != 'Raft' || "
            f"self.brokerGroups.all(g, {either('g.members', 3)} >= 3)",
            "brokerGroups has a group that is too small for mode Raft, which needs a majority after a failure: "
            "write members: 3 or more, or mode: MasterSlave",
            lambda s: s.mode != "Raft" or all(g.members >= 3 for g in s.brokerGroups),
            "brokerGroups",
        ),
        Rule(
            f"self.brokerGroups.all(g, {either('g.members', 3)} >= {either('self.minInSyncReplicas', 1)})",
            "minInSyncReplicas exceeds the members of a group, which could never acknowledge a message: write at most "
            "the smallest brokerGroups[].members",
            _enough_members,
            "minInSyncReplicas",
        ),
        Rule(
            "self.brokerGroups.all(g, self.brokerGroups.exists_one(h, h.name == g.name))",
            "brokerGroups has the same name twice: give each group its own name",
            _unique_names,
            "brokerGroups",
        ),
        Rule(
            f"self.brokerGroups.all(g, self.brokerGroups.exists_one(h, "
            f"{_rocketmq_name('h')} == {_rocketmq_name('g')}))",
            "brokerGroups has the same brokerName twice (a group without one has its name): give each group its own "
            "brokerName",
            _unique_broker_names,
            "brokerGroups",
        ),
        Rule(
            f"!has(self.external) || {either('self.external.unprotected', False)} || "
            f"({either('self.security.tls.mode', 'Disabled')} == 'Required' && "
            f"{either('self.security.authentication', 'Enabled')} == 'Enabled')",
            "external opens the cluster to clients outside without authentication and TLS: write "
            "security.tls.mode: Required and leave security.authentication at Enabled, or write "
            "external.unprotected: true if everybody who reaches the addresses may use the cluster in clear text",
            _outside_is_protected,
            "external",
        ),
    )
    transitions: ClassVar[tuple[dict[str, str], ...]] = (
        {
            "rule": "oldSelf.brokerGroups.all(o, self.brokerGroups.exists(g, g.name == o.name))",
            "message": "brokerGroups lacks a group that exists: removing or renaming one would lose its messages; "
            "write it as before, and add new groups beside it",
            "fieldPath": ".brokerGroups",
        },
        fixed(
            "self.security.tls.internal",
            INTERNAL_IN_KUBERNETES,
            "security.tls.internal cannot be changed on a cluster that exists: members with TLS and members without it "
            "could not reach each other while they are replaced; write the former value",
        ),
        fixed(
            "self.brokerClusterName",
            "",
            "brokerClusterName cannot be changed: clients, messages and consumers' progress have the former name; "
            "write it as before",
        ),
        {
            "rule": "oldSelf.brokerGroups.all(o, self.brokerGroups.all(g, g.name != o.name || "
            f"{_rocketmq_name('g')} == {_rocketmq_name('o')}))",
            "message": "brokerName of a group cannot be changed: clients and consumers' progress have the former name; "
            "write it as before",
            "fieldPath": ".brokerGroups",
        },
        fixed("self.mode", "MasterSlave", f"mode cannot be changed on a cluster that exists: {MODE_IS_FIXED}"),
        fixed(
            "self.broker.mappedFileSizeCommitLog",
            BrokerSettings().mappedFileSizeCommitLog,
            "broker.mappedFileSizeCommitLog cannot be changed: segments on disk have the former size; "
            "write the former value",
        ),
        fixed(
            "self.broker.mappedFileSizeConsumeQueue",
            BrokerSettings().mappedFileSizeConsumeQueue,
            "broker.mappedFileSizeConsumeQueue cannot be changed: files on disk have the former size; "
            "write the former value",
        ),
    )
