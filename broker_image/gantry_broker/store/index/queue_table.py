"""All consume queues of a store, by topic and queue. It writes their entries out in the order of the log."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gantry_broker.descriptors import budget
from gantry_broker.protocol.codes import CONTROL_TOPIC, SCHEDULE_TOPIC
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.message import MAGIC_V1, MAGIC_V2
from gantry_broker.store.clock_steps import ClockSteps
from gantry_broker.store.files import FdCache
from gantry_broker.store.index.consume_queue import ENTRY_SIZE, ConsumeQueue
from gantry_broker.store.index.queue_ends import QueueEnds

MAX_TOPIC_BYTES: Final = 255
"""The name of a topic is the name of a directory."""


class TopicQueues:
    """The queues of a topic, and values for the hot path that are computed once."""

    __slots__ = ("fixed", "is_control", "is_schedule", "magic", "name", "name_field", "queues")

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        if not 0 < len(encoded) <= MAX_TOPIC_BYTES or "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(
                f"topic {name[:80]!r}: cannot name a directory; use at most 255 of letters, digits, _ - % |"
            )
        self.name = name
        long = len(encoded) > 127
        self.magic = MAGIC_V2 if long else MAGIC_V1
        self.name_field = (len(encoded).to_bytes(2, "big") if long else bytes((len(encoded),))) + encoded
        """Length and name as a record has them after its body."""
        self.fixed = 90 + len(self.name_field)
        """Bytes of a record without body and properties, with IPv4 hosts."""
        self.queues: dict[int, ConsumeQueue] = {}
        self.is_schedule = name == SCHEDULE_TOPIC
        self.is_control = name == CONTROL_TOPIC


class QueueTable:
    """The queues under `consumequeue/`, and those with entries that are not in a file yet."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.topics: dict[str, TopicQueues] = {}
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues with entries in memory, the one with the oldest entry first."""
        self.waiting = 0
        """Entries in memory; after a truncation it may be too high."""
        self.unsynced: set[str] = set()
        """Files written since the last checkpoint."""
        self.deletion_watermarks: dict[str, int] = {}
        """By topic: records below this offset of the log are deleted, by control records."""
        self.next_overrides: dict[tuple[str, int], int] = {}
        """The next queue offset of queues that have lost all their records, by control records."""
        self.undone = 0
        """How often the overrides were forgotten: what they have hidden may be visible again."""
        self._forgotten: dict[str, int] = {}
        """The highest deletion watermarks that were forgotten since the last `take_undone`."""
        self.by_bytes: dict[bytes, TopicQueues] = {}
        self._fds = FdCache(budget().queue_files)
        directory.mkdir(parents=True, exist_ok=True)
        for topic in os.listdir(directory):
            try:
                names = os.listdir(directory / topic)
            except NotADirectoryError:
                continue
            for name in names:
                if (queue_id := whole_number(name)) is not None:
                    self._make(self.topic(topic), queue_id)

    def use_file_size(self, size: int | None) -> None:
        """Set the size of all files: those that exist count more than the settings. None: find it out from them.

        A file alone does not show it: it may have been cut. Raises OSError.
        """
        if size is None:
            sizes = Counter(size for queue in self for size in queue.sizes() if size and size % ENTRY_SIZE == 0)
            if not sizes or self.file_size in sizes:
                return
            size = sizes.most_common(1)[0][0]
        self.file_size = size
        for queue in self:
            queue.file_size = size

    def ends(self, offset: int, start: int, steps: ClockSteps) -> QueueEnds:
        """Where each queue begins and ends in its files. `offset`: all records below are there; `start`: of the log;
        `steps`: of the log up to `offset`.

        Raises OSError.
        """
        ends = {queue.key: (queue.first, queue.written) for queue in self.loaded()}
        return QueueEnds(offset, start, self.file_size, ends, steps.saved(start), steps.last_ms)

    def topic(self, name: str) -> TopicQueues:
        """Return the entry of the topic; makes a new one. Raises ValueError for a name that no directory can have."""
        entry = self.topics.get(name)
        if entry is None:
            entry = self.topics[name] = TopicQueues(name)
        return entry

    def topic_of(self, encoded: bytes) -> TopicQueues:
        """As `topic`, by the bytes of the name in a record. Raises ValueError."""
        entry = self.by_bytes.get(encoded)
        if entry is None:
            entry = self.by_bytes[encoded] = self.topic(encoded.decode())
        return entry

    def queue(self, topic: TopicQueues, queue_id: int) -> ConsumeQueue:
        """Return the queue, loaded; makes a new one. Raises ValueError for an impossible number, OSError."""
        queue = topic.queues.get(queue_id)
        if queue is None:
            queue = self._make(topic, queue_id)
        if queue.next < 0:
            self._load(queue)
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, loaded; None for an unknown one. Raises OSError."""
        entry = self.topics.get(topic)
        queue = None if entry is None else entry.queues.get(queue_id)
        if queue is not None and queue.next < 0:
            self._load(queue)
        return queue

    def unopened(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, not loaded; makes a new one. Raises ValueError for an impossible topic or queue."""
        entry = self.topic(topic)
        return entry.queues.get(queue_id) or self._make(entry, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next record, after unconfirmed ones too. Raises OSError."""
        queue = self.find(topic, queue_id)
        return 0 if queue is None else queue.next

    def next_offsets(self, keys: Iterable[tuple[str, int]]) -> dict[str, dict[int, int]]:
        """Return the queue offset of the next record by topic and queue, of those queues that have or had a record.

        Raises OSError.
        """
        offsets: dict[str, dict[int, int]] = {}
        for key in keys:
            queue = self.find(*key)
            if queue is not None and queue.next > 0:
                offsets.setdefault(queue.key[0], {})[queue.key[1]] = queue.next
        return offsets

    def queue_numbers(self, topic: str) -> list[int]:
        """Return the queues of a topic that exist on this disk."""
        entry = self.topics.get(topic)
        return [] if entry is None else list(entry.queues)

    def topics_queues(self) -> dict[str, list[int]]:
        """Return the queues that have or had a confirmed record, by topic. Raises OSError."""
        by_topic: dict[str, list[int]] = {}
        for queue in self.loaded():
            if queue.max > 0:
                by_topic.setdefault(queue.key[0], []).append(queue.key[1])
        return {topic: sorted(numbers) for topic, numbers in by_topic.items()}

    def _load(self, queue: ConsumeQueue) -> None:
        queue.load()
        self.apply_override(queue)

    def apply_override(self, queue: ConsumeQueue) -> None:
        """Start an empty queue at its overridden queue offset."""
        number = self.next_overrides.get(queue.key, 0)
        if number > queue.max == queue.next and queue.is_empty:
            queue.start_at(number)  # With `next` above `max`, unconfirmed records already give the number.

    # Overrides: deletions and queue offsets from control records, in memory only. The broker, which keeps the tables of
    # these records, sets all overrides after each start, and again after a truncation of some of the records. A leader
    # also sets those of unconfirmed records, before its first append.

    def drop_topic(self, topic: str, below: int) -> None:
        """Hide all records of the topic below this offset of the log; its queue offsets continue."""
        self.deletion_watermarks[topic] = max(below, self.deletion_watermarks.get(topic, 0))
        entry = self.topics.get(topic)
        for queue in () if entry is None else entry.queues.values():
            if queue.compacted is not None:
                queue.compacted.drop(own_below=below)

    def override_next(self, topic: str, queue_id: int, number: int) -> None:
        """Give the next record of the queue the queue offset `number` or a higher one.

        This concerns a queue whose records have left the log; a queue with records knows its next number. Raises
        ValueError for an impossible topic or queue, OSError.
        """
        entry = self.topic(topic)
        queue = entry.queues.get(queue_id) or self._make(entry, queue_id)
        self.next_overrides[topic, queue_id] = max(number, self.next_overrides.get((topic, queue_id), 0))
        if queue.next >= 0:
            self.apply_override(queue)

    def clear_overrides(self) -> None:
        """Forget all deletion watermarks and overridden queue offsets. Raises OSError."""
        self.undone += 1
        for topic, below in self.deletion_watermarks.items():
            self._forgotten[topic] = max(below, self._forgotten.get(topic, 0))
        self.deletion_watermarks.clear()
        self.next_overrides.clear()
        for queue in self:
            if queue.is_empty and queue.next == queue.max:
                queue.load()

    def take_undone(self, log_start: int) -> bool:
        """Return whether a deletion that was forgotten since the last call is undone now, in a log that begins at
        `log_start`.
        """
        forgotten, self._forgotten = self._forgotten, {}
        return any(below > self.visible_from(topic, log_start) for topic, below in forgotten.items())

    def visible_from(self, topic: str, log_start: int) -> int:
        """Readers see records of the topic from this offset on, in a log that begins at `log_start`."""
        return max(log_start, self.deletion_watermarks.get(topic, 0))

    def _make(self, topic: TopicQueues, queue_id: int) -> ConsumeQueue:
        if not 0 <= queue_id < 1 << 31:
            raise ValueError(f"queue {queue_id} of topic {topic.name}: a queue's number is 0 to 2147483647")
        queue = topic.queues[queue_id] = ConsumeQueue(
            f"{self.directory}{os.sep}{topic.name}{os.sep}{queue_id}", topic.name, queue_id, self.file_size, self._fds
        )
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for topic in list(self.topics.values()):
            yield from list(topic.queues.values())

    def loaded(self) -> Iterator[ConsumeQueue]:
        """All queues, loaded. Raises OSError."""
        for queue in self:
            if queue.next < 0:
                self._load(queue)
            yield queue

    def oldest_pending(self) -> int | None:
        """Return the offset of the oldest record with an entry in memory only; None without one."""
        # Look at all: after a failure some may be empty, or in another order.
        oldest = (queue.oldest_pending() for queue in self.dirty)
        return min((phys for phys in oldest if phys is not None), default=None)

    def write_out(self, limit: int | None = None, until: float | None = None) -> None:
        """Write out one to `limit` queues, oldest entries first, until a time of the monotonic clock.

        Raises OSError; unwritten entries stay in memory.
        """
        dirty = self.dirty
        while dirty and (limit is None or limit > 0):
            queue = next(iter(dirty))
            try:
                while queue.pending:
                    before = len(queue.pending)
                    self.unsynced.add(queue.write_piece())
                    self.waiting -= (before - len(queue.pending)) // ENTRY_SIZE
            except OSError:
                dirty[queue] = dirty.pop(queue)  # The next call tries others first: their files may have room.
                raise
            del dirty[queue]
            if limit is not None:
                limit -= 1
            if until is not None and time.monotonic() >= until:
                break
        if not dirty:
            self.waiting = 0

    def truncate(self, limit: int) -> None:
        """Remove the entries of records at or above `limit` from every queue, in memory and on disk. Raises OSError."""
        for queue in self:
            if queue.truncate(limit):
                self.unsynced.update(queue.files())
            self.apply_override(queue)
        self.dirty = {queue: None for queue in self.dirty if queue.pending}

    def clear(self) -> None:
        """Remove all queues, their files and overrides. Raises OSError."""
        self.dirty.clear()
        for queue in self:
            queue.rebase(0)
        self.topics.clear()
        self.by_bytes.clear()
        self.deletion_watermarks.clear()
        self.next_overrides.clear()

    def drop_before(self, phys: int, dropped: list[str]) -> None:
        """Give up files whose records all lie below `phys`; adds them to `dropped`. Raises OSError."""
        for queue in self.loaded():
            queue.drop_before(phys, dropped)
        self.unsynced.difference_update(dropped)

    def close(self) -> None:
        """Close all files."""
        self._fds.close_all()
