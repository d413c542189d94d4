"""Checks the archive at the end of a run: what was acknowledged is in it, or in a gap that it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gantry_broker.archive.chain import GroupArchive
from gantry_broker.archive.inspection import verify
from gantry_broker.archive.manifest import State
from gantry_broker.archive.segment import read_range
from gantry_broker.store.log.record_reader import decode_records

from tests.chaos.history import Sent


class Final(NamedTuple):
    """The leader's log at the end."""

    start: int
    confirmed: int
    data: bytes
    """Its bytes from `start` on."""


def check_archive(group: GroupArchive, final: Final, promised: Iterable[Sent], *, sync: bool) -> Iterator[str]:
    """Yield the faults. `sync`: no acknowledged record may be lost. Raises ArchiveError."""
    state = group.load()
    if state.end < final.confirmed:
        yield f"NOT ARCHIVED: the archive ends at {state.end}, the log at {final.confirmed}"
    if sync and state.base:
        yield f"NOT ARCHIVED: the archive begins at {state.base} and names no gap below"
    yield from (f"ARCHIVE DAMAGED: {fault}" for fault in verify(group, state).faults)
    bodies: set[bytes] = set()
    for part in state.parts:
        reader = group.whole(part)
        for at, data in read_range(reader, reader.directory(), part.start, part.end):
            bodies.update(record.body for record in decode_records(data))
            yield from _compared(at, data, final)
    if sync:
        yield from not_archived(promised, bodies, state)


def not_archived(promised: Iterable[Sent], bodies: set[bytes], state: State) -> Iterator[str]:
    """Yield acknowledged messages that are neither in the archive nor in one of its gaps."""
    for sent in promised:
        if sent.body not in bodies and not any(gap.start <= sent.phys < gap.end for gap in state.gaps):
            yield f"NOT ARCHIVED: {sent.body!r} was SEND_OK at {sent.place}, offset {sent.phys}"


def _compared(at: int, data: bytes, final: Final) -> Iterator[str]:
    """Yield where the archive differs from the log, as far as the log still has it."""
    begin = max(at, final.start)
    end = min(at + len(data), final.start + len(final.data))
    if begin < end and data[begin - at : end - at] != final.data[begin - final.start : end - final.start]:
        yield f"ARCHIVE DIFFERS: from the leader's log between {begin} and {end}"
