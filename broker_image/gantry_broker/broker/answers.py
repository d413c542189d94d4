"""Answers to sends as bytes, without an object or an encoder per message: what the hot path writes.

The fields are those that 4.9.7 answers: msgId (offset id), queueId, queueOffset, MSG_REGION, TRACE_ON; and
transactionId for half messages, which clients in other languages read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import orjson

from gantry_broker.protocol.codes import DEFAULT_REGION, FLAG_RESPONSE, MQ_VERSION

_LENGTHS = Struct(">iI")
_COMPACT = Struct(">hBhiii")
_FIELD = Struct(">h")
_VALUE = Struct(">i")
_JAVA: Final = 0


Pending = tuple[int, int, int, int, str, str | None]
"""A stored send whose answer waits for the promise: opaque, serialize type, queue, queue offset, message ids,
transaction id. A plain tuple: there is one for every send."""


def send_answer(code: int, pending: Pending) -> bytes:
    """The frame of one answer."""
    opaque, serialize, queue_id, queue_offset, message_id, transaction_id = pending
    if serialize == 0:
        more = "" if transaction_id is None else f'"transactionId":{_json_text(transaction_id)},'
        header = (
            f'{{"code":{code},"extFields":{{"queueId":"{queue_id}","TRACE_ON":"true","MSG_REGION":"{DEFAULT_REGION}",'
            f'{more}"msgId":"{message_id}","queueOffset":"{queue_offset}"}},"flag":{FLAG_RESPONSE},"language":"JAVA",'
            f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
        ).encode()
        size = len(header)
        return _LENGTHS.pack(size + 4, size) + header
    fields = [
        ("msgId", message_id),
        ("queueId", str(queue_id)),
        ("queueOffset", str(queue_offset)),
        ("TRACE_ON", "true"),
        ("MSG_REGION", DEFAULT_REGION),
    ]
    if transaction_id is not None:
        fields.append(("transactionId", transaction_id))
    ext = b"".join(
        _FIELD.pack(len(name)) + name.encode() + _VALUE.pack(len(raw := value.encode())) + raw for name, value in fields
    )
    header = _COMPACT.pack(code, _JAVA, MQ_VERSION, opaque, FLAG_RESPONSE, 0) + _VALUE.pack(len(ext)) + ext
    size = len(header)
    return _LENGTHS.pack(size + 4, 1 << 24 | size) + header


def _json_text(text: str) -> str:
    """A client's own text as a JSON string."""
    return orjson.dumps(text).decode()
