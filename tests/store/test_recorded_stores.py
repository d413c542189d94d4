"""Stores of real brokers: a copy opens, and reads by queue offset, key and id return every message."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import GetStatus
from gantry_broker.protocol.message import decode_record, pack_host, parse_message_id
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.unpacking import unpack as unpack_archive

DATA = Path(__file__).parent.parent / "data" / "stores"
NAMES = ["49-clean", "49-running", "5x-clean", "5x-running"]
FOREVER = 10**15


def unpack(name: str, target: Path) -> Path:
    unpack_archive(DATA / f"{name}.tar.gz", target)
    return target / name.partition("-")[2]


def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / f"{name[:2]}-manifest.json").read_bytes())
    return loaded


def check_all(store: MessageStore, name: str) -> None:
    recorded = manifest(name)
    records = recorded["stores"][name.partition("-")[2]]["records"]
    assert records
    for expected in records:
        phys, topic = expected["physicOffset"], expected["topic"]
        record = store.reader.record(phys)
        assert (record.topic, record.queue_id, record.queue_offset, record.size) == (
            topic,
            expected["queueId"],
            expected["queueOffset"],
            expected["size"],
        )
        assert record.props == expected["properties"]
        assert hashlib.sha256(record.payload()).hexdigest() == expected["bodySha256"]
        got = store.reader.get(topic, record.queue_id, record.queue_offset, 1, 1)
        assert got.status == GetStatus.FOUND
        assert got.data == record.encode()
        assert store.reader.store_time(topic, record.queue_id, record.queue_offset) == expected["storeTimestamp"]
        if expected["uniqKey"]:
            found = store.reader.query(topic, expected["uniqKey"], 64, 0, FOREVER, unique=True)
            assert phys in [r.phys_offset for r in found]
        for key in (expected["keys"] or "").split():
            assert phys in [r.phys_offset for r in store.reader.query(topic, key, 64, 0, FOREVER)]
    assert [r.phys_offset for r in store.reader.walk(0)] == [r["physicOffset"] for r in records]
    assert store.log.end == records[-1]["physicOffset"] + records[-1]["size"]


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_read_back_by_queue_offset_key_and_id(name: str, quick_dir: Path) -> None:
    root = unpack(name, quick_dir)
    store = MessageStore.open(StoreConfig(root))
    assert store.state.was_clean == name.endswith("clean")
    assert store.state.damage is None
    assert store.state.confirmed == store.log.end
    assert store.epoch_cache.epochs == ((0, 0),)
    check_all(store, name)
    sent = [one for one in manifest(name)["sent"] if one["offsetMsgId"] and one["status"] == "SEND_OK"]
    assert len(sent) > 50
    for one in sent:
        # The answer to a batch has the ids of all its messages.
        for message_id in one["offsetMsgId"].split(","):
            _, port, phys = parse_message_id(message_id)
            assert port == 10911
            record = store.reader.record(phys)
            # The id of a transaction is that of its half message.
            assert record.topic in (one["topic"], "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
            if "," not in one["offsetMsgId"] and record.topic == one["topic"]:
                assert hashlib.sha256(record.payload()).hexdigest() == one["bodySha256"]
                assert (record.queue_id, record.queue_offset) == (one["queueId"], one["queueOffset"])
    store.close()
    again = MessageStore.open(StoreConfig(root))
    assert again.state.was_clean
    assert again.epoch_cache.epochs == ((0, 0),)
    check_all(again, name)
    again.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", ["consumequeue", "index", "both", "config"])
def test_queues_and_index_are_rebuilt_from_the_log(name: str, lost: str, quick_dir: Path) -> None:
    root = unpack(name, quick_dir)
    for part in ("consumequeue", "index") if lost == "both" else (lost,):
        shutil.rmtree(root / part)
    store = MessageStore.open(StoreConfig(root))
    check_all(store, name)
    store.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_store_continues_as_ours(name: str, quick_dir: Path) -> None:
    root = unpack(name, quick_dir)
    before = {path: path.read_bytes() for path in (root / "consumequeue").rglob("0*") if path.is_file()}
    store = MessageStore.open(StoreConfig(root))
    assert store.log.segment_size == 1 << 20
    number = store.reader.max_offset("LabTopic", 0)
    epoch = store.appender.begin_epoch(1, b"", 10**13)
    puts = [
        Put("LabTopic", 0, 0, 0, 1, pack_host("1.2.3.4", 5), b"new", b"KEYS\x01ours\x02", keys=("ours",)),
        Put("LabTopic", 0, 0, 0, 1, pack_host("1.2.3.4", 5), b"x" * 400_000, b""),
    ]
    stored = store.appender.put(puts * 3, 10**13)
    assert [s.queue_offset for s in stored] == list(range(number, number + 6))
    assert store.log.end > 1 << 20
    store.indexer.confirm(store.log.end)
    store.close(clean=False)
    store = MessageStore.open(StoreConfig(root))
    assert store.epoch_cache.epochs == ((0, 0), (1, epoch.phys_offset))
    store.indexer.confirm(store.log.end)
    assert len(store.reader.query("LabTopic", "ours", 9, 0, FOREVER)) == 3
    assert decode_record(store.reader.get("LabTopic", 0, number, 1, 1).data).body == b"new"
    # The files keep their sizes and their content.
    for path, data in before.items():
        now = path.read_bytes()
        assert len(now) == len(data)
        assert now.startswith(data.rstrip(b"\0"))
    assert {p.stat().st_size for p in (root / "commitlog").iterdir()} == {1 << 20}
    store.close()


@pytest.mark.parametrize("name", NAMES)
def test_recovery_truncates_a_recorded_store_at_the_first_damaged_record(name: str, quick_dir: Path) -> None:
    root = unpack(name, quick_dir)
    (root / "abort").touch()
    records = manifest(name)["stores"][name.partition("-")[2]]["records"]
    victim = records[80]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim["physicOffset"] + 88)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes((byte[0] ^ 1,)))
    store = MessageStore.open(StoreConfig(root))
    assert store.log.end == store.state.confirmed == victim["physicOffset"]
    assert [r.phys_offset for r in store.reader.walk(0)] == [r["physicOffset"] for r in records[:80]]
    for topic, queues in store.queues.topics_queues().items():
        for queue_id in queues:
            kept = [r for r in records[:80] if (r["topic"], r["queueId"]) == (topic, queue_id)]
            assert store.reader.max_offset(topic, queue_id) == len(kept)
    if victim["uniqKey"]:
        found = store.reader.query(victim["topic"], victim["uniqKey"], 9, 0, FOREVER)
        assert victim["physicOffset"] not in [r.phys_offset for r in found]
    store.close()


def test_an_existing_store_keeps_its_sizes_under_other_settings(quick_dir: Path) -> None:
    root = unpack("49-clean", quick_dir)
    settings = BrokerSettings(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=2_000, maxHashSlotNum=4_242)
    store = MessageStore.open(StoreConfig(root, settings))
    check_all(store, "49-clean")
    store.close()
