"""BrokerTopics and ConsumerGroups over an API server in memory, with brokers in memory behind HTTP and the protocol:
status, events, finalizers, resets, and an operator that ends at any step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.errors import ConnectError
from gantry_operator.api.consumer_group import RESET_OFFSETS, ConsumerGroup
from gantry_operator.api.topic import FINALIZER, BrokerTopic
from gantry_operator.cluster import topic_control
from gantry_operator.cluster.topic_control import Cluster, TopicControl
from gantry_operator.platforms.kubernetes.api.client import KINDS, ApiUnavailable
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.resources import topics
from gantry_operator.platforms.kubernetes.resources.topics import KubernetesTopicStore, stray_status
from gantry_operator.topics.model import DropGroup, DropTopic, PutGroup, PutTopic, WantedTopic

from tests.kubernetes.fake_api import FakeApi
from tests.support.present import present
from tests.support.running import running, until
from tests.topics.model import Broker


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_control, "EVERY_S", 0.5)
    monkeypatch.setattr(topic_control, "BUSY_S", 0.05)
    monkeypatch.setattr(topic_control, "AGAIN_S", (0.03, 0.05))
    monkeypatch.setattr(topic_control, "SETTLE_CHANGES_S", 0.01)
    monkeypatch.setattr(topics, "FIGURES_EVERY_S", 0.0)


class Master:
    """The part of a MemberWatch and of a GroupController that is asked."""

    reach = "ok"

    def __init__(self, group: str) -> None:
        self.name, self.url = f"demo-{group}-0", f"http://{group}"

    @property
    def leader_watch(self) -> Master:
        return self


class Brokers:
    """All broker groups, as httpx and a RemotingClient reach them."""

    def __init__(self, *groups: str) -> None:
        self.all = {g: Broker(g) for g in groups}
        self.down: set[str] = set()
        self.tables = 0
        self.requests: list[tuple[str, int]] = []
        self.refuses = ""
        self.online = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.tables += 1
        broker = self.all[request.url.host]
        if broker.group in self.down:
            raise httpx.ConnectError("it is down")
        asked = request.url.params.get_list("undelivered")
        return httpx.Response(200, json=broker.json(asked) | {"settled": True})

    async def request(self, address: str, frame: Frame, timeout: float) -> Frame:
        group = address.split(":")[0]
        if group in self.down:
            raise ConnectError("it is down")
        self.requests.append((group, frame.code))
        if self.refuses:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, self.refuses)
        await asyncio.sleep(0)
        return self._one(self.all[group], frame)

    def _one(self, broker: Broker, frame: Frame) -> Frame:
        ext = frame.ext
        if frame.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            config = TopicConfig(
                ext["topic"], int(ext["readQueueNums"]), int(ext["writeQueueNums"]), int(ext["perm"]),
            )  # fmt: skip
            changes = tuple(filter(None, ext.get("attributes", "").split(",")))
            broker.do(PutTopic(broker.group, config, changes))
        elif frame.code == RequestCode.DELETE_TOPIC_IN_BROKER:
            broker.do(DropTopic(broker.group, ext["topic"]))
        elif frame.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            broker.do(PutGroup(broker.group, SubscriptionGroup.from_json(json.loads(frame.body))))
        elif frame.code == RequestCode.DELETE_SUBSCRIPTIONGROUP:
            broker.do(DropGroup(broker.group, ext["groupName"]))
        elif frame.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            # All messages are older than any time but 0.
            queue = broker.queue(ext["topic"], int(ext["queueId"]))
            return Frame.response_to(frame, 0, None, {"offset": str(queue[0 if ext["timestamp"] == "0" else 1])})
        elif frame.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            if not self.online:
                return Frame.response_to(frame, ResponseCode.CONSUMER_NOT_ONLINE, "nobody is there")
            for number in range(broker.topics[ext["topic"]].write_queues):
                queue = broker.queue(ext["topic"], number)
                broker.offsets[ext["topic"], ext["group"]][number] = queue[0 if ext["timestamp"] == "0" else 1]
        elif frame.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            pair = (ext["topic"], ext["consumerGroup"])
            broker.offsets.setdefault(pair, {})[int(ext["queueId"])] = int(ext["commitOffset"])
        else:
            raise AssertionError(frame.code)
        return Frame.response_to(frame, ResponseCode.SUCCESS)


class Rig:
    """An operator's part for topics and groups."""

    def __init__(self, fake: FakeApi) -> None:
        self.fake = fake
        self.api = fake.api
        self.brokers = Brokers("a", "b")
        self.settle_s = 0.1
        self.held = ""
        self.control: TopicControl = None  # type: ignore[assignment]
        self.store: KubernetesTopicStore = None  # type: ignore[assignment]

    def put(
        self, resource: BrokerTopic | ConsumerGroup, annotations: dict[str, str] | None = None, **meta: Any
    ) -> dict[str, Any]:  # fmt: skip
        obj = resource.model_dump(mode="json", exclude={"status"}, exclude_none=True)
        known = self.fake.get(resource.kind, resource.name)
        before = {} if known is None else known["metadata"]
        obj["metadata"] = {
            "name": resource.name, "namespace": "mq", "annotations": annotations or {},
            "generation": before.get("generation", 0) + 1, "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": before.get("finalizers", []),
        } | meta  # fmt: skip
        if known is not None and "status" in known:
            obj["status"] = known["status"]
        return self.fake.put(obj)

    def topic(self, name: str = "orders", **spec: Any) -> dict[str, Any]:
        return self.put(BrokerTopic.make(name, "demo", "mq", **({"queuesPerGroup": 4} | spec)))

    def group(self, name: str = "billing", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        return self.put(ConsumerGroup.make(name, "demo", "mq", **spec), annotations)

    def keeps(self, wanted: WantedTopic) -> str | None:
        """Why a resource may not go: its table."""
        return None

    def annotate(self, name: str, value: str) -> None:
        known = present(self.fake.get("ConsumerGroup", name))
        known["metadata"]["annotations"] = {RESET_OFFSETS: value}
        self.fake.put(known)

    def delete(self, kind: str, name: str) -> None:
        """As kubectl does: an object with a finalizer only gets a time."""
        known = present(self.fake.get(kind, name))
        if known["metadata"].get("finalizers"):
            known["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
            known["metadata"]["generation"] += 1
            self.fake.put(known)
        else:
            self.fake.remove(kind, "mq", name)

    def collect(self) -> None:
        """Objects that were deleted and have no finalizer any more go, as in a real API server."""
        for (kind, space, name), obj in list(self.fake.objects.items()):
            if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
                self.fake.remove(kind, space, name)

    def condition(self, kind: str, name: str, what: str = "Ready") -> dict[str, Any]:
        conditions = self.status(kind, name).get("conditions") or []
        return next((c for c in conditions if c["type"] == what), {})

    def ready(self, kind: str = "BrokerTopic", name: str = "orders") -> str:
        return str(self.condition(kind, name).get("status"))

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return (self.fake.get(kind, name) or {}).get("status") or {}

    def reasons(self) -> list[str]:
        return [o["reason"] for (k, _, _), o in self.fake.objects.items() if k == "Event"]

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Rig]:
        def heard(event: str, obj: Any) -> None:
            if event == "DELETED":
                self.store.forget(obj["metadata"]["uid"])
            if event == "DELETED" or self.store.is_news(obj):
                self.control.wake()

        masters: Any = {g: Master(g) for g in self.brokers.all}
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.brokers.answer)) as client:
            caches = {k: InformerCache(self.api, KINDS[k], (), "", heard) for k in ("BrokerTopic", "ConsumerGroup")}
            self.store = KubernetesTopicStore(self.api, caches, ("mq", "demo"), "op-0")
            self.control = TopicControl(
                self.store, lambda: Cluster("demo", list(self.brokers.all), held=self.held), masters, client,
                lambda: self.brokers, lambda group: f"{group}:10911",
                keeps=lambda wanted: self.keeps(wanted), settle_s=self.settle_s,  # type: ignore[arg-type,return-value]
            )  # fmt: skip
            async with running(*caches.values(), self.control):
                yield self
            await self.store.close()


@pytest.fixture
def rig(fake: FakeApi) -> Rig:
    return Rig(fake)


async def test_a_topic_gets_queues_a_status_and_events(rig: Rig) -> None:
    rig.topic(topicName="Orders", messageType="FIFO")
    async with rig.operator():
        await until(lambda: rig.ready() == "True")
        status = rig.status("BrokerTopic", "orders")
        assert (status["topicName"], status["origin"], status["queues"], status["permission"]) == (
            "Orders", "Created", 8, "ReadWrite",
        )  # fmt: skip
        assert status["groups"] == status["syncedGroups"] == [
            {"name": g, "writeQueues": 4, "readQueues": 4, "permission": "ReadWrite"} for g in "ab"
        ]  # fmt: skip
        assert (status["observedGeneration"], status["syncedGeneration"]) == (1, 1)
        assert rig.condition("BrokerTopic", "orders", "Synced")["status"] == "True"
        for broker in rig.brokers.all.values():
            assert broker.topics["Orders"].attributes == {"message.type": "FIFO"}
        await until(lambda: "Created" in rig.reasons())
        assert (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"] == []


async def test_a_topic_waits_until_its_table_is_dropped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "the table of Orders is being dropped"
    monkeypatch.setattr(rig, "keeps", lambda wanted: words if wanted.deleting else "")
    rig.topic(topicName="Orders")
    async with rig.operator():
        await until(lambda: FINALIZER in (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"])
        rig.delete("BrokerTopic", "orders")
        rig.control.wake()
        await until(lambda: rig.condition("BrokerTopic", "orders").get("reason") == "DroppingTable")
        assert words in rig.condition("BrokerTopic", "orders")["message"]
        assert all("Orders" in broker.topics for broker in rig.brokers.all.values()), "its deletionPolicy is Retain"
        monkeypatch.setattr(rig, "keeps", lambda wanted: None)
        rig.control.wake()
        await until(lambda: (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"] == [])


async def test_a_group_gets_settings_and_figures(rig: Rig) -> None:
    rig.topic("t")
    rig.group(retryMax=3, broadcast=False)
    async with rig.operator():
        await until(lambda: rig.ready("ConsumerGroup", "billing") == "True")
        broker = rig.brokers.all["a"]
        await until(lambda: "t" in broker.topics)
        assert broker.groups["billing"].retry_max_times == 3
        assert not broker.groups["billing"].consume_broadcast_enable
        broker.send("t", 0)
        broker.offsets["t", "billing"] = {0: 0}
        broker.members["billing"] = {"t"}
        rig.control.wake()
        await until(lambda: rig.status("ConsumerGroup", "billing").get("lag") == 1)
        assert rig.status("ConsumerGroup", "billing")["members"] == 1
        assert rig.status("ConsumerGroup", "billing")["topics"] == ["t"]


async def test_nothing_is_written_and_nobody_is_asked_without_need(rig: Rig) -> None:
    async with rig.operator():
        await asyncio.sleep(0.2)
        assert rig.brokers.tables == 0, "there are no resources"
        for number in range(20):
            rig.topic(f"t{number}")
            rig.group(f"g{number}")
        await until(lambda: all(rig.ready("BrokerTopic", f"t{n}") == "True" for n in range(20)))
        await until(lambda: all(rig.ready("ConsumerGroup", f"g{n}") == "True" for n in range(20)))
        await asyncio.sleep(0.2)
        rig.fake.log.clear()
        rig.brokers.requests.clear()
        before, passes = rig.brokers.tables, rig.control.passes
        await until(lambda: rig.control.passes >= passes + 2)
        assert rig.brokers.tables - before <= 2 * (rig.control.passes - passes + 1), "one request for a broker group"
        assert (rig.fake.log, rig.brokers.requests) == ([], [])


async def test_drift_is_put_back_or_reported(rig: Rig) -> None:
    rig.topic()
    rig.topic("watched", driftPolicy="Report")
    async with rig.operator():
        await until(lambda: rig.ready() == rig.ready("BrokerTopic", "watched") == "True")
        await until(lambda: rig.condition("BrokerTopic", "watched", "Synced").get("status") == "True")
        for name in ("orders", "watched"):
            rig.brokers.all["a"].topics[name] = TopicConfig(name, 2, 2)
        rig.control.wake()
        await until(lambda: rig.brokers.all["a"].topics["orders"].write_queues == 4)
        await until(lambda: rig.condition("BrokerTopic", "watched", "Synced").get("reason") == "Drifted")
        assert rig.brokers.all["a"].topics["watched"].write_queues == 2
        await until(lambda: "DriftCorrected" in rig.reasons())


async def test_an_existing_topic_is_adopted_and_its_second_resource_refused(rig: Rig) -> None:
    rig.brokers.all["a"].topics["Old"] = TopicConfig("Old", 4, 4)
    rig.topic("first", topicName="Old")
    async with rig.operator():
        await until(lambda: rig.ready("BrokerTopic", "first") == "True")
        assert rig.condition("BrokerTopic", "first")["reason"] == "Adopted"
        rig.topic("another", topicName="Old", queuesPerGroup=9)
        await until(lambda: rig.condition("BrokerTopic", "another").get("reason") == "NameTaken")
        assert "belongs to BrokerTopic first" in rig.condition("BrokerTopic", "another")["message"]
        rig.delete("BrokerTopic", "first")
        await until(lambda: rig.ready("BrokerTopic", "another") == "True")
        assert rig.brokers.all["a"].topics["Old"].write_queues == 9


async def test_a_topic_is_deleted_with_its_resource_once_it_is_read(rig: Rig) -> None:
    rig.topic(deletionPolicy="Delete")
    rig.topic("kept")
    async with rig.operator():
        await until(lambda: rig.ready() == rig.ready("BrokerTopic", "kept") == "True")
        await until(lambda: FINALIZER in (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"])
        broker = rig.brokers.all["b"]
        broker.send("orders", 0)
        rig.delete("BrokerTopic", "kept")
        rig.delete("BrokerTopic", "orders")
        await until(lambda: rig.condition("BrokerTopic", "orders").get("reason") == "Unread")
        broker.waiting["orders"] = 1
        broker.read("orders", "g")
        await until(lambda: "delayed messages" in rig.condition("BrokerTopic", "orders").get("message", ""))
        broker.deliver("orders")
        broker.read("orders", "g")
        await until(lambda: "orders" not in broker.topics)
        await until(lambda: (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"] == [])
        rig.collect()
        assert "kept" in broker.topics


async def test_a_deletion_that_waits_can_be_taken_back_for_the_topic(rig: Rig) -> None:
    rig.topic(deletionPolicy="Delete")
    gone = {"deletionTimestamp": "2026-01-02T00:00:00Z"}
    async with rig.operator():
        await until(lambda: rig.ready() == "True")
        await until(lambda: FINALIZER in (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"])
        broker = rig.brokers.all["b"]
        broker.send("orders", 0)
        rig.delete("BrokerTopic", "orders")
        await until(lambda: rig.condition("BrokerTopic", "orders").get("reason") == "Unread")
        assert "write spec.deletionPolicy: Retain" in rig.condition("BrokerTopic", "orders")["message"]
        assert "WrittenWhileDeleting" not in rig.reasons()
        assert not broker.send("orders", 0)
        rig.put(BrokerTopic.make("orders", "demo", "mq", queuesPerGroup=6, deletionPolicy="Delete"), **gone)
        await until(lambda: "WrittenWhileDeleting" in rig.reasons())
        rig.put(BrokerTopic.make("orders", "demo", "mq", queuesPerGroup=6), **gone)
        await until(lambda: (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"] == [])
        rig.collect()
        assert broker.send("orders", 0), "it takes messages as before"
        rig.topic(deletionPolicy="Delete")
        await until(lambda: rig.condition("BrokerTopic", "orders").get("reason") == "Adopted")
        assert broker.topics["orders"].write_queues == 4


async def test_a_policy_that_changes_takes_its_finalizer_along(rig: Rig) -> None:
    rig.topic(deletionPolicy="Delete")
    async with rig.operator():
        await until(lambda: FINALIZER in (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"])
        rig.topic()
        await until(lambda: (rig.fake.get("BrokerTopic", "orders") or {})["metadata"]["finalizers"] == [])


async def test_a_topic_shrinks_in_two_steps(rig: Rig) -> None:
    rig.topic(queuesPerGroup=8)
    async with rig.operator():
        await until(lambda: rig.ready() == "True")
        broker = rig.brokers.all["a"]
        broker.send("orders", 7)
        rig.topic(queuesPerGroup=2)
        await until(lambda: rig.condition("BrokerTopic", "orders", "Synced").get("reason") == "Shrinking")
        assert rig.ready() == "True"
        assert (broker.topics["orders"].write_queues, broker.topics["orders"].read_queues) == (2, 8)
        broker.read("orders", "g")
        await until(lambda: broker.topics["orders"].read_queues == 2)
        await until(lambda: rig.condition("BrokerTopic", "orders", "Synced").get("status") == "True")


async def test_a_failover_in_the_middle_is_waited_for(rig: Rig) -> None:
    rig.brokers.down = {"b"}
    rig.topic()
    async with rig.operator():
        await until(lambda: "orders" in rig.brokers.all["a"].topics)
        assert rig.ready() != "False"
        rig.brokers.down = set()
        await until(lambda: rig.ready() == "True")


async def test_a_long_absence_of_a_master_is_said(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.topic()
    async with rig.operator():
        await until(lambda: rig.ready() == "True")
        monkeypatch.setattr(topic_control, "PATIENCE_S", 0.2)
        rig.brokers.down = {"b"}
        await until(lambda: rig.ready() == "Unknown")
        assert "no master of b answers" in rig.condition("BrokerTopic", "orders")["message"]
        rig.brokers.down = set()
        await until(lambda: rig.ready() == "True")


async def test_what_the_brokers_refuse_is_said_in_their_words(rig: Rig) -> None:
    rig.brokers.refuses = "the broker has 50000 topics, which is the limit"
    rig.topic()
    async with rig.operator():
        await until(lambda: rig.condition("BrokerTopic", "orders", "Synced").get("reason") == "RefusedByBroker")
        assert "which is the limit" in rig.condition("BrokerTopic", "orders", "Synced")["message"]
        rig.brokers.refuses = ""
        await until(lambda: rig.ready() == "True")


async def test_a_broker_that_does_not_keep_what_it_accepts_is_not_asked_without_a_pause(rig: Rig) -> None:
    async def deaf(address: str, frame: Frame, timeout: float) -> Frame:
        rig.brokers.requests.append((address, frame.code))
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    rig.brokers.request = deaf  # type: ignore[method-assign]
    rig.topic()
    async with rig.operator():
        await until(lambda: rig.brokers.requests)
        await asyncio.sleep(0.5)
        assert len(rig.brokers.requests) < 40
        assert rig.condition("BrokerTopic", "orders", "Synced")["reason"] == "Applying"


async def test_a_resource_that_cannot_be_read_says_so(rig: Rig) -> None:
    obj = rig.topic()
    rig.fake.put(obj | {"spec": obj["spec"] | {"queues": 9}})
    async with rig.operator():
        await until(lambda: rig.condition("BrokerTopic", "orders").get("reason") == "InvalidSpec")
        assert "spec.queuesPerGroup" in rig.condition("BrokerTopic", "orders")["message"]
        assert "orders" not in rig.brokers.all["a"].topics


async def test_a_paused_cluster_is_left_alone(rig: Rig) -> None:
    rig.held = "the cluster hibernates"
    rig.topic()
    async with rig.operator():
        await until(lambda: rig.condition("BrokerTopic", "orders", "Synced").get("reason") == "Paused")
        assert rig.brokers.requests == []


@pytest.mark.parametrize("online", [True, False])
async def test_offsets_are_previewed_and_reset_after_a_confirmation(rig: Rig, online: bool) -> None:
    rig.brokers.online = online
    rig.topic("t")
    rig.group()
    async with rig.operator():
        await until(lambda: rig.ready("BrokerTopic", "t") == "True" and rig.ready("ConsumerGroup", "billing") == "True")
        broker = rig.brokers.all["a"]
        for _ in range(5):
            broker.send("t", 1)
        broker.read("t", "billing")

        def reset() -> dict[str, Any]:
            return rig.status("ConsumerGroup", "billing").get("reset") or {}

        rig.annotate("billing", "earliest,confirm")
        await until(lambda: reset().get("state") == "Refused")
        assert "it was not previewed: write earliest first" in reset()["message"]
        rig.annotate("billing", "earliest")
        await until(lambda: reset().get("state") == "Preview")
        assert (reset()["repeated"], reset()["skipped"]) == (5, 0)
        assert reset()["queues"] == [
            {"topic": "t", "group": "a", "queue": 1, "at": 5, "to": 0, "skipped": 0, "repeated": 5}
        ]  # fmt: skip
        assert broker.offsets["t", "billing"][1] == 5, "nothing was changed"
        rig.annotate("billing", "earliest,confirm")
        await until(lambda: reset().get("state") == "Done")
        assert broker.offsets["t", "billing"][1] == 0
        assert (rig.fake.get("ConsumerGroup", "billing") or {})["metadata"]["annotations"] == {}
        # The same once more, to the end.
        rig.annotate("billing", "t=latest")
        await until(lambda: reset().get("state") == "Preview")
        assert (reset()["repeated"], reset()["skipped"]) == (0, 5)
        rig.annotate("billing", "t=latest,confirm")
        await until(lambda: reset().get("state") == "Done")
        assert broker.offsets["t", "billing"][1] == 5
        rig.annotate("billing", "yesterday")
        await until(lambda: reset().get("state") == "Refused")
        assert "with a time like" in reset()["message"]
        rig.annotate("billing", "Nothing=latest")
        await until(lambda: "no broker knows topic Nothing" in reset().get("message", ""))


@pytest.mark.parametrize("steps", range(0, 28, 4))
async def test_an_operator_that_ends_after_any_write_is_followed_by_one_that_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The first operator makes `steps` writes, at the API server or at brokers, and none after them."""
    rig.settle_s = 0.0
    left = [steps]
    answer, request = rig.api._answer, rig.brokers.request
    rig.brokers.all["b"].topics["old"] = TopicConfig("old", 4, 4)
    rig.topic("new", deletionPolicy="Delete")
    rig.topic("old")
    rig.group()

    def count(error: Exception) -> None:
        if left[0] <= 0:
            raise error
        left[0] -= 1

    async def limited(*args: Any, **kwargs: Any) -> Any:
        if args[0] != "GET":
            count(ApiUnavailable("the operator has ended"))
        return await answer(*args, **kwargs)

    async def also(address: str, frame: Frame, timeout: float) -> Frame:
        count(ConnectError("the operator has ended"))
        return await request(address, frame, timeout)

    monkeypatch.setattr(rig.api, "_answer", limited)
    monkeypatch.setattr(rig.brokers, "request", also)
    async with rig.operator():
        with contextlib.suppress(AssertionError, TimeoutError):
            await until(lambda: left[0] == 0 or rig.ready("ConsumerGroup", "billing") == "True", timeout_s=2.0)
        rig.annotate("billing", "old=earliest")
        await asyncio.sleep(0.1)
        rig.topic("old", queuesPerGroup=2)
        await asyncio.sleep(0.1)
    left[0] = 100_000
    async with rig.operator():
        for kind, name in (("BrokerTopic", "new"), ("BrokerTopic", "old"), ("ConsumerGroup", "billing")):
            await until(lambda kind=kind, name=name: rig.condition(kind, name, "Synced").get("status") == "True")
        await until(lambda: rig.status("BrokerTopic", "old").get("syncedGeneration") == 2)
        assert rig.status("BrokerTopic", "new")["origin"] == "Created"
        assert rig.status("BrokerTopic", "old")["origin"] == "Adopted"
        assert [b.topics["old"].read_queues for b in rig.brokers.all.values()] == [2, 2]
        await until(lambda: (rig.status("ConsumerGroup", "billing").get("reset") or {}).get("state") == "Preview")
        rig.annotate("billing", "old=earliest,confirm")
        await until(lambda: (rig.status("ConsumerGroup", "billing").get("reset") or {}).get("state") == "Done")
        rig.delete("BrokerTopic", "new")
        await until(lambda: "new" not in rig.brokers.all["a"].topics and "new" not in rig.brokers.all["b"].topics)


def test_a_resource_of_no_cluster_says_so() -> None:
    obj = {"metadata": {"name": "t", "namespace": "mq", "generation": 3}, "spec": {"cluster": "gone"}}
    patch = present(stray_status(obj))
    ready = patch["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "ClusterNotFound")
    assert stray_status(obj | {"status": patch}) is None
