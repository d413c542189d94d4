"""Chooses the ports of a local cluster: RocketMQ's own if free, others if not, and the same ones at every start."""

from __future__ import annotations

import ipaddress
import json
import random
import socket
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gantry_operator.platforms.local.folder import read_ports
from gantry_operator.platforms.local.port_claims import PortAllocationLock, acquire_port_lock, ports_of_others
from gantry_operator.registry.file import write_durably, write_whole

if TYPE_CHECKING:
    from gantry_operator.plan.plan import Plan

HOST = "127.0.0.1"
"""The address on which every port of a local cluster opens."""
NAME_SERVER_PORT = 9876
BROKER_PORT = 10911
"""The port of the first group. Each further group begins GROUP_STEP higher, followed by its members' ports."""
PROXY_PORT = 8081
PROXY_STEP = 10
GROUP_STEP = 20
HTTP_ABOVE = 8_000
"""Distance of a member's HTTP port above its remoting port."""
INTERNAL_ABOVE = 4_000
"""Distance of a member's replication port, and of a NameServer's registration port, above the port for clients."""
OTHER_PORTS = range(20_000, 30_000)
"""The range of ports if RocketMQ's own are used.

It lies below the range for outgoing connections. Otherwise a client that connects again and again to a group's free
port could be connected to itself and occupy the port. It also lies below the ports that a Kubernetes on this machine
takes.
"""


def replication(member: str) -> str:
    """Return the use of a member's port for the other members of its group."""
    return f"{member}/replication"


def registration(server: str) -> str:
    """Return the use of a NameServer's port for brokers."""
    return f"{server}/registration"


def http(name: str) -> str:
    """Return the use of a process's port for HTTP."""
    return f"{name}/http"


def on_loopback() -> bool:
    """Whether only programs of this machine reach a local cluster."""
    return ipaddress.ip_address(HOST).is_loopback


class NoPort(LookupError):
    """A use has no port. The text says what to do."""


@dataclass(slots=True)
class Ports:
    """Ports by use: "demo-namesrv-0", "demo-namesrv-0/registration", "group/a", "demo-a-0", "demo-a-0/replication",
    "demo-a-0/http", "demo-proxy-0", "demo-proxy-0/http".
    """

    path: Path
    taken: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Ports:
        return cls(path, read_ports(path))

    def __getitem__(self, use: str) -> int:
        """Return the port of a use. Raises NoPort."""
        port = self.taken.get(use)
        if port is None:
            raise NoPort(f"{self.path} holds no port of {use}: start the cluster with gantry up, which chooses one")
        return port

    def address(self, use: str) -> str:
        """Return the host:port of a use. Raises NoPort."""
        return f"{HOST}:{self[use]}"

    def unusual(self, plan: Plan) -> Iterator[str]:
        """Sentences about ports for clients that are not RocketMQ's own: its clients and examples use those."""
        usual_ports = dict(_usual_ports(plan))
        for processes, what in ((plan.name_servers[:1], "the NameServer"), (plan.proxies[:1], "gRPC")):
            for use in (p.name for p in processes):
                usual, port = usual_ports[use], self.taken.get(use)
                if port in (None, usual):
                    continue
                why = "was taken" if _free(usual) else "belongs to another program"
                yield f"port {usual} {why}, so {what} has {port}: write {HOST}:{port} in clients"

    def choose(self, plan: Plan, running: frozenset[str], lock: PortAllocationLock | None = None) -> list[str]:
        """Give every use a port, and write the choice to disk. Raises OSError.

        `running`: names of processes that hold their ports now. A remembered port is replaced if another program
        listens on it or another cluster has claimed it. The result names the replaced uses, because clients may know
        the old address. A running process keeps its ports until it ends, also outside the plan. The lock is released
        afterwards; without one, this call waits for it.
        """
        with ports_of_others(self.path.parent.resolve(), lock or acquire_port_lock()) as foreign:
            moved = self._choose(plan, running, foreign)
            text = json.dumps(self.taken, indent=1)
            write_whole(self.path, text)
        write_durably(self.path, text)  # The lock is released before the write to disk.
        return moved

    def _choose(self, plan: Plan, running: frozenset[str], foreign: frozenset[int]) -> list[str]:
        moved: list[str] = []
        preferences = dict(_usual_ports(plan))
        for use in [u for u in self.taken if u not in preferences and _process(u) not in running]:
            del self.taken[use]
        for use, preferred in preferences.items():
            owners = _owners(plan, use)
            taken = self.taken.get(use)
            if taken is not None and (owners & running or (_free(taken) and taken not in foreign)):
                continue
            if taken is not None:
                moved.append(use)
            others = foreign | {p for u, p in self.taken.items() if u != use}
            self.taken[use] = preferred if preferred not in others and _free(preferred) else _any_free(others)
        return moved


def _usual_ports(plan: Plan) -> Iterator[tuple[str, int]]:
    for server in plan.name_servers:
        yield server.name, NAME_SERVER_PORT + server.index
        yield registration(server.name), NAME_SERVER_PORT + server.index + INTERNAL_ABOVE
    for index, group in enumerate(plan.groups):
        base = BROKER_PORT + GROUP_STEP * index
        yield f"group/{group.name}", base
        for member in group.members:
            yield member.name, base + 1 + member.number
            yield replication(member.name), base + 1 + member.number + INTERNAL_ABOVE
            yield http(member.name), base + 1 + member.number + HTTP_ABOVE
    for proxy in plan.proxies:
        base = PROXY_PORT + PROXY_STEP * proxy.index
        yield proxy.name, base
        yield http(proxy.name), base + HTTP_ABOVE


def _owners(plan: Plan, use: str) -> frozenset[str]:
    if use.startswith("group/"):
        return frozenset(m.name for m in plan.group(use.removeprefix("group/")).members)
    return frozenset({_process(use)})


def _process(use: str) -> str:
    """Return the name of the process that owns the port; a group's port belongs to no process."""
    return use if use.startswith("group/") else use.partition("/")[0]


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Overflow: with this many groups the consecutive ports would exceed the last one.
        with suppress(OSError, OverflowError):
            probe.bind((HOST, port))
            return True
    return False


def _any_free(taken: Set[int]) -> int:
    """Find a free port. Raises OSError when there is none."""
    for port in random.sample(OTHER_PORTS, len(OTHER_PORTS)):
        if port not in taken and _free(port):
            return port
    raise OSError(f"no port of {HOST} from {OTHER_PORTS.start} to {OTHER_PORTS.stop - 1} is free")
