"""Requests about topics, consumer groups and offsets to the masters of broker groups, over the protocol of clients.

Each is sent to the address of a broker group, where its master answers, signed as the cluster's super user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, RequestCode, ResponseCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import (
    CreateTopicHeader,
    DeleteGroupHeader,
    Long,
    ResetOffsetHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateOffsetHeader,
)
from gantry_broker.remoting.client import RemotingClient

from gantry_operator.topics.model import DropGroup, DropTopic, PutGroup, PutTopic, Step

CALL_S = 5.0
LATER = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.NO_PERMISSION,
)
"""Answers in the middle of a failover, of a busy broker, and of one that has no access table yet."""


class Refused(Exception):
    """A broker refused a request. The text has its words."""


class TryLater(Exception):
    """A broker cannot do it now."""


async def _call(client: RemotingClient, address: str, frame: Frame) -> Frame:
    """Send one request. Raises Refused, TryLater, RemotingError."""
    answer = await client.request(address, frame, CALL_S)
    if answer.code == ResponseCode.SUCCESS:
        return answer
    raise _refusal(address, answer)


def _refusal(address: str, answer: Frame) -> Exception:
    """Return the error that an answer means."""
    why = (answer.remark or f"code {answer.code}")[:400]
    return (TryLater if answer.code in LATER else Refused)(f"{address}: {why}")


async def carry_out(client: RemotingClient, address: str, step: Step) -> None:
    """Every step may be repeated. Raises Refused, TryLater, RemotingError."""
    await _call(client, address, frame_of(step))


def frame_of(step: Step) -> Frame:
    if isinstance(step, PutTopic):
        return _put_topic(step.config, step.attributes)
    if isinstance(step, DropTopic):
        return Frame(RequestCode.DELETE_TOPIC_IN_BROKER, ext=TopicHeader(step.topic).ext())
    if isinstance(step, PutGroup):
        body = fastjson.dumps(step.config.to_json())
        return Frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert isinstance(step, DropGroup)
    return Frame(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=DeleteGroupHeader(step.name, True, True).ext())


def _put_topic(config: TopicConfig, attributes: Iterable[str]) -> Frame:
    header = CreateTopicHeader(
        config.name, AUTO_CREATE_TOPIC, config.read_queues, config.write_queues, config.perm, config.filter_type,
        config.sys_flag, config.order, ",".join(attributes) or None,
    )  # fmt: skip
    return Frame(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=header.ext())


async def offset_at(client: RemotingClient, address: str, topic: str, queue: int, timestamp: int) -> int:
    """Return the first offset of a queue stored at this time or later. Raises Refused, TryLater, RemotingError."""
    header = SearchOffsetHeader(topic, queue, Long(timestamp))
    answer = await _call(client, address, Frame(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=header.ext()))
    offset = whole_number(answer.ext.get("offset", ""))
    if offset is None:
        raise Refused(f"{address}: the answer about queue {queue} of {topic} has no offset")
    return offset


async def move_group(
    client: RemotingClient, address: str, group: str, topic: str, targets: Mapping[int, int],
    without_offset: Iterable[int], timestamp: int,
) -> None:  # fmt: skip
    """Move a consumer group to these offsets, which are those of `timestamp`. Members continue from there at once.

    The broker notifies connected members of a request by time, for a group with an offset in every queue. Without
    members the offsets alone are enough. Raises Refused, TryLater, RemotingError.
    """
    for queue in without_offset:
        await _set_offset(client, address, group, topic, queue, targets[queue])
    header = ResetOffsetHeader(topic, group, Long(timestamp), True)
    answer = await client.request(
        address, Frame(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=header.ext()), CALL_S
    )  # fmt: skip
    if answer.code == ResponseCode.SUCCESS:
        return
    if answer.code != ResponseCode.CONSUMER_NOT_ONLINE:
        raise _refusal(address, answer)
    for queue, offset in targets.items():
        await _set_offset(client, address, group, topic, queue, offset)


async def _set_offset(
    client: RemotingClient, address: str, group: str, topic: str, queue: int, offset: int
) -> None:  # fmt: skip
    header = UpdateOffsetHeader(group, topic, queue, Long(offset))
    await _call(client, address, Frame(RequestCode.UPDATE_CONSUMER_OFFSET, ext=header.ext()))
