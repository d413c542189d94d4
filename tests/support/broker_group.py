"""A real broker group: processes on free ports of 127.0.0.1. The test itself assigns their roles over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gantry_broker.config import BrokerConfig, InternalTlsConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import (
    AssignmentAnswer,
    AssignmentModel,
    HandoverAnswer,
    HandoverRequest,
    MemberRef,
    MemberStatus,
)
from gantry_broker.namesrv.server import NameServer, NameServerSettings

from tests.support.free_ports import free_port
from tests.support.patience import SLOW
from tests.support.present import present

PATIENCE_S = 60.0


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Polls until the condition returns a true value; fails with `what` after `SLOW` times `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + SLOW * timeout_s
    while True:
        found = await condition()
        if found:
            return found
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {SLOW * timeout_s:g} s: {what}")
        await asyncio.sleep(0.01)


class Member:
    """One broker process."""

    def __init__(self, config: BrokerConfig, path: Path) -> None:
        self.config = config
        self.path = path
        self.process: asyncio.subprocess.Process | None = None
        self.http = self._client(None)

    def _client(self, context: ssl.SSLContext | None) -> httpx.AsyncClient:
        scheme = "http" if context is None else "https"
        return httpx.AsyncClient(
            base_url=f"{scheme}://127.0.0.1:{self.config.http_port}", timeout=10,
            headers={"Content-Type": "application/json"}, verify=context or True,
        )  # fmt: skip

    def use_internal_tls(self, cert: Path, key: Path, ca: Path, context: ssl.SSLContext) -> None:
        """Give the process a certificate for ports between members and for HTTP; `context` is the test's own."""
        files = InternalTlsConfig(cert_file=cert, key_file=key, ca_file=ca)
        self.config = self.config.model_copy(update={"internal_tls": files})
        self.http = self._client(context)

    @property
    def address(self) -> str:
        """Its port for clients."""
        return self.config.member_address

    @property
    def replication_address(self) -> str:
        return self.config.replication_address

    async def start(self) -> None:
        self.path.write_text(self.config.model_dump_json())
        log = open(self.path.with_suffix(".log"), "ab")  # noqa: SIM115, ASYNC230
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gantry_broker.broker", "--config", str(self.path), stderr=log
        )
        log.close()
        await until(self.try_status, f"{self.config.name} answers")

    async def try_status(self) -> MemberStatus | None:
        if self.process is not None and self.process.returncode is not None:
            raise AssertionError(f"{self.config.name} ended: {self.path.with_suffix('.log').read_text()[-3000:]}")
        try:
            return await self.status()
        except httpx.HTTPError:
            return None

    async def status(self) -> MemberStatus:
        return MemberStatus.model_validate_json((await self.http.get("/v1/status")).content)

    async def assign(self, assignment: Assignment) -> AssignmentAnswer:
        answer = await self.http.put("/v1/assignment", content=AssignmentModel.of(assignment).model_dump_json())
        return AssignmentAnswer.model_validate_json(answer.content)

    async def handover(self, target: MemberId, leadership: LeadershipRecord) -> HandoverAnswer:
        asked = HandoverRequest(target=MemberRef.of(target), epoch=leadership.epoch, version=leadership.version)
        answer = await self.http.post("/v1/handover", content=asked.model_dump_json())
        return HandoverAnswer.model_validate_json(answer.content)

    def log(self) -> str:
        return self.path.with_suffix(".log").read_text()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await self.process.wait()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            await self.kill()
        await self.http.aclose()


class Group:
    """A broker group with the leadership record that an operator would keep, and one NameServer in this process."""

    def __init__(self, path: Path, names: NameServer, count: int, options: dict[str, Any]) -> None:
        self.names = names
        self.leadership = LeadershipRecord()
        group_port = free_port()
        self.group_address = f"127.0.0.1:{group_port}"
        self.members = []
        for number in range(count):
            port, replication_port = free_port(), free_port()
            values: dict[str, Any] = {
                "cluster": "demo",
                "group": "demo-a",
                "member": number,
                "name": f"demo-a-{number}",
                "data_dir": path / f"m{number}",
                "listen_host": "127.0.0.1",
                "port": port,
                "http_port": free_port(),
                "group_port": group_port,
                "replication_port": replication_port,
                "replication_address": f"127.0.0.1:{replication_port}",
                "member_address": f"127.0.0.1:{port}",
                "group_address": self.group_address,
                "name_servers": [f"127.0.0.1:{names.port}"],
                "registration_addresses": [f"127.0.0.1:{names.registration_port}"],
                "settings": {"mappedFileSizeCommitLog": 8 << 20, "maxHashSlotNum": 5_000, "maxIndexNum": 20_000},
            }
            settings = {**values["settings"], **options.get("settings", {})}
            config = BrokerConfig.model_validate({**values, **options, "settings": settings})
            self.members.append(Member(config, path / f"m{number}.json"))
        if options.get("mode") == "Raft":
            addresses = {number: m.replication_address for number, m in enumerate(self.members)}
            for member in self.members:
                member.config = member.config.model_copy(update={"members": addresses})

    @staticmethod
    def name_server_settings(port: int, registration_port: int) -> NameServerSettings:
        """The settings of a NameServer of the group's cluster; port 0: any free one."""
        return NameServerSettings("ns", "127.0.0.1", port, cluster="demo", registration_port=registration_port)

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.names.port}"

    async def start(self) -> None:
        await asyncio.gather(*(m.start() for m in self.members))

    async def ids(self) -> list[MemberId]:
        return [(await m.status()).member.value() for m in self.members]

    async def lead(self, number: int, in_sync: list[int] | None = None) -> None:
        """Records a new epoch with that member as leader, and sends the assignment to every member that answers, the
        leader first.
        """
        statuses = {i: await m.try_status() for i, m in enumerate(self.members) if runs(m)}
        known = {i: s.member.value() for i, s in statuses.items() if s is not None}
        old = self.leadership.in_sync
        chosen = [known[i] for i in in_sync or [number] if i in known]
        master = known[number]
        self.leadership = self.leadership.promoted(
            master, {master, *chosen} if not old else ({master, *chosen} & {*old, master})
        )
        answer = await self.members[number].assign(
            Assignment(self.leadership, self.members[number].replication_address)
        )
        assert answer.accepted, answer.reason
        for index in known:
            if index != number:
                await self.members[index].assign(Assignment(self.leadership, self.members[number].replication_address))
        await until(self._serves, "the group's port is served")

    async def registered(self) -> None:
        """Waits until the NameServer knows the master."""

        async def known() -> bool:
            return self.names.service.routes.has_master()

        await until(known, "the master is registered")

    async def _serves(self) -> bool:
        host, port = self.group_address.split(":")
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return False
        writer.close()
        return True

    async def send_assignments(self) -> None:
        """Send every member the present leadership record."""
        address = self.members[present(self.leadership.master).member].replication_address
        for member in self.members:
            if runs(member):
                await member.assign(Assignment(self.leadership, address))

    async def grant_asks(self) -> bool:
        """The operator's part in the master's proposals; True: the set has all running members."""
        master = self.members[present(self.leadership.master).member]
        status = await master.status()
        if status.proposal is not None:
            proposal = status.proposal.value()
            if proposal.base_version == self.leadership.version:
                self.leadership = (
                    self.leadership.with_set(proposal.in_sync)
                    if proposal.in_sync != self.leadership.in_sync
                    else self.leadership.touched()
                )
            else:
                self.leadership = self.leadership.touched()
            await self.send_assignments()
        return len(self.leadership.in_sync) == sum(runs(m) for m in self.members)

    async def all_in_sync(self) -> None:
        await until(self.grant_asks, "all members are in the in-sync set")

    async def close(self) -> None:
        await asyncio.gather(*(m.close() for m in self.members))


def runs(member: Member) -> bool:
    """Whether the process was started and has not ended."""
    return member.process is not None and member.process.returncode is None


MakeGroup = Callable[..., Awaitable[Group]]


@pytest.fixture
async def make_group(tmp_path: Path) -> AsyncIterator[MakeGroup]:
    """`await make_group(3, replication="Async", settings={...})`: a started group without roles.

    `led`: member 0 leads, and the others are in sync.
    """
    made: list[Group] = []
    async with NameServer(Group.name_server_settings(0, 0)) as names:

        async def make(count: int = 1, *, led: bool = False, **options: Any) -> Group:
            group = Group(tmp_path, names, count, options)
            made.append(group)
            await group.start()
            if led:
                await group.lead(0)
                await group.all_in_sync()
            return group

        yield make
        for group in made:
            await group.close()
