"""The bytes of the answers that are made for each message, written without protobuf's objects. Pure.

What these functions write is what protobuf writes for the same message of `contract`; fields with their default are
left out, as protobuf leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = tuple(_varint(value) for value in range(4_096))
_MILLIS: Final = (b"", *(b"\x10" + _varint(rest * 1_000_000) for rest in range(1, 1_000)))
"""The field `nanos` of each part of a second."""


def number(value: int) -> bytes:
    """Return a varint of 0 or more."""
    return _SMALL[value] if value < 4_096 else _varint(value)


def field(tag: bytes, data: bytes) -> bytes:
    """Return a field of text, bytes or a message; `tag` is its number and its kind."""
    size = len(data)
    return tag + (_SMALL[size] if size < 4_096 else _varint(size)) + data


def text(tag: bytes, value: str) -> bytes:
    """Return a field of text; nothing if it is empty."""
    return field(tag, value.encode()) if value else b""


def time_field(tag: bytes, milliseconds: int) -> bytes:
    """Return a field with a Timestamp of 0 or more."""
    seconds, rest = divmod(milliseconds, 1_000)
    inner = _seconds(seconds) + _MILLIS[rest]
    return tag + _SMALL[len(inner)] + inner


@lru_cache(maxsize=256)
def _seconds(value: int) -> bytes:
    return b"\x08" + number(value) if value else b""


def send_answer(status: bytes, message_id: str, transaction_id: str, offset: int, recall_handle: str) -> bytes:
    """Return a SendMessageResponse with one entry, whose status is that of the answer."""
    head = field(b"\x0a", status)
    entry = head + field(b"\x12", message_id.encode()) + field(b"\x1a", transaction_id.encode())
    if offset:
        entry += b"\x20" + number(offset)
    return head + field(b"\x12", entry + text(b"\x2a", recall_handle))


def ack_answer(status: bytes, entries: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Return an AckMessageResponse. `entries`: message id, handle and status of each one."""
    parts = [field(b"\x0a", status)]
    for message_id, handle, result in entries:
        parts.append(field(b"\x12", text(b"\x0a", message_id) + text(b"\x12", handle) + field(b"\x1a", result)))
    return b"".join(parts)


def signed(value: int) -> bytes:
    """Return a varint of an int32, which may be negative."""
    return number(value if value >= 0 else value + (1 << 64))


def queue_part(topic: bytes, broker: str, endpoints: bytes, types: Iterable[int]) -> Callable[[int, int], bytes]:
    """Return the function that gives the bytes of a MessageQueue of a group's master, by its number and permission.
    `topic` and `endpoints`: the bytes of a Resource and of Endpoints.
    """
    head = field(b"\x0a", topic)
    packed = b"".join(map(number, types))
    tail = field(b"\x22", text(b"\x0a", broker) + field(b"\x1a", endpoints)) + (
        field(b"\x2a", packed) if packed else b""
    )

    def queue(number_: int, permission: int) -> bytes:
        return head + (b"\x10" + signed(number_) if number_ else b"") + b"\x18" + number(permission) + tail

    return queue
