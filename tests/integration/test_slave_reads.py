"""Reading a backlog from a slave, and many topics, groups and connections in one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson
from gantry_broker.client import Consumer, FromWhere, Message, Producer, ReceivedMessage
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.remoting.client import RemotingClient

if TYPE_CHECKING:
    from conftest import Group, Member


async def given_out(member: Member, topic: str) -> int:
    """Messages that a member gave to consumers, from its metrics."""
    page = (await member.http.get("/metrics")).text
    rows = [r for r in page.splitlines() if r.startswith("gantry_messages_out_total{") and f'topic="{topic}"' in r]
    return sum(int(r.rsplit(" ", 1)[1]) for r in rows)


async def test_a_backlog_is_read_from_a_slave_and_its_end_from_the_master(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    group = await make_group(2, settings={"slaveReadEnable": True}, memory_limit_bytes=1 << 20)
    await group.lead(0)
    await group.all_in_sync()
    bodies: list[bytes] = []
    done = asyncio.Event()
    backlog = 4_000

    async def take(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if len(bodies) >= backlog:
            done.set()

    async with Producer(group.name_server) as producer:
        for start in range(0, backlog, 50):
            await producer.send_batch([Message("Back", b"%06d" % n + b"x" * 1_000) for n in range(start, start + 50)])
        async with Consumer(group.name_server, "slow", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("Back", take)
            async with asyncio.timeout(60):
                await done.wait()
            slave = await given_out(group.members[1], "Back")
            done.clear()
            backlog += 1
            await producer.send(Message("Back", b"fresh"))
            async with asyncio.timeout(20):
                await done.wait()
    master = await given_out(group.members[0], "Back")
    assert sorted(set(bodies)) == sorted(bodies)
    assert slave > 0.5 * backlog, (slave, master)
    assert master + slave >= backlog


async def test_many_topics_groups_and_connections_in_little_memory(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    """1,000 topics of 8 queues, 1,000 groups with offsets, 1,000 connections: under 150 MiB."""
    group = await make_group(1)
    await group.lead(0)
    topics, groups, connections = 1_000, 1_000, 1_000
    async with RemotingClient() as client:
        for start in range(0, topics, 100):
            configs = [
                {"topicName": f"many-{n}", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
                for n in range(start, start + 100)
            ]
            body = orjson.dumps({"topicConfigList": configs})
            frame = Frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert (await client.request(group.group_address, frame, 10)).code == 0
        for number in range(groups):
            ext = {
                "consumerGroup": f"group-{number}",
                "topic": f"many-{number % topics}",
                "queueId": str(number % 8),
                "commitOffset": "1",
            }
            frame = Frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext)
            assert (await client.request(group.group_address, frame, 10)).code == 0
    host, port = group.group_address.split(":")
    streams = [await asyncio.open_connection(host, int(port)) for _ in range(connections)]
    for number, (_, writer) in enumerate(streams):
        consumer = {"groupName": f"group-{number}", "subscriptionDataSet": [{"topic": f"many-{number}"}]}
        beat = orjson.dumps({"clientID": f"c{number}", "consumerDataSet": [consumer], "producerDataSet": []})
        writer.write(encode_frame(Frame(RequestCode.HEART_BEAT, number, body=beat)))
    for reader, _ in streams:
        decoder, frames = FrameDecoder(), list[Frame]()
        async with asyncio.timeout(30):
            while not any(f.is_response for f in frames):
                frames += decoder.feed(await reader.read(65_536))
        assert all(f.code == 0 for f in frames if f.is_response)
    status = await group.members[0].status()
    assert status.connections >= connections
    page = (await group.members[0].http.get("/metrics")).text
    resident = next(int(r.split()[1]) for r in page.splitlines() if r.startswith("process_resident_memory_bytes "))
    for _, writer in streams:
        writer.close()
    assert resident < 150 << 20, f"{resident >> 20} MiB"
