"""From the plan to the config of one process. The platform supplies addresses, ports and folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gantry_broker.config import (
    ArchiveConfig,
    BrokerConfig,
    InternalTlsConfig,
    Listener,
    MigrateConfig,
    NameServerConfig,
    OtlpConfig,
    RestoreConfig,
    TlsConfig,
    VerifyOrder,
)
from gantry_broker.config import ArchivePlace as Place
from gantry_broker.proxy.config import AccessConfig, BrokerTls, ProxyConfig, ProxyCredentials

from gantry_operator.api.archive import ENCRYPTION_KEY, Archive, ArchivePlace, Bootstrap
from gantry_operator.api.base import parse_duration, parse_quantity
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.proxy import Proxy
from gantry_operator.plan.plan import FILLED, MemberPlan, NameServerPlan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE, KEY


@dataclass(frozen=True, slots=True)
class TlsFolders:
    """Folders with the certificates of a process: for clients, and for other members. None: no TLS there."""

    clients: Path | None = None
    members: Path | None = None

    def for_clients(self, cluster: BrokerCluster) -> TlsConfig | None:
        tls = cluster.spec.security.tls
        if self.clients is None or tls.mode == "Disabled":
            return None
        return TlsConfig(
            mode=tls.mode,
            cert_file=self.clients / CERTIFICATE,
            key_file=self.clients / KEY,
            client_ca_file=None if tls.clientCertificates == "None" else self.clients / AUTHORITIES,
            client_certificates=tls.clientCertificates,
        )

    def for_members(self) -> InternalTlsConfig | None:
        if self.members is None:
            return None
        return InternalTlsConfig(
            cert_file=self.members / CERTIFICATE, key_file=self.members / KEY, ca_file=self.members / AUTHORITIES
        )


NO_TLS = TlsFolders()
LIVE_FIELDS = frozenset(
    {"authentication", "fenced", "follow", "log_level", "migrate", "restore", "source_name_servers"}
)
"""Fields whose change needs no restart: the access table has the authentication, a process reads its log level, its
fence and the source's NameServers, and only an empty disk is restored or migrated to. Before each try it reads how the
archive or the source is reached.
"""
ADDED_FIELDS = frozenset(
    {
        "archive",
        "fenced",
        "follow",
        "log_level",
        "migrate",
        "resource",
        "resource_group",
        "restore",
        "source_ca_file",
        "source_name_servers",
    }
)
"""Fields since 0.1.0. With their defaults they are left out: a process of an older image refuses what it does not know,
and a new operator changes no pod only because the configuration has another form."""

ADDED_PLACE_FIELDS = frozenset({"drop_access_control", "read_cache_bytes", "read_rate_bytes"})
"""The same for fields of an archive or of a migration."""


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """Where a broker finds what it needs for archives."""

    uid: str
    """The cluster's unique id."""
    secrets: Callable[[str, str], Path]
    """By use ("archive", "restore" or "follow") and name of a Secret: the folder with its keys."""

    def archive(self, archive: Archive | None) -> ArchiveConfig | None:
        if archive is None:
            return None
        rate = archive.rateLimit
        return ArchiveConfig(
            **self._place("archive", archive),
            uid=archive.owner or self.uid,
            interval_s=parse_duration(archive.interval),
            retention_s=None if archive.retention is None else parse_duration(archive.retention),
            compression=archive.compression,
            rate_bytes=None if rate is None else max(int(parse_quantity(rate)), 1),
            max_local_lag_bytes=int(parse_quantity(archive.maxLocalLag)),
            read_cache_bytes=int(parse_quantity(archive.readCache)),
            read_rate_bytes=max(int(parse_quantity(archive.readRate)), 1),
        )

    def verify(self, archive: Archive) -> VerifyOrder:
        """Return what a verification by schedule reads."""
        assert archive.verify is not None
        return VerifyOrder(
            **self._place("archive", archive), rate_bytes=max(int(parse_quantity(archive.verify.rate)), 1)
        )

    def restore(self, bootstrap: Bootstrap | None, group: str) -> RestoreConfig | None:
        source = None if bootstrap is None else bootstrap.fromArchive
        if source is None:
            return None
        return RestoreConfig(
            **self._place("restore", source),
            cluster=source.cluster,
            group=group,
            time_ms=source.time_ms,
            offset=source.offset,
        )

    def migrate(self, bootstrap: Bootstrap | None, group: str, broker: str) -> MigrateConfig | None:
        source = None if bootstrap is None else bootstrap.fromRocketMQ
        if source is None:
            return None
        key, tls = source.accessKeySecret, source.tls
        return MigrateConfig(
            name_servers=source.nameServers,
            broker=source.broker_of(group, broker),
            cluster=source.cluster,
            credentials=None if key is None else self.secrets("migrate", key),
            ca_file=None if tls is None else self.secrets("migrate", tls.caSecret) / AUTHORITIES,
            drop_access_control=source.dropAccessControl,
        )

    def follow(self, bootstrap: Bootstrap | None) -> Place | None:
        source = None if bootstrap is None else bootstrap.follow
        return None if source is None else Place(**self._place("follow", source))

    def source_authorities(self, bootstrap: Bootstrap | None) -> Path | None:
        """Return the authorities of RocketMQ's NameServers."""
        source = None if bootstrap is None else bootstrap.fromRocketMQ
        if source is None or source.tls is None:
            return None
        return self.secrets("migrate", source.tls.caSecret) / AUTHORITIES

    def _place(self, use: str, place: ArchivePlace) -> dict[str, Any]:
        secret, encryption = place.credentialsSecret, place.encryption
        return {
            "url": place.url,
            "endpoint": place.endpoint,
            "region": place.region,
            "credentials": None if secret is None else self.secrets(use, secret),
            "key_file": None if encryption is None else self.secrets(use, encryption.secretName) / ENCRYPTION_KEY,
        }


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """Addresses of one broker, as "host:port": where it listens, and how others reach it."""

    port: int
    http_port: int
    replication_port: int
    replication_address: str
    """The address for the group's other members. `member_address` and `group_address` are for clients."""
    member_address: str
    group_address: str
    group_port: int | None = None
    """Local mode: the port that the master binds. In Kubernetes the group's Service leads to the master."""
    listener_addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By NameServer listener: {"external": {"group": "h:p", "member": "h:p"}}."""
    http_hosts: Sequence[str] = ()
    """Host names under which others call its HTTP interface."""


def name_server_config(
    cluster: BrokerCluster,
    server: NameServerPlan,
    *,
    listen_host: str,
    port: int,
    registration_port: int,
    token_file: Path,
    http_port: int | None = None,
    data_dir: Path | None = None,
    listeners: Mapping[str, int] | None = None,
    http_hosts: Sequence[str] = (),
    tls: TlsFolders = NO_TLS,
    loopback: bool = False,
) -> NameServerConfig:
    """Return the config of one NameServer. `listeners`: port by name of each further listener.

    `http_hosts`: host names under which others call its HTTP interface. `loopback`: see `Security.mode`.
    """
    return NameServerConfig(
        name=server.name,
        listen_host=listen_host,
        port=port,
        http_port=http_port,
        http_hosts=list(http_hosts),
        data_dir=data_dir,
        listeners=[Listener(name=n, port=p) for n, p in sorted((listeners or {}).items())],
        cluster=cluster.broker_cluster_name,
        registration_port=registration_port,
        token_file=token_file,
        tls=tls.for_clients(cluster),
        internal_tls=tls.for_members(),
        authentication=cluster.spec.security.mode(loopback=loopback),
        log_level=cluster.spec.nameServers.logLevel,
    )


def broker_config(
    cluster: BrokerCluster,
    member: MemberPlan,
    addresses: BrokerAddresses,
    *,
    listen_host: str,
    data_dir: Path,
    name_servers: Sequence[str],
    registration_addresses: Sequence[str],
    token_file: Path,
    archives: ArchiveFiles,
    memory_limit_bytes: int | None = None,
    raft_members: Mapping[int, str] | None = None,
    tls: TlsFolders = NO_TLS,
    loopback: bool = False,
) -> BrokerConfig:
    """Return the config of one broker. `name_servers`: addresses for clients, `registration_addresses`: addresses for
    brokers.

    `raft_members`: in mode Raft the replication address of every member of the group, by number. `loopback`: see
    `Security.mode`.
    """
    spec = cluster.spec
    return BrokerConfig(
        cluster=cluster.broker_cluster_name,
        group=cluster.broker_name(member.group),
        resource="" if cluster.broker_cluster_name == cluster.name else cluster.name,
        resource_group="" if cluster.broker_name(member.group) == member.group else member.group,
        member=member.number,
        name=member.name,
        fenced=member.name in cluster.fenced,
        data_dir=data_dir,
        mode=spec.mode,
        members=dict(raft_members or {}) if spec.mode == "Raft" else {},
        listen_host=listen_host,
        port=addresses.port,
        http_port=addresses.http_port,
        http_hosts=list(addresses.http_hosts),
        group_port=addresses.group_port,
        replication_port=addresses.replication_port,
        replication_address=addresses.replication_address,
        member_address=addresses.member_address,
        group_address=addresses.group_address,
        listener_addresses={k: dict(v) for k, v in addresses.listener_addresses.items()},
        name_servers=list(name_servers),
        registration_addresses=list(registration_addresses),
        token_file=token_file,
        tls=tls.for_clients(cluster),
        internal_tls=tls.for_members(),
        metrics_need_token=spec.metricsNeedToken,
        otlp=None
        if spec.otlp is None
        else OtlpConfig(endpoint=spec.otlp.endpoint, interval_s=parse_duration(spec.otlp.interval)),
        authentication=spec.security.mode(loopback=loopback),
        log_level=spec.logLevel,
        replication=spec.replication,
        min_in_sync=spec.minInSyncReplicas,
        flush=spec.flush,
        memory_limit_bytes=memory_limit_bytes,
        settings=spec.broker,
        archive=archives.archive(spec.archive),
        # One disk is filled; the other members follow it.
        restore=archives.restore(spec.bootstrap, member.group) if member.number == FILLED else None,
        migrate=archives.migrate(spec.bootstrap, member.group, cluster.broker_name(member.group))
        if member.number == FILLED
        else None,
        source_ca_file=archives.source_authorities(spec.bootstrap),
        source_name_servers=[]
        if spec.bootstrap is None or spec.bootstrap.fromRocketMQ is None
        else list(spec.bootstrap.fromRocketMQ.nameServers),
        follow=archives.follow(spec.bootstrap),
    )


def text_of(config: BrokerConfig | NameServerConfig) -> str:
    """Return the config as its process reads it."""
    return config.model_dump_json(indent=1, exclude=_excluded(config))


@dataclass(frozen=True, slots=True)
class ProxyFiles:
    """Files of a proxy."""

    table: Path
    """The access table."""
    secret_key: Path
    """The key of the proxies' own user."""
    token: Path
    """The admin token of the cluster's HTTP interfaces."""
    certificate: Path | None = None
    """Folder with the certificate for gRPC clients; None: there is none."""
    brokers: Path | None = None
    """Folder with the authorities of the brokers' certificates, and a certificate to show; None: no TLS there."""
    members: Path | None = None
    """Folder with the certificate of the HTTP interface; None: no TLS there."""


def proxy_config(
    cluster: BrokerCluster,
    proxy: Proxy,
    files: ProxyFiles,
    *,
    name: str,
    listen_host: str,
    port: int,
    http_port: int,
    name_servers: Sequence[str],
    access_key: str,
    drain_s: float,
    http_hosts: Sequence[str] = (),
    loopback: bool = False,
) -> ProxyConfig:
    """Return the config of one proxy. `name_servers`: addresses for clients. `access_key`: of the proxies' own user.
    `loopback`: see `Security.mode`.
    """
    security = cluster.spec.security
    mode = proxy.tls_mode(security.tls.mode)
    tls = None
    if mode != "Disabled" and files.certificate is not None:
        # A client without TLS shows no certificate, so Permissive asks for one at most.
        wanted = security.tls.clientCertificates
        tls = TlsConfig(
            mode=mode,
            cert_file=files.certificate / CERTIFICATE,
            key_file=files.certificate / KEY,
            client_ca_file=None if wanted == "None" else files.certificate / AUTHORITIES,
            client_certificates=wanted,
        )
    memory = proxy.resources.limits.get("memory")
    brokers = None
    if files.brokers is not None:
        shown = security.tls.clientCertificates != "None"
        brokers = BrokerTls(
            ca_file=files.brokers / AUTHORITIES,
            cert_file=files.brokers / CERTIFICATE if shown else None,
            key_file=files.brokers / KEY if shown else None,
        )
    return ProxyConfig(
        cluster=cluster.broker_cluster_name,
        name=name,
        name_servers=list(name_servers),
        listen_host=listen_host,
        port=port,
        http_port=http_port,
        token_file=files.token,
        tls=tls,
        internal_tls=TlsFolders(members=files.members).for_members(),
        access=AccessConfig(file=files.table, authentication=security.mode(loopback=loopback)),
        broker_tls=brokers,
        credentials=ProxyCredentials(access_key=access_key, secret_key_file=files.secret_key),
        http_hosts=list(http_hosts),
        memory_limit_bytes=None if memory is None or loopback else int(parse_quantity(memory)),
        drain_s=drain_s,
    )


def proxy_text(config: ProxyConfig) -> str:
    """Return the config as its process reads it. `internal_tls` is left out as the `ADDED_FIELDS` are."""
    return config.model_dump_json(indent=1, exclude={"internal_tls"} if config.internal_tls is None else None)


def proxy_restarts(config: ProxyConfig) -> str:
    """Return the part of a config that takes effect at a start only: the access table has each change of the mode."""
    without = set() if config.internal_tls else {"internal_tls"}
    return config.model_dump_json(
        indent=1,
        exclude={"access": {"authentication"}} | {name: True for name in without},
    )


def restarts(config: BrokerConfig | NameServerConfig) -> str:
    """Return the part of a config that takes effect at a start only."""
    return config.model_dump_json(indent=1, exclude=_excluded(config, LIVE_FIELDS))


def _excluded(config: BrokerConfig | NameServerConfig, more: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return what is left out: fields that an older image does not know and that have their defaults, and `more`."""
    out: dict[str, Any] = dict.fromkeys(_unneeded(config) | more, True)
    for name in ("archive", "follow", "migrate", "restore"):
        place = getattr(config, name, None)
        if place is not None and name not in out:
            fields = type(place).model_fields
            out[name] = {f for f in ADDED_PLACE_FIELDS & set(fields) if getattr(place, f) == fields[f].default}
    return out


def _unneeded(config: BrokerConfig | NameServerConfig) -> set[str]:
    fields = type(config).model_fields
    return {
        f for f in ADDED_FIELDS & set(fields) if getattr(config, f) == fields[f].get_default(call_default_factory=True)
    }
