"""Repeated switchovers under load behind an address that follows late: like Kubernetes, without it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from gantry_broker.client import ClientError, FromWhere, MessageQueue, NoRoute, Producer, PullConsumer, SendStatus
from gantry_broker.config import BrokerConfig
from gantry_broker.namesrv.server import NameServer, NameServerSettings
from gantry_broker.remoting.client import RemotingClient
from gantry_operator.cluster.master_slave_controller import MasterSlaveController
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.platform import Change, Event, MemberEndpoint, ProcessState
from gantry_operator.cluster.probe import send_and_read
from gantry_operator.failover.model import FailoverSettings
from gantry_operator.registry.file import FileRegistry

from tests.cluster.service import Service
from tests.support.free_ports import free_port
from tests.support.running import until

pytestmark = pytest.mark.timeout(180)

MEMBERS = 3
SENDERS = 4
GRACE_S = 1.5
"""Seconds for which a former leader that answers keeps its place in the Service, like the operator on Kubernetes."""
LONGEST_GAP_S = 2.0
LATE_S = 6.0
"""Seconds that a Service on busy nodes may need to follow its labels."""
DRAIN_S = 3.0
START_S = 60.0


class Pods:
    """Members as processes behind a Service, and the platform of their failover loop."""

    def __init__(self, folder: Path, service: Service, names: NameServer, **settings: int) -> None:
        self.service = service
        self.events: list[str] = []
        self.configs = [self._config(folder, n, service.address, names, settings) for n in range(MEMBERS)]
        self._folder = folder
        self._grace_until: dict[int, float] = {}
        self._announced = 0
        self._processes: list[asyncio.subprocess.Process] = []

    @staticmethod
    def _config(
        folder: Path, number: int, group_address: str, names: NameServer, settings: dict[str, int]
    ) -> BrokerConfig:
        port, replication_port = free_port(), free_port()
        return BrokerConfig(
            replication_port=replication_port, replication_address=f"127.0.0.1:{replication_port}",
            cluster="t", group="a", member=number, name=f"t-a-{number}", data_dir=folder / str(number),
            listen_host="127.0.0.1", port=port, http_port=free_port(), member_address=f"127.0.0.1:{port}",
            group_address=group_address, registration_addresses=[f"127.0.0.1:{names.registration_port}"],
            settings=settings,
        )  # fmt: skip

    async def start(self) -> None:
        for config in self.configs:
            path = self._folder / f"{config.name}.json"
            path.write_text(config.model_dump_json())
            words = [sys.executable, "-m", "gantry_broker.broker", "--config", str(path)]
            with path.with_suffix(".log").open("wb") as log:
                self._processes.append(await asyncio.create_subprocess_exec(*words, stderr=log))

    async def stop(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    def story(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join([*self.events, *(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in logs)])

    # ---- platform

    def members(self, group: str) -> Sequence[MemberEndpoint]:
        return [
            MemberEndpoint(c.name, c.member, f"http://127.0.0.1:{c.http_port}", c.replication_address)
            for c in self.configs
        ]

    def process_state(self, name: str) -> ProcessState:
        return ProcessState()

    async def announce(self, group: str, master: MemberEndpoint, epoch: int) -> None:
        port = self.configs[master.member].port
        until = time.monotonic() + GRACE_S
        self._grace_until.update(dict.fromkeys(self.service.labelled - {port}, until))
        self._grace_until.pop(port, None)
        self.service.label({port, *self.service.labelled})
        asyncio.get_running_loop().call_later(GRACE_S + 0.01, self._settle, port, epoch)
        self._announced = epoch

    def _settle(self, port: int, epoch: int) -> None:
        if epoch == self._announced:
            self.service.label({port, *(p for p, until in self._grace_until.items() if until > time.monotonic())})

    def event(self, event: Event) -> None:
        self.events.append(f"{event.reason}: {event.message}")

    def changed(self, change: Change) -> None:
        self.events.append(f"MasterChanged: {change.new} after {change.duration_ms} ms")


class Load:
    """Continuous senders, and their results."""

    def __init__(self, producer: Producer) -> None:
        self.acknowledged: set[int] = set()
        self.problems: list[str] = []
        self.longest_gap_s = 0.0
        self._producer = producer
        self._numbers = itertools.count()
        self._stop = False
        self._last = time.monotonic()
        self._tasks = [asyncio.create_task(self._send()) for _ in range(SENDERS)]

    async def _send(self) -> None:
        while not self._stop:
            number = next(self._numbers)
            try:
                result = await self._producer.send("T", b"%d" % number)
            except ClientError as error:
                self.problems.append(str(error))
                continue
            if result.status is not SendStatus.SEND_OK:
                self.problems.append(result.status.name)
                continue
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
            self._last = now
            self.acknowledged.add(number)

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def first_send(producer: Producer) -> None:
    """In sync does not mean registered: the first route comes a moment later."""
    deadline = time.monotonic() + 20
    while True:
        try:
            await producer.send("T", b"-1")
            return
        except NoRoute:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def stored_numbers(name_server: str) -> Counter[int]:
    found: Counter[int] = Counter()
    async with PullConsumer(name_server, "check", from_where=FromWhere.FIRST, auto_commit=False) as consumer:
        queues: list[MessageQueue] = await consumer.queues("T")
        await consumer.assign(queues)
        left = {q: await consumer.puller.max_offset(q) for q in queues}
        left = {q: end for q, end in left.items() if end > 0}
        while left:
            for message in await consumer.poll(5.0, 256):
                found[int(message.body)] += 1
                queue = MessageQueue("T", message.broker, message.queue_id)
                if message.queue_offset + 1 >= left.get(queue, 1 << 62):
                    del left[queue]
    return found


@asynccontextmanager
async def served(folder: Path, lag_s: float, **settings: int) -> AsyncIterator[tuple[Pods, MasterSlaveController, str]]:
    """Members behind a Service, all in sync, their failover loop, and the NameServer's address."""
    client = make_client(lambda: None)
    async with (
        Service(lag_s=lag_s, seed=4) as service,
        NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="t", registration_port=0)) as names,
    ):
        name_server = f"127.0.0.1:{names.port}"
        pods = Pods(folder, service, names, **settings)
        loop = MasterSlaveController("a", FileRegistry(folder / "registry"), pods, client, FailoverSettings)
        await pods.start()
        running = asyncio.create_task(loop.run())
        try:
            await until(
                lambda: loop.leadership is not None and len(loop.leadership.in_sync) == MEMBERS,
                "all are in sync",
                START_S,
            )
            yield pods, loop, name_server
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await pods.stop()
            await client.aclose()


@pytest.mark.parametrize("pause_s", [0.05, 0.9, 1.02])
async def test_switchovers_one_upon_the_other_show_no_error(tmp_path: Path, pause_s: float) -> None:
    """The role returns to a member that still forwards, or is just closing its clients' connections."""
    async with served(tmp_path, lag_s=0.3) as (pods, loop, name_server):
        async with Producer(name_server) as producer:
            await first_send(producer)
            load = Load(producer)
            for _ in range(6):
                await asyncio.sleep(pause_s)
                await loop.switchover(None, "asked for by a test")
            await asyncio.sleep(3.0)
            await load.end()
        stored = await stored_numbers(name_server)
        assert load.acknowledged - stored.keys() == set(), pods.story()
        assert load.problems == [], pods.story()
        assert load.longest_gap_s < LONGEST_GAP_S, pods.story()


async def test_clients_of_a_late_service_are_disconnected_however_late_it_moved(tmp_path: Path) -> None:
    """Otherwise its writes would be forwarded for ever, and it would read from a slave."""
    async with served(tmp_path, LATE_S) as (pods, loop, _), RemotingClient() as client:
        service = pods.service
        deadline = time.monotonic() + LATE_S + 10
        while (said := await send_and_read(client, service.address)) is not None:
            assert time.monotonic() < deadline, said
        [former] = service.labelled
        await loop.switchover(None, "asked for by a test")
        moved = time.monotonic() + GRACE_S + LATE_S
        while time.monotonic() < moved:
            await send_and_read(client, service.address)
            await asyncio.sleep(0.1)
        await until(lambda: service.carries[former] == 0, "no connection leads to the former master", DRAIN_S)
        assert await send_and_read(client, service.address) is None, pods.story()
