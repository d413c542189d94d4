"""Requests of brokers about a client's consumers, most of them for administrators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gantry_broker.client.message import ReceivedMessage, restore_topic
from gantry_broker.client.process_queue import ProcessQueue
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import MQ_VERSION, RequestCode, ResponseCode
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from gantry_broker.protocol.message import RecordError, decode_record
from gantry_broker.protocol.offset_tables import offset_table


class ConsumerAdmin(Protocol):
    """The part of a group's consumer that brokers may query and change."""

    group: str
    started_ms: int
    ordered: bool

    def progress(self) -> Mapping[MessageQueue, ProcessQueue]: ...

    def subscriptions(self) -> list[SubscriptionData]: ...

    async def handle(self, message: ReceivedMessage) -> int | None: ...

    async def reset_offsets(self, table: dict[MessageQueue, int]) -> None: ...


class ConsumerAdminHandler:
    """Handles brokers' requests about all consumers of a session; `of` returns the consumer of a group."""

    CODES = (
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    )

    def __init__(self, of: Callable[[str], ConsumerAdmin | None], name_servers: list[str]) -> None:
        self._of = of
        self._name_servers = name_servers

    async def answer(self, conn: object, frame: Frame) -> Frame | None:
        try:
            if frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                return await self._reset(frame)
            if frame.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return self._status(frame)
            if frame.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                return self._running_info(frame)
            return await self._consume_directly(frame)
        except (BadField, BodyError, RecordError) as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))

    async def _reset(self, frame: Frame) -> Frame:
        header = ResetOffsetHeader.parse(frame)
        consumer = self._of(header.group)
        if consumer is None:
            return _no_consumer(frame, header.group)
        await consumer.reset_offsets(offset_table(frame.body))
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    def _status(self, frame: Frame) -> Frame:
        header = ConsumerStatusHeader.parse(frame)
        consumer = self._of(header.group)
        if consumer is None:
            return _no_consumer(frame, header.group)
        table = {
            queue: process.commit_offset
            for queue, process in consumer.progress().items()
            if queue.topic == header.topic
        }
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps({"messageQueueTable": table}))

    def _running_info(self, frame: Frame) -> Frame:
        header = RunningInfoHeader.parse(frame)
        consumer = self._of(header.consumerGroup)
        if consumer is None:
            return _no_consumer(frame, header.consumerGroup)
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(self._describe_consumer(consumer)))

    def _describe_consumer(self, consumer: ConsumerAdmin) -> dict[str, Any]:
        """Return RocketMQ's ConsumerRunningInfo. Rates are 0: this client does not measure them."""
        return {
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(self._name_servers),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_THREADPOOL_CORE_SIZE": "0",
                "PROP_CONSUMEORDERLY": "true" if consumer.ordered else "false",
                "PROP_CLIENT_VERSION": f"V{MQ_VERSION}",
                "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            },
            "subscriptionSet": [data.to_json() for data in consumer.subscriptions()],
            "mqTable": {
                queue: {
                    "commitOffset": process.commit_offset,
                    "cachedMsgMinOffset": process.commit_offset if len(process) else 0,
                    "cachedMsgMaxOffset": max(process.next_offset - 1, 0) if len(process) else 0,
                    "cachedMsgCount": len(process),
                    "cachedMsgSizeInMiB": process.bytes >> 20,
                    "transactionMsgMinOffset": 0,
                    "transactionMsgMaxOffset": 0,
                    "transactionMsgCount": 0,
                    "locked": consumer.ordered,
                    "tryUnlockTimes": 0,
                    "lastLockTimestamp": 0,
                    "droped": process.dropped,
                    "lastPullTimestamp": process.pulled_ms,
                    "lastConsumeTimestamp": process.consumed_ms,
                }
                for queue, process in consumer.progress().items()
            },
            "statusTable": {
                data.topic: {
                    "pullRT": 0.0,
                    "pullTPS": 0.0,
                    "consumeRT": 0.0,
                    "consumeOKTPS": 0.0,
                    "consumeFailedTPS": 0.0,
                    "consumeFailedMsgs": 0,
                }
                for data in consumer.subscriptions()
            },
        }

    async def _consume_directly(self, frame: Frame) -> Frame:
        header = ConsumeDirectlyHeader.parse(frame)
        consumer = self._of(header.consumerGroup)
        if consumer is None:
            return _no_consumer(frame, header.consumerGroup)
        message = restore_topic(decode_record(frame.body), header.brokerName or "", header.consumerGroup)
        started = time.monotonic()
        failed = await consumer.handle(message) is not None
        result = {
            "autoCommit": True,
            "consumeResult": "CR_LATER" if failed else "CR_SUCCESS",
            "order": consumer.ordered,
            "spentTimeMills": int((time.monotonic() - started) * 1000),
        }
        return Frame.response_to(frame, ResponseCode.SUCCESS, body=fastjson.dumps(result))


def _no_consumer(frame: Frame, group: str) -> Frame:
    return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, f"this client has no consumer of group {group[:200]}")
