"""Assignment of queues by the broker: pure, and with the modes of groups in the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.broker.handlers.assignments import assigned_for_pop
from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.protocol.allocation import averagely, averagely_by_circle
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue

if TYPE_CHECKING:
    from tests.broker.conftest import Bench


def _queues(*brokers: str, each: int = 4) -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for broker in brokers for number in range(each)]


@pytest.mark.parametrize("strategy", [averagely, averagely_by_circle])
@pytest.mark.parametrize("members", [1, 2, 3, 7, 8, 9, 20])
@pytest.mark.parametrize("share", [-1, 0, 1, 2, 5, 19, 100])
def test_every_queue_has_its_members(strategy: Any, members: int, share: int) -> None:
    """Each queue is read by as many members as share it, and no member is without a queue."""
    queues = _queues("a", "b")
    ids = [f"c{number:02d}" for number in range(members)]
    found = {me: assigned_for_pop(strategy, me, queues, ids, share) for me in ids}
    assert all(found.values()), "nobody is without work"
    if share <= 0 or share >= members - 1:
        assert all(mine == [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)] for mine in found.values())
        return
    readers = {queue: sum(queue in mine for mine in found.values()) for queue in queues}
    if members <= len(queues):
        assert set(readers.values()) == {share + 1}
    else:
        assert all(readers.values())
    assert all(len(mine) == len(set(mine)) for mine in found.values())


def test_a_stranger_gets_nothing_unless_all_read_all() -> None:
    queues = _queues("a")
    assert assigned_for_pop(averagely, "x", queues, ["c0", "c1", "c2"], 1) == []
    assert assigned_for_pop(averagely, "x", queues, ["c0", "c1", "c2"], 0) == [MessageQueue("T", "a", -1)]


def _mode(mode: str = "POP", share: int = 1, topic: str = "T", group: str = "G") -> bytes:
    return json.dumps(
        {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    ).encode()  # fmt: skip


async def test_a_mode_is_a_record_of_the_log(bench: Bench) -> None:
    await bench.send(b"x")
    assert (await bench.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=_mode())).code == 0
    tables = bench.broker.meta.confirmed
    assert tables.modes == {"T@G": ("POP", 1)}
    copied = Tables()
    for change in tables.all_changes(1):
        copied.apply(change)
    assert copied.modes == tables.modes
    await bench.lead()
    assert bench.broker.meta.working.modes == tables.modes
    shown = await bench.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(shown.body)["messageRequestModeMap"]["T"]["G"]["popShareQueueNum"] == 1


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "removeOffset": "true"}),
    ],
)
async def test_a_mode_goes_with_its_topic_or_group(bench: Bench, code: int, ext: dict[str, str]) -> None:
    await bench.send(b"x")
    await bench.send(b"x", topic="U")
    for topic, group in (("T", "G"), ("U", "H")):
        assert (await bench.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=_mode(topic=topic, group=group))).code == 0
    assert (await bench.ask(code, ext)).code == 0
    assert set(bench.broker.meta.working.modes) == {"U@H"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (_mode(topic="NoSuch"), ResponseCode.TOPIC_NOT_EXIST),
        (_mode(topic="%RETRY%G"), ResponseCode.NO_PERMISSION),
        (_mode(mode="PUSH"), ResponseCode.SYSTEM_ERROR),
        (_mode(group="a b"), ResponseCode.SYSTEM_ERROR),
        (b"[]", ResponseCode.SYSTEM_ERROR),
        (b'{"topic":5}', ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_wrong_modes_are_refused(bench: Bench, body: bytes, code: int) -> None:
    await bench.send(b"x")
    assert (await bench.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)).code == code
    assert bench.broker.meta.working.modes == {}
