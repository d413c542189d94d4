"""`gantry dlq` as a user works with it: list, read, send again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.client import Consumer, DeadLetters, FromWhere, Message, Producer, ReceivedMessage

from tests.local.cluster import Cluster, one_group, running

COUNT = 40


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    with running(Cluster(tmp_path, **one_group(1))) as made:
        yield made


async def kill_messages(cluster: Cluster, group: str, topic: str, count: int) -> None:
    async def refuse(message: ReceivedMessage) -> bool:
        return False

    servers = cluster.name_servers
    async with (
        Producer(servers) as producer,
        Consumer(servers, group, from_where=FromWhere.FIRST, max_retries=0, rebalance_s=0.2) as consumer,
        DeadLetters(servers) as dead,
    ):
        for number in range(count):
            await producer.send(Message(topic, b"order %d" % number, keys=f"k{number}"))
        await consumer.subscribe(topic, refuse)
        for _ in range(600):
            now = await dead.group(group)
            if now is not None and now.letters == count:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{count} dead letters were expected, there is {now}")


async def test_dead_letters_by_the_command(small: Cluster) -> None:
    where = ["--dir", str(small.folder.root)]
    none = small.gantry("dlq", "list", *where)
    assert none.stdout == ""
    assert "no group has dead letters" in none.stderr
    missing = small.gantry("dlq", "read", "billing", *where, check=False)
    assert missing.returncode == 1
    assert "group billing has no dead letters; `gantry dlq list`" in missing.stderr

    await kill_messages(small, "billing", "Orders", COUNT)
    listed = small.gantry("dlq", "list", *where)
    assert listed.stdout.splitlines()[0].split() == ["GROUP", "LETTERS", "WAITING", "LAST"]
    assert listed.stdout.splitlines()[1].split()[:3] == ["billing", str(COUNT), str(COUNT)]
    lines = [json.loads(x) for x in small.gantry("dlq", "read", "billing", "-o", "json", *where).stdout.splitlines()]
    assert sorted(x["body"] for x in lines) == sorted(f"order {n}" for n in range(COUNT))
    assert {(x["group"], x["originTopic"], x["topic"]) for x in lines} == {("billing", "Orders", "%DLQ%billing")}
    (one,) = small.gantry("dlq", "read", "billing", "--id", lines[7]["id"], *where).stdout.splitlines()
    assert one.split("\t")[0] == lines[7]["id"]
    assert one.split("\t")[4] == lines[7]["body"]
    assert len(small.gantry("dlq", "read", "billing", "--count", "5", *where).stdout.splitlines()) == 5
    assert small.gantry("dlq", "read", "billing", "--topic", "Other", *where).stdout == ""

    dry = small.gantry("dlq", "resend", "billing", "--dry-run", "-o", "json", *where)
    assert json.loads(dry.stdout) == {
        "group": "billing", "to": "group billing", "found": COUNT, "sent": 0, "problem": "",
    }  # fmt: skip
    some = small.gantry("dlq", "resend", "billing", "--count", "35", *where)
    assert "35 of 35 dead letters were sent to group billing" in some.stderr
    (row,) = json.loads(small.gantry("dlq", "list", "-o", "json", *where).stdout)
    assert (row["letters"], row["waiting"]) == (COUNT, COUNT - 35)
    assert "5 of 5" in small.gantry("dlq", "resend", "billing", *where).stderr
    assert "--all sends them once more" in small.gantry("dlq", "resend", "billing", *where).stderr
    back = small.gantry(
        "consume", "Orders", "--group", "billing", "--count", str(COUNT), "--timeout", "30", *where
    ).stdout.splitlines()
    assert sorted(back) == sorted(f"order {n}" for n in range(COUNT))

    sent = small.gantry("dlq", "resend", "billing", "--id", lines[0]["id"], "--to", "Repaired", "-o", "json", *where)
    assert json.loads(sent.stdout)["sent"] == 1
    got = small.gantry("consume", "Repaired", "--group", "m", "--count", "1", "--timeout", "30", *where).stdout
    assert got.strip() == lines[0]["body"]
    unknown = small.gantry("dlq", "resend", "billing", "--id", "nonsense", *where, check=False)
    assert unknown.returncode == 1
    assert "no dead letter with the id nonsense" in unknown.stderr
