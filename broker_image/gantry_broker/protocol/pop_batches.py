"""Acknowledgements of several messages in one request, as both of its ends see them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gantry_broker.protocol import fastjson
from gantry_broker.protocol.bodies import MAX_ACKS, MAX_BITS, BatchAck, BatchAcks
from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.pop_handle import Handle

RESULTS: Final = "results"
"""Field of the request: the answer shall name what had no effect."""
NO_EFFECT: Final = "noEffect"
"""Field of the answer: the acknowledgements without an effect, each as its entry's number and its queue offset."""


def batch_of(group: str, topic: str, handles: Sequence[Handle]) -> BatchAcks | None:
    """Return the request for messages of one broker group; None: one request cannot hold them."""
    entries: dict[tuple[int, int, int, int, int, int], BatchAck] = {}
    if not 0 < len(handles) <= MAX_ACKS:
        return None
    for start, pop_ms, invisible_ms, revive, kind, _, queue_id, offset in handles:
        if not start <= offset < start + MAX_BITS * 8:
            return None
        place = kind, queue_id, start, revive, pop_ms, invisible_ms
        entry = entries.get(place)
        if entry is None:
            entry = entries[place] = BatchAck(group, topic, kind, start, queue_id, revive, pop_ms, invisible_ms, 0)
        entry.bits |= 1 << offset - start
    return BatchAcks(handles[0].broker, list(entries.values()))


def batch_frame(batch: BatchAcks) -> Frame:
    """Return the request, which asks for what has no effect."""
    body = fastjson.dumps(batch.to_json())
    return Frame(RequestCode.BATCH_ACK_MESSAGE, ext={"bname": batch.broker, RESULTS: "true"}, body=body)


def without_effect(batch: BatchAcks, answer: Frame) -> set[Handle] | None:
    """Return the handles that an answer names; None: it says nothing about them, as other brokers' answers. Raises
    ValueError.
    """
    text = answer.ext.get(NO_EFFECT)
    if text is None:
        return None
    handles = set()
    for part in text.split(";") if text else ():
        number, _, offset = part.partition(":")
        place, at = whole_number(number, 0, len(batch.acks) - 1), whole_number(offset)
        if place is None or at is None:
            raise ValueError(f"the batch has no entry {part[:40]!r}")
        entry = batch.acks[place]
        handles.add(
            Handle(
                entry.start_offset, entry.pop_ms, entry.invisible_ms, entry.revive_queue, entry.kind, batch.broker,
                entry.queue_id, at,
            )
        )  # fmt: skip
    return handles


def named(places: Iterable[tuple[int, int]]) -> str:
    """Return the field of the answer."""
    return ";".join([f"{number}:{offset}" for number, offset in places])
