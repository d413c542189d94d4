"""OpenTelemetry: spans for send, receive and process, and W3C trace context in the properties of messages.

A client has spans if its program gives it a tracer provider, or has set one for the process before the client starts.
OpenTelemetry is not imported otherwise. Names and attributes follow OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gantry_broker.client.message import Message, ReceivedMessage, SendResult
from gantry_broker.protocol.codes import Prop
from gantry_broker.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

SCOPE: Final = "gantry_broker.client"
MOST_LINKS: Final = 128
"""Messages of one pull to which its span links."""


def spans_of(provider: TracerProvider | None, group: str) -> Spans | None:
    """Return the spans of a client; None: no tracer is configured."""
    if provider is None:
        api = sys.modules.get("opentelemetry.trace")
        if api is None:
            return None
        provider = api.get_tracer_provider()
        if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
            return None
    assert provider is not None
    return Spans(provider.get_tracer(SCOPE, VERSION), group)


class Spans:
    """The spans of one producer or consumer."""

    def __init__(self, tracer: Tracer, group: str) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._propagate = propagate
        self._tracer = tracer
        self._group = group

    @contextmanager
    def send(self, messages: Sequence[Message]) -> Iterator[tuple[Span, dict[str, str]]]:
        """Yield a span around a send, with the properties that carry its context."""
        first = messages[0]
        attributes = self._attributes("send", "send", first.topic)
        attributes["messaging.message.body.size"] = sum(len(message.body) for message in messages)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        if first.tags:
            attributes["messaging.rocketmq.message.tag"] = first.tags
        if first.keys:
            keys = first.keys.split() if isinstance(first.keys, str) else list(first.keys)
            attributes["messaging.rocketmq.message.keys"] = keys
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"send {first.topic}", kind=kind, attributes=attributes) as span:
            properties: dict[str, str] = {}
            self._propagate.inject(properties)
            yield span, properties

    @staticmethod
    def sent(span: Span, result: SendResult) -> None:
        """Note what the broker answered."""
        if span.is_recording():
            span.set_attribute("messaging.message.id", result.message_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
            span.set_attribute("gantry.broker", result.queue.broker)
            span.set_attribute("gantry.send_status", result.status.name)

    def received(self, topic: str, messages: Sequence[ReceivedMessage], begun_ns: int) -> None:
        """Record a span of a pull that brought messages. `begun_ns`: Unix nanoseconds."""
        attributes = self._attributes("receive", "receive", topic)
        attributes["messaging.batch.message_count"] = len(messages)
        contexts = (self._creation(message) for message in messages[:MOST_LINKS])
        links = [self._trace.Link(context) for context in contexts if context is not None]
        kind = self._trace.SpanKind.CONSUMER
        self._tracer.start_span(
            f"receive {topic}", kind=kind, attributes=attributes, links=links, start_time=begun_ns
        ).end(time.time_ns())

    @contextmanager
    def process(self, message: ReceivedMessage) -> Iterator[Span]:
        """Yield a span around the application's handler, in the trace of the producer."""
        attributes = self._attributes("process", "process", message.topic)
        attributes["messaging.message.id"] = message.id
        attributes["messaging.destination.partition.id"] = str(message.queue_id)
        attributes["messaging.message.body.size"] = len(message.record.body)
        if message.tags:
            attributes["messaging.rocketmq.message.tag"] = message.tags
        if message.keys:
            attributes["messaging.rocketmq.message.keys"] = list(message.keys)
        if message.reconsume_times:
            attributes["gantry.reconsume_times"] = message.reconsume_times
        kind = self._trace.SpanKind.CONSUMER
        context = self._context(message)
        with self._tracer.start_as_current_span(
            f"process {message.topic}", context=context, kind=kind, attributes=attributes
        ) as span:
            yield span

    def raised(self, error: BaseException) -> None:
        """Note what the application's handler raised."""
        self._trace.get_current_span().record_exception(error)

    def failed(self, span: Span, why: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, why))

    def _attributes(self, name: str, kind: str, topic: str) -> dict[str, Any]:
        return {
            "messaging.system": "rocketmq",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
            "messaging.consumer.group.name" if kind != "send" else "messaging.rocketmq.client_group": self._group,
        }

    def _context(self, message: ReceivedMessage) -> Context:
        """Return the context in which a message was sent. Clients of RocketMQ 5 name it differently."""
        properties = message.properties
        if "traceparent" not in properties and Prop.TRACE_CONTEXT in properties:
            properties = {**properties, "traceparent": properties[Prop.TRACE_CONTEXT]}
        return self._propagate.extract(properties)

    def _creation(self, message: ReceivedMessage) -> SpanContext | None:
        context = self._trace.get_current_span(self._context(message)).get_span_context()
        return context if context.is_valid else None
