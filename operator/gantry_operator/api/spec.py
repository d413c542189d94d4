"""`BrokerCluster.spec`: what a user asks for."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from gantry_broker.settings import BrokerSettings
from pydantic import Field

from gantry_operator.api.analytics import Analytics
from gantry_operator.api.base import Duration, Model, Rule, VolumeSize, immutable, parse_duration
from gantry_operator.api.pods import Placement, Resources

RESERVED_GROUP_NAMES = ("namesrv", "master", "external", "config", "admin", "analytics", "broker")
"""These are ends of other objects' names, so a group of that name would collide with them."""

HOST_FIELDS = ("cluster", "namespace", "group", "name")
"""What a host template may contain, in braces. `name` is the pod or Service that the address leads to."""


def _unique_names(spec: BrokerClusterSpec) -> bool:
    names = [g.name for g in spec.brokerGroups]
    return len(set(names)) == len(names)


def _enough_members(spec: BrokerClusterSpec) -> bool:
    return all(g.members >= spec.minInSyncReplicas for g in spec.brokerGroups)


def _host_fields_known(host: str | None) -> bool:
    return host is None or set(re.findall(r"\{([^}]*)\}", host)) <= set(HOST_FIELDS)


MODE_IS_FIXED = (
    "while members change one by one, some would count a message as safe by the operator's in-sync set and others by a "
    "majority of the log's members, and what one promised the other could undo; write the former mode, or make a new "
    "cluster and let consumers finish this one"
)


class NameServers(Model):
    """The NameServers, where clients learn which broker serves a topic. They share nothing, any may die."""

    replicas: int = Field(2, ge=1, le=9, description="How many. Two are enough for one to be gone.")
    resources: Resources = Field(
        default_factory=lambda: Resources(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}),
        description="CPU and memory of each.",
    )


class BrokerGroup(Model):
    """One master and its slaves; each topic's queues lie on one or more groups."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9]*$",
        min_length=1,
        max_length=15,
        description="RocketMQ's brokerName: lower-case letters and digits, a letter first. Clients know it: it cannot "
        "be changed, only another group added.",
    )
    members: int = Field(
        3, ge=1, le=9, description="Brokers in the group: one master, the rest slaves. One alone has no failover."
    )

    preferredMaster: int | None = Field(
        None,
        ge=0,
        le=8,
        description="Number of the member that should be master: whenever it has been in sync for ten seconds and "
        "another one is master, it takes over by a planned hand-over. Left out: the present master stays; in mode "
        "Raft the masters of several groups are spread over the nodes.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.preferredMaster) || self.preferredMaster < self.members",
            "preferredMaster is no member of the group: write a number below members, the first member is 0",
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

    size: VolumeSize = Field("10Gi", description="Size of each volume. May grow where the class allows, never shrink.")
    className: str | None = Field(
        None, description="Storage class; left out: the default class. Cannot be changed.", max_length=253
    )

    transitions: ClassVar[tuple[dict[str, str], ...]] = (
        {
            "rule": "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "message": "size cannot shrink: write at least the size that the volumes have",
            "fieldPath": ".size",
        },
        {
            "rule": "has(self.className) == has(oldSelf.className) && "
            "(!has(self.className) || self.className == oldSelf.className)",
            "message": "className cannot be changed: the volumes exist; write the former class",
        },
    )


class Failover(Model):
    """When another member becomes master."""

    automatic: bool = Field(True, description="False: nothing is promoted by itself; `gantry switchover` still works.")
    detectionTimeout: Duration = Field(
        "2s",
        description="How long a master may be silent: 1500ms or more, as members report once a second. One whose "
        "process is gone is replaced at once.",
    )
    unclean: bool = Field(
        False,
        description="Promote a member that is not in sync when no other is left. LOSES acknowledged messages; "
        "an event says how many bytes.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.detectionTimeout) >= duration('1500ms') && "
            "duration(self.detectionTimeout) <= duration('5m')",
            "detectionTimeout must be from 1500ms to 5m: members report once a second, so a shorter silence means "
            "nothing; write 2s",
            lambda f: 1.5 <= parse_duration(f.detectionTimeout) <= 300,
            "detectionTimeout",
        ),
    )


class External(Model):
    """Addresses for clients outside Kubernetes.

    Clients that come through the external NameServer address are given external broker addresses; those inside get
    inner ones.
    """

    type: Literal["NodePort", "LoadBalancer"] = Field(description="Kind of the Services that are made.")
    host: str | None = Field(
        None,
        description="Host that clients outside reach, with {cluster}, {namespace}, {group} and {name} filled in, for "
        "example {name}.mq.example.com. Needed for NodePort (a name or address that leads to any node); with "
        "LoadBalancer left out: the address that the load balancer reports.",
        min_length=1,
        max_length=253,
        pattern=r"^[a-zA-Z0-9.{}_-]+$",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Put on these Services, for a load balancer or external-dns."
    )
    sourceRanges: list[str] = Field(
        default_factory=list, description="Only these networks may connect (LoadBalancer), for example 10.0.0.0/8.",
        max_length=64,
    )  # fmt: skip

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


class BrokerClusterSpec(Model):
    """What the cluster should be. Every field has a default but brokerGroups."""

    nameServers: NameServers = Field(default_factory=lambda: NameServers(), description="The NameServers.")
    brokerGroups: list[BrokerGroup] = Field(
        min_length=1,
        max_length=64,
        description="The broker groups. More may be added; removing one would lose its messages and is refused.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    mode: Literal["MasterSlave", "Raft"] = Field(
        "MasterSlave",
        description="Who decides on the master: the operator (MasterSlave) or the group itself by election (Raft), "
        "which needs three members or more; a majority counts there, not replication, minInSyncReplicas and failover.",
        json_schema_extra=immutable(f"mode cannot be changed on a cluster that exists: {MODE_IS_FIXED}"),
    )
    replication: Literal["Sync", "Async"] = Field(
        "Sync",
        description="Sync: SEND_OK says that every in-sync member has the message. Async: that the master has it; "
        "a failover may lose the last ones.",
    )
    minInSyncReplicas: int = Field(
        1,
        ge=1,
        le=9,
        description="In-sync members, the master included, below which no SEND_OK is given; with "
        "replication Async: below which consumers are shown nothing new.",
    )
    flush: Literal["Async", "Sync"] = Field(
        "Async", description="Sync: SEND_OK says that the message is on disk. Async: in the system's page cache."
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
        None, description="Image of brokers and NameServers; left out: the one named by the operator's chart. Another "
        "one has to be allowed there (image.allowed).", min_length=1, max_length=512,
    )  # fmt: skip
    imagePullPolicy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When nodes pull the image."
    )
    imagePullSecrets: list[str] = Field(
        default_factory=list, description="Names of Secrets with registry credentials.", max_length=16
    )
    placement: Placement = Field(default_factory=lambda: Placement(), description="Where the pods run.")
    failover: Failover = Field(default_factory=lambda: Failover(), description="When another member becomes master.")
    external: External | None = Field(None, description="Addresses for clients outside Kubernetes.")
    metricsNeedToken: bool = Field(
        False,
        description="Whether the brokers' /metrics, which names topics and groups, wants the admin token, as all else "
        "of their HTTP interface but health does.",
    )
    reclaim: Literal["Retain", "Delete"] = Field(
        "Retain", description="Whether volumes stay (Retain) or go (Delete) when the resource is deleted."
    )
    analytics: Analytics | None = Field(None, description="Reports by Spark; left out: none.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.mode != 'Raft' || self.brokerGroups.all(g, g.members >= 3)",
            "brokerGroups has a group that is too small for mode Raft, where a majority of two is both and of one "
            "nobody else: write members: 3 or more, or mode: MasterSlave",
            lambda s: s.mode != "Raft" or all(g.members >= 3 for g in s.brokerGroups),
            "brokerGroups",
        ),
        Rule(
            "self.brokerGroups.all(g, g.members >= self.minInSyncReplicas)",
            "minInSyncReplicas is above the members of a group, which could never acknowledge a message: write at most "
            "the smallest brokerGroups[].members",
            _enough_members,
            "minInSyncReplicas",
        ),
        Rule(
            "self.brokerGroups.all(g, self.brokerGroups.exists_one(h, h.name == g.name))",
            "brokerGroups has the same name twice: give each group a name of its own",
            _unique_names,
            "brokerGroups",
        ),
    )
    transitions: ClassVar[tuple[dict[str, str], ...]] = (
        {
            "rule": "oldSelf.brokerGroups.all(o, self.brokerGroups.exists(g, g.name == o.name))",
            "message": "brokerGroups lacks a group that exists: removing or renaming one would lose its messages; "
            "write it as before, and add new groups beside it",
            "fieldPath": ".brokerGroups",
        },
        {
            "rule": "self.broker.mappedFileSizeCommitLog == oldSelf.broker.mappedFileSizeCommitLog",
            "message": "broker.mappedFileSizeCommitLog cannot be changed: segments on disk have the former size; "
            "write the former value",
            "fieldPath": ".broker.mappedFileSizeCommitLog",
        },
        {
            "rule": "self.broker.mappedFileSizeConsumeQueue == oldSelf.broker.mappedFileSizeConsumeQueue",
            "message": "broker.mappedFileSizeConsumeQueue cannot be changed: files on disk have the former size; "
            "write the former value",
            "fieldPath": ".broker.mappedFileSizeConsumeQueue",
        },
    )
