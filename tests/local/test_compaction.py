"""A compacted topic on real processes: a failover in the middle of the work, then a restart of all."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
from pathlib import Path

import pytest
from gantry_broker.client import Admin, ClientError, FromWhere, Producer, PullConsumer

from tests.local.cluster import Cluster, kill, one_group, take_down

pytestmark = pytest.mark.timeout(300)
TOPIC = "State"
KEYS = 30
_groups = itertools.count(1)


async def set_up(cluster: Cluster) -> None:
    async with Admin(cluster.name_servers) as admin:
        await admin.create_topic(TOPIC, queues=2)
        await admin.ensure_topic(TOPIC)
    said = await asyncio.to_thread(cluster.gantry, "topic", "compact", TOPIC, "--tombstones", "1h")
    assert "is compacted in a" in said.stdout
    said = await asyncio.to_thread(cluster.gantry, "topic", "describe", TOPIC)
    assert "cleanup.policy=COMPACTION, delete.retention.ms=3600000" in said.stdout


async def write(cluster: Cluster, rounds: range, state: dict[str, bytes], half: asyncio.Event) -> None:
    """Send every key again in each round; an acknowledged message is in `state`. `half`: set half way."""
    async with Producer(cluster.name_servers, "writers") as producer:
        for number in rounds:
            if number == rounds[len(rounds) // 2]:
                half.set()
            for at in range(KEYS):
                key, body = f"k{at}", f"{number:04}".encode() + bytes(300)
                while True:
                    try:
                        await producer.send(TOPIC, body, keys=key, key=key)
                        break
                    except ClientError:
                        await asyncio.sleep(0.1)
                state[key] = body


async def read(cluster: Cluster) -> tuple[dict[str, bytes], int]:
    """What a new consumer is given: the newest message of each key, and how many messages there were."""
    found: dict[str, bytes] = {}
    count = 0
    async with PullConsumer(cluster.name_servers, f"readers{next(_groups)}", from_where=FromWhere.FIRST) as consumer:
        queues = await consumer.queues(TOPIC)
        left = {queue: await consumer.puller.max_offset(queue) for queue in queues}
        left = {queue: end for queue, end in left.items() if end}
        await consumer.assign(queues)
        async with asyncio.timeout(60):
            while left:
                for message in await consumer.poll(1.0):
                    count += 1
                    (key,) = message.keys
                    found[key] = message.body
                    if message.queue_offset + 1 >= left.get(message.queue, 0):
                        left.pop(message.queue, None)
    return found, count


async def compacted(cluster: Cluster, state: dict[str, bytes], below: int) -> None:
    """Wait until a new consumer is given fewer messages than `below`, and check what it is given."""
    async with asyncio.timeout(60):
        while True:
            found, count = await read(cluster)
            assert found.keys() == state.keys()
            for key, body in found.items():
                # An unacknowledged send may be stored as well: it is newer.
                assert int(body[:4]) >= int(state[key][:4]), key
            if count < below:
                return
            await asyncio.sleep(0.3)


async def test_a_failover_loses_no_key_and_the_next_master_goes_on(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path, **one_group(2), broker={"compactionScheduleInternal": 300, "mappedFileSizeCommitLog": 65_536}
    )
    state: dict[str, bytes] = {}
    try:
        await asyncio.to_thread(cluster.up)
        await set_up(cluster)
        await write(cluster, range(10), state, asyncio.Event())
        await compacted(cluster, state, 10 * KEYS // 2)
        said = await asyncio.to_thread(cluster.gantry, "topic", "describe", TOPIC, "-o", "json")
        done = json.loads(said.stdout)["compaction"]
        assert done["seen_records"] > done["kept_records"] >= KEYS
        assert done["seen_bytes"] > done["kept_bytes"] > 300 * KEYS
        said = await asyncio.to_thread(cluster.gantry, "topic", "describe", TOPIC)
        assert re.search(r"^compaction .* saved \([1-9]\d%\): .* messages stay$", said.stdout, re.MULTILINE), (
            said.stdout
        )
        await asyncio.to_thread(cluster.until, "all members are in sync", cluster.whole)
        before = cluster.master()
        half = asyncio.Event()
        writing = asyncio.create_task(write(cluster, range(10, 20), state, half))
        await half.wait()
        kill(before["pid"], signal.SIGKILL)
        await writing
        assert cluster.master()["epoch"] > before["epoch"]
        await compacted(cluster, state, 20 * KEYS // 4)
        await asyncio.to_thread(cluster.until, "all members are in sync", cluster.whole)
        await asyncio.to_thread(cluster.gantry, "down")
        await asyncio.to_thread(cluster.up)
        await compacted(cluster, state, 20 * KEYS // 4)
    finally:
        take_down(cluster)
