"""Replicated broker groups with injected faults of their leader.

Ours run under `gantry up`, Apache RocketMQ's with DLedger and with the controller of 5.x.
"""

from __future__ import annotations

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from . import java, partition
from .gantry import Cluster
from .processes import Started, namespace, until
from .rocketmq import environment, listening
from .wire import Refused, Wire

MEMBERS = 3


class Group(ABC):
    """One group, healthy when a benchmark begins. `prefix` as in Target."""

    name: str
    namesrv: str
    prefix: list[str]
    kinds: tuple[str, ...]
    """Faults that `inject` supports."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """Whether one member leads and all others follow it with everything acknowledged."""

    @abstractmethod
    def inject(self, kind: str) -> None:
        """Injects a fault into the current leader."""

    @abstractmethod
    def restore(self) -> None:
        """Ends the fault of `inject`; the group recovers by itself."""


class GantryGroup(Group):
    """Three members under `gantry up`, which restarts dead members and ends frozen or isolated ones."""

    kinds = ("kill9", "sigstop", "handover", "partition")

    def __init__(self, cluster: Cluster, mode: str) -> None:
        self.name = f"gantry {mode}"
        self.prefix = cluster.prefix
        self._cluster = cluster
        self._members: list[dict[str, Any]] = []
        self.namesrv = ";".join(cluster.status()["nameServers"])

    def is_healthy(self) -> bool:
        self._members = self._cluster.members() or []
        masters = [m for m in self._members if m["role"] == "Master"]
        if len(self._members) < 2 or len(masters) != 1:
            return False
        in_sync = masters[0]["in_sync"]
        # The in-sync set of a Raft group contains members that have just restarted and follow no leader yet.
        following = all(m["leader_link"]["state"] == "connected" for m in self._members if m is not masters[0])
        return bool(masters[0]["writable"]) and following and all(m["member"] in in_sync for m in self._members)

    def inject(self, kind: str) -> None:
        master = next(m for m in self._members if m["role"] == "Master")
        if kind == "kill9":
            os.kill(master["pid"], signal.SIGKILL)
        elif kind == "sigstop":
            os.kill(master["pid"], signal.SIGSTOP)
        elif kind == "partition":
            partition.isolate(self.prefix, master["member"]["member"], self._cluster.own_ports(master["name"]))
        else:
            self._cluster.gantry("switchover", master["group"])

    def restore(self) -> None:
        if self.prefix:
            partition.heal(self.prefix)


@contextlib.contextmanager
def gantry(folder: Path, manifest: Path, *, isolated: bool) -> Iterator[GantryGroup]:
    """Starts the cluster of a manifest; `isolated`: in a network namespace, for partitions.

    Raises NamespaceUnavailable.
    """
    with contextlib.ExitStack() as stack:
        prefix: list[str] = []
        environ = {}
        if isolated:
            partition.require_tools()
            prefix = stack.enter_context(namespace("failover"))
            paths = [str(Path(__file__).with_name("owned")), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            environ = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "GANTRY_FIRST_GID": str(partition.FIRST_GID)}
        cluster = stack.enter_context(Cluster(folder, manifest, prefix, environ))
        yield GantryGroup(cluster, "Raft" if "mode: Raft" in manifest.read_text() else "MasterSlave")


class ApacheGroup(Group):
    """Three brokers of Apache RocketMQ with one NameServer. A subclass has their version and configuration."""

    namesrv = "127.0.0.1:9876"
    kinds = ("kill9", "sigstop", "partition")
    server: str
    """The module of tests/interop/java with their version."""
    own_ports: int = 0
    """Port of the first member for its peers; the others' follow. 0: they have none."""
    of_broker: dict[str, str]
    """Lines of each broker.conf; {n} is the member's number."""
    of_namesrv: dict[str, str]
    members = MEMBERS

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self.prefix = prefix
        self._folder = folder
        self._members: dict[int, Started] = {}
        self._frozen: int | None = None

    def start_namesrv(self) -> Started:
        values = {"listenPort": "9876", "kvConfigPath": f"{self._folder}/kvConfig.json", **self.of_namesrv}
        config = _properties(self._folder / "namesrv.properties", values, folder=self._folder)
        flags = [f"-Duser.home={self._folder}"]
        words = java.command(self.server, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config), flags=flags)
        return Started([*self.prefix, *words], self._folder / "namesrv.log", environment(self._folder))

    def start(self, number: int) -> None:
        folder = self._folder / f"n{number}"
        values = {
            "brokerClusterName": "demo", "brokerName": "demo-a", "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.namesrv, "listenPort": str(_port(number)), "storePathRootDir": f"{folder}/store",
            "storePathCommitLog": f"{folder}/store/commitlog", **self.of_broker,
        }  # fmt: skip
        config = _properties(folder / "broker.conf", values, n=number)
        flags = ["-XX:MaxDirectMemorySize=1g", f"-Duser.home={folder}"]
        main = "org.apache.rocketmq.broker.BrokerStartup"
        words = java.command(self.server, main, "-c", str(config), heap="512m", flags=flags)
        member = [*self.prefix, *partition.as_member(number), *words]
        self._members[number] = Started(member, folder / "broker.log", environment(self._folder))

    def master(self) -> str:
        """Returns the master's address; empty: there is none."""
        return self._addresses().get(0, "")

    def log(self) -> Path:
        """Returns the log of the first member."""
        return self._folder / "n0" / "broker.log"

    def pids(self) -> list[int]:
        """Returns the process ids of the members."""
        return [member.pid for member in self._members.values()]

    def stop(self) -> None:
        """Ends all members. A partition needs no end: it goes with the namespace."""
        for member in self._members.values():
            member.stop(2.0)

    def _addresses(self) -> dict[int, str]:
        """Returns the group's addresses by brokerId; the leader's is 0."""
        try:
            with Wire(self.namesrv, prefix=self.prefix) as ns:
                route = ns.route("TBW102")
        except (OSError, Refused):
            return {}
        return {int(n): a for row in route["brokerDatas"] for n, a in row["brokerAddrs"].items()}

    def is_healthy(self) -> bool:
        found = self._addresses()
        running = all(m.popen.poll() is None for m in self._members.values())
        return running and 0 in found and len(found) == self.members

    def _number(self, address: str) -> int:
        return next(n for n in self._members if _port(n) == int(address.rsplit(":", 1)[1]))

    def kill(self, address: str) -> None:
        """Kills the member with this address."""
        os.kill(self._members[self._number(address)].pid, signal.SIGKILL)

    def inject(self, kind: str) -> None:
        address = self._addresses()[0]
        leader, port = self._number(address), int(address.rsplit(":", 1)[1])
        pid = self._members[leader].pid
        if kind == "kill9":
            self.kill(address)
        elif kind == "sigstop":
            self._frozen = leader
            os.kill(pid, signal.SIGSTOP)
        else:
            own = [self.own_ports + leader] if self.own_ports else []
            partition.isolate(self.prefix, leader, [port, port - 2, port + 1, *own])

    def restore(self) -> None:
        partition.heal(self.prefix)
        if self._frozen is not None:
            os.kill(self._members[self._frozen].pid, signal.SIGCONT)
            self._frozen = None
        for number, member in list(self._members.items()):
            if member.popen.poll() is not None:
                self.start(number)


class DLedgerGroup(ApacheGroup):
    """The members elect their leader themselves (`enableDLegerCommitLog`)."""

    name = "DLedger 4.9.7"
    server = "server49"
    own_ports = 40911
    of_namesrv: ClassVar = {}
    of_broker: ClassVar = {
        "brokerId": "0",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "demo-a",
        "dLegerPeers": ";".join(f"n{i}-127.0.0.1:{40911 + i}" for i in range(MEMBERS)),
        "dLegerSelfId": "n{n}",
    }


class ControllerGroup(ApacheGroup):
    """A controller in the NameServer chooses the master; every SEND_OK waits for the in-sync set."""

    name = "controller 5.5.0"
    server = "server55"
    of_namesrv: ClassVar = {
        "enableControllerInNamesrv": "true",
        "controllerType": "DLedger",
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": "{folder}/controller",
    }
    of_broker: ClassVar = {
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": "127.0.0.1:9878",
        "allAckInSyncStateSet": "true",
    }


def _properties(path: Path, values: dict[str, str], **names: object) -> Path:
    """Writes a properties file; `names` fill the placeholders of the values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value.format(**names)}\n" for key, value in values.items()))
    return path


def _port(number: int) -> int:
    return 30911 + 10 * number


@contextlib.contextmanager
def apache(kind: type[ApacheGroup], folder: Path) -> Iterator[ApacheGroup]:
    """Starts a group of Apache RocketMQ. Raises JavaMissing or NamespaceUnavailable."""
    partition.require_tools()
    java.build()
    with namespace(kind.server) as prefix, contextlib.ExitStack() as stack:
        group = kind(folder, prefix)
        ns = stack.enter_context(group.start_namesrv())
        until("RocketMQ's NameServer", lambda: listening(prefix, 9876), 60, [ns])
        stack.callback(group.stop)
        for number in range(kind.members):
            group.start(number)
        until(f"a leader of {group.name} and its followers", group.is_healthy, 120)
        yield group
