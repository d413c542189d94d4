"""Request and reply over topics: a broker pushes the reply to the requesting client.

The consumer of a request answers it with `reply`. The broker that stores the reply knows the requesting client by its
heartbeat, and pushes the reply to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from typing import Any

from gantry_broker.client.errors import InvalidMessage, RequestFailed
from gantry_broker.client.message import Message, ReceivedMessage, Reply, SendResult
from gantry_broker.client.producer import Producer
from gantry_broker.client.session import Session
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import REPLY_TOPIC_SUFFIX, Prop, RequestCode, ResponseCode
from gantry_broker.protocol.compression import decompress
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.headers import PushReplyHeader
from gantry_broker.protocol.message import RecordError, parse_properties

MAX_REPLY = 64 * 1024 * 1024


class Requester(Producer):
    """A producer that waits for replies: `reply = await requester.request(Message("Prices", b"apples"))`."""

    _GRPC_TOO = False

    def __init__(self, name_servers: str | Sequence[str] | Session, group: str, **options: Any) -> None:
        super().__init__(name_servers, group, **options)
        self._pending_replies = self.session.replies

    async def start(self) -> None:
        self.session.remoting.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)
        await super().start()

    async def request(self, message: Message, timeout: float = 3.0) -> Reply:
        """Send a request and wait for its reply, `timeout` seconds in all. Raises RequestFailed, and as `send`."""
        started = time.monotonic()
        correlation = str(uuid.uuid4())
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending_replies[correlation] = future
        extra = {
            Prop.CORRELATION_ID: correlation,
            Prop.MESSAGE_REPLY_TO_CLIENT: self.session.client_id,
            Prop.MESSAGE_TTL: str(int(timeout * 1000)),
        }
        try:
            frame, unique_key = self._frame(message, extra)
            queues = await self._queues(message.topic)
            masters = [self.session.address(broker) for broker in sorted({queue.broker for queue in queues})]
            await self.session.send_heartbeats([address for address in masters if address is not None])
            await self._deliver(frame, message, unique_key, None, None, None, timeout)
            try:
                async with asyncio.timeout(timeout - (time.monotonic() - started)):
                    return await future
            except TimeoutError:
                raise RequestFailed(f"no reply to request {correlation} within {timeout:g} s") from None
        finally:
            self._pending_replies.pop(correlation, None)

    async def _on_reply(self, conn: object, frame: Frame) -> Frame:
        try:
            header = PushReplyHeader.parse(frame)
            body = decompress(frame.body, header.sysFlag, MAX_REPLY)
        except (BadField, RecordError) as error:
            return Frame.response_to(frame, ResponseCode.SYSTEM_ERROR, str(error))
        properties = parse_properties(header.properties or "")
        future = self._pending_replies.get(properties.get(Prop.CORRELATION_ID, ""))
        if future is not None and not future.done():
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_result(Reply(body, properties))
        return Frame.response_to(frame, ResponseCode.SUCCESS)


async def reply(producer: Producer, request: ReceivedMessage, body: bytes, timeout: float | None = None) -> SendResult:
    """Reply to a request message. Raises InvalidMessage for a message that is not a request, and as `send`."""
    properties = request.properties
    cluster = properties.get(Prop.CLUSTER)
    if not cluster or Prop.MESSAGE_REPLY_TO_CLIENT not in properties:
        raise InvalidMessage(f"{request!r} is not a request: it names no client for the reply")
    message = Message(f"{cluster}_{REPLY_TOPIC_SUFFIX}", body)
    extra = {
        Prop.MESSAGE_TYPE: "reply",
        Prop.CORRELATION_ID: properties.get(Prop.CORRELATION_ID, ""),
        Prop.MESSAGE_REPLY_TO_CLIENT: properties[Prop.MESSAGE_REPLY_TO_CLIENT],
        Prop.MESSAGE_TTL: properties.get(Prop.MESSAGE_TTL, "3000"),
    }
    return await producer.send_reply(message, extra, timeout)
