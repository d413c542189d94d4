"""Tells the masters of the cluster which gRPC consumers this proxy has, so that every tool sees them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

from gantry_broker.client.errors import BrokerError
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.protocol.grpc_contract import ClientType
from gantry_broker.protocol.proxied import (
    BEAT_S,
    MAX_CLIENTS,
    MAX_EXPRESSION,
    MAX_TOPICS,
    ProxiedClient,
    announcement,
)
from gantry_broker.proxy.answers import FAILURES
from gantry_broker.proxy.brokers import Brokers
from gantry_broker.proxy.clients import CONSUMERS, Client, Clients
from gantry_broker.proxy.names import resource_name
from gantry_broker.tasks import end_tasks

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Seconds between two looks for changes."""
CALL_S: Final = 3.0
_PUSH: Final = frozenset({ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER})


def described(client: Client) -> ProxiedClient | None:
    """Return what brokers show of a client; None: it is no consumer of a group."""
    if client.kind not in CONSUMERS or not client.group or client.settings is None:
        return None
    topics = {
        resource_name(entry.topic): entry.expression.expression[:MAX_EXPRESSION]
        for entry in client.settings.subscription.subscriptions[:MAX_TOPICS]
    }
    return ProxiedClient(
        client.id,
        client.group,
        client.user,
        client.language,
        client.version,
        client.address,
        client.kind in _PUSH,
        topics,
    )


class Announcements:
    """One task of the service."""

    def __init__(self, brokers: Brokers, clients: Clients) -> None:
        self._brokers = brokers
        self._clients = clients
        self._task: asyncio.Task[None] | None = None
        self._next: dict[str, float] = {}
        """When each master gets all clients, by its address."""
        self._announced: dict[tuple[str, str], ProxiedClient] = {}
        """What brokers were told last, by user and client id."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(time.monotonic())
            except FAILURES as error:
                log.info("clients cannot be announced: %s", error)
            except Exception:
                log.exception("the announcement of clients failed")

    async def look(self, now: float) -> None:
        """Announce what has changed, and everything to masters for which it is time. Raises `FAILURES`."""
        changed, gone = self._changes()
        if not self._announced and not gone:
            return
        masters = await self._brokers.master_addresses()
        self._next = {address: self._next.get(address, 0.0) for address in masters}
        works = []
        for address in masters:
            if now >= self._next[address]:
                self._next[address] = now + BEAT_S
                works.append(self._announce(address, list(self._announced.values()), gone))
            elif changed or gone:
                works.append(self._announce(address, changed, gone))
        await asyncio.gather(*works)

    def _changes(self) -> tuple[list[ProxiedClient], list[ProxiedClient]]:
        changed, gone = [], []
        for key in self._clients.take_changed():
            client = self._clients.get(key[1], key[0])
            now = None if client is None else described(client)
            before = self._announced.pop(key, None)
            if before is not None and (now is None or now.group != before.group):
                gone.append(before)
            if now is not None:
                self._announced[key] = now
                changed.append(now)
        return changed, gone

    async def _announce(self, address: str, clients: list[ProxiedClient], gone: list[ProxiedClient]) -> None:
        for some, left in _parts(clients, gone):
            frame = Frame(GantryCode.PROXY_CLIENTS, body=fastjson.dumps(announcement(some, left)))
            try:
                answer = await self._brokers.session.call(address, frame, CALL_S)
                if answer.code != ResponseCode.SUCCESS:
                    raise BrokerError(f"the clients of this proxy at {address}", answer.code, answer.remark)
            except FAILURES as error:
                log.info("clients are not announced: %s", error)
                self._next[address] = 0.0
                return


def _parts(
    clients: list[ProxiedClient], gone: list[ProxiedClient]
) -> Iterator[tuple[Iterable[ProxiedClient], Iterable[ProxiedClient]]]:
    for at in range(0, len(gone), MAX_CLIENTS):
        yield (), gone[at : at + MAX_CLIENTS]
    for at in range(0, len(clients), MAX_CLIENTS):
        yield clients[at : at + MAX_CLIENTS], ()
