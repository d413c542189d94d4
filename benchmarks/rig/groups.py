"""Replicated broker groups that lose their leader on purpose: ours by `gantry up`, and Apache RocketMQ's DLedger."""

from __future__ import annotations

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rig import java, partition
from rig.gantry import Cluster
from rig.processes import Started, namespace, until
from rig.rocketmq import environment, listening
from rig.wire import Refused, Wire

DLEDGER_MEMBERS = 3


class Group(ABC):
    """One group, whole when a benchmark begins. `prefix` as in Target."""

    name: str
    namesrv: str
    prefix: list[str]
    kinds: tuple[str, ...]
    """What can be done to its leader."""

    @abstractmethod
    def whole(self) -> bool:
        """One leads, everybody else follows and has what was acknowledged."""

    @abstractmethod
    def strike(self, kind: str) -> None:
        """Do that to whoever leads now."""

    @abstractmethod
    def mend(self) -> None:
        """End what `strike` began; the group becomes whole by itself."""


class GantryGroup(Group):
    """Three members of ours under `gantry up`, which starts again what dies and ends what is frozen or cut off."""

    kinds = ("kill9", "sigstop", "handover", "partition")

    def __init__(self, cluster: Cluster, mode: str) -> None:
        self.name = f"gantry {mode}"
        self.prefix = cluster.prefix
        self._cluster = cluster
        self._members: list[dict[str, Any]] = []
        self.namesrv = ";".join(cluster.status()["nameServers"])

    def whole(self) -> bool:
        self._members = self._cluster.members() or []
        masters = [m for m in self._members if m["role"] == "Master"]
        if len(self._members) < 2 or len(masters) != 1:
            return False
        in_sync = masters[0]["in_sync"]
        return bool(masters[0]["writable"]) and all(m["member"] in in_sync for m in self._members)

    def strike(self, kind: str) -> None:
        master = next(m for m in self._members if m["role"] == "Master")
        if kind == "kill9":
            os.kill(master["pid"], signal.SIGKILL)
        elif kind == "sigstop":
            os.kill(master["pid"], signal.SIGSTOP)
        elif kind == "partition":
            partition.cut(self.prefix, master["member"]["member"], self._cluster.own_ports(master["name"]))
        else:
            self._cluster.gantry("switchover", master["group"])

    def mend(self) -> None:
        if self.prefix:
            partition.heal(self.prefix)


@contextlib.contextmanager
def gantry(folder: Path, manifest: Path, *, isolated: bool) -> Iterator[GantryGroup]:
    """The cluster of a manifest; `isolated`: in a network namespace, in which its members can be cut off.

    Raises NoNamespace.
    """
    with contextlib.ExitStack() as stack:
        prefix: list[str] = []
        environ = {}
        if isolated:
            prefix = stack.enter_context(namespace("failover"))
            paths = [str(Path(__file__).with_name("owned")), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            environ = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "GANTRY_FIRST_GID": str(partition.FIRST_GID)}
        cluster = stack.enter_context(Cluster(folder, manifest, prefix, environ))
        yield GantryGroup(cluster, "Raft" if "mode: Raft" in manifest.read_text() else "MasterSlave")


class DLedgerGroup(Group):
    """Three brokers of Apache RocketMQ 4.9.7 that elect their leader (`enableDLegerCommitLog`)."""

    name = "DLedger 4.9.7"
    namesrv = "127.0.0.1:9876"
    kinds = ("kill9", "sigstop", "partition")

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self.prefix = prefix
        self._folder = folder
        self._members: dict[int, Started] = {}
        self._frozen: int | None = None

    def start(self, number: int) -> None:
        folder = self._folder / f"n{number}"
        folder.mkdir(parents=True, exist_ok=True)
        peers = ";".join(f"n{i}-127.0.0.1:{_raft_port(i)}" for i in range(DLEDGER_MEMBERS))
        values = {
            "brokerClusterName": "demo", "brokerName": "demo-a", "brokerId": "0", "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.namesrv, "listenPort": str(_port(number)), "storePathRootDir": f"{folder}/store",
            "storePathCommitLog": f"{folder}/store/commitlog", "enableDLegerCommitLog": "true",
            "dLegerGroup": "demo-a", "dLegerPeers": peers, "dLegerSelfId": f"n{number}",
        }  # fmt: skip
        config = folder / "broker.conf"
        config.write_text("".join(f"{k}={v}\n" for k, v in values.items()))
        flags = ["-XX:MaxDirectMemorySize=1g", f"-Duser.home={folder}"]
        words = java.command(
            "server49", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config), heap="512m", flags=flags
        )
        member = [*self.prefix, *partition.as_member(number), *words]
        self._members[number] = Started(member, folder / "broker.log", environment(self._folder))

    def stop(self) -> None:
        self.mend()
        for member in self._members.values():
            member.stop(2.0)

    def _addresses(self) -> dict[int, str]:
        """Of the group, by brokerId; the leader's is 0."""
        try:
            with Wire(self.namesrv, prefix=self.prefix) as ns:
                route = ns.route("TBW102")
        except (OSError, Refused):
            return {}
        return {int(n): a for row in route["brokerDatas"] for n, a in row["brokerAddrs"].items()}

    def whole(self) -> bool:
        found = self._addresses()
        running = all(m.popen.poll() is None for m in self._members.values())
        return running and 0 in found and len(found) == DLEDGER_MEMBERS

    def strike(self, kind: str) -> None:
        port = int(self._addresses()[0].rsplit(":", 1)[1])
        leader = next(n for n in self._members if _port(n) == port)
        pid = self._members[leader].pid
        if kind == "kill9":
            os.kill(pid, signal.SIGKILL)
        elif kind == "sigstop":
            self._frozen = leader
            os.kill(pid, signal.SIGSTOP)
        else:
            partition.cut(self.prefix, leader, [port, port - 2, port + 1, _raft_port(leader)])

    def mend(self) -> None:
        partition.heal(self.prefix)
        if self._frozen is not None:
            os.kill(self._members[self._frozen].pid, signal.SIGCONT)
            self._frozen = None
        for number, member in list(self._members.items()):
            if member.popen.poll() is not None:
                self.start(number)


def _port(number: int) -> int:
    return 30911 + 10 * number


def _raft_port(number: int) -> int:
    return 40911 + number


@contextlib.contextmanager
def dledger(folder: Path) -> Iterator[DLedgerGroup]:
    """Raises JavaMissing or NoNamespace where it cannot run."""
    java.build()
    with namespace("dledger") as prefix, contextlib.ExitStack() as stack:
        config = folder / "namesrv.properties"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"listenPort=9876\nkvConfigPath={folder}/kvConfig.json\n")
        words = java.command(
            "server49", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config), flags=[f"-Duser.home={folder}"]
        )
        ns = stack.enter_context(Started([*prefix, *words], folder / "namesrv.log", environment(folder)))
        until("RocketMQ's NameServer", lambda: listening(prefix, 9876), 30, [ns])
        group = DLedgerGroup(folder, prefix)
        stack.callback(group.stop)
        for number in range(DLEDGER_MEMBERS):
            group.start(number)
        until("a leader of DLedger and its followers", group.whole, 90)
        yield group
