"""The bodies of a broker's HTTP interface, shared with the operator, the CLI and Spark."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gantry_broker.contracts.leadership import Assignment, InSyncSetProposal, LeadershipRecord, MemberId
from gantry_broker.protocol import plausible

MAX_CONFIGS = 1_000
"""Topics, and consumer groups, of one request."""
MAX_UNDELIVERED = 16
"""Topics of which one request looks for messages that are not delivered yet."""
Undelivered = Literal["none", "delayed", "half", "unknown"]
"""What waits for its delivery to a topic: delayed messages and those with a delivery time, or half messages. `unknown`:
it cannot be said now, because the topic still takes messages, or a part of the log is not readable.
"""

Epoch = Annotated[int, Field(strict=True, ge=0, le=plausible.MAX_EPOCH)]
Version = Annotated[int, Field(strict=True, ge=0, le=plausible.MAX_EPOCH)]
Offset = Annotated[int, Field(strict=True, ge=0, le=plausible.MAX_OFFSET)]
MemberNumber = Annotated[int, Field(strict=True, ge=0, le=plausible.MAX_MEMBER)]
Incarnation = Annotated[str, Field(min_length=1, max_length=plausible.MAX_INCARNATION)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class MemberRef(_Model):
    member: MemberNumber
    incarnation: Incarnation

    @classmethod
    def of(cls, m: MemberId) -> MemberRef:
        return cls(member=m.member, incarnation=m.incarnation)

    def value(self) -> MemberId:
        return MemberId(self.member, self.incarnation)


Members = Annotated[list[MemberRef], Field(max_length=plausible.MAX_MEMBERS)]


class LeadershipModel(_Model):
    epoch: Epoch
    version: Version
    master: MemberRef | None
    in_sync: Members

    @classmethod
    def of(cls, c: LeadershipRecord) -> LeadershipModel:
        master = None if c.master is None else MemberRef.of(c.master)
        return cls(
            epoch=c.epoch, version=c.version, master=master, in_sync=[MemberRef.of(m) for m in sorted(c.in_sync)]
        )

    def value(self) -> LeadershipRecord:
        master = None if self.master is None else self.master.value()
        return LeadershipRecord(self.epoch, self.version, master, frozenset(m.value() for m in self.in_sync))


class AssignmentModel(_Model):
    """PUT /v1/assignment."""

    leadership: LeadershipModel
    leader_address: str | None = Field(None, max_length=plausible.MAX_ADDRESS)
    unclean: bool = False

    @classmethod
    def of(cls, a: Assignment) -> AssignmentModel:
        return cls(leadership=LeadershipModel.of(a.leadership), leader_address=a.leader_address, unclean=a.unclean)

    def value(self) -> Assignment:
        return Assignment(self.leadership.value(), self.leader_address, self.unclean)


class AssignmentAnswer(_Model):
    """The (epoch, version) that the member now holds, and the reason if it refused the assignment (rule 15)."""

    accepted: bool
    epoch: Epoch
    version: Version
    reason: str = ""


class HandoverRequest(_Model):
    """POST /v1/handover: pause writes, bring `target` to the end of the log (rule 23)."""

    target: MemberRef
    epoch: Epoch = Field(description="Epoch of the master; a request with another one is refused.")
    version: Version | None = Field(
        None,
        description="Version of the leadership record that the swap expects; None: the master's.",
    )
    timeout_ms: int = Field(2_000, ge=1, le=600_000)


class HandoverAnswer(_Model):
    """`ready`: the target has everything, and writes stay paused until the next assignment."""

    ready: bool
    end: Offset
    reason: str = ""


class RemovalRequest(_Model):
    """POST /v1/members/remove: mode Raft, on the leader: remove a member that has stopped from the group (rule 27)."""

    member: MemberNumber = Field(description="Its number.")


class RemovalAnswer(_Model):
    """`removed`: the change is in the log and in force; otherwise `reason` names the obstacle."""

    removed: bool
    reason: str = ""


class ProposalModel(_Model):
    base_version: Version
    in_sync: Members

    @classmethod
    def of(cls, a: InSyncSetProposal) -> ProposalModel:
        return cls(base_version=a.base_version, in_sync=[MemberRef.of(m) for m in sorted(a.in_sync)])

    def value(self) -> InSyncSetProposal:
        return InSyncSetProposal(self.base_version, frozenset(m.value() for m in self.in_sync))


class FollowerStatus(_Model):
    """A follower as its leader sees it."""

    member: MemberRef
    acked: int = Field(description="Offset up to which it has acknowledged in this epoch; -1: nothing yet.")
    last_fetch_ms: int = Field(description="Milliseconds since its last fetch.")
    in_sync: bool
    rtt_us: int = Field(-1, description="Round trip of its connection, as the kernel measures it; -1: not known.")


class LeaderLink(_Model):
    """The leader as this follower sees it; the operator checks it before it takes a leader for dead."""

    member: MemberRef | None = None
    state: Literal["none", "connected", "refused", "silent"] = "none"
    last_answer_ms: int = Field(-1, description="Milliseconds since its last answer to a fetch; -1: never.")
    rtt_us: int = Field(-1, description="Round trip of the connection, as the kernel measures it; -1: not known.")


class NameServerLink(_Model):
    """A NameServer as this member sees it."""

    address: str
    state: Literal["connected", "silent", "unknown"] = Field(
        "unknown", description="silent: it does not take the registration. unknown: nothing was registered there yet."
    )
    rtt_us: int = Field(-1, description="Round trip of the connection, as the kernel measures it; -1: not known.")


class DiskStatus(_Model):
    total_bytes: int = Field(description="0: not known, because the disk does not answer.")
    free_bytes: int
    full: bool = False
    full_in_s: int = Field(
        -1, description="Seconds until it is full at the pace of the last hour; -1: it does not fill, or not known yet."
    )


class AccessStatus(_Model):
    """The access table that a member holds."""

    version: Version = 0
    changes: int = Field(0, description="Changes of users by mqadmin that no table has merged yet.")


class ArchiveStatus(_Model):
    """The archive of the group, as this member knows it. Times are Unix milliseconds."""

    known: bool = Field(False, description="Its manifest was read since the start; otherwise the numbers say nothing.")
    uploads: bool = Field(False, description="This member uploads.")
    recoverable_from_ms: int = Field(0, description="Store time of the first record in it; 0: it has none.")
    archived_ms: int = Field(0, description="Store time of the last record in it; 0: it has none.")
    start: Offset = 0
    end: Offset = Field(0, description="Offset behind the last record in it.")
    behind_bytes: int = Field(0, description="Confirmed bytes that it lacks.")
    behind_ms: int = Field(0, description="How long the oldest of them has waited.")
    size_bytes: int = 0
    objects: int = 0
    gaps: int = Field(0, description="Ranges of the log that it lacks for ever.")
    error: str = Field("", description="Why the last step failed.")
    error_ms: int = 0
    fenced: str = Field("", description="Why this cluster may not write to it at all.")
    closed: str = Field("", description="The token with which this cluster handed it over.")
    verified_ms: int = Field(0, description="When all of it was read back last; 0: never, or not known here.")
    verified_until_ms: int = Field(0, description="Store time of the last record that was read then.")
    verified_end: Offset = 0
    faults: int = Field(0, description="Objects that are damaged or missing, as far as is known.")
    fault: str = Field("", description="One of them.")
    reads_to: Offset = Field(0, description="Old messages of the log up to here can be read from it.")
    read_messages: int = Field(0, description="Messages for clients that were read from it since the start.")
    read_bytes: int = Field(0, description="Their bytes.")
    read_cache_bytes: int = Field(0, description="What this disk keeps of it for readers.")
    read_error: str = Field("", description="Why the last read for clients failed.")
    read_error_ms: int = 0


class SiteRequest(_Model):
    """PUT /v1/site: the part of the cluster in a pair of sites. One that is not newer changes nothing."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    role: Literal["Active", "Sealed", "Standby"]
    generation: Version
    token: str = Field("", max_length=128, description="Sealed: of the hand-over.")
    origin: str = Field("", max_length=128, description="Active after a promotion: its name.")
    origin_end: Offset = Field(0, description="Where the log of that promotion ends in the archive.")


class SiteStatus(_Model):
    """The part of this member's cluster in a pair of sites."""

    role: Literal["Active", "Sealed", "Standby"] = "Active"
    generation: Version = 0
    token: str = Field("", description="Sealed: of the hand-over.")
    origin: str = ""
    origin_end: Offset = 0
    follows: bool = Field(False, description="Standby: it has read the archive since its start.")
    superseded: str = Field("", description="Another site was promoted: this cluster takes no writes any more.")
    idle: bool = Field(False, description="Sealed: the leader's log does not grow, and all of it is confirmed.")


class SiteLook(_Model):
    """GET /v1/site/archive, on a standby: the archive of its group as it is now. Times are Unix milliseconds."""

    owner_uid: str
    owner_cluster: str
    number: int
    closed: str = Field(description="The token of a completed hand-over.")
    handed_over: list[str] = Field(default=[], description="All groups that were handed over with this token.")
    groups: list[str] = Field(default=[], description="All groups of the archive.")
    archived_end: Offset
    archived_ms: int
    end: Offset = Field(description="End of this member's confirmed log.")


class CloseRequest(_Model):
    """POST /v1/site/close, on the leader of a sealed group: archive the last byte, and end there."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    token: str = Field(min_length=8, max_length=128)


class CloseAnswer(_Model):
    """`closed`: the archive has all, and this token."""

    closed: bool
    end: Offset
    archived: Offset
    reason: str = ""


class TakeRequest(_Model):
    """POST /v1/site/take, on a standby: make its cluster the owner of the archive."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    token: str = Field(max_length=128, description="Empty: there is none.")
    accept_loss: bool = False


class TakeAnswer(_Model):
    """Where the former owner's log of this group ends in the archive, and how far this member has it."""

    archived_end: Offset
    end: Offset


class GroupMarks(_Model):
    """What the control plane noted about this broker group."""

    drain: Literal["", "closing", "closed"] = Field(
        "", description="closing: routes show no permission to write. closed: sends are refused."
    )
    joined: bool = Field(False, description="It has the topics and consumer groups of its cluster.")
    released: bool = Field(False, description="It was rolled back: it stays away from the source's NameServers.")


class MarksRequest(_Model):
    """PUT /v1/marks, on the master. An absent field stays as it is."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    drain: Literal["", "closing", "closed"] | None = None
    joined: bool | None = None
    released: bool | None = None


class ConfigsRequest(_Model):
    """POST /v1/configs, on the master: creates those topics and consumer groups that it does not have yet."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    topics: list[dict[str, JsonValue]] = Field(
        default_factory=list, max_length=MAX_CONFIGS, description="As in RocketMQ's topics.json."
    )
    groups: list[dict[str, JsonValue]] = Field(
        default_factory=list, max_length=MAX_CONFIGS, description="As in RocketMQ's subscriptionGroup.json."
    )


class ConfigsAnswer(_Model):
    """How many of them are new."""

    topics: int
    groups: int


class Unread(_Model):
    """Messages of a topic that a consumer group has not acknowledged."""

    topic: str
    consumer_group: str = Field("", description="Empty: no consumer group reads the topic.")
    messages: int
    oldest_ms: int | None = Field(None, description="Store time of the oldest of them, Unix milliseconds.")
    connected: bool = Field(False, description="Whether the consumer group has a connected consumer.")
    broadcast: bool = Field(False, description="It reads by broadcast: its consumers keep their offsets themselves.")


class DrainReport(_Model):
    """GET /v1/drain: what the group still holds for its consumers, as its master knows it."""

    epoch: Epoch
    leading: bool = Field(description="It is the master, and may append.")
    drain: Literal["", "closing", "closed"] = Field(description="The mark in the confirmed tables.")
    settled: bool = Field(
        description="All values are of one state of the log, and this state is confirmed. False: something was written "
        "meanwhile."
    )
    end: Offset = Field(description="The end of its log.")
    now_ms: int
    sends: int = Field(description="Messages that this process stored for producers, without checks of availability.")
    newest_ms: int = Field(description="Store time of the newest message for consumers; 0: there is none.")
    retention_ms: int = Field(description="How long it keeps messages.")
    unread: list[Unread] = Field(description="The largest ones, at most 100.")
    unread_topics: int
    unread_consumer_groups: int
    unread_messages: int
    oldest_ms: int | None = Field(None, description="Store time of the oldest unread message.")
    delayed: int = Field(description="Messages in delay levels.")
    timers: int = Field(description="Messages with a delivery time.")
    timers_until_ms: int = Field(description="The last of these times, Unix milliseconds; 0: there is none.")
    half: int = Field(description="Messages of transactions without a decision.")
    in_flight: int = Field(description="Messages that pop consumers hold and have not acknowledged.")
    dead_letters: int = Field(description="Messages in dead letter topics that no consumer group has read.")


class Rates(_Model):
    """Over the last minute, a second."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0


class MemberStatus(_Model):
    """GET /v1/status, and a line of GET /v1/status/stream (one at once when something changes, else one a second)."""

    cluster: str
    group: str
    name: str
    member: MemberRef
    broker_id: int = Field(description="0 for the master, else member + 1.")
    role: Literal["Master", "Slave", "Candidate", "Waiting"] = Field(
        description="Waiting: it has no assignment that it may act on (rule 21), or is a new incarnation."
    )
    epoch: Epoch
    version: Version
    highest_seen_epoch: Epoch = Field(
        0, description="Highest epoch that it has seen anywhere; above `epoch`: it is fenced."
    )
    log_trusted: bool = Field(True, description="Its log holds all that it acknowledged, as its disk proves (rule 16).")
    last_epoch: Epoch = Field(0, description="Epoch of the last record of its log.")
    start: Offset = 0
    end: Offset = 0
    flushed: Offset = 0
    confirmed: Offset = 0
    lag_bytes: int = Field(0, description="Slave: the master's last known end minus its own.")
    in_sync: list[MemberRef] = Field(default_factory=list, description="The recorded in-sync set, as it knows it.")
    proposal: ProposalModel | None = None
    followers: list[FollowerStatus] = Field(default_factory=list)
    leader_link: LeaderLink = Field(default_factory=LeaderLink)
    name_servers: list[NameServerLink] = Field(default_factory=list)
    writes_paused: bool = False
    writable: bool = False
    reason: str = Field("", description="Why it is not writable or not following.")
    not_promotable: str = Field("", description="Why it should not lead although it lives: a full disk, no NameServer.")
    disk: DiskStatus | None = None
    certificates: dict[str, int] = Field(
        default_factory=dict, description="End of validity in Unix seconds by port: client, internal. Empty: no TLS."
    )
    access: AccessStatus = Field(default_factory=AccessStatus)
    dead_letters: int = Field(0, description="Messages in dead letter topics.")
    marks: GroupMarks = Field(default_factory=GroupMarks)
    archive: ArchiveStatus | None = Field(None, description="The archive of its group; absent: there is none.")
    site: SiteStatus = Field(default_factory=SiteStatus)
    rates: Rates = Field(default_factory=Rates)
    connections: int = 0
    address: str = ""
    pid: int = 0
    started_ms: int = Field(0, description="Start of the process, Unix milliseconds.")
    release: str = Field("", description="The version of Gantry that it runs; empty: older than 0.1.")


class SegmentInfo(_Model):
    """One file of the commit log, for readers over HTTP."""

    start: int
    end: int = Field(description="First offset that may not be read: the segment's end or the confirmed offset.")
    first_store_ms: int = Field(-1, description="Store time of its first record, Unix milliseconds; -1: none.")
    last_store_ms: int = -1


class LogInfo(_Model):
    """GET /v1/log; the bytes are at GET /v1/log/bytes?from=OFFSET&to=OFFSET."""

    cluster: str
    group: str
    member: MemberRef
    role: str
    start: int
    confirmed: int
    segment_bytes: int
    segments: list[SegmentInfo]
    reserved_hours: int | None = Field(
        None, ge=0, le=1_000_000, description="fileReservedTime. Absent: of a broker of an older version."
    )
