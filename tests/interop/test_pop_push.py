"""The official push consumer of 5.5.0 with `clientRebalance=false`: the broker assigns, and messages come by POP.

The same tests run against Apache RocketMQ 5.5.0 and Gantry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import RequestCode

from benchmarks.rig import gantry, rocketmq
from benchmarks.rig.driver import Driver
from benchmarks.rig.processes import NamespaceUnavailable, until
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.interop.conftest import PATIENCE


@pytest.fixture(scope="module", params=["gantry", "rocketmq"])
def target(
    request: pytest.FixtureRequest, java_side: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp(f"pop-{request.param}")
    if request.param == "gantry":
        with gantry.single(folder) as found:
            yield found
        return
    try:
        with rocketmq.rocketmq(folder, PATIENCE, heap="512m", direct="512m", server="server55") as found:
            yield found
    except NamespaceUnavailable as missing:
        pytest.skip(f"Apache RocketMQ is not compared with here: {missing}")


@pytest.fixture(scope="module")
def driver(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    session = Driver(target, "55", "JSON", tmp_path_factory.mktemp(f"driver-{target.name}") / "driver.log")
    yield session
    session.close()


@pytest.fixture
def topic(driver: Driver, target: Target, fresh: str) -> str:
    """A topic of four queues, which the group `g_TOPIC` consumes by POP, with two retries."""
    made = driver.mqadmin("updateTopic", "-b", target.broker_address, "-t", fresh, "-r", 4, "-w", 4)
    assert "success" in made, made
    config = {"groupName": f"g_{fresh}", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 2}
    with Wire(target.broker_address, prefix=target.prefix) as wire:
        wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config).encode())
    until("the route", lambda: "brokerDatas" in driver.mqadmin("topicRoute", "-t", fresh), 30)
    _set_mode(driver, target, fresh, "POP")
    return fresh


def _set_mode(driver: Driver, target: Target, topic: str, mode: str, share: int = 0) -> None:
    out = driver.mqadmin(
        "setConsumeMode", "-b", target.broker_address, "-t", topic, "-g", f"g_{topic}", "-m", mode, "-q", share
    )
    assert "success" in out, out


def _consume(topic: str, **options: object) -> dict[str, object]:
    return {"topic": topic, "group": f"g_{topic}", "run": topic, "pop": True, "each": True, **options}


def test_every_message_comes_once(driver: Driver, topic: str) -> None:
    sent = driver.run("produce", topic=topic, run=topic, count=300, shards=4)
    assert sent.summary["statuses"] == {"SEND_OK": 300}, sent.errors[:3]
    got = driver.run("consume", **_consume(topic, count=300, timeout_s=40, settle_ms=2000)).summary
    assert (got["unique"], got["repeated"], got["digest"]) == (300, 0, sent.summary["digest"])


def test_acknowledged_messages_do_not_come_again(driver: Driver, topic: str) -> None:
    """A second run of the group gets only what is new."""
    for life in range(2):
        run = f"{topic}-{life}"
        driver.run("produce", topic=topic, run=run, count=50)
        options = _consume(topic, run=run, count=50, timeout_s=40, settle_ms=1500)
        got = driver.run("consume", **options).summary
        assert (got["unique"], got["strangers"]) == (50, 0)


def test_two_members_share(driver: Driver, topic: str) -> None:
    both = [driver.start("consume", **_consume(topic, count=200, timeout_s=12)) for _ in range(2)]
    for one in both:
        one.wait_for("started")
    time.sleep(3)
    driver.run("produce", topic=topic, run=topic, count=200, shards=4)
    results = [one.finish() for one in both]
    mine = [[line["n"] for line in result.of("message")] for result in results]
    assert sorted([*mine[0], *mine[1]]) == list(range(200))
    assert all(mine), "each member got some"


def test_tags(driver: Driver, topic: str) -> None:
    driver.run("produce", topic=topic, run=topic, count=60, tags="red,green,blue")
    got = driver.run("consume", **_consume(topic, count=20, expr="blue", timeout_s=40))
    assert {line["tags"] for line in got.of("message")} == {"blue"}
    assert got.summary["unique"] == 20


def test_a_failed_message_comes_again(driver: Driver, topic: str) -> None:
    """Under its own topic, and with the number of its attempts."""
    driver.run("produce", topic=topic, run=topic, count=5)
    options = _consume(topic, count=5, fail=1, min_received=10, timeout_s=60, settle_ms=500)
    got = driver.run("consume", **options)
    assert got.summary["unique"] == 5
    assert got.summary["received"] >= 10
    tries: dict[int, list[int]] = {}
    for line in got.of("message"):
        assert line["topic"] == topic
        tries.setdefault(line["n"], []).append(line["reconsume"])
    assert all(found[:2] == [0, 1] for found in tries.values()), tries


def test_dead_letters(driver: Driver, target: Target, topic: str) -> None:
    """After the group's two retries. 5.5.0's broker makes none: its proxy does."""
    driver.run("produce", topic=topic, run=topic, count=2)
    options = _consume(topic, count=2, fail=100, min_received=6, timeout_s=60, settle_ms=4000)
    got = driver.run("consume", **options)

    def dead() -> int:
        with Wire(target.broker_address, prefix=target.prefix) as wire:
            return wire.offsets(f"%DLQ%g_{topic}", 0)[1]

    if target.name == "rocketmq":
        assert (got.summary["received"] >= 6, dead()) == (True, 0)
        return
    assert got.summary["received"] == 6
    until("two dead letters", lambda: dead() == 2, 30)


def test_the_mode_changes_while_members_run(driver: Driver, target: Target, topic: str) -> None:
    """From POP to pulling and back: nothing is lost."""
    consumer = driver.start("consume", **_consume(topic, count=90, timeout_s=60, settle_ms=1500))
    consumer.wait_for("started")
    for number, mode in enumerate(("POP", "PULL", "POP")):
        _set_mode(driver, target, topic, mode)
        time.sleep(3)
        driver.run("produce", topic=topic, run=topic, first=30 * number, count=30, shards=4)
    assert consumer.finish().summary["unique"] == 90


def test_progress(driver: Driver, target: Target, topic: str) -> None:
    driver.run("produce", topic=topic, run=topic, count=40, shards=4)
    driver.run("consume", **_consume(topic, count=40, timeout_s=40, settle_ms=2500))

    def behind() -> bool:
        shown = driver.mqadmin("consumerProgress", "-g", f"g_{topic}")
        rows = [line.split() for line in shown.splitlines() if line.startswith(topic)]
        return len(rows) == 4 and all(row[3] == row[4] for row in rows)

    until("no message is left", behind, 30)
