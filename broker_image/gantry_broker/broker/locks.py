"""Queue locks of orderly consumption (requests 41 and 42): one holder for each group and queue, for 60 s at a time."""

from __future__ import annotations

from typing import NamedTuple

from gantry_broker.protocol.fastjson import MessageQueue
from gantry_broker.shares import Shares

LOCK_MS = 60_000
"""RocketMQ's rebalance lock lives this long; clients renew every 20 s."""

MAX_LOCKS = 100_000
"""Locks of all groups. The broker gives no further ones; one user or address gets half of them at most."""


class _Lock(NamedTuple):
    client_id: str
    at_ms: int
    owner: str


class QueueLocks:
    """Time is an argument (ms)."""

    def __init__(self, most: int = MAX_LOCKS) -> None:
        self._held: dict[str, dict[MessageQueue, _Lock]] = {}
        self._shares = Shares(most)

    def __len__(self) -> int:
        return self._shares.taken

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int, owner: str = ""
    ) -> list[MessageQueue]:
        """Return the queues that `client_id` holds after this call: free ones, expired ones and its own. `owner`: who
        pays for new locks, see `Shares`.
        """
        table = self._held.get(group, {})
        shares, owners, got = self._shares, (owner,), []
        for queue in queues:
            holder = table.get(queue)
            if holder is not None and holder.client_id == client_id:
                table[queue] = holder._replace(at_ms=now_ms)
            elif holder is not None and now_ms - holder.at_ms <= LOCK_MS:
                continue
            else:
                if holder is not None:
                    self._free(table, queue)
                if not shares.take(owners):
                    continue
                table[queue] = _Lock(client_id, now_ms, owner)
            got.append(queue)
        self._keep(group, table)
        return got

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        table = self._held.get(group, {})
        for queue in queues:
            holder = table.get(queue)
            if holder is not None and holder.client_id == client_id:
                self._free(table, queue)
        self._keep(group, table)

    def expire(self, now_ms: int) -> None:
        for group, table in list(self._held.items()):
            for queue in [queue for queue, holder in table.items() if now_ms - holder.at_ms > LOCK_MS]:
                self._free(table, queue)
            self._keep(group, table)

    def clear(self) -> None:
        """Drop all locks. A new leader starts without locks; clients lock again within 20 s."""
        self._held.clear()
        self._shares = Shares(self._shares.most)

    def _free(self, table: dict[MessageQueue, _Lock], queue: MessageQueue) -> None:
        self._shares.give_back((table.pop(queue).owner,))

    def _keep(self, group: str, table: dict[MessageQueue, _Lock]) -> None:
        if table:
            self._held[group] = table
        else:
            self._held.pop(group, None)
