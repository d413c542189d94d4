"""Queue locks of orderly consumption (requests 41 and 42): one holder for each group and queue, for 60 s at a time."""

from __future__ import annotations

from gantry_broker.protocol.fastjson import MessageQueue

LOCK_MS = 60_000
"""RocketMQ's rebalance lock lives this long; clients renew every 20 s."""

MAX_LOCKS = 100_000
"""Locks of all groups. The broker gives no further ones."""


class QueueLocks:
    """Time is an argument (ms)."""

    def __init__(self) -> None:
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int) -> list[MessageQueue]:
        """Return the queues that `client_id` holds after this call: free ones, expired ones and its own."""
        table = self._held.setdefault(group, {})
        got = []
        for queue in queues:
            holder = table.get(queue)
            if holder is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
            if holder is None or holder[0] == client_id or now_ms - holder[1] > LOCK_MS:
                table[queue] = (client_id, now_ms)
                got.append(queue)
        return got

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        table = self._held.get(group, {})
        for queue in queues:
            if table.get(queue, ("", 0))[0] == client_id:
                del table[queue]
                self._count -= 1
        if not table:
            self._held.pop(group, None)

    def expire(self, now_ms: int) -> None:
        for group, table in list(self._held.items()):
            for queue in [q for q, (_, at) in table.items() if now_ms - at > LOCK_MS]:
                del table[queue]
                self._count -= 1
            if not table:
                del self._held[group]

    def clear(self) -> None:
        """Drop all locks. A new leader starts without locks; clients lock again within 20 s."""
        self._held.clear()
        self._count = 0
