"""What a new master has to read of transactions, and what it does until it knows."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, NoReturn

import pytest
from gantry_broker.broker import transactions
from gantry_broker.broker.handlers import transaction
from gantry_broker.protocol.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    RequestCode,
    ResponseCode,
)
from gantry_broker.protocol.message import decode_records
from gantry_broker.store.types import Put

from tests.support.running import until

if TYPE_CHECKING:
    from tests.broker.conftest import Bench

HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U1"


def _progress(bench: Bench) -> list[int]:
    return [bench.broker.meta.working.offset(t, transactions.GROUP, 0) for t in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)]


def _put(bench: Bench, topic: str, body: bytes, properties: str) -> Put:
    return Put(topic, 0, 0, 0, bench.broker.clock.unix_ms(), bench.wire.peer_bytes, body, properties.encode())


async def _decide_all_but_the_last(bench: Bench, count: int) -> None:
    """So many halves, of which one more is there than is decided, always."""
    broker = bench.broker
    for first in range(0, count, 100):
        broker.writer.append([_put(bench, TRANS_HALF_TOPIC, b"half", HALF) for _ in range(100)])
        decided = range(max(first - 1, 0), first + 99)
        bench.append(*[_put(bench, TRANS_OP_HALF_TOPIC, b"%d" % half, "TAGS\x01d") for half in decided])
        await until(lambda first=first: broker.transactions._op_at == first + 99)  # type: ignore[misc]


async def test_a_new_master_reads_undecided_transactions_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always something undecided where many producers send."""
    monkeypatch.setattr(transactions, "MARK_EACH", 100)
    await bench.broker.transactions.loaded.wait()
    await _decide_all_but_the_last(bench, 2_000)
    assert bench.broker.transactions.undecided == 1
    halves, decisions = _progress(bench)
    assert halves == 1_999
    assert 1_700 <= decisions <= 1_999
    await bench.lead()
    await bench.broker.transactions.loaded.wait()
    assert bench.broker.transactions.undecided == 1


async def test_a_half_message_whose_producers_have_gone_does_not_hold_up_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "HOLDS_UP", 150)
    monkeypatch.setattr(transactions, "MARK_EACH", 100)
    broker = bench.broker
    await bench.check_at_any_age()
    await bench.send(b"left alone", properties=HALF, sysFlag=4)
    await until(lambda: broker.transactions.undecided == 1)
    broker.transactions._check()
    assert bench.store.reader.max_offset(TRANS_HALF_TOPIC, 0) == 1
    for first in range(1, 201, 100):
        broker.writer.append([_put(bench, TRANS_HALF_TOPIC, b"half", HALF) for _ in range(100)])
        broker.writer.append(
            [_put(bench, TRANS_OP_HALF_TOPIC, b"%d" % h, "TAGS\x01d") for h in range(first, first + 100)]
        )
        broker.writer.appended(None)
    await until(lambda: broker.transactions._op_at == 200)
    assert _progress(bench)[0] == 0
    bench.check_transactions()
    await until(lambda: _progress(bench)[0] == 201)
    [again] = decode_records((await bench.ask(11, bench.pull_ext(TRANS_HALF_TOPIC, 201))).body)
    assert again.body == b"left alone"
    assert "TRANSACTION_CHECK_TIMES" not in again.props, "nobody was asked"
    assert broker.transactions.undecided == 1


async def test_a_new_master_does_not_commit_unknown_transactions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert bench.store.reader.max_offset("T", 0) == 1


async def test_producers_that_are_there_are_asked_however_many_have_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CHECKS_PER_PASS", 2)
    broker = bench.broker
    await bench.check_at_any_age()
    for group in ("GONE", "GONE", "GONE", "PG"):
        await bench.send(b"half", properties=HALF.replace("\x01PG\x02", f"\x01{group}\x02"), sysFlag=4)
    await until(lambda: broker.transactions.undecided == 4)
    producer = type(bench.wire)(40_001)
    broker.clients.producers["PG"] = {producer: None}  # type: ignore[dict-item]
    for _ in range(2):
        bench.check_transactions()
    assert [f.code for f in producer.frames] == [RequestCode.CHECK_TRANSACTION_STATE]


async def test_half_messages_are_known_after_a_damaged_one_is_repaired(bench: Bench) -> None:
    """Nothing else comes in that would have the broker look at its queue again."""
    store, made = bench.store, bench.broker.transactions
    await made.loaded.wait()
    at = bench.append(*[_put(bench, TRANS_HALF_TOPIC, b"%d" % n, "") for n in range(2)])
    store.state.verified_from = store.log.end  # As if they were old: then a read verifies them.
    was = store.log.read(at, 20)
    store.log.overwrite(at, bytes(20))
    made._read()
    assert made.undecided == 0
    assert made._reading is not None
    store.log.overwrite(at, was)
    made._read()
    assert made.undecided == 2


@pytest.mark.parametrize("how", ["zeros", "unreadable"])
async def test_a_half_that_is_damaged_when_its_producer_is_to_be_asked_is_asked_about_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nor does it keep others from being asked about."""
    made, now = bench.broker.transactions, bench.broker.clock.unix_ms()
    await made.loaded.wait()
    at = bench.append(*[_put(bench, TRANS_HALF_TOPIC, b"%d" % n, "") for n in range(2)])
    made._read()
    real, reported = bench.store.log.read, []

    def read(offset: int, count: int) -> bytes:
        if offset == at:
            if how == "unreadable":
                raise OSError(errno.EIO, "Input/output error")
            return bytes(count)
        return real(offset, count)

    monkeypatch.setattr(bench.store.log, "read", read)
    monkeypatch.setattr(bench.store.state, "on_damage", reported.append)
    for item in made._waiting.values():
        item.ask_at_ms = now
    made._check()
    assert reported == [at]
    assert made.undecided == 2
    assert [item.ask_at_ms > now for item in made._waiting.values()] == [True, True]


async def test_a_half_that_was_stored_by_a_clock_far_ahead_is_asked_about_soon(bench: Bench) -> None:
    made, now = bench.broker.transactions, bench.broker.clock.unix_ms()
    await made.loaded.wait()
    bench.store.appender.put([_put(bench, TRANS_HALF_TOPIC, b"", "")], now + 86_400_000)
    bench.broker.writer.appended(None)
    made._read()
    assert [item.ask_at_ms < now + 3_600_000 for item in made._waiting.values()] == [True]


def _set_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    wall = bench.broker.clock.unix_ms
    monkeypatch.setattr(bench.broker.clock, "unix_ms", lambda: wall() + hours * 3_600_000)


async def test_a_clock_that_is_set_back_does_not_stop_checks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the next check would be a day away."""
    made = bench.broker.transactions
    await made.loaded.wait()
    bench.append(_put(bench, TRANS_HALF_TOPIC, b"", HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x010"))
    made._read()
    made._check()
    asked: list[int] = []
    monkeypatch.setattr(made, "_ask", lambda offset, now: asked.append(offset))
    _set_clock(bench, monkeypatch, -24)
    for item in made._waiting.values():
        item.ask_at_ms -= 120_000  # Two minutes pass.
    made._check()
    assert asked == [0]


@pytest.mark.parametrize(("hours", "given_up"), [(24 * 4, False), (0, True)])
async def test_a_clock_that_is_set_forward_gives_no_half_message_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hours: int, given_up: bool
) -> None:
    """Its producer would commit it. One that is really too old is given up."""
    made = bench.broker.transactions
    await made.loaded.wait()
    put = _put(bench, TRANS_HALF_TOPIC, b"", HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x010")
    if given_up:
        put.born_ms -= 96 * 3_600_000
    bench.append(put)
    made._read()
    made._look()
    _set_clock(bench, monkeypatch, hours)
    made._check()
    assert (TRANS_CHECK_MAX_TIME_TOPIC in bench.store.queues.topics_queues()) == given_up


async def test_a_want_of_descriptors_when_a_master_takes_over_leaves_transactions_to_be_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new has to come for it."""
    monkeypatch.setattr(transactions, "DAMAGED_S", 0.01)
    tried = 0

    def none_left(*args: object) -> NoReturn:
        nonlocal tried
        tried += 1
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(bench.store.reader, "get", none_left)
        await bench.lead()
        await until(lambda: tried > 0)
    await asyncio.wait_for(bench.broker.transactions.loaded.wait(), 5)
