"""The gRPC consumers that proxies have announced: state without sockets or clock.

A proxy pops for its clients over one connection, so heartbeats cannot name them. It announces them to each master
(GantryCode.PROXY_CLIENTS): all of them every `protocol.proxied.BEAT_S` seconds, and each one when it comes or goes.
They are shown beside the members that have connections of their own; they get no share of queues and no notifications.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from gantry_broker.protocol.proxied import BEAT_S, ProxiedClient
from gantry_broker.shares import Shares

EXPIRE_MS: Final = int(3_000 * BEAT_S)
"""A client that was not announced for this long is gone."""


class TooManyProxied(Exception):
    """An announcement exceeds the limit; the text names it."""


class ProxiedClients:
    """All that are known, by group. `now_ms` is of one monotonic clock."""

    def __init__(self, limit: int = 100_000) -> None:
        self._shares = Shares(limit)
        self._groups: dict[str, dict[tuple[Hashable, str, str], tuple[ProxiedClient, int]]] = {}
        self._of: dict[Hashable, dict[tuple[str, str, str], str]] = {}
        """Group, user and client id, by the proxy's connection, with who pays for them."""

    @property
    def count(self) -> int:
        return self._shares.taken

    def take(
        self,
        conn: Hashable,
        clients: Iterable[ProxiedClient],
        gone: Iterable[ProxiedClient],
        now_ms: int,
        owner: str = "",
    ) -> None:
        """Note clients of a proxy. `owner`: who pays for new ones, see `Shares`. Raises TooManyProxied; those before
        are noted then.
        """
        for client in gone:
            self._forget(conn, (client.group, client.user, client.client_id))
        mine = self._of.setdefault(conn, {})
        for client in clients:
            place = client.group, client.user, client.client_id
            if place not in mine:
                if not self._shares.take((owner,)):
                    raise TooManyProxied(
                        f"this broker knows {self.count} gRPC consumers of at most {self._shares.most}, and one user "
                        "or address may announce as many as are free"
                    )
                mine[place] = owner
            self._groups.setdefault(client.group, {})[conn, client.user, client.client_id] = client, now_ms

    def of_group(self, group: str) -> list[ProxiedClient]:
        """Return each client once: one that is connected to several proxies as the last of them said."""
        newest: dict[tuple[str, str], tuple[ProxiedClient, int]] = {}
        for (_, user, client_id), (client, at) in self._groups.get(group, {}).items():
            before = newest.get((user, client_id))
            if before is None or at >= before[1]:
                newest[user, client_id] = client, at
        return [client for client, _ in newest.values()]

    def groups(self) -> list[str]:
        return list(self._groups)

    def groups_of_topic(self, topic: str) -> set[str]:
        return {
            group
            for group, clients in self._groups.items()
            if any(topic in client.topics for client, _ in clients.values())
        }

    def closed(self, conn: Hashable) -> None:
        """Forget the clients of a proxy whose connection has ended."""
        for place in list(self._of.get(conn, ())):
            self._forget(conn, place)
        self._of.pop(conn, None)

    def expire(self, now_ms: int) -> None:
        silent = [
            (conn, (group, user, client_id))
            for group, clients in self._groups.items()
            for (conn, user, client_id), (_, at) in clients.items()
            if now_ms - at > EXPIRE_MS
        ]
        for conn, place in silent:
            self._forget(conn, place)

    def _forget(self, conn: Hashable, place: tuple[str, str, str]) -> None:
        mine = self._of.get(conn)
        if mine is None or place not in mine:
            return
        self._shares.give_back((mine.pop(place),))
        group, user, client_id = place
        clients = self._groups[group]
        del clients[conn, user, client_id]
        if not clients:
            del self._groups[group]
