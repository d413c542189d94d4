"""Tables on a platform in memory: one run at a time, whatever happens, and a status that says what the run said."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gantry_broker.contracts.table_runs import TableReport
from gantry_operator.api.table import Tables, TableStatus
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.cluster.platform import Resources
from gantry_operator.cluster.table_control import TableCluster, TableControl
from gantry_operator.topics.model import Note, State, WantedTopic
from gantry_operator.topics.wanted import wanted_topic

from tests.cluster.fake_platform import FakeTableRuns, FakeTopics
from tests.support.present import present

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Topics(FakeTopics):
    """Resources that a test writes."""

    def __init__(self) -> None:
        self.of: dict[str, WantedTopic] = {}
        self.notes: list[Note] = []

    def put(self, name: str, generation: int = 1, status: TableStatus | None = None, **table: Any) -> None:
        topic = BrokerTopic.make(name.lower(), "demo", topicName=name, table=table)
        topic.metadata.generation = generation
        topic.metadata.creationTimestamp = "2026-05-01T00:00:00Z"
        known = {} if status is None else {"table": status.model_dump(mode="json")}
        self.of[topic.name] = wanted_topic(topic, known)

    def observe(self) -> Resources | None:
        return Resources(list(self.of.values()), ())

    def note(self, kind: str, note: Any) -> None:
        self.notes.append(note)


class Rig:
    """A control whose clock a test moves. `step` is one look."""

    def __init__(self, topics: Topics | None = None, runs: FakeTableRuns | None = None) -> None:
        self.now = START
        self.topics = topics or Topics()
        self.runs = runs or FakeTableRuns()
        self.cluster = TableCluster("demo", Tables())
        self.changed = 0
        self.control = self.new()

    def new(self) -> TableControl:
        def changed() -> None:
            self.changed += 1

        return TableControl(self.runs, self.topics, lambda: self.cluster, changed, lambda: None, lambda: self.now)

    async def step(self, seconds: float = 1.0) -> None:
        self.now += timedelta(seconds=seconds)
        task = asyncio.create_task(self.control.run())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def state(self, name: str) -> tuple[TableStatus, State]:
        return present(self.control.state_of(self.topics.of[name.lower()]))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def good(topic: str, **more: Any) -> TableReport:
    return TableReport(topic=topic, reason="Current", **{"rows": 5, "behind": 0, **more})


async def test_a_table_runs_by_its_interval_and_its_status_says_what_it_has(rig: Rig) -> None:
    rig.topics.put("Orders", every="1m", mode="Upsert")
    await rig.step()
    ((order,),) = rig.runs.orders
    assert (order.topic, order.mode, order.kind, order.every_s) == ("Orders", "Upsert", "Raw", 60)
    assert rig.runs.lasts == [0.0]
    assert rig.state("Orders")[1].reason == "Waiting"
    await rig.step(30)
    assert len(rig.runs.orders) == 1, "the run is active"
    rig.runs.say(good("Orders", rejected=2))
    await rig.step()
    status, current = rig.state("Orders")
    assert (status.rows, status.behindRecords, status.rejected, status.name) == (5, 0, 2, "rocketmq.Orders")
    assert (current.status, current.reason) == ("True", "Current")
    assert status.nextRun == "2026-05-01T12:01:01Z"
    await rig.step(10)
    assert len(rig.runs.orders) == 1, "it is not due"
    await rig.step(30)
    assert len(rig.runs.orders) == 2
    rows = present(rig.control.rows())
    assert [(r.topic, r.current, r.rows) for r in rows] == [("Orders", "True", 5)]


async def test_a_failure_is_said_once_and_its_end_too(rig: Rig) -> None:
    rig.topics.put("Orders", every="1m")
    await rig.step()
    rig.runs.say(TableReport(topic="Orders", reason="BadSchema", message="field x: rebuild the table"))
    await rig.step()
    assert rig.state("Orders")[1] == State("False", "BadSchema", "field x: rebuild the table")
    await rig.step(20)
    assert len(rig.runs.orders) == 2, "it is tried again"
    rig.runs.say(TableReport(topic="Orders", reason="BadSchema", message="field x: rebuild the table"))
    await rig.step()
    assert rig.state("Orders")[0].failures == 2
    await rig.step(1)
    rig.topics.put("Orders", generation=2, every="2m")
    await rig.step()
    assert len(rig.runs.orders) == 3, "a new spec is tried at once"
    rig.runs.say(good("Orders"))
    await rig.step()
    assert [(n.kind, n.reason) for n in rig.topics.notes] == [("Warning", "TableBadSchema"), ("Normal", "TableCurrent")]


async def test_a_current_table_says_its_losses_and_what_its_run_adds(rig: Rig) -> None:
    rig.topics.put("Orders", every="1m")
    await rig.step()
    rig.runs.say(good("Orders", lost=2, message="drains do not wait for it"))
    await rig.step()
    said = "5 rows; 2 losses of messages, see gantry table describe Orders; drains do not wait for it"
    assert rig.state("Orders")[1] == State("True", "Current", said)


@pytest.mark.parametrize("words", ["", "the driver ran out of memory"])
async def test_a_run_that_ends_without_a_word_is_a_failure_of_its_tables(rig: Rig, words: str) -> None:
    rig.topics.put("Orders")
    rig.topics.put("Prices")
    await rig.step()
    rig.runs.say(good("Orders"), problem=words)
    await rig.step()
    assert rig.state("Orders")[1].status == "True"
    _, prices = rig.state("Prices")
    assert (prices.status, prices.reason) == ("False", "Failed")
    assert words in prices.message
    assert prices.message


async def test_nothing_starts_while_the_cluster_holds_tables(rig: Rig) -> None:
    rig.topics.put("Orders")
    rig.cluster = TableCluster("demo", Tables(suspend=True), held="spec.tables.suspend of the cluster is true")
    await rig.step()
    assert not rig.runs.orders
    assert rig.state("Orders")[1].reason == "Suspended"
    assert rig.state("Orders")[0].nextRun is None
    rig.cluster = TableCluster("demo", Tables())
    await rig.step()
    assert len(rig.runs.orders) == 1
    rig.cluster = TableCluster("demo", Tables(), held="the cluster hibernates", stop=True)
    await rig.step()
    assert rig.runs.stopped == 1


async def test_what_the_platform_lacks_is_said(rig: Rig) -> None:
    rig.topics.put("Orders")
    rig.runs.refuse = "no image with Spark is known: name one in the operator's chart"
    await rig.step()
    assert rig.state("Orders")[1] == State("Unknown", "NotStarted", rig.runs.refuse)
    rig.runs.refuse = ""
    await rig.step()
    assert rig.state("Orders")[1].reason == "Waiting"


async def test_another_operator_goes_on_with_the_run_and_the_status(rig: Rig) -> None:
    rig.topics.put("Orders", every="1h")
    await rig.step()
    rig.runs.say(TableReport(topic="Orders", reason="SourceFailed", message="no broker answers"))
    await rig.step()
    known = rig.state("Orders")[0]
    rig.topics.put("Orders", every="1h", status=known)
    rig.control = rig.new()
    await rig.step()
    assert rig.state("Orders")[0].failures == 1, "the report was taken before"
    assert len(rig.runs.orders) == 1, "the pause goes on"
    await rig.step(20)
    assert len(rig.runs.orders) == 2


async def test_a_continuous_run_shows_its_progress(rig: Rig) -> None:
    rig.topics.put("Orders", every="Continuous")
    await rig.step()
    assert rig.runs.lasts == [300.0]
    rig.runs.say(good("Orders", rows=1, success_ms=int(rig.now.timestamp() * 1000)), running=True)
    await rig.step(100)
    status, current = rig.state("Orders")
    assert (status.rows, current.status, status.lastSuccess) == (1, "True", "2026-05-01T12:00:01Z")


async def test_two_resources_of_one_topic_have_one_table(rig: Rig) -> None:
    rig.topics.put("Orders")
    other = rig.topics.of["orders"]
    rig.topics.of["zz"] = WantedTopic("zz", "Orders", table=other.table, created="2026-05-02T00:00:00Z")
    rig.topics.of["going"] = WantedTopic("going", "Prices", table=other.table, deleting=True)
    rig.topics.of["plain"] = WantedTopic("plain", "Plain")
    await rig.step()
    assert [[t.topic for t in order] for order in rig.runs.orders] == [["Orders"]]
    assert rig.control.state_of(rig.topics.of["zz"]) is None


async def test_a_table_is_dropped_before_its_resource_goes(rig: Rig) -> None:
    rig.topics.put("Orders", deletionPolicy="Delete", format="Parquet")
    rig.topics.put("Prices")
    assert rig.control.keeps(rig.topics.of["orders"]) == "", "the finalizer is there from the beginning"
    assert rig.control.keeps(rig.topics.of["prices"]) is None
    await rig.step()
    rig.runs.say(good("Orders"), good("Prices"))
    await rig.step()
    rig.topics.of = {n: replace(t, deleting=True) for n, t in rig.topics.of.items()}
    orders = rig.topics.of["orders"]
    await rig.step()
    ((order,),) = rig.runs.orders[1:]
    assert (order.topic, order.format, order.drop) == ("Orders", "Parquet", True)
    rig.runs.say(TableReport(topic="Orders", reason="CatalogFailed", message="the catalog does not answer"))
    await rig.step()
    assert rig.control.keeps(orders) == "the table of Orders is being dropped: the catalog does not answer"
    assert len(rig.runs.orders) == 2, "after a pause"
    await rig.step(20)
    assert len(rig.runs.orders) == 3
    rig.control = rig.new()
    rig.runs.say(TableReport(topic="Orders", reason="Dropped"))
    await rig.step()
    assert rig.control.keeps(orders) is None
    await rig.step(100)
    assert len(rig.runs.orders) == 3


async def test_a_table_that_another_resource_goes_on_with_is_not_dropped(rig: Rig) -> None:
    rig.topics.put("Orders", deletionPolicy="Delete")
    old = rig.topics.of["orders"]
    rig.topics.of["old"] = replace(old, resource="old", deleting=True)
    await rig.step()
    assert not any(order.drop for orders in rig.runs.orders for order in orders)
    assert rig.control.keeps(rig.topics.of["old"]) is None


async def test_a_proposed_schema_is_shown_until_it_is_accepted(rig: Rig) -> None:
    rig.topics.put("Orders", schema="Inferred")
    await rig.step()
    assert not rig.runs.orders[0][0].freeze
    rig.runs.say(
        TableReport(topic="Orders", reason="SchemaProposed", message="fields id", proposed='{"type": "object"}')
    )
    await rig.step()
    status, current = rig.state("Orders")
    assert (status.proposed, current.status, current.reason) == ('{"type": "object"}', "False", "SchemaProposed")
    rig.topics.put("Orders", generation=2, schema="Inferred", freeze=True)
    await rig.step()
    assert rig.runs.orders[1][0].freeze, "at once"
    rig.runs.say(good("Orders"))
    await rig.step()
    assert rig.state("Orders")[0].proposed is None


@pytest.mark.parametrize("seed", range(30))
async def test_random_histories_never_run_two_at_once(seed: int) -> None:
    """`FakeTableRuns.start` refuses a second run; here runs, operators, specs and the platform fail at any moment."""
    chance = random.Random(seed)
    rig = Rig()
    reasons: Callable[[], Any] = lambda: chance.choice(["Current", "Behind", "BadSchema", "Failed"])  # noqa: E731
    for _ in range(200):
        what = chance.random()
        if what < 0.15:
            rig.topics.put(chance.choice("ABC"), chance.randint(1, 3), every=chance.choice(["1s", "1m", "Continuous"]))
        elif what < 0.2 and rig.topics.of:
            del rig.topics.of[chance.choice(list(rig.topics.of))]
        elif what < 0.3:
            rig.control = rig.new()
        elif what < 0.4:
            rig.runs.refuse = chance.choice(["", "", "unreachable", "not now"])
        elif what < 0.8 and rig.runs.run is not None and rig.runs.run.running:
            said = [TableReport(topic=t, reason=reasons()) for t in rig.runs.run.topics if chance.random() < 0.8]
            rig.runs.say(*said, problem=chance.choice(["", "killed"]), running=chance.random() < 0.3)
        await rig.step(chance.choice([0.1, 5, 100]))
    rig.runs.refuse = ""
    rig.topics.put("A", generation=9, every="1s")
    for _ in range(3):
        if rig.runs.run is not None and rig.runs.run.running:
            rig.runs.say(*(good(t) for t in rig.runs.run.topics))
        await rig.step(4000)
    last = rig.runs.orders[-1]
    assert "A" in [t.topic for t in last], "it still works"
