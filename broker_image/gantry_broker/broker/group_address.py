"""Whether the group's address leads anywhere; if not, the leader registers under its own.

In Kubernetes the address is a Service, and the operator moves it over the API server. When both the API server and the
former leader's node are gone, nothing answers at the address. A leader that was elected without the API server then
gives the NameServers its own address, until something answers at the group's again. Clients find it with their next
request for a route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gantry_broker.remoting.client import split_address

if TYPE_CHECKING:
    from gantry_broker.broker.events import Events
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
CONNECT_S: Final = 1.0
STAYS_S: Final = 0.3
"""A proxy on the way may accept each connection, and end it when it reaches nothing."""
LOST_S: Final = 3.0
"""Seconds without an answer after which the address is lost: a Service follows its label in 0.25 to 0.65 s."""
USED_S: Final = 10.0
"""A send that came so recently shows that the address leads here: no other address is registered for the master."""


class AddressJudge:
    """Decides from attempts to connect. Pure; times are seconds of one clock."""

    def __init__(self) -> None:
        self.lost = False
        self._failing_since: float | None = None

    def answered(self) -> None:
        self.lost, self._failing_since = False, None

    def failed(self, now: float) -> None:
        """Note an attempt that began at `now` and got no connection."""
        if self._failing_since is None:
            self._failing_since = now
        self.lost = self.lost or now - self._failing_since >= LOST_S


class GroupAddress:
    """Looks at the group's address while this member leads."""

    def __init__(
        self, config: BrokerConfig, role: RoleState, events: Events, used_within: Callable[[float], bool]
    ) -> None:
        """`used_within(seconds)`: whether a client has sent a message to this member since then."""
        self.watches = config.group_port is None and config.replication_port is not None
        """A port that the leader binds, and a group of one, need no look."""
        self._address = config.group_address
        self._own = config.member_address
        self._role = role
        self._events = events
        self._used_within = used_within
        self._judge = AddressJudge()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.watches:
            self._events.role_changed.subscribe(self._role_changed)

    def _role_changed(self, leads: bool) -> None:
        if not leads:
            self._stop()
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._judge = AddressJudge()
        self._role.address_lost = False

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        judge = self._judge
        while True:
            begun = loop.time()
            if (not judge.lost and self._used_within(USED_S)) or await self._connects():
                judge.answered()
            else:
                judge.failed(begun)
            if judge.lost != self._role.address_lost:
                self._role.address_lost = judge.lost
                if judge.lost:
                    log.warning("nothing answers at %s: clients get %s from the NameServers", self._address, self._own)
                else:
                    log.info("%s answers again", self._address)
                self._events.address_changed()
            await asyncio.sleep(max(begun + LOOK_S - loop.time(), LOOK_S / 2))

    async def _connects(self) -> bool:
        host, port = split_address(self._address)
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except OSError:  # TimeoutError is one.
            return False
        try:
            async with asyncio.timeout(STAYS_S):
                await reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            writer.transport.abort()
        return False  # A broker says nothing before it is asked.

    def close(self) -> None:
        self._stop()
