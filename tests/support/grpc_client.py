"""A small blocking client of the gRPC endpoint over grpcio, for tests and e2e."""

from __future__ import annotations

import hmac
import itertools
import queue
import time
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.grpc_contract import SERVICE, Code, v2


class Refused(Exception):
    """The answer has another code than OK."""

    def __init__(self, status: Any) -> None:
        super().__init__(f"{status.code} {status.message}")
        self.code = int(status.code)


class GrpcClient:
    """One connection. `ca`: authorities as PEM; None: clear text."""

    def __init__(self, address: str, credentials: Credentials | None = None, ca: bytes | None = None) -> None:
        # The first is also the time for one attempt, with its TLS handshake.
        options = [("grpc.min_reconnect_backoff_ms", 5_000), ("grpc.initial_reconnect_backoff_ms", 100),
                   ("grpc.max_reconnect_backoff_ms", 500)]  # fmt: skip
        if ca is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), options)
        self._credentials = credentials
        self._id = f"test@{uuid.uuid4().hex[:12]}"
        self._number = itertools.count(1)
        self._telemetry: Any = None

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._telemetry is not None:
            self._telemetry.cancel()
        self._channel.close()

    def send(self, topic: str, body: bytes, timeout: float = 3.0) -> str:
        """Returns the message id. Raises Refused and grpc.RpcError."""
        message = v2.Message(body=body)
        message.topic.name = topic
        message.system_properties.message_id = f"01{uuid.uuid4().hex.upper()}"[:34]
        message.system_properties.message_type = 1
        message.system_properties.body_encoding = 1
        answer = self._unary("SendMessage", v2.SendMessageRequest(messages=[message]), timeout)
        _check(answer.status)
        _check(answer.entries[0].status)
        return str(answer.entries[0].message_id)

    def route(self, topic: str, timeout: float = 5.0) -> list[Any]:
        request = v2.QueryRouteRequest()
        request.topic.name = topic
        answer = self._unary("QueryRoute", request, timeout)
        _check(answer.status)
        return list(answer.message_queues)

    def _introduce(self, group: str) -> None:
        """Open the stream of settings, without which a proxy serves no consumer."""
        if self._telemetry is not None:
            self._telemetry.cancel()
        command = v2.TelemetryCommand()
        command.settings.client_type = 3
        command.settings.subscription.group.name = group
        begun: queue.Queue[Any] = queue.Queue()
        begun.put(command)
        call = self._channel.stream_stream(
            f"{SERVICE}Telemetry", lambda m: m.SerializeToString(), v2.TelemetryCommand.FromString
        )
        self._telemetry = call(iter(begun.get, None), metadata=self._metadata())
        next(self._telemetry)

    def receive(self, topic: str, group: str, wait_s: float = 5.0, invisible_s: int = 30) -> list[Any]:
        """Up to 32 messages of all queues of one broker."""
        request = v2.ReceiveMessageRequest(batch_size=32)
        request.group.name = group
        request.message_queue.topic.name = topic
        request.message_queue.broker.name = self.route(topic)[0].broker.name
        request.message_queue.id = -1
        request.filter_expression.type = 1
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        if self._telemetry is None or self._telemetry.done():
            self._introduce(group)
        found = []
        for answer in self._stream("ReceiveMessage", request, v2.ReceiveMessageResponse, wait_s + 5):
            kind = answer.WhichOneof("content")
            if kind == "message":
                found.append(answer.message)
            elif kind == "status" and answer.status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                raise Refused(answer.status)
        return found

    def ack(self, topic: str, group: str, message: Any, timeout: float = 5.0) -> None:
        properties = message.system_properties
        entry = v2.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        request = v2.AckMessageRequest(entries=[entry])
        request.group.name, request.topic.name = group, topic
        _check(self._unary("AckMessage", request, timeout).status)

    def _unary(self, method: str, request: Any, timeout: float) -> Any:
        answers = getattr(v2, f"{method}Response")
        call = self._channel.unary_unary(f"{SERVICE}{method}", lambda m: m.SerializeToString(), answers.FromString)
        return call(request, timeout=timeout, metadata=self._metadata())

    def _stream(self, method: str, request: Any, answers: Any, timeout: float) -> Iterator[Any]:
        call = self._channel.unary_stream(f"{SERVICE}{method}", lambda m: m.SerializeToString(), answers.FromString)
        return iter(call(request, timeout=timeout, metadata=self._metadata()))

    def _metadata(self) -> list[tuple[str, str]]:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        found = [("x-mq-client-id", self._id), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"),
                 ("x-mq-request-id", str(next(self._number))), ("x-mq-date-time", now)]  # fmt: skip
        if self._credentials is not None:
            signature = hmac.digest(self._credentials.secret_key.encode(), now.encode(), "sha1").hex().upper()
            text = f"Credential={self._credentials.access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
            found.append(("authorization", f"MQv2-HMAC-SHA1 {text}"))
        return found


def _check(status: Any) -> None:
    if status.code != Code.OK:
        raise Refused(status)
