"""The follower's edge: one loop that sends a fetch, applies the answer, and sends the next one."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gantry_broker.remoting.errors import ConnectError, ConnectionLost, RequestTimeout
from gantry_broker.replication import wire
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer
from gantry_broker.replication.pending_fetches import HOLD_S

if TYPE_CHECKING:
    from gantry_broker.remoting.client import RemotingClient

log = logging.getLogger(__name__)

SILENT_S: Final = HOLD_S + 1.0
"""Seconds to wait for an answer. A leader answers after `HOLD_S` at the latest; a slow link may delay the answer."""
RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 0.5

LinkState = Literal["none", "connected", "refused", "silent"]


class Asker(Protocol):
    """The part of the service that the loop needs."""

    def next_fetch(self) -> tuple[str, Fetch] | None: ...

    async def answered(self, answer: FetchAnswer) -> bool: ...

    def malformed_answer(self, error: wire.WireError) -> None: ...

    def link_changed(self) -> None: ...


class FetchLoop:
    """Runs while there is a leader to follow. `follow` may be called often: an equal target changes nothing."""

    def __init__(self, client: RemotingClient, asker: Asker) -> None:
        self.state: LinkState = "none"
        self._client = client
        self._asker = asker
        self._following: object = None
        self._task: asyncio.Task[None] | None = None
        self._answered_at = -1.0
        self._lost = False
        """Whether the connection has ended since the last answer."""

    def last_answer_ms(self) -> int:
        """Milliseconds since the leader's last answer; -1 if it has not answered since the loop follows it."""
        return -1 if self._answered_at < 0 else int((time.monotonic() - self._answered_at) * 1000)

    def follow(self, following: object) -> None:
        """Follow another leader (any value that names it), or none (None)."""
        if following == self._following:
            return
        self._following = following
        self._answered_at = -1.0
        self.state = "none"
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if following is not None:
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        task = self._task
        self.follow(None)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause = RETRY_S
        while True:
            try:
                moved = await self._ask_once()
            except Exception:
                # A loop that dies would silently leave the group with one copy less.
                log.exception("fetching failed")
                moved = False
            if moved:
                pause = RETRY_S
                continue
            await asyncio.sleep(pause * (0.75 + random.random() / 2))
            pause = min(pause * 2, LONGEST_RETRY_S)

    async def _ask_once(self) -> bool:
        """Send one fetch; return false when the next one should wait a little."""
        asked = self._asker.next_fetch()
        if asked is None:
            return False
        address, fetch = asked
        try:
            frame = await self._client.request(address, wire.fetch_frame(fetch), SILENT_S, arriving=True)
            answer = wire.parse_answer(frame)
        except RequestTimeout:
            self._link("silent")
            return True
        except ConnectionLost:
            # The next fetch shows whether the process is gone (refused) or only this connection.
            self._client.drop(address)
            first, self._lost = not self._lost, True
            return first and self.state == "connected"
        except ConnectError as error:
            self._link("silent" if error.silent else "refused")
            return False
        except wire.WireError as error:
            log.warning("%s: %s", address, error)
            self._asker.malformed_answer(error)
            return False
        self._answered_at = time.monotonic()
        self._lost = False
        self._link("connected")
        return await self._asker.answered(answer) or (
            answer.kind is not AnswerKind.REFUSED and asked != self._asker.next_fetch()
        )

    def _link(self, state: LinkState) -> None:
        if state != self.state:
            self.state = state
            self._asker.link_changed()
