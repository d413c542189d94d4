"""The bytes of the answers that are made for each message, written without protobuf's objects. Pure.

What these functions write is what protobuf writes for the same message of `contract`; fields with their default are
left out, as protobuf leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable


def number(value: int) -> bytes:
    """Return a varint of 0 or more."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, data: bytes) -> bytes:
    """Return a field of text, bytes or a message; `tag` is its number times 8 and 2, below 128."""
    size = len(data)
    return bytes((tag, size)) + data if size < 0x80 else bytes((tag,)) + number(size) + data


def text(tag: int, value: str) -> bytes:
    """Return a field of text; nothing if it is empty."""
    return field(tag, value.encode()) if value else b""


def time_field(tag: int, milliseconds: int) -> bytes:
    """Return a field with a Timestamp of 0 or more."""
    seconds, rest = divmod(milliseconds, 1_000)
    inner = b"\x08" + number(seconds) if seconds else b""
    return field(tag, inner + b"\x10" + number(rest * 1_000_000) if rest else inner)


def send_answer(status: bytes, message_id: str, transaction_id: str, offset: int, recall_handle: str) -> bytes:
    """Return a SendMessageResponse with one entry, whose status is that of the answer."""
    head = field(0x0A, status)
    entry = head + field(0x12, message_id.encode()) + field(0x1A, transaction_id.encode())
    if offset:
        entry += b"\x20" + number(offset)
    return head + field(0x12, entry + text(0x2A, recall_handle))


def ack_answer(status: bytes, entries: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Return an AckMessageResponse. `entries`: message id, handle and status of each one."""
    parts = [field(0x0A, status)]
    for message_id, handle, result in entries:
        parts.append(field(0x12, text(0x0A, message_id) + text(0x12, handle) + field(0x1A, result)))
    return b"".join(parts)
