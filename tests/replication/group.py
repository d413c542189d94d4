"""Real members in one process: real stores, real sockets on free ports, no broker and no operator."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.codes import GantryCode, SendStatus
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.message import pack_host
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.connection import Connection
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.members import HandshakeGuard, Membership
from gantry_broker.remoting.server import RemotingServer
from gantry_broker.replication.log_repair import LogRepair, answering
from gantry_broker.replication.service import ReplicationService
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("127.0.0.1", 1)


class Node:
    """One member: its store, its replication and the port on which it answers fetches."""

    def __init__(self, root: Path, member: int, **config: object) -> None:
        self.root = root / f"m{member}"
        self.member = member
        self.options = config
        self.membership = Membership(Identity("c", "g", member), None)
        self.server = self.make_server(0)
        self.refuse_fetches = False
        self.reports: list[str] = []
        self.roles: list[str] = []
        self.up = False

    def make_server(self, port: int) -> RemotingServer:
        return RemotingServer(self, "127.0.0.1", port, guard=HandshakeGuard(self.membership))

    async def listen(self) -> str:
        """Bind the port, so that the others can learn it; otherwise `start` does it."""
        if not self.server.listening:
            self.address = f"127.0.0.1:{await self.server.start()}"
        return self.address

    async def start(self) -> Node:
        await self.listen()
        port = self.server.port
        self.config = BrokerConfig.model_validate(
            {
                "cluster": "c",
                "group": "g",
                "member": self.member,
                "name": f"g-{self.member}",
                "data_dir": self.root,
                "listen_host": "127.0.0.1",
                "port": 0,
                "replication_port": port,
                "replication_address": self.address,
                "http_port": 0,
                "member_address": self.address,
                "group_address": "127.0.0.1:0",
                "settings": BrokerSettings(
                    mappedFileSizeCommitLog=1 << 24, maxHashSlotNum=1000, maxIndexNum=4000, flushIntervalCommitLog=50
                ),
                **self.options,
            }
        )
        sync = self.config.flush == "Sync"
        self.store = MessageStore.open(StoreConfig(self.root, self.config.settings, sync_flush=sync))
        self.client = RemotingClient(membership=self.membership)
        self.service = ReplicationService(
            self.config,
            self.store,
            self.client,
            on_role_change=lambda: self.roles.append(self.service.role.value),
            report=self.reports.append,
        )
        self.log_repair = LogRepair(self.store, self.service.peers)
        self.service.on_damaged_answer = self.log_repair.given_damaged
        self.service.on_unreadable = self.log_repair.suspect
        self.store.state.on_damage = self.log_repair.suspect
        self.client.register(GantryCode.READ_LOG, answering(self.log_repair, self.service.follows_member))
        await self.service.start()
        self.up = True
        return self

    async def stop(self, *, clean: bool = True) -> None:
        self.up = False
        await self.log_repair.close()
        await self.service.stop()
        await self.client.close()
        await self.server.close(0.1)
        self.store.close(clean)
        if clean:
            self.service.mark_clean()

    def on_open(self, conn: Connection) -> None:
        """Nothing to do."""

    def on_close(self, conn: Connection) -> None:
        self.service.on_connection_lost(conn)

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.code == GantryCode.FETCH and not self.refuse_fetches:
                self.service.on_fetch(conn, frame)
            elif frame.code == GantryCode.RAFT:
                self.service.on_raft_request(conn, frame)
            elif frame.code == GantryCode.READ_LOG:
                conn.send(self.log_repair.answer(frame))

    def put(self, *bodies: bytes, timeout_ms: int = 3_000) -> asyncio.Future[SendStatus]:
        """Append as a broker would; the future has the send status."""
        done: asyncio.Future[SendStatus] = asyncio.get_running_loop().create_future()
        if not self.service.may_append:
            raise RuntimeError("may not append")
        self.store.appender.put([Put("T", 0, 0, 0, 1, HOST, body, b"") for body in bodies], time.time_ns() // 1_000_000)
        self.service.add_waiter(self.store.log.end, done.set_result, timeout_ms)
        self.service.appended(self.store.log.end)
        return done

    def bodies(self) -> list[bytes]:
        """What the log has in it, confirmed or not, control records aside."""
        return [r.body for r in self.store.reader.walk(self.store.log.start, self.store.log.end) if r.topic == "T"]


class Group:
    """Several nodes and the leadership record that a test writes by hand."""

    def __init__(self, root: Path, count: int = 3, **config: object) -> None:
        self.nodes = [Node(root, member, **config) for member in range(count)]
        self.leadership = LeadershipRecord()

    async def __aenter__(self) -> Group:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for node in self.nodes:
            if node.up:
                await node.stop()

    def ids(self, *numbers: int) -> frozenset[MemberId]:
        return frozenset(self.nodes[n].service.me for n in numbers)

    async def promote(self, master: int, in_sync: tuple[int, ...], assigned: tuple[int, ...] | None = None) -> None:
        self.leadership = self.leadership.promoted(self.nodes[master].service.me, self.ids(*in_sync))
        await self.send_assignments(assigned)

    async def send_assignments(self, numbers: tuple[int, ...] | None = None) -> None:
        assert self.leadership.master is not None
        address = self.nodes[self.leadership.master.member].address
        for node in self.nodes if numbers is None else [self.nodes[n] for n in numbers]:
            await node.service.assign(Assignment(self.leadership, address))
