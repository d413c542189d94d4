"""The official `mqadmin` against both systems."""

from __future__ import annotations

import json
import re

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target


def _topic(driver: Driver, target: Target, name: str, queues: int = 4) -> None:
    out = driver.mqadmin("updateTopic", "-t", name, "-c", target.cluster, "-r", queues, "-w", queues)
    assert f"create topic to {target.broker_address} success" in out


def test_cluster_list(driver: Driver, target: Target) -> None:
    out = driver.mqadmin("clusterList")
    row = next(line.split() for line in out.splitlines() if line.startswith(target.cluster + " "))
    assert row[1:4] == [target.broker_name, "0", target.broker_address]
    assert row[4].startswith("V4_9"), "mqadmin shows the version that the broker registers"


def test_topic_list(driver: Driver, target: Target, fresh: str) -> None:
    _topic(driver, target, fresh)
    listed = driver.mqadmin("topicList").split()
    assert fresh in listed
    # The cluster and the broker are registered as topics: tools ask for their routes.
    assert {target.cluster, target.broker_name, "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(listed)


def test_topic_route(driver: Driver, target: Target, fresh: str) -> None:
    _topic(driver, target, fresh, 6)
    out = driver.mqadmin("topicRoute", "-t", fresh)
    route = json.loads(re.sub(r"(\d+):\"", r'"\1":"', out[out.index("{") :]))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": target.broker_address}
    assert route["brokerDatas"][0]["cluster"] == target.cluster
    queue = route["queueDatas"][0]
    assert (queue["brokerName"], queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (
        target.broker_name, 6, 6, 6,
    )  # fmt: skip


def test_topic_status(driver: Driver, target: Target, fresh: str) -> None:
    _topic(driver, target, fresh)
    driver.run("produce", topic=fresh, count=40, shards=4, threads=4)
    out = driver.mqadmin("topicStatus", "-t", fresh)
    rows = [line.split() for line in out.splitlines() if line.startswith(target.broker_name)]
    assert [(row[1], row[2], row[3]) for row in rows] == [(str(q), "0", "10") for q in range(4)]


def test_broker_status(driver: Driver, target: Target, fresh: str) -> None:
    driver.run("produce", topic=fresh, count=10)
    out = driver.mqadmin("brokerStatus", "-b", target.broker_address)
    values = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    found = {key.strip(): value.strip() for key, value in values.items()}
    for key in ("bootTimestamp", "brokerVersionDesc", "commitLogMaxOffset", "commitLogMinOffset", "putTps",
                "getFoundTps", "msgPutTotalTodayNow", "putMessageTimesTotal", "runtime"):  # fmt: skip
        assert key in found, f"{key} is missing in {sorted(found)}"
    assert int(found["commitLogMaxOffset"]) > 0
    assert int(found["putMessageTimesTotal"]) > 0
