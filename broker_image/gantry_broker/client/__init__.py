"""An asyncio client for RocketMQ's remoting protocol, in Python alone.

async with Producer("127.0.0.1:9876") as producer:
    await producer.send("Orders", b"two apples", keys="4711")

async with Consumer("127.0.0.1:9876", "billing", from_where=FromWhere.FIRST) as consumer:
    await consumer.subscribe("Orders", handle)  # async def handle(message): ...
    await asyncio.sleep(60)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.lazily import lazily

if TYPE_CHECKING:
    from gantry_broker.client.admin import Admin
    from gantry_broker.client.consumer import Consumer, RetryLater
    from gantry_broker.client.credentials import Credentials
    from gantry_broker.client.deadletters import DeadGroup, DeadLetters
    from gantry_broker.client.errors import (
        BrokerError,
        CannotResend,
        ClientError,
        InvalidMessage,
        NoRoute,
        RequestFailed,
        SendFailed,
    )
    from gantry_broker.client.message import FromWhere, Message, ReceivedMessage, Reply, SendResult
    from gantry_broker.client.ordered import OrderedConsumer
    from gantry_broker.client.producer import Producer
    from gantry_broker.client.pull import PullConsumer
    from gantry_broker.client.requests import Requester, reply
    from gantry_broker.client.selection import select_by_hash
    from gantry_broker.client.session import Session
    from gantry_broker.client.simple_consumer import PoppedMessage, SimpleConsumer
    from gantry_broker.client.transaction_state import TransactionState
    from gantry_broker.client.transactions import TransactionProducer
    from gantry_broker.protocol.allocation import averagely, averagely_by_circle
    from gantry_broker.protocol.codes import SendStatus
    from gantry_broker.protocol.compression import Compression
    from gantry_broker.protocol.fastjson import MessageQueue
    from gantry_broker.remoting.tls import TlsOptions

__all__ = [
    "Admin",
    "BrokerError",
    "CannotResend",
    "ClientError",
    "Compression",
    "Consumer",
    "Credentials",
    "DeadGroup",
    "DeadLetters",
    "FromWhere",
    "InvalidMessage",
    "Message",
    "MessageQueue",
    "NoRoute",
    "OrderedConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "ReceivedMessage",
    "Reply",
    "RequestFailed",
    "Requester",
    "RetryLater",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "Session",
    "SimpleConsumer",
    "TlsOptions",
    "TransactionProducer",
    "TransactionState",
    "averagely",
    "averagely_by_circle",
    "reply",
    "select_by_hash",
]

__getattr__ = lazily(
    __name__,
    {
        "gantry_broker.client.admin": "Admin",
        "gantry_broker.client.consumer": "Consumer RetryLater",
        "gantry_broker.client.credentials": "Credentials",
        "gantry_broker.client.deadletters": "DeadGroup DeadLetters",
        "gantry_broker.client.errors": (
            "BrokerError CannotResend ClientError InvalidMessage NoRoute RequestFailed SendFailed"
        ),
        "gantry_broker.client.message": "FromWhere Message ReceivedMessage Reply SendResult",
        "gantry_broker.client.ordered": "OrderedConsumer",
        "gantry_broker.client.producer": "Producer",
        "gantry_broker.client.pull": "PullConsumer",
        "gantry_broker.client.requests": "Requester reply",
        "gantry_broker.client.selection": "select_by_hash",
        "gantry_broker.client.session": "Session",
        "gantry_broker.client.simple_consumer": "PoppedMessage SimpleConsumer",
        "gantry_broker.client.transaction_state": "TransactionState",
        "gantry_broker.client.transactions": "TransactionProducer",
        "gantry_broker.protocol.allocation": "averagely averagely_by_circle",
        "gantry_broker.protocol.codes": "SendStatus",
        "gantry_broker.protocol.compression": "Compression",
        "gantry_broker.protocol.fastjson": "MessageQueue",
        "gantry_broker.remoting.tls": "TlsOptions",
    },
)
