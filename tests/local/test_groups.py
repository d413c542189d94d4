"""Broker groups come and go under load on real processes, while a supervisor and a master are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, Message, Producer, ReceivedMessage, SendStatus
from gantry_broker.protocol.bodies import SubscriptionGroup

from tests.local.cluster import Cluster, Load, kill, running

pytestmark = pytest.mark.timeout(300)


def groups(**members: int) -> dict[str, Any]:
    found = [{"name": name, "members": count} for name, count in members.items()]
    return {"nameServers": {"replicas": 1}, "brokerGroups": found}


def rows(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in cluster.resource()["status"]["groups"]}


def condition(cluster: Cluster, kind: str) -> dict[str, Any]:
    found = (c for c in cluster.resource()["status"]["conditions"] if c["type"] == kind)
    return next(found, {})


class Reader:
    """A consumer that remembers what it has read, by broker group."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.groups: Counter[str] = Counter()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.add(message.body)
        self.groups[message.broker] += 1


async def until(what: str, condition: Any, timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = await asyncio.to_thread(condition)
        if found:
            return found
        await asyncio.sleep(0.3)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


async def send_delayed(cluster: Cluster, count: int) -> set[bytes]:
    """Messages that are delivered only in 30 seconds, on all groups."""
    bodies = {f"delayed-{number}".encode() for number in range(count)}
    async with Producer(cluster.name_servers, "delayed") as producer:
        for body in bodies:
            assert (await producer.send(Message("Orders", body, delay_level=4))).status is SendStatus.SEND_OK
    return bodies


def _share(read: Counter[str], groups: str) -> float:
    """The least share of one of these groups of what was read, once that is enough to say so."""
    total = sum(read.values())
    return min(read[group] for group in groups) / total if total > 300 else 0.0


def test_groups_come_and_go(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, **groups(a=2, b=1))) as cluster:
        asyncio.run(_come_and_go(cluster))


async def _come_and_go(cluster: Cluster) -> None:
    async with Admin(cluster.name_servers) as admin:
        await admin.create_topic("Orders", queues=4)
        await admin.create_group(SubscriptionGroup("billing", retry_max_times=3))
    billing, audit = Reader(), Reader()
    async with Consumer(cluster.name_servers, "audit", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("Orders", audit)
        async with Producer(cluster.name_servers, "first") as producer:
            for number in range(16):
                await producer.send("Orders", f"first-{number}".encode())
        await until("audit has offsets", lambda: len(audit.bodies) == 16)
    async with (
        Consumer(cluster.name_servers, "billing", from_where=FromWhere.FIRST) as consumer,
        Load.on(cluster, "Orders", "x", senders=2) as load,
    ):
        await consumer.subscribe("Orders", billing)
        delayed = await send_delayed(cluster, 16)

        # Two groups become four, and one of them goes, in one change.
        cluster.write(**groups(b=1, c=1, d=1))
        await asyncio.to_thread(cluster.up)
        began = time.monotonic()
        await until("a closes", lambda: rows(cluster)["a"]["drain"]["phase"] == "Closing")
        members = cluster.members()
        leader = next(m for m in members.values() if m["group"] == "a" and m["role"] == "Master")
        kill(cluster.supervisor_pid(), signal.SIGKILL)
        await asyncio.to_thread(cluster.up)
        kill(leader["pid"], signal.SIGKILL)
        await until("c and d take messages", lambda: billing.groups["c"] and billing.groups["d"])
        async with Admin(cluster.name_servers) as admin:
            masters = await admin.masters()
            for name in "cd":
                config = (await admin.topic_config(masters[name])).topics["Orders"]
                assert (config.read_queues, config.write_queues) == (4, 4)
                assert (await admin.groups(masters[name]))["billing"].retry_max_times == 3
        before = Counter(billing.groups)
        await until("they take their share", lambda: _share(billing.groups - before, "bcd") > 0.25)
        assert time.monotonic() - began < 60

        # A consumer group that is away holds the drain; the condition names it and the ways on.
        blocked = await until(
            "it is blocked by audit",
            lambda: (c := condition(cluster, "Draining"))["reason"] == "DrainBlocked" and c,
            120,
        )
        assert "audit" in blocked["message"]
        assert "write group a back into spec.brokerGroups" in blocked["message"]
        row = rows(cluster)["a"]["drain"]
        assert row["topics"] == 1
        assert row["messages"] > 0
        async with Consumer(cluster.name_servers, "audit", from_where=FromWhere.FIRST) as reader:
            await reader.subscribe("Orders", audit)
            # Meanwhile another group leaves, and is written back in time.
            cluster.write(**groups(b=1, d=1))
            await asyncio.to_thread(cluster.up)
            await until("c leaves", lambda: rows(cluster)["c"].get("drain"))
            cluster.write(**groups(b=1, c=1, d=1))
            await asyncio.to_thread(cluster.up)
            await until("c stays", lambda: not rows(cluster)["c"].get("drain"))
            await until("a is removed", lambda: "a" not in rows(cluster), 90)
            assert condition(cluster, "Draining")["status"] == "False"
        assert delayed <= billing.bodies, "delayed messages are delivered before the group goes"
        async with Admin(cluster.name_servers) as admin:
            assert sorted(await admin.masters()) == ["b", "c", "d"]
        folder = cluster.folder
        assert not (folder.registry / "a.json").exists()
        assert not [p for p in folder.configs.glob("t-a-*")]
        assert {p.name.rsplit("-", 1)[0] for p in (folder.root / "drained").iterdir()} == {"t-a-0", "t-a-1"}

        # Its name means a new group.
        cluster.write(**groups(a=1, b=1, c=1, d=1))
        await asyncio.to_thread(cluster.up)
        new = cluster.members()["t-a-0"]
        assert (new["role"], new["epoch"]) == ("Master", 1)
        await until("a takes its share again", lambda: billing.groups["a"] > 0)
        await load.more(50)
    assert not load.errors, load.errors[:5]
    missing = load.promised - billing.bodies
    async with Consumer(cluster.name_servers, "billing", from_where=FromWhere.FIRST) as consumer:
        await consumer.subscribe("Orders", billing)
        await until("everything was read", lambda: not load.promised - billing.bodies, 60)
    assert json.loads((cluster.folder.registry / "a.json").read_text())["epoch"] == 1
    assert len(missing) < len(load.promised)
