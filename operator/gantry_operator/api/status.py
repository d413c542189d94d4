"""`BrokerCluster.status`: the observed state, by the API conventions. Local mode shows the same."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from gantry_operator.api.base import AnyCondition, Observed

Phase = Literal[
    "Pending",
    "Creating",
    "Running",
    "Updating",
    "Degraded",
    "Unavailable",
    "Paused",
    "Hibernated",
    "Refused",
    "Deleting",
]


class Condition(AnyCondition):
    """One aspect of the state, as in every Kubernetes object."""

    type: Literal[
        "Ready", "Available", "Progressing", "Degraded", "Secured", "CertificatesValid", "Draining", "Unbalanced",
        "DiskPressure", "ReportComplete", "TablesCurrent", "Archiving", "Standby", "Migrating"
    ] = Field(description="The aspect.")  # fmt: skip


class MemberRow(Observed):
    """One broker."""

    name: str = Field(description="Name of the member, and of its pod.")
    group: str = Field(description="Its broker group.")
    role: str = Field("Unknown", description="Master, Slave, Waiting or Unknown (it does not answer).")
    brokerId: int = Field(-1, description="RocketMQ's id: 0 for the master.")
    epoch: int | None = Field(None, description="Epoch of the leadership that it follows. Absent: not known.")
    maxOffset: int | None = Field(None, description="End of its log, in bytes. Absent: not known.")
    lag: int | None = Field(None, description="Bytes behind the master. Absent: not known.")
    inSync: bool | None = Field(None, description="Whether SEND_OK waits for it. Absent: not known.")
    ready: bool = Field(False, description="Whether it answers and works in its role.")
    address: str = Field("", description="Its own address.")
    node: str | None = Field(None, description="Node of its pod.")
    pid: int | None = Field(None, description="Process id (local mode).")
    reason: str = Field("", description="Reason why it is not ready.")


class DrainRow(Observed):
    """What a leaving broker group still holds for its consumers."""

    phase: Literal["Waiting", "Closing", "Draining", "Empty", "Removing"] = Field(
        description="Waiting: the other groups cannot take over yet. Closing: producers move to them. Draining: "
        "consumers read the rest. Empty: it is about to be removed. Removing: its members stop."
    )
    message: str = Field("", description="What it waits for.")
    blocked: bool = Field(False, description="It cannot end by itself before the retention time.")
    topics: int = Field(0, description="Topics with unread messages.")
    consumerGroups: int = Field(0, description="Consumer groups that have not acknowledged everything.")
    messages: int = Field(0, description="Unread messages, for each consumer group.")
    oldest: str | None = Field(None, description="When the oldest of them was stored.")
    undelivered: int = Field(
        0, description="Messages that consumers cannot see yet: delayed ones, and those of open transactions."
    )
    retentionEnds: str | None = Field(None, description="When the retention of its newest message has passed.")


class SiteRow(Observed):
    """The part of the cluster in a pair of sites."""

    role: str = Field(description="Active, Demoting, Standby or Promoting.")
    generation: int = Field(0, description="Rises with each change of the part.")
    token: str = Field("", description="Of the hand-over, which `gantry promote --token` at the other site demands.")
    origin: str = Field("", description="The name of the last promotion of this cluster.")
    ends: dict[str, int] = Field(
        default_factory=dict, description="By group: where the archive ended at that promotion; -1: not known."
    )
    acceptLoss: bool = Field(False, description="A change that gives records up is under way.")
    since: str | None = Field(None, description="Time of the last change.")


class ArchiveRow(Observed):
    """The archive of a broker group."""

    recoverableFrom: str | None = Field(None, description="Store time of its first record: one can restore from here.")
    archivedUntil: str | None = Field(None, description="Store time of its last record.")
    offset: int | None = Field(None, description="Offset behind its last record.")
    behindBytes: int | None = Field(None, description="Confirmed bytes that it lacks.")
    behindSeconds: int | None = Field(None, description="How long the oldest of them has waited.")
    bytes: int | None = Field(None, description="Size of its objects.")
    objects: int | None = Field(None, description="Their number.")
    gaps: int = Field(0, description="Ranges of the log that it lacks for ever.")
    verified: str | None = Field(None, description="When all of it was read back last (verify).")
    verifiedUntil: str | None = Field(None, description="Store time of the last record that was read then.")
    verifiedOffset: int | None = Field(None, description="Offset behind that record.")
    verifySince: str | None = Field(None, description="Since when the schedule of archive.verify applies.")
    overdue: bool = Field(False, description="A verification that was due has not come.")
    faults: int = Field(0, description="Objects that are damaged or missing, as far as is known.")
    fault: str = Field("", description="One of them.")
    readMessages: int | None = Field(
        None, description="Messages for clients that its members have read from it since their starts."
    )
    readError: str = Field("", description="Why the last read for clients failed, if it lasts.")
    error: str = Field("", description="The last failure, if it lasts.")
    errorTime: str | None = Field(None, description="When that was.")


class GroupRow(Observed):
    """One broker group."""

    name: str = Field(description="Its name.")
    members: int = Field(0, description="Its brokers.")
    messagesIn: float = Field(0.0, description="Messages of producers a second, over the last minute.")
    bytesIn: float = Field(0.0, description="Bytes of them a second.")
    messagesOut: float = Field(0.0, description="Messages to consumers a second.")
    diskBytes: int = Field(0, description="Size of its master's disk.")
    diskUsedBytes: int = Field(0, description="Used bytes of this disk.")
    diskFull: str | None = Field(
        None, description="When the first disk of the group will be full at the pace of the last hour."
    )
    drain: DrainRow | None = Field(None, description="Its drain, if it leaves the cluster.")
    archive: ArchiveRow | None = Field(None, description="Its archive, if the spec has one.")


class NameServerRow(Observed):
    """One NameServer."""

    name: str = Field(description="Its name.")
    address: str = Field(description="host:port for clients.")
    ready: bool = Field(False, description="Whether it answers.")
    node: str | None = Field(None, description="Node of its pod.")
    pid: int | None = Field(None, description="Process id (local mode).")
    reason: str = Field("", description="Reason why it is not ready.")


class ProxyRow(Observed):
    """One proxy."""

    name: str = Field(description="Its name, and that of its pod.")
    ready: bool = Field(False, description="Whether it answers, and a NameServer answers it.")
    address: str = Field("", description="host:port of this proxy alone.")
    node: str | None = Field(None, description="Node of its pod.")
    pid: int | None = Field(None, description="Process id (local mode).")
    reason: str = Field("", description="Reason why it is not ready.")


class ProxyStatus(Observed):
    """The endpoint for clients that speak gRPC."""

    replicas: int = Field(0, description="Wanted proxies.")
    readyReplicas: int = Field(0, description="Ready proxies.")
    selector: str = Field("", description="Labels of their pods, for `kubectl scale` and autoscalers.")
    address: str = Field("", description="host:port for clients inside; on one machine of the first proxy.")
    external: str = Field("", description="host:port for clients outside (spec.proxy.external).")
    members: list[ProxyRow] = Field(default_factory=list, description="A row for each proxy.")


class CertificateRow(Observed):
    """A certificate or a certificate authority of the cluster."""

    name: str = Field(description="Its Secret; on one machine its folder.")
    issuer: str = Field(description="Operator: Gantry makes and renews it. Secret: somebody else does.")
    notAfter: str = Field("", description="End of its validity. Empty: it cannot be read.")
    renewalTime: str | None = Field(None, description="Time at which Gantry makes it again.")


class LastFailover(Observed):
    """The last change of a master."""

    group: str = Field(description="Group of the change.")
    from_: str | None = Field(None, alias="from", description="Former master.")
    to: str = Field(description="New master.")
    reason: str = Field(description="Why.")
    epoch: int = Field(0, description="Epoch of the new master.")
    time: str = Field(description="When.")
    durationMs: int = Field(0, description="Milliseconds from the detection until the new master has taken the role.")
    planned: bool = Field(False, description="True: a switchover. False: a failover.")

    model_config = ConfigDict(extra="ignore", populate_by_name=True, defer_build=True)


class Addresses(Observed):
    """Addresses for clients' configuration."""

    nameServers: str = Field("", description="NameServer addresses for clients inside, separated by ';'.")
    external: str = Field("", description="NameServer addresses for clients outside (spec.external), separated by ';'.")


class TopicSaving(Observed):
    """A topic that compaction would shrink."""

    topic: str = Field(description="Its name.")
    savedBytes: int = Field(0, description="Bytes that compaction would save.")
    recommendation: str = Field("", description="The suggested action.")


class VersionStatus(Observed):
    """What runs."""

    operator: str = Field("", description="Version of the operator.")
    image: str = Field("", description="Image that brokers and NameServers are to run.")
    former: list[str] = Field(default_factory=list, description="Other images that pods still run.")
    brokers: list[str] = Field(default_factory=list, description="Versions that the brokers report.")
    protocol: str = Field("", description="Version of RocketMQ whose protocol the brokers speak.")


class AnalyticsStatus(Observed):
    """The last runs of the report."""

    lastRun: str | None = Field(None, description="Start of the last run.")
    lastResult: str | None = Field(None, description="Succeeded, Failed or Running.")
    message: str = Field("", description="Reason of the failure, or a summary of the findings.")
    reason: str = Field("", description="One word, if no run can start: NoSparkOperator.")
    lastSuccess: str | None = Field(None, description="End of the last good run.")
    durationSeconds: float | None = Field(None, description="Duration of the last good run.")
    scannedBytes: int | None = Field(None, description="Bytes of log that the last good run read.")
    report: str | None = Field(None, description="Location of the last good report.")
    topSavings: list[TopicSaving] = Field(default_factory=list, description="Topics with the largest savings.")
    missing: list[str] = Field(
        default_factory=list, description="Parts that the last good report lacks, such as consumer groups of a."
    )
    nextRun: str | None = Field(None, description="Time of the next run.")


class TableRow(Observed):
    """The table of one topic. The status of its BrokerTopic says more."""

    topic: str = Field(description="Name of the topic.")
    current: Literal["True", "False", "Unknown"] = Field(description="Whether the table follows the topic.")
    reason: str = Field("", description="One word, for programs.")
    message: str = Field("", description="The state and the remedy, in words for users.")
    rows: int | None = Field(None, description="Rows of the table.")
    behindRecords: int | None = Field(None, description="Messages that the table lacked at the end of its last run.")
    rejected: int | None = Field(None, description="Messages that did not fit.")
    lastSuccess: str | None = Field(None, description="Start of the last run that caught up.")
    lastCommit: str | None = Field(None, description="Time of the newest snapshot.")


class MigrationGroupRow(Observed):
    """The copy of one group's source."""

    name: str = Field(description="The group.")
    state: str = Field("", description="following, finishing, broken, leads or left. Empty: not known.")
    copiedBytes: int | None = Field(None, description="Bytes of the source's log that are here.")
    missingBytes: int | None = Field(None, description="Bytes that the copy lacks.")
    bytesPerSecond: int | None = Field(None, description="Bytes that arrive a second, over the last ten seconds.")
    problem: str = Field("", description="Why it does not go on.")


class MigrationStatus(Observed):
    """A migration from a running RocketMQ."""

    phase: str = Field(
        description="following, the steps of a cutover, done or aborting; the steps of a rollback, rolled-back or "
        "aborting-rollback: docs/migration.md."
    )
    since: str | None = Field(None, description="Begin of the phase of a cutover or a rollback.")
    message: str = Field("", description="What happens, in words for users.")
    next: str = Field("", description="What to do, in words for users.")
    groups: list[MigrationGroupRow] = Field(default_factory=list, description="A row for each group.")


class BrokerClusterStatus(Observed):
    """The state of the cluster."""

    observedGeneration: int | None = Field(None, description="Generation of the spec that this describes.")
    phase: Phase = Field("Pending", description="The state in one word.")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready: clients can use the cluster, and all of it is as the spec says. Available: a client can "
        "send and read. Progressing: a change is in progress. Degraded: it works, but with less redundancy than the "
        "spec requires. Secured: clients must authenticate. Draining: a broker group leaves. Unbalanced: one group has "
        "much more load than another. DiskPressure: the disk of a broker is full, or will be soon. ReportComplete: the "
        "last report of spec.analytics has all of its parts. TablesCurrent: the tables of topics follow them. "
        "Archiving: the archive keeps up with the logs. Standby: the cluster follows the archive of another one. "
        "Migrating: the cluster is the copy of a running RocketMQ and has not taken over yet, or goes back to it.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    mode: str = Field("", description="How the master is chosen: MasterSlave or Raft.")
    version: VersionStatus | None = Field(None, description="What runs.")
    boundVolumes: int | None = Field(None, description="Volumes of brokers that exist. Absent: not known.")
    volumeSize: str | None = Field(
        None,
        max_length=64,
        description="The largest size that a volume of a broker has or was asked to grow to, without groups with their "
        "own storage: spec.storage.size cannot be less. Absent: not known.",
    )
    readyMembers: str = Field("", description="Ready members of all members: 3/3.")
    masters: str = Field("", description="The master of each group.")
    members: list[MemberRow] = Field(default_factory=list, description="A row for each broker.")
    groups: list[GroupRow] = Field(
        default_factory=list, description="A row for each broker group, with those that leave."
    )
    nameServers: list[str] = Field(default_factory=list, description="The address of each NameServer.")
    nameServerMembers: list[NameServerRow] = Field(default_factory=list, description="A row for each NameServer.")
    addresses: Addresses = Field(
        default_factory=lambda: Addresses(), description="Addresses for clients' configuration."
    )
    proxy: ProxyStatus | None = Field(None, description="The endpoint for clients that speak gRPC, if there is one.")
    site: SiteRow | None = Field(
        None, description="The part of the cluster in a pair of sites; absent: it has never had another one."
    )
    lastFailover: LastFailover | None = Field(None, description="The last change of a master.")
    certificates: list[CertificateRow] = Field(
        default_factory=list, description="A row for each certificate and authority, if TLS is in use."
    )
    analytics: AnalyticsStatus | None = Field(None, description="The last runs of the report.")
    migration: MigrationStatus | None = Field(
        None, description="The migration from a running RocketMQ, if the spec has one."
    )
    tables: list[TableRow] = Field(
        default_factory=list, description="Topics with a table.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["topic"]},
    )  # fmt: skip

    def to_object(self) -> dict[str, Any]:
        """As JSON for the Kubernetes API, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
