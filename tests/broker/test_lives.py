"""A broker over several lives: restarts, foreign stores, flush modes, demotions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from gantry_broker.broker.metadata import changes, snapshots
from gantry_broker.broker.process import BrokerProcess
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.message import decode_records

from tests.support.unpacking import unpack

STORES = Path(__file__).parent.parent / "data" / "stores"
MakeBench = Callable[..., Any]


@pytest.mark.parametrize(
    "options", [{"flush": "Sync"}, {"replication": "Async"}, {"replication": "Async", "flush": "Sync"}]
)
async def test_sends_are_answered_in_every_mode(make_bench: MakeBench, options: dict[str, str]) -> None:
    made = make_bench(**options)
    await made.lead()
    answers = [await made.send(b"%d" % n) for n in range(5)]
    assert [a.code for a in answers] == [0] * 5
    if options.get("flush") == "Sync":
        assert made.store.state.flushed == made.store.log.end
    await made.close()


async def test_a_restart_goes_on_with_topics_groups_offsets_and_queue_numbers(make_bench: MakeBench) -> None:
    first = make_bench()
    await first.lead()
    for number in range(3):
        await first.send(b"%d" % number, queueId=number % 2)
    await first.ask(15, {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 2})
    first.broker.changes.flush_offsets()
    snapshots.write(
        first.config.data_dir / "config", snapshots.render(first.broker.meta, first.store.epoch_cache.epochs)
    )
    await first.send(b"after the snapshot", "Late")
    await first.close()
    second = make_bench()
    second.broker.replay.start(second.config.data_dir / "config")
    await second.lead()
    assert {"T", "Late"} <= set(second.broker.meta.working.topics)
    assert (await second.ask(14, {"consumerGroup": "G", "topic": "T", "queueId": 0})).ext == {"offset": "2"}
    assert (await second.send(b"next")).ext["queueOffset"] == "2"
    await second.close()


async def test_tables_can_be_built_from_the_log_alone(make_bench: MakeBench) -> None:
    made = make_bench()
    await made.lead()
    await made.send(b"x", "Made")
    await made.ask(15, {"consumerGroup": "G", "topic": "Made", "queueId": 1, "commitOffset": 7})
    made.broker.changes.flush_offsets()
    before = made.broker.meta.confirmed.copy()
    made.broker.meta.follow()
    made.broker.replay.rebuild()
    assert made.broker.meta.confirmed.topics == before.topics
    assert made.broker.meta.confirmed.offsets == before.offsets
    await made.close()


async def test_a_demotion_undoes_unconfirmed_records(make_bench: MakeBench) -> None:
    made = make_bench(min_in_sync=2)
    await made.broker.replication.start()
    me, other = made.broker.replication.me, MemberId(1, "other")
    leadership = LeadershipRecord(1, 1, me, frozenset({me, other}))
    await made.broker.replication.assign(Assignment(leadership, "127.0.0.1:10911"))
    frame = made.frame(310, made.send_ext("Unsure"), b"x")
    made.give(frame)
    made.broker.meta.commit_offset("Unsure", "G", 0, 5)
    assert "Unsure" in made.broker.meta.working.topics
    await made.broker.replication.assign(
        Assignment(LeadershipRecord(2, 2, other, frozenset({me, other})), "127.0.0.1:1")
    )
    assert (await made.answer(frame.opaque)).code == 12, "rule 10: FLUSH_SLAVE_TIMEOUT before anything else"
    assert "Unsure" not in made.broker.meta.working.topics
    assert made.broker.meta.working.offset("Unsure", "G", 0) == -1
    assert (await made.send(b"y")).code == 14
    await made.close()


@pytest.mark.parametrize("version", ["49", "5x"])
async def test_a_store_of_rocketmq_goes_on_here(make_bench: MakeBench, tmp_path: Path, version: str) -> None:
    path = tmp_path / f"from-{version}"
    unpack(STORES / f"{version}-clean.tar.gz", path)
    (path / "clean").rename(path / "store")
    made = make_bench(path)
    made.broker.replay.start(made.config.data_dir / "config")
    await made.lead()
    manifest = orjson.loads((STORES / f"{version}-manifest.json").read_bytes())
    sent = next(s for s in manifest["sent"] if s["topic"] == "LabTopic")
    ext = made.pull_ext("LabTopic", int(sent["queueOffset"]), queueId=sent["queueId"])
    assert decode_records((await made.ask(11, ext)).body)[0].uniq_key == sent["msgId"]
    offset = await made.ask(14, {"consumerGroup": "CG_cluster", "topic": "LabTopic", "queueId": 0})
    assert int(offset.ext["offset"]) > 0
    high = int((await made.ask(30, {"topic": "LabTopic", "queueId": 1})).ext["offset"])
    assert (await made.send(b"new", "LabTopic", queueId=1)).ext["queueOffset"] == str(high)
    await made.close()


async def test_a_producer_that_does_not_wait_is_answered_once_its_message_is_stored(make_bench: MakeBench) -> None:
    made = make_bench(min_in_sync=2)
    await made.broker.replication.start()
    me, other = made.broker.replication.me, MemberId(1, "other")
    await made.broker.replication.assign(
        Assignment(LeadershipRecord(1, 1, me, frozenset({me, other})), "127.0.0.1:10911")
    )
    assert (await made.send(b"x", properties="WAIT\x01false")).code == 0
    waiting = made.frame(310, made.send_ext(), b"waits")
    content = [
        made.frame(310, made.send_ext(properties=f"K\x011\x02WAIT\x01{word}\x02"), b"y") for word in ("false", "no")
    ]
    made.give(waiting, *content)
    assert [(await made.answer(f.opaque, 1)).code for f in content] == [0, 0]
    assert [int((await made.answer(f.opaque, 1)).ext["queueOffset"]) for f in content] == [2, 3]
    assert not [f for f in made.wire.frames if f.opaque == waiting.opaque], "the other one's promise is not kept yet"
    pulled = await made.ask(11, made.pull_ext())
    assert pulled.code != 0, "no reader sees a record before it is confirmed"
    await made.close()


@pytest.mark.parametrize("slice_s", [changes.SLICE_S, 0.0], ids=["at once", "in parts"])
async def test_a_full_copy_replaces_the_tables(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """What was deleted in the part of the log that a member never gets would come back once it leads."""
    monkeypatch.setattr(changes, "SLICE_S", slice_s)
    master = make_bench(tmp_path / "a")
    away = make_bench(tmp_path / "b", member=1, name="demo-a-1")
    await master.lead()
    await away.broker.replication.start()
    source, copy = master.broker.replication._log, away.broker.replication._log

    def catch_up() -> None:
        while copy.end < source.end:
            copy.append_raw(copy.end, bytes(source.read_raw(copy.end, 1 << 18)))
        copy.confirm(source.confirmed)

    both = [TopicConfig(name, 4, 4, 6).to_json() for name in ("Gone", "Stays")]
    master.broker.changes.append({"topics": both})
    master.broker.changes.append({"groups": [SubscriptionGroup("GoneGroup").to_json()]})
    master.broker.changes.append({"offsets": {"Gone@GoneGroup": {"0": 5}}})
    master.broker.changes.append({"settings": {"brokerPermission": ["4", "6"]}})
    catch_up()
    assert away.broker.settings.brokerPermission == 4
    master.broker.changes.append({"dropTopics": ["Gone"]})
    master.broker.changes.append({"dropGroups": ["GoneGroup"], "dropOffsets": ["Gone@GoneGroup"]})
    master.broker.changes.append({"dropSettings": ["brokerPermission"]})
    parts = 0
    for number in range(25):
        await master.send(b"x" * 100_000, "Stays")
        master.broker.changes.append({"offsets": {"Stays@Group": {"1": number}}})
        parts += master.broker.changes.write_tables()
    assert (parts > 10) == (slice_s == 0.0)
    master.store.retention.remove_before(1 << 20)
    copy.reset(source.start, source.leader_epochs, source.reset_state())
    catch_up()
    here, there = away.broker.meta.confirmed, master.broker.meta.confirmed
    assert set(here.topics) == set(there.topics)
    assert set(here.groups) == set(there.groups)
    assert (here.offsets, here.settings) == (there.offsets, there.settings)
    assert away.broker.settings.brokerPermission == master.broker.settings.brokerPermission == 6
    await away.close()
    await master.close()


async def test_tables_of_a_log_that_was_given_up_do_not_come_back_after_a_crash(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    """Their snapshot lies on the disk still, and the log that took the place of the other one is as long."""
    master, away = make_bench(tmp_path / "a"), make_bench(tmp_path / "b", member=1, name="demo-a-1")
    for made in (away, master):
        await made.lead()
    copy, source = away.broker.replication._log, master.broker.replication._log
    away.broker.changes.append({"topics": [TopicConfig("GivenUp", 4, 4, 6).to_json()]})
    snapshots.write(away.config.data_dir / "config", snapshots.render(away.broker.meta, away.store.epoch_cache.epochs))
    leader = master.broker.replication.me
    await master.broker.replication.assign(
        Assignment(LeadershipRecord(2, 2, leader, frozenset({leader})), "127.0.0.1:1")
    )
    master.broker.changes.append({"topics": [TopicConfig("Stays", 4, 4, 6).to_json()]})
    for number in range(5):
        await master.send(b"%d" % number, "Stays")
    copy.truncate(0)
    copy.append_raw(0, bytes(source.read_raw(0, 1 << 20)))
    copy.confirm(source.confirmed)
    assert set(away.broker.meta.confirmed.topics) == set(master.broker.meta.confirmed.topics)
    config = away.config
    await away.close()
    await master.close()
    process = BrokerProcess(config.model_copy(update={"port": 0, "http_port": 0, "listen_host": "127.0.0.1"}))
    process.broker.replay.start(process.config.data_dir / "config")
    assert {"GivenUp", "Stays"} & set(process.broker.meta.confirmed.topics) == {"Stays"}
    process.store.close()
