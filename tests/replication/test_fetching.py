"""Fetches and answers in turn: when the next fetch goes out, and what ends the exchange."""

from __future__ import annotations

from typing import Any

import pytest
from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.errors import RequestTimeout
from gantry_broker.replication import wire
from gantry_broker.replication.fetching import Exchange
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.group_commit import OnDurable
from gantry_broker.store.log.epochs import EpochStart

from tests.support.present import present

LEADER = "10.1.2.3:10911"
ME = MemberId(1, "x")


def fetch_at(end: int) -> Fetch:
    return Fetch(1, ME, end, end, (EpochStart(1, 0),))


def answer_at(end: int, kind: AnswerKind = AnswerKind.RECORDS) -> Frame:
    answer = FetchAnswer(kind, 1, Position(end, 1), end, end + 10, data=b"x" * 10)
    return wire.answer_frame(wire.fetch_frame(fetch_at(end)), answer)


class Follower:
    """The service and the client of one follower, whose log grows by ten bytes with each answer that fits."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.end = 100
        self.address: str | None = LEADER
        self.ready = True
        self.disk: list[OnDurable] | None = None
        """The calls that wait for the disk; None: it is not waited for."""

    def next_fetch(self) -> tuple[str, Fetch] | None:
        return None if self.address is None else (self.address, fetch_at(self.end))

    def fills(self) -> bool:
        return False

    async def fill(self) -> None:
        raise AssertionError("nothing comes from elsewhere")

    def answered(self, answer: FetchAnswer) -> bool:
        fits = answer.kind is AnswerKind.RECORDS and answer.asked.end == self.end
        self.end += 10 if fits else 0
        self.events.append("applies" if fits else "drops")
        return fits

    def when_durable(self, then: OnDurable) -> None:
        if self.disk is None:
            then(None)
        else:
            self.disk.append(then)

    def confirm(self) -> None:
        self.events.append("confirms")

    def call(self, address: str, frame: Frame, timeout: float, reply: object) -> bool:
        self.events.append(f"fetches from {frame.ext['end']}")
        return self.ready


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.fixture
async def exchange(follower: Follower) -> Exchange:
    both: Any = follower
    return Exchange(both, both, present(follower.next_fetch()), lambda: None)


async def test_an_answer_sends_the_next_fetch_before_it_is_confirmed(follower: Follower, exchange: Exchange) -> None:
    exchange.set_result(answer_at(100))
    exchange.set_result(answer_at(110))
    assert follower.events == [
        "applies", "fetches from 110", "confirms", "applies", "fetches from 120", "confirms",
    ]  # fmt: skip
    assert not exchange.done()


async def test_the_next_fetch_waits_for_the_disk(follower: Follower, exchange: Exchange) -> None:
    follower.disk = []
    exchange.set_result(answer_at(100))
    assert follower.events == ["applies"]
    follower.disk.pop()(None)
    assert follower.events == ["applies", "fetches from 110", "confirms"]
    exchange.set_result(answer_at(110))
    follower.disk.pop()(FlushFailed("the disk failed"))
    with pytest.raises(FlushFailed):
        await exchange.ended


async def test_a_dropped_answer_is_asked_for_again_only_from_another_place(
    follower: Follower, exchange: Exchange
) -> None:
    follower.end = 150
    exchange.set_result(answer_at(100))
    assert follower.events == ["drops", "fetches from 150", "confirms"]
    exchange.set_result(answer_at(100))
    assert await exchange.ended is False
    assert exchange.went_on


async def test_a_refusal_lets_the_next_fetch_wait(follower: Follower, exchange: Exchange) -> None:
    follower.end = 150
    exchange.set_result(answer_at(100, AnswerKind.REFUSED))
    assert await exchange.ended is False
    assert follower.events == ["drops", "confirms"]
    assert not exchange.went_on, "the pauses before the next fetches grow"


@pytest.mark.parametrize("address", [None, "10.1.2.4:10911"])
async def test_it_ends_without_this_leader(follower: Follower, exchange: Exchange, address: str | None) -> None:
    follower.address = address
    exchange.set_result(answer_at(100))
    assert await exchange.ended is True
    assert follower.events == ["applies", "confirms"]


async def test_it_ends_without_a_connection(follower: Follower, exchange: Exchange) -> None:
    follower.ready = False
    exchange.set_result(answer_at(100))
    assert await exchange.ended is True
    assert follower.events == ["applies", "fetches from 110", "confirms"]


async def test_errors_end_it(follower: Follower, exchange: Exchange) -> None:
    exchange.set_exception(RequestTimeout("no answer"))
    exchange.set_exception(RequestTimeout("again"))
    with pytest.raises(RequestTimeout, match="no answer"):
        await exchange.ended


async def test_a_malformed_answer_ends_it(follower: Follower, exchange: Exchange) -> None:
    frame = answer_at(100)
    frame.ext["confirmed"] = "-1"
    exchange.set_result(frame)
    with pytest.raises(wire.WireError, match="confirmed"):
        await exchange.ended
    assert follower.events == []


async def test_an_error_after_the_end_is_logged(
    follower: Follower, exchange: Exchange, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of the role ends the exchange, and may fail itself."""

    def fails(answer: FetchAnswer) -> bool:
        exchange.stop()
        raise RuntimeError("the change of the role failed")

    monkeypatch.setattr(follower, "answered", fails)
    exchange.set_result(answer_at(100))
    assert "the change of the role failed" in caplog.text


async def test_after_its_end_it_fetches_no_more(follower: Follower, exchange: Exchange) -> None:
    follower.disk = []
    exchange.set_result(answer_at(100))
    exchange.stop()
    assert exchange.done(), "a connection passes on no answer to it"
    follower.disk.pop()(None)
    assert follower.events == ["applies"]
    exchange.stop()
