"""The follower's edge: it sends a fetch, applies the answer, and sends the next one.

While all goes well an `Exchange` does this by callbacks: each answer sends the next fetch in the same pass of the event
loop, since senders wait for it. Everything else (the first fetch, errors, pauses) is in the task of `FetchLoop`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

from gantry_broker.remoting.errors import ConnectError, ConnectionLost, RequestTimeout
from gantry_broker.replication import wire
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer
from gantry_broker.replication.pending_fetches import HOLD_S
from gantry_broker.tasks import end_tasks

if TYPE_CHECKING:
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.client import RemotingClient
    from gantry_broker.store.errors import FlushFailed
    from gantry_broker.store.group_commit import OnDurable

log = logging.getLogger(__name__)

SILENT_S: Final = HOLD_S + 1.0
"""Seconds to wait for an answer. A leader answers after `HOLD_S` at the latest; a slow link may delay the answer."""
RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 0.5

LinkState = Literal["none", "connected", "refused", "silent"]


class Asker(Protocol):
    """The part of the service that the loop needs."""

    def next_fetch(self) -> tuple[str, Fetch] | None: ...

    def fills(self) -> bool:
        """Whether records come from elsewhere before the next fetch (`fill`)."""
        ...

    async def fill(self) -> None: ...

    def answered(self, answer: FetchAnswer) -> bool: ...

    def when_durable(self, then: OnDurable) -> None: ...

    def confirm(self) -> None: ...

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
        self._pause = RETRY_S

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
        await end_tasks(task)

    async def _run(self) -> None:
        self._pause = RETRY_S
        while True:
            try:
                if self._asker.fills():
                    await self._asker.fill()
                moved = await self._ask_once()
            except Exception:
                # A loop that dies would silently leave the group with one copy less.
                log.exception("fetching failed")
                moved = False
            if moved:
                self._pause = RETRY_S
                continue
            await asyncio.sleep(self._pause * (0.75 + random.random() / 2))
            self._pause = min(self._pause * 2, LONGEST_RETRY_S)

    async def _ask_once(self) -> bool:
        """Fetch until the next fetch cannot follow at once; return false when it should wait a little."""
        question = self._asker.next_fetch()
        if question is None:
            return False
        address, fetch = question
        exchange = Exchange(self._client, self._asker, question, self._answered)
        try:
            exchange.set_result(await self._client.request(address, wire.fetch_frame(fetch), SILENT_S, arriving=True))
            return await exchange.ended
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
        finally:
            # A late answer to this exchange must not send fetches beside those of the next one.
            exchange.stop()
            if exchange.went_on:
                self._pause = RETRY_S

    def _answered(self) -> None:
        self._answered_at = time.monotonic()
        self._lost = False
        self._link("connected")

    def _link(self, state: LinkState) -> None:
        if state != self.state:
            self.state = state
            self._asker.link_changed()


class Exchange:
    """Fetches and answers in turn with one leader, as a `Reply` to each fetch.

    `ended`: whether the next fetch may follow at once; or what ended the exchange.
    """

    def __init__(
        self, client: RemotingClient, asker: Asker, question: tuple[str, Fetch], on_answer: Callable[[], None]
    ) -> None:
        """`question` is the first fetch, which the caller sends. `on_answer` is called with each well-formed answer."""
        self._client = client
        self._asker = asker
        self._asked = question
        self._on_answer = on_answer
        self._applied = self._refused = False
        self.went_on = False
        """Whether an answer was followed by another fetch."""
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Send no more fetches, and take no more answers."""
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # Retrieved, or asyncio would report it.

    def done(self) -> bool:
        return self.ended.done()

    def set_exception(self, error: Exception, /) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def set_result(self, frame: Frame, /) -> None:
        """Apply an answer, and send the next fetch once it may acknowledge."""
        try:
            answer = wire.parse_answer(frame)
            self._on_answer()
            self._applied = self._asker.answered(answer)
            self._refused = answer.kind is AnswerKind.REFUSED
            # The next fetch acknowledges what was applied, so under SYNC_FLUSH it waits until that is on the disk.
            self._asker.when_durable(self._next)
        except Exception as error:
            self._fail(error)

    def _next(self, error: FlushFailed | None) -> None:
        if self.ended.done():
            return
        try:
            if error is not None:
                raise error
            question = self._asker.next_fetch()
            if not self._applied and (self._refused or question == self._asked):
                self.ended.set_result(False)
            elif question is None or question[0] != self._asked[0] or self._asker.fills() or not self._sent(question):
                self.ended.set_result(True)
            self._asker.confirm()
        except Exception as failure:
            self._fail(failure)

    def _sent(self, question: tuple[str, Fetch]) -> bool:
        if not self._client.call(question[0], wire.fetch_frame(question[1]), SILENT_S, self):
            return False
        self._asked, self.went_on = question, True
        return True

    def _fail(self, error: Exception) -> None:
        if self.ended.done():
            log.error("fetching failed after its end", exc_info=error)
        else:
            self.ended.set_exception(error)
