"""Real processes: messages that only the archive has are read, found and popped as any others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gantry_broker.client import Admin, BrokerError, Consumer, FromWhere, ReceivedMessage, SimpleConsumer
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.headers import Long, QueueHeader, SearchOffsetHeader, ViewMessageHeader
from gantry_broker.protocol.message import decode_record

from tests.archive.faulty_proxy import FaultyProxy
from tests.archive.old_messages import COUNT, QUEUES, TOPIC, body, old_group, wait_until_old
from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server
from tests.support.broker_group import Group, MakeGroup, runs, until
from tests.support.broker_group import make_group as make_group

pytestmark = pytest.mark.timeout(180)


async def consumed(group: Group, name: str) -> list[ReceivedMessage]:
    """Every message, as a consumer that begins at the first one gets them."""
    found: list[ReceivedMessage] = []
    done = asyncio.Event()

    async def take(message: ReceivedMessage) -> None:
        found.append(message)
        if len(found) >= COUNT:
            done.set()

    async with Consumer(group.name_server, name, from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe(TOPIC, take)
        await asyncio.wait_for(done.wait(), 90)
    return found


def check(found: list[ReceivedMessage]) -> None:
    assert len(found) == COUNT
    for queue in range(QUEUES):
        mine = [m for m in found if m.queue_id == queue]
        assert [m.body for m in mine] == [body(n) for n in range(queue, COUNT, QUEUES)]


async def test_a_backlog_is_read_whole_through_a_failing_store_and_a_failover(
    server: S3Server, tmp_path: Path, make_group: MakeGroup
) -> None:
    proxy = FaultyProxy(server.port)
    async with proxy.running():
        group, begun = await old_group(make_group, server, tmp_path, "old", 2, port=proxy.port)
        async with Admin(group.name_server) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES, cluster="demo")
            await wait_until_old(group, admin)
            await until(lambda: only_the_slave_uploads(group), "a slave in sync uploads, not the master")
            await away(admin, proxy)
            proxy.plan([500, "cut", 429, 503, "cut"])
            check(await consumed(group, "first"))
            assert not proxy.faults
            await lookups(admin, group, begun)
            page = (await group.members[0].http.get("/metrics")).text
            served = next(r for r in page.splitlines() if r.startswith("gantry_archive_read_messages_total"))
            assert float(served.rsplit(" ", 1)[1]) > COUNT / 3
            await group.members[0].kill()
            await group.lead(1, [1])
            check(await consumed(group, "second"))
            await popped(group)
            await until(lambda: goes_on(group), "the new master, which is alone, uploads all")


async def only_the_slave_uploads(group: Group) -> bool:
    statuses = {n: await member.try_status() for n, member in enumerate(group.members) if runs(member)}
    return [n for n, s in statuses.items() if s is not None and s.archive is not None and s.archive.uploads] == [1]


async def goes_on(group: Group) -> bool:
    status = await group.members[1].status()
    archive = status.archive
    return archive is not None and archive.uploads and archive.end >= status.confirmed and not archive.gaps


async def away(admin: Admin, proxy: FaultyProxy) -> None:
    """A store that is away gives an answer to repeat, and others go on."""
    proxy.plan(["cut"] * 100_000)
    with pytest.raises(BrokerError, match="the archive cannot be read now") as refused:
        await admin.query(TOPIC, "key5")
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    [queue, *_] = await admin.readable_queues(TOPIC)
    assert await admin.offset("nobody", queue) is None
    proxy.plan([])


async def lookups(admin: Admin, group: Group, begun: int) -> None:
    """Searches by offset, time, key and id find what only the archive has."""
    address = group.group_address
    for queue in range(QUEUES):
        answer = await admin._call(address, RequestCode.GET_MIN_OFFSET, QueueHeader(TOPIC, queue), "min")
        assert answer.ext is not None
        assert answer.ext["offset"] == "0"
        header = SearchOffsetHeader(TOPIC, queue, Long(begun + 50))
        answer = await admin._call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, "search")
        assert answer.ext is not None
        # The 100 messages of a batch have one store time.
        assert answer.ext["offset"] == "0"
        header = SearchOffsetHeader(TOPIC, queue, Long(begun + 150))
        answer = await admin._call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, "search")
        assert answer.ext is not None
        assert answer.ext["offset"] == str(100 // QUEUES)
        answer = await admin._call(address, RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader(TOPIC, queue), "time")
        assert answer.ext is not None
        assert answer.ext["timestamp"] == str(begun + 99)
    stats = await admin.topic_stats(TOPIC)
    assert {(s.min_offset, s.max_offset) for s in stats.values()} == {(0, COUNT // QUEUES)}
    [found] = await admin.query(TOPIC, "key7")
    assert found.body == body(7)
    [found] = await admin.query(TOPIC, "unique8", unique=True, begin_ms=begun)
    assert found.body == body(8)
    view = ViewMessageHeader(Long(found.record.phys_offset), TOPIC)
    answer = await admin._call(address, RequestCode.VIEW_MESSAGE_BY_ID, view, "view")
    assert decode_record(answer.body).body == body(8)
    both = [await admin.query(TOPIC, f"key{n}") for n in (0, COUNT - 1)]
    assert [m.body for [m] in both] == [body(0), body(COUNT - 1)]


async def popped(group: Group) -> None:
    """A group that pops from the first message on gets old ones, once each."""
    found: list[bytes] = []
    async with SimpleConsumer(group.name_server, "popping", invisible_s=60) as consumer:
        await consumer.subscribe(TOPIC)
        while len(found) < 300:
            messages = await consumer.receive(32, wait_s=2)
            assert messages
            for message in messages:
                await consumer.ack(message)
            found += [m.body for m in messages]
    assert len(set(found)) == len(found)
    assert set(found) <= {body(n) for n in range(COUNT)}
    assert min(int(b.split(b"#")[1]) for b in found) < QUEUES
