"""A full disk: the broker refuses writes with a clear code, serves reads, and accepts writes when there is space."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import RequestCode, ResponseCode

from benchmarks.rig import gantry
from benchmarks.rig.target import Target
from benchmarks.rig.wire import Refused, Wire, read_topic

DISK = 24 * 2**20
BALLAST = 8 * 2**20
BODY = 16_000


@pytest.fixture
def disk(small_disk: Callable[[Path, int], Path], tmp_path: Path) -> Path:
    return small_disk(tmp_path / "demo-a-0", DISK)


@pytest.fixture
def target(disk: Path, tmp_path: Path) -> Iterator[Target]:
    settings = {"mappedFileSizeCommitLog": 4 * 2**20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    (disk / "ballast").write_bytes(bytes(BALLAST))
    with gantry.single(tmp_path, settings) as running:
        yield running


def _send(broker: Wire, number: int) -> None:
    broker.call(
        RequestCode.SEND_MESSAGE,
        {
            "producerGroup": "p", "topic": "full", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "",
            "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        },
        f"full#{number}#".encode().ljust(BODY, b"x"),
    )  # fmt: skip


def _numbers(target: Target) -> list[int]:
    return [int(record.body.split(b"#")[1]) for record in read_topic(target.namesrv, "full")]


@pytest.mark.timeout(120)
def test_full_disk(target: Target, disk: Path) -> None:
    acknowledged: list[int] = []
    number = 0
    with Wire(target.broker_address) as broker:
        refusal: Refused | None = None
        while refusal is None:
            assert number < DISK // BODY, "the disk never filled up"
            try:
                _send(broker, number)
                acknowledged.append(number)
            except Refused as error:
                refusal = error
            number += 1
        assert len(acknowledged) > 100
        # RocketMQ's code for a store that cannot write; the remark has the reason.
        assert refusal.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR), refusal
        assert "disk" in str(refusal).lower(), refusal
        for _ in range(20):
            with pytest.raises(Refused):
                _send(broker, number)
            number += 1
        assert _numbers(target) == acknowledged, "all that was acknowledged, and nothing else, is read"
        (disk / "ballast").unlink()
        deadline = time.monotonic() + 30
        while True:
            try:
                _send(broker, number)
                acknowledged.append(number)
                break
            except Refused:
                assert time.monotonic() < deadline, "there is room again, but nothing is stored"
                time.sleep(0.2)
            finally:
                number += 1
        _send(broker, number)
        acknowledged.append(number)
    assert _numbers(target) == acknowledged
