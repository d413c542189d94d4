"""What is seen of a cluster at one moment: the input of its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gantry_operator.api.security import Authentication
from gantry_operator.api.status import (
    Addresses,
    AnalyticsStatus,
    CertificateRow,
    DrainRow,
    LastFailover,
    MigrationStatus,
    NameServerRow,
    ProxyStatus,
    TableRow,
    VersionStatus,
)
from gantry_operator.cluster.second_site import SiteState


@dataclass(frozen=True, slots=True)
class ObservedMember:
    """One broker as observed now. `status`: its last status line, or None when it does not answer."""

    name: str
    group: str
    number: int
    status: Mapping[str, Any] | None
    pod_ready: bool
    """Its process runs and is not being stopped."""
    node: str | None = None
    in_sync: bool | None = False
    """None: not known."""
    master: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ObservedMigration:
    """A migration from RocketMQ, and its condition."""

    status: MigrationStatus
    answer: Literal["True", "False"]
    """Whether it has not ended."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The input of the status."""

    members: Sequence[ObservedMember]
    name_servers: Sequence[NameServerRow]
    available: Mapping[str, str | None]
    """By group: why a client cannot send and read; None after a successful check; absent: not checked yet."""
    blind: frozenset[str] = frozenset()
    """Groups of which this process knows nothing yet since its start: what the former status says of them stays."""
    problems: Sequence[str] = ()
    """What prevents the objects from matching the spec."""
    silent: str = ""
    """Why what carries the spec out does not answer: what it does is not known. Empty: it does."""
    progress: Sequence[str] = ()
    """The change in progress."""
    refused: str = ""
    """Why the spec is refused."""
    addresses: Addresses = field(default_factory=Addresses)
    last_failover: LastFailover | None = None
    analytics: AnalyticsStatus | None = None
    tables: Sequence[TableRow] | None = None
    """Topics with a table; None: not known yet."""
    authentication: Authentication = "Enabled"
    """As it holds, with the platform's default."""
    certificates: Sequence[CertificateRow] = ()
    drains: Mapping[str, DrainRow] = field(default_factory=dict)
    """The groups that leave."""
    version: VersionStatus | None = None
    bound_volumes: int | None = None
    """Volumes of brokers that exist; None: not known, or there are none as on one machine."""
    volume_size: str | None = None
    """The largest size that one of them has or was asked to grow to, without groups with their own storage."""
    hibernated: bool = False
    """spec.hibernate is true, and nothing runs."""
    proxy: ProxyStatus | None = None
    """None: there should be no proxy."""
    migration: ObservedMigration | None = None
    """None: the spec has none, or nothing is known yet."""
    site: SiteState | None = None
    """The part of the cluster in a pair of sites; None: not known, what members say counts."""
    site_waits: str = ""
    """What a change of this part waits for."""
    loopback: bool = False
    """Only programs of one machine reach the cluster."""
