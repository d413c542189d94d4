"""Notifications to the members of consumer groups (request 40, NOTIFY_CONSUMER_IDS_CHANGED)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import RequestCode
from gantry_broker.protocol.frame import Frame, encode_frame

if TYPE_CHECKING:
    from gantry_broker.broker.clients import ClientTable, Link
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.timeslice import TimeSlices

AT_ONCE: Final = 200
"""Members of a group that one step notifies."""
DELAY_S: Final = 0.02
"""Changes of a consumer group within this time are notified together."""


def opaque_numbers() -> Callable[[], int]:
    """Return a source of numbers for one-way requests to clients. Other requests get theirs from the connection."""
    last = 0

    def next_opaque() -> int:
        nonlocal last
        last = (last + 1) & 0x7FFFFFFF
        return last

    return next_opaque


class GroupNotifier:
    """Notifies the members of a consumer group once of all changes within `DELAY_S`.

    At a failover all members come or leave together. One notification for each change would take seconds in a group of
    thousands.
    """

    def __init__(
        self, clients: ClientTable, meta: Metadata, slices: TimeSlices, next_opaque: Callable[[], int]
    ) -> None:
        self._clients = clients
        self._meta = meta
        self._slices = slices
        self._next_opaque = next_opaque
        self._changed: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()

    def group_changed(self, group: str) -> None:
        """Notifies all members of the group after `DELAY_S`."""
        if not self._changed:
            self._loop.call_later(DELAY_S, self._notify)
        self._changed[group] = None

    def _notify(self) -> None:
        changed, self._changed = self._changed, {}
        for group in changed:
            config = self._meta.working.groups.get(group)
            members = self._clients.consumers.get(group)
            if members is None or (config is not None and not config.notify_ids_changed):
                continue
            frame = Frame(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._next_opaque(), 2, {"consumerGroup": group})
            data = encode_frame(frame)
            links = list(members.clients)
            for start in range(0, len(links), AT_ONCE):
                self._slices.run(partial(_write_all, links[start : start + AT_ONCE], data))


def _write_all(links: list[Link], data: bytes) -> None:
    for link in links:
        link.write(data)
