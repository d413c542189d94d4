"""Topics and consumer groups as resources: made, put back, reset, emptied, deleted; wrong ones are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gantry_broker.client import Admin, Consumer, FromWhere, Producer
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget
from kube import ROOT, Cluster, CommandFailed, apply, get, kubectl, until

WRONG = json.loads((ROOT / "tests/data/wrong_topics.json").read_text())


def topic(name: str = "orders", **spec: Any) -> str:
    meta = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerTopic", "metadata": {"name": name}}
    return json.dumps(meta | {"spec": {"cluster": "demo", **spec}})


def group(name: str = "billing", **spec: Any) -> str:
    meta = {"apiVersion": "gantry.dev/v1beta1", "kind": "ConsumerGroup", "metadata": {"name": name}}
    return json.dumps(meta | {"spec": {"cluster": "demo", **spec}})


def condition(namespace: str, kind: str, name: str, what: str = "Ready") -> dict[str, Any]:
    found = get(namespace, kind, name).get("status") or {}
    return next((c for c in found.get("conditions") or [] if c["type"] == what), {})


def events(namespace: str, name: str) -> set[str]:
    return {e["reason"] for e in get(namespace, "events") if e["involvedObject"]["name"] == name}


@asynccontextmanager
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with KubeTarget(namespace=cluster.namespace) as target:
        servers, tls = await target.name_servers(), await target.client_tls()
        async with Admin(servers, credentials=cluster.credentials(), tls=tls) as found:
            yield found


async def send(cluster: Cluster, to: str, count: int) -> None:
    async with (
        KubeTarget(namespace=cluster.namespace) as target,
        Producer(await target.name_servers(), credentials=cluster.credentials()) as producer,
    ):
        for number in range(count):
            await producer.send(to, f"{number}".encode(), timeout=60)


async def readable(cluster: Cluster, name: str) -> int:
    """Messages between the ends of a topic's queues."""
    async with admin(cluster) as found:
        return sum(o.max_offset - o.min_offset for o in (await found.topic_stats(name)).values())


async def consume(cluster: Cluster, count: int) -> None:
    """As the group billing, from the beginning."""
    left = asyncio.Event()
    got: list[bytes] = []

    async def handle(message: Any) -> None:
        got.append(message.body)
        if len(got) >= count:
            left.set()

    async with KubeTarget(namespace=cluster.namespace) as target:
        servers = await target.name_servers()
        consumer = Consumer(servers, "billing", from_where=FromWhere.FIRST, credentials=cluster.credentials())
        async with consumer, asyncio.timeout(240):
            await consumer.subscribe("Orders", handle)
            await left.wait()


@pytest.fixture
def orders(demo: Cluster) -> Cluster:
    """A topic and a group by resource, ready."""
    apply(demo.namespace, topic(topicName="Orders", queuesPerGroup=4, messageType="Normal", deletionPolicy="Delete"))
    apply(demo.namespace, topic("brief", topicName="Brief", queuesPerGroup=1, retention="1m"))
    apply(demo.namespace, group(retryMax=3))
    until("the topic is ready", lambda: condition(demo.namespace, "bt", "orders").get("status") == "True", 60)
    until("the group is ready", lambda: condition(demo.namespace, "cg", "billing").get("status") == "True", 60)
    until("the other topic is", lambda: condition(demo.namespace, "bt", "brief").get("status") == "True", 60)
    return demo


def test_wrong_resources_are_refused_at_apply(demo: Cluster) -> None:
    for wrong in WRONG:
        with pytest.raises(CommandFailed) as refused:
            kubectl(
                "-n", demo.namespace, "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(wrong["document"])
            )  # fmt: skip
        assert wrong["apiServer"] in str(refused.value), (wrong, str(refused.value))


async def test_a_topic_and_a_group_are_made_shown_and_put_back(orders: Cluster) -> None:
    await send(orders, "Brief", 3)  # For the test of retention: they grow old meanwhile.
    for kind, columns in (("bt", ["orders", "demo", "4", "ReadWrite", "True"]),
                          ("cg", ["billing", "demo", "0", "0", "True"])):  # fmt: skip
        until(f"one line shows {columns[0]}", lambda kind=kind, columns=columns: kubectl(
            "-n", orders.namespace, "get", kind, columns[0], "--no-headers").split()[:5] == columns)  # fmt: skip
    assert "delete-at-brokers" in str(get(orders.namespace, "bt", "orders")["metadata"]["finalizers"])
    assert "finalizers" not in get(orders.namespace, "cg", "billing")["metadata"]
    async with admin(orders) as found:
        for address in (await found.masters()).values():
            config = (await found.topic_config(address)).topics["Orders"]
            assert (config.write_queues, config.attributes) == (4, {"message.type": "NORMAL"})
            assert (await found.groups(address))["billing"].retry_max_times == 3
        await found.create_topic("Orders", queues=2)
    kubectl("-n", orders.namespace, "annotate", "bt", "orders", "e2e=look", "--overwrite")
    until("it is put back", lambda: "DriftCorrected" in events(orders.namespace, "orders"), 60)
    async with admin(orders) as found:
        for address in (await found.masters()).values():
            assert (await found.topic_config(address)).topics["Orders"].write_queues == 4
    # An existing topic is adopted; the second resource for one name is refused.
    async with admin(orders) as found:
        await found.create_topic("Older", queues=3)
    apply(orders.namespace, topic("older", topicName="Older"))
    until("it is adopted", lambda: condition(orders.namespace, "bt", "older").get("reason") == "Adopted", 60)
    apply(orders.namespace, topic("second", topicName="Older"))
    until("it is refused", lambda: condition(orders.namespace, "bt", "second").get("reason") == "NameTaken", 60)
    assert "BrokerTopic older" in condition(orders.namespace, "bt", "second")["message"]
    with pytest.raises(CommandFailed, match="topicName cannot be changed"):
        kubectl("-n", orders.namespace, "patch", "bt", "older", "--type=merge", "-p", '{"spec":{"topicName":"X"}}')
    kubectl("-n", orders.namespace, "delete", "bt", "older", "second")
    async with admin(orders) as found:
        assert "Older" in await found.topics(), "its deletionPolicy is Retain"


async def test_offsets_are_previewed_reset_and_the_topic_is_deleted_once_it_is_read(orders: Cluster) -> None:
    await send(orders, "Orders", 20)
    await consume(orders, 20)

    def reset() -> dict[str, Any]:
        found: dict[str, Any] = get(orders.namespace, "cg", "billing")["status"].get("reset") or {}
        return found

    def annotate(value: str) -> None:
        kubectl(
            "-n", orders.namespace, "annotate", "cg", "billing", f"gantry.dev/reset-offsets={value}", "--overwrite"
        )  # fmt: skip

    annotate("earliest")
    until("there is a preview", lambda: reset().get("state") == "Preview", 60)
    assert (reset()["repeated"], reset()["skipped"]) == (20, 0), reset()
    annotate("earliest,confirm")
    until("it is done", lambda: reset().get("state") == "Done", 60)
    assert "gantry.dev/reset-offsets" not in get(orders.namespace, "cg", "billing")["metadata"].get("annotations", {})
    until("the lag is shown", lambda: get(orders.namespace, "cg", "billing")["status"]["lag"] == 20, 60)
    kubectl("-n", orders.namespace, "delete", "bt", "orders", "--wait=false")
    until("it waits", lambda: condition(orders.namespace, "bt", "orders").get("reason") == "Unread", 60)
    until(
        "it says for what", lambda: "20 messages are unread" in condition(orders.namespace, "bt", "orders")["message"]
    )
    await consume(orders, 20)
    until("it is gone", lambda: "orders" not in kubectl("-n", orders.namespace, "get", "bt", "--no-headers"), 60)
    async with admin(orders) as found:
        assert "Orders" not in await found.topics()


async def test_messages_beyond_their_topics_retention_are_not_readable(orders: Cluster) -> None:
    await send(orders, "Brief", 1)  # Others may be there from the tests before.
    assert await readable(orders, "Brief") > 0
    async with asyncio.timeout(300):
        while await readable(orders, "Brief"):  # noqa: ASYNC110 - the cluster has no event for that
            await asyncio.sleep(2)
    await send(orders, "Brief", 2)
    assert await readable(orders, "Brief") == 2
