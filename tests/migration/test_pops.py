"""Messages that consumers of RocketMQ 5.x had popped at a cutover come again."""

from __future__ import annotations

import orjson
import pytest
from gantry_broker.broker.migration.pops import ACK, ACKS, CHECK_POINT, InFlight, give_again


def record(**more: object) -> bytes:
    return orjson.dumps({"t": "T", "c": "G", "q": 2, "so": 100, "pt": 7, "bn": "a", **more})


def test_what_was_not_acknowledged_is_in_flight() -> None:
    made = InFlight()
    made.take(CHECK_POINT, record(n=4, d=[0, 1, 3, 4], it=60_000, bm=0))
    made.take(CHECK_POINT, record(n=1, d=[0], so=200, it=60_000))
    made.take(ACK, record(ao=100))
    made.take(ACKS, record(aol=[101, 104]))
    assert made.lowest() == {"T@G": {2: 103}}
    made.take(ACK, record(ao=103))
    assert made.lowest() == {"T@G": {2: 200}}
    made.take(ACK, record(ao=200, so=200))
    assert made.lowest() == {}


def test_an_impossible_count_costs_nothing() -> None:
    made = InFlight()
    made.take(CHECK_POINT, record(n=1 << 40))
    assert made.lowest() == {"T@G": {2: 100}}


def test_records_may_come_again_and_in_any_order() -> None:
    made = InFlight()
    made.take(ACK, record(ao=100))
    for _ in range(2):
        made.take(CHECK_POINT, record(n=2, d=[0, 1]))
    assert made.lowest() == {"T@G": {2: 101}}
    made.forget(8)
    assert made.lowest() == {}


def test_groups_go_back_to_what_is_in_flight_and_never_forward() -> None:
    offsets = {"T@G": {0: 5, 2: 110}}
    assert give_again(offsets, {"T@G": {0: 9, 2: 103}, "R@G": {0: 4}}) == 2
    assert offsets == {"T@G": {0: 5, 2: 103}, "R@G": {0: 4}}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"t":"T"}', record(n=-1), record(n=1, so=-4), record(n="x"), record(n=2, d=["a"]), b"\xff"]
)
def test_a_record_that_is_none_of_rocketmqs_is_counted(body: bytes) -> None:
    made = InFlight()
    made.take(CHECK_POINT, body)
    made.forget(0)
    assert made.unreadable == 1
    assert made.lowest() == {}
