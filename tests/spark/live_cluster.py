"""A NameServer and a broker group of two as processes. The test assigns their roles over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from gantry_broker.client import Message, Producer
from gantry_broker.config import BrokerConfig
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord
from gantry_broker.contracts.models import AssignmentModel, MemberStatus
from gantry_broker.settings import BrokerSettings

from tests.support.free_ports import free_port


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.02)


class LiveCluster:
    """Member 0 leads and member 1 follows. SEND_OK waits for both."""

    def __init__(self, folder: Path, token: str | None = None, **settings: Any) -> None:
        """`settings`: of the brokers, under RocketMQ's names."""
        self.folder = folder
        self._settings = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000} | settings
        self.token_file = folder / "token" if token else None
        if self.token_file is not None and token is not None:
            self.token_file.write_text(token)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        name_server = free_port()
        self.name_server = f"127.0.0.1:{name_server}"
        self.registration_port = free_port()
        group_port = free_port()
        self.configs = [self._config(number, group_port) for number in range(2)]
        self.urls = [f"http://127.0.0.1:{c.http_port}" for c in self.configs]
        names = folder / "namesrv.json"
        listening = {"name": "ns", "listen_host": "127.0.0.1", "port": name_server, "cluster": "demo"}
        listening |= {"registration_port": self.registration_port, "token_file": token and str(self.token_file)}
        names.write_text(json.dumps(listening))
        self.processes = [self._start("gantry_broker.namesrv", names)]
        for config in self.configs:
            path = folder / f"{config.name}.json"
            path.write_text(config.model_dump_json())
            self.processes.append(self._start("gantry_broker.broker", path))
        members = [until(lambda u=u: self.status(u), f"{u} answers").member.value() for u in self.urls]
        leadership = LeadershipRecord().promoted(members[0], members)
        for url in self.urls:
            assignment = AssignmentModel.of(Assignment(leadership, self.configs[0].replication_address))
            answer = httpx.put(
                f"{url}/v1/assignment", content=assignment.model_dump_json(),
                headers={"Content-Type": "application/json", **self.headers},
            )  # fmt: skip
            assert answer.json()["accepted"], answer.text

    def _config(self, number: int, group_port: int) -> BrokerConfig:
        port, replication_port = free_port(), free_port()
        return BrokerConfig(
            replication_port=replication_port, replication_address=f"127.0.0.1:{replication_port}",
            registration_addresses=[f"127.0.0.1:{self.registration_port}"],
            cluster="demo", group="a", member=number, name=f"demo-a-{number}", data_dir=self.folder / f"data-{number}",
            listen_host="127.0.0.1", port=port, http_port=free_port(), group_port=group_port,
            member_address=f"127.0.0.1:{port}", group_address=f"127.0.0.1:{group_port}",
            name_servers=[self.name_server], min_in_sync=2, token_file=self.token_file,
            settings=BrokerSettings.model_validate(self._settings),
        )  # fmt: skip

    def _start(self, module: str, config: Path) -> subprocess.Popen[bytes]:
        with config.with_suffix(".log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", module, "--config", str(config)], stderr=log, stdout=log)

    def status(self, url: str) -> MemberStatus | None:
        try:
            answer = httpx.get(f"{url}/v1/status", headers=self.headers, timeout=5)
        except httpx.HTTPError:
            return None
        return MemberStatus.model_validate_json(answer.content) if answer.status_code == 200 else None

    def send(self, topic: str, bodies: list[bytes], keys: list[str]) -> list[Any]:
        """Send messages and return the results. After SEND_OK both members hold the message."""

        async def work() -> list[Any]:
            async with Producer(self.name_server, "spark-tests") as producer:
                return [
                    await producer.send(Message(topic, body, keys=key))
                    for body, key in zip(bodies, keys, strict=True)
                ]  # fmt: skip

        return asyncio.run(work())

    def send_unconfirmed(self, topic: str, body: bytes) -> str:
        """Send a message that the group cannot confirm, and return the status."""

        async def work() -> str:
            async with Producer(self.name_server, "spark-tests", retries=0) as producer:
                try:
                    return (await producer.send(Message(topic, body))).status.name
                except Exception as error:
                    return type(error).__name__

        return asyncio.run(work())

    def caught_up(self) -> None:
        """Wait until both members have confirmed everything."""

        def same() -> bool:
            seen = [self.status(u) for u in self.urls]
            return all(s is not None and s.confirmed == s.end == seen[0].end for s in seen if seen[0] is not None)

        until(same, "both members have confirmed everything")

    def kill(self, number: int) -> None:
        self.processes[1 + number].kill()
        self.processes[1 + number].wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
