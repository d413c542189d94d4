"""The listening ports of a member: its client and replication ports at all times, the group's port while it leads.

A member binds the group's port when it takes the role. The former leader frees the port first or has died, so the
member retries every few milliseconds. A member that loses the role forwards its buffered writes and frees the port.
Then it closes each client's connection as soon as no request of that client is outstanding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from gantry_broker import descriptors
from gantry_broker.broker.dispatch import GROUP
from gantry_broker.broker.processing import ARRIVE_S
from gantry_broker.broker.pull.service import SENT_MS
from gantry_broker.protocol.request_limits import RequestLimits
from gantry_broker.remoting.connection import Shared
from gantry_broker.remoting.members import HandshakeGuard
from gantry_broker.remoting.server import RemotingServer
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.broker.dispatch import Dispatcher
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.forward import Forwarder
    from gantry_broker.broker.member_requests import MemberRequests
    from gantry_broker.broker.pull.service import PullService
    from gantry_broker.broker.relay import RelayedClients, Relays
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.remoting.connection import Connection
    from gantry_broker.remoting.members import Membership
    from gantry_broker.remoting.tls_ports import PortsTls
    from gantry_broker.replication.service import ReplicationService
    from gantry_broker.settings import BrokerSettings

log = logging.getLogger(__name__)

BIND_RETRY_S: Final = 0.005
QUIET_S: Final = 0.02
"""Pause in seconds after the group's port is free: the new leader has bound it by then."""
ROUTE_S: Final = 1.0
"""The same where a Service routes to the group: it follows its label in 0.25 to 0.65 s (measured)."""
STRAGGLER_ROUNDS: Final = 4
"""For this many rounds of ROUTE_S, every client that sends a request counts as one of the old route. A client with a
forwarded write is disconnected at any time: on a busy node a Service may follow its label after many seconds. Such a
connection would otherwise stay, and this member would forward its writes and answer its reads.
"""
FORCE_S: Final = 3.0
"""The longest time in seconds that forwarding delays the end of the clients' connections."""


class Ports:
    """The servers, and the clients' connections at a change of role."""

    def __init__(
        self,
        config: BrokerConfig,
        settings: BrokerSettings,
        *,
        dispatcher: Dispatcher,
        member_requests: MemberRequests,
        membership: Membership,
        shared: Shared,
        tls: PortsTls,
        forwarder: Forwarder,
        relays: Relays,
        relayed: RelayedClients,
        pulls: PullService,
        role: RoleState,
        replication: ReplicationService,
        events: Events,
    ) -> None:
        """`shared`: the limits that all clients' ports share."""
        self.guard: HandshakeGuard | None = None
        """Guards the replication port; None: there is no such port."""
        self._forwarder = forwarder
        self._pulls = pulls
        self._role = role
        self._replication = replication
        self._events = events
        self._shared = shared
        limits = RequestLimits(lambda: settings.maxMessageSize)
        budget = descriptors.budget()
        backlog = budget.remoting_backlog
        gate = tls.client_gate(shared)
        self.own = RemotingServer(
            dispatcher, config.listen_host, config.port, limits=limits, shared=shared, backlog=backlog, gate=gate
        )
        self._group: RemotingServer | None = None
        if config.group_port:
            self._group = RemotingServer(
                dispatcher, config.listen_host, config.group_port, name=GROUP, limits=limits, shared=shared,
                backlog=backlog, gate=gate,
            )  # fmt: skip
        self._replication_server: RemotingServer | None = None
        if config.replication_port is not None:
            members = Shared(shared.budget)
            unproven = budget.members if tls.internal is None else budget.members // 2
            guard = self.guard = HandshakeGuard(membership, unproven)
            self._replication_server = RemotingServer(
                member_requests, config.listen_host, config.replication_port,
                name="replication", max_connections=budget.members, backlog=backlog, shared=members,
                limits=RequestLimits(members=True), guard=guard,
                gate=tls.member_gate("replication", unproven, members),
            )  # fmt: skip
        relays.end_clients = self._end
        relayed.adopt = self.own.adopt
        self._relays = relays
        self._task: asyncio.Task[None] | None = None
        self._leads = False

    @property
    def _client_servers(self) -> list[RemotingServer]:
        return [self.own] if self._group is None else [self.own, self._group]

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return sum(len(server.connections) for server in self._client_servers)

    @property
    def connections_refused(self) -> int:
        """Connections of clients that were refused since the start."""
        return self._shared.refused + sum(server.refused for server in self._client_servers)

    def used_within(self, seconds: float) -> bool:
        """Whether a client has sent a message since then."""
        since_ms = time.monotonic() * 1000 - seconds * 1000
        return any(c.attrs.get(SENT_MS, since_ms) > since_ms for s in self._client_servers for c in s.connections)

    async def start(self) -> int:
        """Listen and return the port for clients. Raises OSError when a port is taken."""
        self._events.role_changed.subscribe(self._role_changed)
        if self._replication_server is not None:
            await self._replication_server.start()
        return await self.own.start()

    def _role_changed(self, leads: bool) -> None:
        self._relays.role_changed()
        if leads == self._leads:
            return
        self._leads = leads
        self._role.has_stale_clients = not leads and self._replication.handed_to is not None
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._serve_group() if leads else self._drain_clients())

    async def _serve_group(self) -> None:
        self._role.draining = False
        await self._pulls.settle_all()
        group = self._group
        if group is None:
            return
        warned = False
        while not group.listening:
            try:
                await group.start()
            except OSError as error:
                if not warned:
                    warned = True
                    log.info("the group's port %d is not free yet: %s", group.port, error)
                await asyncio.sleep(BIND_RETRY_S)
        log.info("serving the group's port %d", group.port)

    async def _drain_clients(self) -> None:
        """After a loss of the role: forwards buffered writes, frees the group's port, ends the clients' connections."""
        role, replication, forwarder = self._role, self._replication, self._forwarder
        # In Raft mode the role is lost before the new leader is known. Writes are buffered until then.
        while replication.writes_paused:  # noqa: ASYNC110 (it ends by the clock as well)
            await asyncio.sleep(BIND_RETRY_S)
        forwarder.role_changed()
        planned = replication.handed_to is not None
        role.has_stale_clients = role.draining = planned
        await forwarder.drained(FORCE_S)
        if self._group is not None:
            self._group.stop_listening()
        if planned:
            await asyncio.sleep(QUIET_S if self._group is not None else ROUTE_S)
        await self._end(self._clients())
        role.draining = False
        rounds = 0
        while planned and replication.handed_to is not None:
            await asyncio.sleep(ROUTE_S)
            await self._end([c for c in self._clients() if c.attrs.get("forwarded")])
            rounds += 1
            role.has_stale_clients = rounds < STRAGGLER_ROUNDS
        role.has_stale_clients = False

    async def _end(self, clients: list[Connection]) -> None:
        """End connections so that every request is answered or certainly not executed.

        The member reads nothing more from them, answers all requests that it has read, and gives the answers time to
        arrive. Later requests stay unread, so the connection ends with a reset, after which clients send again at once.
        RocketMQ's Java client waits for its timeout when a connection with a pending request ends in order.
        """
        if not clients:
            return
        for conn in clients:
            conn.stop_reading()
        try:
            if self._replication.handed_to is not None:
                await self._forwarder.drained(FORCE_S)
                await asyncio.sleep(ARRIVE_S)
            await self._pulls.settle_all()
        except asyncio.CancelledError:
            # The role has come back: the connections stay.
            for conn in clients:
                conn.read_again()
            raise
        for conn in clients:
            conn.close()

    def _clients(self) -> list[Connection]:
        """Return the connections that have sent a client's request."""
        return [c for s in self._client_servers for c in s.connections if c.attrs.get("client") and not c.closed]

    async def close(self, grace_s: float) -> None:
        await end_tasks(self._task)
        await self.own.close(grace_s)
        if self._replication_server is not None:
            await self._replication_server.close(grace_s)
        if self._group is not None:
            await self._group.close(grace_s)
