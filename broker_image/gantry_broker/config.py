"""The start configuration of one NameServer or broker process: a JSON file that the planner writes.

`gantry_operator.plan` is the only writer. `python -m gantry_broker.namesrv --config FILE` and `python -m
gantry_broker.broker --config FILE` are the readers. Addresses are "host:port".
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gantry_broker.protocol import plausible
from gantry_broker.remoting.members import refuse_open_port
from gantry_broker.remoting.tls_settings import refuse_unverifiable
from gantry_broker.settings import BrokerSettings


class FileConfig(BaseModel):
    """A configuration that a file holds."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file. Raises OSError when it cannot be read, pydantic.ValidationError when it is no such config."""
        return cls.model_validate_json(path.read_bytes())


class Listener(FileConfig):
    """One more port of a NameServer; its clients get the broker addresses of that listener's name."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    port: int = Field(ge=0, le=65535)


class TlsConfig(FileConfig):
    """TLS of the ports for clients. Files are PEM; replaced files count within a second."""

    mode: Literal["Permissive", "Required"] = Field(
        description="By the first byte of a connection. Permissive: TLS and plaintext. Required: TLS only."
    )
    cert_file: Path = Field(description="The certificate, then those of intermediate CAs.")
    key_file: Path = Field(description="Its key, without a passphrase.")
    client_ca_file: Path | None = Field(None, description="The CAs whose client certificates are valid.")
    client_certificates: Literal["None", "Optional", "Required"] = "None"

    @model_validator(mode="after")
    def _verifiable(self) -> Self:
        refuse_unverifiable(self.client_certificates, self.client_ca_file)
        return self


class InternalTlsConfig(FileConfig):
    """TLS of the ports between members (both ends show a certificate) and of HTTP (clients may show one)."""

    cert_file: Path = Field(description="The certificate of this process; a URI names it: `Identity.uris`.")
    key_file: Path = Field(description="Its key, without a passphrase.")
    ca_file: Path = Field(description="The CAs whose certificates members must show.")


class OtlpConfig(FileConfig):
    """Where metrics are pushed, besides the page that Prometheus reads."""

    endpoint: str = Field(
        pattern=r"^https?://[^\s/]+[^\s]*$",
        max_length=512,
        description="Base URL of a collector; /v1/metrics is added.",
    )
    interval_s: float = Field(60.0, ge=1, le=3_600, description="Seconds between two pushes.")


class ArchivePlace(FileConfig):
    """Where an archive lies, and how to reach it."""

    url: str = Field(
        min_length=1, max_length=1024, description="s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER."
    )
    endpoint: str | None = Field(None, max_length=512, description="URL of a server that speaks the protocol of S3.")
    region: str | None = Field(None, max_length=64)
    credentials: Path | None = Field(
        None, description="A folder with a file for each credential; None: the identity of the process."
    )
    key_file: Path | None = Field(None, description="The key of the encryption, in Base64; None: no encryption.")
    read_cache_bytes: int = Field(
        1 << 30, ge=0, description="Bytes of the disk for old messages read from it; 0: none are read from it."
    )
    read_rate_bytes: int | None = Field(
        64 << 20, ge=1, description="Bytes a second that are fetched for readers at most; None: no limit."
    )


class VerifyOrder(ArchivePlace):
    """What `gantry_broker.archive.verifying` reads back. Paths are those of the place where it runs."""

    rate_bytes: int = Field(64 << 20, ge=1, description="Bytes of objects a second that are read at most.")


class ArchiveConfig(ArchivePlace):
    """The archive that this member's group keeps."""

    uid: str = Field(min_length=1, max_length=128, description="The cluster's unique id: the owner of the archive.")
    interval_s: float = Field(60.0, ge=1, le=86_400, description="How much may be missing, in seconds.")
    retention_s: float | None = Field(None, gt=0, description="The recovery window; None: everything is kept.")
    compression: Literal["Zstd", "None"] = "Zstd"
    rate_bytes: int | None = Field(None, ge=1, description="Bytes a second that are uploaded at most; None: no limit.")
    max_local_lag_bytes: int = Field(
        10 << 30, ge=0, description="Retention waits for the archive while the log is ahead of it by less."
    )


class RestoreConfig(ArchivePlace):
    """What an empty member begins with: the log of a group in an archive."""

    cluster: str | None = Field(None, max_length=253, description="The name of the cluster that the archive is of.")
    group: str = Field(min_length=1, max_length=128)
    time_ms: int | None = Field(None, ge=0, description="Records stored later are left out; Unix ms.")
    offset: int | None = Field(None, ge=0, le=plausible.MAX_OFFSET, description="The log ends at or before it.")


class MigrateConfig(FileConfig):
    """What an empty member begins with: the log of a running master of Apache RocketMQ."""

    name_servers: list[str] = Field(min_length=1, description="Addresses of the source's NameServers.")
    broker: str = Field(min_length=1, max_length=255, description="The source's brokerName.")
    cluster: str | None = Field(None, max_length=255, description="The source's cluster; None: any.")
    credentials: Path | None = Field(None, description="A folder with accessKey and secretKey; None: no signatures.")
    ca_file: Path | None = Field(None, description="The CAs of the source's certificates; None: no TLS.")
    drop_access_control: bool = Field(
        False, description="Follow a source that asks for signatures also where this cluster asks for none."
    )


Authentication = Literal["Enabled", "Permissive", "Disabled"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class NameServerConfig(FileConfig):
    """One NameServer process."""

    name: str
    listen_host: str = "0.0.0.0"
    port: int = Field(9876, ge=0, le=65535)
    http_port: int | None = Field(None, description="Health and metrics; None: not served.")
    http_hosts: list[str] = Field(
        default_factory=list, description="Names that a request over HTTP may give as its Host, besides localhost."
    )
    data_dir: Path | None = Field(None, description="Where the KV config is kept; None: in memory only.")
    listeners: list[Listener] = Field(default_factory=list)
    cluster: str = Field("", description="The cluster whose brokers may register.")
    registration_port: int | None = Field(
        None, ge=0, le=65535, description="The port where only the cluster's brokers register; None: there is none."
    )
    token_file: Path | None = Field(
        None, description="Holds the cluster's token, by which brokers prove themselves; None: on loopback only."
    )
    tls: TlsConfig | None = Field(None, description="TLS of the ports for clients; None: plaintext.")
    internal_tls: InternalTlsConfig | None = Field(
        None, description="TLS of the registration port and of HTTP; None: plaintext."
    )
    authentication: Authentication = Field("Disabled", description="Counts until an access table has come.")
    log_level: LogLevel = Field("INFO", description="A change counts without a restart.")

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if self.registration_port is not None:
            if not self.cluster:
                raise ValueError("registration_port is set, but cluster is not: name the cluster of the brokers")
            refuse_open_port("registration_port", self.listen_host, self.token_file)
        return self


class BrokerConfig(FileConfig):
    """One broker process: one member of one group."""

    cluster: str
    group: str = Field(description="RocketMQ's brokerName, shared by all members.")
    resource: str = Field("", description="Name of the cluster in our own metrics and status; empty: `cluster`.")
    resource_group: str = Field("", description="Name of the group there; empty: `group`.")
    member: int = Field(
        ge=0,
        le=plausible.MAX_MEMBER,
        description="Never changes. As a slave its brokerId is member + 1; the master's is 0.",
    )
    name: str = Field(description="The member's name, e.g. demo-a-0.")
    fenced: bool = Field(
        False, description="The broker is stopped and its files are closed, while the process stays. It is followed."
    )
    data_dir: Path
    mode: Literal["MasterSlave", "Raft"] = "MasterSlave"
    members: dict[int, str] = Field(
        default_factory=dict, description="Raft mode: the first members' numbers and replication addresses."
    )

    listen_host: str = "0.0.0.0"
    port: int = Field(ge=0, le=65535, description="Its own port for clients: slave reads, master by k8s Service.")
    http_port: int = Field(ge=0, le=65535)
    http_hosts: list[str] = Field(
        default_factory=list, description="Names that a request over HTTP may give as its Host, besides localhost."
    )
    group_port: int | None = Field(
        None, description="Local mode: a port that this member serves while it is master (and frees when it is not)."
    )
    replication_port: int | None = Field(
        None, ge=0, le=65535, description="The port for the group's other members; None: there are none."
    )
    replication_address: str = Field("", description="Where other members reach `replication_port`.")
    member_address: str = Field(description="Where clients reach `port`; registered while it is a slave.")
    group_address: str = Field(description="Registered while it is master; the same for all members of the group.")
    listener_addresses: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description='Further addresses by NameServer listener: {"external": {"group": "h:p", "member": "h:p"}}.',
    )
    name_servers: list[str] = Field(default_factory=list, description="Where clients reach the NameServers.")
    registration_addresses: list[str] = Field(
        default_factory=list, description="The NameServers' ports for registrations; this broker registers at each."
    )
    token_file: Path | None = Field(
        None,
        description="Holds the cluster's token: of the HTTP interface (None: open) and of the ports between members "
        "(None: on loopback only, and nothing is proved there).",
    )
    tls: TlsConfig | None = Field(None, description="TLS of the ports for clients; None: plaintext.")
    internal_tls: InternalTlsConfig | None = Field(
        None, description="TLS of the replication port, of HTTP and of registrations; None: plaintext."
    )
    metrics_need_token: bool = Field(False, description="Whether /metrics needs the token, too.")
    otlp: OtlpConfig | None = Field(None, description="Push of metrics by OTLP over HTTP; None: none.")
    authentication: Authentication = Field(
        "Disabled", description="Whether clients sign their requests; counts until an access table has come."
    )

    log_level: LogLevel = Field("INFO", description="A change counts without a restart.")
    replication: Literal["Sync", "Async"] = "Sync"
    min_in_sync: int = Field(1, ge=1)
    flush: Literal["Async", "Sync"] = "Async"
    memory_limit_bytes: int | None = Field(None, description="What this process may use; None: the machine's memory.")
    settings: BrokerSettings = Field(default_factory=BrokerSettings)
    archive: ArchiveConfig | None = Field(None, description="The archive of the group; None: there is none.")
    restore: RestoreConfig | None = Field(None, description="What an empty disk is filled with; None: nothing.")
    migrate: MigrateConfig | None = Field(None, description="The RocketMQ that an empty disk follows; None: none.")
    source_name_servers: list[str] = Field(
        default_factory=list,
        description="RocketMQ's NameServers of a migrated cluster: the leader registers there, too.",
    )
    follow: ArchivePlace | None = Field(
        None, description="A new member is a standby, which follows this archive; None: it is an ordinary one."
    )
    source_ca_file: Path | None = Field(None, description="The CAs of their certificates; None: no TLS.")

    @property
    def own_cluster(self) -> str:
        return self.resource or self.cluster

    @property
    def own_group(self) -> str:
        return self.resource_group or self.group

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if self.replication_port is not None:
            if not self.replication_address:
                raise ValueError("replication_port is set, but replication_address is not: write host:port")
            refuse_open_port("replication_port", self.listen_host, self.token_file)
        elif self.mode == "Raft":
            raise ValueError("mode is Raft, but replication_port is not set: members of a Raft group need it")
        return self
