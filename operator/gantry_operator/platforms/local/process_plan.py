"""From the plan to the processes of this machine, with their configs."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass

from gantry_operator.access.wanted import PROXY as PROXY_USER
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.plan.plan import MemberPlan, NameServerPlan, Plan, ProxyPlan
from gantry_operator.plan.process_config import (
    ArchiveFiles,
    BrokerAddresses,
    ProxyFiles,
    broker_config,
    name_server_config,
    proxy_config,
    proxy_restarts,
    proxy_text,
    restarts,
    text_of,
)
from gantry_operator.platforms.local.certificates import (
    NAME_SERVERS,
    PROXIES,
    holder_folder,
    proxy_has_tls,
    tls_folders,
)
from gantry_operator.platforms.local.folder import ClusterFolder, secret_folder
from gantry_operator.platforms.local.ports import HOST, Ports, http, on_loopback, registration, replication
from gantry_operator.registry.file import FileRegistry

NAME_SERVER = "gantry_broker.namesrv"
BROKER = "gantry_broker.broker"
PROXY = "gantry_broker.proxy"
MODULES = (BROKER, NAME_SERVER, PROXY)
"""Of every process of a cluster."""
PROXY_DRAIN_S = 5.0
"""Seconds that a stopping proxy leaves for requests in work."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process. `group` and `number` are None for a NameServer and a proxy."""

    name: str
    module: str
    config: str
    group: str | None = None
    number: int | None = None
    decisive: str | None = None
    """The part of the config that requires a restart after a change; None: all of it."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.module}\n{self.decisive or self.config}".encode()).hexdigest()[:16]

    def argv(self, folder: ClusterFolder) -> list[str]:
        # -P: no module is imported from the current folder by accident.
        return [sys.executable, "-P", "-m", self.module, "--config", str(folder.config(self.name))]


def process_plans(cluster: BrokerCluster, plan: Plan, ports: Ports, folder: ClusterFolder) -> list[ProcessPlan]:
    """All processes, NameServers first. The order of starts does not matter, because every process retries."""
    process = _Processes(cluster, plan, ports, folder)
    return [
        *map(process.name_server, plan.name_servers),
        *map(process.broker, plan.members),
        *map(process.proxy, plan.proxies),
    ]


class _Processes:
    """Plans each process of one cluster."""

    def __init__(self, cluster: BrokerCluster, plan: Plan, ports: Ports, folder: ClusterFolder) -> None:
        self._cluster, self._plan, self._ports, self._folder = cluster, plan, ports, folder
        self._servers = [ports.address(s.name) for s in plan.name_servers]
        self._registrations = [ports.address(registration(s.name)) for s in plan.name_servers]
        self._archives = ArchiveFiles(folder.uid, lambda use, secret: secret_folder(secret))

    def name_server(self, server: NameServerPlan) -> ProcessPlan:
        cluster, ports, folder = self._cluster, self._ports, self._folder
        config = name_server_config(
            cluster, server, listen_host=HOST, port=ports[server.name], data_dir=folder.data(server.name),
            registration_port=ports[registration(server.name)], token_file=folder.token_file,
            tls=tls_folders(cluster, folder, NAME_SERVERS),
            loopback=on_loopback(),
        )  # fmt: skip
        return ProcessPlan(server.name, NAME_SERVER, text_of(config), decisive=restarts(config))

    def broker(self, member: MemberPlan) -> ProcessPlan:
        cluster, ports, folder = self._cluster, self._ports, self._folder
        addresses = BrokerAddresses(
            port=ports[member.name],
            http_port=ports[http(member.name)],
            replication_port=ports[replication(member.name)],
            replication_address=ports.address(replication(member.name)),
            member_address=ports.address(member.name),
            group_address=ports.address(f"group/{member.group}"),
            group_port=ports[f"group/{member.group}"],
        )
        config = broker_config(
            cluster, member, addresses, listen_host=HOST, data_dir=folder.data(member.name),
            name_servers=self._servers, registration_addresses=self._registrations, token_file=folder.token_file,
            loopback=on_loopback(), tls=tls_folders(cluster, folder, member.group), archives=self._archives,
        )  # fmt: skip
        if config.migrate is not None and FileRegistry(folder.registry).read_now(member.group) is not None:
            # The group leads already: an empty disk joins it, and follows no source.
            config = config.model_copy(update={"migrate": None})
        decisive = restarts(config)
        if cluster.spec.mode == "Raft":
            # A new member announces its own address, so its group need not restart.
            first = {m.number: ports.address(replication(m.name)) for m in self._plan.group(member.group).members}
            config = config.model_copy(update={"members": first})
        return ProcessPlan(member.name, BROKER, text_of(config), member.group, member.number, decisive)

    def proxy(self, planned: ProxyPlan) -> ProcessPlan:
        cluster, ports, folder = self._cluster, self._ports, self._folder
        proxy = cluster.spec.proxy
        assert proxy is not None
        place = holder_folder(folder, PROXIES)
        files = ProxyFiles(
            table=folder.access_table,
            secret_key=folder.proxy_key,
            token=folder.token_file,
            certificate=place if proxy_has_tls(cluster) else None,
            brokers=None if cluster.spec.security.tls.mode == "Disabled" else place,
            members=place if cluster.spec.security.tls.between_members(kubernetes=False) else None,
        )
        config = proxy_config(
            cluster, proxy, files, name=planned.name, listen_host=HOST, port=ports[planned.name],
            http_port=ports[http(planned.name)], name_servers=self._servers, drain_s=PROXY_DRAIN_S,
            loopback=on_loopback(), access_key=PROXY_USER,
        )  # fmt: skip
        return ProcessPlan(planned.name, PROXY, proxy_text(config), decisive=proxy_restarts(config))
