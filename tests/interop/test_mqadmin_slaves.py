"""Commands of mqadmin 5.5.0 for a whole cluster (`-c`), on a group with slaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Producer
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import CreateTopicHeader
from gantry_broker.remoting.client import RemotingClient

from benchmarks.rig.driver import driver
from benchmarks.rig.target import Target
from tests.support.broker_group import Group, MakeGroup, make_group, until

__all__ = ["make_group"]


@pytest.fixture
async def group(make_group: MakeGroup) -> Group:
    made = await make_group(3)
    await made.lead(0)
    await made.registered()
    await made.all_in_sync()
    return made


@pytest.fixture
async def mqadmin(group: Group, java_side: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    target = Target(
        name="gantry", namesrv=group.name_server, broker_address=group.group_address, cluster="demo",
        broker_name="demo-a", prefix=[], namesrv_pid=0, broker_pids=[], log=tmp_path,
    )  # fmt: skip
    entering = driver(target, "55", "JSON", tmp_path)
    session = await asyncio.to_thread(entering.__enter__)

    async def run(*words: object) -> str:
        return await asyncio.to_thread(session.mqadmin, *words)

    yield run
    await asyncio.to_thread(entering.__exit__, None, None, None)


async def _slaves(group: Group) -> None:
    """Waits until the NameServer knows the slaves: mqadmin asks it for them."""

    async def known() -> bool:
        return len(group.names.service.routes.cluster_info().brokers["demo-a"].addresses) == 3

    await until(known, "all members are registered")


async def test_commands_for_a_cluster_reach_its_slaves(
    group: Group, mqadmin: Callable[..., Any], tmp_path: Path
) -> None:
    await _slaves(group)
    async with Producer(group.name_server) as producer:
        await mqadmin("updateTopic", "-t", "Some", "-c", "demo", "-r", 2, "-w", 2)
        await producer.send("Some", b"x")
    for words in (
        ("updateSubGroup", "-c", "demo", "-g", "readers"),
        ("deleteSubGroup", "-c", "demo", "-g", "readers"),
        ("updateBrokerConfig", "-c", "demo", "-k", "fileReservedTime", "-v", 71),
        ("cleanUnusedTopic", "-c", "demo"), ("cleanExpiredCQ", "-c", "demo"), ("deleteExpiredCommitLog", "-c", "demo"),
        ("resetOffsetByTime", "-g", "readers", "-t", "Some", "-s", "now"),
        ("brokerStatus", "-c", "demo"), ("clusterList",), ("clusterList", "-m"),
        ("exportMetrics", "-c", "demo", "-f", tmp_path), ("exportConfigs", "-c", "demo", "-f", tmp_path),
        ("exportMetadata", "-c", "demo", "-f", tmp_path),
        ("statsAll",), ("consumerProgress",), ("brokerConsumeStats", "-b", group.group_address),
        ("deleteTopic", "-c", "demo", "-t", "Some"),
    ):  # fmt: skip
        out = await mqadmin(*words)
        assert "Exception" not in out, (words, out)
        assert "failed" not in out, (words, out)
        if words[0] == "brokerStatus":
            assert out.count("getTransferredTps") == out.count("getTransferedTps") == 3
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert report["evaluateReport"]["demo-a"]["runtimeQuota"]["tps"]["normalInTps"] >= 0
    topics = group.names.service.routes.topics()
    assert not {"Some", "%RETRY%readers", "%DLQ%readers"} & set(topics)


async def test_a_slave_passes_on_what_mqadmin_sends_to_every_member(group: Group) -> None:
    create = CreateTopicHeader("Mine", "TBW102", 1, 1, 6, "SINGLE_TAG").ext()
    slave = group.members[1].address
    asks = {
        "create": Frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=create),
        "delete": Frame(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Mine"}),
        "wrong": Frame(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "a+b"}),
    }

    async def ask(address: str, name: str) -> Frame:
        """Asks over a new connection, as mqadmin does. A member ends the connection of a client that it refuses."""
        async with RemotingClient() as client:
            return await client.request(address, asks[name], 10)

    assert (await ask(slave, "create")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    for _ in range(2):
        assert (await ask(group.group_address, "create")).code == 0
        assert "Mine" in group.names.service.routes.topics()
        assert (await ask(slave, "delete")).code == 0
        assert "Mine" not in group.names.service.routes.topics()
    wrong = await ask(slave, "wrong")
    assert (wrong.code, "illegal" in (wrong.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    await group.members[0].kill()

    async def refuses() -> bool:
        return (await ask(slave, "delete")).code == ResponseCode.SERVICE_NOT_AVAILABLE

    await until(refuses, "a slave without a master refuses")
