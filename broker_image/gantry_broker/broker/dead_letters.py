"""Counts the messages in dead letter topics, a part of the topics at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.protocol.codes import DLQ_PREFIX

if TYPE_CHECKING:
    from gantry_broker.broker.metadata.tables import Metadata
    from gantry_broker.store.read import Reader

AT_ONCE: Final = 200
"""Topics of one step."""


class DeadLetters:
    """The figures of the last complete look."""

    def __init__(self, meta: Metadata, reader: Reader) -> None:
        self.by_group: dict[str, int] = {}
        """Messages by consumer group; groups without any are missing."""
        self.total = 0
        self._meta = meta
        self._reader = reader
        self._rest: list[str] = []
        self._next: dict[str, int] = {}

    def look(self) -> bool:
        """Count some topics. Returns True while topics are left."""
        topics = self._meta.working.topics
        if not self._rest:
            self._rest = [name for name in topics if name.startswith(DLQ_PREFIX)]
        some, self._rest = self._rest[:AT_ONCE], self._rest[AT_ONCE:]
        for name in some:
            config = topics.get(name)
            queues = 0 if config is None else max(config.read_queues, config.write_queues)
            count = sum(high - low for low, high in (self._reader.bounds(name, q) for q in range(queues)))
            if count > 0:
                self._next[name.removeprefix(DLQ_PREFIX)] = count
        if self._rest:
            return True
        self.by_group, self._next = self._next, {}
        self.total = sum(self.by_group.values())
        return False
