"""RocketMQ's gRPC protocol at a proxy, by the library `grpcio`: what producers and consumers need of it.

Each client has one channel and one telemetry stream, by which the proxy knows its settings. All clients of a proxy are
the same for the user: errors are those of remoting.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import ssl
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.client.errors import BrokerError, ClientError, InvalidMessage, NoRoute, SendFailed
from gantry_broker.client.message import Message, ReceivedMessage, SendResult, pack_properties
from gantry_broker.client.session import BACKOFF_FIRST, next_backoff
from gantry_broker.client.transaction_state import Check, TransactionState
from gantry_broker.client.uniqueid import create_unique_key
from gantry_broker.protocol.bodies import SubscriptionData
from gantry_broker.protocol.codes import KEY_SEPARATOR, Prop, ResponseCode, SendStatus, SysFlag
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.errors import RecordError
from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.protocol.grpc_contract import (
    SERVICE,
    ClientType,
    Code,
    Encoding,
    FilterType,
    Language,
    MessageType,
    Permission,
    TransactionResolution,
    TransactionSource,
    v2,
)
from gantry_broker.protocol.message import Record
from gantry_broker.remoting.errors import ConnectError, ConnectionLost, RemotingError, RequestTimeout
from gantry_broker.remoting.tls import TlsError, TlsOptions
from gantry_broker.tasks import end_tasks, set_within
from gantry_broker.version import VERSION

try:
    import grpc
except ImportError as error:
    raise ClientError("gRPC needs the package grpcio: pip install 'gantry-mq-client[grpc]'") from error

log = logging.getLogger(__name__)

CALL_S: Final = 5.0
"""Seconds for an answer, beside the time for which a receive waits at the proxy."""
LEAST_POLL_S: Final = 5.0
"""Proxies wait for at least this time, and refuse a receive whose deadline is earlier."""
HEARTBEAT_S: Final = 10.0
AGAIN_S: Final = 1.0
"""Seconds until the telemetry stream is opened again."""
ROUTE_S: Final = 30.0
"""Seconds for which a route counts, as in RocketMQ."""
MOST: Final = 64 * 1024 * 1024
"""Bytes of a body that is unpacked, and of an answer."""
_STATUS: Final = {
    int(Code.OK): SendStatus.SEND_OK,
    int(Code.MASTER_PERSISTENCE_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(Code.SLAVE_PERSISTENCE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(Code.HA_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_CODES: Final = {
    int(Code.UNAUTHORIZED): ResponseCode.NO_PERMISSION,
    int(Code.FORBIDDEN): ResponseCode.NO_PERMISSION,
    int(Code.CONSUMER_GROUP_NOT_FOUND): ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    int(Code.INVALID_RECEIPT_HANDLE): ResponseCode.NO_MESSAGE,
    int(Code.TOO_MANY_REQUESTS): ResponseCode.SYSTEM_BUSY,
    int(Code.PROXY_TIMEOUT): ResponseCode.SYSTEM_BUSY,
    int(Code.REQUEST_TIMEOUT): ResponseCode.SYSTEM_BUSY,
    int(Code.INTERNAL_ERROR): ResponseCode.SYSTEM_BUSY,
    int(Code.INTERNAL_SERVER_ERROR): ResponseCode.SYSTEM_BUSY,
}
"""What remoting says in the same case; each other code is MESSAGE_ILLEGAL: a second try is refused, too."""
_RESOLUTION: Final = {
    TransactionState.COMMIT: TransactionResolution.COMMIT,
    TransactionState.ROLLBACK: TransactionResolution.ROLLBACK,
}
_REFUSED: Final = (Code.UNAUTHORIZED, Code.FORBIDDEN)


def refusal(what: str, status: Any) -> ClientError:
    """Return the error for a status that is not OK."""
    if status.code == Code.TOPIC_NOT_FOUND:
        return NoRoute(f"{what}: {status.message}")
    try:
        name = Code(status.code).name
    except ValueError:
        name = "unknown"
    code = _CODES.get(status.code, ResponseCode.MESSAGE_ILLEGAL)
    return BrokerError(what, code, f"{name} ({status.code}): {status.message}")


class GrpcEndpoint:
    """One client of a proxy."""

    def __init__(
        self, addresses: str, settings: Callable[[], Any], credentials: Credentials | None, tls: object | None
    ) -> None:
        """Take `settings`: it returns what the proxy is to know of this client. Raises ValueError, TlsError."""
        if isinstance(tls, ssl.SSLContext):
            raise ValueError("gRPC takes certificates as files: write tls=TlsOptions(ca_file=...), no SSLContext")
        if isinstance(tls, TlsOptions) and not tls.verify:
            raise ValueError("gRPC verifies each certificate: leave out verify=False, and name the CA by ca_file")
        self.addresses = addresses
        self.client_id = f"{os.uname().nodename if hasattr(os, 'uname') else 'host'}@{os.getpid()}@{uuid.uuid4().hex}"
        self._settings = settings
        self._credentials = credentials
        self._tls = tls if isinstance(tls, TlsOptions) else None
        self._secure = _credentials_of(self._tls) if self._tls is not None else None
        self._numbers = itertools.count(1)
        self._routes: dict[str, tuple[float, list[Any]]] = {}
        self._channel: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._greeted = asyncio.Event()
        self._refusal: Exception | None = None
        self.answered: Any = None
        """The settings as the proxy answered them; None: not yet."""
        self.on_command: Callable[[Any], None] = lambda _: None
        """Gets each command of the proxy, but for settings."""

    async def start(self) -> None:
        """Open the channel, and tell the proxy the settings. Connects when there is something to send."""
        first = self.addresses.split(",")[0]
        target = first if "," not in self.addresses else f"ipv4:{self.addresses}"
        options: list[tuple[str, Any]] = [
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.max_receive_message_length", MOST),
            ("grpc.max_send_message_length", MOST),
            ("grpc.keepalive_time_ms", 60_000),
        ]
        if self._secure is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            if self._tls is not None and self._tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", self._tls.server_name))
            self._channel = grpc.aio.secure_channel(target, self._secure, options)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._telemetry()), loop.create_task(self._heartbeats())]

    async def close(self) -> None:
        """Say goodbye, and close the channel."""
        if self._channel is None:
            return
        await end_tasks(*self._tasks)
        request = v2.NotifyClientTerminationRequest()
        group = self._group()
        if group:
            request.group.name = group
        try:
            await self.call("NotifyClientTermination", request, 1.0)
        except (RemotingError, ClientError) as error:
            log.info("%s: goodbye: %s", self.client_id, error)
        channel, self._channel = self._channel, None
        await channel.close()

    def changed(self) -> None:
        """Tell the proxy the settings again."""
        self._greeted.clear()
        self._refusal = None
        self._changed.set()

    async def greeted(self, timeout: float) -> None:
        """Wait until the proxy knows the settings. Raises RequestTimeout, BrokerError when it refuses them."""
        if not await set_within(self._greeted, timeout):
            raise RequestTimeout(f"the proxy at {self.addresses} does not answer in time")
        if self._refusal is not None:
            raise self._refusal

    async def call(self, method: str, request: Any, timeout: float = CALL_S) -> Any:
        """Return the answer, whatever its status is. Raises RemotingError, ClientError."""
        answers = getattr(v2, f"{method}Response")
        ask = self._open().unary_unary(f"{SERVICE}{method}", lambda m: m.SerializeToString(), answers.FromString)
        try:
            return await ask(request, timeout=timeout, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None

    async def receive(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        """Yield the parts of an answer. Raises as `call`."""
        answers = v2.ReceiveMessageResponse
        ask = self._open().unary_stream(f"{SERVICE}ReceiveMessage", lambda m: m.SerializeToString(), answers.FromString)
        try:
            async for part in ask(request, timeout=timeout, metadata=self._metadata()):
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from None

    def forget(self, topic: str) -> None:
        """Ask for the route of a topic again the next time."""
        self._routes.pop(topic, None)

    async def route(self, topic: str) -> list[Any]:
        """Return the queues of a topic. Raises NoRoute, BrokerError, RemotingError."""
        now = time.monotonic()
        until, cached = self._routes.get(topic, (0.0, []))
        if cached and now < until:
            return cached
        request = v2.QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.CopyFrom(self.place())
        answer = await self.call("QueryRoute", request)
        if answer.status.code != Code.OK:
            raise refusal(f"route of {topic}", answer.status)
        queues = list(answer.message_queues)
        self._routes[topic] = now + ROUTE_S, queues
        return queues

    # The streams beside the calls

    async def _telemetry(self) -> None:
        while True:
            try:
                stream = self._open().stream_stream(
                    f"{SERVICE}Telemetry", lambda m: m.SerializeToString(), v2.TelemetryCommand.FromString
                )(metadata=self._metadata())
                await self._send_settings(stream)
            except (grpc.aio.AioRpcError, ClientError) as error:
                log.info("%s: telemetry of %s: %s", self.client_id, self.addresses, _details(error))
                failure = self._failure(error) if isinstance(error, grpc.aio.AioRpcError) else error
                if isinstance(failure, BrokerError):
                    self._refuse(failure)
            if self._refusal is None:
                self._greeted.clear()
            await asyncio.sleep(AGAIN_S)

    async def _send_settings(self, stream: Any) -> None:
        """Send the settings, and again when they change, until the stream ends."""
        answers = asyncio.get_running_loop().create_task(self._read(stream))
        answers.add_done_callback(lambda _: self._changed.set())
        try:
            while not answers.done():
                self._changed.clear()
                await stream.write(v2.TelemetryCommand(settings=self._settings_now()))
                await self._changed.wait()
            await answers
        finally:
            answers.cancel()
            stream.cancel()

    async def _read(self, stream: Any) -> None:
        while (command := await stream.read()) is not grpc.aio.EOF:
            kind = command.WhichOneof("command")
            if kind == "settings":
                self.answered, self._refusal = command.settings, None
                self._greeted.set()
            elif kind is not None:
                self.on_command(command)
            elif command.status.code in _REFUSED:
                self._refuse(refusal("settings", command.status))

    def _refuse(self, why: Exception) -> None:
        """Let those who wait for the settings know that the proxy refuses them."""
        self._refusal = why
        self._greeted.set()

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            settings = self._settings()
            request = v2.HeartbeatRequest(client_type=settings.client_type)
            group = self._group()
            if group:
                request.group.name = group
            try:
                await self.call("Heartbeat", request)
            except (RemotingError, ClientError) as error:
                log.info("%s: heartbeat: %s", self.client_id, error)

    def _settings_now(self) -> Any:
        settings = self._settings()
        settings.access_point.CopyFrom(self.place())
        settings.user_agent.language = Language.PYTHON
        settings.user_agent.version = VERSION
        return settings

    def _group(self) -> str:
        settings = self._settings()
        return str(settings.subscription.group.name) if settings.WhichOneof("pub_sub") == "subscription" else ""

    def place(self) -> Any:
        """Return the proxy's addresses as the contract has them."""
        endpoints = v2.Endpoints()
        for address in self.addresses.split(","):
            host, _, port = address.rpartition(":")
            endpoints.addresses.add(host=host.strip("[]"), port=int(port))
        plain = all(whole_number(part) is not None for part in endpoints.addresses[0].host.split("."))
        endpoints.scheme = 1 if plain else 2 if ":" in endpoints.addresses[0].host else 3
        return endpoints

    def _open(self) -> Any:
        if self._channel is None:
            raise ClientError("the client is not started, or closed")
        return self._channel

    def _metadata(self) -> list[tuple[str, str]]:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        metadata = [
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", VERSION),
            ("x-mq-protocol", "v2"),
            ("x-mq-request-id", str(next(self._numbers))),
            ("x-mq-date-time", now),
        ]
        keys = self._credentials
        if keys is not None:
            signature = hmac.digest(keys.secret_key.encode(), now.encode(), "sha1").hex().upper()
            text = f"Credential={keys.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
            metadata.append(("authorization", f"MQv2-HMAC-SHA1 {text}"))
            if keys.security_token is not None:
                metadata.append(("x-mq-session-token", keys.security_token))
        return metadata

    def _failure(self, error: Any) -> Exception:
        """Return the error of a call without an answer."""
        code, text = error.code(), f"the proxy at {self.addresses}: {_details(error)}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return RequestTimeout(text)
        if code is grpc.StatusCode.UNAVAILABLE:
            return ConnectError(text) if "connect" in text.lower() else ConnectionLost(text)
        if code is grpc.StatusCode.UNAUTHENTICATED or code is grpc.StatusCode.PERMISSION_DENIED:
            return BrokerError("gRPC call", ResponseCode.NO_PERMISSION, text)
        if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL):
            return ConnectionLost(text)
        return BrokerError("gRPC call", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)


def _details(error: BaseException) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error) or type(error).__name__


def _credentials_of(tls: TlsOptions) -> Any:
    """Return what grpcio wants. Raises TlsError."""

    def content(file: Path | str | None) -> bytes | None:
        if file is None:
            return None
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise TlsError(f"{file} cannot be read: {error.strerror}") from None

    key = content(tls.key_file or tls.cert_file)
    return grpc.ssl_channel_credentials(content(tls.ca_file), key, content(tls.cert_file))


# Sending


class GrpcSender:
    """What a producer does by gRPC."""

    def __init__(
        self, addresses: str, timeout: float, max_body: int, credentials: Credentials | None, tls: object | None
    ) -> None:
        self.check: Check | None = None
        """Says what became of a half message of which the broker knows no end."""
        self._checks: set[asyncio.Task[None]] = set()
        self._topics: set[str] = set()
        self._timeout = timeout
        self._max_body = max_body
        self.endpoint = GrpcEndpoint(addresses, self._settings, credentials, tls)
        self.endpoint.on_command = self._on_command

    def know(self, topic: str) -> None:
        """Tell the proxy that this producer sends to a topic: brokers ask it about half messages there."""
        if topic not in self._topics:
            self._topics.add(topic)
            self.endpoint.changed()

    async def close(self) -> None:
        """End checks, and leave the proxy."""
        await end_tasks(*self._checks)
        await self.endpoint.close()

    def _settings(self) -> Any:
        settings = v2.Settings(client_type=ClientType.PRODUCER)
        settings.request_timeout.FromMilliseconds(int(self._timeout * 1000))
        settings.publishing.SetInParent()
        for topic in sorted(self._topics):
            settings.publishing.topics.add(name=topic)
        return settings

    def wire_message(self, message: Message, key: object, extra: dict[str, str], *, half: bool = False) -> Any:
        """Return the message of the contract. `key`: its message group; `extra`: more properties; `half`: the begin of
        a transaction. Raises InvalidMessage.
        """
        message.check(self._max_body)
        if message.deletes_key:
            raise InvalidMessage("by gRPC a message has a body: proxies refuse others. Delete a key by remoting")
        if message.delay_level:
            raise InvalidMessage("gRPC has no delay levels: write deliver_at_ms")
        if message.flag or not message.wait_stored:
            raise InvalidMessage("gRPC has neither flag nor wait_stored=False: leave them out")
        unique_key = create_unique_key()
        message.wire_properties(unique_key)  # Refuses reserved names, as by remoting.
        wire = v2.Message(body=message.body, user_properties={**message.properties, **extra})
        wire.topic.name = message.topic
        system = wire.system_properties
        system.message_id = unique_key
        system.body_encoding = Encoding.IDENTITY
        system.message_type = MessageType.NORMAL
        system.born_timestamp.FromMilliseconds(time.time_ns() // 1_000_000)
        if message.tags:
            system.tag = message.tags
        keys = message.keys.split(KEY_SEPARATOR) if isinstance(message.keys, str) else message.keys
        system.keys.extend([word for word in keys if word])
        if message.deliver_at_ms is not None:
            system.message_type = MessageType.DELAY
            system.delivery_timestamp.FromMilliseconds(message.deliver_at_ms)
        if key is not None:
            if message.deliver_at_ms is not None:
                raise InvalidMessage("by gRPC a message has a key for its order or deliver_at_ms, not both")
            system.message_type = MessageType.FIFO
            system.message_group = str(key)
        if half:
            if message.deliver_at_ms is not None:
                raise InvalidMessage("by gRPC a message has a transaction or deliver_at_ms, not both")
            system.message_type = MessageType.TRANSACTION
        return wire

    async def send(self, messages: list[Any], timeout: float) -> SendResult:
        """Send messages of one topic in one request, until a proxy answers. Raises NoRoute, BrokerError, SendFailed."""
        loop = asyncio.get_running_loop()
        deadline, pause, attempts = loop.time() + timeout, BACKOFF_FIRST, list[str]()
        while True:
            try:
                return await self._send_once(messages, max(deadline - loop.time(), 0.001))
            except (RemotingError, BrokerError) as error:
                if isinstance(error, BrokerError) and error.code != ResponseCode.SYSTEM_BUSY:
                    raise
                attempts.append(str(error))
            if loop.time() + pause >= deadline:
                raise SendFailed(str(messages[0].topic.name), attempts, timeout)
            await asyncio.sleep(pause)
            pause = next_backoff(pause)

    async def _send_once(self, messages: list[Any], timeout: float) -> SendResult:
        topic = str(messages[0].topic.name)
        self.know(topic)
        answer = await self.endpoint.call("SendMessage", v2.SendMessageRequest(messages=messages), timeout)
        entries = list(answer.entries)
        statuses = [entry.status for entry in entries] or [answer.status]
        for status in statuses:
            if status.code not in _STATUS:
                raise refusal(f"send to {topic}", status)
        worst = max((_STATUS[status.code] for status in statuses), key=list(SendStatus).index)
        if not entries:
            raise refusal(f"send to {topic}", answer.status)
        return SendResult(
            worst,
            ",".join(str(entry.message_id) for entry in entries),
            "",
            MessageQueue(topic, "", -1),
            entries[0].offset,
            entries[0].transaction_id,
            entries[0].recall_handle,
        )

    async def end_transaction(
        self, topic: str, message_id: str, transaction_id: str, state: TransactionState, *, checked: bool = False
    ) -> None:
        """Commit or roll back a half message; UNKNOWN: the broker asks later. `checked`: it has asked. If no proxy
        takes the end, the broker asks, too.
        """
        resolution = _RESOLUTION.get(state)
        if resolution is None:
            return
        source = TransactionSource.SOURCE_SERVER_CHECK if checked else TransactionSource.SOURCE_CLIENT
        request = v2.EndTransactionRequest(
            message_id=message_id, transaction_id=transaction_id, resolution=resolution, source=source
        )
        request.topic.name = topic
        try:
            answer = await self.endpoint.call("EndTransaction", request)
            if answer.status.code != Code.OK:
                raise refusal("its end", answer.status)
        except (RemotingError, ClientError) as error:
            log.warning("end of transaction %s did not arrive; the broker will ask: %s", transaction_id, error)

    def _on_command(self, command: Any) -> None:
        if command.WhichOneof("command") == "recover_orphaned_transaction_command" and self.check is not None:
            orphan = command.recover_orphaned_transaction_command
            task = asyncio.get_running_loop().create_task(self._answer_check(orphan, self.check))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _answer_check(self, orphan: Any, check: Check) -> None:
        message = ReceivedMessage(record_of(orphan.message), "")
        try:
            state = await check(message)
        except Exception:
            log.exception("check of transaction %s failed", orphan.transaction_id)
            return
        await self.end_transaction(message.topic, message.id, orphan.transaction_id, state, checked=True)

    async def recall(self, topic: str, handle: str, timeout: float) -> None:
        """Take back a message. Raises as `send`."""
        request = v2.RecallMessageRequest(recall_handle=handle)
        request.topic.name = topic
        answer = await self.endpoint.call("RecallMessage", request, timeout)
        if answer.status.code != Code.OK:
            raise refusal(f"recall in {topic}", answer.status)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic. Raises as `GrpcEndpoint.route`."""
        writable = (Permission.WRITE, Permission.READ_WRITE)
        route = await self.endpoint.route(topic)
        return [MessageQueue(topic, q.broker.name, q.id) for q in route if q.permission in writable]


# Receiving


class GrpcReceiver:
    """What a consumer does by gRPC."""

    def __init__(
        self,
        addresses: str,
        group: str,
        credentials: Credentials | None,
        tls: object | None,
        kind: ClientType = ClientType.SIMPLE_CONSUMER,
    ) -> None:
        """`kind`: for a PUSH_CONSUMER the proxy renews the invisible time of messages as long as it is there."""
        self.group = group
        self._kind = kind
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.endpoint = GrpcEndpoint(addresses, self._settings, credentials, tls)

    def _settings(self) -> Any:
        settings = v2.Settings(client_type=self._kind)
        settings.request_timeout.FromMilliseconds(int(CALL_S * 1000))
        settings.subscription.group.name = self.group
        for topic, data in sorted(self.subscriptions.items()):
            entry = settings.subscription.subscriptions.add()
            entry.topic.name = topic
            entry.expression.CopyFrom(_filter(data))
        return settings

    def subscribe(self, topic: str, data: SubscriptionData) -> None:
        self.subscriptions[topic] = data
        self.endpoint.changed()

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.pop(topic, None)
        self.endpoint.changed()

    async def brokers(self, topic: str) -> list[str]:
        """Return the broker groups from which a topic can be read. Raises as `GrpcEndpoint.route`."""
        readable = (Permission.READ, Permission.READ_WRITE)
        return sorted({q.broker.name for q in await self.endpoint.route(topic) if q.permission in readable})

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that a push consumer is to read; -1 is all of a broker group. Raises as `pop`."""
        await self.endpoint.greeted(CALL_S)
        request = v2.QueryAssignmentRequest()
        request.topic.name, request.group.name = topic, self.group
        request.endpoints.CopyFrom(self.endpoint.place())
        answer = await self.endpoint.call("QueryAssignment", request)
        if answer.status.code != Code.OK:
            raise refusal(f"queues of {topic}", answer.status)
        assigned = [assignment.message_queue for assignment in answer.assignments]
        return sorted({MessageQueue(topic, queue.broker.name, queue.id) for queue in assigned})

    async def pop(
        self, queue: MessageQueue, most: int, invisible_s: float | None, wait_s: float, attempt: str = ""
    ) -> list[tuple[Record, str]]:
        """Return messages, each with its receipt handle. `invisible_s` None: the proxy renews it. `attempt`: the mark
        of an orderly receive, with which the same messages come if the answer is lost. Raises BrokerError,
        RemotingError, NoRoute.
        """
        topic = queue.topic
        await self.endpoint.greeted(CALL_S)
        request = v2.ReceiveMessageRequest(batch_size=most, auto_renew=invisible_s is None)
        request.group.name = self.group
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = queue.broker
        request.message_queue.id = queue.queue_id
        request.message_queue.permission = Permission.READ_WRITE
        request.filter_expression.CopyFrom(_filter(self.subscriptions[topic]))
        if invisible_s is not None:
            request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        if attempt:
            request.attempt_id = attempt
        wait_s = max(wait_s, LEAST_POLL_S)
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        messages: list[tuple[Record, str]] = []
        async for part in self.endpoint.receive(request, wait_s + CALL_S):
            kind = part.WhichOneof("content")
            if kind == "message":
                messages.append((record_of(part.message), str(part.message.system_properties.receipt_handle)))
            elif kind == "status" and part.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                raise refusal(f"receive from {topic}", part.status)
        return messages

    async def ack(self, topic: str, entries: list[tuple[str, str]]) -> list[str]:
        """Acknowledge (message id, receipt handle), and return the handles that were too late. Raises as `pop`."""
        request = v2.AckMessageRequest()
        request.group.name, request.topic.name = self.group, topic
        for message_id, handle in entries:
            request.entries.add(message_id=message_id, receipt_handle=handle)
        answer = await self.endpoint.call("AckMessage", request)
        late = []
        statuses = [(entry.receipt_handle, entry.status) for entry in answer.entries]
        for handle, status in statuses or [(handle, answer.status) for _, handle in entries]:
            if status.code == Code.INVALID_RECEIPT_HANDLE:
                late.append(str(handle))
            elif status.code != Code.OK:
                raise refusal(f"ack in {topic}", status)
        return late

    async def change(self, topic: str, message_id: str, handle: str, duration_s: float, suspend: bool) -> str:
        """Change until when a message is invisible. Returns its new handle. Raises as `pop`."""
        request = v2.ChangeInvisibleDurationRequest(receipt_handle=handle, message_id=message_id)
        request.group.name, request.topic.name = self.group, topic
        request.invisible_duration.FromMilliseconds(int(duration_s * 1000))
        if suspend:
            request.suspend = True
        answer = await self.endpoint.call("ChangeInvisibleDuration", request)
        if answer.status.code != Code.OK:
            raise refusal(f"change of invisible time of {message_id}", answer.status)
        return str(answer.receipt_handle)

    async def to_dead_letters(self, topic: str, message_id: str, handle: str, attempt: int, most: int) -> None:
        """Make a dead letter of a message after `attempt` of `most` deliveries. Raises as `pop`."""
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=handle, message_id=message_id, delivery_attempt=attempt, max_delivery_attempts=most
        )
        request.group.name, request.topic.name = self.group, topic
        answer = await self.endpoint.call("ForwardMessageToDeadLetterQueue", request)
        if answer.status.code != Code.OK:
            raise refusal(f"dead letter of {message_id}", answer.status)


def _filter(data: SubscriptionData) -> Any:
    kind = FilterType.TAG if data.expression_type == "TAG" else FilterType.SQL
    return v2.FilterExpression(type=kind, expression=data.expression)


def record_of(message: Any) -> Record:
    """Return a message of the contract as a stored one."""
    system = message.system_properties
    body = bytes(message.body)
    compressed = 0
    if system.body_encoding == Encoding.GZIP:
        try:
            body = _unpacked(body)
        except RecordError as error:
            log.warning("message %s of %s: %s", system.message_id, message.topic.name, error)
            compressed = SysFlag.COMPRESSED  # Who reads the body gets the error; the other messages are not held up.
    properties = dict(message.user_properties)
    properties[Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = system.message_id
    if system.HasField("tag"):
        properties[Prop.TAGS] = system.tag
    if system.keys:
        properties[Prop.KEYS] = KEY_SEPARATOR.join(system.keys)
    if system.HasField("message_group"):
        properties[Prop.SHARDING_KEY] = system.message_group
    if system.HasField("delivery_timestamp"):
        properties[Prop.TIMER_DELIVER_MS] = str(system.delivery_timestamp.ToMilliseconds())
    record = Record()
    record.size = record.magic = record.body_crc = record.flag = 0
    record.sys_flag = compressed
    record.phys_offset = record.prepared_offset = 0
    record.queue_id, record.queue_offset = system.queue_id, system.queue_offset
    record.born_ms, record.born_host = system.born_timestamp.ToMilliseconds(), (str(system.born_host), 0)
    record.store_ms = system.store_timestamp.ToMilliseconds()
    record.store_host = str(system.store_host).rpartition(":")[0], 0
    record.reconsume_times = max(system.delivery_attempt - 1, 0)
    record.body, record.topic = body, str(message.topic.name)
    record.properties = pack_properties(properties)
    return record


def _unpacked(body: bytes) -> bytes:
    """Return a body as it was sent. Raises RecordError for one that is damaged, or over `MOST` bytes."""
    try:
        unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # GZIP's header or zlib's: RocketMQ stores both.
        unpacked = unpacking.decompress(body, MOST + 1)
    except zlib.error as error:
        raise RecordError(f"the body cannot be unpacked: {error}") from None
    if len(unpacked) > MOST or not unpacking.eof:
        raise RecordError(f"the body is cut off, or has more than {MOST} bytes")
    return unpacked
