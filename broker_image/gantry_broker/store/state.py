"""What the parts of a store share: offsets, flags and the last recovery point. It knows none of the parts."""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.store.files import NO_DESCRIPTORS
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.types import Damage


class StoreState:
    """Plain values without logic. Offsets are bytes of the log."""

    __slots__ = (
        "confirmed",
        "damage",
        "durable_names",
        "ends_offset",
        "failed",
        "flushed",
        "last_store_ms",
        "on_damage",
        "on_failed",
        "on_queue_damage",
        "queue_entries_repaired",
        "queues_rebuilt",
        "recovery_point",
        "renumber",
        "reset_in_progress",
        "truncations",
        "unindexed",
        "verified_from",
        "was_clean",
    )

    def __init__(self) -> None:
        self.confirmed = 0
        """Records below are confirmed, and are in queues and index."""
        self.flushed = 0
        """Bytes below are durable."""
        self.verified_from = 0
        """The last start has checked every record from here on. Reads check the records below."""
        self.last_store_ms = 0
        """Store time of the newest record; 0 before the first one of this process."""
        self.truncations = 0
        """Truncations below `confirmed` so far. A checkpoint that began before one of them does not count."""
        self.unindexed: dict[int, int] = {}
        """Start and end of stretches of the log that recovery could not read and so could not index."""
        self.renumber = False
        """Queue entries were replaced: `confirm` has to compute the next numbers of all queues again."""
        self.reset_in_progress = False
        """A reset has not finished and has to be repeated. Until then the recovery point claims nothing."""
        self.durable_names: set[str] = set()
        """Files of queues and index whose names a checkpoint has made durable."""
        self.recovery_point = RecoveryPoint()
        """The last one that was written or is about to be written."""
        self.ends_offset = 0
        """Of the last list of queue ends that was written or is about to be written."""
        self.queues_rebuilt = 0
        """Consume queues that the start has built from the log, because their files were damaged or missing."""
        self.queue_entries_repaired = 0
        """Entries of consume queues that were damaged on the disk, and were written again from the log."""
        self.damage: Damage | None = None
        """Acknowledged records that recovery found missing."""
        self.was_clean = False
        """The store had been closed cleanly; True for a new store."""
        self.failed: BaseException | None = None
        """The failure of the disk after which the store takes no writes."""
        self.on_damage: Callable[[int], None] = lambda at: None
        """Gets the offset of each record that a read finds damaged."""
        self.on_queue_damage: Callable[[str, int, int], None] = lambda topic, queue_id, number: None
        """Gets topic, queue and queue offset of each damaged entry of a consume queue that a read finds and does not
        repair.
        """
        self.on_failed: Callable[[], None] = lambda: None
        """Called once after a write or a flush has failed."""

    @property
    def unindexed_from(self) -> int:
        """The first record that recovery could not read and so could not index; beyond the log without one."""
        return min(self.unindexed, default=1 << 63)

    @property
    def disk_untrusted(self) -> bool:
        """The kernel may have dropped written bytes: after every failure except a shortage of descriptors."""
        return self.failed is not None and makes_disk_untrusted(self.failed)


def makes_disk_untrusted(error: BaseException) -> bool:
    """Whether written bytes may be lost after this error."""
    return not (isinstance(error, OSError) and error.errno in NO_DESCRIPTORS)
