"""Answers to sends as bytes, without an object or an encoder for each message: the hot path writes them.

The fields are those of 4.9.7: msgId (offset id), queueId, queueOffset, MSG_REGION, TRACE_ON; transactionId for half
messages, which clients in other languages read; and recallHandle for timer messages (5.x).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

from gantry_broker.protocol.codes import DEFAULT_REGION, FLAG_RESPONSE, MQ_VERSION, LanguageCode
from gantry_broker.protocol.frame import Frame, encode_frame

_LENGTHS: Final = Struct(">iI")
_OPAQUE: Final = f'"}},"flag":{FLAG_RESPONSE},"language":"JAVA","opaque":'.encode()
_END: Final = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'.encode()


More = tuple[str, str]
"""Name and value of the field that only some answers have."""
Pending = tuple[int, int, int, int, int | str, More | None]
"""A stored send whose answer waits for confirmation: opaque, serialize type, queue, queue offset, offset in the log
(for a batch: the ids of all its messages), one more field. A plain tuple: there is one for every send.
"""


def send_answers(code: int, host: str, pending: list[Pending]) -> bytes:
    """Return the frames of all answers. `host`: the store host in hexadecimal, as message ids begin with it."""
    parts: list[bytes] = []
    pack = _LENGTHS.pack
    start, middle = _constant(code, host)
    for one in pending:
        opaque, serialize, queue_id, queue_offset, place, more = one
        if serialize == 0 and more is None and type(place) is int:
            numbers = (start, queue_id, middle, place, queue_offset, _OPAQUE, opaque, _END)
            header = b'%b%d%b%016X","queueOffset":"%d%b%d%b' % numbers
            size = len(header)
            parts += (pack(size + 4, size), header)
        else:
            parts.append(_slow_path(code, host, one))
    return b"".join(parts)


@lru_cache
def _constant(code: int, host: str) -> tuple[bytes, bytes]:
    """Return the begin of a header, and what stands between its queue and its offset."""
    start = f'{{"code":{code},"extFields":{{"queueId":"'
    return start.encode(), f'","TRACE_ON":"true","MSG_REGION":"{DEFAULT_REGION}","msgId":"{host}'.encode()


def _slow_path(code: int, host: str, pending: Pending) -> bytes:
    """Return the frame of one answer of any kind."""
    opaque, serialize, queue_id, queue_offset, place, more = pending
    fields = {
        "msgId": f"{host}{place:016X}" if isinstance(place, int) else place,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "TRACE_ON": "true",
        "MSG_REGION": DEFAULT_REGION,
    }
    if more is not None:
        fields[more[0]] = more[1]
    return encode_frame(Frame(code, opaque, FLAG_RESPONSE, fields, serialize=serialize, language=LanguageCode.JAVA))
