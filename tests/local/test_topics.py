"""Topics and consumer groups of a local cluster: by a manifest and by commands, put back, reset, deleted; through a
failover and without a supervisor.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gantry_broker.client import Admin, Message, Producer
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.topic import BrokerTopic

from tests.local.cluster import Cluster, kill, running

pytestmark = pytest.mark.timeout(300)

SPEC: dict[str, Any] = {
    "nameServers": {"replicas": 1},
    "brokerGroups": [{"name": "a", "members": 2}, {"name": "b", "members": 1}],
}


def write(cluster: Cluster, *resources: BrokerTopic | ConsumerGroup) -> None:
    """The manifest with these resources, as further documents of its file: in v1beta1, as the cluster itself."""
    documents = [json.loads(cluster.file.read_text().split("\n---\n")[0])]
    documents += [r.model_dump(mode="json", exclude={"status"}, exclude_none=True) for r in resources]
    texts = [json.dumps(document | {"apiVersion": "gantry.dev/v1beta1"}) for document in documents]
    cluster.file.write_text("\n---\n".join(texts))


def orders(**spec: Any) -> BrokerTopic:
    return BrokerTopic.make("orders", "t", topicName="Orders", **spec)


def billing(**spec: Any) -> ConsumerGroup:
    return ConsumerGroup.make("billing", "t", **spec)


SHORT = BrokerTopic.make("short", "t", queuesPerGroup=1, retention="1m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("topics"), **SPEC)
    write(made, orders(queues=6, messageType="Normal", retention="2h"), SHORT, billing(retryMax=3))
    with running(made):
        yield made


KINDS = {"topic": "BrokerTopic", "group": "ConsumerGroup"}


def shown(cluster: Cluster, what: str, name: str) -> dict[str, Any]:
    """As the command describes it."""
    found: dict[str, Any] = json.loads(cluster.gantry(what, "describe", name, "-o", "json").stdout)
    return found


def statuses(cluster: Cluster, what: str) -> dict[str, dict[str, Any]]:
    """By name of the resource, as the supervisor has written them."""
    file = cluster.folder.resources_status
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())[KINDS[what]] if file.exists() else {}
    return found


def condition(cluster: Cluster, what: str, name: str, kind: str = "Ready") -> dict[str, Any]:
    conditions = statuses(cluster, what).get(name, {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def queues(cluster: Cluster, name: str = "orders") -> dict[str, tuple[int, int]]:
    """Write and read queues by broker group."""
    return {r["name"]: (r["writeQueues"], r["readQueues"]) for r in statuses(cluster, "topic")[name]["groups"]}


def listed(cluster: Cluster, what: str) -> dict[str, dict[str, Any]]:
    return {row[what]: row for row in json.loads(cluster.gantry(what, "list", "-o", "json").stdout)}


def test_the_manifest_makes_a_topic_and_a_group(cluster: Cluster) -> None:
    cluster.until("it is ready", lambda: condition(cluster, "topic", "orders").get("status") == "True")
    cluster.until("it is ready", lambda: condition(cluster, "group", "billing").get("status") == "True")
    assert cluster.resource()["apiVersion"] == "gantry.dev/v1beta1"
    assert queues(cluster) == {"a": (3, 3), "b": (3, 3)}
    assert shown(cluster, "topic", "Orders")["attributes"] == {"message.type": "NORMAL", "retention.ms": "7200000"}
    cluster.until("the other one is ready", lambda: condition(cluster, "topic", "short").get("status") == "True")
    cluster.gantry("produce", "short", "--count", "4")
    assert listed(cluster, "topic")["Orders"]["resource"] == "orders"
    assert listed(cluster, "group")["billing"]["resource"] == "billing"
    assert {r["retryMax"] for r in shown(cluster, "group", "billing")["groups"]} == {3}


async def test_changes_of_others_are_put_back(cluster: Cluster) -> None:
    async with Admin(cluster.name_servers) as admin:
        await admin.create_topic("Orders", queues=1)
    await asyncio.to_thread(cluster.up)
    cluster.until("it is put back", lambda: cluster.events("DriftCorrected"))
    rows = shown(cluster, "topic", "Orders")["groups"]
    assert [(r["group"], r["writeQueues"], r["readQueues"]) for r in rows] == [("a", 3, 3), ("b", 3, 3)]
    refused = cluster.gantry("topic", "create", "Orders", "--queues", "2", check=False)
    assert "managed by BrokerTopic orders" in refused.stderr
    refused = cluster.gantry("rebalance", "Orders", check=False)
    assert (refused.returncode, "BrokerTopic orders spreads Orders" in refused.stderr) == (1, True)


def test_a_group_is_moved_after_a_preview(cluster: Cluster) -> None:
    cluster.gantry("produce", "Orders", "--count", "12")
    cluster.gantry("consume", "Orders", "-g", "billing", "--count", "12", "--timeout", "20", "-q")
    reset = ("group", "reset", "billing", "--to", "earliest")
    preview = json.loads(cluster.gantry(*reset, "-o", "json").stdout)
    assert (preview["repeated"], preview["skipped"], preview["done"]) == (12, 0, False)
    assert listed(cluster, "group")["billing"]["lag"] == 0
    cluster.gantry(*reset, "--confirm")
    assert listed(cluster, "group")["billing"]["lag"] == 12
    latest = cluster.gantry("topic", "reset", "Orders", "-g", "billing", "--to", "latest", "--confirm").stdout
    assert "12 messages were skipped, 0 repeated" in latest
    wrong = cluster.gantry("group", "reset", "billing", "--to", "yesterday", check=False)
    assert (wrong.returncode, "with a time like" in wrong.stderr) == (2, True)


def test_a_topic_shrinks_and_grows_with_its_manifest(cluster: Cluster) -> None:
    write(cluster, orders(queues=2), billing())
    cluster.up()
    cluster.until("it takes fewer", lambda: queues(cluster) == {"a": (1, 3), "b": (1, 3)})
    assert condition(cluster, "topic", "orders", "Synced")["reason"] == "Shrinking"
    assert condition(cluster, "topic", "orders")["status"] == "True"
    write(cluster, orders(queues=2, force=True), billing())
    cluster.up()
    cluster.until("it has fewer", lambda: queues(cluster) == {"a": (1, 1), "b": (1, 1)})
    write(cluster, orders(queuesPerGroup=2, deletionPolicy="Delete"), billing(deletionPolicy="Delete"))
    cluster.up()
    cluster.until("it grows", lambda: queues(cluster) == {"a": (2, 2), "b": (2, 2)})


async def test_topics_are_made_in_the_middle_of_a_failover(cluster: Cluster) -> None:
    former = cluster.master()
    more = [BrokerTopic.make(f"more{n}", "t", queuesPerGroup=2) for n in range(30)]
    write(cluster, *more)
    kill(former["pid"], signal.SIGKILL)
    await asyncio.to_thread(cluster.gantry, "up", str(cluster.file), "--dir", str(cluster.folder.root), "--detach")
    cluster.until("another leads", lambda: cluster.master()["name"] != former["name"])
    names = [f"more{n}" for n in range(30)]
    cluster.until(
        "all are there", lambda: {condition(cluster, "topic", n).get("status") for n in names} == {"True"}, 60
    )  # fmt: skip
    cluster.until("all are in sync", lambda: all(m.get("inSync") for m in cluster.members().values()))


def test_what_a_command_makes_is_kept_without_a_supervisor_and_made_later(cluster: Cluster) -> None:
    kill(cluster.supervisor_pid(), signal.SIGKILL)
    later = cluster.gantry("topic", "create", "Later", "--queues", "1", "--managed")
    assert "no `gantry up` runs" in later.stderr
    cluster.up()
    cluster.until("it is made", lambda: condition(cluster, "topic", "later").get("status") == "True")
    assert "later" in cluster.gantry("topic", "list").stdout
    assert "its deletionPolicy is Retain" in cluster.gantry("topic", "delete", "Later").stdout
    assert cluster.gantry("topic", "delete", "Later").stdout == "Later is deleted\n"
    cluster.gantry("group", "create", "Direct", "--retry-max", "2")
    assert {r["retryMax"] for r in shown(cluster, "group", "Direct")["groups"]} == {2}
    assert "deleted with its offsets" in cluster.gantry("group", "delete", "Direct").stdout
    assert "there is no topic Nothing" in cluster.gantry("topic", "delete", "Nothing", check=False).stderr
    assert "topic of the system" in cluster.gantry("topic", "delete", "TBW102", check=False).stderr


async def test_a_topic_with_unread_messages_waits_for_its_readers(cluster: Cluster) -> None:
    """Also for one with a delivery time, which nobody can have read."""
    cluster.gantry("produce", "Orders", "--count", "4")
    await asyncio.to_thread(_read_orders, cluster, 4)
    async with Producer(cluster.name_servers) as producer:
        await producer.send(Message("Orders", b"later", properties={"TIMER_DELAY_SEC": "20"}))
    await asyncio.to_thread(_delete_orders, cluster)


async def test_a_topic_that_is_written_again_while_its_deletion_waits_stays(cluster: Cluster) -> None:
    again = BrokerTopic.make("again", "t", queuesPerGroup=2, deletionPolicy="Delete")
    write(cluster, orders(queues=6), SHORT, again)
    cluster.up()
    cluster.until("it is ready", lambda: condition(cluster, "topic", "again").get("status") == "True")
    cluster.gantry("produce", "again", "--count", "4")
    cluster.gantry("topic", "delete", "again")
    cluster.until("the deletion waits", lambda: condition(cluster, "topic", "again").get("reason") == "Unread")
    said = cluster.gantry("up", str(cluster.file), "--dir", str(cluster.folder.root), "--detach")
    assert "BrokerTopic again was being deleted; it is written again, so it stays" in said.stderr
    cluster.until("it is ready", lambda: condition(cluster, "topic", "again").get("status") == "True")
    cluster.gantry("produce", "again", "--count", "4")
    cluster.gantry("topic", "delete", "again")
    cluster.until("the deletion waits", lambda: condition(cluster, "topic", "again").get("reason") == "Unread")


def _read_orders(cluster: Cluster, count: int) -> None:
    cluster.gantry("consume", "Orders", "-g", "billing", "--count", str(count), "--timeout", "40", "-q")


def _delete_orders(cluster: Cluster) -> None:
    assert "once nothing in it is unread" in cluster.gantry("topic", "delete", "Orders").stdout

    def waits() -> dict[str, str]:
        return condition(cluster, "topic", "orders")

    cluster.until("it waits", lambda: "delayed messages" in waits().get("message", ""))
    assert waits()["reason"] == "Unread"
    cluster.until("the message is there", lambda: "has not read" in waits().get("message", ""))
    assert waits()["reason"] == "Unread"
    _read_orders(cluster, 1)
    cluster.until("it is gone", lambda: "orders" not in statuses(cluster, "topic"), 60)
    assert "Orders" not in listed(cluster, "topic")
    assert "being deleted" in cluster.gantry("group", "delete", "billing").stdout
    cluster.until("the group is gone", lambda: "billing" not in statuses(cluster, "group"), 60)


async def test_messages_beyond_their_topics_retention_are_not_readable(cluster: Cluster) -> None:
    """They were sent by the first test. Since then another member leads, and no resource manages the topic."""

    async def readable() -> dict[str, int]:
        async with Admin(cluster.name_servers) as admin:
            stats = await admin.topic_stats("short")
        return {queue.broker: offsets.max_offset - offsets.min_offset for queue, offsets in stats.items()}

    begun = time.monotonic()
    while any((await readable()).values()):
        assert time.monotonic() - begun < 90
        await asyncio.sleep(0.5)
    assert len(await readable()) == 2
