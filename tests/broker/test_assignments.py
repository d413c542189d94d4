"""QUERY_ASSIGNMENT over two broker groups: members share the queues of both as RocketMQ 5.5.0 assigns them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from gantry_broker.client.session import Session
from gantry_broker.protocol.bodies import Heartbeat
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.client import RemotingClient

from tests.client.cluster import Cluster
from tests.proxy import cluster as c
from tests.support.heartbeats import heartbeat

MEMBERS = ("c1", "c2", "c3", "c4", "c5")
ALL = [f"{broker}{number}" for broker in "ab" for number in range(3)]
"""The queues of the topic, in RocketMQ's order: by broker, then by number."""
RUNS = {"c1": ["a0", "a1"], "c2": ["a2"], "c3": ["b0"], "c4": ["b1"], "c5": ["b2"]}
"""AllocateMessageQueueAveragely of six queues to five members."""
CIRCLE = {"c1": ["a0", "b2"], "c2": ["a1"], "c3": ["a2"], "c4": ["b0"], "c5": ["b1"]}
SHARED = {
    "c1": ["a0", "a1", "a2", "b0"], "c2": ["a2", "b0", "b1"], "c3": ["b0", "b1", "b2"], "c4": ["a0", "a1", "b1", "b2"],
    "c5": ["a0", "a1", "a2", "b2"],
}  # fmt: skip
"""Each member's own, and those of the two members after it."""
EVERYWHERE = {key: ["a-1", "b-1"] for key in MEMBERS}
"""Queue -1 stands for all of a broker."""
SCARCE = {"c1": ["a0"], "c2": ["b0"], "c3": ["a0"], "c4": ["b0"], "c5": ["a0"]}
"""More members than queues: each has one."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with c.served(tmp_path, "a", "b") as found:
        await c.make_topic(found, "T", queues=3)
        await c.make_topic(found, "Few", queues=1)
        await c.make_group(found, "g")
        yield found


async def call(session: Session | RemotingClient, address: str, code: RequestCode, body: Any) -> Any:
    frame = Frame(code, body=orjson.dumps(body))
    ask = session.call if isinstance(session, Session) else session.request
    answer = await ask(address, frame, 5.0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return orjson.loads(answer.body or b"{}")


async def joined(stack: AsyncExitStack, cluster: Cluster, client_id: str) -> None:
    """A member with a connection of its own to every broker."""
    member = RemotingClient()
    stack.push_async_callback(member.close)
    beat = heartbeat("g", "T", client=client_id)
    assert Heartbeat.from_json(beat).client_id == client_id
    for broker in cluster.brokers.values():
        await call(member, broker.address, RequestCode.HEART_BEAT, beat)


async def test_members_share_the_queues_of_both_groups(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack, Session(cluster.name_server) as session:
        addresses = [broker.address for broker in cluster.brokers.values()]
        for client_id in reversed(MEMBERS):  # The order of their ids counts.
            await joined(stack, cluster, client_id)

        async def assigned(strategy: str, mode: str, topic: str = "T") -> dict[str, list[str]]:
            """Every broker gives the same answer, in any order."""
            found: dict[str, list[str]] = {}
            for client_id in MEMBERS:
                asked = {
                    "topic": topic, "consumerGroup": "g", "clientId": client_id, "strategyName": strategy,
                    "messageModel": "CLUSTERING",
                }  # fmt: skip
                answers = []
                for address in addresses:
                    answer = await call(session, address, RequestCode.QUERY_ASSIGNMENT, asked)
                    items = answer["messageQueueAssignments"]
                    assert {item["mode"] for item in items} == {mode}
                    queues = [item["messageQueue"] for item in items]
                    assert {queue["topic"] for queue in queues} == {topic}
                    answers.append(sorted(f"{queue['brokerName']}{queue['queueId']}" for queue in queues))
                assert answers[0] == answers[1]
                found[client_id] = answers[0]
            return found

        async def pops(share: int, topic: str = "T") -> None:
            body = {"topic": topic, "consumerGroup": "g", "mode": "POP", "popShareQueueNum": share}
            for address in addresses:
                await call(session, address, RequestCode.SET_MESSAGE_REQUEST_MODE, body)

        assert await assigned("AVG", "PULL") == RUNS
        assert await assigned("AVG_BY_CIRCLE", "PULL") == CIRCLE
        await pops(2)
        assert await assigned("AVG", "POP") == SHARED
        for share in (0, -1, len(MEMBERS) - 1):
            await pops(share)
            assert await assigned("AVG", "POP") == EVERYWHERE
        await pops(1, "Few")
        assert await assigned("AVG", "POP", "Few") == SCARCE
