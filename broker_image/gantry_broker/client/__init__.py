"""An asyncio client for RocketMQ's remoting protocol, in Python alone.

async with Producer("127.0.0.1:9876") as producer:
    await producer.send("Orders", b"two apples", keys="4711")

async with Consumer("127.0.0.1:9876", "billing", from_where=FromWhere.FIRST) as consumer:
    await consumer.subscribe("Orders", handle)  # async def handle(message): ...
    await asyncio.sleep(60)
"""

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
