"""A real NameServer and a real broker of one member, in this process."""

from __future__ import annotations

from pathlib import Path

from gantry_broker.broker.process import BrokerProcess
from gantry_broker.client import ReceivedMessage
from gantry_broker.config import BrokerConfig, OtlpConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.namesrv.routes import RouteTable
from gantry_broker.namesrv.server import NameServer
from gantry_broker.settings import BrokerSettings

from tests.client.tour import until as until
from tests.support.free_ports import free_port


class Inbox:
    """A handler that collects a consumer's messages."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)

    async def wait(self, count: int, seconds: float = 10.0) -> None:
        await until(lambda: len(self.messages) >= count, f"{count} messages; {len(self.messages)} came", seconds)


class OneBroker:
    """A group of one member that can stop and start again at the same addresses."""

    def __init__(
        self, directory: Path, name_server: NameServer, group: str, otlp: OtlpConfig | None = None, **settings: object
    ) -> None:
        self._directory = directory
        self.group = group
        self._port = free_port()
        self._group_port = free_port()
        self.address = f"127.0.0.1:{self._group_port}"
        self._leadership = LeadershipRecord()
        self._config = BrokerConfig(
            cluster="test",
            group=group,
            member=0,
            name=f"{group}-0",
            data_dir=directory / group,
            listen_host="127.0.0.1",
            port=self._port,
            http_port=free_port(),
            group_port=self._group_port,
            member_address=f"127.0.0.1:{self._port}",
            group_address=self.address,
            name_servers=[f"127.0.0.1:{name_server.port}"],
            registration_addresses=[f"127.0.0.1:{name_server.registration_port}"],
            otlp=otlp,
            settings=BrokerSettings(
                mappedFileSizeCommitLog=16 * 1024 * 1024, maxHashSlotNum=1000, maxIndexNum=4000, **settings
            ),
        )
        self.process: BrokerProcess | None = None

    async def start(self) -> None:
        self.process = BrokerProcess(self._config)
        await self.process.start()
        replication = self.process.broker.replication
        self._leadership = self._leadership.promoted(replication.me, [replication.me])
        answer = await replication.assign(Assignment(self._leadership, f"127.0.0.1:{self._port}"))
        assert answer.accepted, answer

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()
            self.process = None


class Cluster:
    """A NameServer and its broker groups."""

    def __init__(self, directory: Path, name_server: NameServer) -> None:
        self._directory = directory
        self._name_server = name_server
        self.name_server = f"127.0.0.1:{name_server.port}"
        self.brokers: dict[str, OneBroker] = {}

    async def add(self, group: str, otlp: OtlpConfig | None = None, **settings: object) -> OneBroker:
        """Starts a broker group and waits for its registration."""
        broker = self.brokers[group] = OneBroker(self._directory, self._name_server, group, otlp, **settings)
        await broker.start()
        await until(lambda: self.registered(group), f"group {group} registers")
        return broker

    def registered(self, group: str) -> bool:
        found = self._name_server.service.routes.groups.get(group)
        return found is not None and 0 in found.entries and found.entries[0].left_ms is None

    def routes(self) -> RouteTable:
        return self._name_server.service.routes

    async def has_topic(self, topic: str) -> None:
        """Waits for the route of a topic."""
        await until(lambda: topic in self._name_server.service.routes.topics(), f"topic {topic} has a route")

    async def close(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
