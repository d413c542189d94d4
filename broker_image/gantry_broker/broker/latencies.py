"""Histograms of a member's latencies. They count batches at the weight of their messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gantry_broker.histogram import LATENCY_S, PUT_MS, RPC_MS, Exemplar, Histogram
from gantry_broker.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode

Result = Literal["success", "oneway"]

MAX_RPC: Final = 1_000
"""Histograms of requests, by code, code of the answer and the rest; further ones are not counted."""
UNSUPPORTED: Final = -1
"""Stands for the codes of requests that no handler has."""
_CODES: Final = {int(code): code.name.lower() for code in RequestCode}
_ANSWERS: Final = {int(code): code.name.lower() for code in ResponseCode}


class RpcLatencies:
    """Milliseconds from the arrival of a request to its answer, by what `rocketmq_rpc_latency_milliseconds` names."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int, Result, bool], Histogram] = {}

    def observe(
        self, request: int, answer: int, seconds: float, times: int = 1, flag: int = 0, held: bool = False
    ) -> None:
        """Count `times` requests. `flag`: of their frames. `held`: they waited for messages."""
        histogram = self.histogram(request, answer, "oneway" if flag & FLAG_ONEWAY else "success", held)
        if histogram is not None:
            histogram.observe(seconds * 1000, times)

    def observe_held(self, request: int, answer: int, milliseconds: Sequence[int]) -> None:
        """Count requests that were held, each with its own time."""
        histogram = self.histogram(request, answer, "success", True)
        if histogram is not None:
            histogram.observe_all(milliseconds)

    def histogram(self, request: int, answer: int, result: Result = "success", held: bool = False) -> Histogram | None:
        """Return the histogram of these requests, in milliseconds; None: there are too many kinds."""
        key = (request, answer, result, held)
        histogram = self._found.get(key)
        if histogram is None and len(self._found) < MAX_RPC:
            histogram = self._found[key] = Histogram(RPC_MS)
        return histogram

    def rows(self) -> Iterator[tuple[dict[str, str], Histogram]]:
        """Yield the histograms with the labels that RocketMQ has."""
        for (request, answer, result, held), histogram in sorted(self._found.items()):
            labels = {
                "protocol_type": "remoting",
                "request_code": "unsupported" if request == UNSUPPORTED else _CODES.get(request, str(request)),
                "response_code": _ANSWERS.get(answer, str(answer)),
                "result": result,
                "is_long_polling": "true" if held else "false",
            }
            yield labels, histogram


def _seconds() -> Histogram:
    return Histogram(LATENCY_S)


MAX_ROWS: Final = 256
"""Rows of `SendTimes` that wait, at most."""
_TRACE: Final = re.compile(
    rb"(?:^|\x02)(?:traceparent|TRACE_CONTEXT)\x01[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-|\x02|$)"
)
"""W3C trace context in the properties of a message; RocketMQ 5's gRPC clients use the second name."""

SendRow = tuple[float, float, float, int, int, int, bytes]
"""Seconds until the answer, of the append, until the confirmation; messages, requests, Unix ms, properties of the first
message.
"""


class SendTimes:
    """The times of sends that took the usual path, one row for all sends of one read.

    The sender only appends a row, and `settle` counts many of them in few steps.
    """

    def __init__(self, latencies: Latencies) -> None:
        latencies.rpc.histogram(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS)  # Keeps a place for it.
        self._latencies = latencies
        self._rows: dict[int, list[SendRow]] = {
            int(RequestCode.SEND_MESSAGE_V2): [],
            int(RequestCode.SEND_BATCH_MESSAGE): [],
        }

    def add(self, request: int, row: SendRow) -> None:
        """Note the times of the sends of one read, all of this request code."""
        rows = self._rows[request]
        rows.append(row)
        if len(rows) >= MAX_ROWS:
            self.settle()

    def settle(self) -> None:
        """Count all rows."""
        for request, rows in self._rows.items():
            self._settle(request, rows)

    def _settle(self, request: int, rows: list[SendRow]) -> None:
        if not rows:
            return
        send, append, confirmed, messages, requests, at_ms, properties = zip(*rows, strict=True)
        rows.clear()
        latencies = self._latencies
        stored, answered = sum(messages), sum(requests)
        latencies.send.observe_weighted(send, requests, answered)
        latencies.append.observe_weighted(append, messages, stored)
        latencies.put_ms.observe_weighted(append, messages, stored, 1000)
        latencies.replication.observe_weighted(confirmed, requests, answered)
        if (rpc := latencies.rpc.histogram(request, ResponseCode.SUCCESS)) is not None:
            rpc.observe_weighted(send, requests, answered, 1000)
        together = b"".join(properties)
        if b"traceparent" not in together and b"TRACE_CONTEXT" not in together:
            return
        for number, text in enumerate(properties):
            if (b"traceparent" in text or b"TRACE_CONTEXT" in text) and (trace := sampled_trace(text)):
                latencies.send.exemplify(Exemplar(send[number], *trace, at_ms[number]))
                latencies.append.exemplify(Exemplar(append[number], *trace, at_ms[number]))


def sampled_trace(properties: bytes) -> tuple[str, str] | None:
    """Return the ids of trace and span of a message, if its sender samples the trace. `properties`: as stored."""
    match = _TRACE.search(properties)
    if match is None or not int(match[3], 16) & 1 or not match[1].strip(b"0") or not match[2].strip(b"0"):
        return None
    return match[1].decode(), match[2].decode()


@dataclass(slots=True)
class Latencies:
    """One member's latencies since its start, in seconds."""

    send: Histogram = field(default_factory=_seconds)
    """From the arrival of a send until its answer is written."""
    append: Histogram = field(default_factory=_seconds)
    """The append of a batch of sends to the log."""
    put_ms: Histogram = field(default_factory=lambda: Histogram(PUT_MS))
    """The same in milliseconds, with RocketMQ's buckets."""
    replication: Histogram = field(default_factory=_seconds)
    """From the end of the append until the records are confirmed."""
    flush: Histogram = field(default_factory=_seconds)
    """One fsync of the log, from its request to its end."""
    pull: Histogram = field(default_factory=_seconds)
    """From the arrival of a pull to its answer. A held pull counts from the moment at which its queue grew."""
    rpc: RpcLatencies = field(default_factory=RpcLatencies)
    """All requests of clients."""
    sends: SendTimes = field(init=False)
    """Rows that are not counted yet; settle them before you read the histograms."""

    def __post_init__(self) -> None:
        self.sends = SendTimes(self)
