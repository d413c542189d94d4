"""The group's address leads to a member that does not lead, as a Service does while nothing moves its label.

Kubernetes is not needed for it: members are processes behind a stand-in for a Service.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker.client import FromWhere, Producer, PullConsumer
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import AssignmentModel, MemberStatus
from gantry_broker.namesrv.server import NameServer, NameServerSettings
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import TopicRoute
from gantry_broker.protocol.codes import MASTER_ID, PullFlag, RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import Long, PullHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.remoting.errors import RemotingError

from tests.cluster.service import Service
from tests.cluster.test_switchover_by_service import MEMBERS, Load, first_send, served, stored_numbers
from tests.integration.test_replication import send_frame
from tests.support.broker_group import until
from tests.support.free_ports import free_port
from tests.support.present import present

pytestmark = pytest.mark.timeout(180)


class Members:
    """Processes behind one address, without an operator."""

    def __init__(self, folder: Path, service: Service, names: NameServer, mode: str, **options: Any) -> None:
        self.service = service
        self.folder = folder
        replication = {number: f"127.0.0.1:{free_port()}" for number in range(MEMBERS)}
        self.configs = []
        for number in range(MEMBERS):
            port = free_port()
            self.configs.append(
                BrokerConfig(
                    mode=mode, members=replication if mode == "Raft" else {},
                    replication_port=int(replication[number].rpartition(":")[2]),
                    replication_address=replication[number],
                    cluster="t", group="a", member=number, name=f"t-a-{number}", data_dir=folder / str(number),
                    listen_host="127.0.0.1", port=port, http_port=free_port(), member_address=f"127.0.0.1:{port}",
                    group_address=service.address, registration_addresses=[f"127.0.0.1:{names.registration_port}"],
                    settings={"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 500, "maxIndexNum": 2_000},
                    **options,
                )
            )  # fmt: skip
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.http = httpx.AsyncClient(timeout=5, headers={"Content-Type": "application/json"})

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            config = self.configs[number]
            path = self.folder / f"{config.name}.json"
            path.write_text(config.model_dump_json())
            words = [sys.executable, "-m", "gantry_broker.broker", "--config", str(path)]
            with path.with_suffix(".log").open("ab") as log:
                self.processes[number] = await asyncio.create_subprocess_exec(*words, stderr=log)

    async def stop(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await self.http.aclose()

    async def kill(self, number: int) -> None:
        self.processes[number].kill()
        await self.processes.pop(number).wait()

    def label(self, number: int) -> None:
        self.service.label({self.configs[number].port})

    def carries(self, number: int) -> int:
        return self.service.carries[self.configs[number].port]

    async def status(self, number: int) -> MemberStatus | None:
        try:
            answer = await self.http.get(f"http://127.0.0.1:{self.configs[number].http_port}/v1/status")
        except httpx.HTTPError:
            return None
        return MemberStatus.model_validate_json(answer.content)

    async def leader(self, *, besides: int = -1) -> int:
        async def found() -> int | None:
            for number in self.processes:
                status = None if number == besides else await self.status(number)
                if status is not None and status.role == "Master" and status.writable:
                    return number + 1
            return None

        return int(await until(found, "a member leads")) - 1

    async def follows(self, number: int) -> None:
        async def connected() -> bool:
            status = await self.status(number)
            return status is not None and status.leader_link.state == "connected"

        await until(connected, f"member {number} follows")

    async def lead(self, number: int, epoch: int, *to: int) -> list[tuple[int, str]]:
        """Assigns an epoch under a member to some members; the operator's part in MasterSlave mode."""
        ids: list[MemberId] = []
        for member in range(MEMBERS):
            status = await until(lambda member=member: self.status(member), "it answers")  # type: ignore[misc]
            ids.append(status.member.value())
        record = LeadershipRecord(epoch, epoch, ids[number], frozenset(ids))
        body = AssignmentModel.of(Assignment(record, self.configs[number].replication_address)).model_dump_json()
        answers = []
        for member in to:
            url = f"http://127.0.0.1:{self.configs[member].http_port}/v1/assignment"
            answer = await self.http.put(url, content=body)
            answers.append((answer.status_code, answer.text))
        return answers

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, timeout_s: float) -> None:
        """As `until`, with the members' logs."""
        try:
            await until(condition, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))


@asynccontextmanager
async def group(folder: Path, mode: str, **options: Any) -> AsyncIterator[tuple[Members, str]]:
    """Running members; in Raft mode one leads, and the address leads to it."""
    async with (
        Service(lag_s=0.1, seed=4) as service,
        NameServer(NameServerSettings("ns", "127.0.0.1", 0, cluster="t", registration_port=0)) as names,
    ):
        members = Members(folder, service, names, mode, **options)
        try:
            await members.start(*range(MEMBERS))
            if mode == "Raft":
                members.label(await members.leader())
            yield members, f"127.0.0.1:{names.port}"
        finally:
            await members.stop()


async def write(client: RemotingClient, address: str, text: bytes, more: int = 0) -> str:
    """What a member answers to a send, of a text and more bytes."""
    frame = send_frame("T", text)
    frame.body = frame.body.rjust(more)
    try:
        answer = await client.request(address, frame, 3.0)
    except RemotingError as error:
        return f"{type(error).__name__}: {error}"
    return "stored" if answer.code == ResponseCode.SUCCESS else f"{answer.code} {answer.remark}"


async def stored(client: RemotingClient, address: str, text: bytes) -> bool:
    return await write(client, address, text) == "stored"


def pull_fields(flags: int) -> dict[str, str]:
    return PullHeader("g", "T", 0, Long(0), 1, flags, Long(0), Long(0), Long(0), "*", "TAG", bname="a").ext()


async def test_a_raft_group_serves_although_nothing_moves_its_address(tmp_path: Path) -> None:
    """The leader is killed and its process comes back as a follower, at the address; a pod's container does so. No
    operator is there. Later the address moves, and the clients follow it.
    """
    async with group(tmp_path, "Raft") as (members, name_server), Producer(name_server) as producer:
        await first_send(producer)
        consumer = PullConsumer(name_server, "g", from_where=FromWhere.FIRST)
        async with consumer:
            await consumer.assign(await consumer.queues("T"))
            load = Load(producer)
            await asyncio.sleep(0.5)
            former = await members.leader()
            await members.kill(former)
            begun = time.monotonic()
            await members.start(former)
            await members.follows(former)
            leader = await members.leader()
            assert leader != former
            took_s = time.monotonic() - begun
            before = len(load.acknowledged)

            async def goes_on() -> bool:
                return len(load.acknowledged) > before + 100

            await members.until(goes_on, "sends go on", 10)
            got: set[int] = set()
            consuming = time.monotonic()
            while not any(number > before for number in got):
                got |= {int(m.body) for m in await consumer.poll(1.0)}
                assert time.monotonic() < consuming + 20, members.story()
            assert load.longest_gap_s < took_s + 4, (load.longest_gap_s, took_s)
            assert members.carries(leader) == 0
            members.label(leader)
            moved = time.monotonic()

            async def moved_on() -> bool:
                return members.carries(former) == 0 and members.carries(leader) > 0

            await members.until(moved_on, "clients reach the leader itself", 40)
            print(f"clients followed after {time.monotonic() - moved:.1f} s; longest gap {load.longest_gap_s:.1f} s")
            await asyncio.sleep(0.5)
            await load.end()
            problems = [p for p in load.problems if "before" not in p]
            assert load.acknowledged <= set(await stored_numbers(name_server)), (problems, members.story())


async def test_a_leader_whose_address_leads_nowhere_registers_its_own(tmp_path: Path) -> None:
    """The leader's node and the API server are gone together, so no process comes back at the address."""
    async with group(tmp_path, "Raft") as (members, name_server), Producer(name_server) as producer:
        await first_send(producer)
        former = await members.leader()
        members.service.label(())
        await members.kill(former)
        leader = await members.leader(besides=former)
        own = members.configs[leader].member_address
        await members.until(lambda: master_is(name_server, own), "the route names the leader's own address", 30)
        load = Load(producer)

        async def goes_on() -> bool:
            return len(load.acknowledged) > 100

        await members.until(goes_on, "sends go on", 40)
        members.label(leader)
        await members.until(
            lambda: master_is(name_server, members.service.address), "the route names the group's address again", 30
        )
        before = len(load.acknowledged)

        async def goes_on_there() -> bool:
            return len(load.acknowledged) > before + 100

        await members.until(goes_on_there, "sends go on", 40)
        await load.end()
        assert load.acknowledged <= set(await stored_numbers(name_server)), members.story()


async def master_is(name_server: str, address: str) -> bool:
    """Whether the route names this address for the master."""
    async with RemotingClient() as client:
        asked = Frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
        answer = await client.request(name_server, asked, 3.0)
    if answer.code != ResponseCode.SUCCESS:
        return False
    [data] = TopicRoute.from_json(fastjson.loads(answer.body)).brokers
    return data.addresses.get(MASTER_ID) == address


async def test_a_former_master_refuses_and_then_carries_and_readers_of_the_slave_stay(tmp_path: Path) -> None:
    """Until it knows who leads, it ends the connections of clients that write. A reader that came by the member's own
    address keeps its connection.
    """
    async with group(tmp_path, "MasterSlave") as (members, _), RemotingClient() as client, RemotingClient() as reader:
        assert all(code == 200 for code, _ in await members.lead(0, 1, 0, 1, 2))
        members.label(0)
        address = members.service.address
        await until(lambda: stored(client, address, b"1"), "the first master stores")
        await members.kill(0)
        await members.start(0)
        await until(lambda: members.status(0), "it answers")
        assert "restarted as the master" in await write(client, address, b"refused")
        refused_on = client.ready(address)

        async def ended() -> bool:
            await write(client, address, b"refused")
            return client.ready(address) is not refused_on

        await until(ended, "the connection ends: it may lead to the master next time", 5)
        assert all(code == 200 for code, _ in await members.lead(1, 2, 1, 2, 0))
        await members.follows(0)
        own = members.configs[0].member_address
        ext = pull_fields(PullFlag.SUBSCRIPTION)
        await reader.request(own, Frame(RequestCode.PULL_MESSAGE, ext=ext), 3.0)
        connection = present(reader.ready(own))
        await until(lambda: stored(client, address, b"2"), f"the former master carries\n{members.story()}", 5)
        assert members.carries(0) > 0
        for _ in range(30):  # Longer than two rounds.
            await stored(client, address, b"3")
            answer = await reader.request(own, Frame(RequestCode.PULL_MESSAGE, ext=dict(ext)), 3.0)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
            await asyncio.sleep(0.1)
        assert reader.ready(own) is connection, "a reader of the slave keeps its connection"
        members.label(1)
        await asyncio.sleep(0.2)

        async def moved_on() -> bool:
            await stored(client, address, b"4")
            return members.carries(0) == 0 and members.carries(1) > 0

        await members.until(moved_on, "the clients follow the address", 40)


async def full(folder: Path) -> None:
    """Takes every free byte of a disk."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 65_536, 4_096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


async def test_a_master_with_a_full_disk_follows_its_successor(
    small_disk: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    """It can write the assignment of its successor, so its clients go on although the address still leads to it."""
    disks = [small_disk(tmp_path / str(number), 24 << 20) for number in range(MEMBERS)]
    small = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 500, "maxIndexNum": 2_000}
    async with served(tmp_path, lag_s=0.1, **small) as (pods, loop, name_server), Producer(name_server) as producer:
        await first_send(producer)
        pods.service.lag_s = 3.0
        load = Load(producer)
        await asyncio.sleep(0.3)
        assert loop.leadership is not None
        former = present(loop.leadership.master)
        carries = pods.service.carries
        await full(disks[former.member])

        async def moved() -> bool:
            return present(loop.leadership).master not in (None, former)

        await until(moved, "another member leads", 30)
        before = len(load.acknowledged)

        async def goes_on() -> bool:
            return len(load.acknowledged) > before + 100

        async def followed() -> bool:
            assert loop.leadership is not None
            leads = present(loop.leadership.master).member
            return carries[pods.configs[former.member].port] == 0 and carries[pods.configs[leads].port] > 0

        try:
            await until(goes_on, "sends go on", 10)
            await until(followed, "clients reach the master itself", 40)
        except AssertionError as error:
            raise AssertionError(f"{error} {load.problems[-3:]}\n{pods.story()}") from None
        assert "the assignment cannot be written" not in pods.story()
        await load.end()
        assert load.acknowledged <= set(await stored_numbers(name_server)), pods.story()
