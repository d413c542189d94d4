"""`BrokerCluster.spec`: the desired state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from gantry_broker.settings import BrokerSettings
from pydantic import Field

from gantry_operator.api.analytics import Analytics
from gantry_operator.api.archive import Archive, Bootstrap, fixed_bootstrap
from gantry_operator.api.base import (
    BROKER_NAME,
    GROUP_NAME,
    LABEL_VALUE,
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
from gantry_operator.api.external import External
from gantry_operator.api.maintenance import MaintenanceWindow
from gantry_operator.api.pod_template import PodTemplate
from gantry_operator.api.pods import BrokerResources, NameServerResources, Placement, Resources
from gantry_operator.api.proxy import Proxy
from gantry_operator.api.security import Security
from gantry_operator.api.table import Tables
from gantry_operator.api.tls import INTERNAL_IN_KUBERNETES

RESERVED_GROUP_NAMES = ("namesrv", "master", "external", "config", "admin", "analytics", "broker", "proxy", "tables")
"""Ends of other objects' names: a group with such a name would collide with them."""

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


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


def _outside_is_protected(spec: BrokerClusterSpec) -> bool:
    security = spec.security
    if spec.external is None or spec.external.unprotected:
        return True
    return security.tls.mode == "Required" and security.mode() == "Enabled"


def _proxy_outside_is_protected(spec: BrokerClusterSpec) -> bool:
    proxy = spec.proxy
    if proxy is None or proxy.external is None or proxy.external.unprotected:
        return True
    return proxy.tls_mode(spec.security.tls.mode) == "Required" and spec.security.mode() == "Enabled"


def _proxy_may_ask_for_certificates(spec: BrokerClusterSpec) -> bool:
    if spec.proxy is None or spec.security.tls.clientCertificates != "Required":
        return True
    return spec.proxy.tls_mode(spec.security.tls.mode) == "Required"


MODE_IS_FIXED = (
    "while members change one by one, some would acknowledge by the operator's in-sync set and others by a "
    "majority of the members, so acknowledged messages could be lost; write the former mode, or create a new "
    "cluster and let consumers finish this one"
)


class NameServers(Model):
    """The NameServers, which give clients the routes of topics. They share no state, and each may fail."""

    replicas: int = Field(
        2,
        ge=1,
        le=9,
        description="Number of NameServers. With two, one may fail. A change replaces every "
        "broker, one at a time: at its start it reads at which NameServers it registers.",
    )
    resources: NameServerResources = Field(
        default_factory=lambda: NameServerResources(
            requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}
        ),
        description="CPU and memory of each.",
    )
    podTemplate: PodTemplate | None = Field(None, description="Additions to the NameServers' pods. Kubernetes only.")
    logLevel: LogLevel = Field("INFO", description="Log level. A change restarts nothing.")
    placement: Placement | None = Field(None, description="Placement of their pods. Default: spec.placement.")


LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
AnnotationValue = Annotated[str, Field(max_length=4_096)]
RESERVED_KEYS = ("gantry.dev/", "app.kubernetes.io/", "volume.kubernetes.io/", "pv.kubernetes.io/")
"""Beginnings of keys of labels and annotations that volume claims have from others."""


def _not_reserved(field: Literal["labels", "annotations"]) -> Rule:
    tests = " || ".join(f"k.startsWith('{key}')" for key in RESERVED_KEYS)
    return Rule(
        f"!has(self.{field}) || !self.{field}.exists(k, {tests})",
        f"{field} has a key that the operator or Kubernetes writes: write a key that does not begin with "
        f"{', '.join(RESERVED_KEYS)}",
        lambda s: not any(key.startswith(RESERVED_KEYS) for key in getattr(s, field)),
        field,
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
    labels: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels of the volume claims, for example for a backup policy."
    )
    annotations: dict[str, AnnotationValue] = Field(
        default_factory=dict, max_length=32, description="Annotations of the volume claims."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        more_than_nothing("size"), _not_reserved("labels"), _not_reserved("annotations"),
    )  # fmt: skip


class BrokerGroup(Model):
    """One master and its slaves; each topic's queues lie on one or more groups."""

    name: str = Field(
        pattern=GROUP_NAME,
        min_length=1,
        max_length=15,
        description="Its name in Kubernetes, and RocketMQ's brokerName unless brokerName says otherwise: lower-case "
        "letters and digits, a letter first. It cannot be changed. Groups can be added and removed.",
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
    storage: Storage | None = Field(
        None, description="The volume of each broker of this group, as a whole. Default: spec.storage."
    )
    resources: BrokerResources | None = Field(
        None, description="CPU and memory of each broker of this group, as a whole. Default: spec.resources."
    )
    placement: Placement | None = Field(
        None, description="Placement of the pods of this group, as a whole. Default: spec.placement."
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


def _readable_by_spark(spec: BrokerClusterSpec) -> bool:
    if spec.analytics is None or spec.analytics.source != "Archive":
        return True
    return spec.archive is not None and not spec.archive.url.startswith("file:")


def _one_offset(spec: BrokerClusterSpec) -> bool:
    source = None if spec.bootstrap is None else spec.bootstrap.fromArchive
    return source is None or source.offset is None or len(spec.brokerGroups) == 1


def _own_archive(spec: BrokerClusterSpec) -> bool:
    source = None if spec.bootstrap is None else spec.bootstrap.fromArchive
    return spec.archive is None or source is None or spec.archive.url != source.url


def _followed_archive(spec: BrokerClusterSpec) -> bool:
    source = None if spec.bootstrap is None else spec.bootstrap.follow
    return spec.archive is None or source is None or spec.archive.url == source.url


class TopicDefaults(Model):
    """What holds for topics that no resource describes."""

    extendToNewGroups: bool = Field(
        True,
        description="A broker group that is added gets queues for the topics that exist. False: only for new topics.",
    )


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
        description="The broker groups. An added one gets the topics that exist (spec.topicDefaults). A removed one "
        "takes no more messages and goes once it is empty (spec.drain); adding it again before cancels that.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    drain: Literal["WhenConsumed", "WhenExpired"] = Field(
        "WhenConsumed",
        description="When a broker group that is no longer in brokerGroups goes. WhenConsumed: once consumers have "
        "acknowledged all of its messages, or their retention has passed. WhenExpired: once their retention has "
        "passed, so that they can be read again until then.",
    )
    topicDefaults: TopicDefaults = Field(
        default_factory=lambda: TopicDefaults(), description="What holds for topics that no resource describes."
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
    resources: BrokerResources = Field(
        default_factory=lambda: BrokerResources(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"}),
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
    proxy: Proxy | None = Field(
        None, description="The endpoint for clients that speak gRPC, as those of RocketMQ 5 do. Default: none."
    )
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
    tables: Tables | None = Field(
        None, description="Where the tables of topics with spec.table lie, and how they are written."
    )
    archive: Archive | None = Field(None, description="A copy of the logs in object storage. Default: none.")
    bootstrap: Bootstrap | None = Field(
        None,
        description="What empty disks begin with. Default: nothing. On a cluster that exists it can be removed, but "
        "not added or changed.",
    )

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
            f"!has(self.analytics) || {either('self.analytics.source', 'Brokers')} != 'Archive' || "
            "(has(self.archive) && !self.archive.url.startsWith('file:'))",
            "analytics.source is Archive, but there is no archive that Spark's pods reach: write spec.archive with a "
            "bucket, or analytics.source: Brokers",
            _readable_by_spark,
            "analytics",
        ),
        Rule(
            "!has(self.bootstrap) || !has(self.bootstrap.fromArchive) || !has(self.bootstrap.fromArchive.offset) || "
            "self.brokerGroups.size() == 1",
            "bootstrap.fromArchive.offset is an offset in one log, but there are several groups: write time instead",
            _one_offset,
            "bootstrap",
        ),
        Rule(
            "!has(self.bootstrap) || !has(self.bootstrap.fromRocketMQ) || "
            f"{either('self.mode', 'MasterSlave')} != 'Raft'",
            "bootstrap.fromRocketMQ is there, but a Raft group cannot begin with RocketMQ's log: "
            "write mode: MasterSlave",
            lambda s: s.mode != "Raft" or s.bootstrap is None or s.bootstrap.fromRocketMQ is None,
            "bootstrap",
        ),
        Rule(
            "!has(self.archive) || !has(self.bootstrap) || !has(self.bootstrap.fromArchive) || "
            "self.archive.url != self.bootstrap.fromArchive.url",
            "archive.url is that of bootstrap.fromArchive, which belongs to the cluster that it is of: write another "
            "archive.url",
            _own_archive,
            "archive",
        ),
        Rule(
            "!has(self.archive) || !has(self.bootstrap) || !has(self.bootstrap.follow) || "
            "self.archive.url == self.bootstrap.follow.url",
            "archive.url is not that of bootstrap.follow, but a promoted standby goes on with the archive that it "
            "follows: write the same url",
            _followed_archive,
            "archive",
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
        Rule(
            f"!has(self.proxy) || !has(self.proxy.external) || {either('self.proxy.external.unprotected', False)} || "
            "((has(self.proxy.tls) && has(self.proxy.tls.mode) ? self.proxy.tls.mode : "
            f"{either('self.security.tls.mode', 'Disabled')}) == 'Required' && "
            f"{either('self.security.authentication', 'Enabled')} == 'Enabled')",
            "proxy.external opens the cluster to clients outside without authentication and TLS: write "
            "proxy.tls.mode: Required and leave security.authentication at Enabled, or write "
            "proxy.external.unprotected: true if everybody who reaches the address may use the cluster in clear text",
            _proxy_outside_is_protected,
            "proxy",
        ),
        Rule(
            f"!has(self.proxy) || {either('self.security.tls.clientCertificates', 'None')} != 'Required' || "
            "!has(self.proxy.tls) || !has(self.proxy.tls.mode) || self.proxy.tls.mode == 'Required'",
            "proxy.tls.mode takes clear text, and security.tls.clientCertificates is Required, which means nothing "
            "then: write proxy.tls.mode: Required, or leave it out",
            _proxy_may_ask_for_certificates,
            "proxy",
        ),
    )
    transitions: ClassVar[tuple[dict[str, str], ...]] = (
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
        fixed_bootstrap(),
    )

    def _group(self, name: str) -> BrokerGroup | None:
        return next((g for g in self.brokerGroups if g.name == name), None)

    def storage_of(self, group: str) -> Storage:
        """Return the volumes of a group: its own settings, or those of the cluster."""
        own = self._group(group)
        return self.storage if own is None or own.storage is None else own.storage

    def resources_of(self, group: str) -> Resources:
        own = self._group(group)
        return self.resources if own is None or own.resources is None else own.resources

    def placement_of(self, group: str) -> Placement:
        own = self._group(group)
        return self.placement if own is None or own.placement is None else own.placement
