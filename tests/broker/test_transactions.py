"""What a new master does with transactions until it knows what is decided, and who is asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gantry_broker.broker import transactions
from gantry_broker.broker.handlers import transaction
from gantry_broker.protocol.codes import TRANS_HALF_TOPIC, RequestCode, ResponseCode
from gantry_broker.protocol.message import decode_records
from running import until

if TYPE_CHECKING:
    from conftest import Bench

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1"


async def test_what_a_new_master_does_not_know_yet_it_does_not_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been committed before: the producer is asked again."""
    broker = bench.broker
    await broker.transactions.loaded.wait()
    await bench.send(b"once", properties=HALF, sysFlag=4)
    await until(lambda: broker.transactions.undecided == 1)
    [half] = decode_records((await bench.ask(11, bench.pull_ext(TRANS_HALF_TOPIC))).body)
    end = {
        "producerGroup": "PG", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.phys_offset,
        "commitOrRollback": 8,
    }  # fmt: skip
    assert (await bench.ask(RequestCode.END_TRANSACTION, end)).code == 0
    monkeypatch.setattr(broker.transactions, "_read", lambda: None)
    monkeypatch.setattr(transaction, "WAIT_S", 0.05)
    await bench.lead()
    assert (await bench.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SYSTEM_BUSY
    assert bench.store.max_offset("T", 0) == 1


async def test_producers_that_are_there_are_asked_however_many_have_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CHECKS_PER_PASS", 2)
    assert (await bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionTimeOut=0")).code == 0
    broker = bench.broker
    await broker.transactions.loaded.wait()
    for group in ("GONE", "GONE", "GONE", "PG"):
        await bench.send(b"half", properties=HALF.replace("\x01PG\x02", f"\x01{group}\x02"), sysFlag=4)
    await until(lambda: broker.transactions.undecided == 4)
    producer = type(bench.wire)(40_001)
    broker.clients.producers["PG"] = {producer: None}  # type: ignore[dict-item]
    for _ in range(2):
        for item in broker.transactions._waiting.values():
            item.ask_at_ms = 0
        broker.transactions._check()
    assert [f.code for f in producer.frames] == [RequestCode.CHECK_TRANSACTION_STATE]
