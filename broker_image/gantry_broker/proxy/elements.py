"""Counts what the bytes of a request would become, before protobuf makes objects of them. Pure.

Two bytes of a request can be an empty submessage, which costs protobuf some 150 bytes and a microsecond.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
SMALLEST: Final = 2
"""Bytes of the smallest field."""

Layout = dict[int, "Layout | None"]
"""Fields of variable length that hold others: submessages by number, and packed numbers as None."""


class TooMany(ValueError):
    """The bytes hold more fields than allowed."""


@lru_cache(maxsize=64)
def layout_of(message_class: Any) -> Layout:
    return _layout(message_class.DESCRIPTOR)


def _layout(descriptor: Descriptor) -> Layout:
    layout: Layout = {}
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            layout[field.number] = _layout(field.message_type)
        elif field.is_repeated and field.type not in _TEXTS:
            layout[field.number] = None
    return layout


def check(data: bytes, layout: Layout, most: int) -> None:
    """Check that a message has at most so many fields, those of its submessages included.

    Raises TooMany, and DecodeError for bytes that are no message. Unknown fields count as one each.
    """
    if len(data) <= most * SMALLEST:
        return
    left = most
    parts: list[tuple[int, int, Layout]] = [(0, len(data), layout)]
    while parts:
        at, end, inner_layout = parts.pop()
        while at < end:
            left -= 1
            if left < 0:
                raise TooMany(f"the request has over {most} fields")
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _number(data, at, end, tag & 0x7F)
            kind = tag & 7
            if kind == 2:
                if at >= end:
                    raise DecodeError("the message is cut off")
                size = data[at]
                at += 1
                if size >= 0x80:
                    size, at = _number(data, at, end, size & 0x7F)
                stop = at + size
                if stop > end:
                    raise DecodeError("the message is cut off")
                number = tag >> 3
                if number in inner_layout:
                    inner = inner_layout[number]
                    if inner is None:
                        left -= size
                        if left < 0:
                            raise TooMany(f"the request has over {most} fields")
                    else:
                        parts.append((at, stop, inner))
                at = stop
            elif kind == 0:
                if at >= end:
                    raise DecodeError("the message is cut off")
                if data[at] >= 0x80:
                    _, at = _number(data, at + 1, end, 0)
                else:
                    at += 1
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
            else:
                raise DecodeError("the message has a field of a kind that is not in use")


def _number(data: bytes, at: int, end: int, value: int) -> tuple[int, int]:
    """Return the number whose first seven bits are `value`, and where it ends."""
    for shift in range(7, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError("the message has a number without an end")
