"""Messages that are on their way to a topic: a topic that is to be deleted waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.broker.http import undelivered
from gantry_broker.broker.http.undelivered import UndeliveredMessages
from gantry_broker.contracts.models import MAX_UNDELIVERED
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import TRANS_HALF_TOPIC, Perm, RequestCode, ResponseCode
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.types import Confirmed

from tests.support.running import until

MakeBench = Callable[..., Any]
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1"
NAMES = ("T", "Half", "Level", "Time", "Calm")


async def of(bench: Any, *topics: str) -> dict[str, str]:
    return dict(await UndeliveredMessages(bench.broker).of(topics or NAMES))


async def close(bench: Any, *topics: str) -> None:
    """The topics take no more messages."""
    rows = [TopicConfig(name, 1, 1, Perm.READ).to_json() for name in topics or NAMES]
    await bench.broker.changes.append_and_wait({"topics": rows})


async def test_each_way_of_waiting_is_found_and_ends(make_bench: MakeBench) -> None:
    bench = make_bench(settings={"messageDelayLevel": "2s"})
    await bench.lead()
    await bench.broker.transactions.loaded.wait()
    for name in NAMES:
        await bench.send(b"x", topic=name)
    due = int(time.time() * 1000) + 2_500
    await bench.send(b"a body with REAL_TOPIC\x01Calm", topic="Level", properties="DELAY\x011")
    await bench.send(b"x", topic="Time", properties=f"TIMER_DELIVER_MS\x01{due}")
    await bench.send(b"x", topic="Half", properties=HALF, sysFlag=4)
    await bench.send(b"x", topic="Calmer", properties="DELAY\x011")
    await until(lambda: bench.broker.transactions.undecided == 1)
    assert set((await of(bench)).values()) == {"unknown"}, "they still take messages"
    await close(bench)
    look = UndeliveredMessages(bench.broker)
    waiting = {"T": "none", "Half": "half", "Level": "delayed", "Time": "delayed", "Calm": "none"}
    assert await look.of(NAMES) == waiting
    assert await look.of(("Gone", *NAMES)) == {"Gone": "none"} | waiting, "from what it remembers"
    await until(
        lambda: bench.store.reader.max_offset("Time", 0) == 2 and bench.store.reader.max_offset("Level", 0) == 2
    )
    assert await look.of(NAMES) == dict.fromkeys(NAMES, "none") | {"Half": "half"}
    [half] = decode_records((await bench.ask(11, bench.pull_ext(TRANS_HALF_TOPIC))).body)
    commit = {
        "producerGroup": "PG", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.phys_offset,
        "commitOrRollback": 8,
    }  # fmt: skip
    assert (await bench.ask(RequestCode.END_TRANSACTION, commit)).code == ResponseCode.SUCCESS
    assert await look.of(NAMES) == dict.fromkeys(NAMES, "none")
    assert bench.store.reader.max_offset("Half", 0) == 2, "the message is in its topic, though that takes no others"


async def test_long_queues_are_looked_through(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undelivered, "BATCH", 7)
    bench = make_bench(settings={"messageDelayLevel": "1h 2h"})
    await bench.lead()
    await bench.broker.transactions.loaded.wait()
    for number in range(40):
        await bench.send(b"x", topic="Other", properties=f"DELAY\x01{number % 2 + 1}")
    await close(bench)
    assert (await of(bench, "T"))["T"] == "none"
    await bench.broker.changes.append_and_wait({"topics": [TopicConfig("T", 1, 1).to_json()]})
    await bench.send(b"x", properties="DELAY\x012")
    await close(bench)
    assert await of(bench, "T", "Other") == {"T": "delayed", "Other": "unknown"}
    names = [f"N{n}" for n in range(MAX_UNDELIVERED + 1)]
    assert list((await of(bench, *names)).values()) == ["none"] * MAX_UNDELIVERED + ["unknown"]


async def test_nothing_is_said_of_what_cannot_be_read(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(settings={"messageDelayLevel": "1h"})
    await bench.lead()
    await bench.broker.transactions.loaded.wait()
    await bench.send(b"x", topic="Other", properties="DELAY\x011")
    await close(bench)
    assert (await of(bench, "T"))["T"] == "none"
    store = bench.broker.store
    get = store.reader.get
    with monkeypatch.context() as damaged:
        damaged.setattr(store.reader, "get", lambda *args: replace(get(*args), data=b"", damaged=7))
        assert (await of(bench, "T"))["T"] == "unknown"
    with monkeypatch.context() as behind:
        behind.setattr(undelivered, "CONFIRM_S", 0.05)
        behind.setattr(store.state, "confirmed", 0)
        behind.setattr(type(store.indexer), "confirm", lambda *args: Confirmed(0, [], []))
        assert (await of(bench, "T"))["T"] == "unknown"
    with monkeypatch.context() as early:
        early.setattr(undelivered, "CONFIRM_S", 0.05)
        early.setattr(type(bench.broker.transactions), "all_read", property(lambda self: False))
        assert (await of(bench, "T"))["T"] == "unknown"
