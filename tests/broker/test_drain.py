"""What a broker group still holds, its marks, and the topics that it gets from others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from gantry_broker.broker.http.configs import add_configs, all_configs, mark
from gantry_broker.broker.http.drain import DrainReports
from gantry_broker.broker.metadata import snapshots
from gantry_broker.broker.metadata.tables import Metadata, Tables
from gantry_broker.contracts.models import ConfigsRequest, DrainReport, MarksRequest
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import ConsumerData, Heartbeat, SubscriptionData, SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import TABLE_GROUP_PREFIX, RequestCode, ResponseCode

from tests.support.running import until

MakeBench = Callable[..., Any]


def beat(bench: Any, group: str, *topics: str, model: str = "CLUSTERING", kind: str = "CONSUME_PASSIVELY") -> Any:
    data = ConsumerData(group, kind, model, "CONSUME_FROM_FIRST_OFFSET", [SubscriptionData(t, "*") for t in topics])
    body = fastjson.dumps(Heartbeat(f"client-of-{group}", [], [data]).to_json())
    return bench.ask(RequestCode.HEART_BEAT, body=body)


async def report_of(bench: Any) -> DrainReport:
    return await DrainReports(bench.broker).report()


async def settled(bench: Any) -> DrainReport:
    """A report of one confirmed state."""
    for _ in range(1_000):
        report = await report_of(bench)
        if report.settled:
            return report
        await asyncio.sleep(0.01)
    raise AssertionError(f"never settled: {report}")


async def test_a_clock_that_is_set_forward_ends_no_retention(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is removed once all that is unread is beyond its retention: not because the clock says so for a while."""
    await bench.send(b"unread")
    reports, wall = DrainReports(bench.broker), bench.broker.clock.unix_ms
    before = await reports.report()
    monkeypatch.setattr(bench.broker.clock, "unix_ms", lambda: wall() + 30 * 86_400_000)
    after = await reports.report()
    assert after.now_ms - before.now_ms < 3_600_000
    assert after.now_ms < after.newest_ms + after.retention_ms


async def test_unread_messages_are_counted_by_consumer_group(bench: Any) -> None:
    before = int(time.time() * 1000)
    for number in range(5):
        await bench.send(b"%d" % number)
    report = await settled(bench)
    (row,) = report.unread
    assert (row.topic, row.consumer_group, row.messages) == ("T", "", 5)
    assert report.newest_ms >= (row.oldest_ms or 0) >= before
    await beat(bench, "g", "T")
    bench.broker.changes.append({"groups": [SubscriptionGroup("away").to_json()]})
    for group, offset in (("g", 3), ("away", 5)):
        bench.broker.meta.commit_offset("T", group, 0, offset)
    report = await settled(bench)
    (row,) = report.unread
    assert (row.consumer_group, row.messages, row.connected, row.broadcast) == ("g", 2, True, False)
    assert (report.unread_messages, report.unread_topics, report.unread_consumer_groups) == (2, 1, 1)
    bench.broker.meta.commit_offset("T", "g", 0, 5)
    assert (await settled(bench)).unread == []


async def test_consumer_groups_that_left_the_topic_or_are_deleted_do_not_count(bench: Any) -> None:
    await bench.send(b"x")
    await beat(bench, "left", "Other")
    await beat(bench, "reads", "T")
    for group, offset in (("left", 0), ("reads", 1), ("deleted", 0)):
        bench.broker.meta.commit_offset("T", group, 0, offset)
    assert (await settled(bench)).unread == []
    await beat(bench, "all", "T", model="BROADCASTING")
    (row,) = (await settled(bench)).unread
    assert (row.consumer_group, row.broadcast) == ("all", True)


async def test_a_table_counts_by_its_offsets_until_its_group_is_deleted(make_bench: MakeBench) -> None:
    """No client of its group ever connects, and no one creates it."""
    bench = make_bench(settings={"autoCreateSubscriptionGroup": False})
    await bench.lead()
    await bench.send(b"x")
    await bench.send(b"y")
    group = f"{TABLE_GROUP_PREFIX}rocketmq_T"

    async def ask(code: int, **fields: str) -> None:
        assert (await bench.ask(code, fields)).code == ResponseCode.SUCCESS

    commit = {"consumerGroup": group, "topic": "T", "queueId": "0"}
    await ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="1", **commit)
    (row,) = (await settled(bench)).unread
    assert (row.consumer_group, row.messages, row.connected) == (group, 1, False)
    await ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="2", **commit)
    assert (await settled(bench)).unread == []
    await ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, removeOffset="true")
    (row,) = (await settled(bench)).unread
    assert (row.consumer_group, row.messages) == ("", 2)


async def test_consumers_that_pull_or_disagree_may_read_more_than_they_subscribe_to(bench: Any) -> None:
    await bench.send(b"x")
    await beat(bench, "pulls", kind="CONSUME_ACTIVELY")
    await beat(bench, "rolls", "T", "Other")
    bench.wire = type(bench.wire)(40_001)  # Another member.
    await beat(bench, "rolls", "Other")
    for group in ("pulls", "rolls"):
        bench.broker.meta.commit_offset("T", group, 0, 0)
    assert [row.consumer_group for row in (await settled(bench)).unread] == ["pulls", "rolls"]


async def test_nothing_is_proved_while_a_new_leader_reads_what_pop_consumers_have(bench: Any) -> None:
    await settled(bench)
    bench.broker.pop._log.ready.clear()
    assert not (await report_of(bench)).settled
    bench.broker.pop._log.ready.set()
    assert (await report_of(bench)).settled


async def test_a_message_whose_time_cannot_be_read_is_not_beyond_its_retention(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.send(b"x")
    await settled(bench)
    monkeypatch.setattr(bench.store.reader, "store_time", lambda *_: -1)
    report = await report_of(bench)
    assert report.newest_ms > 0
    assert report.unread_messages == 1


async def test_delayed_timed_and_half_messages_and_dead_letters_are_counted(make_bench: MakeBench) -> None:
    bench = make_bench(settings={"messageDelayLevel": "1h"})
    await bench.lead()
    due = int(time.time() * 1000) + 7_200_000
    await bench.send(b"x", properties="DELAY\x011")
    await bench.send(b"x", properties=f"TIMER_DELIVER_MS\x01{due}")
    await bench.send(b"x", properties="TRAN_MSG\x01true\x02PGROUP\x01PG", sysFlag=4)
    await bench.send(b"x", topic="%DLQ%g")
    report = await settled(bench)
    assert (report.delayed, report.timers, report.half, report.dead_letters) == (1, 1, 1, 1)
    assert abs(report.timers_until_ms - due) < 60_000
    bench.broker.meta.commit_offset("%DLQ%g", "resend", 0, 1)
    bench.broker.changes.append({"groups": [SubscriptionGroup("resend").to_json()]})
    assert (await settled(bench)).dead_letters == 0


async def test_a_closing_group_takes_sends_and_a_closed_one_refuses_them(make_bench: MakeBench) -> None:
    bench = make_bench(settings={"messageDelayLevel": "1s"})
    await bench.lead()
    await bench.send(b"x", properties="DELAY\x011")

    def routed() -> Any:
        return fastjson.loads(bench.broker.registrar.body())["topicConfigSerializeWrapper"]

    version = routed()["dataVersion"]
    await mark(bench.broker, MarksRequest(drain="closing"))
    assert routed()["topicConfigTable"]["T"]["perm"] == 4
    assert routed()["dataVersion"] != version, "NameServers take a permission over with a new version only"
    assert (await bench.ask(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x")).code == ResponseCode.SUCCESS
    await mark(bench.broker, MarksRequest(drain="closed"))
    for topic in ("T", "New"):
        answer = await bench.ask(RequestCode.SEND_MESSAGE_V2, bench.send_ext(topic), b"x")
        assert answer.code == ResponseCode.NO_PERMISSION
    await until(lambda: bench.store.reader.max_offset("T", 0) == 2)  # The delayed one is delivered.
    assert (await settled(bench)).drain == "closed"
    await mark(bench.broker, MarksRequest(drain=""))
    assert routed()["topicConfigTable"]["T"]["perm"] == 6
    assert (await bench.ask(RequestCode.SEND_MESSAGE_V2, bench.send_ext(), b"x")).code == ResponseCode.SUCCESS


async def test_marks_survive_a_restart_and_a_copy_of_the_tables(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    await bench.lead()
    await mark(bench.broker, MarksRequest(drain="closed", joined=True))
    meta: Metadata = bench.broker.meta
    copy = Tables()
    for change in meta.working.all_changes(0):
        copy.apply(change)
    assert copy.marks == meta.working.marks == {"drain": "closed", "joined": "yes"}
    snapshots.write(bench.config.data_dir / "config", snapshots.render(meta, bench.store.epoch_cache.epochs))
    await bench.close()
    again = make_bench(tmp_path)
    again.broker.replay.start(again.config.data_dir / "config")
    assert again.broker.meta.confirmed.marks == {"drain": "closed", "joined": "yes"}
    await again.lead()
    await mark(again.broker, MarksRequest(drain="", joined=False))
    assert again.broker.meta.working.marks == {}
    await again.close()


async def test_configurations_are_added_and_never_changed(bench: Any) -> None:
    await bench.send(b"x")
    asked = ConfigsRequest(
        topics=[TopicConfig("T", 9, 9).to_json(), TopicConfig("U", 3, 3, 4, attributes={"a": "b"}).to_json()],
        groups=[SubscriptionGroup("g", retry_max_times=2).to_json()],
    )
    assert (await add_configs(bench.broker, asked)).topics == 1
    assert (await add_configs(bench.broker, asked)).topics == 0
    known = fastjson.loads(await all_configs(bench.broker))
    topics = {t["topicName"]: t for t in known["topics"]}
    assert topics.keys() == {"T", "U"}, "system topics stay with the brokers"
    assert topics["T"]["writeQueueNums"] != 9
    assert (topics["U"]["writeQueueNums"], topics["U"]["perm"], topics["U"]["attributes"]) == (3, 4, {"a": "b"})
    assert [(g["groupName"], g["retryMaxTimes"]) for g in known["groups"]] == [("g", 2)]
    for wrong in ({"topicName": "bad name"}, {"topicName": "Q", "writeQueueNums": 0}, {"topicName": "TBW102"}):
        with pytest.raises(HTTPException):
            await add_configs(bench.broker, ConfigsRequest(topics=[wrong]))


async def test_a_follower_takes_no_changes(make_bench: MakeBench) -> None:
    bench = make_bench()
    await bench.broker.replication.start()
    with pytest.raises(HTTPException):
        await mark(bench.broker, MarksRequest(drain="closing"))
    report = await report_of(bench)
    assert not report.leading
    assert not report.settled
