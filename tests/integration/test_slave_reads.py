"""Reads of a backlog from a slave, and many topics, groups and connections in one broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from gantry_broker.client import Consumer, FromWhere, Message, Producer, ReceivedMessage
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.protocol.headers import Long, SendHeader
from gantry_broker.remoting.client import RemotingClient
from gantry_broker.replication.log_repair import FIRST_S

if TYPE_CHECKING:
    from tests.integration.conftest import Group, Member


def send_ext(topic: str, queue_id: int) -> dict[str, str]:
    header = SendHeader("load", topic, "TBW102", 8, queue_id, 0, Long(int(time.time() * 1000)), 0, "TAGS\x01a")
    return header.short_ext()


async def given_out(member: Member, topic: str) -> int:
    """Messages that a member has sent to consumers, from its metrics."""
    page = (await member.http.get("/metrics")).text
    rows = [r for r in page.splitlines() if r.startswith("gantry_messages_out_total{") and f'topic="{topic}"' in r]
    return sum(int(float(r.rsplit(" ", 1)[1])) for r in rows)


def bytes_read(member: Member) -> int:
    """Bytes that the member's process has read from files, cached or not."""
    assert member.process is not None
    lines = Path(f"/proc/{member.process.pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


async def test_a_backlog_is_read_from_a_slave_and_its_end_from_the_master(
    make_group: Callable[..., Awaitable[Group]],
) -> None:
    """20 MB in a group whose members have 1 MB of memory: the master answers each queue's first pull, and the end."""
    group = await make_group(2, settings={"slaveReadEnable": True}, memory_limit_bytes=1 << 20, led=True)
    # Each member scrubs its log once after the start, which would count as reads: here the log is empty.
    await asyncio.sleep(FIRST_S + 1)
    bodies: list[bytes] = []
    done = asyncio.Event()
    backlog = 20_000

    async def take(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if len(bodies) >= backlog:
            done.set()

    async with Producer(group.name_server) as producer:
        for start in range(0, backlog, 200):
            await producer.send_batch([Message("Back", b"%06d" % n + b"x" * 1_000) for n in range(start, start + 200)])
        end = (await group.members[0].status()).end
        for _ in range(600):
            if (await group.members[1].status()).confirmed >= end:
                break
            await asyncio.sleep(0.05)
        before = [bytes_read(member) for member in group.members]
        async with Consumer(group.name_server, "slow", from_where=FromWhere.FIRST) as consumer:
            await consumer.subscribe("Back", take)
            async with asyncio.timeout(60):
                await done.wait()
            read = [bytes_read(member) - was for member, was in zip(group.members, before, strict=True)]
            slave = await given_out(group.members[1], "Back")
            done.clear()
            backlog += 1
            await producer.send(Message("Back", b"fresh"))
            async with asyncio.timeout(20):
                await done.wait()
    master = await given_out(group.members[0], "Back")
    assert sorted(set(bodies)) == sorted(bodies)
    assert slave > 0.95 * backlog, (slave, master)
    assert master + slave >= backlog
    assert read[0] < 0.06 * read[1], f"the master read {read[0]} bytes, the slave {read[1]}"


async def test_many_topics_groups_and_connections_in_little_memory(make_group: Callable[..., Awaitable[Group]]) -> None:
    """1,000 topics of 8 queues with messages in each, 1,000 groups with offsets, 2,000 connections: under 200 MiB."""
    group = await make_group(1)
    await group.lead(0)
    topics, groups, connections = 1_000, 1_000, 2_000
    async with RemotingClient() as client:
        for start in range(0, topics, 100):
            configs = [
                {"topicName": f"many-{n}", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
                for n in range(start, start + 100)
            ]
            body = orjson.dumps({"topicConfigList": configs})
            frame = Frame(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert (await client.request(group.group_address, frame, 10)).code == 0
        for start in range(0, topics * 8, 200):
            asked = [
                Frame(RequestCode.SEND_MESSAGE_V2, ext=send_ext(f"many-{n // 8}", n % 8), body=b"%d" % n)
                for n in range(start, start + 200)
            ]
            answers = await asyncio.gather(*(client.request(group.group_address, frame, 10) for frame in asked))
            assert {answer.code for answer in answers} == {0}
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
        consumer = {
            "groupName": f"group-{number % groups}",
            "subscriptionDataSet": [{"topic": f"many-{number % topics}"}],
        }
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
    resident = next(
        int(float(r.split()[1])) for r in page.splitlines() if r.startswith("process_resident_memory_bytes ")
    )
    for _, writer in streams:
        writer.close()
    print(f"{resident >> 20} MiB with {topics} topics, {groups} groups and {status.connections} connections")
    assert resident < 200 << 20, f"{resident >> 20} MiB"
